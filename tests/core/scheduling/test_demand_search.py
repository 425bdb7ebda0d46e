"""A pass that searches leaves with many unlike vectors admits exactly what one admits that looks at
every vector; and what it reads, and what a change costs, hardly grows with the vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import pytest

from core.worlds import run_pass
from core.scheduling.test_wait_index import DEEP, FLAT, Stream, told
from drfd.core.amounts.node_room import NodeDemand
from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.share_tree import FairShare
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.demand_tree import ANY_LENGTH, Demands
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex
from seeds import seeds

ALL = 1 << 30
#: Between pools that are as satisfied and have used as much, nothing is said of who comes first.
POOLS = {"root.p": 0.11, "root.q": 0.12, "root.q.x": 0.13}


@dataclass
class Unlike(Stream):
    """Machines on which many ask for unlike vectors, with limits of time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random.random() < 0.5:
            self.capacity = tuple(10 * amount for amount in self.capacity)
        self.menu = [self._demand() for _ in range(self.random.choice([1, 3, 8, 20, 60]))]
        self.shares = FairShare(self.capacity, self._rules() if self.with_rules else {})
        self.past_usage.update(POOLS)

    def move(self) -> None:
        super().move()
        self.past_usage.update(POOLS)

    def limit_s(self, job_id: int) -> int:
        return int(self.waiting[job_id].length_s)

    def pass_context(self) -> PassContext:
        # Nothing runs for longer than 20, and for less than its limit.
        return replace(super().pass_context(), guess_s=lambda job_id: 20.0)

    def lined_up(self, few: int) -> WaitIndex:
        tables = LeafTables(
            queues=self.queues, used=self.used, shares=self.shares, past_usage=self.past_usage,
            recent=self.short.counted, limit_s=self.limit_s,
        )  # fmt: skip
        return WaitIndex(tables, few=few)


@pytest.mark.slow
@pytest.mark.parametrize("with_rules", seeds([True, False], quick=1))
@pytest.mark.parametrize("leaves", seeds([DEEP, FLAT], quick=1))
@pytest.mark.parametrize("begin", seeds(range(0, 200, 50), quick=1))
def test_what_is_searched_admits_what_a_look_at_every_vector_admits(
    leaves: tuple[str, ...], with_rules: bool, begin: int
) -> None:
    launches = reserved = 0
    for seed in range(begin, begin + 50):
        stream = Unlike(Random(seed), leaves, with_rules)
        kept = [stream.lined_up(few) for few in (0, 2, 6)]

        def touch(
            leaf: str, demands: Iterable[Vector] | None, kept: list[WaitIndex] = kept
        ) -> None:
            for wait_index in kept:
                wait_index.touch(leaf, demands)

        stream.touch = touch
        for step in range(25):
            stream.move()
            pass_context = stream.pass_context() if seed % 4 else None
            plain = run_pass(stream.lined_up(ALL), free=stream.free(), pass_context=pass_context)
            for wait_index in kept:
                done = run_pass(wait_index, free=stream.free(), pass_context=pass_context)
                assert told(done) == told(plain), (seed, step, wait_index._few)
                assert done.reasons == plain.reasons
            launches += len(plain.admitted)
            reserved += bool(plain.reservations)
            stream.start(plain)
    assert launches > 300
    assert reserved > 50


@pytest.mark.parametrize("lives", seeds([15, 100], quick=1))
def test_what_is_found_is_the_first_within_bounds(lives: int) -> None:
    for seed in range(lives):
        random = Random(seed)
        capacity = tuple(
            random.choice([0, 5, 20, 1000, 1 << 40]) for _ in range(random.randint(1, 4))
        )
        demands, model = Demands(capacity), dict[Vector, tuple[tuple[int, int], int]]()
        for step in range(200):
            demand = tuple(random.randint(0, 1 + int(1.3 * top)) for top in capacity)
            if random.random() < 0.2:
                # Of one node, while the same amounts may be asked for of any other, or of all.
                demand = NodeDemand(demand, frozenset(random.choice("abc")))
            if random.random() < 0.6:
                model[demand] = (random.randint(-2, 2), step), random.choice([0, 5, 50])
                demands.put(demand, *model[demand])
            elif model:
                gone = random.choice(list(model))
                del model[gone]
                demands.drop(gone)
            bounds = (*(random.randint(0, top + 1) for top in capacity), random.choice([0, 5, 99]))
            within = [
                (entry, demand)
                for demand, (entry, least_s) in model.items()
                if all(map(int.__le__, (*demand, least_s), bounds))
            ]
            found = demands.first(bounds)
            assert (found and (found.entry, found.demand)) == min(within, default=None)
            even = [each for each in within if each[0][1] % 2 == 0]
            found = demands.first(bounds, lambda item: item.entry[1] % 2 == 0)
            assert (found and (found.entry, found.demand)) == min(even, default=None)


def antichain(count: int) -> list[Vector]:
    """None of them asks for more than another on both axes: no one stands for others."""
    return [(1 + at, count - at) for at in range(count)]


def test_few_of_many_unlike_demands_are_read_in_a_search() -> None:
    def looks(count: int) -> int:
        demands = Demands((count, count))
        for at, demand in enumerate(Random(1).sample(antichain(count), count)):
            demands.put(demand, (0, at), 60)
        bounds = [(count // 2, count // 2, ANY_LENGTH), (count, count, 59), (count // 3, count, 99)]
        assert [bool(demands.first(each)) for each in bounds] == [False, False, True]
        return demands.examined

    assert looks(1_000) < 200
    assert looks(4_000) < 400
