"""The launcher runs as root: what it does not understand to the letter, it refuses."""

import json
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from drfd.launcher import attempt_files
from drfd.launcher import port as module
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import (
    AttemptLimits,
    BadMessage,
    ControlOrder,
    Devices,
    DiskLimit,
    ExecOrder,
    KeyOrder,
    ListOrder,
    MeasureGpusOrder,
    Message,
    Order,
    RemoveFilesOrder,
    SignalOrder,
    WeightsOrder,
    encode,
    read_order,
)
from drfd.linux.device_nodes import DeviceNode
from launcher.rig import WAIT_S, order, python

DISK = DiskLimit(device="8:0", read_bps=1000, write_bps=0)
FULL = order(
    cwd=Path("/"),
    array_id=7,
    name="a name",
    variables={"DRF_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": ""},
    hidden=("GPU_DEVICE_ORDINAL",),
    limits=AttemptLimits(
        cores_milli=1500, memory_bytes=1 << 40, pids=64, disks=(DISK, DISK), cores_by="pin"
    ),
).order

NUMBERS = ["id", "attempt", "uid", "gid", "submitted_us", "array_id", "array_index", "threads"]
LIMITS = ["cores_milli", "memory_bytes", "pids"]
RATES = ["read_bps", "write_bps"]

#: Pairwise distinct JSON types, numbers that are none, and numbers that mean trouble.
#: Of 64 bits more than the kernel counts; and one so long that its double cannot be written, by
#: which a launcher died.
WRONG_FOR_A_NUMBER = [None, True, False, 1.0, "1", [], {}, -1, 1 << 63, 10**4299]
WRONG_FOR_A_TEXT = [None, True, 1, ["a"], {}]


GONE = object()


def message(order: Order = FULL) -> Any:
    """A valid message as it comes over the wire."""
    return json.loads(encode(order))


def put(*path: str | int, value: object) -> Any:
    """The same with another value in this place, or none."""
    changed = message()
    place = changed
    for step in path[:-1]:
        place = place[step]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


def refused(message: object) -> None:
    with pytest.raises(BadMessage):
        read_order(json.dumps(message).encode())


