"""The server: it accepts connections, identifies their users, and answers bounded requests.

Connections are accepted promptly, a few at a time, and sorted by user afterwards, so that no user
queues behind hundreds of connections of another. Accepting a connection costs a hundredth of what
serving it costs, and dropping one whose peer has already left a tenth of that.

The kernel names the user of a connection (SO_PEERCRED). Requests of a connection are answered one
after the other. A request may be a list of submissions, which share commits. This is the only place
of the daemon where an error becomes a reply.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import re
import select
import socket
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec

from drfd.common.errors import DrfdError, HostError, Refused, Unavailable, short_of_memory
from drfd.common.failpoints import reach
from drfd.common.indices import joined
from drfd.common.journald import about
from drfd.core.model.job import Actor
from drfd.daemon.handlers.requests import VERBS, Requests, verb
from drfd.daemon.handlers.submission import size_of
from drfd.daemon.lookup.follow import EventFeed
from drfd.daemon.lookup.snapshots import SnapshotFeed
from drfd.daemon.lookup.views import error_view
from drfd.daemon.users import quotas
from drfd.daemon.users.accounts import Accounts, directory_slow
from drfd.daemon.users.quotas import ID_BYTES, UNKNOWN, quota_uid
from drfd.linux.descriptor_guard import PeerState, guarded, peek
from drfd.linux.unix_sockets import peer_of
from drfd.protocol import requests as msg
from drfd.protocol.codec import MAX_REQUEST_BYTES
from drfd.protocol.replies import EventLine, Reply, SnapshotLine, SubmitListReply

#: Connections that may wait in the kernel to be accepted (listen(2)).
_BACKLOG = 64
#: Connections accepted before other tasks run.
MAX_ACCEPTS = 8
#: Seconds until accepting is tried again after a shortage of descriptors or memory.
RETRY_S = 1.0
#: Seconds in which a request must be complete after its first bytes have arrived.
FRAME_S = 30.0
#: Bytes of a request read at a time. A request with more is a long one.
PIECE_BYTES = 64 << 10
#: Submissions of a list that share a commit: nothing else runs during a turn of the engine.
AT_ONCE = 16
#: How many times as long as the decoding of a long request its user's turn rests.
_REST = 9
#: Bytes of a reply written at a time.
_SEND_BYTES = 1 << 15
#: Seconds that the daemon waits at its end for a client to read its last reply.
LAST_FLUSH_S = 1.0
#: Seconds between two checks whether the client of a long wait is still there.
HANGUP_CHECK_S = 5.0
#: Seconds between two such checks while the client's user is looked up.
HANGUP_CHECK_LOOKING_S = 0.25

_encoder = msgspec.json.Encoder()


class Acceptor:
    """Accepts connections on the loop until it is closed."""

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        """`listener` is closed by `close`. `take` is called with each accepted connection whose
        peer has not left, in non-blocking mode."""
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
        for _ in range(MAX_ACCEPTS):
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
                self._take(connection)


class Frames:
    """Reads requests, one line each."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        #: What was read behind the last line.
        self._rest = b""

    async def next(self, keep: Callable[[int], None]) -> bytes:
        """Return one line, or nothing at the end of the stream. `keep` is called with the number
        of bytes of a long line as they arrive, and may refuse them. Raises Refused for a line that
        is too long or too slow."""
        pieces = [self._rest or await self._reader.read(PIECE_BYTES)]
        if pieces[0] and b"\n" not in pieces[0]:
            try:
                # The time limit begins with the first bytes of a request. Most come in one piece.
                async with asyncio.timeout(FRAME_S):
                    await self._read_on(pieces, keep)
            except TimeoutError:
                text = f"the request was not complete after {FRAME_S:.0f} s"
                raise Refused("too-slow", text) from None
        line, end, self._rest = b"".join(pieces).partition(b"\n")
        if len(line) + len(end) > MAX_REQUEST_BYTES:
            raise Refused("too-long", f"a request may have {MAX_REQUEST_BYTES} bytes at most")
        return line + end if end else b""

    async def _read_on(self, pieces: list[bytes], keep: Callable[[int], None]) -> None:
        """Read until a line is complete or too long, or to the end of the stream."""
        size = len(pieces[0])
        while pieces[-1] and b"\n" not in pieces[-1] and size <= MAX_REQUEST_BYTES:
            pieces.append(await self._reader.read(PIECE_BYTES))
            size += len(pieces[-1])
            if size > PIECE_BYTES:
                keep(len(pieces[-1]))


