"""Connections: who is there (by the kernel's word), one bounded request after the other.

The only place of the daemon where an error becomes a reply.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from contextlib import aclosing

from drfd.core.stimuli import Actor
from drfd.daemon import audit
from drfd.daemon.accounts import Accounts
from drfd.daemon.far_end import has_hung_up, has_read_all
from drfd.daemon.feed import Feed
from drfd.daemon.frames import FRAME_S, close, encode, encode_error, encoded, read_frame
from drfd.daemon.quotas import Quotas, Turn
from drfd.daemon.requests import Requests
from drfd.daemon.snapshots import Snapshots
from drfd.errors import DrfdError, Refused
from drfd.failpoints import reach
from drfd.peer import peer_of
from drfd.wire.messages import (
    AnyRequest,
    Cancel,
    Events,
    Question,
    Submit,
    Wait,
    decode_request,
)
from drfd.wire.messages import Snapshots as Watching
from drfd.wire.parts import Selection

log = logging.getLogger("drfd")

#: Who does not read his last lines keeps the daemon from leaving so long at most.
_LAST_FLUSH_S = 1.0
#: A request with more bytes is counted while it comes in, and until it is answered.
_SHORT_REQUEST_BYTES = 64 << 10

#: Jobs that one user's connections may wait for or listen to by their ids, all together.
_MAX_AWAITED = 200_000

#: Bytes of replies that one user has not read yet, on all connections together; no longer reply is
#: added to them than a short one, which anybody gets.
_MAX_UNREAD_BYTES = 64 << 20
_SHORT_BYTES = 1 << 20
_PIECE_BYTES = 1 << 15


class Server:
    def __init__(
        self, requests: Requests, feed: Feed, snapshots: Snapshots, accounts: Accounts
    ) -> None:
        self._requests = requests
        self._feed = feed
        self._snapshots = snapshots
        self._accounts = accounts
        self._quotas = Quotas(lambda: requests.config.limits)
        self._awaited: Counter[int] = Counter()
        self._unread: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Until cancelled; then every client is let go, however long it meant to wait."""
        server = await asyncio.start_unix_server(
            self._on_connection, sock=listener, limit=_SHORT_REQUEST_BYTES
        )
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        return self._quotas.is_idle

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Never raises: asyncio would print a traceback for each client at every stop."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, uid, gid = peer_of(writer.get_extra_info("socket"))
        flush_s = FRAME_S
        try:
            with self._quotas.connection(uid):
                await self._converse(reader, writer, uid, gid)
        except Refused as error:
            # After a broken frame nothing that follows can be trusted.
            writer.write(encode_error(error))
        except (ConnectionError, TimeoutError):
            pass
        except asyncio.CancelledError:
            flush_s = _LAST_FLUSH_S
            raise
        finally:
            await close(writer, flush_s)

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int, gid: int
    ) -> None:
        while True:
            with self._quotas.coming(uid) as count:
                line = await read_frame(reader, count)
                if not line:
                    return
                async with self._quotas.turn(uid) as turn:
                    reply = await self._answer_or_leave(writer, line, uid, gid, turn)
            if reply is None:
                return
            reach("server.before-reply")
            try:
                await self._send(writer, reply, uid)
            except Refused as error:
                await self._send(writer, encode_error(error), uid)
            # Not kept until the next request, which may never come.
            del line, reply

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, uid: int) -> None:
        """Until it is read, but for what the kernel takes. Raises Refused for what is too much to
        keep until then."""
        unread = self._unread[uid]
        if unread and len(data) > _SHORT_BYTES and unread + len(data) > _MAX_UNREAD_BYTES:
            raise Refused(
                "too-much-unread",
                f"uid {uid} has not read {unread} bytes of replies on other connections",
                hint="read them, or end the programs that do not",
            )
        self._unread[uid] += len(data)
        try:
            # In pieces: what is not read yet is not copied as a whole.
            for at in range(0, len(data), _PIECE_BYTES):
                writer.write(memoryview(data)[at : at + _PIECE_BYTES])
                await writer.drain()
        finally:
            self._unread[uid] -= len(data)
            if not self._unread[uid]:
                del self._unread[uid]

    async def _answer_or_leave(
        self, writer: asyncio.StreamWriter, line: bytes, uid: int, gid: int, turn: Turn
    ) -> bytes | None:
        """The reply, the last line of a stream; None when the asker hangs up first (a `wait` may
        take days)."""
        peer = writer.get_extra_info("socket")
        try:
            actor = await self._accounts.actor(uid)
            request = decode_request(line)
            self._await(uid, request)
        except DrfdError as error:
            return encode_error(error)
        early_s = 0.0
        if isinstance(request, Submit) and not actor.is_admin:
            early_s = self._quotas.early_s(uid)
        if early_s or isinstance(request, Wait | Events | Watching):
            turn.leave()
        if isinstance(request, Events):
            answering = asyncio.ensure_future(self._tell(writer, actor, request))
        elif isinstance(request, Watching):
            answering = asyncio.ensure_future(self._show(writer, actor, request))
        else:
            answering = asyncio.ensure_future(self._reply(actor, gid, request, early_s))
        try:
            while not answering.done():
                done, _ = await asyncio.wait({answering}, timeout=_HANGUP_CHECK_S)
                if not done and has_hung_up(peer):
                    if isinstance(request, Wait) and request.attended:
                        cancel = Cancel(v=request.v, select=Selection(ids=request.ids))
                        await self._reply(actor, gid, cancel)
                    return None
            return answering.result()
        finally:
            answering.cancel()
            self._awaited[uid] -= _count_awaited(request)
            if not self._awaited[uid]:
                del self._awaited[uid]

    def _await(self, uid: int, request: AnyRequest) -> None:
        """Count what is waited for; each id costs memory until then. Raises Refused."""
        count = self._awaited[uid] + _count_awaited(request)
        if count > _MAX_AWAITED:
            raise Refused(
                "too-many-ids",
                f"uid {uid} would wait for {count} jobs by their ids; {_MAX_AWAITED} are the most",
                hint="name the array instead of its tasks, or wait for fewer at a time",
            )
        self._awaited[uid] = count

    async def _reply(
        self, actor: Actor, gid: int, request: Question, early_s: float = 0.0
    ) -> bytes:
        try:
            if early_s:
                await asyncio.sleep(early_s)
            view = await self._requests.answer(actor, gid, request)
        except DrfdError as error:
            audit.record(actor, request, error)
            return encode_error(error)
        except asyncio.CancelledError:
            audit.record(actor, request, None)
            raise
        audit.record(actor, request, view)
        return await encoded(view)

    async def _tell(self, writer: asyncio.StreamWriter, actor: Actor, request: Events) -> bytes:
        """A stream, as fast as it is read; its last line."""
        try:
            async with aclosing(self._feed.tell(actor, request)) as stream:
                async for views in stream:
                    lines = b"".join(map(encode, views))
                    await self._send(writer, lines, actor.uid)
        except DrfdError as error:
            return encode_error(error)
        return encode({"done": True})

    async def _show(self, writer: asyncio.StreamWriter, actor: Actor, request: Watching) -> bytes:
        """A stream without end; its last line is why it ends all the same."""
        peer = writer.get_extra_info("socket")
        # Who does not read keeps a piece of a line here, and what the kernel takes.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            watching = self._snapshots.watch(actor, request.every_s, lambda: has_read_all(peer))
            async with aclosing(watching) as stream:
                async for head, tail in stream:
                    await self._send(writer, head, actor.uid)
                    await self._send(writer, tail, actor.uid)
        except DrfdError as error:
            return encode_error(error)
        raise AssertionError("nobody stops to watch before the line is closed")


#: How often a long wait looks whether its asker is still there.
_HANGUP_CHECK_S = 5.0


def _count_awaited(request: AnyRequest) -> int:
    match request:
        case Wait():
            return len(request.ids)
        case Events():
            return len(request.select.ids)
        case _:
            return 0
