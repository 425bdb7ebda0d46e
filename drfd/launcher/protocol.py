"""The protocol between the controller and the launcher: one JSON object per line.

The controller sends commands, and the launcher reports; either may be repeated. Other packages
import only this module of the launcher, and `settings`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from drfd.common.owner import Owner
from drfd.common.signals import is_signal
from drfd.linux.device_nodes import BLOCK, CHARACTER, DeviceNode
from drfd.linux.own_process import NOBODY
from drfd.payload.environment import may_be, may_hide, may_set, plain, threads_of
from drfd.payload.signs import Signs, output_signs

Message = dict[str, Any]

#: The version of the protocol, which a launcher's hello names. A controller of another version
#: sends it no orders.
VERSION = 1
SOCKET_NAME = "launcher.sock"
#: The file with the secret of signatures, in the launcher's directory.
SECRET_NAME = "secret"  # noqa: S105

#: Commands that name one attempt.
TERMINATE, KILL, REMOVE = "terminate", "kill", "remove"
FREEZE, THAW = "freeze", "thaw"
ABOUT_ONE = (TERMINATE, KILL, REMOVE, FREEZE, THAW)
LAUNCH, LIST, SIGNAL = "launch", "list", "signal"
#: Remove the files of attempts whose ends were reported with `gone`. It is answered by no report.
REMOVE_FILES = "remove-files"
#: Run the notification command once in the attempt's cgroup, and then remove the attempt.
NOTIFY = "notify"
#: Move a process of the owner's into a running attempt (`drf exec`).
EXEC = "exec"
#: The answer of a launcher without root's rights that may not move a process from where it is.
OUT_OF_REACH = "an ordinary user's launcher cannot move a process of a login session"
#: Weigh the groups of attempts against each other.
WEIGHTS = "weights"
#: Write the key file of a user (`drfd.payload.signature`).
KEY = "key"
#: Measure the use of GPUs, or stop doing so; and the report of it.
MEASURE_GPUS, GPUS = "measure-gpus", "gpus"

#: The highest number of a job or of an attempt, within the range that names of files and cgroups
#: can have.
MAX_ORDINAL = 10**18 - 1

#: Key in the `mounts` of a hello for the one hierarchy of cgroup v2.
UNIFIED = "cgroup2"

#: Modes in which a job gets its declared cores: as a ceiling, a floor, or CPUs of its own.
QUOTA, WEIGHT, PIN = "quota", "weight", "pin"
CORES_MODES = (QUOTA, WEIGHT, PIN)

#: Marks a hello of a launcher that cannot pin, and sets quotas instead.
NO_PIN = "by quota, pin cannot be had"


def is_system_account(uid: int, min_uid: int) -> bool:
    """Return whether a uid is root's or a system account's, where those of users begin at
    `min_uid`."""
    # "nobody" has a uid above those of other system accounts.
    return uid < min_uid or uid == NOBODY


class BadMessage(Exception):
    """The other side sent something outside the protocol."""


@dataclass(frozen=True, slots=True)
class Must:
    """A condition on the values of an annotated type, and what is said of one that does not meet
    it."""

    test: Callable[[Any], object]
    fault: str


def _matching(pattern: str, fault: str) -> Must:
    return Must(re.compile(pattern).fullmatch, fault)


#: Largest number of characters in a job's name and in a variable's value.
MAX_NAME, _MAX_VALUE = 256, 16384
#: Largest number of instances of a countable resource.
MAX_INSTANCES = 1024
#: Numbers that devices can have: 12 bits and 20 bits (include/linux/kdev_t.h).
_MAJORS, _MINORS = range(1 << 12), range(1 << 20)


def _at_most(most: int) -> Must:
    return Must(lambda found: len(found) <= most, f"has more than {most}")


def _is_device(node: DeviceNode) -> bool:
    return node.kind in (BLOCK, CHARACTER) and node.major in _MAJORS and node.minor in _MINORS


def _may_hold(name: str, text: str) -> bool:
    return len(text) <= _MAX_VALUE and "\0" not in text and may_be(name, text)


#: A higher number than `Number` allows gives results that do not fit into 64 bits.
Number: TypeAlias = Annotated[int, Must(range(1 << 63).__contains__, "is not from 0 to 2**63 - 1")]
#: A higher one is an OverflowError of Python's, and no error of a call.
Pid: TypeAlias = Annotated[int, Must(range(1, 1 << 31).__contains__, "is no pid")]
Ordinal: TypeAlias = Annotated[
    int, Must(range(1, MAX_ORDINAL + 1).__contains__, f"is not between 1 and {MAX_ORDINAL}")
]
Name: TypeAlias = Annotated[
    str, Must(lambda text: len(text) <= MAX_NAME and "\0" not in text, "is no name")
]
User: TypeAlias = Annotated[
    str, Must(lambda text: 1 <= len(text) <= 256 and text.isprintable(), "is no account's name")
]
Proof: TypeAlias = Annotated[str, _matching("[0-9a-f]{64}", "is no signature")]
Journal: TypeAlias = Annotated[str, _matching("[0-9a-f]{32}", "is not the id of a journal")]
Device: TypeAlias = Annotated[str, _matching("[0-9]{1,9}:[0-9]{1,9}", "is not major:minor")]
Node: TypeAlias = Annotated[
    str, _matching("(?:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?", "is not the name of a node")
]
CoresMode: TypeAlias = Annotated[str, Must(CORES_MODES.__contains__, "is no mode of cores")]
HiddenNodes: TypeAlias = Annotated[
    frozenset[Annotated[DeviceNode, Must(_is_device, "has what is no device")]], _at_most(8192)
]
#: A cgroup of attempts, or of such groups, and the names of all that an attempt is in.
_GROUP = "of-[A-Za-z0-9_.~%-]{1,200}"
Groups: TypeAlias = Annotated[
    tuple[Annotated[str, _matching(_GROUP, "names no group")], ...], _at_most(32)
]
GroupPath: TypeAlias = Annotated[
    str, _matching(f"{_GROUP}(/{_GROUP}){{0,31}}", "is no path of a group")
]
NumaNodes: TypeAlias = Annotated[frozenset[Number], _at_most(8192)]
Pci: TypeAlias = Annotated[str, _matching("[0-9a-f:.]{1,32}", "has no PCI address")]
GpuMemory: TypeAlias = Annotated[tuple[tuple[Pci, Number], ...], _at_most(MAX_INSTANCES)]
GresName: TypeAlias = Annotated[str, _matching("[a-z][a-z0-9_]{0,63}", "names no resource")]
Gres: TypeAlias = Annotated[tuple[tuple[GresName, Number], ...], _at_most(64)]
Signals: TypeAlias = Annotated[
    tuple[int, ...],
    Must(
        lambda found: len(found) <= 64 and all(map(is_signal, found)), "are no 64 signals or less"
    ),
]
Variables: TypeAlias = Annotated[
    dict[str, str],
    Must(lambda found: len(found) <= 100, "has more than 100 variables"),
    Must(lambda found: all(map(may_set, found)), "has the name of no variable of drfd's"),
    Must(
        lambda found: all(map(_may_hold, found, found.values())),
        "has a value that is too long, or no number, or with signs of a shell's",
    ),
]
Hidden: TypeAlias = Annotated[
    tuple[str, ...],
    Must(lambda names: all(map(may_hide, names)), "has one that drfd does not hide"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimit:
    """Limits on one disk, in bytes per second; 0 is no limit. `device` is "major:minor", or
    EVERY_DISK."""

    device: Device
    read_bps: Number
    write_bps: Number


#: The device in limits that hold for each disk of a node which finds its disks itself. The kernel
#: gives this number to no device.
EVERY_DISK = "0:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """The limits that the kernel is to enforce for one attempt."""

    cores_milli: Number
    #: The upper end of a range of cores, or 0 for none.
    cores_max_milli: Number = 0
    memory_bytes: Number
    pids: Number
    disks: tuple[DiskLimit, ...] = ()
    #: One of CORES_MODES.
    cores_by: CoresMode = QUOTA
    #: The groups that its cgroup is in, by the fair-share tree, the outermost first.
    groups: Groups = ()

    @property
    def quota_milli(self) -> int:
        """The most cores that the attempt may use at any time, unless it has no quota."""
        return self.cores_max_milli or self.cores_milli


@dataclass(frozen=True, slots=True)
class Devices:
    """What the controller has decided of the machine's devices for an attempt. It takes away from
    the attempt's own processes, and gives nothing that the node's own rights refuse."""

    #: Device nodes that no process of the attempt may open or make, nor one of root's.
    hidden: HiddenNodes = frozenset()
    #: NUMA nodes of its devices, which its CPUs should be of.
    numa_nodes: NumaNodes = frozenset()
    #: PCI addresses of its GPUs, each with the bytes of the GPU's memory that it may use.
    memory: GpuMemory = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """An order about one attempt; of ABOUT_ONE it has nothing else."""

    id: Ordinal
    attempt: Ordinal

    @property
    def key(self) -> tuple[int, int]:
        return self.id, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder(AttemptOrder):
    """Everything that root's processes must know to run one attempt: numbers and short texts. Texts
    of the user come separately, as a descriptor of a sealed file that only the job's own process
    reads (`drfd.payload.pack`)."""

    uid: Number
    #: The account's name, the journal, and the time of submission: see `core.model.job.Owner`.
    user: User
    journal: Journal
    submitted_us: Number
    #: Preferred primary group; used only if the user is still a member.
    gid: Number
    #: The array, 0 for none, and the task's index in it: for the names of output files.
    array_id: Number
    array_index: Number
    name: Name
    #: Number of threads for programs, unless the submitter has set it; 0 sets nothing. Of a job
    #: with a range of cores it is for the upper end.
    threads: Number
    #: Variables that override the submitter's, and names of the submitter's that are removed: only
    #: names that `drfd.payload.environment` allows.
    variables: Variables
    hidden: Hidden
    limits: AttemptLimits
    #: The user's signature of the payload (`drfd.payload.signature`), or None.
    proof: Proof | None = None
    #: Whether the owner's notification command runs when the program has started.
    tells_start: bool = False
    #: Whether output files are truncated, because no earlier attempt has started the program.
    empties_output: bool = True
    #: How much the attempt may write to its output files; 0 is no limit.
    output_max_bytes: Number = 0
    devices: Devices = field(default_factory=Devices)
    #: Countable resources, each with the number of its instances, of a node that chooses the
    #: instances itself.
    gres: Gres = ()
    #: The node that it is launched on, by a launcher that has several; "" for the launcher's own.
    node: Node = ""

    @property
    def owner(self) -> Owner:
        return Owner(
            uid=self.uid, user=self.user, journal=self.journal, submitted_us=self.submitted_us
        )

    @property
    def output_signs(self) -> Signs:
        """What the signs in the user's patterns of output files stand for."""
        return output_signs(
            job_id=self.id,
            array_id=self.array_id,
            index=self.array_index,
            name=self.name,
            user=self.user,
        )

    @property
    def floor_threads(self) -> int:
        """Return the number of threads that it always has cores for."""
        if not self.limits.cores_max_milli:
            return self.threads
        return min(self.threads, threads_of(self.limits.cores_milli))


