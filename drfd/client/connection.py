"""Talking to the daemon: one request, one reply, over the socket that the user's daemon has.

No module here is heavier than json and socket: every command starts with this one. `drfd.client`
puts Python's own types around it.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from drfd import paths
from drfd.errors import BY_KIND, DrfdError, Refused, Unavailable
from drfd.wire.codec import VERSION, Message, decode, encode_request

#: How long a wait outlives a daemon that is being restarted, and how often it looks for it.
RECONNECT_S = 60.0
RETRY_S = 0.2
#: A daemon that has not answered by then is stopped, or very busy.
_ANSWER_S = 120.0
#: Rows of a list that are asked for at a time.
_PAGE = 1000
#: So many submissions may be on their way without an answer.
_AHEAD = 128


#: Starts the user's own daemon at this path, and returns when it answers.
Start = Callable[[Path], None]


class Connection:
    """One connection, made at the first request."""

    #: Of the next submission, if it has been tried in another way before.
    submission_key: ClassVar[str | None] = None

    def __init__(self, path: Path, *, start: Start | None = None) -> None:
        """`start`: called when nothing listens at `path`; it listens there afterwards."""
        self.path = path
        self._start = start
        self._socket: socket.socket | None = None
        self._inbox = b""

    def request(self, op: str, **fields: Any) -> Message:
        """The reply. Raises what the daemon refused with, or Unavailable."""
        self.send(op, **fields)
        assert self._socket is not None
        self._socket.settimeout(_ANSWER_S)
        return self.receive()

    def pages(self, op: str, **fields: Any) -> Iterator[Message]:
        """The replies that make up a list, the first one at once."""
        reply = self.request(op, limit=_PAGE, **fields)
        yield reply
        while reply.get("after") is not None:
            reply = self.request(op, limit=_PAGE, after=reply["after"], **fields)
            yield reply

    def another(self) -> Connection:
        """To the same daemon."""
        return Connection(self.path, start=self._start)

    def send(self, op: str, **fields: Any) -> None:
        self._send_all(op, [fields])

    def _send_all(self, op: str, requests: list[Message]) -> None:
        if not requests:
            return
        try:
            data = b"".join(encode_request({"op": op, "v": VERSION, **each}) for each in requests)
        except UnicodeEncodeError as error:
            raise Refused("bad-value", f"{_text_around(error)!r} is not UTF-8 text") from None
        if self._has_been_left():
            # The daemon was restarted since the last request: this one has not been sent yet.
            self.close()
        if self._socket is None:
            self._socket = self._connect()
        # What is waited for may take days; an earlier request had its own idea.
        self._socket.settimeout(None)
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            # A refusal may lie there already, or else the daemon has gone.
            pass

    def receive(self) -> Message:
        reply = self._read_reply()
        if reply.get("ok") is True:
            return reply
        error = _error_in(reply)
        if error is None:
            raise self._not_drfd()
        raise error

    def await_end(self) -> None:
        """Until the daemon hangs up."""
        assert self._socket is not None
        self._socket.settimeout(None)
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass

    def fileno(self) -> int:
        """For `select`: readable when a reply, or the end, has come; -1 without a connection."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._inbox = None, b""

    def wait(self, ids: list[Any], *, any_one: bool, timeout_s: float | None) -> Message:
        """The daemon's `wait`, carried over restarts of the daemon."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # Patience is for a daemon that was there: the first connection is made or refused.
        give_up = time.monotonic()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self.send("wait", ids=ids, any=any_one, timeout_s=left)
                return self.receive()
            except Unavailable as error:
                self.close()
                if error.code == "lost":
                    # It was there until now, for however long.
                    give_up = time.monotonic() + RECONNECT_S
                if time.monotonic() > give_up or (left is not None and left <= 0):
                    raise
                time.sleep(RETRY_S if left is None else min(RETRY_S, left))

    def submit(self, **fields: Any) -> Message:
        """The reply, with the id. When it is lost, it is asked for again under the same key, so
        that nothing is queued twice."""
        key, was_lost = Connection.submission_key, Connection.submission_key is not None
        Connection.submission_key = None
        key = key or os.urandom(12).hex()
        give_up = time.monotonic() + RECONNECT_S
        while True:
            try:
                return self.request("submit", key=key, **fields)
            except Unavailable as error:
                # Only then may it have been accepted.
                was_lost |= error.code == "lost"
                if not was_lost or time.monotonic() > give_up:
                    raise
                self.close()
                time.sleep(RETRY_S)

    def submit_all(self, jobs: Iterable[Message]) -> Iterator[Message | DrfdError]:
        """The replies in the order of the jobs, or what refused one. Many are sent before the first
        is answered, so that they share what each costs the daemon's disk; what has not been
        answered when the connection is lost is asked for again, under the same key."""
        left = ({"key": os.urandom(12).hex(), **fields} for fields in jobs)
        open_ones: deque[Message] = deque()
        unsent: list[Message] = []
        give_up: float | None = None
        while True:
            if len(open_ones) <= _AHEAD // 2:
                new = list(islice(left, _AHEAD - len(open_ones)))
                open_ones += new
                unsent += new
            if not open_ones:
                return
            try:
                self._send_all("submit", unsent)
                unsent = []
                assert self._socket is not None
                self._socket.settimeout(_ANSWER_S)
                reply: Message | DrfdError = self.receive()
            except Unavailable as error:
                if error.code == "lost" and give_up is None:
                    give_up = time.monotonic() + RECONNECT_S
                if give_up is None or time.monotonic() > give_up:
                    raise
                self.close()
                unsent = list(open_ones)
                time.sleep(RETRY_S)
                continue
            except DrfdError as error:
                reply = error
            give_up = None
            open_ones.popleft()
            yield reply

    def _has_been_left(self) -> bool:
        if self._socket is None:
            return False
        try:
            # With a timeout of its own, Python would wait for something to peek at.
            self._socket.setblocking(False)
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _connect(self) -> socket.socket:
        try:
            return _open(self.path)
        except OSError as error:
            is_nobody = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            if self._start is not None and is_nobody:
                self._start(self.path)
                return _open(self.path)
            raise Unavailable(
                "no-daemon",
                f"no drfd answers at {self.path}: {error.strerror}",
                hint="is it running? DRFD_SOCKET or --socket name another one",
            ) from None

    def _read_reply(self) -> Message:
        assert self._socket is not None
        # A long reply comes in many pieces; each is looked at once.
        pieces = [self._inbox]
        try:
            while b"\n" not in pieces[-1]:
                pieces.append(self._socket.recv(1 << 20))
                if not pieces[-1]:
                    raise ConnectionResetError
        except TimeoutError:
            self.close()
            raise Unavailable(
                "silent", f"drfd has not answered for {_ANSWER_S:.0f} s", hint="is it stopped?"
            ) from None
        except OSError:
            self.close()
            raise Unavailable(
                "lost", "the daemon closed the connection", hint="try again in a moment"
            ) from None
        line, _, self._inbox = b"".join(pieces).partition(b"\n")
        try:
            return decode(line)
        except ValueError:
            raise self._not_drfd() from None

    def _not_drfd(self) -> Unavailable:
        self.close()
        hint = "DRFD_SOCKET or --socket name another one"
        return Unavailable("not-drfd", f"what answers at {self.path} is not drfd", hint=hint)


def choose(explicit: str | None, *, start: Start | None) -> Connection:
    """To the socket that is named, or that DRFD_SOCKET names; else to the system's daemon; else to
    the user's own, which alone is started when it is not there."""
    named = explicit or os.environ.get("DRFD_SOCKET")
    if named:
        return Connection(Path(named))
    # The directory is there from the first start after a boot on: nobody gets a daemon of his own
    # because the system's is just being restarted.
    if paths.SYSTEM_SOCKET.parent.exists():
        return Connection(paths.SYSTEM_SOCKET)
    return Connection(paths.user_socket(os.environ), start=start)


def _open(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with paths.at_socket(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _error_in(reply: Message) -> DrfdError | None:
    """The error that a reply carries, if it has the form of one."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return None
    kind, code, text, hint = (error.get(key) for key in ("kind", "code", "text", "hint"))
    if not all(isinstance(word, str) for word in (kind, code, text, hint)):
        return None
    return BY_KIND.get(str(kind), DrfdError)(str(code), str(text), hint=str(hint))


def _text_around(error: UnicodeEncodeError) -> str:
    """The text of a message that cannot be sent, with a ? for each byte that is not UTF-8."""
    first = error.object.rfind('"', 0, error.start) + 1
    text, _, _ = error.object[first:].partition('"')
    return text.encode("ascii", "replace").decode() if not text.isprintable() else text
