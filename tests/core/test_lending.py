"""What running jobs are lent of cores and disks that others do not use, and who has to give way.

Preemption is never in vain, never at the cost of a kept promise, and never back and forth: that is
checked with fractions from the plain numbers of each world, from docs/fairness.md 1.1 and 1.4.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from operator import attrgetter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.oracle import Vector, line
from core.worlds import preemptions
from drfd.core.fairness.rules import Preempting
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.lending import (
    Borrower,
    Claim,
    DiskRate,
    Judgement,
    MachineCores,
    TreeNode,
    divide,
    find_rivals,
    judge,
)
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Outcome
from drfd.core.model.resources import Resources
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.preemption import Starvation, Starving
from fakes import Bench, demand, ended, happened, launched, now, replace, rules, spec
from seeds import examples

# -- division of a resource among running jobs -----------------------------------------------------


def leaf(entitled: float, *claims: tuple[int, float, float], held: float = 0.0) -> TreeNode:
    """Claims as (job, least, most); their weights are what they get in any case, or 1."""
    made = [
        Claim(job_id=job, least=least, most=most, weight=least or 1.0)
        for job, least, most in claims
    ]
    return TreeNode(entitled=entitled, held=held, claims=made)


def pool(entitled: float, *below: TreeNode, held: float = 0.0) -> TreeNode:
    return TreeNode(entitled=entitled, held=held, below=dict(zip("abcdefgh", below, strict=False)))


def parts(node: TreeNode, amount: float) -> list[float]:
    return [round(part, 6) for _, part in sorted(divide(node, amount).items())]


def test_those_at_one_level_share_what_raises_none_of_them():
    a, b = leaf(0.5, (1, 0.0, 0.4), held=1.0), leaf(0.5, (2, 0.0, 0.2), held=1.0)
    assert parts(pool(1, a, b), 0.3) == [0.2, 0.1]


def test_an_amount_that_only_rounding_keeps_below_what_all_could_use_is_divided():
    """Seen with rates of disks, whose bytes are large numbers."""
    entitled = (28611927537.858997, 46165291038.90813, 54894179016.156235, 40296529862.360504)
    most = (31585522590.339573, 54641587837.25303, 11757857238.181955, 6629756420.918114)
    ends = zip(entitled, most, strict=True)
    leaves = [leaf(part, (job, 0, end)) for job, (part, end) in enumerate(ends)]
    found = divide(pool(1, *leaves), 104614724086.69267)
    assert list(found.values()) == pytest.approx(most)


tenths = some.integers(0, 20).map(lambda number: number / 10)


@some.composite
def claims(draw: some.DrawFn, first: int) -> list[tuple[int, float, float]]:
    found = []
    for at in range(draw(some.integers(1, 3))):
        least, more = draw(tenths), draw(tenths)
        found.append((first + at, least, least + more))
    return found


@some.composite
def trees(draw: some.DrawFn) -> TreeNode:
    count = draw(some.integers(1, 4))
    nodes = []
    for at in range(count):
        entitled, held = draw(some.integers(1, 8)) / 8, draw(tenths)
        if draw(some.booleans()):
            nodes.append(leaf(entitled, *draw(claims(10 * at)), held=held))
        else:
            below = [
                leaf(entitled / 2, *draw(claims(10 * at + 5 * each)), held=draw(tenths))
                for each in range(2)
            ]
            nodes.append(pool(entitled, *below, held=held))
    return pool(1, *nodes)


def every_claim(node: TreeNode) -> Iterator[Claim]:
    yield from node.claims
    for each in node.below.values():
        yield from every_claim(each)


@given(trees(), some.integers(0, 200).map(lambda number: number / 10))
def test_everything_is_given_out_that_can_be_used(root, amount):
    given_out = divide(root, amount)
    for claim in every_claim(root):
        assert claim.least - 1e-6 <= given_out[claim.job_id] <= claim.most + 1e-6
    expected = max(root.least, min(root.most, amount))
    assert sum(given_out.values()) == pytest.approx(expected, abs=1e-6)


@given(trees(), some.integers(0, 200).map(lambda number: number / 10))
def test_nobody_has_more_than_a_sibling_that_wants_and_is_served_first(root, amount):
    given_out = divide(root, amount)

    def has(node: TreeNode) -> float:
        return sum(given_out[each.job_id] for each in every_claim(node))

    def level(node: TreeNode) -> float:
        return max(node.held, has(node) / max(node.entitled, 1e-9))

    def check(node: TreeNode) -> None:
        siblings = list(node.below.values())
        for rich in siblings:
            check(rich)
            if has(rich) <= rich.least + 1e-6:
                continue
            for poor in siblings:
                if has(poor) < poor.most - 1e-6:
                    assert level(rich) <= level(poor) + 1e-4

    check(root)


# -- ceilings of cores from measured use -----------------------------------------------------------


FULL = MachineCores(capacity=8.0, outside=0.0, busy=1.0)


def on_cores(
    job_id: int = 1,
    leaf: str = "root.a",
    *,
    floor: float = 2.0,
    most: float = 8.0,
    ceiling: float = 2.0,
    used: float = 2.0,
    throttled: bool = True,
) -> Borrower:
    return Borrower(
        job_id=job_id,
        leaf=leaf,
        floor=floor,
        most=most,
        ceiling=ceiling,
        used=used,
        is_throttled=throttled,
    )


cores = some.integers(0, 64).map(lambda eighths: eighths / 8)


@some.composite
def borrowers(draw: some.DrawFn) -> list[Borrower]:
    found = []
    for number in range(draw(some.integers(1, 6))):
        floor = draw(some.integers(1, 16)) / 8
        most = floor + draw(cores)
        ceiling = floor + draw(some.floats(0, 1)) * (most - floor)
        found.append(
            on_cores(
                number,
                draw(some.sampled_from(["root.a", "root.b", "root.lab.c", "root.lab.d"])),
                floor=floor,
                most=most,
                ceiling=ceiling,
                used=draw(some.floats(0, 1)) * ceiling,
                throttled=draw(some.booleans()),
            )
        )
    return found


PLACES = {
    "root.a": TreeNode(entitled=3, held=0.3),
    "root.b": TreeNode(entitled=3, held=1.5),
    "root.lab": TreeNode(entitled=2, held=0.7),
    "root.lab.c": TreeNode(entitled=1, held=0.1),
    "root.lab.d": TreeNode(entitled=1, held=1.3),
}


@given(borrowers(), cores, some.floats(0, 1))
def test_nobody_is_below_the_floor_or_above_the_most_and_nothing_is_lent_twice(jobs, outside, busy):
    machine = MachineCores(capacity=8.0, outside=outside, busy=busy)
    for _ in range(4):
        found = judge(jobs, machine, PLACES)
        assert found.keys() == {each.job_id for each in jobs}
        jobs = [replace(each, ceiling=found[each.job_id].ceiling) for each in jobs]
        for each in jobs:
            assert each.floor - 1e-9 <= each.ceiling <= each.most + 1e-9
    # What jobs use of their floors is theirs; beyond it no more is lent than there is.
    idle = sum(max(0.0, each.floor - each.used * 1.3 - 0.05) for each in jobs)
    lent = sum(each.ceiling - each.floor for each in jobs)
    floors = sum(each.floor for each in jobs)
    assert lent <= max(0.0, machine.room - floors) * 1.05 + idle * 1.05 + 0.05 * floors + 1e-6


@examples(50)
@given(borrowers())
def test_the_order_of_the_jobs_makes_no_difference(jobs):
    found, again = (judge(each, FULL, PLACES) for each in (jobs, list(reversed(jobs))))
    for job_id, each in found.items():
        assert again[job_id].ceiling == pytest.approx(each.ceiling)


# -- ceilings of disk rates ------------------------------------------------------------------------


MIB = float(1 << 20)
DISK = DiskRate(rate=100 * MIB, fixed=0.0)
DISK_ALONE = {"root.a": TreeNode(entitled=100 * MIB, held=0.0)}
TWO = {name: TreeNode(entitled=50 * MIB, held=0.0) for name in ("root.a", "root.b")}


def on_disk(
    job_id: int = 1, leaf: str = "root.a", *, floor: float = 10, most: float = 80,
    ceiling: float = 10, used: float = 10,
) -> Borrower:  # fmt: skip
    """A job with amounts in MiB per second."""
    return Borrower(
        job_id=job_id, leaf=leaf, floor=floor * MIB, most=most * MIB, ceiling=ceiling * MIB,
        used=used * MIB,
    )  # fmt: skip


def step(*jobs: Borrower, places: Mapping[str, TreeNode] = DISK_ALONE) -> list[float]:
    found = judge(jobs, DISK, places)
    return [round(found[each.job_id].ceiling / MIB, 3) for each in jobs]


def after(demand: Mapping[int, float], *jobs: Borrower) -> list[float]:
    """The ceilings after some steps in which each job uses what it may of its demand."""
    for _ in range(8):
        jobs = tuple(
            replace(each, used=min(each.ceiling, demand[each.job_id] * MIB)) for each in jobs
        )
        found = judge(jobs, DISK, TWO)
        jobs = tuple(replace(each, ceiling=found[each.job_id].ceiling) for each in jobs)
    return [round(each.ceiling / MIB, 3) for each in jobs]


def test_a_job_that_uses_nearly_nothing_may_use_a_mebibyte_more():
    """Its floor is half of that. All else is lent to the one that is held back."""
    idle = on_disk(floor=0.5, ceiling=12, used=0)
    busy = on_disk(2, "root.b", most=200, ceiling=78, used=78)
    assert step(idle, busy, places=TWO) == [1, 89]


def test_who_wakes_up_has_its_part_after_few_steps_and_others_give_way_at_once():
    high = on_disk(ceiling=80, used=80)
    low = on_disk(2, "root.b")
    assert step(high, low, places=TWO) == [45, 20]
    assert after({1: 500, 2: 500}, high, low) == [45, 45]


rates = some.integers(1, 60)


@some.composite
def disk_borrowers(draw: some.DrawFn) -> list[Borrower]:
    found = []
    for number in range(draw(some.integers(1, 6))):
        floor = draw(rates)
        leaf = draw(some.sampled_from(["root.a", "root.b"]))
        most = floor + draw(some.integers(0, 90))
        found.append(on_disk(number, leaf, floor=floor, most=most, ceiling=floor, used=0))
    return found


@given(disk_borrowers(), rates, some.data())
def test_ceilings_stay_between_floor_and_most_and_below_the_disk_together(jobs, fixed, data):
    disk = replace(DISK, fixed=fixed * MIB)
    bound = max(0.9 * DISK.rate - disk.fixed, sum(each.floor for each in jobs))
    for _ in range(6):
        parts = data.draw(some.lists(some.floats(0, 1), min_size=len(jobs), max_size=len(jobs)))
        jobs = [
            replace(each, used=part * each.ceiling) for each, part in zip(jobs, parts, strict=True)
        ]
        found = judge(jobs, disk, TWO)
        for each in jobs:
            ceiling = found[each.job_id].ceiling
            assert each.floor <= ceiling <= each.most + 1
            assert ceiling <= max(each.floor, 2 * each.ceiling) + 1
        jobs = [replace(each, ceiling=found[each.job_id].ceiling) for each in jobs]
        assert sum(each.ceiling for each in jobs) <= bound + 1


@pytest.mark.parametrize("used", [0.0, 0.5, 1.0])
def test_where_the_floors_alone_are_too_much_nothing_is_lent(used):
    jobs = [on_disk(number, floor=35, ceiling=36, used=36 * used, most=200) for number in range(3)]
    assert step(*jobs) == [35, 35, 35]


# -- who keeps whom from being lent more -----------------------------------------------------------


OF_POOLS = {
    "root.alice": TreeNode(entitled=2.0, held=0.9),
    "root.lab": TreeNode(entitled=4.0, held=0.1),
    "root.lab.bob": TreeNode(entitled=3.0, held=0.1),
    "root.lab.carol": TreeNode(entitled=1.0, held=0.1),
}


def rivals(
    *jobs: tuple[str, float, bool], places: dict[str, TreeNode] = OF_POOLS
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Of jobs, each given by its leaf, its ceiling and whether it is hungry: by user, everybody
    who could use more, and those who hold less."""
    asked = [
        (
            leaf.rpartition(".")[2],
            Borrower(job_id=at, leaf=leaf, floor=1, most=9, ceiling=1, used=1),
        )
        for at, (leaf, _, _) in enumerate(jobs)
    ]
    found = {at: Judgement(ceiling=each[1], is_hungry=each[2]) for at, each in enumerate(jobs)}
    given = find_rivals(asked, found, places)
    assert all(leaf.endswith(user) for user, leaf in given)
    return {user: (each.everybody, each.poorer) for (user, _), each in given.items()}


