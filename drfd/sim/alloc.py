"""Who gets how much of a small machine, by any policy: for teaching and for tests.

Everything is exact. Whole tasks go through the very passes that schedule jobs, in integers; tasks
that can be cut go through the solvers of `core.continuous`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from drfd.core import continuous
from drfd.core.ceei import ceei
from drfd.core.fairshare import FairShare
from drfd.core.flow import Tasks, Want
from drfd.core.policies import plan_by
from drfd.core.queue import LeafQueue
from drfd.core.resources import Vector
from drfd.core.tally import Terms
from drfd.core.tree import TOP, NodeRule
from drfd.errors import Refused
from drfd.sim.spec import Node, Spec, User

#: More tasks than anybody looks at.
_MOST_TASKS = 200_000
#: Beyond, the comparisons of a pass are not exact any more.
_MOST_UNITS = 1 << 60

Solve = Callable[[FairShare, Mapping[str, Want]], Tasks]
_SOLVERS: Mapping[str, Solve] = {
    "drf": continuous.drf,
    "hdrf": continuous.drf,
    "hdrf-naive": continuous.drf,
    "algorithm1": continuous.algorithm1,
    "asset": continuous.asset,
    "cpu": continuous.cpu,
    "fifo": continuous.fifo,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """By the names of users, in their order."""

    tasks: dict[str, Fraction]
    #: Of each resource, the part of the machine.
    shares: dict[str, dict[str, Fraction]]
    #: Users in the order in which their tasks start; empty where tasks can be cut.
    order: list[str]

    def dominant_share(self, user: str) -> Fraction:
        return max(self.shares[user].values())


@dataclass(frozen=True, slots=True)
class _Problem:
    """The spec in whole units, users as leaves of a tree."""

    shares: FairShare
    #: Leaf → vector of one task.
    demands: dict[str, Vector]


def allocate(spec: Spec) -> Allocation:
    """Raises Refused for a problem that has more tasks, or finer units, than are worked with."""
    problem = _problem(spec)
    leaves = dict(zip(problem.demands, spec.users, strict=True))
    if spec.mode == "continuous":
        order, tasks = [], _cut(spec, problem, leaves)
    else:
        order = _launched(spec, problem, leaves)
        count = Counter(order)
        tasks = {leaf: Fraction(count[leaf]) for leaf in leaves}
    return Allocation(
        tasks={user.name: tasks[leaf] for leaf, user in leaves.items()},
        shares={
            user.name: {
                name: tasks[leaf] * each / top
                for (name, top), each in zip(spec.capacity.items(), user.demand, strict=True)
            }
            for leaf, user in leaves.items()
        },
        order=[leaves[leaf].name for leaf in order],
    )


def dominant_resource(spec: Spec, user: User) -> str:
    """What one task takes the largest part of; of equals the first of the capacity."""
    pairs = zip(spec.capacity.items(), user.demand, strict=True)
    parts = {name: each / top for (name, top), each in pairs}
    return max(parts, key=lambda name: parts[name])


def _problem(spec: Spec) -> _Problem:
    rows = [tuple(spec.capacity.values()), *(user.demand for user in spec.users)]
    units = [lcm(*(each.denominator for each in column)) for column in zip(*rows, strict=True)]
    whole = [tuple(int(each * unit) for each, unit in zip(row, units, strict=True)) for row in rows]
    # Users and pools may be called anything; the tree knows them by their numbers.
    paths: dict[str | None, str] = {None: TOP}
    numbers = {name: at for at, name in enumerate(spec.pools)}

    def path_of(pool: str | None) -> str:
        if pool not in paths:
            assert pool is not None
            paths[pool] = f"{path_of(spec.pools[pool].pool)}.p{numbers[pool]}"
        return paths[pool]

    leaves = [f"{path_of(user.pool)}.u{at}" for at, user in enumerate(spec.users)]
    nodes: dict[str, Node] = dict(zip(leaves, spec.users, strict=True))
    nodes |= {path_of(name): pool for name, pool in spec.pools.items()}
    rules = {path: NodeRule(weights=node.weights) for path, node in nodes.items()}
    return _Problem(FairShare(whole[0], rules), dict(zip(leaves, whole[1:], strict=True)))


def _cut(spec: Spec, problem: _Problem, leaves: Mapping[str, User]) -> Tasks:
    wants = {
        leaf: Want(demand=tuple(map(Fraction, problem.demands[leaf])), tasks=user.tasks)
        for leaf, user in leaves.items()
    }
    if spec.policy == "ceei":
        weights = {leaf: user.weights[0] for leaf, user in leaves.items()}
        return ceei(problem.shares.capacity, wants, weights)
    if spec.policy == "slots":
        assert spec.slots is not None
        return continuous.slots(problem.shares, wants, spec.slots)
    return _SOLVERS[spec.policy](problem.shares, wants)


def _launched(spec: Spec, problem: _Problem, leaves: Mapping[str, User]) -> list[str]:
    """The leaves of the tasks that start, in order."""
    capacity = problem.shares.capacity
    if max([*capacity, *(max(demand) for demand in problem.demands.values())]) > _MOST_UNITS:
        raise Refused(
            "bad-spec",
            "capacity: counted in the finest digit of any demand, it is more than 2^60",
            hint='round the numbers, or ask for "mode": "continuous"',
        )
    in_turn = list(leaves)
    if spec.policy != "fifo":
        # All are there from the start, so this decides every tie. `sorted` keeps the list's order.
        in_turn.sort(key=lambda leaf: -problem.shares.dominant_share(problem.demands[leaf]))
    queues: dict[str, LeafQueue] = {}
    owners: list[str] = []
    for leaf in in_turn:
        count = _count(spec, leaves[leaf].tasks, problem.demands[leaf], capacity)
        if len(owners) + count > _MOST_TASKS:
            raise Refused(
                "bad-spec",
                f"the machine has room for more than {_MOST_TASKS} tasks",
                hint='ask for larger tasks, or for "mode": "continuous"',
            )
        for _ in range(count):
            queues.setdefault(leaf, LeafQueue()).add(problem.demands[leaf], (0, len(owners)))
            owners.append(leaf)
    done = plan_by(
        "drf" if spec.policy == "hdrf" else spec.policy,
        queues=queues,
        used={},
        free=capacity,
        shares=problem.shares,
        terms=Terms(slots=spec.slots, overcommit=True),
    )
    return [owners[job_id] for job_id in done.admitted]


def _count(spec: Spec, tasks: Fraction | None, demand: Vector, capacity: Vector) -> int:
    """How many tasks are worth queueing: all that could run alone and, since some policies stop
    where the next one does not fit, one more."""
    pairs = list(zip(demand, capacity, strict=True))
    rooms = [top // each for each, top in (pairs[:1] if spec.policy == "cpu" else pairs) if each]
    if spec.policy == "slots":
        rooms = [spec.slots or 0]
    most = min(rooms) + 1 if rooms else _MOST_TASKS + 1
    return most if tasks is None else min(most, int(tasks))
