"""Events and jobs as JSON and back. What was written once must be readable for ever."""

from __future__ import annotations

import msgspec

from drfd.core import events as ev
from drfd.core.array import Array
from drfd.core.curve import Curve
from drfd.core.job import Job


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job needs only to start; never shown, never logged."""

    env: dict[str, str] = {}
    script: str | None = None


_encoder = msgspec.json.Encoder()
_events: dict[str, msgspec.json.Decoder[ev.Event]] = {
    kind: msgspec.json.Decoder(cls) for kind, cls in ev.KINDS.items()
}
_jobs = msgspec.json.Decoder(Job)
_arrays = msgspec.json.Decoder(Array)
_curves = msgspec.json.Decoder(Curve)
_payloads = msgspec.json.Decoder(Payload)


#: A demand of a machine with one disk, which is how drfd began: left out, so that its first
#: version reads it too. No text can hold this, because JSON escapes a quotation mark in a text.
_NO_DISKS = b',"disks":[]'


def encode(record: ev.Event | Job | Array | Payload | Curve) -> bytes:
    return _encoder.encode(record).replace(_NO_DISKS, b"")


def decode_event(kind: str, data: bytes) -> ev.Event:
    """Raises ValueError for a kind or a content that this drfd does not know."""
    if kind not in _events:
        raise ValueError(f"an event of the unknown kind {kind!r}")
    return _events[kind].decode(data)


def decode_job(data: bytes) -> Job:
    return _jobs.decode(data)


def decode_array(data: bytes) -> Array:
    return _arrays.decode(data)


def decode_curve(data: bytes) -> Curve:
    return _curves.decode(data)


def decode_payload(data: bytes) -> Payload:
    return _payloads.decode(data)
