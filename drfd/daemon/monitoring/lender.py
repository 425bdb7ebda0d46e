"""Lending to running jobs, once a second: idle cores, and disk rates by `DiskLender`.

Measures how much each running job has used and whether its ceiling held it back, has
`core.lending` judge, and sends the launcher the ceilings that have changed. Nothing of this is
state that must survive: without this loop, jobs keep the ceilings that the kernel has, and their
floors: of cores by weights, of disks because all ceilings together are below what a disk has. So
what the kernel has is not known of jobs that run when a launcher connects: an earlier controller
may have lent them something, or an order may have been lost with the launcher. They are ordered
what they may use whatever it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.lending import (
    NO_RIVALS,
    Borrower,
    Judgement,
    Machine,
    Node,
    Rivals,
    find_rivals,
    judge,
)
from drfd.core.model.job import Job, JobState
from drfd.core.model.options import most_here
from drfd.core.model.resources import NOTHING, Resources
from drfd.daemon.engine.engine import Engine
from drfd.daemon.monitoring.borrowers import STALE_S, Places, is_judged
from drfd.daemon.monitoring.disk_lender import DiskLender, read_disks
from drfd.daemon.monitoring.meter import SOME_NICED, Meter
from drfd.host.measurements import (
    CpuCounters,
    cpu_counters,
    niced_between,
    niced_processes,
    read_cpu_times,
)

log = logging.getLogger("drfd")

#: Seconds between two judgements.
STEP_S = 1.0
#: Orders an attempt's ceiling of cores, in thousandths, and rates of its disks, of which those that
#: are not named stay.
Send = Callable[[AttemptKey, int, Resources], None]
#: The axis of cores.
_CORES = 0
#: The arguments of `find_rivals`.
_Judged = tuple[Sequence[tuple[str, Borrower]], Mapping[int, Judgement], Mapping[str, Node]]
#: The counters of an attempt that has not begun.
_NONE = CpuCounters(0.0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What a running job may use now, in thousandths of cores."""

    ceiling_milli: int
    #: Whether it could use more than it may, and who else could, which only `Lender.loan` fills in.
    is_hungry: bool
    rivals: Rivals = NO_RIVALS


class Reading(NamedTuple):
    """Processor time at one moment."""

    mono_s: float
    attempts: Mapping[AttemptKey, CpuCounters]
    #: Of all processes since boot, without niced ones, on the CPUs that are given out, and their
    #: number.
    busy_s: float
    cpus: int
    #: Of all niced processes since boot, on these CPUs, and of those of attempts, by pid.
    niced_s: float = 0.0
    niced: Mapping[AttemptKey, Mapping[int, float]] = MappingProxyType({})
    #: What a hypervisor has given to other machines since boot, of these CPUs.
    stolen_s: float = 0.0


