"""Big jobs start, and nothing idles without reason: streams of jobs under a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from core.worlds import plan
from drfd.core.amounts.vectors import Vector, fits, minus, plus, total
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.backfill import (
    Availability,
    Coming,
    PassContext,
    Reservation,
    allows,
    shadow,
)
from drfd.core.scheduling.plan import Plan
from seeds import seeds


@dataclass
class Task:
    leaf: str
    demand: Vector
    run_s: float
    submit_s: float
    start_s: float | None = None


@dataclass
class Machine:
    """One machine, whose estimates are exact (times `slack`)."""

    capacity: Vector
    patience: ReservationSettings
    slack: float = 1.0
    now_s: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    last: Plan | None = None
    #: The first shadow time that each reserved job was given.
    promised: dict[int, float] = field(default_factory=dict)

    def submit(self, leaf: str, demand: Vector, run_s: float) -> int:
        self.tasks.append(Task(leaf, demand, run_s, self.now_s))
        self.waiting.append(len(self.tasks) - 1)
        return len(self.tasks) - 1

    def schedule(self) -> None:
        queues: dict[str, LeafQueue] = {}
        for number in self.waiting:
            task = self.tasks[number]
            queues.setdefault(task.leaf, LeafQueue()).add(task.demand, (0, number))
        used: dict[str, Vector] = {}
        nothing = (0,) * len(self.capacity)
        for number in self.running:
            task = self.tasks[number]
            used[task.leaf] = plus(used.get(task.leaf, nothing), task.demand)
        free = minus(self.capacity, total(used.values(), nothing))
        assert all(amount >= 0 for amount in free), "never more than there is"
        self.last = plan(
            queues=queues, used=used, free=free, shares=FairShare(self.capacity),
            pass_context=self.pass_context(),
        )  # fmt: skip
        for number in self.last.admitted:
            self.tasks[number].start_s = self.now_s
            self.waiting.remove(number)
            self.running.append(number)
        for kept in self.last.reservations:
            self.promised.setdefault(kept.job_id, kept.start_s)

    def pass_context(self) -> PassContext:
        return PassContext(
            now_s=self.now_s,
            patience=self.patience,
            ends=[(self.end_s(number), self.tasks[number].demand) for number in self.running],
            since_s=lambda number: self.tasks[number].submit_s,
            length_s=lambda number: self.tasks[number].run_s * self.slack,
            entry=lambda number: (0, number) if number in self.waiting else None,
            before=self.last.reservations if self.last is not None else (),
        )

    def end_s(self, number: int) -> float:
        task = self.tasks[number]
        assert task.start_s is not None
        return max(self.now_s, task.start_s + task.run_s * self.slack)

    def run_dry(self) -> None:
        """Until nothing waits."""
        until_s = self.now_s + 3000
        while self.waiting and self.now_s < until_s:
            self.run_until(self.now_s + 1)
        assert self.waiting == []

    def run_until(self, until_s: float, tick_s: float = 1.0) -> None:
        """Ends and passes, at every end and at every tick."""
        while self.now_s < until_s:
            ends = [self.tasks[n].start_s + self.tasks[n].run_s for n in self.running]  # type: ignore[operator]
            self.now_s = min([until_s, self.now_s + tick_s, *ends])
            self.running = [
                n
                for n in self.running
                if self.tasks[n].start_s + self.tasks[n].run_s > self.now_s + 1e-9  # type: ignore[operator]
            ]
            self.schedule()


def reserved(machine: Machine) -> list[int]:
    """The jobs that have a place, in order."""
    assert machine.last is not None
    return [kept.job_id for kept in machine.last.reservations]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.slow
def test_with_exact_estimates_a_reserved_job_starts_when_it_was_promised(depth: int) -> None:
    deepest = 0
    for seed in range(20):
        random = Random(seed)
        machine = Machine(
            (8, 8), ReservationSettings(patience_s=2, drain_after_s=10_000, depth=depth)
        )
        for _ in range(120):
            for leaf in "abc":
                if random.random() < 0.5:
                    demand = (random.randint(0, 4), random.randint(0, 4))
                    if random.random() < 0.1:
                        demand = (random.randint(6, 8), random.randint(0, 8))
                    machine.submit(leaf, demand, float(random.randint(1, 9)))
            machine.run_until(machine.now_s + 1)
            assert machine.last is not None
            deepest = max(deepest, len(machine.last.reservations))
        machine.run_dry()
        assert machine.promised, "no job was ever reserved for"
        for number, promised_s in machine.promised.items():
            start_s = machine.tasks[number].start_s
            assert start_s is not None and start_s <= promised_s, (seed, number)
    assert deepest == min(depth, 3), "there are three leaves, and each has one head"


def test_a_job_that_can_never_start_does_not_keep_its_leaf_from_starting_others() -> None:
    """The machine was larger when it was submitted. Those behind it start, and get a place."""
    machine = Machine((10,), ReservationSettings(patience_s=0, drain_after_s=20))
    for _ in range(50):
        machine.submit("b", (6,), 10.0)
    machine.submit("a", (12,), 5.0)
    small = machine.submit("a", (4,), 5.0)
    machine.run_until(25.0)
    late = machine.submit("a", (4,), 5.0)
    large = machine.submit("a", (9,), 5.0)
    machine.run_until(60.0)
    starts = [machine.tasks[number].start_s for number in (small, late, large)]
    assert starts == [1.0, 26.0, 41.0]


@pytest.mark.parametrize("lives", seeds([2, 10], quick=1))
def test_after_every_pass_all_that_the_reservation_allows_has_started(lives: int) -> None:
    for seed in range(lives):
        random = Random(seed)
        machine = Machine((6, 6), ReservationSettings(patience_s=1, drain_after_s=10_000))
        for _ in range(60):
            for leaf in "abc":
                if random.random() < 0.6:
                    demand = (random.randint(0, 6), random.randint(0, 6))
                    machine.submit(leaf, demand, float(random.randint(1, 9)))
            machine.run_until(machine.now_s + 1)
            assert machine.last is not None
            free, kept = machine.last.free, machine.last.reservations
            looked_at = set()
            for number in machine.waiting:
                task = machine.tasks[number]
                # Of the jobs of one leaf that ask for the same, only the first is looked at.
                if (task.leaf, task.demand) in looked_at:
                    continue
                looked_at.add((task.leaf, task.demand))
                if fits(task.demand, free):
                    end_s = machine.now_s + task.run_s
                    assert not all(allows(each, task.demand, end_s, free) for each in kept), (
                        seed, task,
                    )  # fmt: skip


# -- the parts ---------------------------------------------------------------------------------


def kept(**changes: object) -> Reservation:
    plain: dict[str, object] = {
        "job_id": 1, "leaf": "a", "demand": (4, 0), "start_s": 100.0, "end_s": 200.0,
        "extra": (1, 9), "due_s": 100.0,
    }  # fmt: skip
    demand = changes.get("demand", plain["demand"])
    return Reservation(**({"held": demand} | plain | changes))  # type: ignore[arg-type]


def shadow_of(
    demand: Vector,
    length_s: float,
    free: Vector,
    ends: Coming,
    now_s: float,
    reserved: Sequence[Reservation] = (),
) -> tuple[float, Vector] | None:
    availability = Availability(free=free, now_s=now_s, ends=ends, reservations=reserved)
    found = shadow(demand, length_s, availability)
    assert found is None or found.held == demand
    return None if found is None else (found.start_s, found.extra)


def test_the_shadow_time_is_the_first_moment_at_which_it_fits() -> None:
    ends = [(30.0, (2,)), (10.0, (1,)), (20.0, (3,))]
    assert shadow_of((5,), 9.0, (1,), ends, 0.0) == (20.0, (0,))
    assert shadow_of((2,), 9.0, (2,), ends, 5.0) == (5.0, (0,))
    assert shadow_of((9,), 9.0, (1,), ends, 0.0) is None


def test_with_nothing_kept_it_is_found_as_beside_what_hurts_nobody() -> None:
    """Without reservations a shorter way is taken."""
    random = Random(5)
    for _ in range(3000):
        size = random.choice((1, 2, 3))
        free = tuple(random.choice((-1, 0, 1, 3)) for _ in range(size))
        ends = [
            (random.choice((-5.0, 0.0, 1.0, 2.0, 7.0)), vector(random, size, 3))
            for _ in range(random.randrange(7))
        ]
        asked = vector(random, size, 5)
        harmless = kept(demand=(0,) * size, start_s=1e9, end_s=2e9, extra=(99,) * size)
        found = shadow_of(asked, 1.0, free, ends, 0.0)
        beside = shadow_of(asked, 1.0, free, ends, 0.0, [harmless])
        assert found == (None if beside is None or beside[0] >= 1e9 else beside)


def vector(random: Random, size: int, most: int) -> tuple[int, ...]:
    return tuple(random.choice((0, 0, 1, 2, most)) for _ in range(size))


# -- several at a time -------------------------------------------------------------------------