ONE = {"id": 3, "attempt": 2}
ORDERS: dict[str, Order] = {
    "launch": FULL,
    "notify": replace(
        order(cwd=Path("/")).order,
        is_notice=True,
        output_max_bytes=5,
        devices=Devices(
            frozenset({DeviceNode("c", 195, 1), DeviceNode("b", 8, 1)}),
            frozenset({0, 1}),
            (("0000:01:00.0", 20 << 30),),
        ),
        gres=(("gpu", 2),),
    ),
    "exec": ExecOrder(**ONE, number=3, pid=9, start_ticks=8, proof="0" * 64),
    "signal": SignalOrder(**ONE, count=7, signals=(10, 12)),
    "weights": WeightsOrder((("of-lab/of-ann", 2000), ("of-%C3%A9", 1))),
    "remove-files": RemoveFilesOrder(((3, 2), (4, 1))),
    "list": ListOrder(),
    "key": KeyOrder(1000),
    "measure-gpus": MeasureGpusOrder(on=True),
    "kill": ControlOrder(**ONE, do="kill"),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_an_order_comes_out_as_it_went_in(order):
    assert read_order(encode(order)) == order


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_a_field_missing_or_too_many_is_refused_in_any_order(order):
    """Only one that has a default may be missing."""
    sent = message(order)
    refused({**sent, "more": 1})
    optional = {each.name for each in fields(order) if not each.required}
    for name in sent.keys() - optional:
        refused({key: value for key, value in sent.items() if key != name})


@example(b"[]")
@example(b"null")
@example(b"\xff\xff{}")
@example(b"{} {}")
# A deep nest overflows the parser, which says so with an exception of its own.
@example(b'{"cmd":' + b"[" * 200_000)
@given(st.binary(max_size=200))
def test_no_line_raises_anything_but_bad_message(line):
    with pytest.raises(BadMessage):
        read_order(line)


@pytest.mark.parametrize("field", ["id", "attempt"])
@pytest.mark.parametrize("value", [0, 10**18, 10**400])
def test_a_number_that_no_attempt_can_be_called_by_is_refused(field, value):
    """Its file would not be found again, or could not be made at all; the highest one can."""
    refused(put(field, value=value))
    for command in ("kill", "signal"):
        refused({**message(ORDERS[command]), field: value})
    highest = replace(ORDERS["kill"], **{field: 10**18 - 1})
    assert read_order(encode(highest)) == highest
    assert attempt_files.cgroup_key(attempt_files.cgroup_name(highest.key)) == highest.key


#: Of a path that no file of the kernel could be in.
LONG = "of-" + "a" * 200
DEVICES = {"hidden": [], "numa_nodes": [], "memory": []}
#: What may not stand where. The kernel reads a negative limit as "none"; a device becomes part of a
#: line that root writes into a kernel file; and a controller in bad hands put a library, or the
#: place of a script's modules, into everybody's jobs by a variable.
REFUSED: list[tuple[tuple[str | int, ...], list[Any]]] = [
    *(((field,), WRONG_FOR_A_NUMBER) for field in NUMBERS),
    # A limit that nobody named would be one that nobody enforces.
    *((("limits", field), [*WRONG_FOR_A_NUMBER, GONE]) for field in LIMITS),
    *((("limits", "disks", 1, field), [*WRONG_FOR_A_NUMBER, GONE]) for field in RATES),
    *(((*path, "nice"), [1]) for path in ((), ("limits",), ("limits", "disks", 0))),
    (("name",), [*WRONG_FOR_A_TEXT, "a\0b", "x" * 257]),
    (("user",), [*WRONG_FOR_A_TEXT, "", "a\nb", "x" * 257]),
    (("journal",), [*WRONG_FOR_A_TEXT, "", "0" * 31, "G" * 32, "0" * 32 + "\n"]),
    (("limits",), [None, [], 1, "8:0"]),
    (("limits", "cores_by"), [None, "", "Pin", "fair", 1, ["pin"], {}]),
    (
        ("limits", "groups"),
        [None, "of-a", ["job-1-1"], ["of-"], ["of-a/.."], ["of-a\n"], [1], [LONG] * 19],
    ),
    (("limits", "disks"), [None, {}, "8:0", [None], ["8:0"], [[]]]),
    (("limits", "disks", 0, "device"), [*WRONG_FOR_A_TEXT, GONE, "", "sda", "8", "8:0 1", "*:*"]),
    (("variables",), [None, [], "A=1", 1]),
    (("variables", "DRF_JOB_ID"), [*WRONG_FOR_A_TEXT, "a\0b", "x" * 20_000, "$(id)", "a\n", "'"]),
    *(
        (("variables", name), ["/tmp/evil.so"])
        for name in (
            *("LD_PRELOAD", "PATH", "HOME", "DRF_\0", "DRF_A\n", "", "DRF_SCRIPT", "DRF_MAIL_TO"),
            *("DRF_SLURM", "DRF_STDOUT", "DRF_ANY", "DRF_GRES_"),
        )
    ),
    # No variable is taken out that is none of devices.
    (("hidden",), [None, {}, "PATH", [1], ["PATH"], ["DRF_JOB_ID"]]),
    *(((field,), [None, 0, 1, "true", []]) for field in ("tells_start", "empties_output")),
    (("devices",), [None, [], {**DEVICES, "given": []}]),
    (
        ("devices", "hidden"),
        [
            *(None, ["c 1:3"], [["c", 1]], [["a", 1, 3]], [["c", "1", 3]], [["c", 1, True]]),
            *(
                [["c", -1, 3]],
                [["c", 1 << 12, 0]],
                [["b", 0, 1 << 20]],
                [["c", 1, each] for each in range(8193)],
            ),
        ],
    ),
    (("devices", "numa_nodes"), [None, [-1], ["0"], [0.5]]),
    (("devices", "memory"), [None, [["0000:01:00.0"]], [["x y", 1]], [["0000:01:00.0", -1]]]),
    (("gres",), [None, ["gpu"], [["gpu", -1]], [["GPU,x", 1]], [["gpu", 1]] * 65]),
]


@pytest.mark.parametrize(
    ("path", "value"),
    [(path, value) for path, values in REFUSED for value in values],
    ids=lambda each: repr(each)[:40],
)
def test_what_may_not_be_in_an_order_is_refused(path, value):
    refused(put(*path, value=value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
PLACES = st.sampled_from(
    [
        *((field,) for field in message()),
        *(("limits", field) for field in [*LIMITS, "disks", "cores_by"]),
        *(("limits", "disks", 0, field) for field in [*RATES, "device"]),
        ("limits", "disks", 1),
        ("variables", "DRF_JOB_ID"),
        ("hidden", 0),
    ]
)


def holds(whole: object, part: object) -> bool:
    """Whether they are the same but for fields that have their defaults in the whole."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(name in whole and holds(whole[name], each) for name, each in part.items())
    return whole == part


@given(PLACES, JSON)
def test_no_value_anywhere_raises_anything_but_bad_message(place, value):
    """What is taken is the order that was sent, not something near it."""
    sent = put(*place, value=value)
    try:
        taken = read_order(json.dumps(sent).encode())
    except BadMessage:
        return
    assert holds(message(taken), sent)


#: Command → what may not stand in its order.
WRONG: dict[str, list[dict[str, Any]]] = {
    "weights": [
        {"cores_milli": [each]}
        for each in (
            ["/".join([LONG] * 19), 1],
            ["of-a", -1],
            ["a", 1],
            ["of-a/../b", 1],
            ["/of-a", 1],
            ["of-a/", 1],
            ["of-a"],
        )
    ],
    "signal": [
        *({"signals": [each]} for each in (0, 65, -9, "USR1", 256, 778, True)),
        *({"signals": 10}, {"signals": None}, {"signals": [10] * 65}, {"count": -1}),
        *({"count": "1"}, {"id": "1"}, {"attempt": None}),
    ],
    "exec": [
        *({"number": -1}, {"number": True}, {"id": 0}, {"attempt": "1"}, {"pid": -9}),
        *({"pid": 1 << 31}, {"pid": None}, {"start_ticks": 1 << 63}, {"proof": "0"}, {"proof": 1}),
    ],
}


@pytest.mark.parametrize(
    ("command", "change"),
    [(command, change) for command, changes in WRONG.items() for change in changes],
    ids=repr,
)
def test_an_order_with_anything_wrong_is_refused(command, change):
    refused({**message(ORDERS[command]), **change})


@pytest.mark.parametrize("name", [None, "", "hello", "notify", "kill", 1, ["list"], {"list": 1}])
def test_an_unknown_command_is_refused(name):
    refused({"cmd": name, **ONE})


@pytest.mark.parametrize("do", [None, "", "launch", "notify", 1, ["kill"]])
def test_nothing_else_can_be_done_to_an_attempt(do):
    refused({"cmd": "control", "do": do, **ONE})


# -- the one door: the loop is the test's; sockets and credentials are real ---------------------


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


def test_a_caller_of_another_uid_is_turned_away_unless_it_is_root():
    door = Door(os.getuid() + 1)
    caller = Caller(door)
    door.turn()
    if os.getuid() == 0:
        assert caller.heard() == [HELLO]
    else:
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
