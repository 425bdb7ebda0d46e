"""Lending to running jobs, once a second: idle cores, and the reads and writes of each disk.

Measures how much each running job has used and whether its ceiling held it back, has
`core.lending` judge axis by axis, and sends the launcher the ceilings that have changed. Nothing of
this is state that must survive: without this loop, jobs keep the ceilings that the kernel has, and
their floors: of cores by weights, of disks because all ceilings together are below what a disk has.
So what the kernel has is not known of jobs that run when a launcher connects: an earlier controller
may have lent them something, or an order may have been lost with the launcher. They are ordered
what they may use whatever it is.

Of disks only jobs with a range of rates are measured. What the kernel has counted is the use: on
cgroup v1, which does not attribute buffered writes, that is direct I/O and reads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from drfd.common.units import AXES, DISK_AXES
from drfd.core import lending
from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.model.options import most_here
from drfd.core.model.resources import NOTHING, Resources, kind_of
from drfd.daemon.engine.engine import Engine
from drfd.daemon.monitoring.meter import Meter
from drfd.host.disks import Disk, rates_by_device
from drfd.host.measurements import (
    CpuCounters,
    cpu_counters,
    disk_counters,
    read_cpu_times,
)
from drfd.launcher.protocol import SHARE, WEIGHT, Message

log = logging.getLogger("drfd")

#: Seconds between two judgements, and after which a reading is too old to tell a rate.
STEP_S, _STALE_S = 1.0, 5.0
#: Orders an attempt's ceiling of cores, in thousandths, and rates of its disks, of which those that
#: are not named stay.
Send = Callable[[AttemptKey, int, Resources], None]
#: What can be lent: idle cores, an axis of their own, with `enforcement.cores = "share"` alone, and
#: disk rates, wherever the kernel limits them; both only where the launcher says that it can.
CORES, DISKS = "cores", "disks"
#: The arguments of `find_rivals`.
_Judged = tuple[
    Sequence[tuple[str, lending.Borrower]],
    Mapping[int, lending.Judgement],
    Mapping[str, lending.TreeNode],
]
#: States in which a job holds its rates and may use them, and in which the launcher has an attempt
#: whose ceilings can be moved.
_USES = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
_RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPING})
#: Readings that are kept. A job's use of a disk is the highest rate between any two in a row: of
#: large requests at a low rate, one second has more and the next one less.
_READINGS = 4


class Reading(NamedTuple):
    """What attempts and the machine have used until one moment."""

    mono_s: float
    attempts: Mapping[AttemptKey, CpuCounters]
    #: Processor time of all processes since boot on the CPUs that are given out, with what a
    #: hypervisor has given to other machines; and the number of these CPUs.
    busy_s: float
    cpus: int
    #: Bytes read and written, by attempt and device.
    moved: Mapping[AttemptKey, Mapping[str, tuple[int, int]]] = MappingProxyType({})


@dataclass
class Lender:
    """The loop, and what it has lent."""

    engine: Engine
    meter: Meter
    #: Sends the launcher a job's ceilings; None while no order reaches it. Equal as long as it is
    #: the same connection.
    send: Callable[[], Send | None]
    #: What is lent here, of CORES and DISKS, and whether a running attempt can be lent it: no cores
    #: to one that began in another mode.
    kinds: Callable[[], frozenset[str]]
    can_lend: Callable[[AttemptKey, str], bool]
    #: The disks that are given out.
    disks: Callable[[], Sequence[Disk]]
    #: The cores that processes outside drfd use.
    outside: Callable[[], float]
    #: By attempt and axis, which has the disk's name also where there is only one.
    loans: dict[AttemptKey, dict[str, lending.Loan]] = field(default_factory=dict)
    _readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=_READINGS))
    #: What sent the latest order, and the ceilings that it sent last, by axis; of attempts of which
    #: it is not known what the kernel has, none. An attempt that is not named has its floors.
    _latest: Send | None = None
    _sent: dict[AttemptKey, Mapping[str, int]] = field(default_factory=dict)
    #: By axis: the arguments of `find_rivals` for the latest judgement, and its result once it is
    #: asked for.
    _judged: dict[str, _Judged] = field(default_factory=dict)
    _rivals: dict[str, Mapping[tuple[str, str], lending.Rivals]] = field(default_factory=dict)

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
        allocated = self.engine.ledger.allocated_jobs()
        if send != self._latest:
            self._latest = send
            self._sent = {_key(job): {} for job in allocated}
            self._readings.clear()
        ranged = self.watched()
        watched = {key: cgroup for key, cgroup, _ in self.meter.watched_attempts() if cgroup}
        of_cores = watched if CORES in self.kinds() else {}
        of_disks = {key: cgroup for key, cgroup in watched.items() if key in ranged}
        reading = None
        if of_cores or of_disks:
            reading = await asyncio.to_thread(
                read_counters, dict(self.meter.mounts), of_cores, of_disks
            )
        self.take(reading, send)

    def watched(self) -> frozenset[AttemptKey]:
        """Return the attempts whose use of disks must be known."""
        axes = self._axes().keys() - {CORES}
        running = self.engine.ledger.allocated_jobs() if axes else ()
        return frozenset(_key(job) for job in running if axes & self._ends(job).keys())

    def take(self, reading: Reading | None, send: Send) -> None:
        """Judge by this reading and the ones before, and send the ceilings that have changed."""
        running = [job for job in self.engine.ledger.allocated_jobs() if _is_judged(job)]
        ends = {_key(job): self._ends(job) for job in running}
        # What stands still, or is about to end, gives its loans back, and so does a job whose range
        # has been taken away; what cannot be read now keeps them.
        self.loans = {
            key: {axis: loan for axis, loan in loans.items() if axis in ends[key]}
            for key, loans in self.loans.items()
            if key in ends
        }
        now_s = None if reading is None else reading.mono_s
        last_s = self._readings[-1].mono_s if self._readings else None
        if now_s is None or (last_s is not None and not 0 < now_s - last_s < _STALE_S):
            self._readings.clear()
        if reading is not None:
            self._readings.append(reading)
        if len(self._readings) > 1:
            for axis, disk in self._axes().items():
                self._judge(axis, disk, running, ends)
        self._send_changes(send)

    def of(self, job: Job) -> list[lending.Loan]:
        """Return what the job may use now, of each range of which something is lent. Its rivals are
        found here, because few ask, while judgements are made each second."""
        return [
            replace(loan, rivals=self._rivals_of(job, axis)) if loan.is_hungry else loan
            for axis, loan in self.loans.get(_key(job), {}).items()
        ]

    def _rivals_of(self, job: Job, axis: str) -> lending.Rivals:
        if axis not in self._rivals:
            self._rivals[axis] = lending.find_rivals(*self._judged[axis])
        return self._rivals[axis].get((job.spec.user, job.spec.leaf), lending.NO_RIVALS)

    # -- judging -----------------------------------------------------------------------------------

    def _axes(self) -> dict[str, Disk | None]:
        """Return the axes of what is lent here, each with its disk."""
        kinds = self.kinds()
        disks = [disk for disk in self.disks() if disk.devices] if DISKS in kinds else []
        found = {axis: disk for disk in disks for axis in _axes_of(disk)}
        return ({CORES: None} if CORES in kinds else {}) | found

    def _ends(self, job: Job) -> dict[str, int]:
        """Return the upper ends of the job's ranges of what can be lent to it now, by axis."""
        if job.spec.most is None or job.state not in _RUNS:
            return {}
        most = most_here(job.spec, self.engine.rules.own_capacity) or NOTHING
        return {
            axis: most.amount(axis)
            for axis, disk in self._axes().items()
            if job.spec.demand.amount(axis)
            and most.amount(axis)
            and self.can_lend(_key(job), CORES if disk is None else DISKS)
        }

    def _judge(
        self,
        axis: str,
        disk: Disk | None,
        running: Iterable[Job],
        ends: Mapping[AttemptKey, Mapping[str, int]],
    ) -> None:
        """Judge all running jobs of which it is known how much they have used; of a disk those with
        a range of its rates."""
        scale = AXES[kind_of(axis)].scale
        jobs: list[tuple[Job, lending.Borrower]] = []
        for job in running:
            floor, most = job.spec.demand.amount(axis), ends[_key(job)].get(axis)
            is_measured = disk is None or most is not None
            used = self._used(job, axis, disk) if is_measured else None
            if used is not None:
                borrower = lending.Borrower(
                    job_id=job.id,
                    leaf=job.spec.leaf,
                    floor=floor / scale,
                    most=(floor if most is None else most) / scale,
                    ceiling=self._ceiling(job, axis) / scale,
                    used=used,
                    is_throttled=disk is None and self._is_throttled(job),
                )
                jobs.append((job, borrower))
        if not jobs:
            return
        source = self._machine() if disk is None else self._disk_rate(axis, jobs)
        places = self._places_on(axis, scale)
        found = lending.judge([each for _, each in jobs], source, places)
        self._judged[axis] = [(job.spec.user, each) for job, each in jobs], found, places
        self._rivals.pop(axis, None)
        for job, _ in jobs:
            if axis in ends[_key(job)]:
                floor, judgement = job.spec.demand.amount(axis), found[job.id]
                self.loans.setdefault(_key(job), {})[axis] = lending.Loan(
                    axis=axis,
                    floor=floor,
                    ceiling=max(floor, round(judgement.ceiling * scale)),
                    most=ends[_key(job)][axis],
                    is_hungry=judgement.is_hungry,
                )

    def _places_on(self, axis: str, scale: int) -> Mapping[str, lending.TreeNode]:
        """Return the places for lending the resource of one axis."""
        rules = self.engine.rules
        at = rules.axes.names.index(axis if axis in rules.axes.names else kind_of(axis))
        return lending.places_of(rules.shares, self.engine.ledger.used, at, scale)

    def _used(self, job: Job, axis: str, disk: Disk | None) -> float | None:
        """Return what the job uses of the axis, or None if it has not been read twice. Of a device
        with several disks it is the part of its limit there that the job uses."""
        if disk is None:
            before, after = self._readings[-2], self._readings[-1]
            begun, now = before.attempts.get(_key(job)), after.attempts.get(_key(job))
            if begun is None or now is None:
                return None
            return max(0.0, now.cpu_s - begun.cpu_s) / (after.mono_s - before.mono_s)
        key, at = _key(job), _axes_of(disk).index(axis)
        limits = rates_by_device(_rates(self._ceilings(job)), self.disks())
        parts = []
        for before, after in pairwise(self._readings):
            first, last = before.moved.get(key), after.moved.get(key)
            if first is None or last is None:
                continue
            span_s = after.mono_s - before.mono_s
            for device in disk.devices:
                moved = last.get(device, (0, 0))[at] - first.get(device, (0, 0))[at]
                parts.append(max(0, moved) / span_s / limits[device][at])
        return max(parts) * self._ceiling(job, axis) if parts else None

    def _is_throttled(self, job: Job) -> bool:
        before, after = (self._readings[at].attempts[_key(job)] for at in (-2, -1))
        return after.throttled > before.throttled

    def _disk_rate(
        self, axis: str, jobs: Iterable[tuple[Job, lending.Borrower]]
    ) -> lending.DiskRate:
        """Return the rate that there is to lend from, beside the jobs that may be lent some."""
        judged = {job.id for job, _ in jobs}
        fixed = sum(
            self._ceiling(job, axis)
            for job in self.engine.ledger.allocated_jobs()
            if job.state in _USES and job.id not in judged
        )
        return lending.DiskRate(rate=self.engine.rules.own_capacity.amount(axis), fixed=fixed)

    def _machine(self) -> lending.MachineCores:
        """Return the cores that there are to lend from."""
        before, after, rules = self._readings[-2], self._readings[-1], self.engine.rules
        busy = max(0.0, after.busy_s - before.busy_s) / (after.mono_s - before.mono_s)
        aside = None if rules.beside is None else rules.beside.cores_milli / 1000
        return lending.MachineCores(
            capacity=rules.own_capacity.cores_milli / 1000,
            outside=0.0 if aside is None else max(0.0, self.outside() - aside),
            # What is stolen from a machine that is full, nobody can use.
            busy=min(1.0, busy / after.cpus),
        )

    # -- ordering ----------------------------------------------------------------------------------

    def _ceiling(self, job: Job, axis: str) -> int:
        loan = self.loans.get(_key(job), {}).get(axis)
        return job.spec.demand.amount(axis) if loan is None else loan.ceiling

    def _ceilings(self, job: Job) -> dict[str, int]:
        """Return what the job may use now, by the axes of its demand."""
        only = next((disk.name for disk in self.disks()), "")
        found = {CORES: self._ceiling(job, CORES)}
        for axis in job.spec.demand.amounts:
            kind, _, disk = axis.partition(":")
            if kind in DISK_AXES:
                found[axis] = self._ceiling(job, f"{kind}:{disk or only}")
        return found

    def _send_changes(self, send: Send) -> None:
        """Send the ceilings that differ from those that were sent last: first to who gives
        something back, so that together they are never more than a disk has."""
        jobs = {_key(job): job for job in self.engine.ledger.allocated_jobs()}
        self._sent = {key: sent for key, sent in self._sent.items() if key in jobs}
        orders = []
        for key in sorted(self.loans.keys() | self._sent.keys()):
            job = jobs[key]
            if job.state not in _RUNS or not self.can_lend(key, DISKS):
                continue
            ceilings, floors = self._ceilings(job), job.spec.demand.amounts
            sent = self._sent.get(key, floors)
            moved = {axis for axis, amount in ceilings.items() if amount != sent.get(axis)}
            if moved:
                is_lower = any(ceilings[axis] < sent.get(axis, inf) for axis in moved)
                rates = NOTHING if moved == {CORES} else _rates(ceilings)
                orders.append((not is_lower, key, ceilings[CORES], rates))
                self._sent[key] = ceilings
            if all(ceilings[axis] == floors[axis] for axis in ceilings):
                self._sent.pop(key, None)
        for _, key, cores_milli, rates in sorted(orders, key=itemgetter(0)):
            send(key, cores_milli, rates)