def test_who_holds_much_of_something_else_is_told_who_holds_less():
    """Alice holds nine tenths of her share of the memory, and so has one core of her two."""
    found = rivals(("root.alice", 1, True), ("root.lab.bob", 2, True), ("root.lab.bob", 0.5, False))
    assert found == {"alice": (("bob",), ("bob",)), "bob": (("alice",), ())}


# -- a kernel that is followed second by second ----------------------------------------------------

# A machine whose kernel divides cores as real ones do, in steps of a quarter of a second: by
# weights, within ceilings, without knowing anything else. `drfd.sim.driver` only knows where the
# loop comes to rest, which suffices for months of jobs; `tests/sim/test_sim.py` compares the two.
STEP_S = 0.25


@dataclass
class Phase:
    """Work in core-seconds for a parallel phase; seconds, and the cores used, for a serial one."""

    left: float
    cores: float | None = None


@dataclass
class FluidJob:
    """Goes through phases: parallel ones, in which it can use all the cores that it has threads
    for, and serial ones of a fixed time."""

    id: int
    user: str
    floor: float
    most: float
    memory: float
    phases: list[Phase]
    ceiling: float = 0.0
    #: Core-seconds since the last judgement, and whether the ceiling has held it back since.
    used: float = 0.0
    is_throttled: bool = False
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def demand(self) -> float:
        phase = self.phases[0]
        return self.most if phase.cores is None else phase.cores

    def run(self, cores: float) -> None:
        phase = self.phases[0]
        done = cores if phase.cores is None else min(1.0, cores / phase.cores)
        phase.left -= done * STEP_S
        if phase.left <= 0:
            self.phases.pop(0)


