"""Connections: who is there (by the kernel's word), one bounded request after the other.

The only place of the daemon where an error becomes a reply.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack, aclosing

from drfd.core.stimuli import Actor
from drfd.daemon import audit
from drfd.daemon.accounts import Accounts
from drfd.daemon.ahead import Ahead
from drfd.daemon.far_end import has_hung_up, has_read_all
from drfd.daemon.feed import Feed
from drfd.daemon.frames import (
    FRAME_S,
    PIECE_BYTES,
    Frames,
    close,
    encode,
    encode_error,
    encoded,
)
from drfd.daemon.quotas import STRANGERS, Quotas, Turn
from drfd.daemon.requests import Requests
from drfd.daemon.snapshots import Snapshots
from drfd.errors import DrfdError, HostError, Refused, short_of_memory
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

#: So many may knock before they are let in.
_BACKLOG = 512
#: Who does not read his last lines keeps the daemon from leaving so long at most.
_LAST_FLUSH_S = 1.0

#: So much of a reply is written at a time.
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
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Until cancelled; then every client is let go, however long it meant to wait."""
        server = await asyncio.start_unix_server(
            self._on_connection, sock=listener, limit=PIECE_BYTES, backlog=_BACKLOG
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
            with self._quotas.connection(uid), ExitStack() as stack:
                payer = uid if (await self._accounts.actor(uid)).has_account else STRANGERS
                if payer != uid:
                    stack.enter_context(self._quotas.connection(payer))
                await self._converse(reader, writer, uid, gid, payer)
        except (Refused, HostError) as error:
            # After a broken frame nothing that follows can be trusted.
            writer.write(encode_error(error))
        except MemoryError as error:
            # Nobody knows how far it has come: who hears nothing asks again, by the same key.
            trouble = {"message": "a client was let go", "exception": error}
            asyncio.get_running_loop().call_exception_handler(trouble)
        except (ConnectionError, TimeoutError):
            pass
        except asyncio.CancelledError:
            flush_s = _LAST_FLUSH_S
            raise
        finally:
            await close(writer, flush_s)

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        uid: int,
        gid: int,
        payer: int,
    ) -> None:
        frames, ahead = Frames(reader), Ahead(reader)
        try:
            while True:
                with ExitStack() as stack:
                    try:
                        line = await frames.next(stack.enter_context(self._quotas.coming(payer)))
                        if not line:
                            return
                        # The kernel's word is turned into a name before, so that all keep their
                        # order.
                        actor = await self._accounts.actor(uid)
                        async with self._quotas.look(payer):
                            request = _decode(line)
                    except MemoryError:
                        raise short_of_memory() from None
                    if isinstance(request, Submit) and not request.dry_run:
                        await ahead.make_room(len(line))
                        taking = self._take_ahead(
                            stack.pop_all(), ahead.last, writer, actor, gid, payer, request
                        )
                        ahead.add(taking, len(line))
                        continue
                    await ahead.catch_up()
                    async with self._quotas.turn(payer) as turn:
                        reply = await self._answer_or_leave(writer, actor, gid, request, turn)
                if reply is None:
                    return
                await self._send_reply(writer, reply, uid)
                # Not kept until the next request, which may never come.
                del line, request, reply
        except asyncio.CancelledError:
            ahead.give_up()
            raise
        finally:
            await ahead.catch_up()

    async def _take_ahead(
        self,
        coming: ExitStack,
        before: asyncio.Task[None] | None,
        writer: asyncio.StreamWriter,
        actor: Actor,
        gid: int,
        payer: int,
        request: Submit,
    ) -> None:
        """A submission, answered after the one before it."""
        with coming:
            early_s = 0.0 if actor.is_admin else self._quotas.early_s(actor.uid)
            async with self._quotas.turn(payer) as turn:
                if early_s:
                    turn.leave()
                    await asyncio.sleep(early_s)
                reply = await self._reply(actor, gid, request)
            if before is not None:
                await before
        await self._send_reply(writer, reply, actor.uid)

    async def _send_reply(self, writer: asyncio.StreamWriter, reply: bytes, uid: int) -> None:
        reach("server.before-reply")
        try:
            await self._send(writer, reply, uid)
        except Refused as error:
            await self._send(writer, encode_error(error), uid)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, uid: int) -> None:
        """Until it is read, but for what the kernel takes. Raises Refused for what is too much to
        keep until then."""
        with self._quotas.unread(uid, len(data)):
            # In pieces: what is not read yet is not copied as a whole.
            for at in range(0, len(data), _PIECE_BYTES):
                writer.write(memoryview(data)[at : at + _PIECE_BYTES])
                await writer.drain()

    async def _answer_or_leave(
        self,
        writer: asyncio.StreamWriter,
        actor: Actor,
        gid: int,
        request: AnyRequest | DrfdError,
        turn: Turn,
    ) -> bytes | None:
        """The reply, the last line of a stream; None when the asker hangs up first (a `wait` may
        take days)."""
        peer = writer.get_extra_info("socket")
        if isinstance(request, DrfdError):
            return encode_error(request)
        if isinstance(request, Wait | Events | Watching):
            # What is still to be done takes nobody's time.
            turn.leave()
        if isinstance(request, Events):
            answering = asyncio.ensure_future(self._tell(writer, actor, request))
        elif isinstance(request, Watching):
            answering = asyncio.ensure_future(self._show(writer, actor, request))
        else:
            answering = asyncio.ensure_future(self._reply(actor, gid, request))
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

    async def _reply(self, actor: Actor, gid: int, request: Question) -> bytes:
        try:
            with self._quotas.awaiting(actor.uid, _count_awaited(request)):
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
            with self._quotas.awaiting(actor.uid, _count_awaited(request)):
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


def _decode(line: bytes) -> AnyRequest | DrfdError:
    try:
        return decode_request(line)
    except DrfdError as error:
        return error


def _count_awaited(request: AnyRequest) -> int:
    match request:
        case Wait():
            return len(request.ids)
        case Events():
            return len(request.select.ids)
        case _:
            return 0
