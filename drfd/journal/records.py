"""Events and jobs as JSON and back."""

from __future__ import annotations

import zlib

import msgspec

from drfd.common.indices import Span
from drfd.core.model import events as ev
from drfd.core.model.job import Array, DeclaredJob, Job
from drfd.core.usage import Curve

encode = msgspec.json.Encoder().encode


class _ArrayHead(msgspec.Struct):
    """An array without its cancelled tasks, which may be very many ranges."""

    common: Job
    spans: tuple[Span, ...]
    at_once: int | None


decode_job = msgspec.json.Decoder(Job).decode
decode_array = msgspec.json.Decoder(Array).decode
_decode_head = msgspec.json.Decoder(_ArrayHead).decode
_event_decoders: dict[str, msgspec.json.Decoder[ev.Event]] = {}


def decode_array_head(data: bytes) -> Array:
    """Decode an array without its cancelled tasks."""
    head = _decode_head(data)
    return Array(common=head.common, spans=head.spans, at_once=head.at_once)


def decode_event(kind: str, data: bytes) -> ev.Event:
    """Decode an event. Raises ValueError for a kind or content that is not known."""
    if kind not in ev.KINDS:
        raise ValueError(f"an event of the unknown kind {kind!r}")
    if kind not in _event_decoders:
        _event_decoders[kind] = msgspec.json.Decoder(ev.KINDS[kind])
    return _event_decoders[kind].decode(data)


_curves = msgspec.json.Decoder(Curve)


def encode_curve(curve: Curve) -> bytes:
    """Encode a curve: its sums have many digits, of which compression leaves a third."""
    return zlib.compress(encode(curve), 1)


def decode_curve(data: bytes) -> Curve:
    return _curves.decode(zlib.decompress(data))


decode_declared = msgspec.json.Decoder(DeclaredJob).decode
