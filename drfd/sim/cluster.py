"""A cluster of like nodes, jobs of like tasks, and what has become of them.

All times are whole microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from drfd.core.resources import Vector

SECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A job of like tasks that may run in any order, on any node."""

    user: str
    tasks: int
    demand: Vector
    #: How long a task takes on a node that is not overcommitted; each one up to a fifth more or
    #: less, by chance.
    task_us: int
    at_us: int = 0
    #: Its tasks that still wait then are withdrawn.
    until_us: int | None = None
    #: When it has ended, its user submits the same again.
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    nodes: int
    #: What each has.
    node: Vector

    @property
    def capacity(self) -> Vector:
        return tuple(each * self.nodes for each in self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a cluster is shared out."""

    name: str
    #: One of `core.policies`.
    policy: str
    #: A node, under the policy "slots".
    slots: int | None = None
    #: Does a node keep room for a task that is served next and does not fit yet, as drfd does? If
    #: not, it is passed over, as by Mesos. Only the policy "drf" can.
    reserves: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    batch: Batch
    submitted_us: int
    ended_us: int


@dataclass(slots=True, kw_only=True)
class Outcome:
    step_us: int
    #: Every `step_us` from 0 on, what each user held.
    held: dict[str, list[Vector]]
    #: The jobs that have ended, in order.
    ended: list[Ended] = field(default_factory=list)
    #: How many tasks have.
    tasks: int = 0
    end_us: int = 0
    #: Of the time of all nodes, the part in which a node's tasks asked for more memory than it has.
    overcommitted: Fraction = Fraction(0)
