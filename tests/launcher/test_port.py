"""The launcher's one door. The loop is the test's; sockets and credentials are real."""

import json
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from drfd.launcher import port as module
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import KeyOrder, Message, Order
from launcher.rig import WAIT_S, python

HELLO = {"report": "hello"}
KEY_OF_1 = KeyOrder(1)


def said(uid: int) -> bytes:
    """An order."""
    return b'{"cmd":"key","uid":%d}\n' % uid


class Door:
    """A port, the loop it is registered with, and what it was told."""

    def __init__(self, controller_uid: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        # The empty name: the kernel finds a free one, outside the file system.
        self._listener.bind("")
        self._listener.listen(8)
        self.address = self._listener.getsockname()
        self.orders: list[Order] = []
        self.port = Port(self._listener, controller_uid)
        self._selector = selectors.DefaultSelector()
        self.port.open(self._selector, on_connect=lambda: HELLO, on_order=self._handle)

    def _handle(self, order: Order, payload_fd: int) -> None:
        assert payload_fd == -1
        self.orders.append(order)

    def turn(self) -> None:
        """Run the loop until nothing is to be done any more."""
        while ready := self._selector.select(0):
            for chosen, _ in ready:
                if chosen.fd in self._selector.get_map():
                    chosen.data()
            self.port.flush()

    def report(self, *reports: Message) -> None:
        """Report all that in one turn of the loop."""
        for each in reports:
            self.port.send(each)
        self.port.flush()

    def watched(self) -> int:
        return len(self._selector.get_map())

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


class Caller:
    """A controller: one connection."""

    def __init__(self, door: Door) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(door.address)

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def heard(self) -> list[Message]:
        """All that has been said so far."""
        self._socket.setblocking(False)
        data = b""
        try:
            while piece := self._socket.recv(1 << 20):
                data += piece
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(WAIT_S)
        return [json.loads(line) for line in data.splitlines()]

    def hear(self) -> Message:
        """Wait for a line."""
        with self._socket.makefile("rb") as lines:
            found: Message = json.loads(lines.readline())
            return found

    def is_dropped(self) -> bool:
        """Whether the other side has closed; fails if it has said something before."""
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except BlockingIOError:
            return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door(os.getuid())
    yield door
    door.close()


@pytest.fixture
def call(door):
    callers: list[Caller] = []

    def call() -> Caller:
        callers.append(Caller(door))
        door.turn()
        return callers[-1]

    yield call
    for caller in callers:
        caller.close()


@pytest.fixture
def caller(call) -> Caller:
    """One that has been greeted."""
    caller = call()
    assert caller.heard() == [HELLO]
    return caller


def test_an_order_may_come_in_pieces(caller, door):
    line = said(1)
    for at in range(len(line)):
        assert door.orders == []
        caller.say(line[at : at + 1])
        door.turn()
    assert door.orders == [KEY_OF_1]


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"\n", b"\xff\n", b'{"cmd":"fly"}\n'])
def test_garbage_ends_the_connection_and_all_that_came_with_it(caller, door, line):
    caller.say(said(1) + line + said(2) + said(3)[:7])
    door.turn()
    assert door.orders == [KEY_OF_1]
    assert caller.is_dropped()


@pytest.mark.parametrize("half", [b"nonsense\n" + said(2)[:7], said(2)[:12]])
def test_garbage_and_half_an_order_of_one_caller_are_not_begun_for_the_next(
    caller, door, call, half
):
    caller.say(half)
    door.turn()
    second = call()
    assert caller.is_dropped()
    second.say(said(1))
    door.turn()
    assert second.heard() == [HELLO]
    assert door.orders == [KEY_OF_1]


def test_a_caller_that_leaves_is_forgotten_and_its_orders_before_are_obeyed(caller, door):
    caller.say(said(1))
    caller.close()
    door.turn()
    assert (door.orders, door.watched()) == ([KEY_OF_1], 1)
    door.report({"report": "up"})


def test_a_controller_that_takes_nothing_is_dropped(door, call, monkeypatch):
    """Else one that hangs would hang the launcher."""
    monkeypatch.setattr(module, "_SEND_WAIT_S", 0.01)
    caller = call()
    for _ in range(1000):
        door.report({"report": "x" * 100_000})
        if door.watched() == 1:
            break
    assert door.watched() == 1
    caller.close()


@pytest.mark.skipif(os.getuid() == 0, reason="root is always let in")
def test_a_caller_of_another_uid_is_turned_away():
    door = Door(os.getuid() + 1)
    caller = Caller(door)
    door.turn()
    assert caller.is_dropped()
    assert door.watched() == 1
    caller.close()
    door.close()


@pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot call as somebody else")
@pytest.mark.parametrize(("controller", "greeting"), [(64321, b'{"report":"hello"}\n'), (1, b"")])
def test_the_uid_at_the_socket_decides(start, controller, greeting):
    door = Door(controller)
    code = """
import os, socket
os.setresuid(*[64321] * 3)
caller = socket.socket(socket.AF_UNIX)
caller.connect(bytes.fromhex(sys.argv[1]))
print("called", flush=True)
sys.stdin.readline()
print(caller.recv(99).decode(), end="")
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    caller = start(*python(code, door.address.hex()), **pipes)
    assert caller.stdout is not None
    assert caller.stdout.readline() == b"called\n"
    door.turn()
    heard, _ = caller.communicate(b"\n", WAIT_S)
    assert heard == greeting
    assert door.watched() == (2 if greeting else 1)
    door.close()


@pytest.mark.skipif(os.getuid() != 0, reason="not root")
def test_root_may_call_a_launcher_of_any_controller():
    door = Door(64321)
    caller = Caller(door)
    door.turn()
    assert caller.heard() == [HELLO]
    caller.close()
    door.close()


def test_a_controller_that_reads_slowly_gets_everything(caller, door):
    """More than fits into the socket: the door waits, and obeys orders as before."""
    report: Message = {"report": "x" * 3_000_000}
    heard: list[Message] = []
    reader = threading.Thread(target=lambda: heard.append(caller.hear()))
    reader.start()
    door.report(report)
    reader.join(WAIT_S)
    assert heard == [report]
    caller.say(said(1))
    door.turn()
    door.turn()
    assert door.orders == [KEY_OF_1]


NOBODY = 65534


def test_root_and_system_accounts_are_refused_by_number_unless_they_are_named():
    """The bound is the administrator's."""
    policy = Policy(min_uid=1000, allowed_uids=frozenset())
    for uid in (0, 1, 100, 999, NOBODY):
        assert f"uid {uid} " in (policy.refusal(uid) or "")
    for uid in (1000, 1001, NOBODY - 1, NOBODY + 1, 1 << 31):
        assert policy.refusal(uid) is None
    for uid in (0, 33, NOBODY):
        named = Policy(min_uid=1000, allowed_uids=frozenset({uid}))
        refused = {other for other in (0, 33, 34, NOBODY) if named.refusal(other) is not None}
        assert refused == {0, 33, 34, NOBODY} - {uid}
    lower = Policy(min_uid=500, allowed_uids=frozenset())
    assert (lower.refusal(500), lower.refusal(499) is None) == (None, False)