def encode(view: Mapping[str, object]) -> bytes:
    """Return a reply as a line."""
    return _encoder.encode({"ok": True, **view}) + b"\n"


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
    except OSError as error:
        _forget_frames(error)
    except asyncio.CancelledError:
        writer.transport.abort()
        raise


def has_hung_up(peer: socket.socket) -> bool:
    """Whether the connection is closed. A peer that has only finished writing still wants its
    reply."""
    if peer.fileno() < 0:
        return True  # here, after the peer had gone without reading all
    poll = select.poll()
    poll.register(peer.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def has_read_all(peer: socket.socket) -> bool:
    """Whether the peer has read all that was written (SIOCOUTQ; see tcp(7)), or has gone."""
    if peer.fileno() < 0:
        return True  # the next write says so
    unread = fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    return int.from_bytes(unread, sys.byteorder) == 0


@dataclass(eq=False, slots=True)
class _Client:
    """A client whose connection was accepted."""

    connection: socket.socket
    uid: int
    gid: int
    #: The uid whose quota is charged.
    quota_uid: int
    #: The connection's place in that quota.
    place: ExitStack
    #: The user who has sent the present request.
    actor: Actor = field(init=False)

    def leave(self) -> None:
        self.connection.close()
        self.place.close()


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
        self._turns = requests.turns
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Serve until cancelled; then close every connection."""
        acceptor = Acceptor(guarded(listener), self._admit)
        try:
            await asyncio.Event().wait()
        finally:
            acceptor.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._accounts.close()

    @property
    def is_idle(self) -> bool:
        return self._quotas.is_idle

    def _admit(self, connection: socket.socket) -> None:
        """Begin to serve a new connection."""
        uid, gid = peer_of(connection)
        if self._accounts.at_hand(uid) is None and has_hung_up(connection):
            # A look-up may be slow, and the peer does not wait for it.
            connection.close()
            return
        client = _Client(connection, uid, gid, self._quota_uid(uid), ExitStack())
        try:
            client.place.enter_context(self._quotas.connection(client.quota_uid))
            task = asyncio.ensure_future(self._serve(client))
        except Refused as refusal:
            error: DrfdError = refusal
            if client.quota_uid == UNKNOWN:
                error = directory_slow(uid, "has too many others to find first")
            with suppress(OSError):
                connection.send(encode_error(error))
            client.leave()
        except MemoryError as shortage:
            client.leave()
            _report_dropped(shortage)
        else:
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._end(task, client))

    def _end(self, task: asyncio.Task[None], client: _Client) -> None:
        """Release what a client had, even if its task was cancelled before it began."""
        self._tasks.discard(task)
        client.leave()

    def _quota_uid(self, uid: int) -> int:
        """Return the uid whose quota is charged as long as no more is known of the user."""
        actor = self._accounts.at_hand(uid)
        if actor is not None:
            return quota_uid(actor)
        return uid if self._accounts.is_known(uid) else UNKNOWN

    async def _serve(self, client: _Client) -> None:
        """Serve one client; never raises."""
        writer = None
        flush_s = FRAME_S
        try:
            async with self._turns.next(client.quota_uid):
                reader, writer = await _open(client.connection)
            if client.quota_uid == UNKNOWN:
                await self._introduce(client)
            await self._converse(reader, writer, client)
        except (Refused, Unavailable, HostError) as error:
            # The connection ends: after an invalid line nothing that follows can be trusted.
            if writer is not None:
                writer.write(encode_error(error))
        except MemoryError as error:
            # A submission may have been queued: its client sends it again with the same key.
            _report_dropped(error)
        except OSError as error:
            _forget_frames(error)
        except asyncio.CancelledError:
            flush_s = LAST_FLUSH_S
        finally:
            if writer is not None:
                await close(writer, flush_s)

    async def _introduce(self, client: _Client) -> None:
        """Find out the user of a connection, who is charged from then on. The look-up is given up
        if the peer hangs up first. Raises Unavailable if the directory cannot tell the user."""
        looking = asyncio.ensure_future(self._accounts.actor(client.uid))
        try:
            while not looking.done():
                await asyncio.wait({looking}, timeout=HANGUP_CHECK_LOOKING_S)
                if not looking.done() and has_hung_up(client.connection):
                    raise ConnectionAbortedError
            charged = quota_uid(looking.result())
        finally:
            looking.cancel()
        with client.place.pop_all():
            client.place.enter_context(self._quotas.connection(charged))
            client.quota_uid = charged

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: _Client
    ) -> None:
        """Answer a client's requests one after the other."""
        frames = Frames(reader)
        while True:
            with self._quotas.keeping(client.quota_uid) as keep:
                try:
                    line = await frames.next(keep)
                    if not line:
                        return
                    actor = self._accounts.at_hand(client.uid)
                    client.actor = actor or await self._accounts.actor(client.uid)
                except MemoryError:
                    raise short_of_memory() from None
                reply = await self._answer(client, writer, line)
            if reply is None:
                return
            await self._send_reply(writer, reply, client.quota_uid)
            # Their memory is freed now: the next request may never come.
            del line, reply

    async def _answer(
        self, client: _Client, writer: asyncio.StreamWriter, line: bytes
    ) -> bytes | None:
        """Return the reply to a request, or the last line of a stream, or None if the peer hangs up
        first. The verb's handler, mostly in `Requests`, is called by `_carry_out`."""
        turn = partial(self._turns.next, client.quota_uid)
        async with turn():
            since_s = time.thread_time()
            request: msg.Request | DrfdError | None = _decode(line)
            if len(line) > PIECE_BYTES:
                # Decoding stops the loop: for some lines of 2 MB as long as a tenth of a second.
                await asyncio.sleep(_REST * (time.thread_time() - since_s))
            if isinstance(request, DrfdError):
                return encode_error(request)
            assert request is not None
            known = VERBS[type(request)]
            is_long = known.turn == "long" or _is_dry_run(request)
            delay_s = self._delay_s(client.actor, request)
            if known.turn == "short" and not is_long and not delay_s:
                return await self._reply(client, request)
        if isinstance(request, msg.SubmitListRequest):
            return encode(await self._submit_list(client, request))
        if delay_s:
            # Decoded, it takes twenty times the memory.
            request = None
            await self._pause(delay_s)
            request = msg.decode_request(line)
        if known.waits:
            return await self._wait_for_answer(client, writer, request)
        if known.turn == "own":
            return await self._reply(client, request)
        async with turn(is_long=is_long):
            return await self._reply(client, request)

    @verb(msg.SubmitListRequest, turn="own")
    async def _submit_list(
        self, client: _Client, request: msg.SubmitListRequest
    ) -> SubmitListReply:
        """Process many submissions, in order and some in each turn of the user. Each has its own
        reply."""
        found: list[bytes] = []
        for first in range(0, len(request.jobs), AT_ONCE):
            lines = [bytes(each) for each in request.jobs[first : first + AT_ONCE]]
            async with self._turns.next(client.quota_uid):
                some = list(map(_decode_submission, lines))
                delay_s = max(self._delay_s(client.actor, each) for each in some)
            if delay_s:
                del some
                await self._pause(delay_s)
                some = list(map(_decode_submission, lines))
            async with self._turns.next(client.quota_uid):
                found += await asyncio.gather(*(self._reply(client, each) for each in some))
        return {"replies": [msgspec.Raw(each[:-1]) for each in found]}

    def _delay_s(self, actor: Actor, request: msg.Request | DrfdError) -> float:
        """Count a request that changes something, and return how long it must wait until its user
        may do so again. A refusal to one who is no administrator is a line in the log, so such
        requests are counted too: a flood of them must not fill it."""
        if actor.is_admin or isinstance(request, DrfdError):
            return 0.0
        known, uid = VERBS[type(request)], quota_uid(actor)
        match request:
            case msg.SubmitRequest(dry_run=False):
                return self._quotas.take(uid, 1, size_of(request))
            case msg.CancelRequest():
                return min(self._quotas.take(uid, 1), quotas.MAX_CANCEL_DELAY_S)
            case msg.ExecRequest():
                return self._quotas.take(uid, quotas.EXEC_CHANGES)
        is_change = known.admin or known.audit(request) is not None
        return self._quotas.take(uid, 1) if is_change else 0.0

    async def _send_reply(self, writer: asyncio.StreamWriter, reply: bytes, uid: int) -> None:
        reach("server.before-reply")
        try:
            await self._send(writer, reply, uid)
        except Refused as error:
            await self._send(writer, encode_error(error), uid)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, uid: int) -> None:
        """Send data and wait until the peer or the kernel's buffer has taken it. Raises Refused if
        the user leaves too much unread."""
        with self._quotas.keeping(uid) as keep:
            if len(data) > PIECE_BYTES:
                keep(len(data))
            # asyncio copies what the kernel does not take: at most one piece at a time.
            for at in range(0, len(data), _SEND_BYTES):
                writer.write(memoryview(data)[at : at + _SEND_BYTES])
                await writer.drain()

    async def _wait_for_answer(
        self, client: _Client, writer: asyncio.StreamWriter, request: msg.Request
    ) -> bytes | None:
        """Return the reply or the last line of a stream, or None if the peer hangs up first (a
        `wait` may take days)."""
        known = VERBS[type(request)]
        if known.lines is not None:
            answer = known.answer(self, writer, client.actor, request)
        else:
            answer = self._reply(client, request)
        answering: asyncio.Future[bytes] = asyncio.ensure_future(answer)
        try:
            while not answering.done():
                done, _ = await asyncio.wait({answering}, timeout=HANGUP_CHECK_S)
                if not done and has_hung_up(client.connection):
                    if isinstance(request, msg.WaitRequest) and request.attended:
                        cancel = msg.CancelRequest(
                            v=request.v, select=msg.Selection(ids=request.ids)
                        )
                        await self._reply(client, cancel)
                    return None
            return answering.result()
        finally:
            answering.cancel()

    async def _reply(self, client: _Client, request: msg.Request | DrfdError) -> bytes:
        if isinstance(request, DrfdError):
            return encode_error(request)
        actor = client.actor
        result = await self._carry_out(actor, client.gid, request)
        # In the next round of the loop, so that the client need not wait for it.
        asyncio.get_running_loop().call_soon(log_audit, actor, request, result)
        return encode_error(result) if isinstance(result, DrfdError) else encode(result)

    async def _carry_out(self, actor: Actor, gid: int, request: msg.Request) -> Reply | DrfdError:
        """Carry out a request, and return the reply or the refusal, which the caller logs. A
        request that is cancelled is logged here."""
        try:
            with self._quotas.keeping(quota_uid(actor)) as keep:
                keep(ID_BYTES * _count_awaited(request))
                return await self._requests.answer(actor, gid, request)
        except DrfdError as error:
            return error
        except asyncio.CancelledError:
            log_audit(actor, request, None)
            raise

    @verb(msg.EventsRequest, waits=True, lines=EventLine)
    async def _stream_events(
        self, writer: asyncio.StreamWriter, actor: Actor, request: msg.EventsRequest
    ) -> bytes:
        """Send a stream of events as fast as the peer reads it, and return its last line."""
        try:
            with self._quotas.keeping(quota_uid(actor)) as keep:
                keep(ID_BYTES * _count_awaited(request))
                async with aclosing(self._feed.stream(actor, request)) as stream:
                    async for views in stream:
                        lines = b"".join(map(encode, views))
                        await self._send(writer, lines, quota_uid(actor))
        except DrfdError as error:
            return encode_error(error)
        return encode({"done": True})

    @verb(msg.SnapshotsRequest, waits=True, lines=SnapshotLine)
    async def _stream_snapshots(
        self, writer: asyncio.StreamWriter, actor: Actor, request: msg.SnapshotsRequest
    ) -> bytes:
        """Send snapshots without end. Returns only after an error, the line that reports it."""
        peer = writer.get_extra_info("socket")
        # For a peer that does not read, only one piece of a line is kept here.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            watching = self._snapshots.watch(actor, request.every_s, lambda: has_read_all(peer))
            async with aclosing(watching) as stream:
                async for head, tail in stream:
                    await self._send(writer, head, quota_uid(actor))
                    await self._send(writer, tail, quota_uid(actor))
        except DrfdError as error:
            return encode_error(error)
        raise AssertionError("the stream of snapshots ended by itself")


