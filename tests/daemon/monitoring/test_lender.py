"""Lending, second by second: from counters to orders."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.core.amounts.resources import NOTHING, Resources
from drfd.core.decisions.decide import AttemptKey
from drfd.core.lending.rivals import Rivals, find_rivals
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job
from drfd.daemon.monitoring import lender
from drfd.daemon.monitoring.disk_lender import DiskLender
from drfd.daemon.monitoring.lender import Lender, Loan, Reading, read_counters
from drfd.daemon.monitoring.meter import Meter
from drfd.host.measurements import CpuCounters
from fakes import ALICE, BOB, Bench, attempt_started, demand, ended, now, rules, spec


@dataclass
class World:
    """Running jobs of which each second is told what they have used."""

    bench: Bench = field(default_factory=Bench)
    is_on: bool = True
    is_connected: bool = True
    #: Attempts that can be lent nothing.
    fixed: set[AttemptKey] = field(default_factory=set)
    sent: list[tuple[AttemptKey, int]] = field(default_factory=list)
    mono_s: float = 100.0
    busy_s: float = 0.0
    niced_s: float = 0.0
    stolen_s: float = 0.0
    #: Of niced processes of jobs, by pid.
    niced: dict[AttemptKey, dict[int, float]] = field(default_factory=dict)
    counters: dict[AttemptKey, CpuCounters] = field(default_factory=dict)
    lender: Lender = field(init=False)

    def __post_init__(self) -> None:
        # Only the ledger and the rules are asked for.
        engine: Any = SimpleNamespace(ledger=self.bench.ledger, rules=self.bench.rules)
        self.lender = Lender(
            engine,
            Meter(lambda: self.mono_s),
            lambda: self._send if self.is_connected else None,
            lambda: self.is_on,
            lambda key: key not in self.fixed,
            DiskLender(engine, tuple, lambda key: True),
            lambda: False,
        )

    def _send(self, key: AttemptKey, cores_milli: int, rates: Resources) -> None:
        assert rates == NOTHING
        self.sent.append((key, cores_milli))

    def start(self, floor: int, most: int | None, *, leaf: str = "root.alice") -> Job:
        actor = ALICE if leaf == "root.alice" else BOB
        asked = spec(leaf, asks=demand(floor, 1), actor=actor)
        if most is not None:
            asked = replace(asked, most=Resources(cores_milli=most * 1000))
        job_id = self.bench.start(asked)
        self.counters[job_id, 1] = CpuCounters(0.0, 0)
        return self.bench.job(job_id)

    def second(
        self, *use: tuple[Job, float, bool], outside: float = 0.0, niced: float = 0.0
    ) -> dict[int, int]:
        """Let a second pass with this use, by job: cores, and whether its ceiling has held it back.
        So much of all use is that of niced processes. Returns the ceilings that were sent."""
        self.mono_s += 1
        self.busy_s += outside + sum(cores for _, cores, _ in use) - niced
        self.niced_s += niced
        for job, cores, throttled in use:
            before = self.counters[job.id, 1]
            self.counters[job.id, 1] = CpuCounters(
                before.cpu_s + cores, before.throttled + throttled
            )
        self.sent.clear()
        found = {key: dict(processes) for key, processes in self.niced.items()}
        reading = Reading(
            self.mono_s, dict(self.counters), self.busy_s, 9, self.niced_s, found, self.stolen_s
        )
        self.lender.take(reading, self._send)
        return {key[0]: milli for key, milli in self.sent}


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_idle_is_lent_to_who_can_use_it(world: World) -> None:
    job = world.start(2, 8)
    assert world.second((job, 2, True)) == {}
    assert world.second((job, 2, True)) == {job.id: 4000}
    assert world.lender.loan(job) == Loan(ceiling_milli=4000, is_hungry=True)
    assert world.second((job, 4, True)) == {job.id: 8000}
    assert world.second((job, 8, True)) == {}
    assert world.lender.loan(job) == Loan(ceiling_milli=8000, is_hungry=False)


def test_users_who_could_use_more_are_named_to_each_other(world: World) -> None:
    mine, other = world.start(2, 9), world.start(2, 9, leaf="root.bob")
    for _ in range(5):
        world.second((mine, 4.5, True), (other, 4.5, True))
    loans = [world.lender.loan(job) for job in (mine, other)]
    assert loans == [
        Loan(ceiling_milli=4500, is_hungry=True, rivals=Rivals(("bob",))),
        Loan(ceiling_milli=4500, is_hungry=True, rivals=Rivals(("alice",))),
    ]


def test_rivals_are_found_once_when_somebody_asks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def count(*judged: Any) -> Any:
        calls.append(judged)
        return find_rivals(*judged)

    monkeypatch.setattr(lender, "find_rivals", count)
    mine, other = world.start(2, 9), world.start(2, 9, leaf="root.bob")
    for _ in range(5):
        world.second((mine, 4.5, True), (other, 4.5, True))
    assert calls == []
    loans = [world.lender.loan(job) for job in (mine, other, mine)]
    assert all(loan is not None and loan.rivals.everybody for loan in loans)
    assert len(calls) == 1


def test_load_from_outside_is_seen_beside_a_job_that_is_niced() -> None:
    """The kernel gives the job as much of what those outside want as if it were not."""
    world = World(Bench(replace(rules(), beside=Resources())))
    job = world.start(2, 9)
    for _ in range(6):
        world.niced = {(job.id, 1): {7: 2.0 * world.mono_s, 8: 0.1}}
        world.second((job, 2, True), outside=5, niced=2)
    assert 2000 < world.lender.loans[job.id, 1].ceiling_milli <= 3000


def test_niced_processes_outside_are_no_load_also_beside_a_job_that_has_some() -> None:
    world = World(Bench(replace(rules(), beside=Resources())))
    job, other = world.start(2, 9), world.start(1, None)
    for _ in range(6):
        # One of them is hidden, so all that its job uses may be niced.
        world.niced = {(job.id, 1): {7: 0.25 * world.mono_s}, (other.id, 1): {9: inf}}
        world.second((job, 3, True), (other, 0.25, False), outside=5, niced=5.5)
    assert world.lender.loans[job.id, 1].ceiling_milli > 8000


def test_a_machine_from_which_the_rest_is_stolen_is_full(world: World) -> None:
    """So a job that is kept from its floor is left all of it, and others are lent no more."""
    neighbour, job = world.start(1, 9), world.start(4, 9)
    for _ in range(6):
        world.stolen_s += 3
        world.second((neighbour, 4, True), (job, 2, False))
    assert world.lender.loans[neighbour.id, 1].ceiling_milli <= 5000


def test_niced_processes_are_looked_for_only_while_some_are_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def read(*found: Any, finds_niced: bool) -> Reading:
        asked.append(finds_niced)
        world.mono_s += 1
        world.niced_s += (0.0, 0.5, 0.5, 0.0, 0.0)[len(asked) - 1]
        return Reading(world.mono_s, {}, 0.0, 9, world.niced_s)

    monkeypatch.setattr(lender, "read_counters", read)
    for _ in range(5):
        asyncio.run(world.lender._step())
    assert asked == [False, False, True, True, False]


def test_jobs_that_come_and_go_are_not_taken_for_load_from_outside() -> None:
    world = World(Bench(replace(rules(), beside=Resources())))
    job = world.start(2, 9)
    for _ in range(4):
        world.second((job, 6, True))
    high = world.lender.loans[job.id, 1].ceiling_milli
    assert high > 8000
    short = world.start(1, None)
    world.second((job, 8, True), (short, 1, True))
    world.counters.pop((short.id, 1))
    world.bench.feed(ended(short.id))
    world.bench.feed(st.AttemptRemoved(now(), short.id, 1))
    # Of its last second only the machine tells.
    world.second((job, 8, True), outside=1)
    assert world.lender.loans[job.id, 1].ceiling_milli == 9000


def test_a_job_that_is_being_stopped_gives_its_loan_back_at_once(world: World) -> None:
    """Even if nobody else runs, or nothing is known of its use: what it does until it is killed
    needs no more than its floor."""
    job = world.start(2, 8)
    for _ in range(3):
        world.second((job, 2, True))
    assert world.lender.loans[job.id, 1].ceiling_milli == 8000
    world.bench.feed(st.CancelAsked(now(), job.id, ALICE))
    world.mono_s += 60
    assert world.second((job, 8, True)) == {job.id: 2000}
    assert world.lender.loan(world.bench.job(job.id)) is None
    assert world.second((job, 2, True)) == {}


def test_loans_are_taken_back_when_nothing_is_lent_any_more(world: World) -> None:
    job, quiet = world.start(2, 8), world.start(1, None)
    for _ in range(3):
        world.second((job, 2, True), (quiet, 0, False))
    world.fixed.add((quiet.id, 1))
    world.sent.clear()
    world.is_on = False
    asyncio.run(world.lender._step())
    assert world.sent == [((job.id, 1), 2000)]
    assert world.lender.loans == {}
    world.sent.clear()
    asyncio.run(world.lender._step())
    assert world.sent == []


@pytest.mark.parametrize("is_on", [True, False])
def test_a_new_launcher_or_controller_orders_all_that_run_what_they_may_use(is_on: bool) -> None:
    """What the kernel has is not known: an earlier controller may have lent them something."""
    world = World(is_on=is_on)
    jobs = [world.start(2, 8), world.start(1, None, leaf="root.bob")]
    old = world.start(1, 8)
    world.fixed.add((old.id, 1))
    frozen = world.start(1, 8)
    world.bench.feed(st.SuspendAsked(now(), frozen.id, ALICE))
    world.bench.feed(st.Frozen(now(), frozen.id, 1))
    use = [(job, 0.1, False) for job in jobs]

    def sent() -> dict[int, int]:
        """What two seconds bring."""
        world.sent.clear()
        asyncio.run(world.lender._step())
        found = dict(world.sent)
        for _ in range(2 if is_on else 0):
            found |= {(job_id, 1): milli for job_id, milli in world.second(*use).items()}
        return {job_id: milli for (job_id, _), milli in found.items()}

    first = sent()
    assert first.keys() == {job.id for job in jobs}
    assert first[jobs[1].id] == 1000
    world.bench.feed(st.ResumeAsked(now(), frozen.id, ALICE))
    assert world.bench.schedule() == [frozen.id]
    use.append((world.bench.job(frozen.id), 0.1, False))
    assert sent().keys() - first.keys() == {frozen.id}
    assert jobs[1].id not in sent()


def test_while_no_order_reaches_the_launcher_all_stays(world: World) -> None:
    job = world.start(2, 8)
    for _ in range(3):
        world.second((job, 2, True))
    world.sent.clear()
    world.is_connected = world.is_on = False
    asyncio.run(world.lender._step())
    assert (world.sent, world.lender.loan(job)) == ([], Loan(ceiling_milli=8000, is_hungry=False))


def test_counters_are_read_of_both_versions_of_cgroups(tmp_path: Path) -> None:
    job = tmp_path / "drfd/1.1"
    job.mkdir(parents=True)
    (job / "cpu.stat").write_text("usage_usec 2500000\nnr_periods 9\nnr_throttled 4\n")
    (job / "cpuacct.usage").write_text("1500000000\n")
    watched = {(1, 1): "drfd/1.1", (2, 1): "drfd/2.1"}
    second = read_counters({"cgroup2": str(tmp_path)}, watched)
    assert second.attempts == {(1, 1): CpuCounters(2.5, 4)}
    first = read_counters({"cpu": str(tmp_path), "cpuacct": str(tmp_path)}, watched)
    assert first.attempts == {(1, 1): CpuCounters(1.5, 4)}
    assert first.busy_s > 0 < first.cpus


def test_attempts_are_told_apart(world: World) -> None:
    """A job that was started again has used nothing yet."""
    job = world.start(2, 8)
    world.second((job, 2, True))
    world.counters[job.id, 2] = world.counters.pop((job.id, 1))
    world.bench.feed(attempt_started(job.id, 1))
    assert world.second() == {}