@dataclass
class Lender:
    """The loop, and what it has lent of cores. Lends none unless `lends` says so, and of disks
    nothing unless `lends_disks` does."""

    engine: Engine
    meter: Meter
    #: Sends the launcher a job's ceilings; None while no order reaches it. Equal as long as it is
    #: the same connection.
    send: Callable[[], Send | None]
    lends: Callable[[], bool]
    #: Whether a running attempt can be lent cores: not one that began in another mode.
    can_lend: Callable[[AttemptKey], bool]
    disks: DiskLender
    lends_disks: Callable[[], bool]
    loans: dict[AttemptKey, Loan] = field(default_factory=dict)
    _before: Reading | None = None
    #: What sent the latest order, and the attempts of which it is not known what the kernel has.
    _latest: Send | None = None
    _unsure: set[AttemptKey] = field(default_factory=set)
    #: The use by processes outside drfd at the latest step, in cores.
    _outside: float = 0.0
    #: Whether niced processes have used some at the latest step.
    _sees_niced: bool = False
    _places: Places = field(init=False)
    #: The arguments of `find_rivals` for the latest judgement, and its result once it is asked for.
    _judged: _Judged | None = None
    _rivals: Mapping[tuple[str, str], Rivals] | None = None

    def __post_init__(self) -> None:
        self._places = Places(self.engine)

    async def run(self) -> None:
        has_failed = False
        while True:
            await asyncio.sleep(STEP_S)
            try:
                await self.step()
                has_failed = False
            except (OSError, MemoryError) as error:
                # Perhaps a shortage of descriptors or memory. All that is lent stays.
                if not has_failed:
                    log.error("event=not-lent error=%s", str(error) or "out of memory")
                has_failed = True

    async def step(self) -> None:
        send = self.send()
        if send is None:
            # What the launcher has set stays.
            return
        if send != self._latest:
            self._latest = send
            self._unsure = {(job.id, job.attempt) for job in self.engine.ledger.allocated_jobs()}
            self.disks.untold()
        await self._lend_cores(send)
        await self._lend_disks(send)

    async def _lend_disks(self, send: Send) -> None:
        def send_rates(key: AttemptKey, rates: Resources) -> None:
            send(key, self._cores_milli(key), rates)

        if not self.lends_disks():
            self.disks.take_back(send_rates)
            return
        ranged = self.disks.watched()
        if ranged or self.disks.loans:
            watched = {
                key: cgroup
                for key, cgroup, _ in self.meter.watched_attempts()
                if cgroup and key in ranged
            }
            reading = await asyncio.to_thread(read_disks, dict(self.meter.mounts), watched)
            self.disks.take(reading, send_rates)

    def _cores_milli(self, key: AttemptKey) -> int:
        loan = self.loans.get(key)
        if loan is not None:
            return loan.ceiling_milli
        return self.engine.ledger.jobs[key[0]].spec.demand.cores_milli

    async def _lend_cores(self, send: Send) -> None:
        if not self.lends():
            self._take_back(send)
            return
        watched = {key: cgroup for key, cgroup, _ in self.meter.watched_attempts() if cgroup}
        reading = await asyncio.to_thread(
            read_counters, dict(self.meter.mounts), watched, finds_niced=self._sees_niced
        )
        self.take(reading, send)

    def take(self, reading: Reading, send: Send) -> None:
        """Judge by this reading and the one before, and send the ceilings that have changed."""
        self._end_loans(send)
        before, self._before = self._before, reading
        if before is None or not 0 < reading.mono_s - before.mono_s < STALE_S:
            return
        niced = (reading.niced_s - before.niced_s) / (reading.mono_s - before.mono_s)
        self._sees_niced = niced > SOME_NICED
        jobs = self._borrowers(before, reading)
        if jobs:
            machine = self._machine_between(before, reading)
            places = self._places.on(_CORES, 1000)
            found = judge([each for _, each in jobs], machine, places)
            self._judged = [(job.spec.user, each) for job, each in jobs], found, places
            self._rivals = None
            self._apply(jobs, found, send)

    def _running(self) -> list[Job]:
        return [job for job in self.engine.ledger.allocated_jobs() if is_judged(job)]

    def _borrowers(self, before: Reading, after: Reading) -> list[tuple[Job, Borrower]]:
        """Return the running jobs of which it is known what they have used in between."""
        found = []
        span_s = after.mono_s - before.mono_s
        capacity = self.engine.rules.own_capacity
        for job in self._running():
            key = job.id, job.attempt
            first, last = before.attempts.get(key), after.attempts.get(key)
            if first is None or last is None:
                continue
            floor = most = job.spec.demand.cores_milli / 1000
            ends = most_here(job.spec, capacity)
            if ends is not None and ends.cores_milli and self.can_lend(key):
                most = ends.cores_milli / 1000
            loan = self.loans.get(key)
            borrower = Borrower(
                job_id=job.id,
                leaf=job.spec.leaf,
                floor=floor,
                most=most,
                ceiling=floor if loan is None else loan.ceiling_milli / 1000,
                used=max(0.0, last.cpu_s - first.cpu_s) / span_s,
                is_throttled=last.throttled > first.throttled,
            )
            found.append((job, borrower))
        return found

    def _machine_between(self, before: Reading, after: Reading) -> Machine:
        """Return what there is to lend from."""
        span_s = after.mono_s - before.mono_s
        # The kernel gives a job's niced processes as much of what others want as all others of the
        # job, by its weight. So only those outside are no load.
        niced_s = min(max(0.0, after.niced_s - before.niced_s), _niced_by_jobs_s(before, after))
        all_of_it = (max(0.0, after.busy_s - before.busy_s) + niced_s) / span_s
        stolen = max(0.0, after.stolen_s - before.stolen_s) / span_s
        # What a job has used that has just been started is all its own; of one that has just ended
        # nothing is known, and counts as outside: hence the smaller of two readings.
        by_jobs = sum(
            max(0.0, last.cpu_s - before.attempts.get(key, _NONE).cpu_s) / span_s
            for key, last in after.attempts.items()
        )
        rules = self.engine.rules
        outside = 0.0
        if rules.beside is not None:
            seen = max(0.0, all_of_it - by_jobs - rules.beside.cores_milli / 1000)
            outside, self._outside = min(seen, self._outside), seen
        return Machine(
            capacity=rules.own_capacity.cores_milli / 1000,
            outside=outside,
            # What is stolen from a machine that is full, nobody can use.
            busy=min(1.0, (all_of_it + stolen) / after.cpus),
        )

    def _apply(
        self,
        jobs: Sequence[tuple[Job, Borrower]],
        found: Mapping[int, Judgement],
        send: Send,
    ) -> None:
        loans: dict[AttemptKey, Loan] = {}
        for job, borrower in jobs:
            key, judgement = (job.id, job.attempt), found[job.id]
            before = self.loans.get(key)
            milli = round(judgement.ceiling * 1000)
            had = job.spec.demand.cores_milli if before is None else before.ceiling_milli
            if self._is_unsure(key) or had != milli:
                send(key, milli, NOTHING)
            if borrower.most <= borrower.floor:
                # Its range may have been taken away.
                self.loans.pop(key, None)
            else:
                loans[key] = Loan(ceiling_milli=milli, is_hungry=judgement.is_hungry)
        # Of a job that is frozen now, or was not measured, the loan stays as it is.
        self.loans |= loans
        self._forget_ended()

    def _end_loans(self, send: Send) -> None:
        """Set the ceilings of jobs that are being stopped back to their floors."""
        if self.loans or self._unsure:
            jobs = self.engine.ledger.allocated_jobs()
            self._to_floors([job for job in jobs if job.state is JobState.STOPPING], send)

    def _take_back(self, send: Send) -> None:
        """Set all ceilings back to the floors, after the configuration has changed."""
        self._before = None
        if not self.loans and not self._unsure:
            return
        self._to_floors(self._running(), send)
        self._end_loans(send)
        self._forget_ended()

    def _to_floors(self, jobs: Sequence[Job], send: Send) -> None:
        for job in jobs:
            key, floor = (job.id, job.attempt), job.spec.demand.cores_milli
            loan = self.loans.pop(key, None)
            if self._is_unsure(key) or (loan is not None and loan.ceiling_milli != floor):
                send(key, floor, NOTHING)

    def _is_unsure(self, key: AttemptKey) -> bool:
        """Return whether the kernel may have another ceiling than was ordered last, from now on
        not any more."""
        was_unsure = key in self._unsure
        self._unsure.discard(key)
        return was_unsure and self.can_lend(key)

    def _forget_ended(self) -> None:
        alive = {(job.id, job.attempt) for job in self.engine.ledger.allocated_jobs()}
        self.loans = {key: loan for key, loan in self.loans.items() if key in alive}
        self._unsure &= alive

    def loan(self, job: Job) -> Loan | None:
        """Return what the job may use now, or None if it is lent nothing. Its rivals are found
        here, because few ask, while judgements are made each second."""
        loan = self.loans.get((job.id, job.attempt))
        if loan is None or not loan.is_hungry or self._judged is None:
            return loan
        if self._rivals is None:
            self._rivals = find_rivals(*self._judged)
        return replace(loan, rivals=self._rivals.get((job.spec.user, job.spec.leaf), NO_RIVALS))


def _niced_by_jobs_s(before: Reading, after: Reading) -> float:
    """Return the processor time of niced processes of jobs in between, at most."""
    found = 0.0
    for key, processes in after.niced.items():
        last = after.attempts.get(key, _NONE)
        used_s = max(0.0, last.cpu_s - before.attempts.get(key, _NONE).cpu_s)
        found += min(used_s, niced_between(before.niced.get(key, {}), processes))
    return found


def read_counters(
    mounts: Mapping[str, str], watched: Mapping[AttemptKey, str], *, finds_niced: bool = False
) -> Reading:
    """Read the counters of these cgroups, and of the machine; with `finds_niced` also those of
    niced processes in these cgroups."""
    niced = {
        key: processes
        for key, cgroup in (watched.items() if finds_niced else ())
        if (processes := niced_processes(mounts, cgroup))
    }
    found = {key: cpu_counters(mounts, cgroup) for key, cgroup in watched.items()}
    mono_s, times = time.monotonic(), read_cpu_times()
    return Reading(
        mono_s,
        {key: counters for key, counters in found.items() if counters is not None},
        times.busy_s,
        len(os.sched_getaffinity(0)),
        times.niced_s,
        niced,
        times.stolen_s,
    )