def kernel(
    jobs: Sequence[FluidJob], cores: float, most: Callable[[FluidJob], float]
) -> list[float]:
    """The cores that each job gets, by weights that stand for the floors."""
    claims = [
        Claim(job_id=job.id, least=0.0, most=min(job.demand, most(job)), weight=job.floor)
        for job in jobs
    ]
    parts = divide(TreeNode(entitled=1.0, held=0.0, claims=claims), cores)
    return [parts[job.id] for job in jobs]


@dataclass
class FluidMachine:
    """Runs users' queues: admission by DRF over floors and memory, lending in the given mode."""

    mode: str
    queues: dict[str, list[FluidJob]]
    cores: float = 64.0
    memory: float = 256.0
    running: list[FluidJob] = field(default_factory=list)
    ended: list[FluidJob] = field(default_factory=list)
    now_s: float = 0.0
    used: float = 0.0
    #: Core-seconds by which jobs have fallen short of what they could use of their floors.
    short: float = 0.0
    #: Times at which a user wanted more, and those at which another with a larger share was lent.
    hungry: int = 0
    wronged: int = 0
    writes: int = 0

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            self._admit()
            self._step()
            if round(self.now_s / STEP_S) % 4 == 0 and self.mode == "share":
                self._lend()

    def _held(self, user: str) -> tuple[float, float]:
        mine = [job for job in self.running if job.user == user]
        return sum(job.floor for job in mine), sum(job.memory for job in mine)

    def _admit(self) -> None:
        while True:
            held = {user: self._held(user) for user in self.queues}
            cores = self.cores - sum(each for each, _ in held.values())
            memory = self.memory - sum(each for _, each in held.values())
            order = sorted(
                (max(held[user][0] / self.cores, held[user][1] / self.memory), user)
                for user, queue in self.queues.items()
                if queue
            )
            for _, user in order:
                job = self.queues[user][0]
                if job.floor <= cores and job.memory <= memory:
                    self.queues[user].pop(0)
                    job.started_s, job.ceiling = self.now_s, job.floor
                    self.running.append(job)
                    break
            else:
                return

    def _step(self) -> None:
        bound = attrgetter({"quota": "floor", "weight": "most", "share": "ceiling"}[self.mode])
        rates = kernel(self.running, self.cores, bound)
        self._look(rates)
        for job, rate in zip(self.running, rates, strict=True):
            job.used += rate * STEP_S
            job.is_throttled |= job.demand > bound(job) + 1e-9 and rate >= bound(job) - 1e-6
            job.run(rate)
        self.now_s += STEP_S
        for job in [job for job in self.running if not job.phases]:
            job.ended_s = self.now_s
            self.running.remove(job)
            self.ended.append(job)

    def _look(self, rates: Sequence[float]) -> None:
        cores: dict[str, float] = {}
        lent, wanting = set(), set()
        for job, rate in zip(self.running, rates, strict=True):
            need = min(job.demand, job.floor)
            self.used += rate * STEP_S
            self.short += max(0.0, need - rate) * STEP_S
            cores[job.user] = cores.get(job.user, 0.0) + rate
            if rate < job.demand - 0.05 * job.floor:
                wanting.add(job.user)
            if rate > need + 0.05 * job.floor:
                lent.add(job.user)

        def share(user: str) -> float:
            return max(cores[user] / self.cores, self._held(user)[1] / self.memory)

        for user in wanting:
            self.hungry += 1
            self.wronged += any(
                other != user and share(other) > share(user) + 0.03 for other in lent
            )

    def _lend(self) -> None:
        used = sum(job.used for job in self.running)
        users = {job.user for job in self.running}
        places = {
            f"root.{user}": TreeNode(
                entitled=self.cores / len(users),
                held=self._held(user)[1] / self.memory * len(users),
            )
            for user in users
        }
        borrowers = [
            Borrower(
                job_id=job.id, leaf=f"root.{job.user}", floor=job.floor, most=job.most,
                ceiling=job.ceiling, used=job.used, is_throttled=job.is_throttled,
            )
            for job in self.running
        ]  # fmt: skip
        machine = MachineCores(capacity=self.cores, outside=0.0, busy=used / self.cores)
        found = judge(borrowers, machine, places)
        for job in self.running:
            self.writes += found[job.id].ceiling != job.ceiling
            job.ceiling = found[job.id].ceiling
            job.used, job.is_throttled = 0.0, False