@dataclass(slots=True, eq=False)
class Assignment:
    """An order with the descriptor of its payload. The holder of an assignment closes it."""

    order: LaunchOrder
    #: Descriptor of a sealed file (`drfd.payload.pack`). Root's processes examine only its seals,
    #: its size and its digest.
    payload_fd: int
    #: Whether its user has been found to have signed it.
    is_signed: bool = False
    #: Whether it is the command that notifies of the job's end that is to run.
    is_notice: bool = False

    def close(self) -> None:
        os.close(self.payload_fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOrder(AttemptOrder):
    """The order to move a process into a running attempt of its user's."""

    #: The controller's number of this order, which the answer repeats.
    number: Number
    #: The process, by its pid and its start in clock ticks since boot (proc_pid_stat(5)).
    pid: Pid
    start_ticks: Number
    #: The user's signature (`drfd.payload.signature.exec_digest`), or None.
    proof: Proof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOrder(AttemptOrder):
    """The order that an attempt be sent `count` signals in all, of which `signals` are the last."""

    count: Number
    signals: Signals


@dataclass(frozen=True, slots=True)
class WeightsOrder:
    """The order to divide cores among groups in these proportions, in thousandths of a core. Groups
    that are not named keep their parts, and those that there will be get them. It may be repeated,
    is answered by no report, and has to survive neither the controller nor the launcher."""

    cores_milli: tuple[tuple[GroupPath, Number], ...]


@dataclass(frozen=True, slots=True)
class RemoveFilesOrder:
    """The order to remove the files of ended attempts, of which nothing else is left."""

    attempts: tuple[AttemptOrder, ...]


@dataclass(frozen=True, slots=True)
class ListOrder:
    """The order to report all attempts."""


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order to write a user's key file."""

    uid: Number


@dataclass(frozen=True, slots=True)
class MeasureGpusOrder:
    """The order to measure the use of GPUs and report it, or to stop doing so."""

    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a launcher says first on each connection: what it can enforce, and where."""

    version: int = VERSION
    #: "cgroup-v2", "cgroup-v1", "slurm", or "none" where limits are only measured.
    kind: str
    #: By resource: "enforced", "measured" or "not controlled", with a reason after a colon; and the
    #: same of cores in each of CORES_MODES.
    controls: dict[str, str]
    cores: dict[str, str]
    #: Whether device nodes can be hidden from jobs, and in a sentence how or why not.
    hiding: tuple[bool, str]
    #: Controller → mount point that cgroups of attempts are below.
    mounts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: Where jobs' own /tmp are, or None if all share one.
    private_tmp: str | None = None
    #: Whether IPC objects of a user are removed after the user's last job.
    removes_ipc: bool = False
    #: Whether processes can be moved into attempts.
    exec: bool = False
    #: Limits on processes: of all jobs together, and of each user.
    processes: dict[str, int] | None = None
    #: The users that it runs jobs of: see `is_system_account`.
    min_uid: int
    allowed_uids: list[int]
    #: Whether the kernel divides cores between jobs with ranges of them.
    ranges: bool = False
    #: PCI addresses of the GPUs whose memory the kernel limits.
    limits_gpus: list[str] = field(default_factory=list)


Order = AttemptOrder | WeightsOrder | RemoveFilesOrder | ListOrder | KeyOrder | MeasureGpusOrder
_KINDS: dict[object, type[Order]] = {
    LAUNCH: LaunchOrder,
    NOTIFY: LaunchOrder,
    EXEC: ExecOrder,
    SIGNAL: SignalOrder,
    WEIGHTS: WeightsOrder,
    REMOVE_FILES: RemoveFilesOrder,
    LIST: ListOrder,
    KEY: KeyOrder,
    MEASURE_GPUS: MeasureGpusOrder,
    **dict.fromkeys(ABOUT_ONE, AttemptOrder),
}


def _fields(value: Any) -> Message:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _plain_json(value: Any) -> object:
    """Return a dataclass as an object, and a set as a list."""
    return sorted(value) if isinstance(value, frozenset) else _fields(value)


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain_json).encode


def encode(message: Message) -> bytes:
    return _encode(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from None
    if not isinstance(message, dict):
        raise BadMessage("not an object")
    return message


def hello_report(hello: Hello) -> Message:
    return {"report": "hello", **_fields(hello)}


def attempt_report(kind: str, key: tuple[int, int], **facts: object) -> Message:
    """Return the message that reports on an attempt, of the present time unless the facts have
    another."""
    now = {"at_s": time.time(), "mono_s": time.monotonic()}
    return {"report": kind, "id": key[0], "attempt": key[1], **now, **facts}


def message_of(command: str, order: Order) -> Message:
    """Return the message that gives this order, which `read_order` reads."""
    fields = _fields(order)
    if isinstance(order, LaunchOrder):
        fields["variables"] = {name: plain(text) for name, text in order.variables.items()}
    return {"cmd": command, **fields}


def read_order(message: Message) -> tuple[str, Order]:
    """Return the command of a message of the controller, and its order. Raises BadMessage for a
    missing, unknown or malformed field: the launcher runs as root and guesses nothing."""
    command = message.get("cmd")
    if not isinstance(command, str) or command not in _KINDS:
        raise BadMessage(f"unknown command {command!r:.99}")
    fields = {name: value for name, value in message.items() if name != "cmd"}
    order: Order = read(_KINDS[command], fields, command)
    return command, order


# -- reading by annotations ---------------------------------------------------------------------


def read(kind: Any, value: object, where: str) -> Any:
    """Return what a value of JSON means as a value of this type: a dataclass, or what fields of the
    dataclasses here are annotated with. Raises BadMessage, which names the place."""
    try:
        return _reader(kind)(value)
    except BadMessage as error:
        raise BadMessage(f"{where}{error}") from None


#: Raises BadMessage with what follows the name of the place.
_Reader: TypeAlias = Callable[[Any], Any]


@cache
def _reader(kind: Any) -> _Reader:
    if is_dataclass(kind):
        return _reader_of_object(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _reader_with(_reader(parts[0]), parts[1:])
    if origin is tuple and parts[-1] is not ...:
        return _reader_of_row(tuple, parts)
    if origin in (tuple, frozenset):
        return _reader_of_list(origin, _reader(parts[0]))
    if hasattr(kind, "_make"):
        return _reader_of_row(kind._make, [*get_type_hints(kind).values()])
    if origin is dict:
        return _read_texts
    if parts:
        inner = _reader(parts[0])
        return lambda value: None if value is None else inner(value)
    return _reader_of_type(kind)


def _reader_of_object(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = {name: _reader(hints[name]) for name in kind.__dataclass_fields__}

    def reader(value: Any) -> Any:
        if type(value) is not dict or value.keys() != readers.keys():
            raise BadMessage(f" does not have the fields {', '.join(readers)}")
        fields, name = {}, ""
        try:
            for name, each in readers.items():
                fields[name] = each(value[name])
        except BadMessage as error:
            raise BadMessage(f".{name}{error}") from None
        return kind(**fields)

    return reader


def _reader_with(inner: _Reader, conditions: tuple[Must, ...]) -> _Reader:
    def reader(value: Any) -> Any:
        found = inner(value)
        for must in conditions:
            if not must.test(found):
                raise BadMessage(f" {must.fault}")
        return found

    return reader


def _reader_of_row(make: Callable[[list[Any]], Any], kinds: Sequence[Any]) -> _Reader:
    readers = [_reader(each) for each in kinds]

    def reader(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise BadMessage(f" has what is no list of {len(readers)} values")
        return make([each(part) for each, part in zip(readers, value, strict=True)])

    return reader


def _reader_of_list(make: Callable[[list[Any]], Any], inner: _Reader) -> _Reader:
    def reader(value: Any) -> Any:
        if type(value) is not list:
            raise BadMessage(" is not a list")
        return make([*map(inner, value)])

    return reader


def _read_texts(value: Any) -> Any:
    if type(value) is not dict or not all(type(each) is str for each in value.values()):
        raise BadMessage(" is not an object of texts")
    return value


def _reader_of_type(kind: type) -> _Reader:
    def reader(value: Any) -> Any:
        # A truth value is no number.
        if type(value) is not kind:
            raise BadMessage(f" is not of the type {kind.__name__}")
        return value

    return reader
