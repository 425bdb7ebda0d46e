"""Every policy by its name: the daemon's own, and those that exist to compare it with.

All take what `core.admission.plan` takes and give the same plan. None of them gives out more of a
resource than is free, but for "cpu" and "slots" when the caller says so (see `Terms`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import lcm
from operator import itemgetter

from drfd.core.admission import plan
from drfd.core.backfill import Outlook
from drfd.core.descent import Turns
from drfd.core.entitlement import ZERO, Shares
from drfd.core.fairshare import FairShare
from drfd.core.fifo import easy, fifo
from drfd.core.plan import Plan
from drfd.core.queue import LeafQueue
from drfd.core.resources import Vector, fits
from drfd.core.tally import PLAIN_TERMS, Situation, Tally, Terms
from drfd.core.tree import path_up
from drfd.core.yarn import YarnKey, yarn_key

Policy = Callable[[Situation], Plan]


def plan_by(
    policy: str,
    *,
    queues: Mapping[str, LeafQueue],
    used: Mapping[str, Vector],
    free: Vector,
    shares: FairShare,
    spent: Mapping[str, float] | None = None,
    outlook: Outlook | None = None,
    terms: Terms = PLAIN_TERMS,
) -> Plan:
    """One pass by the policy of this name; see `core.admission.plan`."""
    given = Situation(
        queues=queues,
        used=used,
        free=free,
        shares=shares,
        spent=spent or {},
        outlook=outlook,
        terms=terms,
    )
    return POLICIES[policy](given)


def drf(given: Situation) -> Plan:
    return plan(
        queues=given.queues,
        used=given.used,
        free=given.free,
        shares=given.shares,
        spent=given.spent,
        outlook=given.outlook,
    )


def algorithm1(given: Situation) -> Plan:
    """Algorithm 1 of the DRF paper, literally: the least dominant share is served, and when its
    next job does not fit, nobody is."""
    tally = Tally(given)
    turns = Turns(tally, _by_parts(tally, given, max), given.spent)
    while leaf := turns.least():
        head = tally.head(leaf)
        assert head is not None
        if not tally.fits_free(head[1]):
            break
        if fits(head[1], tally.room(leaf)):
            tally.admit(leaf, head)
            turns.refresh(leaf)
        else:
            # Its own limit keeps it back, which is no reason to stop the others.
            turns.drop(leaf)
    return tally.plan(turns.order())


def hdrf_naive(given: Situation) -> Plan:
    """Siblings are compared by their own dominant shares, so a child whose sibling is rich in
    another resource starves."""
    tally = Tally(given)
    return _served(tally, Turns(tally, _by_parts(tally, given, max), given.spent))


def asset(given: Situation) -> Plan:
    """Asset fairness: the least sum of shares of all resources is served (section 5.1)."""
    tally = Tally(given)
    return _served(tally, Turns(tally, _by_parts(tally, given, sum), given.spent))


def cpu(given: Situation) -> Plan:
    """Max-min fairness of the first resource alone."""
    tally = Tally(given, binding=(0,) if given.terms.overcommit else None)
    return _served(tally, Turns(tally, _by_parts(tally, given, itemgetter(0)), given.spent))


def slots(given: Situation) -> Plan:
    """Max-min fairness of so many slots, one for each job, whatever it needs."""
    assert given.terms.slots is not None, "how many slots?"
    tally = Tally(given, binding=() if given.terms.overcommit else None)
    factors = _factors({path: (tally.standing.entitlement(path),) for path in _nodes(given)}, (1,))

    def key(path: str) -> int:
        return tally.count.get(path, 0) * factors[path][0]

    left = given.terms.slots - sum(given.terms.running.values())
    return _served(tally, Turns(tally, key, given.spent), most=left)


def yarn(given: Situation) -> Plan:
    """The fair scheduler of Hadoop with its policy "drf"; guarantees are minimum shares. What a
    queue has used lately plays no part: of equal ones the one that waits longest is served."""
    tally = Tally(given)

    def key(path: str) -> YarnKey:
        rule = given.shares.rule(path)
        held = tally.standing.used[path]
        return yarn_key(held, given.shares.capacity, rule.weights, rule.guarantee)

    return _served(tally, Turns(tally, key, {}))


#: Those that a daemon may run by; the others are for simulations.
CONFIGURABLE = ("drf", "fifo", "asset", "cpu", "slots")

POLICIES: Mapping[str, Policy] = {
    "drf": drf,
    "fifo": fifo,
    "easy": easy,
    "slots": slots,
    "cpu": cpu,
    "asset": asset,
    "algorithm1": algorithm1,
    "hdrf-naive": hdrf_naive,
    "yarn": yarn,
}


def _served(tally: Tally, turns: Turns, *, most: int | None = None) -> Plan:
    """Launch at most so many; a leaf that has nothing that fits is passed over."""
    while (most is None or len(tally.given) < most) and (leaf := turns.least()):
        head = tally.first_fit(leaf)
        if head is None:
            turns.drop(leaf)
        else:
            tally.admit(leaf, head)
            turns.refresh(leaf)
    return tally.plan(turns.order())


def _by_parts(
    tally: Tally, given: Situation, measure: Callable[[list[int]], int]
) -> Callable[[str], int]:
    """What a node holds of each resource over what it is entitled to, as one number."""
    entitled = {path: tally.standing.entitled(path) for path in _nodes(given)}
    factors = _factors(entitled, given.shares.capacity)
    used = tally.standing.used

    def key(path: str) -> int:
        pairs = zip(used[path], factors[path], strict=True)
        return measure([amount * factor for amount, factor in pairs])

    return key


def _nodes(given: Situation) -> set[str]:
    return {path for leaf in given.queues for path in path_up(leaf)}


def _factors(entitled: Mapping[str, Shares], capacity: Vector) -> dict[str, tuple[int, ...]]:
    """Integers by which amounts are multiplied to compare what nodes hold with what they are
    entitled to: all in one unit, so that nothing is rounded."""
    kinds: dict[Shares, list[Fraction]] = {}
    for parts in entitled.values():
        if parts not in kinds:
            pairs = zip(parts, capacity, strict=True)
            # Of what the machine lacks, and of what a node may have nothing, nobody holds anything.
            kinds[parts] = [1 / (part * top) if part and top else ZERO for part, top in pairs]
    unit = lcm(*(each.denominator for row in kinds.values() for each in row))
    whole = {parts: tuple(int(each * unit) for each in row) for parts, row in kinds.items()}
    return {path: whole[parts] for path, parts in entitled.items()}