def _key(job: Job) -> AttemptKey:
    return job.id, job.attempt


def _is_judged(job: Job) -> bool:
    return job.state is JobState.RUNNING and not job.freezing


def _rates(amounts: Mapping[str, int]) -> Resources:
    return NOTHING.with_amounts({**amounts, CORES: 0})


def _axes_of(disk: Disk) -> tuple[str, ...]:
    return tuple(f"{kind}:{disk.name}" for kind in DISK_AXES)


def read_counters(
    mounts: Mapping[str, str],
    watched: Mapping[AttemptKey, str],
    of_disks: Mapping[AttemptKey, str] = MappingProxyType({}),
) -> Reading:
    """Read what these cgroups have used of processors, what some have moved to and from disks, and
    the counters of the machine."""
    moved = {key: disk_counters(mounts, cgroup) for key, cgroup in of_disks.items()}
    found = {key: cpu_counters(mounts, cgroup) for key, cgroup in watched.items()}
    mono_s, times = time.monotonic(), read_cpu_times()
    return Reading(
        mono_s,
        {key: counters for key, counters in found.items() if counters is not None},
        sum(times),
        len(os.sched_getaffinity(0)),
        {key: counters for key, counters in moved.items() if counters is not None},
    )


# -- what of a job's ranges is lent here -----------------------------------------------------------

