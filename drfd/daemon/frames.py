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
#: Rows of a list that are encoded before others have their turn.
_AT_ONCE = 200

_encoder = msgspec.json.Encoder()


async def read_frame(reader: asyncio.StreamReader, count: Callable[[int], None]) -> bytes:
    """One line; empty at the end. `count` hears of the bytes of one that is not short as they come,
    and may refuse them. Raises Refused for a line too long or too slow."""
    first = await reader.read(1)
    if first in (b"", b"\n"):
        return first
    line = bytearray(first)
    try:
        async with asyncio.timeout(FRAME_S):
            while not line.endswith(b"\n"):
                try:
                    line += await reader.readuntil()
                except asyncio.LimitOverrunError as long:
                    count(long.consumed)
                    line += await reader.readexactly(long.consumed)
                if len(line) > MAX_REQUEST_BYTES:
                    most = f"a request may have {MAX_REQUEST_BYTES} bytes at most"
                    raise Refused("too-long", most)
    except asyncio.IncompleteReadError:
        return b""
    except TimeoutError:
        raise Refused("too-slow", f"the request was not complete after {FRAME_S:.0f} s") from None
    return bytes(line)


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
