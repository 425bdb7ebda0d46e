"""The protocol between the controller and the launcher: one JSON object per line.

The controller sends orders, and the launcher reports; either may be repeated. Other packages import
only this module of the launcher, `settings`, and the kinds of shortages and of GPU readings.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from drfd.common.owner import Owner
from drfd.common.signals import is_signal
from drfd.linux.device_nodes import BLOCK, CHARACTER, DeviceNode
from drfd.linux.own_process import NOBODY
from drfd.payload.environment import may_be, may_hide, may_set, threads_of
from drfd.payload.signs import Signs, output_signs

Message = dict[str, Any]

#: The version of the protocol, which a launcher's hello names. A controller of another version
#: sends it no orders.
VERSION = 1
SOCKET_NAME = "launcher.sock"
#: The file with the secret of signatures, in the launcher's directory.
SECRET_NAME = "secret"  # noqa: S105

#: Reports that answer an `ExecOrder` and a `MeasureGpusOrder`.
EXEC, GPUS = "exec", "gpus"
#: The answer of a launcher without root's rights that may not move a process from where it is.
OUT_OF_REACH = "an ordinary user's launcher cannot move a process of a login session"

#: Reasons why the end of an attempt is not known: the machine was shut down in order, or went down
#: otherwise; the unit of all jobs was stopped, but not the machine; or only the runner is gone.
SHUTDOWN, CRASH = "MACHINE_SHUTDOWN", "MACHINE_CRASH"
STOPPED, RUNNER_GONE = "JOBS_STOPPED", "RUNNER_KILLED"
#: Seconds that a notification may take in all.
NOTICE_S = 30.0
#: What ENOSPC means where a cgroup is made.
NO_CGROUP = "the kernel has no room for another cgroup (65535 memory cgroups at most)"

#: The highest number of a job or of an attempt, within the range that names of files and cgroups
#: can have.
MAX_ORDINAL = 10**18 - 1

#: Key in the `mounts` of a hello for the one hierarchy of cgroup v2.
UNIFIED = "cgroup2"

#: Modes in which a job gets its declared cores: as a ceiling, a floor, or CPUs of its own.
QUOTA, WEIGHT, PIN = "quota", "weight", "pin"
CORES_MODES = (QUOTA, WEIGHT, PIN)
CoresMode: TypeAlias = Annotated[str, Meta(pattern=rf"\A({'|'.join(CORES_MODES)})\Z")]

#: Marks a hello of a launcher that cannot pin, and sets quotas instead.
NO_PIN = "by quota, pin cannot be had"


def is_system_account(uid: int, min_uid: int) -> bool:
    """Return whether a uid is root's or a system account's, where those of users begin at
    `min_uid`."""
    # "nobody" has a uid above those of other system accounts.
    return uid < min_uid or uid == NOBODY


class BadMessage(Exception):
    """The other side sent something outside the protocol."""


#: Largest number of characters in a job's name and in a variable's value.
MAX_NAME, _MAX_VALUE = 256, 16384
#: Largest number of instances of a countable resource.
MAX_INSTANCES = 1024
#: Numbers that devices can have: 12 bits and 20 bits (include/linux/kdev_t.h).
_MAJORS, _MINORS = range(1 << 12), range(1 << 20)

#: A higher number gives results that do not fit into 64 bits.
Number: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
#: A higher one is an OverflowError of Python's, and no error of a call.
Pid: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 31)]
Ordinal: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_ORDINAL)]
Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME, pattern=r"\A[^\0]*\Z")]
User: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Proof: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Journal: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Device: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9]{1,9}:[0-9]{1,9}\Z")]
Node: TypeAlias = Annotated[str, Meta(pattern=r"\A([A-Za-z0-9][A-Za-z0-9._-]{0,63})?\Z")]
HiddenNodes: TypeAlias = Annotated[frozenset[DeviceNode], Meta(max_length=8192)]
#: A cgroup of attempts, or of such groups, and the names of all that an attempt is in. The path of
#: them must leave room for the kernel's own files in PATH_MAX.
_GROUP, _MOST_PATH = "of-[A-Za-z0-9_.~%-]{1,200}", 3700
Groups: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(pattern=rf"\A{_GROUP}\Z")], ...], Meta(max_length=32)
]
GroupPath: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A{_GROUP}(/{_GROUP}){{0,31}}\Z", max_length=_MOST_PATH)
]
NumaNodes: TypeAlias = Annotated[frozenset[Number], Meta(max_length=8192)]
Pci: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f:.]{1,32}\Z")]
GpuMemory: TypeAlias = Annotated[tuple[tuple[Pci, Number], ...], Meta(max_length=MAX_INSTANCES)]
GresName: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,63}\Z")]
Gres: TypeAlias = Annotated[tuple[tuple[GresName, Number], ...], Meta(max_length=64)]
Signals: TypeAlias = Annotated[tuple[int, ...], Meta(max_length=64)]
Variables: TypeAlias = Annotated[
    dict[str, Annotated[str, Meta(max_length=_MAX_VALUE)]], Meta(max_length=100)
]


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an order. The launcher runs as root and guesses nothing: it refuses an order with a
    field that it does not know, or a value that an annotation does not allow."""


