"""Fair shares of tasks that can be cut at will: what the policies aim at, as exact fractions.

Progressive filling (Ghodsi et al., NSDI 2011, section 4.2), which goes on after a resource is full
for those who need none of it (Parkes, Procaccia, Shah, EC'12), weighted and in a tree
(Bhattacharya et al., SoCC'13, as a flow).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from drfd.core.entitlement import ONE, ZERO, Shares
from drfd.core.fairshare import FairShare
from drfd.core.flow import Caps, Flow, Measure, Tasks, Want
from drfd.core.tree import TOP, path_up


def drf(shares: FairShare, wants: Mapping[str, Want]) -> Tasks:
    """Dominant Resource Fairness; in a tree the targets that min-satisfaction fills up to, and
    naive comparison too (see `core.flow`). Who is entitled to nothing of what they need get none.
    """
    return _flow(shares, wants).run()


def algorithm1(shares: FairShare, wants: Mapping[str, Want]) -> Tasks:
    """DRF that stops for all when the first cannot go on (Algorithm 1 of the paper, literally)."""
    return _flow(shares, wants, goes_on=False).run()


def asset(shares: FairShare, wants: Mapping[str, Want]) -> Tasks:
    """Asset fairness: equal sums of the parts of all resources (section 5.1 of the paper)."""
    return _flow(shares, wants, measure=Measure.ASSETS).run()


def cpu(shares: FairShare, wants: Mapping[str, Want]) -> Tasks:
    """Max-min fairness of the first resource; the others may be overcommitted without end.

    A leaf that asks for none of it gets all its tasks, which must be finite.
    """
    asked = {leaf: parts[:1] for leaf, parts in _asked(shares, wants).items()}
    entitled = {path: parts[:1] for path, parts in _entitled(shares, wants).items()}
    return Flow(entitled, wants, asked, {TOP: (_whole(shares.capacity[0]),)}).run()


def slots(shares: FairShare, wants: Mapping[str, Want], count: int) -> Tasks:
    """`count` slots shared max-min; any task fits a slot, whatever it needs."""
    asked: dict[str, Shares] = dict.fromkeys(wants, (Fraction(1, count),))
    entitled = {
        path: (min(part for part, top in zip(parts, shares.capacity, strict=True) if top),)
        for path, parts in _entitled(shares, wants).items()
    }
    return Flow(entitled, wants, asked, {TOP: (ONE,)}).run()


def fifo(shares: FairShare, wants: Mapping[str, Want]) -> Tasks:
    """One leaf after the other, in the order of `wants`; the first that is cut short stops all."""
    free = [Fraction(amount) for amount in shares.capacity]
    got = dict.fromkeys(wants, ZERO)
    for leaf, want in wants.items():
        most = min(free[axis] / each for axis, each in enumerate(want.demand) if each)
        got[leaf] = most if want.tasks is None else min(most, want.tasks)
        free = [left - got[leaf] * each for left, each in zip(free, want.demand, strict=True)]
        if got[leaf] != want.tasks:
            break
    return got


def _flow(
    shares: FairShare,
    wants: Mapping[str, Want],
    *,
    measure: Measure = Measure.DOMINANT,
    goes_on: bool = True,
) -> Flow:
    entitled = _entitled(shares, wants)
    caps: dict[str, Caps] = {path: _limit(shares, path) for path in entitled}
    caps[TOP] = tuple(map(_whole, shares.capacity))
    return Flow(entitled, wants, _asked(shares, wants), caps, measure, goes_on)


def _whole(top: int) -> Fraction:
    return ONE if top else ZERO


def _asked(shares: FairShare, wants: Mapping[str, Want]) -> dict[str, Shares]:
    """One task as parts of the machine; of what it lacks nobody gets any, so any part will do."""
    return {
        leaf: tuple(
            each / top if top else each
            for each, top in zip(want.demand, shares.capacity, strict=True)
        )
        for leaf, want in wants.items()
    }


def _entitled(shares: FairShare, wants: Mapping[str, Want]) -> dict[str, Shares]:
    """What each active node is promised; nothing on an axis that the machine lacks."""
    active = {leaf for leaf, want in wants.items() if want.tasks != 0}
    standing = shares.standing({}, active)
    return {
        path: tuple(
            part * _whole(top)
            for part, top in zip(standing.entitled(path), shares.capacity, strict=True)
        )
        for leaf in sorted(active)
        for path in path_up(leaf)
    }


def _limit(shares: FairShare, path: str) -> Caps:
    limit = shares.rule(path).limit or (None,) * len(shares.capacity)
    pairs = zip(limit, shares.capacity, strict=True)
    return tuple(None if most is None or not top else Fraction(most, top) for most, top in pairs)
