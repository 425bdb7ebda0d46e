"""The protocol between the controller and the launcher: one JSON object per line.

The controller sends commands, and the launcher reports; either may be repeated. Other packages
import only this module of the launcher, and `settings`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drfd.common.owner import UNSTARTED, Owner
from drfd.common.signals import is_signal
from drfd.linux.own_process import NOBODY
from drfd.payload import unpack
from drfd.payload.environment import may_be, may_hide, may_set, plain, threads_of

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
#: Run the notification command once in the attempt's cgroup, and then remove the attempt. For the
#: attempt UNSTARTED, which has never been launched, a file is made first.
NOTIFY = "notify"
#: Report of the result of the notification for UNSTARTED; its file stays until it is removed.
TOLD = "told"
#: Move a process of the owner's into a running attempt (`drf exec`).
EXEC = "exec"
#: The answer of a launcher without root's rights that may not move a process from where it is.
OUT_OF_REACH = "an ordinary user's launcher cannot move a process of a login session"
#: Set what a running attempt may use at present, between its floor and the most it may be lent.
LEND = "lend"
#: Write the key file of a user (`drfd.payload.signature`).
KEY = "key"
#: Measure the use of GPUs, or stop doing so; and the report of it.
MEASURE_GPUS, GPUS = "measure-gpus", "gpus"

#: The highest number of a job or of an attempt.
MAX_ORDINAL = UNSTARTED

#: The highest number in a message: results computed from a higher one do not fit into 64 bits.
_MOST = 2**63 - 1
#: Largest number of signals in one message; the controller keeps fewer.
_MOST_SIGNALS = 64
#: Largest number of characters in a job's name, of variables in an order, and of characters in a
#: variable's value.
MAX_NAME, _MAX_VARIABLES, _MAX_VALUE = 256, 100, 16384
#: Largest number of instances in a list, and of countable resources with device nodes.
MAX_INSTANCES, _MAX_GRANTS = 1024, 64
#: Commands that come with the descriptor of a sealed payload.
WITH_PAYLOAD = (LAUNCH, NOTIFY)

#: Key in the `mounts` of a hello for the one hierarchy of cgroup v2.
UNIFIED = "cgroup2"

#: Modes in which a job gets its declared cores: as a ceiling, a floor, or CPUs of its own; or as a
#: floor below a ceiling that moves while the job runs.
QUOTA, WEIGHT, PIN = "quota", "weight", "pin"
SHARE = "share"
CORES_MODES = (QUOTA, WEIGHT, PIN, SHARE)

#: Marks a hello of a launcher that cannot pin, and sets quotas instead.
NO_PIN = "by quota, pin cannot be had"
#: Marks a hello of a launcher that can lend no cores: jobs keep to what they declare.
NO_SHARE = "nothing can be lent"


def is_system_account(uid: int, min_uid: int) -> bool:
    """Return whether a uid is root's or a system account's, where those of users begin at
    `min_uid`."""
    # "nobody" has a uid above those of other system accounts.
    return uid < min_uid or uid == NOBODY


class BadMessage(Exception):
    """The other side sent something outside the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimit:
    """Limits on one disk, in bytes per second; 0 is no limit. `device` is "major:minor", or
    EVERY_DISK."""

    device: str
    read_bps: int
    write_bps: int


