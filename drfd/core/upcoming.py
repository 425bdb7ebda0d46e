"""In which order those who wait would start if room came up now, one after the other.

For people to look at: the order in which leaves are served, while each gets what it asks for. What
would not fit beside what, and what is kept for whom, is left out; `core.forecast` knows better, and
takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, merge
from typing import NamedTuple

from drfd.core.ladder import Ladder
from drfd.core.ledger import Ledger
from drfd.core.plan import Plan
from drfd.core.queue import LeafQueue, Run
from drfd.core.resources import Vector
from drfd.core.rules import Rules


class Next(NamedTuple):
    """Jobs of one leaf that stand together: one, or tasks of an array without a record."""

    run: Run
    demand: Vector

    @property
    def size(self) -> int:
        _, first, last = self.run
        return last - first + 1


def upcoming(
    ledger: Ledger, last: Plan | None, rules: Rules, spent: Mapping[str, float]
) -> Iterator[Next]:
    """All who stand in queues. The tables may not change until it is read as far as is wanted.
    `last`: the latest pass, if any yet; `spent` decides ties (see `core.history`)."""
    if rules.policy == "drf":
        return _by_shares(ledger, last, rules, spent)
    if rules.policy == "fifo":
        return _by_age(ledger)
    return _in_turn(ledger, last)


def line(queue: LeafQueue) -> Iterator[Next]:
    """The jobs of one leaf, in its own order."""
    return merge(*(_entries(demand, queue) for demand in queue.groups))


def _entries(demand: Vector, queue: LeafQueue) -> Iterator[Next]:
    return (Next(run, demand) for run in queue.groups[demand].runs())


def _by_shares(
    ledger: Ledger, last: Plan | None, rules: Rules, spent: Mapping[str, float]
) -> Iterator[Next]:
    known = None if last is None else last.standing
    if known is None or not all(leaf in known.nodes for leaf in ledger.queues):
        known = rules.shares.standing(ledger.used, ledger.queues)
    standing = known.as_held()
    ladder = Ladder(standing, spent)
    lines = {leaf: line(queue) for leaf, queue in ledger.queues.items()}
    heads = {leaf: next(entries) for leaf, entries in lines.items()}
    for leaf, head in heads.items():
        ladder.put(leaf, head.run[1])
    while (leaf_ := ladder.next_leaf()) is not None:
        given = heads[leaf_]
        yield given
        standing.hold(leaf_, tuple([amount * given.size for amount in given.demand]))
        following = next(lines[leaf_], None)
        if following is not None:
            heads[leaf_] = following
        ladder.put(leaf_, None if following is None else following.run[1])


def _by_age(ledger: Ledger) -> Iterator[Next]:
    """The turn of a leaf is that of its first job."""
    lines = {leaf: line(queue) for leaf, queue in ledger.queues.items()}
    heads = [(each.run[1], leaf, each) for leaf, some in lines.items() for each in [next(some)]]
    heapify(heads)
    while heads:
        _, leaf, given = heappop(heads)
        yield given
        following = next(lines[leaf], None)
        if following is not None:
            heappush(heads, (following.run[1], leaf, following))


def _in_turn(ledger: Ledger, last: Plan | None) -> Iterator[Next]:
    """One of each leaf, and again."""
    known = [] if last is None else [leaf for leaf in last.order if leaf in ledger.queues]
    lines = [line(ledger.queues[leaf]) for leaf in dict.fromkeys([*known, *ledger.queues])]
    while lines:
        left = []
        for each in lines:
            given = next(each, None)
            if given is not None:
                yield given
                left.append(each)
        lines = left
