"""Big jobs start, and nothing idles without reason: streams of jobs under a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from core.passes import plan
from drfd.core.amounts.vectors import Vector, fits, minus, plus, total
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.queue import LeafQueue
from drfd.core.model.events import StartReason
from drfd.core.scheduling.backfill import (
    Availability,
    Coming,
    PassContext,
    Reservation,
    ReservationRequest,
    allows,
    reserve,
    shadow,
    taken,
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


SOON = ReservationSettings(patience_s=5, drain_after_s=10_000)
NEVER = ReservationSettings(reserves=False)


def busy_stream(patience: ReservationSettings) -> tuple[Machine, int]:
    """Small jobs of two users keep the machine full; a third asks for nine tenths of it."""
    machine = Machine((10,), patience)
    random = Random(1)
    big = -1
    for second in range(400):
        for leaf in ("a", "b"):
            while sum(machine.tasks[n].leaf == leaf for n in machine.waiting) < 10:
                machine.submit(leaf, (1,), random.choice([3.0, 5.0, 7.0, 11.0]))
        if second == 20:
            big = machine.submit("c", (9,), 10.0)
        machine.run_until(second + 1.0)
    return machine, big


def test_a_job_of_most_of_the_machine_starts_in_a_busy_stream() -> None:
    machine, big = busy_stream(SOON)
    start_s = machine.tasks[big].start_s
    assert start_s is not None
    # Patience, then the longest job that runs by then, and a tick.
    assert start_s <= 20 + 5 + 11 + 2


def test_no_user_starves_his_own_big_job_in_an_endless_stream() -> None:
    """The small jobs of c keep its share up, and so the big jobs of others come first: until the
    one of c has waited longest of all."""
    machine = Machine((12,), ReservationSettings(patience_s=5, drain_after_s=60))
    random, big = Random(1), -1
    for second in range(400):
        for leaf in "ab":
            while sum(machine.tasks[n].leaf == leaf for n in machine.waiting) < 3:
                machine.submit(leaf, (10,), 5.0)
        while sum(machine.tasks[n].leaf == "c" for n in machine.waiting) < 10:
            machine.submit("c", (1,), random.choice([3.0, 5.0, 7.0, 11.0]))
        if second == 20:
            big = machine.submit("c", (12,), 5.0)
        machine.run_until(second + 1.0)
    start_s = machine.tasks[big].start_s
    # When it has waited too long, two others may have their turn, each after the longest job.
    assert start_s is not None and start_s <= 20 + 60 + 3 * (11 + 5 + 5)
    small = [t for t in machine.tasks if t.demand == (1,) and t.start_s and t.start_s > start_s]
    assert len(small) > 50, "the stream goes on"


def test_who_has_waited_for_long_in_a_long_queue_is_no_reason_to_let_anything_idle() -> None:
    """It starts when it was told to, so nothing is in its way but those that run."""
    machine = Machine((8,), ReservationSettings(patience_s=5, drain_after_s=20))
    machine.submit("x", (6,), 100.0)
    machine.schedule()
    big = machine.submit("a", (8,), 10.0)
    machine.run_until(50)
    short, long = machine.submit("b", (2,), 40.0), machine.submit("c", (2,), 60.0)
    machine.run_until(200)
    starts = [machine.tasks[number].start_s for number in (short, big, long)]
    assert starts == [51, 100, 110]


def test_of_those_that_wait_too_long_one_at_a_time_keeps_back_later_jobs_of_its_leaf() -> None:
    machine = Machine((8,), ReservationSettings(patience_s=0, drain_after_s=20))
    machine.submit("x", (6,), 100.0)
    machine.schedule()
    for leaf in "abc":
        machine.submit(leaf, (8,), 10.0)
        machine.run_until(machine.now_s + 1)
    machine.run_until(30)
    assert reserved(machine) == [1]
    late = [machine.submit(leaf, (1,), 5.0) for leaf in "abc"]
    machine.run_until(60)
    assert machine.last is not None and machine.last.starvation_guard == 2
    starts = [machine.tasks[number].start_s for number in late]
    assert starts == [31, None, 31], "a has a place, and b has waited longer than c"
    machine.run_until(200)
    assert [machine.tasks[number].start_s for number in range(1, 4)] == [100, 110, 120]
    assert machine.waiting == []


def test_without_reservations_the_same_job_starves() -> None:
    machine, big = busy_stream(NEVER)
    assert machine.tasks[big].start_s is None


def test_around_the_reservation_the_machine_is_kept_busy() -> None:
    """Short jobs run until the shadow time: with hard draining alone they could not."""
    machine, big = busy_stream(SOON)
    start_s = machine.tasks[big].start_s
    assert start_s is not None
    passed = [t for t in machine.tasks if t.start_s and 26 <= t.start_s < start_s]
    assert passed, "nothing was backfilled"


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


@pytest.mark.parametrize("slack", seeds([0.3, 3.0], quick=1))
def test_with_bad_estimates_every_job_starts_all_the_same(slack: float) -> None:
    for seed in range(10):
        random = Random(seed)
        machine = Machine((8,), ReservationSettings(patience_s=2, drain_after_s=60), slack=slack)
        for _ in range(200):
            for leaf in "ab":
                size = random.choice([1, 1, 1, 2, 8])
                if sum(machine.tasks[n].leaf == leaf for n in machine.waiting) < 6:
                    machine.submit(leaf, (size,), float(random.randint(1, 9)))
            machine.run_until(machine.now_s + 1)
        machine.run_dry()
        waits = [t.start_s - t.submit_s for t in machine.tasks if t.start_s is not None]
        assert len(waits) == len(machine.tasks)
        assert max(waits) < 300


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


def test_a_memory_job_passes_one_that_waits_for_cores() -> None:
    machine = Machine((4, 4), SOON)
    machine.submit("a", (3, 0), 100.0)
    machine.schedule()
    big = machine.submit("b", (4, 0), 10.0)
    machine.run_until(10)
    memory, cores = machine.submit("c", (0, 4), 500.0), machine.submit("d", (1, 0), 500.0)
    machine.run_until(20)
    assert machine.tasks[memory].start_s is not None
    assert machine.tasks[cores].start_s is None
    machine.run_until(101)
    assert machine.tasks[big].start_s == 100


def test_after_every_pass_all_that_the_reservation_allows_has_started() -> None:
    for seed in range(10):
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


def test_a_reservation_is_kept_until_its_job_starts() -> None:
    machine = Machine((4,), SOON)
    machine.submit("a", (3,), 50.0)
    machine.schedule()
    first = machine.submit("b", (4,), 10.0)
    machine.run_until(10)
    second = machine.submit("c", (4,), 1.0)
    for _ in range(30):
        machine.run_until(machine.now_s + 1)
        assert reserved(machine) == [first]
    machine.run_until(100)
    assert machine.tasks[first].start_s == 50
    assert machine.tasks[second].start_s == 60


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


def test_all_that_ends_at_the_shadow_time_is_spare_then() -> None:
    assert shadow_of((2,), 9.0, (0,), [(10.0, (2,)), (10.0, (3,))], 0.0) == (10.0, (3,))


def test_the_shadow_time_of_a_later_one_lies_where_it_hurts_none_before_it() -> None:
    """Of eight, five are held until 10; six are kept from 10 to 20, with two to spare."""
    ends = [(10.0, (5,))]
    first = kept(demand=(6,), start_s=10.0, end_s=20.0, extra=(2,))
    assert shadow_of((3,), 10.0, (3,), ends, 0.0, [first]) == (0.0, (0,)), "ends in time"
    assert shadow_of((2,), 99.0, (3,), ends, 0.0, [first]) == (0.0, (1,)), "fits into the extra"
    assert shadow_of((3,), 11.0, (3,), ends, 0.0, [first]) == (20.0, (5,)), "neither"
    drain = kept(demand=(6,), start_s=10.0, end_s=20.0, extra=(2,), is_drain=True)
    assert shadow_of((3,), 10.0, (3,), ends, 0.0, [drain]) == (20.0, (5,))
    assert shadow_of((2,), 99.0, (3,), ends, 0.0, [drain]) == (10.0, (0,))


def test_a_job_may_pass_if_it_ends_before_or_fits_into_the_spare() -> None:
    assert allows(kept(), (4, 0), 100.0, (4, 0))
    assert allows(kept(), (1, 9), 999.0, (4, 9))
    assert not allows(kept(), (2, 0), 100.1, (4, 9))
    assert taken(kept(), (1, 2), 999.0).extra == (0, 7)
    assert taken(kept(), (1, 2), 50.0).extra == (1, 9)


def test_in_a_drain_nothing_starts_in_what_the_job_needs() -> None:
    drain = kept(is_drain=True)
    assert not allows(drain, (1, 0), 1.0, (3, 9))
    assert allows(drain, (1, 9), 999.0, (5, 9))
    assert allows(drain, (0, 3), 999.0, (3, 9))


def test_a_job_that_is_late_by_its_first_shadow_time_turns_its_place_into_a_drain() -> None:
    """Though its time is put off before it has passed, again and again."""
    rules = ReservationSettings(patience_s=1, drain_after_s=60)
    found: Reservation | None = None
    drains = []
    for now_s, end_s in ((0.0, 10.0), (9.0, 40.0), (39.0, 80.0), (70.0, 99.0), (70.1, 99.0)):
        found = reserve(
            ReservationRequest(job_id=1, leaf="a", demand=(4,), length_s=5.0, before=found),
            Availability(free=(0,), now_s=now_s, ends=[(end_s, (4,))]),
            rules,
        )
        assert found is not None
        drains.append(found.is_drain)
    assert found is not None and (found.missed, found.due_s) == (0, 10.0)
    assert drains == [False, False, False, False, True]


def test_a_shadow_time_that_has_passed_twice_turns_into_a_drain() -> None:
    rules = ReservationSettings(patience_s=1, drain_after_s=10_000)
    found: Reservation | None = None
    for now_s, end_s in ((0.0, 10.0), (11.0, 20.0), (21.0, 30.0)):
        found = reserve(
            ReservationRequest(job_id=1, leaf="a", demand=(4,), length_s=5.0, before=found),
            Availability(free=(0,), now_s=now_s, ends=[(end_s, (4,))]),
            rules,
        )
    assert found is not None
    assert (found.missed, found.is_drain) == (2, True)


# -- several at a time -------------------------------------------------------------------------

TWO = ReservationSettings(patience_s=5, drain_after_s=10_000, depth=2)


def crowded(patience: ReservationSettings) -> tuple[Machine, list[int]]:
    """Six of eight are held until 100; three leaves have each waited ten seconds for more than the
    rest."""
    machine = Machine((8,), patience)
    machine.submit("x", (6,), 100.0)
    machine.schedule()
    big = [machine.submit(leaf, (5,), 50.0) for leaf in "abc"]
    machine.run_until(10)
    return machine, big


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_as_many_jobs_have_a_place_as_the_depth_says(depth: int) -> None:
    machine, big = crowded(ReservationSettings(patience_s=5, drain_after_s=10_000, depth=depth))
    assert reserved(machine) == big[:depth]
    machine.run_until(400)
    assert [machine.tasks[number].start_s for number in big] == [100, 150, 200]


def test_each_place_lies_behind_those_before_it() -> None:
    machine, _ = crowded(ReservationSettings(patience_s=5, drain_after_s=10_000, depth=3))
    assert machine.last is not None
    assert [
        (each.start_s, each.end_s, each.extra) for each in machine.last.reservations
    ] == [(100, 150, (3,)), (150, 200, (3,)), (200, 250, (3,))]  # fmt: skip


def test_what_would_hurt_only_the_second_place_is_kept_back_by_it() -> None:
    """It fits into the extra of the first, so that with one place it delays the other big job."""
    for patience, starts in ((TWO, False), (SOON, True)):
        machine = Machine((8,), patience)
        machine.submit("x", (6,), 100.0)
        machine.schedule()
        first = machine.submit("a", (6,), 20.0)
        second = machine.submit("b", (8,), 10.0)
        machine.run_until(10)
        small = machine.submit("c", (2,), 130.0)
        machine.run_until(20)
        assert (machine.tasks[small].start_s is not None) is starts
        machine.run_until(300)
        assert machine.tasks[first].start_s == 100
        assert machine.tasks[second].start_s == (120 if patience is TWO else 141)


def test_a_job_that_fits_and_would_hurt_gets_the_next_place_when_it_has_waited_long() -> None:
    """Else others that fit and end sooner could pass it for ever."""
    for patience in (TWO, SOON):
        machine = Machine((8,), patience)
        machine.submit("x", (6,), 100.0)
        machine.schedule()
        big = machine.submit("a", (8,), 10.0)
        machine.run_until(6)
        late = machine.submit("b", (2,), 500.0)
        machine.run_until(10)
        assert reserved(machine) == [big]
        machine.run_until(20)
        assert reserved(machine) == [big, late][: patience.depth]
        machine.run_until(300)
        assert [machine.tasks[number].start_s for number in (big, late)] == [100, 110]


def test_places_are_kept_in_their_order_and_a_lower_depth_keeps_the_first() -> None:
    machine, big = crowded(ReservationSettings(patience_s=5, drain_after_s=10_000, depth=3))
    machine.submit("d", (5,), 1.0)
    machine.run_until(50)
    assert reserved(machine) == big
    machine.patience = TWO
    machine.run_until(60)
    assert reserved(machine) == big[:2]
    machine.waiting.remove(big[0])
    machine.run_until(61)
    assert reserved(machine) == big[1:]
    machine.patience = NEVER
    machine.run_until(70)
    assert reserved(machine) == []


@pytest.mark.parametrize("patience", [SOON, TWO, NEVER])
def test_a_job_that_room_was_made_for_is_kept_beyond_the_depth(
    patience: ReservationSettings,
) -> None:
    """Others start only in what it does not need, however soon they end."""
    machine, big = crowded(patience)
    assert machine.last is not None
    chosen = machine.submit("z", (7,), 10.0)
    # Preempted jobs are stopping: they give back what they hold in a few seconds.
    room = kept(job_id=chosen, leaf="z", demand=(7,), is_drain=True, is_forced=True)
    machine.last = replace(machine.last, reservations=(room, *machine.last.reservations))
    quick = machine.submit("q", (1,), 1.0)
    machine.run_until(30)
    assert reserved(machine) == [chosen, *big[: patience.depth if patience.reserves else 0]]
    assert machine.last.reservations[0].is_drain
    assert machine.tasks[quick].start_s is None
    machine.run_until(300)
    assert machine.tasks[chosen].start_s == 100
    assert machine.waiting == []


def test_a_reservation_that_was_forced_goes_when_its_job_does() -> None:
    machine, _ = crowded(NEVER)
    assert machine.last is not None
    room = kept(job_id=99, leaf="z", demand=(7,), is_drain=True, is_forced=True)
    machine.last = replace(machine.last, reservations=(room,))
    machine.run_until(20)
    assert reserved(machine) == []


def test_a_plan_says_by_which_rule_each_job_starts() -> None:
    """Without it, an audit cannot tell a start from a kept place from a fault of the scheduler."""
    machine = Machine((10,), SOON)
    machine.submit("a", (6,), 50.0)
    machine.run_until(1.0)
    assert machine.last is not None
    assert machine.last.start_reason(0) is StartReason.TURN
    big = machine.submit("b", (9,), 10.0)
    machine.run_until(10.0)
    assert reserved(machine) == [big]
    beside = machine.submit("c", (1,), 5.0)
    while machine.tasks[beside].start_s is None:
        machine.run_until(machine.now_s + 1.0)
        assert machine.last is not None
    assert machine.last.admitted == [beside]
    assert machine.last.start_reason(beside) is StartReason.BACKFILL
    while machine.tasks[big].start_s is None:
        machine.run_until(machine.now_s + 1.0)
    assert machine.last.admitted == [big]
    assert machine.last.start_reason(big) is StartReason.RESERVATION


@pytest.mark.parametrize("seed", range(20))
def test_the_shadow_time_is_the_first_moment_at_which_enough_has_come_back(seed: int) -> None:
    """Of hundreds of ends, which are summed many at a time; some come at one moment."""
    random = Random(seed)
    ends = [
        (float(random.randint(0, 150)), (random.choice((0, 1, 2)), random.randint(0, 5)))
        for _ in range(random.choice((1, 63, 64, 65, 300)))
    ]
    free, now_s = (random.randint(-3, 3), random.randint(0, 3)), 10.0
    demand = (random.randint(0, 300), random.randint(0, 500))
    availability = Availability(free=free, now_s=now_s, ends=ends)
    expected = None
    for at_s in sorted({now_s, *(end_s for end_s, _ in ends if end_s > now_s)}):
        back = total((held for end_s, held in ends if end_s <= at_s), free)
        if fits(demand, back):
            expected = at_s, minus(back, demand)
            break
    found = shadow(demand, 60.0, availability)
    assert (found and (found.start_s, found.extra)) == expected
