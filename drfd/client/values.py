"""Values that the Python client returns: jobs, shares, snapshots, and use over time.

Sizes are in bytes, rates in bytes per second, times of the clock in Unix seconds. `raw` is the JSON
that the daemon sent, as `drf … --json` prints it; `drfd.protocol.replies` declares its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

#: A part of a reply.
_View = Mapping[str, Any]


class Value:
    """A value whose fields are the keys of a reply, with their names."""

    __slots__ = ()

    @classmethod
    def of(cls, view: _View, **others: object) -> Self:
        """Return the value of a part of a reply. `others` are fields that differ from the key; a
        key that was not sent has the field's default."""
        found: dict[str, object] = {"raw": view, **others}
        kind: Any = cls
        kinds = _kinds(kind)
        for name in kinds.keys() & view.keys() - others.keys():
            found[name] = _taken(kinds[name], view[name])
        return cls(**{name: found[name] for name in kinds if name in found})


@cache
def _kinds(kind: Any) -> dict[str, object]:
    """Return the types of the fields of a value."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _taken(kind: Any, value: Any) -> Any:
    """Return a value of JSON as one of this type."""
    given = [each for each in get_args(kind) if each is not NoneType]
    if value is None:
        return None
    if get_origin(kind) is tuple:
        return tuple(_taken(given[0], each) for each in value)
    if NoneType in get_args(kind):
        return _taken(given[0], value) if len(given) == 1 else value
    return kind.of(value) if isinstance(kind, type) and issubclass(kind, Value) else value


@dataclass(frozen=True, slots=True)
class Reason(Value):
    """Why a job waits, or how it ended: a code of a closed list, and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Amounts(Value):
    """An amount of each resource: requested, allocated or free."""

    cores: float
    memory: int
    read: int
    write: int
    #: Of a demand, the most cores that the job may use while others leave them idle, or None
    #: without a range.
    cores_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo(Value):
    """A job at the time of the reply.

    It may also stand for `tasks` tasks of an array that are all alike, or for an array that has
    ended. Fields that only the owner may see are None for other users, and in snapshots.
    """

    id: int
    #: The name in lists: `42`, `42_7` for a task of an array, or in snapshots `42_[8-99]`.
    label: str
    name: str
    user: str
    pool: str
    state: str
    #: Why the job waits, or None if it does not.
    reason: Reason | None
    #: How the job ended, in snapshots without a sentence; None if it has not.
    outcome: Reason | None
    #: An array as a whole has no exit code, attempt, start or end of its own.
    exit_code: int | None = None
    signal: int | None = None
    attempt: int = 0
    demand: Amounts
    #: In seconds, or None for no limit.
    time_limit_s: int | None
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    argv: tuple[str, ...] | None = None
    cwd: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    array_id: int | None
    array_index: int | None
    tasks: int = 1
    #: In snapshots; None also if the job has only just started.
    now: Use | None = None
    raw: _View = field(repr=False, compare=False)

    @property
    def has_ended(self) -> bool:
        return self.outcome is not None

    @property
    def is_completed(self) -> bool:
        return self.state == "COMPLETED"

    @classmethod
    def of(cls, view: _View, **others: object) -> Self:
        index, outcome = view["array_index"], view["outcome"]
        label = str(view["id"]) if index is None else f"{view['array_id']}_{index}"
        if isinstance(outcome, str):
            others["outcome"] = Reason(outcome, "")
        return super(JobInfo, cls).of(view, label=view.get("label", label), **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Value):
    """A pool or a user in the fair-share tree."""

    #: Names from the root on, such as `root.lab.alice`.
    path: str
    #: The promised part of the machine, and the part in use of the dominant resource: 0 to 1.
    entitlement: float
    dominant_share: float
    #: The resource of which the node has the largest part, or None if it has nothing.
    dominant_resource: str | None
    #: `dominant_share` / `entitlement`; the node with the least is served next.
    satisfaction: float
    usage: Amounts
    running: int
    pending: int


@dataclass(frozen=True, slots=True)
class Shares(Value):
    """The fair-share table."""

    capacity: Amounts
    free: Amounts
    #: By path.
    nodes: dict[str, Node]

    @classmethod
    def of(cls, view: _View, **others: object) -> Self:
        nodes = {each["path"]: Node.of(each) for each in view["nodes"]}
        return super(Shares, cls).of(view, nodes=nodes, **others)


@dataclass(frozen=True, slots=True)
class Use(Value):
    """Resource use at present; None where it is not known."""

    cores: float | None
    memory: int | None
    read: float | None
    write: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Value):
    """The state of the whole service at one moment."""

    #: Unix time.
    at: float
    host: str
    draining: bool
    shares: Shares
    #: Jobs by state; each task of an array counts.
    counts: Mapping[str, int]
    running: tuple[JobInfo, ...]
    #: The first rows in the order of their expected start; held jobs come last.
    pending: tuple[JobInfo, ...]
    #: The number of pending rows left out, and the caller's own ones among them.
    pending_more: int
    mine: tuple[JobInfo, ...]
    #: The jobs that ended last, newest first.
    ended: tuple[JobInfo, ...]
    raw: _View = field(repr=False, compare=False)

    @classmethod
    def of(cls, view: _View, **others: object) -> Self:
        return super(Snapshot, cls).of(view, shares=Shares.of(view), **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePoints(Value):
    """Use over time, oldest point first: means of the interval that ends at each of `at`."""

    #: Unix times.
    at: tuple[float, ...]
    cores: tuple[float | None, ...]
    memory: tuple[int | None, ...]
    read: tuple[int | None, ...]
    write: tuple[int | None, ...]
    #: Bytes on all GPUs, and utilisation in per cent of one; empty for a job without a GPU.
    gpu_memory: tuple[int | None, ...] = ()
    gpu_utilisation: tuple[int | None, ...] = ()
    #: The part of `cores` above the lower end; empty for a job without a range of cores.
    cores_beyond: tuple[float | None, ...] = ()
    demand: Amounts

    @classmethod
    def of(cls, view: _View, **others: object) -> Self:
        return super(UsagePoints, cls).of(view | view["usage"], **others)