def fluid_queues(seed: int, *, burst: float, efficiency: float = 0.65) -> dict[str, list[FluidJob]]:
    """Queues of six users, two of whom need much memory; a quarter of the jobs is wide. Under a
    quota jobs use `efficiency` of the cores that they declare."""
    random = Random(seed)
    queues: dict[str, list[FluidJob]] = {}
    for user in range(6):
        queue = queues[f"user{user}"] = []
        for number in range(200):
            floor = float(random.choice([1, 2, 4, 4, 8, 8, 16]))
            memory = random.lognormvariate(0, 1) * floor * 3 * (4 if user < 2 else 1)
            queue.append(
                FluidJob(
                    id=user * 1000 + number, user=f"user{user}", floor=floor,
                    most=min(64.0, floor * burst), memory=min(64.0, max(0.5, memory)),
                    phases=list(_phases(random, floor, efficiency)),
                )
            )  # fmt: skip
    return queues


def _phases(random: Random, floor: float, efficiency: float) -> Iterator[Phase]:
    part = min(0.97, max(0.08, random.betavariate(3 * efficiency, 3 * (1 - efficiency))))
    count, whole_s = random.randint(3, 12), random.uniform(120, 900)
    for _ in range(count):
        cycle_s = whole_s / count * random.uniform(0.5, 1.5)
        low = min(floor, random.choice([1.0, 0.25]) if floor > 1 else random.choice([0.5, 0.1]))
        parallel = max(0.02, (part * floor - low) / (floor - low)) if floor > low else 1.0
        yield Phase(max(0.01, cycle_s * parallel * floor))
        yield Phase(max(0.01, cycle_s * (1 - parallel)), low)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_job_ends_later_than_under_a_quota(seed):
    """All of them at once, so that nobody waits for a start."""
    ends: dict[str, dict[int, float]] = {}
    for mode in ("quota", "share"):
        queues = fluid_queues(seed, burst=4)
        some_of_each = {user: queue[:2] for user, queue in queues.items()}
        cores = sum(each.floor for queue in some_of_each.values() for each in queue)
        machine = FluidMachine(mode, some_of_each, cores=cores, memory=10_000)
        machine.run(4000)
        assert not machine.running
        assert machine.short < 1e-6
        ends[mode] = {each.id: each.ended_s or 0.0 for each in machine.ended}
    assert all(end_s <= ends["quota"][job_id] + 1e-6 for job_id, end_s in ends["share"].items())
    assert sum(ends["share"].values()) < 0.9 * sum(ends["quota"].values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_more_of_the_machine_is_used_and_more_fairly_than_by_weights(seed):
    found = {}
    for mode in ("quota", "weight", "share"):
        machine = FluidMachine(mode, fluid_queues(seed, burst=4))
        machine.run(900)
        found[mode] = machine
        assert machine.short < 1e-6
    assert found["share"].used > 1.15 * found["quota"].used
    assert found["share"].used > 0.9 * found["weight"].used
    wronged = {mode: each.wronged / max(1, each.hungry) for mode, each in found.items()}
    assert wronged["share"] < 0.5 * wronged["weight"]


# -- preemption ------------------------------------------------------------------------------------


HOW = Preempting(exempt_s=0)


@dataclass
class World:
    """A machine of so many cores and GiB, and jobs that run or wait in the pools of its tree."""

    cores: int = 10
    memory_gib: int = 10
    rules_by_path: Mapping[str, NodeRule] = field(default_factory=dict)
    bench: Bench = field(init=False)
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        given = rules(self.cores, self.memory_gib)
        object.__setattr__(given, "shares", FairShare(given.shares.capacity, self.rules_by_path))
        self.bench = Bench(given)

    def run(self, pool: str, cores: float, memory_gib: float = 0.0, **more: Any) -> int:
        """A preemptible job that runs; each is started a second after the one before."""
        job_id = self.wait(pool, cores, memory_gib, **({"preemptible": True} | more))
        self.start(job_id)
        return job_id

    def start(self, job_id: int) -> None:
        self.clock_s += 1
        self.bench.befall(ev.Admitted(job_id=job_id, at_s=self.clock_s, attempt=1))
        self.bench.feed(launched(job_id, at_s=self.clock_s))

    def wait(self, pool: str, cores: float, memory_gib: float = 0.0, **more: Any) -> int:
        asks = demand(cores, memory_gib)
        return self.bench.submit(spec(f"root.{pool}", asks=asks, **more), at_s=self.clock_s)

    def victims(self, pool: str, job_id: int, how: Preempting = HOW) -> list[int]:
        found = preemptions(self.bench, f"root.{pool}", job_id, how, at_s=100.0)
        return [event.job_id for event in found]

    def starving(
        self, starvation: Starvation, at_s: float, how: Preempting = HOW
    ) -> list[Starving]:
        ledger, shares = self.bench.ledger, self.bench.rules.shares
        return starvation.update(ledger, self.share_tree(), shares, how, now(at_s).mono_s)

    def share_tree(self) -> Any:
        ledger = self.bench.ledger
        return self.bench.rules.shares.share_tree(ledger.used, ledger.queues)


# -- who starves -----------------------------------------------------------------------------------


def test_with_a_guarantee_half_the_time_suffices():
    world = World(rules_by_path={"root.b": NodeRule(guarantee=(3000, 0, 0, 0))})
    world.run("a", 10)
    mine = world.wait("b", 2)
    starvation = Starvation()
    world.starving(starvation, 0)
    assert world.starving(starvation, 150) == [Starving("root.b", mine)]


# -- who must go -----------------------------------------------------------------------------------


def test_what_is_being_given_back_keeps_no_promise():
    """a holds nine of its five cores; seven of them are in a job that is being stopped, or is
    ending, or being frozen."""
    for event in (ev.StopRequested, ev.Exited, ev.SuspendRequested):
        world = World(memory_gib=9)
        going = world.run("a", 7)
        world.run("a", 2, 9)
        world.bench.befall(happened(event, going, 99))
        # There are enough cores, but no memory.
        mine = world.wait("b", 1, 1)
        assert world.victims("b", mine) == []


def test_a_pool_that_holds_both_does_not_come_to_starve_by_the_exchange():
    """lab holds nine of its six cores. It would give six of them for two, and keep five."""
    world = World(cores=12)
    world.run("b", 3, preemptible=False)
    world.run("lab.x", 3, preemptible=False)
    big = world.run("lab.x", 6)
    assert world.victims("lab.y", world.wait("lab.y", 2)) == []
    assert world.victims("lab.y", world.wait("lab.y", 3)) == [big]


def test_who_turns_out_not_to_be_needed_is_spared():
    """The small one was started last and is found first; then the big one suffices alone."""
    world = World(cores=12)
    world.run("a", 6, preemptible=False)
    big = world.run("a", 5)
    world.run("a", 1)
    mine = world.wait("b", 5)
    assert world.victims("b", mine) == [big]


def test_one_victim_gives_cores_and_another_memory():
    world = World()
    _, cores, _, memory = [world.run("a", *held) for held in ((5, 0), (5, 0), (0, 5), (0, 5))]
    assert world.victims("b", world.wait("b", 3, 3)) == [memory, cores]


def test_who_started_last_goes_first_and_who_has_run_longest_is_spared():
    """Whatever their ids say: the first one submitted was started last."""
    world = World(cores=12)
    world.run("a", 6, preemptible=False)
    last = world.wait("a", 1, preemptible=True)
    first = world.run("a", 3)
    world.run("a", 2)
    world.start(last)
    assert world.victims("b", world.wait("b", 1)) == [last]
    # All three are found for four cores; without the one of two there are four.
    assert world.victims("b", world.wait("b", 4)) == [last, first]


def test_what_comes_back_anyway_is_waited_for():
    world = World()
    world.run("a", 5)
    leaving = world.run("a", 5)
    mine = world.wait("b", 2)
    world.bench.befall(
        ev.StopRequested(
            job_id=leaving,
            at_s=now(99).at_s,
            mono_s=0.0,
            outcome=Outcome.CANCELLED,
            text="cancelled",
        )
    )
    assert world.victims("b", mine) == []


def test_inside_a_starving_pool_nobody_is_stopped_for_a_neighbour():
    """lab is promised six cores and has four. Of these, one could be spared by lab.one, but
    lab.two has all but its promise, of memory."""
    world = World(cores=12, memory_gib=12)
    world.run("b", 8, preemptible=False)
    world.run("lab.one", 3)
    spare = world.run("lab.one", 1)
    world.run("lab.two", 0, 2.8)
    mine = world.wait("lab.two", 1)
    assert world.victims("lab", mine) == []
    assert world.victims("lab.two", mine) == [spare], "if it were lab.two that starves"


def test_frozen_victims_give_time_but_no_memory():
    world = World()
    world.run("a", 5, 1)
    last = world.run("a", 5, 1)
    frozen = Preempting(suspends=True)
    (request,) = preemptions(world.bench, "root.b", world.wait("b", 2, 1), frozen)
    assert isinstance(request, ev.SuspendRequested)
    assert (request.job_id, request.by) == (last, None)
    assert world.victims("b", world.wait("b", 2, 9), frozen) == []


# -- on random trees -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    leaf: str
    vector: Vector


def entitled(weights: Mapping[str, int], leaves: set[str]) -> dict[str, Fraction]:
    """Of the whole machine, by weights among active siblings."""
    nodes = {path for leaf in leaves for path in line(leaf)}
    found = {"root": Fraction(1)}
    for path in sorted(nodes, key=lambda path: path.count(".")):
        parent = path.rpartition(".")[0]
        siblings = [other for other in nodes if other.rpartition(".")[0] == parent]
        total = sum(weights[other] for other in siblings)
        found[path] = found[parent] * weights[path] / total
    return found


def rho(path: str, holders: Sequence[Held], capacity: Vector, part: Fraction) -> Fraction:
    below = [held.vector for held in holders if f"{held.leaf}.".startswith(f"{path}.")]
    sums = [sum(column) for column in zip(*below, strict=True)] or [0] * len(capacity)
    return max(Fraction(s, top) / part for s, top in zip(sums, capacity, strict=True))


def random_world(seed: int) -> tuple[World, Mapping[str, int]]:
    chance = Random(seed)
    pools = ["a", "b", "c.d", "c.e", "f.g", "f.h"][: chance.randint(2, 6)]
    leaves = [f"root.{pool}.alice" for pool in pools]
    weights = {path: chance.randint(1, 4) for leaf in leaves for path in line(leaf)}
    world = World(
        cores=12, memory_gib=12,
        rules_by_path={
            path: NodeRule(weights=(Fraction(weight),) * 4) for path, weight in weights.items()
        },
    )  # fmt: skip
    free = [12, 12]
    for _ in range(chance.randint(4, 16)):
        pool = chance.choice(pools[: chance.randint(1, len(pools))])
        asked = [chance.randint(0, 4), chance.randint(0, 4)]
        if any(asked) and all(a <= f for a, f in zip(asked, free, strict=True)):
            world.run(pool, *asked, preemptible=chance.random() < 0.8)
            free = [f - a for a, f in zip(asked, free, strict=True)]
    for pool in pools:
        if chance.random() < 0.7:
            asked = [chance.randint(0, 6), chance.randint(1, 6)]
            world.wait(pool, *asked)
    return world, weights


@examples(100, quick=5)
@given(some.integers(0, 10**6))
def test_a_preemption_is_never_in_vain_and_breaks_no_kept_promise(seed):
    world, weights = random_world(seed)
    ledger = world.bench.ledger
    capacity = (12_000, 12 << 30)
    waiting = [job for job in ledger.jobs.values() if job.state is JobState.PENDING]
    running = {job.id: job for job in ledger.jobs.values() if job.state is JobState.RUNNING}
    parts = entitled(weights, {job.spec.leaf for job in ledger.jobs.values()})

    def holder(job: Job) -> Held:
        return Held(job.spec.leaf, ledger.demand(job)[:2])

    for mine in waiting:
        for path in line(mine.spec.leaf):
            starving = path.removeprefix("root.")
            victims = world.victims(starving, mine.id)
            if not victims:
                continue
            assert all(running[victim].spec.preemptible for victim in victims)
            stay = [job for job in running.values() if job.id not in victims]
            held = [sum(column) for column in zip(*[holder(j).vector for j in stay], strict=True)]
            free = [top - h for top, h in zip(capacity, held or [0, 0], strict=True)]
            asked = ledger.demand(mine)[:2]
            assert all(a <= f for a, f in zip(asked, free, strict=True)), "killed in vain"
            for victim in victims:
                gift = ledger.demand(running[victim])[:2]
                without = [f - g for f, g in zip(free, gift, strict=True)]
                assert not all(a <= f for a, f in zip(asked, without, strict=True)), "not needed"
                after = [*map(holder, stay), holder(mine)]
                theirs, ours = line(running[victim].spec.leaf), line(mine.spec.leaf)
                apart = [node for node in theirs if node not in ours]
                assert path not in theirs, "of the starving node itself"
                levels = [rho(node, after, capacity, parts[node]) for node in apart]
                assert min(levels) >= 1, "a kept promise is broken"
                my_side = next(node for node in reversed(ours) if node not in theirs)
                assert rho(my_side, after, capacity, parts[my_side]) <= levels[-1]


@examples(100, quick=5)
@given(some.integers(0, 10**6))
def test_the_victim_submitted_again_at_once_preempts_nobody(seed):
    world, _ = random_world(seed)
    ledger = world.bench.ledger
    waiting = [job for job in ledger.jobs.values() if job.state is JobState.PENDING]
    for mine in sorted(waiting, key=lambda job: job.id):
        starved = [s for s in world.starving(Starvation(), 0, eager()) if s.job_id == mine.id]
        requests = [r for s in starved[:1] for r in preemptions(world.bench, s.path, mine.id)]
        if not requests:
            continue
        starving_before = {s.path for s in world.starving(Starvation(), 0, eager())}
        for request in requests:
            world.bench.befall(request)
            world.bench.feed(ended(request.job_id, at_s=200.0))
            world.bench.befall(ev.Requeued(job_id=request.job_id, at_s=200.0, attempt=1))
        world.bench.befall(ev.Admitted(job_id=mine.id, at_s=200.0, attempt=1))
        back = {request.job_id for request in requests}
        again = [s for s in world.starving(Starvation(), 0, eager()) if s.job_id in back]
        assert {s.path for s in again} <= starving_before, "a victim's side starves"
        return


def eager() -> Preempting:
    return Preempting(after_s=0.0, exempt_s=0)


@pytest.mark.slow
def test_the_random_worlds_have_preemptions_in_them():
    """Else they would prove nothing."""
    found = 0
    for seed in range(300):
        world, _ = random_world(seed)
        jobs = [*world.bench.ledger.jobs.values()]
        waiting = [job for job in jobs if job.state is JobState.PENDING]
        found += sum(bool(world.victims(job.spec.leaf[5:], job.id)) for job in waiting)
    assert found > 30


# -- load from outside -----------------------------------------------------------------------------


def external(cores_milli: int) -> ExternalLoad:
    used = Resources(cores_milli=cores_milli)
    return ExternalLoad(used=used, kept=used, until_s=inf)


def test_nobody_is_stopped_for_load_from_outside():
    """By the books the job fits: only processes outside are in its way."""
    world = World()
    world.run("a", 7)
    job_id = world.wait("b", 3)
    assert preemptions(world.bench, "root.b", job_id, external=external(2000)) == []


def test_nobody_is_stopped_in_vain_because_of_load_from_outside():
    world = World()
    victims = [world.run("a", 1) for _ in range(10)]
    job_id = world.wait("b", 3)
    found = preemptions(world.bench, "root.b", job_id, external=external(0))
    assert [event.job_id for event in found] == victims[:-4:-1]
    assert preemptions(world.bench, "root.b", job_id, external=external(1000)) == []
