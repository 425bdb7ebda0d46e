"""Competitive equilibrium from equal incomes: the market's answer, to more digits than a float has.

With equal (or weighted) incomes and tasks of fixed proportions the equilibrium maximises the Nash
product, the product of everybody's tasks to the power of their weights (Ghodsi et al., NSDI 2011,
section 5.2; Eisenberg and Gale 1959): a convex programme.
It is solved along the central path of its logarithmic barrier by damped Newton steps (Nesterov and
Nemirovski 1994; Boyd and Vandenberghe, Convex Optimization, chapters 9.6 and 11.3): the barrier is
self-concordant, so each step is safe without a line search. The arithmetic is decimal with many
digits, so that the path can be followed to where its distance from the optimum does not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction

from drfd.core.flow import Tasks, Want
from drfd.core.resources import Vector

#: Digits of the arithmetic, and of the answer.
_DIGITS, _SHOWN_DIGITS = 90, 20
#: The weight of the product against the barrier at the end: at an ordinary optimum the error is
#: about its inverse; where a resource is full and yet free of charge, the root of that.
_LAST = Decimal(10) ** 42
#: Its growth from one round of Newton steps to the next.
_GROWTH = Decimal(100)

Row = list[Decimal]


def ceei(
    capacity: Vector, wants: Mapping[str, Want], weights: Mapping[str, Fraction] | None = None
) -> Tasks:
    """How many tasks each leaf gets; `weights` are 1 where nothing is said. Relative error below
    1e-15. The answer is decimal, so thirds come rounded."""
    can = {
        leaf: want
        for leaf, want in wants.items()
        if want.tasks != 0 and all(top or not each for each, top in _pairs(want, capacity))
    }
    got = dict.fromkeys(wants, Fraction(0))
    if can:
        with localcontext(Context(prec=_DIGITS)):
            market = _market(capacity, can, weights or {})
            for leaf, tasks in zip(can, market.equilibrium(), strict=True):
                got[leaf] = _rounded(tasks)
    return got


def _pairs(want: Want, capacity: Vector) -> list[tuple[Fraction, int]]:
    return list(zip(want.demand, capacity, strict=True))


def _market(
    capacity: Vector, wants: Mapping[str, Want], weights: Mapping[str, Fraction]
) -> _Market:
    least = min(weights.get(leaf, Fraction(1)) for leaf in wants)
    return _Market(
        weights=[_decimal(weights.get(leaf, Fraction(1)) / least) for leaf in wants],
        asked=[
            [_decimal(want.demand[axis] / top) for want in wants.values()]
            for axis, top in enumerate(capacity)
            if any(want.demand[axis] for want in wants.values())
        ],
        most=[None if want.tasks is None else _decimal(want.tasks) for want in wants.values()],
    )


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / number.denominator


def _rounded(number: Decimal) -> Fraction:
    return Fraction(Context(prec=_SHOWN_DIGITS).plus(number))


@dataclass(frozen=True, slots=True)
class _Market:
    #: 1 at least: below, the barrier would not be self-concordant.
    weights: Row
    #: For each resource, the part of it that one task of each takes.
    asked: list[Row]
    #: How many tasks each wants; None: without end.
    most: list[Decimal | None]

    def equilibrium(self) -> Row:
        tasks = self._start()
        pull = Decimal(1)
        while True:
            tasks = self._centred(tasks, pull)
            if pull >= _LAST:
                return tasks
            pull *= _GROWTH

    def _start(self) -> Row:
        """Half of an equal split of everything, cut by what is wanted: well inside."""
        count = len(self.weights)
        found = []
        for at, most in enumerate(self.most):
            takes = [row[at] for row in self.asked] + ([] if most is None else [1 / most])
            found.append(1 / (2 * count * max(takes)))
        return found

    def _centred(self, tasks: Row, pull: Decimal) -> Row:
        """The point of the central path for this pull, to many digits."""
        while True:
            step, decrement2 = self._newton(tasks, pull)
            decrement = decrement2.sqrt()
            # Within a quarter, whole steps converge quadratically; before, they might leave.
            part = Decimal(1) if decrement < Decimal("0.25") else 1 / (1 + decrement)
            tasks = [each + part * move for each, move in zip(tasks, step, strict=True)]
            if decrement < Decimal("1e-6"):
                return tasks

    def _newton(self, tasks: Row, pull: Decimal) -> tuple[Row, Decimal]:
        """The Newton step of pull · product + barrier, and the square of its decrement."""
        slack = [1 - sum(map(_times, row, tasks)) for row in self.asked]
        # Each resource's row over its slack: what one more task of each does to the barrier.
        push = [[each / left for each in row] for row, left in zip(self.asked, slack, strict=True)]
        gradient, curvature = [], []
        for at, (weight, each, most) in enumerate(zip(self.weights, tasks, self.most, strict=True)):
            edge = Decimal(0) if most is None else 1 / (most - each)
            gradient.append(-pull * weight / each + edge + sum(row[at] for row in push))
            curvature.append(pull * weight / (each * each) + edge * edge)
        # The Hessian is this diagonal plus the outer products of `push`: by Woodbury's identity
        # only a system of the size of the number of resources has to be solved.
        soft = [slope / bend for slope, bend in zip(gradient, curvature, strict=True)]
        thin = [[each / bend for each, bend in zip(row, curvature, strict=True)] for row in push]
        inner = [
            [sum(map(_times, row, other)) + Decimal(int(i == j)) for j, other in enumerate(thin)]
            for i, row in enumerate(push)
        ]
        share = _solve(inner, [sum(map(_times, row, soft), Decimal(0)) for row in push])
        step = [
            sum((part * row[at] for part, row in zip(share, thin, strict=True)), -each)
            for at, each in enumerate(soft)
        ]
        return step, -sum(map(_times, gradient, step), Decimal(0))


def _times(left: Decimal, right: Decimal) -> Decimal:
    return left * right


def _solve(matrix: Sequence[Row], right: Row) -> Row:
    """Gaussian elimination; the matrix is symmetric and positive definite, so no pivot vanishes."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at, pivot in enumerate(rows):
        for row in rows[at + 1 :]:
            factor = row[at] / pivot[at]
            row[at:] = [each - factor * top for each, top in zip(row[at:], pivot[at:], strict=True)]
    found: Row = []
    for row in reversed(rows):
        known = row[len(rows) - len(found) : -1]
        found.insert(
            0, (row[-1] - sum(map(_times, known, found))) / row[len(rows) - len(found) - 1]
        )
    return found
