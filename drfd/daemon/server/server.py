"""The server: it accepts connections, identifies their users, and answers bounded requests.

Connections are accepted promptly, a few at a time, and sorted by user afterwards, so that no user
queues behind hundreds of connections of another. Accepting a connection costs a hundredth of what
serving it costs, and dropping one whose peer has already left a tenth of that.

The kernel names the user of a connection (SO_PEERCRED). Requests of a connection are answered one
after the other, but several submissions may be processed at once: they share commits, so that a
program with many of them does not wait for the disk for each. This is the only place of the daemon
where an error becomes a reply.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import stat
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from drfd.common.errors import DrfdError, HostError, Refused, Unavailable, short_of_memory
from drfd.common.failpoints import reach
from drfd.core.model.stimuli import Actor
from drfd.daemon.handlers.requests import Requests
from drfd.daemon.handlers.submission import size_of
from drfd.daemon.handlers.verbs import VERBS, verb
from drfd.daemon.lookup.views import error_view
from drfd.daemon.server import audit
from drfd.daemon.users import quotas
from drfd.daemon.users.accounts import Accounts, directory_slow
from drfd.daemon.users.loop_time import CooperativeYield
from drfd.daemon.users.quotas import STRANGERS, UNKNOWN, QuotaSlot
from drfd.daemon.watching.follow import EventFeed
from drfd.daemon.watching.snapshots import SnapshotFeed
from drfd.linux.descriptor_guard import PeerState, guarded, peek
from drfd.linux.unix_sockets import at_socket, peer_of
from drfd.protocol.codec import MAX_REQUEST_BYTES
from drfd.protocol.replies import EventLine, Reply, SnapshotLine
from drfd.protocol.requests import (
    CancelRequest,
    EventsRequest,
    ExecRequest,
    Request,
    Selection,
    SnapshotsRequest,
    SubmitRequest,
    WaitRequest,
    decode_request,
)

#: Connections that may wait in the kernel to be accepted (listen(2)).
_BACKLOG = 64
#: Connections accepted, and seconds spent on it, before other tasks run.
MAX_ACCEPTS = 8
ACCEPT_S = 0.00025
#: Seconds until accepting is tried again after a shortage of descriptors or memory.
RETRY_S = 1.0
#: Seconds in which a request must be complete after its first bytes have arrived.
FRAME_S = 30.0
#: Bytes of a request read at a time. A request with more is a long one.
PIECE_BYTES = 64 << 10
#: Submissions of one connection that may be processed before the first has been answered.
_MAX_PIPELINED = 128
#: Length, in bytes, from which on a waiting submission is kept undecoded and decoded again later:
#: decoded, it takes twenty times the memory.
_MAX_DECODED_BYTES = 16 << 10
#: Rows of a long list that are encoded before other tasks run.
_ROWS_AT_ONCE = 20
#: Bytes of a reply written at a time.
_SEND_BYTES = 1 << 15
#: Seconds that the daemon waits at its end for a client to read its last reply.
LAST_FLUSH_S = 1.0
#: Seconds between two checks whether the client of a long wait is still there.
HANGUP_CHECK_S = 5.0
#: Seconds between two such checks while the client's user is looked up.
HANGUP_CHECK_LOOKING_S = 0.25

_encoder = msgspec.json.Encoder()


class ListeningSocket:
    """A Unix socket of the daemon's own. It never replaces a file that is not a dead socket."""

    def __init__(self, path: Path, *, is_open: bool) -> None:
        """Listen at `path`; open to every user of the machine if `is_open`. Raises HostError when
        another program listens there, or when it is not a socket."""
        self.path = path.absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_dead_socket()
            self.listener = self._bind(0o111 if is_open else 0o177)
            self._inode = self.path.lstat().st_ino
        except OSError as error:
            raise HostError("socket", f"cannot listen at {path}: {error.strerror}") from error

    def listen(self) -> None:
        """Tell clients of this process's present uid, after it has been changed: they see the one
        with which it has listened (SO_PEERCRED, unix(7))."""
        self.listener.listen()

    def close(self) -> None:
        """Close the socket and remove its file, unless another file is there by now."""
        self.listener.close()
        try:
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            # Without root's rights the file may stay; the next start removes it.
            return

    def _remove_dead_socket(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise HostError("socket", f"cannot listen at {self.path}: it is not a socket")
        if self._is_answered():
            raise HostError(
                "running",
                f"cannot listen at {self.path}: another program listens there",
                hint="name another with --socket",
            )
        self.path.unlink()

    def _is_answered(self) -> bool:
        try:
            with at_socket(self.path) as address, socket.socket(socket.AF_UNIX) as probe:
                # A blocking connect(2) would wait for a place in a full backlog.
                probe.setblocking(False)
                probe.connect(address)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
        return True

    def _bind(self, mask: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(mask)
        try:
            with at_socket(self.path) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen()
        listener.setblocking(False)
        return listener


class Acceptor:
    """Accepts connections on the loop until it is closed."""

    def __init__(
        self, listener: socket.socket, take: Callable[[socket.socket, bool], None]
    ) -> None:
        """`listener` is closed by `close`. `take` is called with each accepted connection whose
        peer has not left, in non-blocking mode, and with True if the peer has sent nothing yet."""
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._start()

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _start(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        until_s = time.monotonic() + ACCEPT_S
        for at in range(MAX_ACCEPTS):
            if at and time.monotonic() > until_s:
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # There is no descriptor or memory for it.
                trouble = {"message": "cannot accept a connection", "exception": error}
                self._loop.call_exception_handler(trouble)
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(RETRY_S, self._start)
                return
            state = peek(connection)
            if state is PeerState.LEFT:
                socket.socket.close(connection)
            elif state is PeerState.DESCRIPTORS:
                connection.close()
            else:
                connection.setblocking(False)
                self._take(connection, state is PeerState.SILENT)


class Frames:
    """Reads requests, one line each. Lines that have already arrived are returned without yielding
    to other tasks, so that several submissions can share one turn of the engine."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._data = bytearray()
        #: Number of bytes that are known to contain no end of a line.
        self._looked_bytes = 0

    async def next(self, count: Callable[[int], None]) -> bytes:
        """Return one line, or nothing at the end of the stream. `count` is called with the number
        of bytes of a long line as they arrive, and may refuse them. Raises Refused for a line that
        is too long or too slow."""
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
        """Read until a line is complete or too long. Returns False at the end of the stream."""
        if not self._data:
            self._data += await self._reader.read(PIECE_BYTES)
            if not self._data or self._find_end():
                return bool(self._data)
        try:
            # The time limit begins with the first bytes of a request. Most come in one piece.
            async with asyncio.timeout(FRAME_S):
                while self._find_end() == 0 and len(self._data) < MAX_REQUEST_BYTES:
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

    def has_line(self) -> bool:
        """Whether the next line has already arrived."""
        return self._find_end() > 0

    def _find_end(self) -> int:
        """Return the position behind the first line's end, or 0 if there is none. Each byte is
        examined once, however small the pieces are in which it arrives."""
        end = self._data.find(b"\n", self._looked_bytes) + 1
        self._looked_bytes = end - 1 if end else len(self._data)
        return end


def encode(view: Mapping[str, object]) -> bytes:
    """Return a reply as a line."""
    return _encoder.encode({"ok": True, **view}) + b"\n"


async def encode_in_parts(view: Mapping[str, object]) -> bytes:
    """Return a reply as a line. Other tasks run while the rows of a long list are encoded."""
    for name, rows in view.items():
        if isinstance(rows, list) and len(rows) > _ROWS_AT_ONCE:
            encoded: list[msgspec.Raw] = []
            yielding = CooperativeYield()
            for first in range(0, len(rows), _ROWS_AT_ONCE):
                part = rows[first : first + _ROWS_AT_ONCE]
                encoded += map(msgspec.Raw, map(_encoder.encode, part))
                await yielding.maybe_yield()
            view = {**view, name: encoded}
    return encode(view)


def encode_error(error: DrfdError) -> bytes:
    """Return the reply that carries an error, as a line."""
    return _encoder.encode({"ok": False, "error": error_view(error)}) + b"\n"


async def close(writer: asyncio.StreamWriter, flush_s: float) -> None:
    """Close a connection. The peer has `flush_s` seconds to read what is still unsent."""
    try:
        writer.close()
        async with asyncio.timeout(flush_s):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except (ConnectionError, OSError):
        pass
    except asyncio.CancelledError:
        writer.transport.abort()
        raise


class Pipeline:
    """The submissions of one connection that have not been answered yet."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        """`reader` is the connection's: it raises the error of a submission that has failed."""
        self._reader = reader
        #: The last submission. It is done when its reply is sent, after those before it.
        self.last: asyncio.Task[None] | None = None
        self._count = self._size_bytes = 0

    def add(self, processing: Coroutine[None, None, None], size_bytes: int) -> None:
        self.last = asyncio.ensure_future(processing)
        self.last.add_done_callback(self._on_done)
        self._count += 1
        self._size_bytes += size_bytes

    def _on_done(self, processing: asyncio.Task[None]) -> None:
        """Break the connection if a submission has failed: its reply will not come."""
        error = None if processing.cancelled() else processing.exception()
        if isinstance(error, Exception):
            self._reader.set_exception(error)

    @property
    def is_answered(self) -> bool:
        """Whether all have been answered."""
        return self.last is None or self.last.done()

    async def wait_for_capacity(self, size_bytes: int) -> None:
        """Wait until one more submission of this size is within the limits."""
        too_many = self._count >= _MAX_PIPELINED
        if too_many or self._size_bytes + size_bytes > MAX_REQUEST_BYTES:
            await self.catch_up()

    async def catch_up(self) -> None:
        """Wait until all have been answered."""
        last, self.last = self.last, None
        self._count = self._size_bytes = 0
        if last is not None:
            await last

    def give_up(self) -> None:
        if self.last is not None:
            self.last.cancel()
            self.last = None


def has_hung_up(peer: socket.socket) -> bool:
    """Whether the peer has closed the connection. A peer that has only finished writing still wants
    its reply."""
    poll = select.poll()
    poll.register(peer.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def has_read_all(peer: socket.socket) -> bool:
    """Whether the peer has read all that was written (SIOCOUTQ; see tcp(7))."""
    unread = fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    return int.from_bytes(unread, sys.byteorder) == 0


@dataclass(frozen=True, eq=False, slots=True)
class _Client:
    """A client whose connection was accepted."""

    connection: socket.socket
    uid: int
    gid: int
    #: The uid whose quota is charged until the user is known, and the slot held until then.
    quota_uid: int
    lookup_slot: ExitStack
    #: Everything that is released when the client leaves, the connection included.
    stack: ExitStack


@dataclass(frozen=True, slots=True)
class _Sender:
    """The sender of one request: its connection, its user, and the uid whose quota is charged."""

    writer: asyncio.StreamWriter
    actor: Actor
    gid: int
    quota_uid: int


class Server:
    def __init__(
        self,
        requests: Requests,
        feed: EventFeed,
        snapshots: SnapshotFeed,
        accounts: Accounts,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits so many seconds before a request above its user's rate goes on."""
        self._requests = requests
        self._pause = pause
        self._feed = feed
        self._snapshots = snapshots
        self._accounts = accounts
        self._quotas = requests.quotas
        self._tasks: set[asyncio.Task[None]] = set()
        #: Clients that have connected and sent nothing so far.
        self._silent: set[_Client] = set()
        self.loop_time = requests.engine.loop_time

    async def run(self, listener: socket.socket) -> None:
        """Serve until cancelled; then close every connection."""
        acceptor = Acceptor(guarded(listener), self._admit)
        try:
            await asyncio.Event().wait()
        finally:
            acceptor.close()
            for client in self._silent:
                asyncio.get_running_loop().remove_reader(client.connection)
                client.stack.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._accounts.close()

    @property
    def is_idle(self) -> bool:
        return self._quotas.is_idle

    def _admit(self, connection: socket.socket, is_silent: bool) -> None:
        """Admit a new connection. `is_silent`: the peer has sent nothing yet."""
        uid, gid = peer_of(connection)
        if self._accounts.at_hand(uid) is None and has_hung_up(connection):
            # A look-up may be slow, and the peer does not wait for it.
            connection.close()
            return
        stack = ExitStack()
        stack.callback(connection.close)
        try:
            stack.enter_context(self._quotas.connection(uid))
            quota_uid, lookup_slot = self._lookup_slot(uid, stack)
        except (DrfdError, OSError) as error:
            if isinstance(error, DrfdError):
                with suppress(OSError):
                    connection.send(encode_error(error))
            stack.close()
            return
        except MemoryError as error:
            _drop(error, stack)
            return
        client = _Client(connection, uid, gid, quota_uid, lookup_slot, stack)
        try:
            # A user who must be looked up holds one of few slots, so the look-up begins at once.
            if quota_uid == uid and is_silent:
                self._silent.add(client)
                asyncio.get_running_loop().add_reader(connection, self._on_first_bytes, client)
            else:
                self._begin(client)
        except MemoryError as error:
            self._silent.discard(client)
            _drop(error, stack)

    def _on_first_bytes(self, client: _Client) -> None:
        """Begin to serve a peer that has sent its first bytes, or close the connection if it has
        left: most of the cost of a connection is spent on peers that send something."""
        asyncio.get_running_loop().remove_reader(client.connection)
        self._silent.discard(client)
        try:
            if peek(client.connection) is PeerState.LEFT:
                client.stack.close()
            else:
                self._begin(client)
        except MemoryError as error:
            _drop(error, client.stack)

    def _begin(self, client: _Client) -> None:
        stack = client.stack
        task = asyncio.ensure_future(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(task, stack))

    def _end(self, task: asyncio.Task[None], stack: ExitStack) -> None:
        """Release what a client had, even if its task was cancelled before it began."""
        self._tasks.discard(task)
        stack.close()

    def _lookup_slot(self, uid: int, stack: ExitStack) -> tuple[int, ExitStack]:
        """Return the uid whose quota is charged until the client's user is known, and the slot
        held until then. Raises Unavailable if no slot is free."""
        slot = stack.enter_context(ExitStack())
        actor = self._accounts.at_hand(uid)
        if actor is not None:
            return (uid if actor.has_account else STRANGERS), slot
        if self._accounts.is_known(uid):
            return uid, slot
        try:
            slot.enter_context(self._quotas.connection(UNKNOWN))
        except Refused:
            raise directory_slow(uid, "has too many others to find first") from None
        return UNKNOWN, slot

    async def _serve(self, client: _Client) -> None:
        """Serve one client; never raises. Nearly all of its time is charged to its user."""
        connection, uid, quota_uid = client.connection, client.uid, client.quota_uid
        metered = self.loop_time.metered
        writer = None
        flush_s = FRAME_S
        try:
            reader, writer = await metered(quota_uid, _open(connection))
            with client.lookup_slot:
                actor = await metered(quota_uid, self._introduce(connection, uid))
            quota_uid = uid if actor.has_account else STRANGERS
            if quota_uid != uid:
                client.stack.enter_context(self._quotas.connection(quota_uid))
            await metered(quota_uid, self._converse(reader, writer, client, quota_uid))
        except (Refused, Unavailable, HostError) as error:
            # The connection ends: after an invalid line nothing that follows can be trusted.
            if writer is not None:
                writer.write(encode_error(error))
        except MemoryError as error:
            # A submission may have been queued: its client sends it again with the same key.
            _report_dropped(error)
        except OSError:
            pass
        except asyncio.CancelledError:
            flush_s = LAST_FLUSH_S
        finally:
            if writer is not None:
                await metered(quota_uid, close(writer, flush_s))

    async def _introduce(self, connection: socket.socket, uid: int) -> Actor:
        """Return the user of a connection. The look-up is given up if the peer hangs up first.
        Raises Unavailable if the directory cannot tell the user, or has too many to look up."""
        actor = self._accounts.at_hand(uid)
        if actor is not None:
            return actor
        looking = asyncio.ensure_future(self._accounts.actor(uid))
        try:
            while not looking.done():
                await asyncio.wait({looking}, timeout=HANGUP_CHECK_LOOKING_S)
                if not looking.done() and has_hung_up(connection):
                    raise ConnectionAbortedError
            return looking.result()
        finally:
            looking.cancel()

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: _Client,
        quota_uid: int,
    ) -> None:
        uid = client.uid
        frames, pipeline = Frames(reader), Pipeline(reader)
        try:
            while True:
                with ExitStack() as stack:
                    try:
                        line = await frames.next(
                            stack.enter_context(self._quotas.incoming(quota_uid))
                        )
                        if not line:
                            return
                        # The user is looked up before the request is queued: a look-up takes
                        # time, and requests keep their order.
                        actor = self._accounts.at_hand(uid) or await self._accounts.actor(uid)
                        sender = _Sender(writer, actor, client.gid, quota_uid)
                        if self._quotas.is_pipeline_full(quota_uid):
                            await pipeline.catch_up()
                        async with self._quotas.decoding_slot(quota_uid):
                            request = _decode(line)
                    except MemoryError:
                        raise short_of_memory() from None
                    if isinstance(request, SubmitRequest) and not request.dry_run:
                        await pipeline.wait_for_capacity(len(line))
                        stack.enter_context(self._quotas.pipelined(quota_uid, len(line)))
                        processing = self._process_submission(
                            stack.pop_all(), pipeline.last, sender, line, request
                        )
                        if pipeline.is_answered and not frames.has_line():
                            # None can share its commit: a task of its own would only take time.
                            await processing
                        else:
                            pipeline.add(self.loop_time.metered(quota_uid, processing), len(line))
                        del line, request, processing
                        continue
                    await pipeline.catch_up()
                    if isinstance(request, Request) and not actor.is_admin:
                        request = await self._delay_change(actor, request)
                    async with self._quotas.processing_slot(quota_uid) as slot:
                        reply = await self._answer_or_leave(sender, request, slot)
                if reply is None:
                    return
                await self._send_reply(writer, reply, uid)
                # Their memory is freed now: the next request may never come.
                del line, request, reply
        except asyncio.CancelledError:
            pipeline.give_up()
            raise
        finally:
            await pipeline.catch_up()

    async def _process_submission(
        self,
        quotas_held: ExitStack,
        before: asyncio.Task[None] | None,
        sender: _Sender,
        line: bytes,
        request: Request | DrfdError | None,
    ) -> None:
        """Process a submission and answer it after the one before; `line` is the request's text."""
        assert isinstance(request, SubmitRequest)
        actor = sender.actor
        with quotas_held:
            delay_s = 0.0
            if not actor.is_admin:
                delay_s = self._quotas.submission_delay_s(actor.uid, size_of(request))
            if delay_s or len(line) > _MAX_DECODED_BYTES:
                request = None
            async with self._quotas.processing_slot(sender.quota_uid) as slot:
                if delay_s:
                    slot.release()
                    await self._pause(delay_s)
                if request is None:
                    request = _decode(line)
                    assert isinstance(request, SubmitRequest)
                result = await self._carry_out(actor, sender.gid, request)
            # In the next round of the loop, so that the client need not wait for it.
            asyncio.get_running_loop().call_soon(self._record, sender, request, result)
            reply = await _encode_result(result)
            if before is not None:
                await before
        await self._send_reply(sender.writer, reply, actor.uid)

    def _record(self, sender: _Sender, request: Request, result: Reply | DrfdError) -> None:
        """Log a request, and charge its user for that."""
        since_s = self.loop_time.begin()
        audit.record(sender.actor, request, result)
        self.loop_time.charge(sender.quota_uid, self.loop_time.step_cost_s(since_s))

    async def _delay_change(self, actor: Actor, request: Request) -> Request | DrfdError:
        """Wait until the user may change jobs again if the request changes some, and return it, or
        its refusal. Each refusal to one who is no administrator is a line in the log, so these are
        delayed too: a flood of them must not fill it."""
        known = VERBS[type(request)]
        if not known.admin and known.audit(request) is None:
            return request
        count = quotas.EXEC_CHANGES if isinstance(request, ExecRequest) else 1
        try:
            delay_s = self._quotas.change_delay_s(
                actor.uid, is_cancel=isinstance(request, CancelRequest), count=count
            )
        except Refused as error:
            # The delay bounds the number of lines in the audit log.
            await self._pause(quotas.MAX_CANCEL_DELAY_S)
            audit.record(actor, request, error)
            return error
        if delay_s:
            await self._pause(delay_s)
        return request

    async def _send_reply(self, writer: asyncio.StreamWriter, reply: bytes, uid: int) -> None:
        reach("server.before-reply")
        try:
            await self._send(writer, reply, uid)
        except Refused as error:
            await self._send(writer, encode_error(error), uid)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, uid: int) -> None:
        """Send data and wait until the peer or the kernel's buffer has taken it. Raises Refused if
        the user leaves too much unread."""
        with self._quotas.unread(uid, len(data)):
            # asyncio copies what the kernel does not take: at most one piece at a time.
            for at in range(0, len(data), _SEND_BYTES):
                writer.write(memoryview(data)[at : at + _SEND_BYTES])
                await writer.drain()

    async def _answer_or_leave(
        self, sender: _Sender, request: Request | DrfdError, slot: QuotaSlot
    ) -> bytes | None:
        """Return the reply or the last line of a stream, or None if the peer hangs up first (a
        `wait` may take days)."""
        writer, actor = sender.writer, sender.actor
        peer = writer.get_extra_info("socket")
        if isinstance(request, DrfdError):
            return encode_error(request)
        known = VERBS[type(request)]
        if known.waits:
            slot.release()
        if known.lines is not None:
            answer = known.answer(self, writer, actor, request)
        else:
            answer = self._reply(actor, sender.gid, request)
        answering: asyncio.Future[bytes] = asyncio.ensure_future(
            self.loop_time.metered(sender.quota_uid, answer)
        )
        try:
            while not answering.done():
                done, _ = await asyncio.wait({answering}, timeout=HANGUP_CHECK_S)
                if not done and has_hung_up(peer):
                    if isinstance(request, WaitRequest) and request.attended:
                        cancel = CancelRequest(v=request.v, select=Selection(ids=request.ids))
                        await self._reply(actor, sender.gid, cancel)
                    return None
            return answering.result()
        finally:
            answering.cancel()

    async def _reply(self, actor: Actor, gid: int, request: Request) -> bytes:
        result = await self._carry_out(actor, gid, request)
        audit.record(actor, request, result)
        return await _encode_result(result)

    async def _carry_out(self, actor: Actor, gid: int, request: Request) -> Reply | DrfdError:
        """Carry out a request, and return the reply or the refusal, which the caller logs. A
        request that is cancelled is logged here."""
        try:
            with self._quotas.awaiting(actor.uid, _count_awaited(request)):
                return await self._requests.answer(actor, gid, request)
        except DrfdError as error:
            return error
        except asyncio.CancelledError:
            audit.record(actor, request, None)
            raise

    @verb(EventsRequest, waits=True, lines=EventLine)
    async def _stream_events(
        self, writer: asyncio.StreamWriter, actor: Actor, request: EventsRequest
    ) -> bytes:
        """Send a stream of events as fast as the peer reads it, and return its last line."""
        try:
            with self._quotas.awaiting(actor.uid, _count_awaited(request)):
                async with aclosing(self._feed.stream(actor, request)) as stream:
                    async for views in stream:
                        lines = b"".join(map(encode, views))
                        await self._send(writer, lines, actor.uid)
        except DrfdError as error:
            return encode_error(error)
        return encode({"done": True})

    @verb(SnapshotsRequest, waits=True, lines=SnapshotLine)
    async def _stream_snapshots(
        self, writer: asyncio.StreamWriter, actor: Actor, request: SnapshotsRequest
    ) -> bytes:
        """Send snapshots without end. Returns only after an error, the line that reports it."""
        peer = writer.get_extra_info("socket")
        # For a peer that does not read, only one piece of a line is kept here.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            watching = self._snapshots.watch(actor, request.every_s, lambda: has_read_all(peer))
            async with aclosing(watching) as stream:
                async for head, tail in stream:
                    await self._send(writer, head, actor.uid)
                    await self._send(writer, tail, actor.uid)
        except DrfdError as error:
            return encode_error(error)
        raise AssertionError("the stream of snapshots ended by itself")


async def _open(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=PIECE_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _drop(error: MemoryError, stack: ExitStack) -> None:
    stack.close()
    _report_dropped(error)


def _report_dropped(error: MemoryError) -> None:
    trouble = {"message": "a client was let go", "exception": error}
    asyncio.get_running_loop().call_exception_handler(trouble)


async def _encode_result(result: Reply | DrfdError) -> bytes:
    if isinstance(result, DrfdError):
        return encode_error(result)
    return await encode_in_parts(result)


def _decode(line: bytes) -> Request | DrfdError:
    try:
        return decode_request(line)
    except DrfdError as error:
        return error


def _count_awaited(request: Request) -> int:
    match request:
        case WaitRequest():
            return len(request.ids)
        case EventsRequest():
            return len(request.select.ids)
        case _:
            return 0
