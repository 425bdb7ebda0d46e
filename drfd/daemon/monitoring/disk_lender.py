"""Lending of disk rates to running jobs: measured use in, new rates out.

Each direction of each disk is judged by itself. Only jobs with a range of rates are measured, so
nothing is read while there is none. What the kernel has counted is the use: on cgroup v1, which
does not attribute buffered writes, that is direct I/O and reads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from drfd.common.units import DISK_AXES
from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.lending import NO_RIVALS, Borrower, DiskRate, Judgement, Rivals, find_rivals, judge
from drfd.core.model.job import Job, JobState
from drfd.core.model.options import most_here
from drfd.core.model.resources import NOTHING, Resources
from drfd.daemon.engine.engine import Engine
from drfd.daemon.monitoring.borrowers import STALE_S, Places, is_judged
from drfd.host.disks import Disk, rates_by_device
from drfd.host.measurements import disk_counters

#: States in which a job holds its rates, and may use them.
_USES = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
#: States in which the launcher has an attempt whose rates can be moved.
_RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPING})
#: Readings that are kept. A job's use is the highest rate between any two in a row: of large
#: requests at a low rate, one second has more and the next one less.
_READINGS = 4


class Flow(NamedTuple):
    """One direction of a disk. It names the axis of `Axes`."""

    disk: str
    #: "read" or "write".
    direction: str

    def of(self, rates: Resources) -> int:
        """Return its rate among these, in bytes per second."""
        return rates.rates(self.disk)[self.direction == "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLoan:
    """What a running job may use now of its range of one flow, in bytes per second."""

    flow: Flow
    floor_bps: int
    ceiling_bps: int
    most_bps: int
    #: Whether it could use more than it may, and who else could.
    is_hungry: bool
    rivals: Rivals = NO_RIVALS


class DiskReading(NamedTuple):
    """Bytes read and written at one moment, by attempt and device."""

    mono_s: float
    attempts: Mapping[AttemptKey, Mapping[str, tuple[int, int]]]


SendRates = Callable[[AttemptKey, Resources], None]


@dataclass
class DiskLender:
    """What is lent of disk rates."""

    engine: Engine
    #: The disks that are given out.
    disks: Callable[[], Sequence[Disk]]
    #: Whether a running attempt can be lent disk rates.
    can_lend: Callable[[AttemptKey], bool]
    loans: dict[AttemptKey, dict[Flow, DiskLoan]] = field(default_factory=dict)
    #: The rates that were sent last. None of an attempt that an earlier controller may have lent
    #: something, or a launcher that has gone meanwhile: it is told again.
    _told: dict[AttemptKey, Resources] = field(default_factory=dict)
    _readings: deque[DiskReading] = field(default_factory=lambda: deque(maxlen=_READINGS))
    _places: Places = field(init=False)

    def __post_init__(self) -> None:
        self._places = Places(self.engine)

    def watched(self) -> frozenset[AttemptKey]:
        """Return the attempts whose use must be known."""
        return frozenset((job.id, job.attempt) for job in self._candidates())

    def untold(self) -> None:
        """Note that no order reaches the launcher."""
        self._told.clear()
        self._readings.clear()

    def take(self, reading: DiskReading, send: SendRates) -> None:
        """Judge by this reading and the ones before, and send the rates that have changed."""
        if self._readings and not 0 < reading.mono_s - self._readings[-1].mono_s < STALE_S:
            self._readings.clear()
        self._readings.append(reading)
        if len(self._readings) < 2:
            return
        jobs = self._ranged()
        running = {(job.id, job.attempt): job for job, _ in jobs if is_judged(job)}
        # What stands still, or is about to end, gives its loans back, and of disks that are not
        # there any more all do; what cannot be read now keeps them.
        names = {disk.name for disk in self.disks() if disk.devices}
        self.loans = {
            key: {flow: loan for flow, loan in loans.items() if flow.disk in names}
            for key, loans in self.loans.items()
            if key in running
        }
        found: dict[AttemptKey, dict[Flow, DiskLoan]] = {}
        for disk in self.disks():
            for direction in ("read", "write") if disk.devices else ():
                for key, loan in self._judge(Flow(disk.name, direction), disk, jobs):
                    found.setdefault(key, {})[loan.flow] = loan
        self.loans |= found
        self._tell([job for job, _ in jobs], send)

    def take_back(self, send: SendRates) -> None:
        """Set all rates back to the floors, after disks have ceased to be lent."""
        self._readings.clear()
        if self.loans:
            self.loans.clear()
            self._tell([], send)
        self._told.clear()

    def of(self, job: Job) -> Sequence[DiskLoan]:
        """Return what the job may use now, of each flow of which it declares a range that is
        lent."""
        return list(self.loans.get((job.id, job.attempt), {}).values())

    def _candidates(self) -> list[Job]:
        """Return the jobs that run, declare a range of rates, and can be lent some."""
        return [
            job
            for job in self.engine.ledger.allocated_jobs()
            if job.spec.most is not None
            and any(job.spec.most.rate_sums)
            and job.state in _RUNS
            and self.can_lend((job.id, job.attempt))
        ]

    def _ranged(self) -> list[tuple[Job, Resources]]:
        """Return the candidates to which the machine has something to lend, with the upper ends of
        their ranges."""
        capacity = self.engine.rules.own_capacity
        found = ((job, most_here(job.spec, capacity)) for job in self._candidates())
        return [(job, most) for job, most in found if most is not None and any(most.rate_sums)]

    def _judge(
        self, flow: Flow, disk: Disk, jobs: Sequence[tuple[Job, Resources]]
    ) -> Iterator[tuple[AttemptKey, DiskLoan]]:
        borrowers = {}
        for job, most in jobs:
            has_range = flow.of(job.spec.demand) and flow.of(most)
            used = self._used(job, flow, disk) if has_range and is_judged(job) else None
            if used is None:
                continue
            borrowers[job.id] = (
                job,
                Borrower(
                    job_id=job.id,
                    leaf=job.spec.leaf,
                    floor=flow.of(job.spec.demand),
                    most=flow.of(most),
                    ceiling=flow.of(self._rates(job)),
                    used=used,
                ),
            )
        if not borrowers:
            return
        fixed = sum(
            flow.of(self._rates(job))
            for job in self.engine.ledger.allocated_jobs()
            if job.state in _USES and job.id not in borrowers
        )
        source = DiskRate(rate=flow.of(self.engine.rules.own_capacity), fixed=fixed)
        tree = self._places.on(self._axis(flow))
        found = judge([each for _, each in borrowers.values()], source, tree)
        rivals = find_rivals(
            [(job.spec.user, each) for job, each in borrowers.values()], found, tree
        )
        for job, borrower in borrowers.values():
            against = rivals.get((job.spec.user, job.spec.leaf), NO_RIVALS)
            yield (job.id, job.attempt), _loan(flow, borrower, found[job.id], against)

    def _rates(self, job: Job) -> Resources:
        """Return all rates that the job may use now."""
        demand, loans = job.spec.demand, self.loans.get((job.id, job.attempt), {})

        only, rates = next((disk.name for disk in self.disks()), ""), {}
        for axis, floor in demand.amounts.items():
            kind, _, disk = axis.partition(":")
            loan = loans.get(Flow(disk or only, kind))
            if kind in DISK_AXES:
                rates[axis] = floor if loan is None else max(floor, loan.ceiling_bps)
        return NOTHING.with_amounts(rates)

    def _used(self, job: Job, flow: Flow, disk: Disk) -> float | None:
        """Return what the job uses of the flow, or None if it has not been read twice. Of a device
        with several disks it is the part of its limit there that the job uses."""
        key, at = (job.id, job.attempt), flow.direction == "write"
        rates = self._rates(job)
        limits = rates_by_device(rates, self.disks())
        parts = []
        for before, after in pairwise(self._readings):
            first, last = before.attempts.get(key), after.attempts.get(key)
            if first is None or last is None:
                continue
            span_s = after.mono_s - before.mono_s
            for device in disk.devices:
                moved = last.get(device, (0, 0))[at] - first.get(device, (0, 0))[at]
                parts.append(max(0, moved) / span_s / limits[device][at])
        return max(parts) * flow.of(rates) if parts else None

    def _axis(self, flow: Flow) -> int:
        axes = self.engine.rules.axes
        name = f"{flow.direction}:{flow.disk}" if len(axes.disks) > 1 else flow.direction
        return axes.names.index(name)

    def _tell(self, jobs: Sequence[Job], send: SendRates) -> None:
        """Send the rates of these jobs, and of all that were told some before, where they differ:
        first to who gives something back, so that together they are never more than the disk
        has."""
        alive = {(job.id, job.attempt): job for job in self.engine.ledger.allocated_jobs()}
        told = [alive[key] for key in self._told if key in alive and alive[key].state in _RUNS]
        each = {(job.id, job.attempt): job for job in (*jobs, *told)}
        wanted = {key: self._rates(job) for key, job in each.items()}
        self._told = {key: rates for key, rates in self._told.items() if key in wanted}
        news = {key: rates for key, rates in wanted.items() if self._told.get(key) != rates}
        for key in sorted(news, key=lambda key: not _is_lower(news[key], self._told.get(key))):
            send(key, news[key])
        self._told |= news


def _is_lower(rates: Resources, before: Resources | None) -> bool:
    """Return whether any of the rates is lower than before, or may be."""
    if before is None:
        return True
    return any(rate < before.amount(axis) for axis, rate in rates.amounts.items())


def _loan(flow: Flow, job: Borrower, judgement: Judgement, rivals: Rivals) -> DiskLoan:
    return DiskLoan(
        flow=flow,
        floor_bps=int(job.floor),
        ceiling_bps=max(int(job.floor), int(judgement.ceiling)),
        most_bps=int(job.most),
        is_hungry=judgement.is_hungry,
        rivals=rivals if judgement.is_hungry else NO_RIVALS,
    )


def read_disks(mounts: Mapping[str, str], watched: Mapping[AttemptKey, str]) -> DiskReading:
    """Read what these cgroups have moved to and from disks."""
    found = {key: disk_counters(mounts, cgroup) for key, cgroup in watched.items()}
    return DiskReading(
        time.monotonic(), {key: moved for key, moved in found.items() if moved is not None}
    )
