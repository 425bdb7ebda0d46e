"""Talking to the daemon: one request, one reply, over the socket that the user's daemon has.

No module here is heavier than json and socket: every command starts with this one.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from drfd import paths
from drfd.errors import BY_KIND, DrfdError, Unavailable
from drfd.wire.codec import VERSION, Message, decode, encode

#: How long a wait outlives a daemon that is being restarted.
_RECONNECT_S = 60.0


class Client:
    """One connection, made at the first request."""

    def __init__(self, path: Path, *, may_start: bool) -> None:
        """`may_start`: start the user's own daemon if nothing listens at `path`."""
        self._path = path
        self._may_start = may_start
        self._socket: socket.socket | None = None
        self._inbox = b""

    def request(self, op: str, **fields: Any) -> Message:
        """The reply. Raises what the daemon refused with, or Unavailable."""
        self.send(op, **fields)
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
        if reply.get("ok"):
            return reply
        raise _error_of(reply)

    def fileno(self) -> int:
        """For `select`: readable when a reply, or the end, has come."""
        assert self._socket is not None
        return self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._inbox = None, b""

    def wait(self, ids: list[int], *, any_one: bool, timeout_s: float | None) -> Message:
        """The daemon's `wait`, carried over restarts of the daemon."""
        give_up = None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return self.request("wait", ids=ids, any=any_one, timeout_s=left)
            except Unavailable:
                now = time.monotonic()
                give_up = give_up or now + _RECONNECT_S
                if now > give_up:
                    raise
                self.close()
                time.sleep(0.2)

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
        try:
            while b"\n" not in self._inbox:
                piece = self._socket.recv(1 << 20)
                if not piece:
                    raise ConnectionResetError
                self._inbox += piece
        except OSError:
            self.close()
            raise Unavailable(
                "lost", "the daemon closed the connection", hint="try again in a moment"
            ) from None
        line, _, self._inbox = self._inbox.partition(b"\n")
        return decode(line)


def choose(explicit: str | None) -> Client:
    """The client for --socket, else DRFD_SOCKET, else the system's daemon, else the user's own."""
    named = explicit or os.environ.get("DRFD_SOCKET")
    if named:
        return Client(Path(named), may_start=False)
    if paths.SYSTEM_SOCKET.exists():
        return Client(paths.SYSTEM_SOCKET, may_start=False)
    return Client(paths.user_socket(os.environ), may_start=True)


def _open(path: Path) -> socket.socket:
    address, directory = paths.socket_address(path)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    finally:
        if directory is not None:
            os.close(directory)
    return connection


def _error_of(reply: Message) -> DrfdError:
    error = reply.get("error", {})
    kind = BY_KIND.get(error.get("kind", ""), DrfdError)
    return kind(error.get("code", "?"), error.get("text", "?"), hint=error.get("hint", ""))