#: What the owner should know of a running job that began in another mode.
ENTRENCHED = (
    "it is lent no cores, because it began before enforcement.cores was share; "
    "it keeps the limits with which it began"
)


def lends(hello: Message, cores_by: str) -> frozenset[str]:
    """Return what is lent here, of CORES and DISKS; nothing while the launcher, which knows, has
    not said. `cores_by` is the configured mode, and `hello` what the launcher said."""
    found = frozenset(hello.get("lendable", ()))
    return found if cores_by == SHARE else found - {CORES}


def unlent_text(
    spec: JobSpec, hello: Message, cores_by: str, disks: Sequence[Disk] = ()
) -> str | None:
    """Return what the owner of a job should know of ranges of which nothing is lent, or None if all
    of them count."""
    reasons = dict(_reasons(spec, hello, cores_by, disks))
    if not reasons:
        return None
    if len(set(reasons.values())) == 1:
        text = f"no {' or '.join(reasons)} are lent here ({next(iter(reasons.values()))})"
    else:
        (first, why), (second, why_second) = reasons.items()
        text = f"no {first} are lent here ({why}), and no {second} ({why_second})"
    text = f"{text}; the job has the lower end"
    is_by_weight = cores_by == WEIGHT and "cores" in reasons
    return f"{text}, and of cores what others leave idle" if is_by_weight else text


def _reasons(
    spec: JobSpec, hello: Message, cores_by: str, disks: Sequence[Disk]
) -> Iterator[tuple[str, str]]:
    """Yield what of the job's ranges is not lent, and why."""
    most, lent = spec.most, lends(hello, cores_by)
    if most is None:
        return
    if most.cores_milli:
        if cores_by != SHARE:
            yield "cores", f"enforcement.cores is {cores_by}"
        elif hello and CORES not in lent:
            yield "cores", "the kernel gives no way"
    if any(most.sums[axis] for axis in DISK_AXES):
        wanted = [disk for disk in disks if any(most.rates(disk.name))]
        unlimited = [disk.why_none for disk in wanted if not disk.devices]
        if hello and DISKS not in lent:
            yield "disk rates", "the kernel gives no way"
        elif unlimited and len(unlimited) == len(wanted):
            yield "disk rates", unlimited[0]
