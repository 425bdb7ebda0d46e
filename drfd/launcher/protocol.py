"""What the controller and the launcher say to each other: a closed set, one JSON object a line.

Commands go down, reports come up; an order may be repeated, a report may come twice.
The only module of the launcher that others import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from signal import NSIG
from typing import Any

Message = dict[str, Any]

SOCKET_NAME = "launcher.sock"

#: Commands that name one attempt.
TERMINATE, KILL, REMOVE = "terminate", "kill", "remove"
FREEZE, THAW = "freeze", "thaw"
LAUNCH, LIST, SIGNAL = "launch", "list", "signal"
#: Run this order in what is left of its attempt, once, and then remove the attempt.
NOTIFY = "notify"

#: The highest number of a job or of an attempt.
MAX_ORDINAL = 10**18 - 1

#: Under this name, the `mounts` of a hello give the one hierarchy of cgroup v2.
UNIFIED = "cgroup2"

#: How declared cores are given to a job: as a ceiling, as a floor, or as CPUs of its own.
QUOTA, WEIGHT, PIN = "quota", "weight", "pin"
CORES_MODES = (QUOTA, WEIGHT, PIN)

#: In what a hello says of pinning: it cannot be had, and quotas are set in its place.
NO_PIN = "by quota, pin cannot be had"


class BadMessage(Exception):
    """The other side sent something outside the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimit:
    """Bytes per second on one disk, `device` being "major:minor"; 0: no limit declared."""

    device: str
    read_bps: int
    write_bps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the kernel is to enforce for one attempt."""

    cores_milli: int
    memory_bytes: int
    pids: int
    disks: tuple[DiskLimit, ...] = ()
    #: One of CORES_MODES.
    cores_by: str = QUOTA


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All that is needed to run one attempt. argv, env and paths are opaque to the launcher."""

    id: int
    attempt: int
    uid: int
    #: Preferred primary group; taken only if the user is still a member.
    gid: int
    umask: int
    cwd: str
    argv: tuple[str, ...]
    env: dict[str, str]
    #: drfd's own variables, which win over the user's.
    variables: dict[str, str]
    script: str | None
    stdout: str
    stderr: str
    attach: str | None
    limits: Limits
    #: A command to run beside the program when that has started; empty: none.
    on_start: tuple[str, ...] = ()


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


def launch_message(order: Order) -> Message:
    return {"cmd": LAUNCH, **_fields(order)}


def notify_message(order: Order) -> Message:
    return {"cmd": NOTIFY, **_fields(order)}


def _fields(order: Order) -> Message:
    """As dataclasses.asdict, without its copies of all that is in there."""
    limits = _shallow(order.limits) | {"disks": [_shallow(disk) for disk in order.limits.disks]}
    return _shallow(order) | {"limits": limits}


def _shallow(value: Order | Limits | DiskLimit) -> Message:
    return {name: getattr(value, name) for name in value.__slots__}


def read_order(message: Message) -> Order:
    """The order in a `launch` or `notify` message. Raises BadMessage for a field too few, too many
    or of the wrong kind: the launcher runs as root and guesses nothing."""
    body = {key: value for key, value in message.items() if key != "cmd"}
    return Order(**_read_fields("order", body, _ORDER))


def checked_order(message: Message) -> Order:
    """The same of a message that has been read so before."""
    limits = message["limits"]
    disks = tuple(DiskLimit(**disk) for disk in limits["disks"])
    return Order(
        **{name: value for name, value in message.items() if name != "cmd"}
        | {"argv": tuple(message["argv"]), "on_start": tuple(message["on_start"])}
        | {"limits": Limits(**limits | {"disks": disks})}
    )


def signal_message(key: tuple[int, int], count: int, signals: tuple[int, ...]) -> Message:
    """The attempt is to have been sent `count` signals, of which `signals` are the last."""
    body = {"id": key[0], "attempt": key[1], "count": count, "signals": list(signals)}
    return {"cmd": SIGNAL, **body}


def read_signals(message: Message) -> tuple[tuple[int, int], int, tuple[int, ...]]:
    """Attempt, count and signals of a `signal` message."""
    body = {key: value for key, value in message.items() if key != "cmd"}
    fields = _read_fields("command", body, _SIGNAL)
    return (fields["id"], fields["attempt"]), fields["count"], fields["signals"]


def read_attempt(message: Message) -> tuple[int, int]:
    """(job id, attempt) of a command about one attempt."""
    fields = _read_fields("command", message, {"id": _ordinal, "attempt": _ordinal})
    return fields["id"], fields["attempt"]


def _read_fields(
    what: str, value: object, readers: Mapping[str, Callable[[str, Any], Any]]
) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(readers):
        raise BadMessage(f"{what} does not have the fields {', '.join(readers)}")
    return {key: read(f"{what}.{key}", value[key]) for key, read in readers.items()}


def _number(what: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise BadMessage(f"{what} is not a natural number")
    return value


def _ordinal(what: str, value: object) -> int:
    """A number that an attempt's file and cgroup can be called by, and found again."""
    number = _number(what, value)
    if not 1 <= number <= MAX_ORDINAL:
        raise BadMessage(f"{what} is not between 1 and {MAX_ORDINAL}")
    return number


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise BadMessage(f"{what} is not text without NUL")
    return value


def _path_or_none(what: str, value: object) -> str | None:
    return None if value is None else _text(what, value)


def _script(what: str, value: object) -> str | None:
    """Not an argument but a file's content: it may hold anything."""
    if not isinstance(value, str | None):
        raise BadMessage(f"{what} is not text or null")
    return value


def _argv(what: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise BadMessage(f"{what} is not a list with a program")
    return tuple(_text(what, item) for item in value)


def _words(what: str, value: object) -> tuple[str, ...]:
    return () if value == [] else _argv(what, value)


def _variables(what: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadMessage(f"{what} is not an object")
    return {_text(what, name): _text(what, text) for name, text in value.items()}


def _device(what: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}:[0-9]{1,9}", value):
        raise BadMessage(f"{what} is not major:minor")
    return value


def _cores_mode(what: str, value: object) -> str:
    if value not in CORES_MODES:
        raise BadMessage(f"{what} is not one of {', '.join(CORES_MODES)}")
    return str(value)


def _limits(what: str, value: object) -> Limits:
    return Limits(**_read_fields(what, value, _LIMITS))


def _disks(what: str, value: object) -> tuple[DiskLimit, ...]:
    if not isinstance(value, list):
        raise BadMessage(f"{what} is not a list")
    return tuple(DiskLimit(**_read_fields(what, disk, _DISK)) for disk in value)


def _signals(what: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(each) is not int for each in value):
        raise BadMessage(f"{what} is not a list of numbers")
    if not all(1 <= each < NSIG for each in value):
        raise BadMessage(f"{what} holds what is no signal")
    return tuple(value)


_DISK = {"device": _device, "read_bps": _number, "write_bps": _number}
_SIGNAL: dict[str, Callable[[str, Any], Any]] = {
    "id": _ordinal,
    "attempt": _ordinal,
    "count": _number,
    "signals": _signals,
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
    "gid": _number,
    "umask": _number,
    "cwd": _text,
    "argv": _argv,
    "env": _variables,
    "variables": _variables,
    "script": _script,
    "stdout": _text,
    "stderr": _text,
    "attach": _path_or_none,
    "limits": _limits,
    "on_start": _words,
}
