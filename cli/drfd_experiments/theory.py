"""Fair shares of divisible tasks, at which the policies aim, for comparison and tests.

The shares are exact fractions, by progressive filling (Ghodsi et al., NSDI 2011, section 4.2),
which goes on after a resource is full for those who need none of it (Parkes, Procaccia, Shah,
EC'12), weighted and in a tree (Bhattacharya et al., SoCC'13, as a flow). `ceei` is the competitive
equilibrium from equal incomes, in floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from operator import mul

from drfd.core.fairness.share_tree import ONE, ZERO, FairShare, Shares, parent_of, path_up
from drfd.core.model.job import ROOT
from drfd.core.model.machine import Vector

_zip = partial(zip, strict=True)
#: Leaf → number of tasks.
Tasks = dict[str, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDemand:
    """The demand of a leaf: the amounts of one task, not all zero, and the number of tasks."""

    demand: Shares
    #: The number of tasks, or None if there is no end of them.
    tasks: Fraction | None = None


#: The rates at which a node is served: whether its level rises, by 1 per unit of time; and the
#: tasks per unit of time, by leaf.
_Drive = tuple[bool, Tasks]


class Flow:
    """The machine as it fills up with divisible tasks, event by event, exactly.

    Amounts are parts of the machine. The level of a node is what it holds over what it is entitled
    to. The levels of all nodes that can still grow rise together, at every depth of the tree, until
    a resource is full or a leaf has all its tasks; leaves that need none of a full resource go on.
    A node whose level stands still although it is served, because a resource that it can no longer
    get decides the level, catches up before any other node goes on.

    From an empty machine no node is ever more satisfied than those below it that can still grow:
    its own level is then also the least of its own and theirs, so naive comparison and
    min-satisfaction (see `core.fairness.share_tree`) fill the machine alike. They differ when tasks
    end.
    """

    def __init__(
        self,
        shares: FairShare,
        wants: Mapping[str, FlowDemand],
        *,
        by_assets: bool = False,
        goes_on: bool = True,
    ) -> None:
        """With `by_assets`, a node holds the sum of its parts of all resources (asset fairness),
        else the largest part (DRF). With `goes_on`, a full resource stops only those who need
        it."""
        self._wants, self._by_assets, self._goes_on = wants, by_assets, goes_on
        #: 1 for each resource, or 0 if the machine lacks it.
        self._top = tuple(ONE if top else ZERO for top in shares.capacity)
        #: One task of each leaf. Nobody gets any of a resource that the machine lacks, so its part
        #: there can be any number.
        self._asked = {
            leaf: tuple(each / (top or 1) for each, top in _zip(want.demand, shares.capacity))
            for leaf, want in wants.items()
        }
        active = {leaf for leaf, want in wants.items() if want.tasks != 0}
        tree = shares.share_tree({}, active)
        #: The entitlement of each active node.
        self._entitled: dict[str, Shares] = {
            path: tuple(map(mul, tree.entitled(path), self._top))
            for leaf in sorted(active)
            for path in path_up(leaf)
        }
        self._children: dict[str, list[str]] = {}
        for path in self._entitled:
            self._children.setdefault(parent_of(path), []).append(path)
        self._held = {path: [ZERO] * len(self._top) for path in (ROOT, *self._entitled)}
        self._got = dict.fromkeys(wants, ZERO)

    def run(self) -> Tasks:
        """Fill the machine, and return the tasks of each leaf."""
        for leaf, want in self._wants.items():
            if not any(self._asked[leaf]):
                # It asks for none of the resources that count, so nothing limits it.
                assert want.tasks is not None, f"{leaf} asks for nothing, without end"
                self._got[leaf] = want.tasks
        while (drive := self._drive(ROOT)) is not None:
            _, speeds = drive
            flows = self._flows(speeds)
            span = self._until(speeds, flows)
            for leaf, speed in speeds.items():
                self._got[leaf] += speed * span
            for path, flow in flows.items():
                self._held[path] = [at + each * span for at, each in _zip(self._held[path], flow)]
            if not self._goes_on and any(
                self._lacks(leaf) and self._is_full(leaf) for leaf in self._wants
            ):
                break
        return self._got

    def _lacks(self, leaf: str) -> bool:
        want = self._wants[leaf]
        return want.tasks is None or self._got[leaf] < want.tasks

    def _is_full(self, leaf: str) -> bool:
        """Return whether a resource that the leaf needs is full."""
        rows = _zip(self._asked[leaf], self._top, self._held[ROOT])
        return any(each and held >= top for each, top, held in rows)

    def _can_grow(self, leaf: str) -> bool:
        if not self._lacks(leaf) or not any(self._asked[leaf]) or self._is_full(leaf):
            return False
        return all(part or not each for each, part in _zip(self._asked[leaf], self._entitled[leaf]))

    def _drive(self, path: str) -> _Drive | None:
        """Return the rates at which a node is served, or None if nothing below it can grow."""
        if path in self._wants:
            if not self._can_grow(path):
                return None
            speeds = {path: ONE}
        else:
            every = map(self._drive, self._children.get(path, ()))
            drives = [drive for drive in every if drive is not None]
            if not drives:
                return None
            # All that can grow are at one level. Nodes that stand still although served catch up
            # first.
            served = [drive for drive in drives if not drive[0]] or drives
            speeds = {leaf: speed for _, below in served for leaf, speed in below.items()}
            if path == ROOT:
                return served[0][0], speeds
        flow = self._flows(speeds)[path]
        slope, _ = self._rise(path, flow)
        # A node that stands still is served so that its fastest growing part rises by 1.
        rate = slope or max(each / part for each, part in _zip(flow, self._entitled[path]) if part)
        return slope > 0, {leaf: speed / rate for leaf, speed in speeds.items()}

    def _rise(self, path: str, flow: Sequence[Fraction]) -> tuple[Fraction, Fraction | None]:
        """Return the rate at which the node's level rises under `flow`, and how long it stays so.

        The time is None if the rate does not change.
        """
        lines = [
            (held / part, each / part)
            for held, each, part in zip(self._held[path], flow, self._entitled[path], strict=True)
            if part
        ]
        if self._by_assets:
            return sum((slope for _, slope in lines), ZERO), None
        level = max(at for at, _ in lines)
        rise = max(slope for at, slope in lines if at == level)
        ends = [(level - at) / (slope - rise) for at, slope in lines if slope > rise]
        return rise, min(ends, default=None)

    def _flows(self, speeds: Tasks) -> dict[str, list[Fraction]]:
        """Return the amounts per unit of time that each served node gets."""
        flows: dict[str, list[Fraction]] = {}
        for leaf, speed in speeds.items():
            for path in (ROOT, *path_up(leaf)):
                flow = flows.setdefault(path, [ZERO] * len(self._top))
                for axis, each in enumerate(self._asked[leaf]):
                    flow[axis] += speed * each
        return flows

    def _until(self, speeds: Tasks, flows: Mapping[str, Sequence[Fraction]]) -> Fraction:
        """Return the time until a rate changes."""
        rows = _zip(self._top, self._held[ROOT], flows[ROOT])
        ends: list[Fraction] = [(top - held) / each for top, held, each in rows if each]
        ends += [
            (most - self._got[leaf]) / speed
            for leaf, speed in speeds.items()
            if (most := self._wants[leaf].tasks) is not None
        ]
        changes = (self._rise(path, flow)[1] for path, flow in flows.items() if path != ROOT)
        return min([*ends, *(end for end in changes if end is not None)])


Row = list[float]

#: Steps of the method at most, the mean slack times price at which it ends, and the significant
#: digits of its result.
_STEPS, _ENOUGH, _DIGITS = 200, 1e-31, 12


def ceei(
    capacity: Vector, wants: Mapping[str, FlowDemand], weights: Mapping[str, Fraction] | None = None
) -> Tasks:
    """Return the competitive equilibrium from equal incomes; missing `weights` are 1.

    With equal (or weighted) incomes and tasks of fixed proportions the equilibrium maximises the
    Nash product, the product of everybody's tasks to the power of their weights (Ghodsi et al.,
    NSDI 2011, section 5.2; Eisenberg and Gale 1959): a convex programme, solved in floats. The
    result is rounded to 12 digits.
    """
    can = {
        leaf: want
        for leaf, want in wants.items()
        if want.tasks != 0
        and all(top or not each for each, top in zip(want.demand, capacity, strict=True))
    }
    # Tasks are counted in parts of an equal split, so that all numbers are near one.
    units = [
        min(top / each for each, top in zip(want.demand, capacity, strict=True) if each) / len(can)
        for want in can.values()
    ]
    rows = [
        [float(want.demand[axis] * unit / top) for want, unit in _zip(can.values(), units)]
        for axis, top in enumerate(capacity)
        if any(want.demand[axis] for want in can.values())
    ]
    # The number of tasks limits as a resource does that nobody else needs.
    rows += [
        [float(units[at] / want.tasks) if at == other else 0.0 for other in range(len(can))]
        for at, want in enumerate(can.values())
        if want.tasks is not None
    ]
    incomes = [float((weights or {}).get(leaf, ONE)) for leaf in can]
    found = _equilibrium(rows, [each / sum(incomes) for each in incomes]) if can else []
    tasks = dict.fromkeys(wants, ZERO)
    for leaf, unit, parts in _zip(can, units, found):
        tasks[leaf] = Fraction(f"{float(unit) * parts:.{_DIGITS}g}")
    return tasks


def _equilibrium(rows: list[Row], incomes: Row) -> Row:
    """Return the x that maximise the sum of income · log x, where each row times x is at most 1.

    A primal-dual interior-point method (Boyd and Vandenberghe, Convex Optimization, chapter 11.7):
    Newton steps towards income / x = the prices of what x needs, and price · slack = `aim` for
    each row, while `aim` falls to zero.
    """
    columns = list(_zip(*rows))
    x = [0.5 / max(1.0, *column) for column in columns]
    free = [1 - _dot(row, x) for row in rows]
    prices = [1.0] * len(free)
    for _ in range(_STEPS):
        aim = _dot(free, prices) / len(free) / 10
        if aim < _ENOUGH:
            break
        pull = [
            income / each - _dot(column, prices)
            for income, each, column in _zip(incomes, x, columns)
        ]
        ease = [each**2 / income for income, each in _zip(incomes, x)]
        eased = [[each * soft for each, soft in _zip(row, ease)] for row in rows]
        matrix = [[_dot(row, other) for other in rows] for row in eased]
        for at, (left, price) in enumerate(_zip(free, prices)):
            # Of rows that are the same, any prices do.
            matrix[at][at] += left / price + 1e-14 * matrix[at][at]
        to_prices = _solve(
            matrix,
            [
                _dot(row, pull) - left + aim / price
                for row, left, price in _zip(eased, free, prices)
            ],
        )
        to_x = [
            soft * (each - _dot(column, to_prices))
            for soft, each, column in _zip(ease, pull, columns)
        ]
        to_free = [-_dot(row, to_x) for row in rows]
        moves = ((x, to_x), (prices, to_prices), (free, to_free))
        # No number may come down to zero.
        ends = [-0.99 * at / step for row, to in moves for at, step in _zip(row, to) if step < 0]
        part = min([1.0, *ends])
        for row, to in moves:
            row[:] = [at + part * step for at, step in _zip(row, to)]
    return x


def _dot(row: Iterable[float], other: Iterable[float]) -> float:
    return float(sum(map(mul, row, other)))


def _solve(matrix: Sequence[Row], right: Row) -> Row:
    """Solve a linear system by Gaussian elimination.

    The matrix is symmetric and positive definite, so no pivot vanishes.
    """
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at, pivot in enumerate(rows):
        for row in rows[at + 1 :]:
            factor = row[at] / pivot[at]
            row[at:] = [each - factor * top for each, top in zip(row[at:], pivot[at:], strict=True)]
    found: Row = []
    for row in reversed(rows):
        known = row[len(rows) - len(found) : -1]
        found.insert(0, (row[-1] - sum(map(mul, known, found))) / row[len(rows) - len(found) - 1])
    return found


def drf(shares: FairShare, wants: Mapping[str, FlowDemand]) -> Tasks:
    """Dominant Resource Fairness.

    In a tree these are the targets of both min-satisfaction and naive comparison (see `Flow`). A
    leaf that is entitled to nothing of a resource that it needs gets no tasks.
    """
    return Flow(shares, wants).run()


def algorithm1(shares: FairShare, wants: Mapping[str, FlowDemand]) -> Tasks:
    """DRF that stops for all when the first leaf cannot go on (Algorithm 1 of the paper)."""
    return Flow(shares, wants, goes_on=False).run()


def asset(shares: FairShare, wants: Mapping[str, FlowDemand]) -> Tasks:
    """Asset fairness: equal sums of the parts of all resources (section 5.1 of the paper)."""
    return Flow(shares, wants, by_assets=True).run()


def fifo(shares: FairShare, wants: Mapping[str, FlowDemand]) -> Tasks:
    """Serve one leaf after the other, in the order of `wants`, until one does not get all."""
    free = [Fraction(amount) for amount in shares.capacity]
    got = dict.fromkeys(wants, ZERO)
    for leaf, want in wants.items():
        most = min(free[axis] / each for axis, each in enumerate(want.demand) if each)
        got[leaf] = most if want.tasks is None else min(most, want.tasks)
        free = [left - got[leaf] * each for left, each in zip(free, want.demand, strict=True)]
        if got[leaf] != want.tasks:
            break
    return got
