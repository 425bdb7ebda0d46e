"""Lending of disk rates, second by second: from bytes to orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.core.amounts.resources import Axes, Resources
from drfd.core.decisions.decide import AttemptKey
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job
from drfd.daemon.monitoring.disk_lender import DiskLender, DiskReading, Flow, read_disks
from drfd.host.disks import Disk
from fakes import ALICE, BOB, Bench, demand, ended, now, rules, spec

MIB = 1 << 20
DATA, SCRATCH = (
    Disk(name=name, path=f"/{name}", read_bps=100 * MIB, write_bps=100 * MIB, devices=(device,))
    for name, device in (("data", "8:0"), ("scratch", "8:16"))
)
ONE = replace(
    rules(),
    capacity=demand(9, 18, read=100 * MIB, write=100 * MIB),
    axes=Axes(disks=("data",)),
)
TWO = replace(
    rules(),
    capacity=replace(
        demand(9, 18), disks=(("data", 100 * MIB, 100 * MIB), ("scratch", 100 * MIB, 100 * MIB))
    ),
    axes=Axes(disks=("data", "scratch")),
)


@dataclass
class World:
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


def actor(leaf: str) -> st.Actor:
    return ALICE if leaf == "root.alice" else BOB


@pytest.fixture
def world() -> World:
    return World()


def test_who_gives_back_is_told_before_who_is_lent_more(world: World) -> None:
    mine = world.start(10, 90)
    for mib in (10, 10, 20, 40, 80):
        world.second((mine, mib))
    assert world.ceiling(mine) == 90
    other = world.start(10, 90, leaf="root.bob")
    assert list(world.second((mine, 90))) == [mine.id, other.id], "its floor is counted at once"
    assert world.ceiling(mine) == 80
    assert list(world.second((mine, 80), (other, 10)).items()) == [(mine.id, 45), (other.id, 20)]
    loans = [world.lender.of(job)[0] for job in (mine, other)]
    assert [(loan.is_hungry, loan.rivals.everybody) for loan in loans] == [
        (True, ("bob",)),
        (True, ("alice",)),
    ]
    world.bench.feed(ended(mine.id))
    assert other.id in world.second((other, 20))
    assert world.lender.of(world.bench.job(mine.id)) == []


def test_use_that_comes_in_lumps_is_no_smaller_for_it(world: World) -> None:
    """Of large requests, one second has more and the next one less."""
    even, uneven = world.start(10, 90), world.start(10, 90, leaf="root.bob")
    for mib in (10, 10, 20, 40, 45, 45, 45):
        world.second((even, mib), (uneven, mib))
    for part in (0.7, 1.2, 0.7, 0.9, 1.1, 0.7):
        assert world.second((even, 45), (uneven, 45 * part)) == {}
    assert (world.ceiling(even), world.ceiling(uneven)) == (45, 45)


def test_a_range_that_is_taken_away_is_given_back(world: World) -> None:
    job = world.start(10, 80)
    for mib in (10, 10, 20):
        world.second((job, mib))
    wish = st.Change(read_bps=10 * MIB)
    world.bench.feed(st.ChangeAsked(now(), job.id, ALICE, wish))
    assert world.bench.job(job.id).spec.most is None
    assert world.second((job, 40)) == {job.id: 10}


def test_what_was_read_before_a_pause_tells_nothing(world: World) -> None:
    job = world.start(10, 80)
    world.second((job, 10))
    world.mono_s += 60
    assert world.second((job, 10)) == {}


def test_all_is_given_back_when_disks_are_lent_no_more(world: World) -> None:
    job, quiet = world.start(10, 80), world.start(1, 0)
    for mib in (10, 10, 20):
        world.second((job, mib))
    for expected in ([(job.id, Resources(read_bps=10 * MIB))], []):
        world.sent.clear()
        world.lender.take_back(world.send)
        assert world.sent == expected
    assert world.lender.of(job) == world.lender.of(quiet) == []


def test_each_disk_is_lent_by_itself() -> None:
    world = World(Bench(TWO), (DATA, SCRATCH))
    asks = replace(demand(1, 1), disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 5 * MIB)))
    most = Resources(disks=(("data", 40 * MIB, 0), ("scratch", 30 * MIB, 0)))
    job = world.begin(replace(spec(asks=asks), most=most))
    world.second((job, 10))
    assert world.seconds([(job, 10)]) == [
        (job.id, replace(Resources(), disks=(
            ("data", 20 * MIB, 0), ("scratch", 30 * MIB, 5 * MIB))))
    ]  # fmt: skip
    loans = {loan.flow: loan for loan in world.lender.of(job)}
    assert loans.keys() == {Flow("data", "read"), Flow("scratch", "read")}
    assert not any(loan.is_hungry for loan in loans.values() if loan.flow.disk == "scratch")


def test_what_is_lent_of_a_disk_comes_back_when_the_disk_has_another_name() -> None:
    """What the new name has is given out as a whole."""
    world = World(Bench(TWO), (DATA, SCRATCH))
    asks = replace(demand(1, 1), disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 0)))
    job = world.begin(replace(spec(asks=asks), most=Resources(disks=(("data", 40 * MIB, 0),))))
    world.second((job, 10))
    world.second((job, 10))
    assert world.ceiling(job) == 20
    world.disks = (replace(DATA, name="home"), SCRATCH)
    assert world.seconds([(job, 20)]) == [
        (job.id, Resources(disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 0))))
    ]
    assert world.lender.of(job) == []
    assert world.seconds([(job, 20)]) == []


def test_two_disks_on_one_device_share_what_was_measured_there() -> None:
    world = World(Bench(TWO), (DATA, replace(SCRATCH, devices=DATA.devices)))
    asks = replace(demand(1, 1), disks=(("data", 10 * MIB, 0), ("scratch", 20 * MIB, 0)))
    most = Resources(disks=(("data", 90 * MIB, 0),))
    job = world.begin(replace(spec(asks=asks), most=most))
    world.second((job, 0))
    world.second((job, 0))
    assert world.ceiling(job) == 20
    # Forty are allowed in all: thirty are three quarters, of which nobody is held back.
    world.second((job, 30))
    assert not world.lender.of(job)[0].is_hungry


def test_bytes_are_read_of_both_versions_of_cgroups(tmp_path: Path) -> None:
    job = tmp_path / "drfd/1.1"
    job.mkdir(parents=True)
    (job / "io.stat").write_text("8:0 rbytes=5 wbytes=6 rios=1\n")
    (job / "blkio.throttle.io_service_bytes").write_text("8:0 Read 7\n8:0 Write 8\nTotal 15\n")
    watched = {(1, 1): "drfd/1.1", (2, 1): "drfd/2.1"}
    assert read_disks({"cgroup2": str(tmp_path)}, watched).attempts == {(1, 1): {"8:0": (5, 6)}}
    assert read_disks({"blkio": str(tmp_path)}, watched).attempts == {(1, 1): {"8:0": (7, 8)}}
