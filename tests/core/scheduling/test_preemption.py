"""Preemption: never in vain, never at the cost of a kept promise, never back and forth.

The properties are checked with fractions computed here from the plain numbers of each world, from
docs/fairness.md 1.1 and 1.4; no code of the product decides what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.fairness.rules import Preempting
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Outcome
from drfd.core.scheduling.preemption import Departures, Starvation, Starving, Supply, preempt
from fakes import Bench, attempt_started, demand, ended, happened, now, rules, spec
from seeds import examples

HOW = Preempting()


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
        self.clock_s += 1
        job_id = self.wait(pool, cores, memory_gib, **({"preemptible": True} | more))
        self._apply(ev.Admitted(job_id=job_id, at_s=self.clock_s, attempt=1))
        self.bench.feed(attempt_started(job_id, at_s=self.clock_s))
        return job_id

    def wait(self, pool: str, cores: float, memory_gib: float = 0.0, **more: Any) -> int:
        asks = demand(cores, memory_gib)
        return self.bench.submit(spec(f"root.{pool}", asks=asks, **more), at_s=self.clock_s)

    def victims(
        self, pool: str, job_id: int, how: Preempting = HOW, at_s: float = 100.0
    ) -> list[int]:
        return [event.job_id for event in self.requests(pool, job_id, how, at_s)]

    def requests(
        self, path: str, job_id: int, how: Preempting = HOW, at_s: float = 100.0
    ) -> Sequence[ev.PreemptRequested | ev.SuspendRequested]:
        starving = Starving(f"root.{path}", job_id)
        ledger, room = self.bench.ledger, self.bench.rules.shares.capacity
        leaving = Departures().update(ledger, now(at_s).mono_s, 0.0)
        return preempt(
            ledger,
            self.share_tree(),
            Supply(capacity=room, leaving=leaving),
            starving,
            how,
            now(at_s),
        )

    def starving(
        self, starvation: Starvation, at_s: float, how: Preempting = HOW
    ) -> list[Starving]:
        shares = self.bench.rules.shares
        return starvation.update(
            self.bench.ledger, self.share_tree(), shares, how, now(at_s).mono_s
        )

    def share_tree(self) -> Any:
        ledger = self.bench.ledger
        return self.bench.rules.shares.share_tree(ledger.used, ledger.queues)

    def _apply(self, event: ev.Event) -> None:
        self.bench.ledger.apply(event)
        self.bench.events.append(event)


# -- who starves ----------------------------------------------------------------------------


def test_with_a_guarantee_half_the_time_suffices() -> None:
    world = World(rules_by_path={"root.b": NodeRule(guarantee=(3000, 0, 0, 0))})
    world.run("a", 10)
    mine = world.wait("b", 2)
    starvation = Starvation()
    world.starving(starvation, 0)
    assert world.starving(starvation, 150) == [Starving("root.b", mine)]


# -- who must go ----------------------------------------------------------------------------


def test_what_is_being_given_back_keeps_no_promise() -> None:
    """a holds nine of its five cores; seven of them are in a job that is being stopped, or is
    ending, or being frozen."""
    for event in (ev.StopRequested, ev.Exited, ev.SuspendRequested):
        world = World(memory_gib=9)
        going = world.run("a", 7)
        world.run("a", 2, 9)
        world._apply(happened(event, going, 99))
        # There are enough cores, but no memory.
        mine = world.wait("b", 1, 1)
        assert world.victims("b", mine) == []


def test_a_pool_that_holds_both_does_not_come_to_starve_by_the_exchange() -> None:
    """lab holds nine of its six cores. It would give six of them for two, and keep five."""
    world = World(cores=12)
    world.run("b", 3, preemptible=False)
    world.run("lab.x", 3, preemptible=False)
    big = world.run("lab.x", 6)
    assert world.victims("lab.y", world.wait("lab.y", 2)) == []
    assert world.victims("lab.y", world.wait("lab.y", 3)) == [big]


def test_who_turns_out_not_to_be_needed_is_spared() -> None:
    """The small one was started last and is found first; then the big one suffices alone."""
    world = World(cores=12)
    world.run("a", 6, preemptible=False)
    big = world.run("a", 5)
    world.run("a", 1)
    mine = world.wait("b", 5)
    assert world.victims("b", mine) == [big]


def test_what_comes_back_anyway_is_waited_for() -> None:
    world = World()
    world.run("a", 5)
    leaving = world.run("a", 5)
    mine = world.wait("b", 2)
    world._apply(
        ev.StopRequested(
            job_id=leaving,
            at_s=now(99).at_s,
            mono_s=0.0,
            outcome=Outcome.CANCELLED,
            text="cancelled",
        )
    )
    assert world.victims("b", mine) == []


def test_a_job_that_fits_needs_nobody() -> None:
    world = World()
    world.run("a", 8)
    mine = world.wait("b", 2)
    assert world.victims("b", mine) == []


def test_inside_a_starving_pool_nobody_is_stopped_for_a_neighbour() -> None:
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


def test_frozen_victims_give_time_but_no_memory() -> None:
    world = World()
    world.run("a", 5, 1)
    last = world.run("a", 5, 1)
    frozen = Preempting(suspends=True)
    (request,) = world.requests("b", world.wait("b", 2, 1), frozen)
    assert isinstance(request, ev.SuspendRequested)
    assert (request.job_id, request.by) == (last, None)
    assert world.victims("b", world.wait("b", 2, 9), frozen) == []


# -- on random trees ------------------------------------------------------------------------


Vector = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    leaf: str
    vector: Vector
    is_preemptible: bool


def up(leaf: str) -> list[str]:
    """The nodes from the leaf to the child of the root."""
    parts = leaf.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 1, -1)]


def entitled(weights: Mapping[str, int], leaves: set[str]) -> dict[str, Fraction]:
    """Of the whole machine, by weights among active siblings."""
    nodes = {path for leaf in leaves for path in up(leaf)}
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
    weights = {path: chance.randint(1, 4) for leaf in leaves for path in up(leaf)}
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
def test_a_preemption_is_never_in_vain_and_breaks_no_kept_promise(seed: int) -> None:
    world, weights = random_world(seed)
    ledger = world.bench.ledger
    capacity = (12_000, 12 << 30)
    waiting = [job for job in ledger.jobs.values() if job.state is JobState.PENDING]
    running = {job.id: job for job in ledger.jobs.values() if job.state is JobState.RUNNING}
    parts = entitled(weights, {job.spec.leaf for job in ledger.jobs.values()})

    def holder(job: Job) -> Held:
        return Held(job.spec.leaf, ledger.demand(job)[:2], job.spec.preemptible)

    for mine in waiting:
        for path in up(mine.spec.leaf):
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
                theirs, ours = up(running[victim].spec.leaf), up(mine.spec.leaf)
                apart = [node for node in theirs if node not in ours]
                assert path not in theirs, "of the starving node itself"
                levels = [rho(node, after, capacity, parts[node]) for node in apart]
                assert min(levels) >= 1, "a kept promise is broken"
                my_side = next(node for node in reversed(ours) if node not in theirs)
                assert rho(my_side, after, capacity, parts[my_side]) <= levels[-1]


@examples(100, quick=5)
@given(some.integers(0, 10**6))
def test_the_victim_submitted_again_at_once_preempts_nobody(seed: int) -> None:
    world, _ = random_world(seed)
    ledger = world.bench.ledger
    waiting = [job for job in ledger.jobs.values() if job.state is JobState.PENDING]
    for mine in sorted(waiting, key=lambda job: job.id):
        starved = [s for s in world.starving(Starvation(), 0, eager()) if s.job_id == mine.id]
        requests = [r for s in starved[:1] for r in world.requests(s.path[5:], mine.id)]
        if not requests:
            continue
        starving_before = {s.path for s in world.starving(Starvation(), 0, eager())}
        for request in requests:
            world._apply(request)
            world.bench.feed(ended(request.job_id, at_s=200.0))
            world._apply(ev.Requeued(job_id=request.job_id, at_s=200.0, attempt=1))
        world._apply(ev.Admitted(job_id=mine.id, at_s=200.0, attempt=1))
        back = {request.job_id for request in requests}
        again = [s for s in world.starving(Starvation(), 0, eager()) if s.job_id in back]
        assert {s.path for s in again} <= starving_before, "a victim's side starves"
        return


def eager() -> Preempting:
    return Preempting(after_s=0.0, rest_s=0.0)


@pytest.mark.slow
def test_the_random_worlds_have_preemptions_in_them() -> None:
    """Else they would prove nothing."""
    found = 0
    for seed in range(300):
        world, _ = random_world(seed)
        jobs = [*world.bench.ledger.jobs.values()]
        waiting = [job for job in jobs if job.state is JobState.PENDING]
        found += sum(bool(world.victims(job.spec.leaf[5:], job.id)) for job in waiting)
    assert found > 30


# -- load from outside -------------------------------------------------------------------------


def asked_of(world: World, job_id: int, kept: tuple[int, ...]) -> list[int]:
    """The victims when so much is kept for processes outside drfd."""
    ledger, room = world.bench.ledger, world.bench.rules.shares.capacity
    starving = Starving("root.b", job_id)
    found = preempt(
        ledger, world.share_tree(), Supply(capacity=room, external=kept), starving, HOW, now(100)
    )
    return [event.job_id for event in found]


def test_nobody_is_stopped_for_load_from_outside() -> None:
    """By the books the job fits: only processes outside are in its way."""
    world = World()
    world.run("a", 7)
    job_id = world.wait("b", 3)
    assert asked_of(world, job_id, (2000, 0, 0, 0)) == []


def test_nobody_is_stopped_in_vain_because_of_load_from_outside() -> None:
    world = World()
    victims = [world.run("a", 1) for _ in range(10)]
    job_id = world.wait("b", 3)
    assert asked_of(world, job_id, (0, 0, 0, 0)) == victims[:-4:-1]
    assert asked_of(world, job_id, (1000, 0, 0, 0)) == []
