"""Lending of cores and disk rates, second by second: from counters to orders."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.core.amounts.resources import NOTHING, Axes, Resources
from drfd.core.decisions.decide import AttemptKey
from drfd.core.lending.rivals import Rivals
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job
from drfd.daemon.launcher_link.lending import unlent_text
from drfd.daemon.monitoring import lender
from drfd.daemon.monitoring.disk_lender import DiskLender, DiskReading, Flow, read_disks
from drfd.daemon.monitoring.lender import Lender, Loan, Reading, read_counters
from drfd.daemon.monitoring.meter import Meter
from drfd.host.disks import Disk
from drfd.host.measurements import CpuCounters
from drfd.launcher.protocol import QUOTA, SHARE, WEIGHT, Message
from fakes import ALICE, BOB, Bench, attempt_started, demand, ended, now, rules, spec

# -- cores -------------------------------------------------------------------------------------


def actor(leaf: str) -> st.Actor:
    return ALICE if leaf == "root.alice" else BOB


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
            engine, Meter(lambda: self.mono_s), lambda: self._send if self.is_connected else None,
            lambda: self.is_on, lambda key: key not in self.fixed,
            DiskLender(engine, tuple, lambda key: True), lambda: False,
        )  # fmt: skip

    def _send(self, key: AttemptKey, cores_milli: int, rates: Resources) -> None:
        assert rates == NOTHING
        self.sent.append((key, cores_milli))

    def start(self, floor: int, most: int | None, *, leaf: str = "root.alice") -> Job:
        asked = spec(leaf, asks=demand(floor, 1), actor=actor(leaf))
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
        asyncio.run(world.lender.step())
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
    asyncio.run(world.lender.step())
    assert world.sent == [((job.id, 1), 2000)]
    assert world.lender.loans == {}
    world.sent.clear()
    asyncio.run(world.lender.step())
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
        asyncio.run(world.lender.step())
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
    asyncio.run(world.lender.step())
    assert (world.sent, world.lender.loan(job)) == ([], Loan(ceiling_milli=8000, is_hungry=False))


def test_counters_and_bytes_are_read_of_both_versions_of_cgroups(tmp_path: Path) -> None:
    job = tmp_path / "drfd/1.1"
    job.mkdir(parents=True)
    (job / "cpu.stat").write_text("usage_usec 2500000\nnr_periods 9\nnr_throttled 4\n")
    (job / "cpuacct.usage").write_text("1500000000\n")
    (job / "io.stat").write_text("8:0 rbytes=5 wbytes=6 rios=1\n")
    (job / "blkio.throttle.io_service_bytes").write_text("8:0 Read 7\n8:0 Write 8\nTotal 15\n")
    watched, here = {(1, 1): "drfd/1.1", (2, 1): "drfd/2.1"}, str(tmp_path)
    second = read_counters({"cgroup2": here}, watched)
    assert second.attempts == {(1, 1): CpuCounters(2.5, 4)}
    first = read_counters({"cpu": here, "cpuacct": here}, watched)
    assert first.attempts == {(1, 1): CpuCounters(1.5, 4)}
    assert first.busy_s > 0 < first.cpus
    assert read_disks({"cgroup2": here}, watched).attempts == {(1, 1): {"8:0": (5, 6)}}
    assert read_disks({"blkio": here}, watched).attempts == {(1, 1): {"8:0": (7, 8)}}


def test_attempts_are_told_apart(world: World) -> None:
    """A job that was started again has used nothing yet."""
    job = world.start(2, 8)
    world.second((job, 2, True))
    world.counters[job.id, 2] = world.counters.pop((job.id, 1))
    world.bench.feed(attempt_started(job.id, 1))
    assert world.second() == {}


# -- disk rates --------------------------------------------------------------------------------


MIB = 1 << 20
DATA, SCRATCH = (
    Disk(name=name, path=f"/{name}", read_bps=100 * MIB, write_bps=100 * MIB, devices=(device,))
    for name, device in (("data", "8:0"), ("scratch", "8:16"))
)
ONE = replace(
    rules(), capacity=demand(9, 18, read=100 * MIB, write=100 * MIB), axes=Axes(disks=("data",))
)
TWO = replace(
    rules(),
    capacity=replace(
        demand(9, 18), disks=(("data", 100 * MIB, 100 * MIB), ("scratch", 100 * MIB, 100 * MIB))
    ),
    axes=Axes(disks=("data", "scratch")),
)


@dataclass
class DiskWorld:
    """Running jobs of which each second is told what they have read and written."""

    bench: Bench = field(default_factory=lambda: Bench(ONE))
    disks: tuple[Disk, ...] = (DATA,)
    mono_s: float = 100.0
    sent: list[tuple[int, Resources]] = field(default_factory=list)
    moved: dict[AttemptKey, dict[str, tuple[int, int]]] = field(default_factory=dict)
    #: Attempts that can be lent nothing.
    fixed: set[AttemptKey] = field(default_factory=set)
    lender: DiskLender = field(init=False)

    def __post_init__(self) -> None:
        # Only the ledger and the rules are asked for.
        engine: Any = SimpleNamespace(ledger=self.bench.ledger, rules=self.bench.rules)
        self.lender = DiskLender(engine, lambda: self.disks, lambda key: key not in self.fixed)

    def start(self, floor: int, most: int, *, write: int = 0, leaf: str = "root.alice") -> Job:
        """A job with a range of reads, in MiB per second; 0 is none."""
        asks = replace(demand(1, 1), read_bps=floor * MIB, write_bps=write * MIB)
        ends = Resources(read_bps=most * MIB) if most else None
        return self.begin(replace(spec(leaf, asks=asks, actor=actor(leaf)), most=ends))

    def begin(self, asked: Any) -> Job:
        return self.bench.job(self.bench.start(asked))

    def second(self, *use: tuple[Job, float], device: str = "8:0") -> dict[int, float]:
        """Let a second pass with these reads, in MiB. Returns the rates of reads that were sent."""
        return {job_id: rates.read_bps / MIB for job_id, rates in self.seconds(use, device)}

    def seconds(self, use: Any, device: str = "8:0") -> list[tuple[int, Resources]]:
        self.mono_s += 1
        for job, mib in use:
            each = self.moved.setdefault((job.id, job.attempt), {})
            each[device] = each.get(device, (0, 0))[0] + int(mib * MIB), 0
        watched = self.lender.watched()
        attempts: Mapping[Any, Any] = {key: dict(self.moved.get(key, {})) for key in watched}
        self.sent.clear()
        self.lender.take(DiskReading(self.mono_s, attempts), self.send)
        return self.sent

    def send(self, key: AttemptKey, rates: Resources) -> None:
        self.sent.append((key[0], rates))

    def ceiling(self, job: Job) -> float:
        (loan,) = self.lender.of(self.bench.job(job.id))
        return loan.ceiling_bps / MIB


@pytest.fixture
def io() -> DiskWorld:
    return DiskWorld()


def test_who_gives_back_is_told_before_who_is_lent_more(io: DiskWorld) -> None:
    mine = io.start(10, 90)
    for mib in (10, 10, 20, 40, 80):
        io.second((mine, mib))
    assert io.ceiling(mine) == 90
    other = io.start(10, 90, leaf="root.bob")
    assert list(io.second((mine, 90))) == [mine.id, other.id], "its floor is counted at once"
    assert io.ceiling(mine) == 80
    assert list(io.second((mine, 80), (other, 10)).items()) == [(mine.id, 45), (other.id, 20)]
    loans = [io.lender.of(job)[0] for job in (mine, other)]
    assert [(loan.is_hungry, loan.rivals.everybody) for loan in loans] == [
        (True, ("bob",)),
        (True, ("alice",)),
    ]
    io.bench.feed(ended(mine.id))
    assert other.id in io.second((other, 20))
    assert io.lender.of(io.bench.job(mine.id)) == []


def test_use_that_comes_in_lumps_is_no_smaller_for_it(io: DiskWorld) -> None:
    """Of large requests, one second has more and the next one less."""
    even, uneven = io.start(10, 90), io.start(10, 90, leaf="root.bob")
    for mib in (10, 10, 20, 40, 45, 45, 45):
        io.second((even, mib), (uneven, mib))
    for part in (0.7, 1.2, 0.7, 0.9, 1.1, 0.7):
        assert io.second((even, 45), (uneven, 45 * part)) == {}
    assert (io.ceiling(even), io.ceiling(uneven)) == (45, 45)


def test_what_was_read_before_a_pause_tells_nothing(io: DiskWorld) -> None:
    job = io.start(10, 80)
    io.second((job, 10))
    io.mono_s += 60
    assert io.second((job, 10)) == {}


def test_all_is_given_back_when_disks_are_lent_no_more(io: DiskWorld) -> None:
    job, quiet = io.start(10, 80), io.start(1, 0)
    for mib in (10, 10, 20):
        io.second((job, mib))
    for expected in ([(job.id, Resources(read_bps=10 * MIB))], []):
        io.sent.clear()
        io.lender.take_back(io.send)
        assert io.sent == expected
    assert io.lender.of(job) == io.lender.of(quiet) == []


def test_each_disk_is_lent_by_itself() -> None:
    io = DiskWorld(Bench(TWO), (DATA, SCRATCH))
    asks = replace(demand(1, 1), disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 5 * MIB)))
    most = Resources(disks=(("data", 40 * MIB, 0), ("scratch", 30 * MIB, 0)))
    job = io.begin(replace(spec(asks=asks), most=most))
    io.second((job, 10))
    assert io.seconds([(job, 10)]) == [
        (job.id, replace(Resources(), disks=(
            ("data", 20 * MIB, 0), ("scratch", 30 * MIB, 5 * MIB))))
    ]  # fmt: skip
    loans = {loan.flow: loan for loan in io.lender.of(job)}
    assert loans.keys() == {Flow("data", "read"), Flow("scratch", "read")}
    assert not any(loan.is_hungry for loan in loans.values() if loan.flow.disk == "scratch")


def test_what_is_lent_of_a_disk_comes_back_when_the_disk_has_another_name() -> None:
    """What the new name has is given out as a whole."""
    io = DiskWorld(Bench(TWO), (DATA, SCRATCH))
    asks = replace(demand(1, 1), disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 0)))
    job = io.begin(replace(spec(asks=asks), most=Resources(disks=(("data", 40 * MIB, 0),))))
    io.second((job, 10))
    io.second((job, 10))
    assert io.ceiling(job) == 20
    io.disks = (replace(DATA, name="home"), SCRATCH)
    assert io.seconds([(job, 20)]) == [
        (job.id, Resources(disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 0))))
    ]
    assert io.lender.of(job) == []
    assert io.seconds([(job, 20)]) == []


def test_two_disks_on_one_device_share_what_was_measured_there() -> None:
    io = DiskWorld(Bench(TWO), (DATA, replace(SCRATCH, devices=DATA.devices)))
    asks = replace(demand(1, 1), disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 0)))
    most = Resources(disks=(("data", 90 * MIB, 0),))
    job = io.begin(replace(spec(asks=asks), most=most))
    io.second((job, 0))
    io.second((job, 0))
    assert io.ceiling(job) == 20
    # Forty are allowed in all: thirty are three quarters, of which nobody is held back.
    io.second((job, 30))
    assert not io.lender.of(job)[0].is_hungry


# -- what is lent here, by the configuration and by what the launcher says ---------------------


ALL_OF_IT: Message = {"lendable": ["cores", "disks"]}
CORES: Message = {"lendable": ["cores"]}
NONE: Message = {"lendable": []}
RANGE = spec(asks=demand(2, read=10), most=Resources(cores_milli=8000, read_bps=20))


@pytest.mark.parametrize(
    ("hello", "mode", "text"),
    [
        ({}, SHARE, None),
        (ALL_OF_IT, SHARE, None),
        (CORES, SHARE,
         "no disk rates are lent here (the kernel gives no way); the job has the lower end"),
        (NONE, SHARE,
         "no cores or disk rates are lent here (the kernel gives no way); the job has the lower "
         "end"),
        (ALL_OF_IT, QUOTA,
         "no cores are lent here (enforcement.cores is quota); the job has the lower end"),
        (NONE, QUOTA,
         "no cores are lent here (enforcement.cores is quota), and no disk rates (the kernel gives "
         "no way); the job has the lower end"),
        ({}, QUOTA,
         "no cores are lent here (enforcement.cores is quota); the job has the lower end"),
        (ALL_OF_IT, WEIGHT,
         "no cores are lent here (enforcement.cores is weight); the job has the lower end, and of "
         "cores what others leave idle"),
    ],
)  # fmt: skip
def test_an_owner_is_told_what_of_a_range_does_not_count(
    hello: Message, mode: str, text: str | None
) -> None:
    assert unlent_text(RANGE, hello, mode) == text
    assert unlent_text(spec(asks=demand(2)), hello, mode) is None


def test_of_a_disk_whose_rates_cannot_be_limited_nothing_is_lent() -> None:
    """Another one of the machine may take limits."""
    fast, slow = (
        Disk(name=name, path=f"/{name}", read_bps=100, write_bps=100, devices=devices, why_none=why)
        for name, devices, why in (("data", ("8:0",), ""), ("net", (), "/net is on nfs, elsewhere"))
    )
    asks = replace(demand(2), disks=(("data", 10, 10), ("net", 10, 10)))
    for disk, text in (
        ("data", None),
        ("net", "no disk rates are lent here (/net is on nfs, elsewhere); the job has the lower "
         "end"),
    ):  # fmt: skip
        ranged = spec(asks=asks, most=Resources(disks=((disk, 20, 0),)))
        assert unlent_text(ranged, ALL_OF_IT, QUOTA, (fast, slow)) == text
