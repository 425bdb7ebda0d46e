"""Events and jobs as JSON and back.

A long command line is stored once, in the table `texts`; a record has its number in place of the
words.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from drfd.common.indices import Span
from drfd.core.model import events as ev
from drfd.core.model.job import NO_WORDS, Array, DeclaredJob, Job, Words
from drfd.core.usage import Curve


class Payload(msgspec.Struct, frozen=True):
    """The environment and script of a job, needed only to start it; never shown, never logged."""

    env: dict[str, str] = {}
    script: str | None = None
    #: Signature by which the launcher verifies the user's submission; see `drfd.payload.signature`.
    proof: str | None = None


class StoredWords(Words):
    """A command line with a row of its own, whose number records contain."""

    __slots__ = ("number",)

    def __init__(self, data: bytes, number: int) -> None:
        super().__init__(data)
        self.number: Final = number


def _plain(value: object) -> object:
    if type(value) is Words:
        return value.texts()
    if isinstance(value, StoredWords):
        return value.number
    raise NotImplementedError


encode = msgspec.json.Encoder(enc_hook=_plain).encode


class _ArrayHead(msgspec.Struct):
    """An array without its cancelled tasks, which may be very many ranges."""

    common: Job
    spans: tuple[Span, ...]
    at_once: int | None


class Records:
    """Decodes records; `find` returns the command line with a row number."""

    def __init__(self, find: Callable[[int], Words]) -> None:
        self._find = find
        self._events: dict[str, msgspec.json.Decoder[ev.Event]] = {}
        self.job = msgspec.json.Decoder(Job, dec_hook=self._words).decode
        self.array = msgspec.json.Decoder(Array, dec_hook=self._words).decode
        self._head = msgspec.json.Decoder(_ArrayHead, dec_hook=self._words).decode

    def array_head(self, data: bytes) -> Array:
        """Decode an array without its cancelled tasks."""
        head = self._head(data)
        return Array(common=head.common, spans=head.spans, at_once=head.at_once)

    def event(self, kind: str, data: bytes) -> ev.Event:
        """Decode an event. Raises ValueError for a kind or content that is not known."""
        if kind not in ev.KINDS:
            raise ValueError(f"an event of the unknown kind {kind!r}")
        if kind not in self._events:
            self._events[kind] = msgspec.json.Decoder(ev.KINDS[kind], dec_hook=self._words)
        return self._events[kind].decode(data)

    def _words(self, kind: type, value: Any) -> Words:
        if isinstance(value, int):
            return self._find(value)
        return Words.of(value)


#: Decodes records without their long command lines.
without_words = Records(lambda number: NO_WORDS)

_curves = msgspec.json.Decoder(Curve)


def encode_curve(curve: Curve) -> bytes:
    """Encode a curve: its sums have many digits, of which compression leaves a third."""
    return zlib.compress(encode(curve), 1)


def decode_curve(data: bytes) -> Curve:
    return _curves.decode(zlib.decompress(data))


decode_declared = msgspec.json.Decoder(DeclaredJob).decode
