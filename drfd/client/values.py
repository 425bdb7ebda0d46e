"""What the daemon tells, as values: jobs, and where everybody stands.

Sizes in bytes, rates in bytes per second, times of the clock in Unix seconds. `raw` is all that was
told, as `drf … --json` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits, or how it has ended: a code of a closed list, and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Amounts:
    """Of each resource: what is asked for, held, or free."""

    cores: float
    memory: int
    read: int
    write: int

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Amounts:
        return cls(view["cores"], view["memory"], view["read"], view["write"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it stood when it was told; or several tasks of an array that are all alike, or an
    array that is over: then `tasks` says how many. What only its owner may know is None for
    others."""

    id: int
    #: As people call it: `42`, or `42_7` for a task of an array.
    label: str
    name: str
    user: str
    pool: str
    state: str
    #: Why it waits; None: it does not.
    reason: Reason | None
    #: How it has ended; None: it has not.
    outcome: Reason | None
    exit_code: int | None
    signal: int | None
    attempt: int
    demand: Amounts
    #: Seconds; None: as long as it takes.
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
    def of(cls, view: Mapping[str, Any]) -> Job:
        index, argv = view["array_index"], view["argv"]
        return cls(
            id=view["id"],
            label=str(view["id"]) if index is None else f"{view['array_id']}_{index}",
            name=view["name"],
            user=view["user"],
            pool=view["pool"],
            state=view["state"],
            reason=_reason(view["reason"]),
            outcome=_reason(view["outcome"]),
            # An array has had many of these.
            exit_code=view.get("exit_code"),
            signal=view.get("signal"),
            attempt=view.get("attempt", 0),
            demand=Amounts.of(view["demand"]),
            time_limit_s=view["time_limit_s"],
            submitted_at=view["submitted_at"],
            started_at=view.get("started_at"),
            ended_at=view.get("ended_at"),
            argv=None if argv is None else tuple(argv),
            cwd=view["cwd"],
            stdout=view["stdout"],
            stderr=view["stderr"],
            array_id=view["array_id"],
            array_index=index,
            tasks=view.get("tasks", 1),
            raw=view,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A pool or a user in the fair-share tree."""

    #: `root.lab.alice`.
    path: str
    #: The part of the machine that it is promised, and has of its dominant resource: 0 to 1.
    entitlement: float
    dominant_share: float
    #: None: it holds nothing.
    dominant_resource: str | None
    #: The second by the first: who has least is served next.
    satisfaction: float
    usage: Amounts
    running: int
    pending: int


@dataclass(frozen=True, slots=True)
class Shares:
    capacity: Amounts
    free: Amounts
    #: By their paths.
    nodes: dict[str, Node]

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Shares:
        nodes = {each["path"]: _node(each) for each in view["nodes"]}
        return cls(Amounts.of(view["capacity"]), Amounts.of(view["free"]), nodes)


def _node(view: Mapping[str, Any]) -> Node:
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


def _reason(view: Mapping[str, str] | None) -> Reason | None:
    return None if view is None else Reason(view["code"], view["text"])