class DiskLimit(Part, frozen=True, kw_only=True):
    """Limits on one disk, in bytes per second; 0 is no limit. `device` is "major:minor", or
    EVERY_DISK."""

    device: Device
    read_bps: Number
    write_bps: Number


#: The device in limits that hold for each disk of a node which finds its disks itself. The kernel
#: gives this number to no device.
EVERY_DISK = "0:0"


class AttemptLimits(Part, frozen=True, kw_only=True):
    """The limits that the kernel is to enforce for one attempt."""

    cores_milli: Number
    #: The upper end of a range of cores, or 0 for none.
    cores_max_milli: Number = 0
    memory_bytes: Number
    pids: Number
    disks: tuple[DiskLimit, ...] = ()
    cores_by: CoresMode = QUOTA
    #: The groups that its cgroup is in, by the fair-share tree, the outermost first.
    groups: Groups = ()

    @property
    def quota_milli(self) -> int:
        """The most cores that the attempt may use at any time, unless it has no quota."""
        return self.cores_max_milli or self.cores_milli


class Devices(Part, frozen=True):
    """What the controller has decided of the machine's devices for an attempt. It takes away from
    the attempt's own processes, and gives nothing that the node's own rights refuse."""

    #: Device nodes that no process of the attempt may open or make, nor one of root's.
    hidden: HiddenNodes = frozenset()
    #: NUMA nodes of its devices, which its CPUs should be of.
    numa_nodes: NumaNodes = frozenset()
    #: PCI addresses of its GPUs, each with the bytes of the GPU's memory that it may use.
    memory: GpuMemory = ()


class Order(Part, frozen=True, tag_field="cmd"):
    def fault(self) -> str:
        """Return what is wrong with values that are of their types, or nothing."""
        return ""


class AttemptOrder(Order, frozen=True, kw_only=True):
    """An order about one attempt."""

    id: Ordinal
    attempt: Ordinal

    @property
    def key(self) -> tuple[int, int]:
        return self.id, self.attempt


Control: TypeAlias = Literal["terminate", "kill", "freeze", "thaw", "remove"]


class ControlOrder(AttemptOrder, frozen=True, tag="control", kw_only=True):
    """The order to do something to an attempt that needs no facts."""

    do: Control


class LaunchOrder(AttemptOrder, frozen=True, tag="launch", kw_only=True):
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
    hidden: tuple[str, ...]
    limits: AttemptLimits
    #: Whether it is the command that notifies of the job's end that is to run, once, in the place
    #: of the job, which is removed before.
    is_notice: bool = False
    #: The user's signature of the payload (`drfd.payload.signature`), or None.
    proof: Proof | None = None
    #: Whether the owner's notification command runs when the program has started.
    tells_start: bool = False
    #: Whether output files are truncated, because no earlier attempt has started the program.
    empties_output: bool = True
    #: How much the attempt may write to its output files; 0 is no limit.
    output_max_bytes: Number = 0
    devices: Devices = Devices()
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

    def fault(self) -> str:
        if not self.user.isprintable():
            return "user is no account's name"
        for name, value in self.variables.items():
            if not may_set(name):
                return f"{name!r:.99} is no variable of drfd's"
            if not may_be(name, value):
                return f"variables: the value of {name} is no number, or has signs of a shell's"
        if len("/".join(self.limits.groups)) > _MOST_PATH:
            return "limits.groups has too long a path"
        if not all(map(may_hide, self.hidden)):
            return "hidden has one that drfd does not hide"
        if not all(map(_is_device, self.devices.hidden)):
            return "devices.hidden has what is no device"
        return ""


