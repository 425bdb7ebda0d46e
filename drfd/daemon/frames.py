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
        self._data = bytearray()
        #: So much of it is known to have no line's end.
        self._looked_bytes = 0

    async def next(self, count: Callable[[int], None]) -> bytes:
        """One line; empty at the end. `count` hears of the bytes of one that is not short as they
        come, and may refuse them. Raises Refused for a line too long or too slow."""
        end = self._find_end()
        if end == 0:
            if not await self._read_line(count):
                return b""
            end = self._find_end()
        if not 0 < end <= MAX_REQUEST_BYTES:
            raise Refused("too-long", f"a request may have {MAX_REQUEST_BYTES} bytes at most")
        line = bytes(memoryview(self._data)[:end])
        del self._data[:end]
        self._looked_bytes = 0
        return line

    async def _read_line(self, count: Callable[[int], None]) -> bool:
        """Until there is a line's end, or more than a line may have; False at the end."""
        try:
            # Between two requests there may be any time.
            async with asyncio.timeout(None) as limit:
                while self._find_end() == 0 and len(self._data) < MAX_REQUEST_BYTES:
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

    def _find_end(self) -> int:
        """Behind the first line's end; 0: there is none. No byte is looked at twice, however small
        the pieces are that it comes in."""
        end = self._data.find(b"\n", self._looked_bytes) + 1
        self._looked_bytes = end - 1 if end else len(self._data)
        return end


def encode(view: View) -> bytes:
    return _encoder.encode({"ok": True, **view}) + b"\n"


async def encoded(view: View) -> bytes:
    """A reply; the rows of long lists with pauses, in which others have their turn."""
    for name, rows in view.items():
        if isinstance(rows, list) and len(rows) > _AT_ONCE:
            told: list[msgspec.Raw] = []
            for first in range(0, len(rows), _AT_ONCE):
                told += map(msgspec.Raw, map(_encoder.encode, rows[first : first + _AT_ONCE]))
                await asyncio.sleep(0)
            view = view | {name: told}
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
