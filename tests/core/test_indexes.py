"""Tables that are kept between passes: each gives what one made anew would, and a pass over them
does not grow with users or queues.

They are there for speed alone; what passes decide is tested elsewhere.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bench.load import Load, Shape
from core.oracle import line
from core.worlds import lines_counted, plan, run_pass
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.service_order import ShortJobs
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import Entry, JobsOfClass, LeafQueue, Line, TaskIds
from drfd.core.model.machine import Vector, minus, plus
from drfd.core.scheduling.backfill import PassContext, Reservation
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex
from seeds import examples, seeds

# -- who waits -------------------------------------------------------------------------------------


FLAT = ("root.a", "root.b", "root.c", "root.d")
DEEP = ("root.a", "root.p.b", "root.p.c", "root.q.d", "root.q.e", "root.q.x.f", "root.q.x.g")


# -- random machines -------------------------------------------------------------------------------


@dataclass
class Waiting:
    leaf: str
    demand: Vector
    priority: int
    length_s: float
    since_s: float

    def entry(self, job_id: int) -> Entry:
        return -self.priority, job_id


@dataclass
class Stream:
    """Jobs of random users come, run and go; the tables are those that a line-up is made over."""

    random: Random
    leaves: tuple[str, ...]
    with_rules: bool
    now_s: float = 0.0
    queues: dict[str, LeafQueue] = field(default_factory=dict)
    used: dict[str, Vector] = field(default_factory=dict)
    past_usage: dict[str, float] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    #: Running jobs with their real ends.
    running: dict[int, tuple[Waiting, float, float]] = field(default_factory=dict)
    before: tuple[Reservation, ...] = ()
    short: ShortJobs = field(default_factory=ShortJobs)
    touch: Callable[[str, Iterable[Vector]], None] = lambda leaf, demands: None
    next_id: int = 1

    def __post_init__(self) -> None:
        random = self.random
        axes = random.randint(1, 3)
        self.capacity = tuple(random.choice([0, *range(4, 13)]) for _ in range(axes))
        self.menu = [self._demand() for _ in range(random.randint(1, 6))]
        self.shares = FairShare(self.capacity, self._rules() if self.with_rules else {})
        self.reserving = ReservationSettings(
            delay_s=random.choice([0, 2, 5]),
            drain_after_s=random.choice([10, 30, 1000]),
            reserves=random.random() < 0.9,
            depth=random.choice([1, 1, 2, 4]),
        )

    def _demand(self) -> Vector:
        parts = self.random.choice([1, 3, 3])
        return tuple(self.random.randint(0, top // parts) for top in self.capacity)

    def _rules(self) -> dict[str, NodeRule]:
        random = self.random
        nodes = {path for leaf in self.leaves for path in line(leaf)}
        weight = lambda: Fraction(random.randint(1, 4), random.randint(1, 3))  # noqa: E731
        found = {}
        for path in sorted(nodes):
            match random.choice(["plain", "plain", "weight", "weights", "limit", "guarantee"]):
                case "weight":
                    found[path] = NodeRule(weights=(weight(),) * len(self.capacity))
                case "weights":
                    found[path] = NodeRule(weights=tuple(weight() for _ in self.capacity))
                case "limit":
                    limit = [random.choice([None, random.randint(0, top)]) for top in self.capacity]
                    found[path] = NodeRule(limit=tuple(limit))
                case "guarantee":
                    found[path] = NodeRule(
                        guarantee=tuple(random.randint(0, top) for top in self.capacity)
                    )
        return found

    def move(self) -> None:
        """Time passes, or the clock is set back; jobs end, are submitted, cancelled, held and
        released."""
        random = self.random
        self.now_s += random.choice([0, 1, 1, 2, 7]) if random.random() < 0.97 else -20
        for leaf in self.short.forget(self.now_s):
            self.touch(leaf, ())
        for job_id in [n for n, (_, end_s, _) in self.running.items() if end_s <= self.now_s]:
            job, _, _ = self.running.pop(job_id)
            if random.random() < 0.3:
                self.short.add(job.leaf, job.demand, self.now_s + random.choice([1, 5]))
            self._hold(job.leaf, minus(tuple(0 for _ in job.demand), job.demand))
            for path in line(job.leaf):
                self.past_usage[path] = self.past_usage.get(path, 0.0) + random.choice(
                    [0.0, 0.5, 1.0]
                )
        for job_id in sorted(self.waiting):
            if random.random() < 0.04:
                job = self.waiting[job_id]
                self._dequeue(job_id)
                if random.random() < 0.5:
                    job.since_s = self.now_s
                    self._enqueue(job_id, job)
        if random.random() < 0.1:
            leaf = random.choice(self.leaves)
            demands = set[Vector]()
            for job in self.waiting.values():
                if job.leaf == leaf:
                    job.length_s = random.choice([1.0, 3.0, 8.0, 20.0])
                    demands.add(job.demand)
            self.touch(leaf, demands)
        for _ in range(random.choice([0, 1, 1, 2, 4])):
            job = Waiting(
                random.choice(self.leaves),
                random.choice(self.menu),
                random.choice([0, 0, 0, 1, -1]),
                random.choice([1.0, 3.0, 8.0, 20.0]),
                self.now_s,
            )
            self._enqueue(self.next_id, job)
            self.next_id += 1

    def start(self, done: Plan) -> None:
        """What the pass has decided comes into the tables."""
        for job_id in done.admitted:
            job = self.waiting[job_id]
            self._dequeue(job_id)
            real_s = self.random.choice([1.0, 3.0, 8.0, 20.0])
            self.running[job_id] = job, self.now_s + real_s, self.now_s + job.length_s
            self._hold(job.leaf, job.demand)
        self.before = done.reservations

    def free(self) -> Vector:
        free = self.capacity
        for held in self.used.values():
            free = minus(free, held)
        return free

    def pass_context(self) -> PassContext:
        return PassContext(
            now_s=self.now_s,
            reserving=self.reserving,
            ends=lambda: sorted(
                (max(self.now_s, guess_s), number, job.demand)
                for number, (job, _, guess_s) in self.running.items()
            ),
            since_s=lambda number: self.waiting[number].since_s,
            length_s=lambda number: self.waiting[number].length_s,
            entry=lambda number: (
                self.waiting[number].entry(number) if number in self.waiting else None
            ),
            leaf=self.leaf,
            before=self.before,
        )  # fmt: skip

    def leaf(self, number: int) -> str:
        return (self.waiting[number] if number in self.waiting else self.running[number][0]).leaf

    def fresh(self, pass_context: PassContext | None) -> Plan:
        return plan(
            queues=self.queues, used=self.used, free=self.free(), shares=self.shares,
            past_usage=self.past_usage, pass_context=pass_context, recent=self.short.counted,
        )  # fmt: skip

    def wait_index(self) -> WaitIndex:
        tables = LeafTables(
            queues=self.queues, used=self.used, shares=self.shares, past_usage=self.past_usage,
            recent=self.short.counted,
        )  # fmt: skip
        wait_index = WaitIndex(tables)
        self.touch = wait_index.touch
        return wait_index

    def _enqueue(self, job_id: int, job: Waiting) -> None:
        self.waiting[job_id] = job
        line = self.queues.setdefault(job.leaf, {}).setdefault(job.demand, Line())
        line.add(job.entry(job_id))
        self._touch_queue(job)

    def _dequeue(self, job_id: int) -> None:
        job = self.waiting.pop(job_id)
        queue = self.queues[job.leaf]
        ((cls, alike),) = queue[job.demand].items()
        alike.remove(job.entry(job_id))
        if alike:
            queue[job.demand].put(cls, alike)
        else:
            del queue[job.demand]
        if not queue:
            del self.queues[job.leaf]
        self._touch_queue(job)

    def _touch_queue(self, job: Waiting) -> None:
        self.touch(job.leaf, (job.demand,))

    def _hold(self, leaf: str, change: Vector) -> None:
        held = plus(self.used.get(leaf, tuple(0 for _ in change)), change)
        self.used[leaf] = held
        if not any(job.leaf == leaf for job, _, _ in self.running.values()):
            del self.used[leaf]
        self.touch(leaf, ())


def told(done: Plan) -> tuple[Any, ...]:
    return done.admitted, done.free, list(done.order), done.reservations


@pytest.mark.parametrize("with_rules", seeds([True, False], quick=1))
@pytest.mark.parametrize("leaves", seeds([DEEP, FLAT], quick=1))
@pytest.mark.parametrize("lives", seeds([2, 16], quick=1))
def test_a_line_up_that_is_kept_decides_as_a_fresh_one(leaves, with_rules, lives):
    reserved = deepest = 0
    for seed in range(lives):
        stream = Stream(Random(seed), leaves, with_rules)
        wait_index = stream.wait_index()
        for step in range(40):
            stream.move()
            # A pass whose decisions are lost leaves nothing behind.
            for _ in range(stream.random.choice([1, 1, 2])):
                done = run_pass(wait_index, free=stream.free(), pass_context=stream.pass_context())
                assert told(done) == told(stream.fresh(stream.pass_context())), (seed, step)
            there = [each for each in done.reservations if each.within == "root"]
            reserved += bool(there)
            deepest = max(deepest, len(there))
            stream.start(done)
    if lives == 16:
        assert reserved > 100, "reservations were hardly met"
        assert deepest == 4


# -- work ------------------------------------------------------------------------------------------


def lines_per_step(shape: Shape, steps: int = 30) -> float:
    """Of an end, a submission, and a pass that launches about one job."""
    load = Load(shape)
    for _ in range(20):
        load.step()
    with lines_counted() as lines:
        for _ in range(steps):
            load.step()
    return lines[0] / steps


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.slow
def test_the_work_of_a_launch_and_an_end_grows_far_less_than_users_and_queues(deep, reserved):
    few = lines_per_step(Shape(users=100, queued=1_000, deep=deep, reserved=reserved))
    longer = lines_per_step(Shape(users=100, queued=10_000, deep=deep, reserved=reserved))
    wider = lines_per_step(Shape(users=3_000, queued=10_000, deep=deep, reserved=reserved))
    assert longer < 3 * few
    assert wider < 4 * few


# -- the queue of a leaf ---------------------------------------------------------------------------


@examples(100)
@given(some.lists(some.integers(-2, 2), max_size=12), some.randoms(use_true_random=False))
def test_the_order_of_arrival_and_what_has_left_do_not_matter(priorities, random):
    """A rebuilt ledger has the same queues."""
    entries = [(priority, at) for at, priority in enumerate(priorities)]
    random.shuffle(entries)
    stay, alike = random.randrange(len(entries) + 1), JobsOfClass()
    for entry in entries:
        alike.add(entry)
    for entry in entries[stay:]:
        alike.remove(entry)
        with pytest.raises(KeyError):
            alike.remove(entry)
    left = sorted(entries[:stay])
    assert [*alike] == left
    assert all((entry in alike) is (entry in left) for entry in entries)
    assert [alike.after(entry) for entry in [(-3, 0), *left]] == [*left, None]


@examples(100)
@given(some.lists(some.integers(0, 19), unique=True, max_size=20))
def test_tasks_leave_ranges_of_ids_one_by_one(gone):
    ids, left = TaskIds([(0, 9), (20, 29)]), [*range(10), *range(20, 30)]
    for job_id in [left[at] for at in gone]:
        ids.take(job_id)
        left.remove(job_id)
        with pytest.raises(KeyError):
            ids.take(job_id)
        assert [*ids] == left
        assert len(ids) == len(left)
        assert [each in ids for each in (job_id - 1, job_id)] == [job_id - 1 in left, False]
        assert ids.after(job_id) == next((each for each in left if each > job_id), None)
