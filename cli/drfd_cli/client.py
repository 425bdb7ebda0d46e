"""Talking to the daemon: one request, one reply, over the socket that the user's daemon has.

No module here is heavier than json and socket: every command starts with this one.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from drfd import paths
from drfd.errors import BY_KIND, DrfdError, Unavailable
from drfd.wire.codec import VERSION, Message, decode, encode

#: How long a wait outlives a daemon that is being restarted.
_RECONNECT_S = 60.0
_RETRY_S = 0.2
#: A daemon that has not answered by then is stopped, or very busy.
_ANSWER_S = 120.0


class Client:
    """One connection, made at the first request."""

    #: Of the next submission, if it has been tried in another way before.
    submission_key: ClassVar[str | None] = None

    def __init__(self, path: Path, *, may_start: bool) -> None:
        """`may_start`: start the user's own daemon if nothing listens at `path`."""
        self._path = path
        self._may_start = may_start
        self._socket: socket.socket | None = None
        self._inbox = b""

    def request(self, op: str, **fields: Any) -> Message:
        """The reply. Raises what the daemon refused with, or Unavailable."""
        self.send(op, **fields)
        assert self._socket is not None
        self._socket.settimeout(None if op == "wait" else _ANSWER_S)
        return self.receive()

    def send(self, op: str, **fields: Any) -> None:
        message = encode({"op": op, "v": VERSION, **fields})
        if self._socket is None:
            self._socket = self._connect()
        try:
            self._socket.sendall(message)
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
                give_up = time.monotonic() + _RECONNECT_S
                return self.receive()
            except Unavailable:
                self.close()
                if time.monotonic() > give_up or (left is not None and left <= 0):
                    raise
                time.sleep(_RETRY_S if left is None else min(_RETRY_S, left))

    def submit(self, **fields: Any) -> Message:
        """The reply, with the id. When it is lost, it is asked for again under the same key, so
        that nothing is queued twice."""
        key, was_lost = Client.submission_key, Client.submission_key is not None
        Client.submission_key = None
        key = key or os.urandom(12).hex()
        give_up = time.monotonic() + _RECONNECT_S
        while True:
            try:
                return self.request("submit", key=key, **fields)
            except Unavailable as error:
                # Only then may it have been accepted.
                was_lost |= error.code == "lost"
                if not was_lost or time.monotonic() > give_up:
                    raise
                self.close()
                time.sleep(_RETRY_S)

    def _connect(self) -> socket.socket:
        try:
            return _open(self._path)
        except OSError as error:
            if self._may_start and isinstance(error, FileNotFoundError | ConnectionRefusedError):
                from drfd_cli.autostart import start_daemon

                start_daemon(self._path)
                return _open(self._path)
            raise Unavailable(
                "no-daemon",
                f"no drfd answers at {self._path}: {error.strerror}",
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
        return Unavailable("not-drfd", f"what answers at {self._path} is not drfd", hint=hint)


class Watch:
    """A `wait` for the first of these jobs, beside other work, over restarts of the daemon."""

    def __init__(self, client: Client, *ids: int, attended: bool = False) -> None:
        """`attended`: the daemon cancels the jobs when this process is gone."""
        self._client = client
        self._request: dict[str, Any] = {"ids": list(ids)}
        if len(ids) > 1:
            self._request["any"] = True
        if attended:
            self._request["attended"] = True
        self._is_asked = False
        self._give_up = time.monotonic() + _RECONNECT_S
        #: Never give up waiting for a daemon that is away.
        self.is_patient = False

    def poll(
        self, timeout_s: float, reads: Sequence[int] = (), writes: Sequence[int] = ()
    ) -> tuple[Message | None, set[int]]:
        """Wait a little: the reply, if one has ended, and which other descriptors are ready."""
        self._ask()
        mine = [self._client.fileno()] if self._is_asked else []
        left = timeout_s if self._is_asked else min(timeout_s, _RETRY_S)
        readable, writable, _ = select.select([*mine, *reads], writes, [], left)
        reply = None
        if mine and mine[0] in readable:
            try:
                reply = self._client.receive()
            except Unavailable:
                self._is_asked = False
                self._give_up = time.monotonic() + _RECONNECT_S
        return reply, {*readable, *writable} - set(mine)

    def _ask(self) -> None:
        if self._is_asked:
            return
        try:
            self._client.send("wait", **self._request)
        except Unavailable:
            if not self.is_patient and time.monotonic() > self._give_up:
                raise
            return
        self._is_asked = True


def choose(explicit: str | None, *, may_start: bool) -> Client:
    """The client for --socket, else DRFD_SOCKET, else the system's daemon, else the user's own,
    started if need be and `may_start`."""
    named = explicit or os.environ.get("DRFD_SOCKET")
    if named:
        return Client(Path(named), may_start=False)
    # The directory is there from the first start after a boot on: nobody gets a daemon of his own
    # because the system's is just being restarted.
    if paths.SYSTEM_SOCKET.parent.exists():
        return Client(paths.SYSTEM_SOCKET, may_start=False)
    return Client(paths.user_socket(os.environ), may_start=may_start)


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