def _is_device(node: DeviceNode) -> bool:
    return node.kind in (BLOCK, CHARACTER) and node.major in _MAJORS and node.minor in _MINORS


@dataclass(slots=True, eq=False)
class Assignment:
    """An order with the descriptor of its payload. The holder of an assignment closes it."""

    order: LaunchOrder
    #: Descriptor of a sealed file (`drfd.payload.pack`). Root's processes examine only its seals,
    #: its size and its digest.
    payload_fd: int
    #: Whether its user has been found to have signed it.
    is_signed: bool = False

    def close(self) -> None:
        os.close(self.payload_fd)


class ExecOrder(AttemptOrder, frozen=True, tag="exec", kw_only=True):
    """The order to move a process into a running attempt of its user's."""

    #: The controller's number of this order, which the answer repeats.
    number: Number
    #: The process, by its pid and its start in clock ticks since boot (proc_pid_stat(5)).
    pid: Pid
    start_ticks: Number
    #: The user's signature (`drfd.payload.signature.exec_digest`), or None.
    proof: Proof | None = None


class SignalOrder(AttemptOrder, frozen=True, tag="signal", kw_only=True):
    """The order that an attempt be sent `count` signals in all, of which `signals` are the last."""

    count: Number
    signals: Signals

    def fault(self) -> str:
        return "" if all(map(is_signal, self.signals)) else "signals has what is none"


class WeightsOrder(Order, frozen=True, tag="weights"):
    """The order to divide cores among groups in these proportions, in thousandths of a core. Groups
    that are not named keep their parts, and those that there will be get them. It may be repeated,
    is answered by no report, and has to survive neither the controller nor the launcher."""

    cores_milli: tuple[tuple[GroupPath, Number], ...]


class RemoveFilesOrder(Order, frozen=True, tag="remove-files"):
    """The order to remove the files of ended attempts, whose ends were reported with `gone`. It is
    answered by no report."""

    attempts: tuple[tuple[Ordinal, Ordinal], ...]


class ListOrder(Order, frozen=True, tag="list"):
    """The order to report all attempts."""


class KeyOrder(Order, frozen=True, tag="key"):
    """The order to write a user's key file (`drfd.payload.signature`)."""

    uid: Number


class MeasureGpusOrder(Order, frozen=True, tag="measure-gpus"):
    """The order to measure the use of GPUs and report it, or to stop doing so."""

    on: bool


class Hello(Struct, frozen=True, tag_field="report", tag="hello", kw_only=True):
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
    mounts: dict[str, str] = {}
    warnings: list[str] = []
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
    limits_gpus: list[str] = []


_AnyOrder: TypeAlias = (
    LaunchOrder | ControlOrder | ExecOrder | SignalOrder | WeightsOrder | RemoveFilesOrder
    | ListOrder | KeyOrder | MeasureGpusOrder
)  # fmt: skip
_encode = msgspec.json.Encoder().encode
_decode: msgspec.json.Decoder[_AnyOrder] = msgspec.json.Decoder(_AnyOrder)


def encode(message: Message | Struct) -> bytes:
    """Return the line of an order or a report."""
    return _encode(message) + b"\n"


def read_order(line: bytes) -> Order:
    """Return the order of the controller in this line. Raises BadMessage for what is none."""
    try:
        order = _decode.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # It may repeat what was sent.
        raise BadMessage(f"{error!s:.200}") from None
    if fault := order.fault():
        raise BadMessage(fault)
    return order


def attempt_report(kind: str, key: tuple[int, int], **facts: object) -> Message:
    """Return the message that reports on an attempt, of the present time unless the facts have
    another."""
    now = {"at_s": time.time(), "mono_s": time.monotonic()}
    return {"report": kind, "id": key[0], "attempt": key[1], **now, **facts}
