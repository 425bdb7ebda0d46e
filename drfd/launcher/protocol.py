"""What the controller and the launcher say to each other: a closed set, one JSON object a line.

Commands go down, reports come up; an order may be repeated, a report may come twice.
The only module of the launcher that others import.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

Message = dict[str, Any]

SOCKET_NAME = "launcher.sock"

#: Commands that name one attempt.
TERMINATE, KILL, REMOVE = "terminate", "kill", "remove"
LAUNCH, LIST = "launch", "list"


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


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise BadMessage(str(error)) from None
    if not isinstance(message, dict):
        raise BadMessage("not an object")
    return message


def launch_message(order: Order) -> Message:
    return {"cmd": LAUNCH, **asdict(order)}


def read_order(message: Message) -> Order:
    """The order in a `launch` message. Raises BadMessage for a field too few, too many or of the
    wrong type: the launcher runs as root and guesses nothing."""
    body = {key: value for key, value in message.items() if key != "cmd"}
    limits = _record(Limits, _pop(body, "limits", dict), {"cores_milli", "memory_bytes", "pids"})
    raw_disks = limits.pop("disks", ())
    if not isinstance(raw_disks, list | tuple):
        raise BadMessage("disks")
    disks = tuple(
        DiskLimit(**_record(DiskLimit, disk, {"read_bps", "write_bps"}, {"device"}))
        for disk in raw_disks
    )
    argv = _pop(body, "argv", list)
    env, variables = _pop(body, "env", dict), _pop(body, "variables", dict)
    texts = [*argv, *env, *env.values(), *variables, *variables.values()]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise BadMessage("argv and env take text without NUL")
    script, attach = body.pop("script", None), body.pop("attach", None)
    if not all(isinstance(text, str | None) for text in (script, attach)):
        raise BadMessage("script and attach are text or null")
    numbers = {"id", "attempt", "uid", "gid", "umask"}
    names = {"cwd", "stdout", "stderr"}
    plain = {key: _pop(body, key, int) for key in numbers}
    words = {key: _pop(body, key, str) for key in names}
    if body:
        raise BadMessage(f"unknown fields {sorted(body)}")
    return Order(
        **plain,
        **words,
        argv=tuple(argv),
        env=env,
        variables=variables,
        script=script,
        attach=attach,
        limits=Limits(**limits, disks=disks),
    )


def read_attempt(message: Message) -> tuple[int, int]:
    return _pop(message, "id", int), _pop(message, "attempt", int)


def _record(
    cls: type, value: object, numbers: set[str], words: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    if not isinstance(value, dict) or not set(value) <= {field.name for field in fields(cls)}:
        raise BadMessage(f"{cls.__name__} is malformed")
    for keys, kind in ((numbers, int), (words, str)):
        for key in keys:
            if type(value.get(key)) is not kind:
                raise BadMessage(f"{cls.__name__}.{key} is not {kind.__name__}")
    return dict(value)


def _pop(message: Message, key: str, kind: type) -> Any:
    value: Any = message.pop(key, None)
    is_wrong = type(value) is not kind
    if is_wrong or (kind is int and value < 0):
        raise BadMessage(f"{key} is not {kind.__name__}")
    return value
