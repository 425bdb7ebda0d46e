"""Division of one resource among running jobs, in the fair-share tree, by what they could use now.

Each job gets what it uses of its floor. The rest goes to the least satisfied nodes first, as
launches do (min-satisfaction at each level of the tree, `core.fairness.service_order`), until each
has what it could use or nothing is left. A node's satisfaction counts, besides the resource that is
divided, all that its jobs hold of the others: who holds most of the memory is lent cores last.

All amounts are real numbers, since they are measured; the exact fractions of launches would cost
time and add nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

#: The least entitlement that is reckoned with: a node with none is served after all others.
_LEAST = 1e-9
#: Amounts below this are rounding errors.
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim of one job."""

    job_id: int
    #: What it gets in any case, and the most that it could use; not less than `least`.
    least: float
    most: float
    #: Among the jobs of its leaf, what goes beyond `least` is divided in proportion to this.
    weight: float


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the fair-share tree with running jobs: a pool, or a user's leaf."""

    #: The amount of the resource that it is promised. Above zero if its weights are.
    entitled: float
    #: Its satisfaction by the other resources that its jobs hold: 1 is what it is promised.
    held: float
    #: Its children, or for a leaf none.
    below: Mapping[str, Node] = field(default_factory=dict)
    #: The claims of a leaf's own jobs.
    claims: Sequence[Claim] = ()

    @cached_property
    def least(self) -> float:
        return _sum(each.least for each in self._parts)

    @cached_property
    def most(self) -> float:
        return _sum(each.most for each in self._parts)

    @property
    def _parts(self) -> list[Node | Claim]:
        return [*self.below.values(), *self.claims]

    def at(self, level: float, *, with_jump: bool = True) -> float:
        """Return what the node has when everybody is served up to a level of satisfaction. At the
        level at which it holds the other resources it jumps; `with_jump` says whether it has."""
        if level < self.held or (level == self.held and not with_jump):
            return self.least
        return min(self.most, max(self.least, level * max(self.entitled, _LEAST)))


def divide(node: Node, amount: float) -> dict[int, float]:
    """Return what each job below the node gets of the amount, by its id. The parts sum to the
    amount, or to less when every job has the most that it could use; or to more, when what they get
    in any case is more."""
    parts: dict[int, float] = {}
    _divide(node, amount, parts)
    return parts


def _divide(node: Node, amount: float, parts: dict[int, float]) -> None:
    children = list(node.below.values())
    if children:
        for child, part in zip(children, _among(children, amount), strict=True):
            _divide(child, part, parts)
        return
    beyond = amount - node.least
    room = [claim.most - claim.least for claim in node.claims]
    more = by_weight(beyond, [claim.weight for claim in node.claims], room)
    for claim, extra in zip(node.claims, more, strict=True):
        parts[claim.job_id] = claim.least + extra


def _among(children: Sequence[Node], amount: float) -> list[float]:
    """Return what each of the siblings gets."""
    if amount >= _sum(child.most for child in children) - _NOTHING:
        return [child.most for child in children]
    if amount <= _sum(child.least for child in children) + _NOTHING:
        return [child.least for child in children]

    def total(level: float) -> float:
        return _sum(child.at(level) for child in children)

    # Between these levels the sum is a straight line.
    turns = sorted({level for child in children for level in _turns(child)})
    at = bisect_left(turns, True, key=lambda level: total(level) >= amount)
    if at == len(turns):
        # Of large amounts, such as bytes, the last turn may be a rounding error below the sum.
        return [child.most for child in children]
    level = turns[at]
    before = _sum(child.at(level, with_jump=False) for child in children)
    if before >= amount:
        below = turns[at - 1] if at else 0.0
        low, high = total(below), before
        level = below + (level - below) * ((amount - low) / (high - low))
        return [child.at(level, with_jump=False) for child in children]
    # What is left is divided among those that jump here: it makes none of them more satisfied.
    jumps = [child.at(level) - child.at(level, with_jump=False) for child in children]
    part = (amount - before) / _sum(jumps)
    return [
        child.at(level, with_jump=False) + jump * part
        for child, jump in zip(children, jumps, strict=True)
    ]


def _turns(child: Node) -> tuple[float, float, float]:
    entitled = max(child.entitled, _LEAST)
    first, last = child.least / entitled, child.most / entitled
    return child.held, max(first, child.held), max(last, child.held)


def by_weight(amount: float, weights: Sequence[float], room: Sequence[float]) -> list[float]:
    """Divide the amount in proportion to the weights, nobody getting more than there is room."""
    parts = [0.0] * len(room)
    left = [at for at, most in enumerate(room) if most > _NOTHING]
    while left and amount > _NOTHING:
        unit = amount / _sum(weights[at] for at in left)
        full = [at for at in left if room[at] <= weights[at] * unit]
        if not full:
            for at in left:
                parts[at] = weights[at] * unit
            break
        for at in full:
            parts[at] = room[at]
            amount -= room[at]
        left = [at for at in left if at not in full]
    return parts


def _sum(amounts: Iterable[float]) -> float:
    return sum(amounts, 0.0)
