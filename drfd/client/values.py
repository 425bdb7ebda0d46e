"""Values that the Python client returns: jobs, shares, snapshots, and use over time.

Sizes are in bytes, rates in bytes per second, times of the clock in Unix seconds. `raw` is the JSON
that the daemon sent, as `drf … --json` prints it; `drfd.protocol.replies` declares its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from drfd.protocol.replies import (
        CodeText,
        CommonSnapshot,
        EndedArrayView,
        JobView,
        NowView,
        ResourcesView,
        SharesReply,
        SnapshotRow,
        SnapshotView,
        UsageReply,
    )

T = TypeVar("T", bound="DataclassInstance")


def _read(kind: type[T], view: Mapping[str, Any], **others: object) -> T:
    """Return a value whose fields are the keys of `view` with the same names. `others` are fields
    that differ from the key, or have none."""
    names = (each.name for each in fields(kind))
    return kind(**{name: others[name] if name in others else view[name] for name in names})


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits, or how it ended: a code of a closed list, and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Amounts:
    """An amount of each resource: requested, allocated or free."""

    cores: float
    memory: int
    read: int
    write: int
    #: Of a demand, the most cores that may be lent to the job, or None without a range.
    cores_max: float | None = None

    @classmethod
    def of(cls, view: ResourcesView) -> Amounts:
        return _read(cls, view, cores_max=view.get("cores_max"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job at the time of the reply.

    It may also stand for `tasks` tasks of an array that are all alike, or for an array that has
    ended. Fields that only the owner may see are None for other users.
    """

    id: int
    #: The name in lists: `42`, or `42_7` for a task of an array.
    label: str
    name: str
    user: str
    pool: str
    state: str
    #: Why the job waits, or None if it does not.
    reason: Reason | None
    #: How the job ended, or None if it has not.
    outcome: Reason | None
    exit_code: int | None
    signal: int | None
    attempt: int
    demand: Amounts
    #: In seconds, or None for no limit.
    time_limit_s: int | None
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    argv: tuple[str, ...] | None
    cwd: str | None
    stdout: str | None
    stderr: str | None
    array_id: int | None
    array_index: int | None
    tasks: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def has_ended(self) -> bool:
        return self.outcome is not None

    @property
    def is_completed(self) -> bool:
        return self.state == "COMPLETED"

    @classmethod
    def of(cls, view: JobView | EndedArrayView) -> JobInfo:
        index, argv = view["array_index"], view["argv"]
        # An array as a whole has no attempt, exit code or end of its own.
        raw: Mapping[str, Any] = view
        own = ("exit_code", "signal", "started_at", "ended_at")
        return _read(
            cls,
            view,
            label=str(view["id"]) if index is None else f"{view['array_id']}_{index}",
            reason=_reason(view["reason"]),
            outcome=_reason(view["outcome"]),
            demand=Amounts.of(view["demand"]),
            argv=None if argv is None else tuple(argv),
            attempt=raw.get("attempt", 0),
            tasks=raw.get("tasks", 1),
            raw=raw,
            **{name: raw.get(name) for name in own},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
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
class Shares:
    """The fair-share table."""

    capacity: Amounts
    free: Amounts
    #: By path.
    nodes: dict[str, Node]

    @classmethod
    def of(cls, view: SharesReply | CommonSnapshot) -> Shares:
        nodes = {
            each["path"]: _read(Node, each, usage=Amounts.of(each["usage"]))
            for each in view["nodes"]
        }
        return cls(Amounts.of(view["capacity"]), Amounts.of(view["free"]), nodes)


@dataclass(frozen=True, slots=True)
class Use:
    """Resource use at present; None where it is not known."""

    cores: float | None
    memory: int | None
    read: float | None
    write: float | None

    @classmethod
    def of(cls, view: NowView) -> Use:
        return _read(cls, view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job, or pending tasks of an array that are all alike, as everybody may see it."""

    id: int
    #: `42`, `42_7`, or `42_[8-99]`.
    label: str
    tasks: int
    name: str
    user: str
    pool: str
    state: str
    reason: Reason | None
    demand: Amounts
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    #: None if the job does not run, or has only just started.
    now: Use | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, view: SnapshotRow) -> Row:
        return _read(
            cls,
            view,
            reason=_reason(view["reason"]),
            demand=Amounts.of(view["demand"]),
            now=None if view["now"] is None else Use.of(view["now"]),
            raw=view,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of the whole service at one moment."""

    #: Unix time.
    at: float
    host: str
    draining: bool
    shares: Shares
    #: Jobs by state; each task of an array counts.
    counts: Mapping[str, int]
    running: tuple[Row, ...]
    #: The first rows in the order of their expected start; held jobs come last.
    pending: tuple[Row, ...]
    #: The number of pending rows left out, and the caller's own ones among them.
    pending_more: int
    mine: tuple[Row, ...]
    #: The jobs that ended last, newest first.
    ended: tuple[Row, ...]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, view: SnapshotView) -> Snapshot:
        rows = {
            name: tuple(map(Row.of, view[name])) for name in ("running", "pending", "mine", "ended")
        }
        return _read(cls, view, shares=Shares.of(view), raw=view, **rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePoints:
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
    #: The part of `cores` that was lent; empty for a job without a range of cores.
    cores_lent: tuple[float | None, ...] = ()
    #: The job's demand, or None for the jobs of a user together.
    demand: Amounts | None

    @classmethod
    def of(cls, reply: UsageReply) -> UsagePoints:
        usage: Mapping[str, Any] = reply["usage"]
        points = dict.fromkeys(("gpu_memory", "gpu_utilisation", "cores_lent"), ())
        points |= {name: tuple(each) for name, each in usage.items()}
        demand = reply["demand"]
        return _read(cls, points, demand=None if demand is None else Amounts.of(demand))


def _reason(view: CodeText | None) -> Reason | None:
    return None if view is None else Reason(view["code"], view["text"])
