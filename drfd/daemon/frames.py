"""One request or reply, one line: read whole or refused; encoded while others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from drfd.errors import DrfdError, Refused
from drfd.wire.codec import MAX_REQUEST_BYTES
from drfd.wire.views import View, error_view

#: A request that has begun must be complete within this.
FRAME_S = 30.0
#: So much is read at a time; a request with more bytes is not short.
PIECE_BYTES = 64 << 10
#: Rows of a list that are encoded before others have their turn.
_AT_ONCE = 200

_encoder = msgspec.json.Encoder()


class Frames:
    """Requests as they come in. All that has arrived is taken without giving way to others, so that
    it can share what follows."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._data = b""

    async def next(self, count: Callable[[int], None]) -> bytes:
        """One line; empty at the end. `count` hears of the bytes of one that is not short as they
        come, and may refuse them. Raises Refused for a line too long or too slow."""
        if b"\n" not in self._data and not await self._read_line(count):
            return b""
        line, end, self._data = self._data.partition(b"\n")
        if not end or len(line) >= MAX_REQUEST_BYTES:
            raise Refused("too-long", f"a request may have {MAX_REQUEST_BYTES} bytes at most")
        return line + end

    async def _read_line(self, count: Callable[[int], None]) -> bool:
        """Until there is a line's end, or more than a line may have; False at the end."""
        try:
            # Between two requests there may be any time.
            async with asyncio.timeout(None) as limit:
                while b"\n" not in self._data and len(self._data) < MAX_REQUEST_BYTES:
                    if self._data and limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + FRAME_S)
                    piece = await self._reader.read(PIECE_BYTES)
                    if not piece:
                        return False
                    self._data += piece
                    if len(self._data) > PIECE_BYTES:
                        count(len(piece))
        except TimeoutError:
            text = f"the request was not complete after {FRAME_S:.0f} s"
            raise Refused("too-slow", text) from None
        return True


def encode(view: View) -> bytes:
    return _encoder.encode({"ok": True, **view}) + b"\n"


async def encoded(view: View) -> bytes:
    """A reply; the rows of a long list with pauses, in which others have their turn."""
    rows = view.get("jobs", ())
    if len(rows) > _AT_ONCE:
        told: list[msgspec.Raw] = []
        for first in range(0, len(rows), _AT_ONCE):
            told += map(msgspec.Raw, map(_encoder.encode, rows[first : first + _AT_ONCE]))
            await asyncio.sleep(0)
        view = view | {"jobs": told}
    return encode(view)


def encode_error(error: DrfdError) -> bytes:
    return _encoder.encode({"ok": False, "error": error_view(error)}) + b"\n"


async def close(writer: asyncio.StreamWriter, flush_s: float) -> None:
    """What is still to be read may be read for so long."""
    try:
        writer.close()
        async with asyncio.timeout(flush_s):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except (ConnectionError, OSError):
        pass