#: The device in limits that hold for each disk of a node which finds its disks itself. The kernel
#: gives this number to no device.
EVERY_DISK = "0:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """The limits that the kernel is to enforce for one attempt."""

    cores_milli: int
    memory_bytes: int
    pids: int
    disks: tuple[DiskLimit, ...] = ()
    #: One of CORES_MODES.
    cores_by: str = QUOTA


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The most that a running attempt may use of what can be taken back from it."""

    cores_milli: int
    disks: tuple[DiskLimit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an attempt is given of a countable resource that may have device nodes. The launcher
    alone knows which nodes an instance has."""

    name: str
    #: The instances that are the attempt's, and all others that are given out to jobs.
    given: tuple[str, ...]
    others: tuple[str, ...]
    #: Bytes of its own memory on each of its instances; 0 for no limit that the kernel keeps.
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """Everything that root's processes must know to run one attempt: numbers and short texts. Texts
    of the user come separately, as a descriptor of a sealed file that only the job's own process
    reads (`drfd.payload.pack`)."""

    id: int
    attempt: int
    uid: int
    #: The account's name, the journal, and the time of submission: see `core.model.job.Owner`.
    user: str
    journal: str
    submitted_us: int
    #: Preferred primary group; used only if the user is still a member.
    gid: int
    #: The array, 0 for none, and the task's index in it: for the names of output files.
    array_id: int
    array_index: int
    name: str
    #: Number of threads for programs, unless the submitter has set it; 0 sets nothing. Of a job
    #: that may be lent cores it is as many as that may become.
    threads: int
    #: Variables that override the submitter's, and names of the submitter's that are removed: only
    #: names that `drfd.payload.environment` allows.
    variables: dict[str, str]
    hidden: tuple[str, ...]
    limits: AttemptLimits
    #: The user's signature of the payload (`drfd.payload.signature`), or None.
    proof: str | None = None
    #: Whether the owner's notification command runs when the program has started.
    tells_start: bool = False
    #: Whether output files are truncated, because no earlier attempt has started the program.
    empties_output: bool = True
    #: How much the attempt may write to its output files; 0 is no limit.
    output_max_bytes: int = 0
    #: Of each countable resource that may have device nodes.
    grants: tuple[Grant, ...] = ()
    #: The most that it may be lent while it runs, cores only with the mode SHARE; None for nothing.
    #: Its floor is in `limits`.
    most: Ceilings | None = None
    #: The node that it is launched on, by a launcher that has several; "" for the launcher's own.
    node: str = ""
    #: Seconds after which the node itself ends the attempt, should no controller do so before;
    #: 0 for never. Only a launcher that has several nodes looks at it.
    last_resort_s: int = 0

    @property
    def owner(self) -> Owner:
        return Owner(
            uid=self.uid, user=self.user, journal=self.journal, submitted_us=self.submitted_us
        )

    def output_path(self, pattern: str, cwd: str) -> str:
        """Return the path of an output file for this pattern of the user's (`drfd.payload.unpack`);
        `cwd` is the job's directory."""
        return unpack.output_path(
            pattern,
            cwd=cwd,
            job_id=self.id,
            array_id=self.array_id,
            index=self.array_index,
            name=self.name,
            user=self.user,
        )

    @property
    def may_be_lent_cores(self) -> bool:
        """Return whether its number of threads may exceed the cores that it has at a time."""
        if self.most is None or self.limits.cores_by != SHARE:
            return False
        return self.most.cores_milli > self.limits.cores_milli

    @property
    def floor_threads(self) -> int:
        """Return the number of threads that it always has cores for."""
        if not self.may_be_lent_cores:
            return self.threads
        return min(self.threads, threads_of(self.limits.cores_milli))


@dataclass(frozen=True, slots=True)
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


_encode = json.JSONEncoder(separators=(",", ":")).encode


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


def launch_message(order: LaunchOrder) -> Message:
    return {"cmd": LAUNCH, **_fields(order)}


def notify_message(order: LaunchOrder) -> Message:
    return {"cmd": NOTIFY, **_fields(order)}


def exec_message(command: ExecCommand) -> Message:
    return {"cmd": EXEC, **_shallow(command)}


def _fields(order: LaunchOrder) -> Message:
    """Return the fields of an order as JSON, faster than dataclasses.asdict, which copies."""
    limits = _shallow(order.limits) | {"disks": [_shallow(disk) for disk in order.limits.disks]}
    grants = [_shallow(grant) for grant in order.grants]
    variables = {name: plain(text) for name, text in order.variables.items()}
    return _shallow(order) | {
        "variables": variables,
        "limits": limits,
        "grants": grants,
        "most": _most_record(order.most),
    }


def _most_record(most: Ceilings | None) -> Message | None:
    return None if most is None else ceilings_record(most)


def ceilings_record(ceilings: Ceilings) -> Message:
    """Return ceilings as JSON, which `read_ceilings` reads."""
    return {
        "cores_milli": ceilings.cores_milli,
        "disks": [_shallow(disk) for disk in ceilings.disks],
    }


def read_ceilings(value: object) -> Ceilings:
    """Raises BadMessage."""
    return _ceilings("ceilings", value)


def _shallow(value: LaunchOrder | AttemptLimits | DiskLimit | Grant | ExecCommand) -> Message:
    return {name: getattr(value, name) for name in value.__slots__}


def read_order(message: Message) -> LaunchOrder:
    """Read the order in a `launch` or `notify` message. Raises BadMessage for a missing, unknown or
    malformed field: the launcher runs as root and guesses nothing."""
    return LaunchOrder(**_read_fields("order", _body(message), _ORDER))


def checked_order(message: Message) -> LaunchOrder:
    """Read the order in a message that this program has written itself, without checks."""
    limits = message["limits"]
    disks = tuple(DiskLimit(**disk) for disk in limits["disks"])
    grants = tuple(
        Grant(**each | {"given": tuple(each["given"]), "others": tuple(each["others"])})
        for each in message["grants"]
    )
    most = message["most"]
    return LaunchOrder(
        **_body(message)
        | {
            "hidden": tuple(message["hidden"]),
            "limits": AttemptLimits(**limits | {"disks": disks}),
            "grants": grants,
            "most": None if most is None else read_ceilings(most),
        }
    )


@dataclass(frozen=True, slots=True)
class PayloadCommand:
    """A `launch` or `notify`, whose payload comes as a descriptor."""

    name: str
    order: LaunchOrder


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """An `exec`: the order to move a process into a running attempt of its user's."""

    #: The controller's number of this order, which the answer repeats.
    number: int
    id: int
    attempt: int
    #: The process, by its pid and its start in clock ticks since boot (proc_pid_stat(5)).
    pid: int
    start_ticks: int
    #: The user's signature (`drfd.payload.signature.exec_digest`), or None.
    proof: str | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.id, self.attempt


@dataclass(frozen=True, slots=True)
class AttemptCommand:
    """A command of ABOUT_ONE."""

    name: str
    key: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SignalCommand:
    """The order that an attempt be sent `count` signals in all, of which `signals` are the last."""

    key: tuple[int, int]
    count: int
    signals: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LendOrder:
    """The order that a running attempt may use so much from now on. It may be repeated, is answered
    by no report, and has to survive neither the controller nor the launcher."""

    id: int
    attempt: int
    cores_milli: int
    #: New rates; the ceilings of disks that are not named stay.
    disks: tuple[DiskLimit, ...] = ()
    #: The most that it may be lent, where that is not what the launch order said; None where it is.
    most: Ceilings | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.id, self.attempt


@dataclass(frozen=True, slots=True)
class ListCommand:
    """The order to report all attempts."""


@dataclass(frozen=True, slots=True)
class KeyCommand:
    """The order to write a user's key file."""

    uid: int


@dataclass(frozen=True, slots=True)
class MeasureGpusCommand:
    """The order to measure the use of GPUs and report it, or to stop doing so."""

    on: bool


Command = (
    PayloadCommand
    | ExecCommand
    | AttemptCommand
    | SignalCommand
    | LendOrder
    | ListCommand
    | KeyCommand
    | MeasureGpusCommand
)


def read_command(message: Message) -> Command:
    """Read the command in a message of the controller. Raises BadMessage."""
    name = message.get("cmd")
    if name == EXEC:
        return ExecCommand(**_read_fields("command", _body(message), _EXEC))
    if name in WITH_PAYLOAD:
        return PayloadCommand(name, read_order(message))
    if name in ABOUT_ONE:
        return AttemptCommand(name, read_attempt(message))
    if name == SIGNAL:
        return SignalCommand(*read_signals(message))
    if name == LEND:
        return read_lend(message)
    if name == LIST:
        return ListCommand()
    if name == KEY:
        return KeyCommand(**_read_fields("command", _body(message), {"uid": _number}))
    if name == MEASURE_GPUS:
        return MeasureGpusCommand(**_read_fields("command", _body(message), {"on": _flag}))
    raise BadMessage(f"unknown command {name!r}")


def signal_message(key: tuple[int, int], count: int, signals: tuple[int, ...]) -> Message:
    """Return the order that an attempt be sent `count` signals in all; `signals` are the last."""
    return {
        "cmd": SIGNAL,
        "id": key[0],
        "attempt": key[1],
        "count": count,
        "signals": list(signals),
    }


def read_signals(message: Message) -> tuple[tuple[int, int], int, tuple[int, ...]]:
    """Read (attempt, count, signals) of a `signal` message. Raises BadMessage."""
    fields = _read_fields("command", _body(message), _SIGNAL)
    return (fields["id"], fields["attempt"]), fields["count"], fields["signals"]


def lend_message(order: LendOrder) -> Message:
    return {
        "cmd": LEND,
        "id": order.id,
        "attempt": order.attempt,
        "cores_milli": order.cores_milli,
        "disks": [_shallow(disk) for disk in order.disks],
        "most": _most_record(order.most),
    }


def read_lend(message: Message) -> LendOrder:
    """Raises BadMessage."""
    return LendOrder(**_read_fields("command", _body(message), _LEND))


def read_attempt(message: Message) -> tuple[int, int]:
    """Read (job id, attempt) of a command about one attempt. Raises BadMessage."""
    fields = _read_fields("command", _body(message), {"id": _ordinal, "attempt": _ordinal})
    return fields["id"], fields["attempt"]


def _body(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "cmd"}


def _read_fields(
    what: str, value: object, readers: Mapping[str, Callable[[str, Any], Any]]
) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != readers.keys():
        raise BadMessage(f"{what} does not have the fields {', '.join(readers)}")
    try:
        return {key: read(key, value[key]) for key, read in readers.items()}
    except BadMessage as error:
        raise BadMessage(f"{what}.{error}") from None


def _number(what: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise BadMessage(f"{what} is not a natural number")
    if value > _MOST:
        raise BadMessage(f"{what} is greater than the kernel can count")
    return value


def _ordinal(what: str, value: object) -> int:
    """Read a job or attempt number, within the range that names of files and cgroups can have."""
    number = _number(what, value)
    if not 1 <= number <= MAX_ORDINAL:
        raise BadMessage(f"{what} is not between 1 and {MAX_ORDINAL}")
    return number


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise BadMessage(f"{what} is not text without NUL")
    return value


def _name(what: str, value: object) -> str:
    name = _text(what, value)
    if len(name) > MAX_NAME:
        raise BadMessage(f"{what} is longer than {MAX_NAME} signs")
    return name


def _flag(what: str, value: object) -> bool:
    if type(value) is not bool:
        raise BadMessage(f"{what} is not true or false")
    return value


def _variables(what: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _MAX_VARIABLES:
        raise BadMessage(f"{what} is not an object of {_MAX_VARIABLES} variables at most")
    for name, text in value.items():
        if not may_set(name):
            raise BadMessage(f"{what} has the name of no variable of drfd's")
        if len(_text(what, text)) > _MAX_VALUE:
            raise BadMessage(f"{what} has a value of more than {_MAX_VALUE} signs")
        if not may_be(name, text):
            raise BadMessage(f"{what} has a value with signs of a shell's, or no number")
    return dict(value)


def _hidden(what: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(name, str) and may_hide(name) for name in value
    ):
        raise BadMessage(f"{what} is not a list of variables that drfd takes out")
    return tuple(value)


def _user(what: str, value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 256 or not value.isprintable():
        raise BadMessage(f"{what} is not the name of an account")
    return value


def _matching(pattern: str, fault: str) -> Callable[[str, object], str]:
    matches = re.compile(pattern).fullmatch

    def read(what: str, value: object) -> str:
        if not isinstance(value, str) or not matches(value):
            raise BadMessage(f"{what} is {fault}")
        return value

    return read


_signature = _matching("[0-9a-f]{64}", "no signature")
_journal = _matching("[0-9a-f]{32}", "not the id of a journal")
_device = _matching("[0-9]{1,9}:[0-9]{1,9}", "not major:minor")
_node = _matching("(?:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?", "not the name of a node")


def _proof(what: str, value: object) -> str | None:
    return None if value is None else _signature(what, value)


def _cores_mode(what: str, value: object) -> str:
    if value not in CORES_MODES:
        raise BadMessage(f"{what} is not one of {', '.join(CORES_MODES)}")
    return str(value)


def _limits(what: str, value: object) -> AttemptLimits:
    return AttemptLimits(**_read_fields(what, value, _LIMITS))


def _disks(what: str, value: object) -> tuple[DiskLimit, ...]:
    if not isinstance(value, list):
        raise BadMessage(f"{what} is not a list")
    return tuple(DiskLimit(**_read_fields(what, disk, _DISK)) for disk in value)


def _ceilings(what: str, value: object) -> Ceilings:
    return Ceilings(**_read_fields(what, value, _CEILINGS))


def _most(what: str, value: object) -> Ceilings | None:
    return None if value is None else _ceilings(what, value)


def _instances(what: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_INSTANCES:
        raise BadMessage(f"{what} is not a list of {MAX_INSTANCES} instances at most")
    return tuple(_name(what, each) for each in value)


def _grants(what: str, value: object) -> tuple[Grant, ...]:
    if not isinstance(value, list) or len(value) > _MAX_GRANTS:
        raise BadMessage(f"{what} is not a list of {_MAX_GRANTS} resources at most")
    return tuple(Grant(**_read_fields(what, each, _GRANT)) for each in value)


def _signals(what: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(each) is not int for each in value):
        raise BadMessage(f"{what} is not a list of numbers")
    if len(value) > _MOST_SIGNALS:
        raise BadMessage(f"{what} holds more than {_MOST_SIGNALS} signals")
    if not all(map(is_signal, value)):
        raise BadMessage(f"{what} holds what is no signal")
    return tuple(value)


_DISK = {"device": _device, "read_bps": _number, "write_bps": _number}
_GRANT: dict[str, Callable[[str, Any], Any]] = {
    "name": _name,
    "given": _instances,
    "others": _instances,
    "memory_bytes": _number,
}
_SIGNAL: dict[str, Callable[[str, Any], Any]] = {
    "id": _ordinal,
    "attempt": _ordinal,
    "count": _number,
    "signals": _signals,
}
_LEND: dict[str, Callable[[str, Any], Any]] = {
    "id": _ordinal,
    "attempt": _ordinal,
    "cores_milli": _number,
    "disks": _disks,
    "most": _most,
}
_CEILINGS: dict[str, Callable[[str, Any], Any]] = {"cores_milli": _number, "disks": _disks}
_EXEC: dict[str, Callable[[str, Any], Any]] = {
    "number": _number,
    "id": _ordinal,
    "attempt": _ordinal,
    "pid": _number,
    "start_ticks": _number,
    "proof": _proof,
}
_LIMITS: dict[str, Callable[[str, Any], Any]] = {
    "cores_milli": _number,
    "memory_bytes": _number,
    "pids": _number,
    "disks": _disks,
    "cores_by": _cores_mode,
}
_ORDER: dict[str, Callable[[str, Any], Any]] = {
    "id": _ordinal,
    "attempt": _ordinal,
    "uid": _number,
    "user": _user,
    "journal": _journal,
    "submitted_us": _number,
    "gid": _number,
    "array_id": _number,
    "array_index": _number,
    "name": _name,
    "threads": _number,
    "variables": _variables,
    "hidden": _hidden,
    "limits": _limits,
    "proof": _proof,
    "tells_start": _flag,
    "empties_output": _flag,
    "output_max_bytes": _number,
    "grants": _grants,
    "most": _most,
    "node": _node,
    "last_resort_s": _number,
}
