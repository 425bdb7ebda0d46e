"""Values that the Python client returns: jobs, shares, snapshots, and use over time.

Sizes are in bytes, rates in bytes per second, times of the clock in Unix seconds. `raw` is the JSON
that the daemon sent, as `drf … --json` prints it; `drfd.protocol.replies` declares its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drfd.protocol.replies import (
        CodeText,
        CommonSnapshot,
        EndedArrayView,
        JobView,
        NodeView,
        NowView,
        ResourcesView,
        SharesReply,
        SnapshotRow,
        SnapshotView,
        UsageReply,
    )


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

    @classmethod
    def of(cls, view: ResourcesView) -> Amounts:
        return cls(view["cores"], view["memory"], view["read"], view["write"])


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
        return cls(
            id=view["id"],
            label=str(view["id"]) if index is None else f"{view['array_id']}_{index}",
            name=view["name"],
            user=view["user"],
            pool=view["pool"],
            state=view["state"],
            reason=_reason(view["reason"]),
            outcome=_reason(view["outcome"]),
            exit_code=raw.get("exit_code"),
            signal=raw.get("signal"),
            attempt=raw.get("attempt", 0),
            demand=Amounts.of(view["demand"]),
            time_limit_s=view["time_limit_s"],
            submitted_at=view["submitted_at"],
            started_at=raw.get("started_at"),
            ended_at=raw.get("ended_at"),
            argv=None if argv is None else tuple(argv),
            cwd=view["cwd"],
            stdout=view["stdout"],
            stderr=view["stderr"],
            array_id=view["array_id"],
            array_index=index,
            tasks=view.get("tasks", 1),
            raw=raw,
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
        nodes = {each["path"]: _node(each) for each in view["nodes"]}
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
        return cls(view["cores"], view["memory"], view["read"], view["write"])


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
        return cls(
            id=view["id"],
            label=view["label"],
            tasks=view["tasks"],
            name=view["name"],
            user=view["user"],
            pool=view["pool"],
            state=view["state"],
            reason=_reason(view["reason"]),
            demand=Amounts.of(view["demand"]),
            submitted_at=view["submitted_at"],
            started_at=view["started_at"],
            ended_at=view["ended_at"],
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
        return cls(
            at=view["at"],
            host=view["host"],
            draining=view["draining"],
            shares=Shares.of(view),
            counts=view["counts"],
            running=tuple(map(Row.of, view["running"])),
            pending=tuple(map(Row.of, view["pending"])),
            pending_more=view["pending_more"],
            mine=tuple(map(Row.of, view["mine"])),
            ended=tuple(map(Row.of, view["ended"])),
            raw=view,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePoints:
    """Use over time, oldest point first: means of the interval that ends at each of `at`."""

    #: Unix times.
    at: tuple[float, ...]
    cores: tuple[float | None, ...]
    memory: tuple[int | None, ...]
    read: tuple[int | None, ...]
    write: tuple[int | None, ...]
    #: The job's demand, or None for the jobs of a user together.
    demand: Amounts | None

    @classmethod
    def of(cls, reply: UsageReply) -> UsagePoints:
        usage, demand = reply["usage"], reply["demand"]
        return cls(
            at=tuple(usage["at"]),
            cores=tuple(usage["cores"]),
            memory=tuple(usage["memory"]),
            read=tuple(usage["read"]),
            write=tuple(usage["write"]),
            demand=None if demand is None else Amounts.of(demand),
        )


def _node(view: NodeView) -> Node:
    return Node(
        path=view["path"],
        entitlement=view["entitlement"],
        dominant_share=view["dominant_share"],
        dominant_resource=view["dominant_resource"],
        satisfaction=view["satisfaction"],
        usage=Amounts.of(view["usage"]),
        running=view["running"],
        pending=view["pending"],
    )


def _reason(view: CodeText | None) -> Reason | None:
    return None if view is None else Reason(view["code"], view["text"])
