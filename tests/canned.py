"""A daemon that says what a test wants its client to hear, and notes what it was asked."""

import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Message = dict[str, Any]
#: What a canned daemon does with a request: this reply, these raw bytes, hang up (None), the next
#: of a list (the last one for ever), or what a function makes of the request.
Reply = Message | bytes | None | list[Any] | Callable[[Message], Any]
#: Makes a job as the daemon shows it; its arguments replace fields.
MakeJob = Callable[..., Message]


@dataclass
class CannedDaemon:
    path: Path
    #: What it says, by verb.
    replies: dict[str, Reply] = field(default_factory=dict)
    #: What it was asked, without the version.
    requests: list[Message] = field(default_factory=list)
    connections: int = 0
    #: Hears the key of each submission.
    on_key: Callable[[str], object] = str
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._open: list[socket.socket] = []
        self._in_hand: set[socket.socket] = set()
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *about: object) -> None:
        thread = threading.Thread(target=work, args=about, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop, and wait until the last thread has ended."""
        self.stop()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a reply is still being made"

    def stop(self) -> None:
        """Stop listening and drop everybody, when what was asked has its answer."""
        deadline = time.monotonic() + 5
        while self._in_hand and time.monotonic() < deadline:
            time.sleep(0.002)
        # shutdown, unlike close, wakes the thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        self.path.unlink(missing_ok=True)

    def hang_up(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def asked(self, op: str, *, times: int = 1) -> list[Message]:
        """The requests of this verb, once so many have come."""
        deadline = time.monotonic() + 60
        while len(found := [r for r in list(self.requests) if r["op"] == op]) < times:
            assert time.monotonic() < deadline, f"nobody asked {op}: {self.requests}"
            time.sleep(0.002)
        return found

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                request = json.loads(line)
                self._in_hand.add(connection)
                try:
                    if request["op"] == "submit_list":
                        replies = [self._reply(each) for each in request["jobs"]]
                        some = [each.rstrip() for each in replies if each is not None]
                        is_whole = len(some) == len(replies)
                        reply = b'{"ok":true,"replies":[%s]}\n' % b",".join(some)
                    else:
                        found = self._reply(request)
                        is_whole, reply = found is not None, found or b""
                    if not is_whole:
                        return
                    connection.sendall(reply)
                finally:
                    self._in_hand.discard(connection)

    def _reply(self, request: Message) -> bytes | None:
        # A new one for each submission; what it is for is tested end to end.
        key = request.pop("key", None)
        if key is not None:
            self.on_key(key)
        assert request.pop("v") == 1
        self.requests.append(request)
        reply = self.replies.get(request["op"], None)
        if isinstance(reply, list):
            reply = reply.pop(0) if len(reply) > 1 else reply[0]
        if callable(reply):
            reply = reply(request)
        if reply is None or isinstance(reply, bytes):
            return reply
        return json.dumps({"ok": True, **reply}).encode() + b"\n"


@pytest.fixture
def daemon() -> Iterator[CannedDaemon]:
    with tempfile.TemporaryDirectory(prefix="drfd-", dir="/tmp") as directory:
        canned = CannedDaemon(Path(directory) / "drfd.sock")
        canned.start()
        yield canned
        canned.close()


def refusal(kind: str = "Refused", code: str = "x", text: str = "no", hint: str = "") -> bytes:
    """What the daemon says when it will not."""
    error = {"kind": kind, "code": code, "text": text, "hint": hint}
    return json.dumps({"ok": False, "error": error}).encode() + b"\n"


@pytest.fixture
def refuse():
    """Makes the reply that refuses a request."""
    return refusal
