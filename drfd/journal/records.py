"""Events and jobs as JSON and back.

The specification of a job or array is stored once, with its submission: records leave it out, and
get it back where they are decoded. The events after the submission stand in the row of the job or
array, each as `[number,"kind",event],`.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from msgspec import structs

from drfd.core.model import events as ev
from drfd.core.model.job import Array, DeclaredJob, Job
from drfd.core.usage import Curve

encode = msgspec.json.Encoder().encode

_NO_SPEC: Any = msgspec.Raw(b"0")
_NO_SPEC_PART, _SPEC_PART = b'"spec":0', b'"spec":'


def without_spec(record: Job | ev.Submitted | ev.ArraySubmitted) -> bytes:
    return encode(structs.replace(record, spec=_NO_SPEC))


def with_spec(data: bytes, spec: bytes) -> bytes:
    # No field before the specification is a text, in which the same letters could be.
    return data.replace(_NO_SPEC_PART, _SPEC_PART + spec, 1)


_decode_job = msgspec.json.Decoder(Job).decode
_decode_declared = msgspec.json.Decoder(DeclaredJob).decode
decode_array = msgspec.json.Decoder(Array).decode


def decode_job(data: bytes, spec: bytes) -> Job:
    return _decode_job(with_spec(data, spec))


def decode_declared(data: bytes, spec: bytes) -> DeclaredJob:
    return _decode_declared(with_spec(data, spec))


_event_decoders: dict[str, msgspec.json.Decoder[ev.Event]] = {
    kind: msgspec.json.Decoder(cls) for kind, cls in ev.KINDS.items()
}
_decode_lines = msgspec.json.Decoder(list[tuple[int, str, msgspec.Raw]]).decode


def event_line(seq: int, event: ev.Event) -> bytes:
    """Encode an event for the row of its job or array."""
    return b'[%d,"%s",%s],' % (seq, type(event).__name__.encode(), encode(event))


def decode_event(kind: str, data: bytes | msgspec.Raw) -> ev.Event:
    """Decode an event. Raises ValueError for a kind or content that is not known."""
    if kind not in _event_decoders:
        raise ValueError(f"an event of the unknown kind {kind!r}")
    return _event_decoders[kind].decode(data)


def decode_submission(data: bytes, spec: bytes) -> ev.Event:
    """Decode the first event of a job or array."""
    kind = "ArraySubmitted" if data.startswith(b'{"array_id":') else "Submitted"
    return decode_event(kind, with_spec(data, spec))


def decode_events(lines: bytes) -> list[tuple[int, ev.Event]]:
    """Decode the events of a row, each with its number. Raises ValueError."""
    rows = _decode_lines(b"[%b]" % lines[:-1])
    return [(seq, decode_event(kind, data)) for seq, kind, data in rows]


#: Number of first and last events of a row that stay longest.
FIRST, LAST = 20, 50
#: Kinds given up first: they leave no trace in the job, or only the last of them does.
_REPEATED = frozenset(
    {
        *("Altered", "Held", "Released", "SignalRequested", "DependencySettled"),
        "LaunchPostponed",
        *("SuspendRequested", "Suspended", "ResumeRequested", "Resumed"),
    }
)


def thinned(lines: bytes, most_bytes: int) -> tuple[bytes, int]:
    """Return the events of a row without so many that the others have at most `most_bytes`, and how
    many were given up: the oldest in the middle first. The last one stays however long it is."""
    rows = _decode_lines(b"[%b]" % lines[:-1])
    sizes = [len(bytes(data)) + 30 for _, _, data in rows]
    last, number = len(rows) - 1, len(rows) - LAST

    def rank(at: int) -> tuple[bool, bool]:
        return not FIRST <= at < number, rows[at][1] not in _REPEATED

    excess, gone = sum(sizes) - most_bytes, set[int]()
    for at in sorted(range(last), key=rank):
        if excess <= 0:
            break
        gone.add(at)
        excess -= sizes[at]
    kept = [each for at, each in enumerate(rows) if at not in gone]
    return b"%b," % encode(kept)[1:-1], len(gone)


_curves = msgspec.json.Decoder(Curve)


def encode_curve(curve: Curve) -> bytes:
    """Encode a curve: its sums have many digits, of which compression leaves a third."""
    return zlib.compress(encode(curve), 1)


def decode_curve(data: bytes) -> Curve:
    return _curves.decode(zlib.decompress(data))