async def _open(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=PIECE_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _forget_frames(error: OSError) -> None:
    """Break the circle of a connection's error, which asyncio keeps, and the frames that hold the
    connection: only a full collection would free clients that have left."""
    error.__traceback__ = None


def _report_dropped(error: MemoryError) -> None:
    trouble = {"message": "a client was let go", "exception": error}
    asyncio.get_running_loop().call_exception_handler(trouble)


def _decode(line: bytes) -> msg.Request | DrfdError:
    """Return a request or its refusal. Raises HostError for want of memory."""
    try:
        return msg.decode_request(line)
    except DrfdError as error:
        return error
    except MemoryError:
        raise short_of_memory() from None


def _decode_submission(line: bytes) -> msg.Request | DrfdError:
    request = _decode(line)
    if isinstance(request, DrfdError | msg.SubmitRequest) and not _is_dry_run(request):
        return request
    return Refused("bad-request", "a list of submissions has something else")


def _is_dry_run(request: msg.Request | DrfdError) -> bool:
    return isinstance(request, msg.SubmitRequest) and request.dry_run


def _count_awaited(request: msg.Request) -> int:
    match request:
        case msg.WaitRequest():
            return len(request.ids)
        case msg.EventsRequest():
            return len(request.select.ids)
        case _:
            return 0


# -- the audit log: one line for every request that changes something, carried out or refused. It
# goes to the system log only, which the controller cannot change afterwards, as it could change a
# file of its own.


audit_log = logging.getLogger("drfd.audit")

#: Jobs by which an entry of the system log can be found, at most; its line names all that have
#: changed.
_MAX_FIELDS = 100
#: Refused references that a line names, at most, for each reason: a request may invent them.
_MAX_REFUSED = 100
_PLAIN = re.compile(r"[\w.@$+-]+", re.ASCII)


def log_audit(actor: Actor, request: msg.Request, result: Reply | DrfdError | None) -> None:
    """Log a request that changes something. `result` is None if the client did not wait for it."""
    verb = VERBS[type(request)].audit(request)
    if verb is None:
        return
    done, refused = _jobs(result)
    words = [f"event=audit verb={verb} uid={actor.uid} user={_word(actor.user)}"]
    if done:
        words.append(f"jobs={ranges(done)}")
    words += [f"refused={_refused(refs)}:{code}" for code, refs in refused.items()]
    words.append(f"result={_result(result)}")
    audit_log.info(" ".join(words), extra=about(jobs=done[:_MAX_FIELDS], user=actor.user))


def ranges(ids: Iterable[int]) -> str:
    """Return ids in short form, such as `1-3,7`."""
    pairs = joined(set(ids))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in pairs)


def _refused(refs: list[msg.Ref]) -> str:
    """Return refused references in short form, such as `1-3,5_7`. Those that were not found are as
    they were asked for. Of many, the first ones and how many there are besides: `1-3,5_7,+900`."""
    named = refs[:_MAX_REFUSED]
    ids = ranges(ref for ref in named if isinstance(ref, int))
    more = f"+{len(refs) - len(named)}" if len(refs) > len(named) else ""
    return ",".join(filter(None, [ids, *(ref for ref in named if isinstance(ref, str)), more]))


def _result(result: Reply | DrfdError | None) -> str:
    if result is None:
        return "unknown"
    return result.code if isinstance(result, DrfdError) else "done"


def _jobs(result: Reply | DrfdError | None) -> tuple[list[int], dict[str, list[msg.Ref]]]:
    """Return the ids of the changed jobs, and the refused references by error code."""
    if result is None or isinstance(result, DrfdError):
        return [], {}
    reply = cast(Mapping[str, Any], result)
    refused: dict[str, list[msg.Ref]] = {}
    for each in reply.get("failed", ()):
        refused.setdefault(each["error"]["code"], []).append(each["id"])
    return [reply["id"]] if "id" in reply else list(reply.get("done", ())), refused


def _word(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)
