"""Usage of the running jobs: samples at intervals, breaches of limits, and curves over time.

The `Sampler` has the `Meter` take a sample of each running job every PERIOD_S seconds, reports
breaches, and extends the `Curves`. It also derives the external usage: that of the whole machine
less that of drfd and its jobs.

The curve of a job's latest attempt is recorded in the journal with its end, in few points. Curves
of running jobs are saved at intervals, so that a restart loses little, and with them what nothing
but the meter counts: the peak and the mean of their use of GPUs, and their processor time above
lower ends of ranges.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from msgspec import structs

from drfd.common.errors import HostError
from drfd.core.decisions.outcome import (
    GPU_READINGS,
    IO_WINDOW_S,
    GpuMemory,
    Sample,
    judge_io,
    judge_samples,
)
from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.decisions.stimuli import Breached, Now, Tick
from drfd.core.model.job import Job, JobState, Outcome, Usage
from drfd.core.model.resources import NOTHING, Resources
from drfd.core.scheduling.kept_free import OutsideUse
from drfd.core.usage import BeyondTally, Curve, GpuTally, Point, Series, thinned
from drfd.daemon.engine.engine import Engine, Work
from drfd.host import measurements
from drfd.host.measurements import MachineUse, read_machine_use
from drfd.journal.journal import Journal
from drfd.launcher.protocol import Hello

log = logging.getLogger("drfd")

#: Seconds between two samples of a job.
PERIOD_S = 2.0
#: Jobs sampled in one call of a thread: to pass work to it costs as much as a sample.
_AT_ONCE = 10
#: One in so many samples of a job that has used no processor time since the last one reads all its
#: figures.
_WHOLE_EVERY = 8
#: Least seconds between two samples for a meaningful rate.
_LEAST_SPAN_S = 1.0
#: Seconds after which a reading of GPUs no longer tells the present use.
GPUS_STALE_S = 10.0
#: Cores that niced processes use, of whomever, from which on it is found out whose they are.
SOME_NICED = 0.05
#: Points of a saved curve, at most: of an ended job, and of a running one.
ENDED_POINTS, RUNNING_POINTS = 32, 128
#: Points that a curve needs to be saved at its job's end: there may be many very short jobs.
_LEAST_POINTS = 3
#: Milliseconds between two saves of a running job's curve, and curves saved at a time.
_SAVE_MS = 300_000
_SAVED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Use of all GPUs by one attempt; None where it is not known."""

    memory_bytes: int | None
    #: In per cent of one GPU.
    percent: int | None


@dataclass
class _OneGpu:
    """The latest readings of an attempt's memory on one of its GPUs, without a gap."""

    total_bytes: int | None = None
    readings: deque[int] = field(default_factory=lambda: deque(maxlen=GPU_READINGS))
    #: When it was read last, on the monotonic clock.
    at_s: float = 0.0

    def add(self, memory_bytes: int | None, total_bytes: int | None, mono_s: float) -> None:
        if memory_bytes is None or mono_s - self.at_s > GPUS_STALE_S:
            self.readings.clear()
        if memory_bytes is not None:
            self.readings.append(memory_bytes)
        self.total_bytes, self.at_s = total_bytes, mono_s


@dataclass
class Watched:
    """An attempt, its latest samples, and what all its samples have shown."""

    runner_pid: int
    #: None if it has none. The launcher names it, because the ledger may not know it yet.
    cgroup: str | None
    samples: deque[Sample] = field(
        default_factory=lambda: deque(maxlen=int(IO_WINDOW_S / PERIOD_S) + 2)
    )
    #: How many there were, of an attempt with a cgroup.
    sampled: int = 0
    peak_bytes: int = 0
    #: The most processor time of any sample: without a cgroup, ended processes no longer count.
    cpu_s: float = 0.0
    #: The processor time of its niced processes in the latest sample, by pid, and what they have
    #: used between samples, at most.
    niced: Mapping[int, float] = field(default_factory=dict)
    niced_s: float = 0.0
    #: Memory in the samples of the running attempt: sum, number of samples, highest.
    memory_sum: int = 0
    memory_count: int = 0
    working_bytes: int | None = None
    #: The highest rates between two samples, per second.
    read_peak_bps: int | None = None
    write_peak_bps: int | None = None
    #: The most cores in use between two samples.
    cores_peak_milli: int | None = None
    #: Processor time above its lower end between its latest two samples; None if not known.
    beyond_us: int | None = None
    #: The latest use of GPUs that was read, and when, on the monotonic clock.
    gpus: GpuShare | None = None
    gpus_at_s: float = 0.0
    #: Its own GPUs by the names of the configuration.
    each_gpu: dict[str, _OneGpu] = field(default_factory=dict)

    @property
    def latest(self) -> tuple[Sample | None, Sample]:
        """The last two samples, of which there is one."""
        return self.samples[-2] if len(self.samples) > 1 else None, self.samples[-1]

    def add(self, sample: Sample, peak_bytes: int | None) -> None:
        """Add a sample. `peak_bytes` is the peak by the kernel, or None for the highest sample."""
        if self.samples:
            self._rate(self.samples[-1], sample)
        self.samples.append(sample)
        peak = sample.memory_bytes if peak_bytes is None else peak_bytes
        self.peak_bytes = max(self.peak_bytes, peak or 0)
        self.cpu_s = max(self.cpu_s, sample.cpu_s or 0.0)

    def note_niced(self, niced: Mapping[int, float], cpu_s: float | None) -> None:
        """Count what niced processes have used since the sample before, to be called before the
        sample with `cpu_s` is added."""
        if niced:
            used_s = max(0.0, (cpu_s or 0.0) - self.cpu_s)
            self.niced_s += min(used_s, measurements.niced_between(self.niced, niced))
        self.niced = niced

    def late_cores_milli(self) -> int | None:
        """Return the mean use of cores over the samples that are kept, or None for too few."""
        first, last = self.samples[0], self.samples[-1]
        span_s = last.mono_s - first.mono_s
        if span_s < 2 * PERIOD_S or first.cpu_s is None or last.cpu_s is None:
            return None
        return round(max(0.0, last.cpu_s - first.cpu_s) / span_s * 1000)

    def _rate(self, before: Sample, after: Sample) -> None:
        span_s = after.mono_s - before.mono_s
        if span_s < _LEAST_SPAN_S:
            return
        self.read_peak_bps = _higher(
            self.read_peak_bps, before.read_bytes, after.read_bytes, span_s
        )
        self.write_peak_bps = _higher(
            self.write_peak_bps, before.written_bytes, after.written_bytes, span_s
        )
        if before.cpu_s is not None and after.cpu_s is not None:
            cores_milli = round((after.cpu_s - before.cpu_s) * 1000 / span_s)
            self.cores_peak_milli = max(self.cores_peak_milli or 0, cores_milli)


@dataclass
class Meter:
    """The samples of the attempts that are watched; the usage of any other attempt is None."""

    mono: Callable[[], float]
    #: Mount points of cgroup controllers; empty where jobs run without cgroups.
    mounts: Mapping[str, str] = field(default_factory=dict)
    #: Whether disk rates are judged here although jobs have cgroups.
    judges_io: bool = False
    #: Whether niced processes of jobs are looked for, because there are some on the machine.
    finds_niced: bool = False
    _watched: dict[AttemptKey, Watched] = field(default_factory=dict)
    #: What the readings of GPUs have shown, also of attempts that began before this process, which
    #: may have ended meanwhile.
    gpu_tallies: dict[AttemptKey, GpuTally] = field(default_factory=dict)
    #: What attempts of jobs with a range of cores used above its lower end, likewise.
    beyond_tallies: dict[AttemptKey, BeyondTally] = field(default_factory=dict)
    #: Processor time of all removed attempts.
    _removed_cpu_s: float = 0.0
    _removed_niced_s: float = 0.0

    def configure(self, hello: Hello) -> None:
        """Note where the launcher has cgroups mounted, and whether disk rates have to be judged
        here because the kernel does not limit them."""
        self.mounts = hello.mounts
        self.judges_io = hello.controls.get("read", "").startswith("measured")

    def watch(self, key: AttemptKey, runner_pid: int, cgroup: str | None) -> None:
        self._watched.setdefault(key, Watched(runner_pid, cgroup))

    def forget(self, key: AttemptKey) -> None:
        self.gpu_tallies.pop(key, None)
        self.beyond_tallies.pop(key, None)
        watched = self._watched.pop(key, None)
        if watched is not None:
            self._removed_cpu_s += watched.cpu_s
            self._removed_niced_s += watched.niced_s

    def jobs_cpu_s(self) -> float:
        """Return the processor time of all attempts ever watched, as of their latest samples."""
        return self._removed_cpu_s + sum(each.cpu_s for each in self._watched.values())

    def jobs_niced_s(self) -> float:
        """Return the part of `jobs_cpu_s` that was used by niced processes, as far as it is known,
        and at most."""
        return self._removed_niced_s + sum(each.niced_s for each in self._watched.values())

    def jobs_memory_bytes(self) -> int:
        """Return the memory of all watched attempts, as of their latest samples."""
        samples = (each.samples[-1] for each in self._watched.values() if each.samples)
        return sum(sample.memory_bytes or 0 for sample in samples)

    def sample(self, job: Job) -> tuple[Outcome, str] | None:
        """Take a sample and return the breach that it completes, if the kernel does not enforce the
        limits, or None."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None:
            return None
        breach = self._sample(job, watched)
        sample = watched.samples[-1]
        if sample.memory_bytes is not None:
            watched.memory_sum += sample.memory_bytes
            watched.memory_count += 1
            watched.working_bytes = max(watched.working_bytes or 0, sample.memory_bytes)
        if sample.cpu_s is not None:
            beyond_us = self._note_beyond(job, sample.cpu_s, sample.mono_s)
            watched.beyond_us = beyond_us if len(watched.samples) > 1 else None
        return breach

    def finish(self, job: Job, cpu_s: float, ended_mono_s: float | None = None) -> Usage | None:
        """Return the final reading of an ended attempt, or None if there was no sample: then the
        runner's figures are all that is known, unless the use of GPUs, or above the lower end, is
        known from before a restart. Its cgroups are being removed, so they are not looked at: that
        would wait for the removal, and with it everybody. `cpu_s` is the processor time that the
        runner saw the attempt use until its end, whose time on the monotonic clock is None if it is
        not known."""
        watched = self._watched.get((job.id, job.attempt))
        if ended_mono_s is not None:
            self._note_beyond(job, cpu_s, ended_mono_s)
        usage = self.usage(job)
        if watched is not None:
            watched.cpu_s = max(watched.cpu_s, cpu_s)
        return usage

    def _sample(self, job: Job, watched: Watched) -> tuple[Outcome, str] | None:
        if watched.cgroup is None:
            sample = measurements.sample_processes(watched.runner_pid, self.mono())
            watched.add(sample, peak_bytes=None)
            return judge_samples(job, list(watched.samples))
        # What sleeps is read whole at times: the kernel may have swapped or written it out.
        is_partial = watched.samples and watched.sampled % _WHOLE_EVERY
        before = watched.samples[-1] if is_partial else None
        sample = measurements.sample_cgroup(self.mounts, watched.cgroup, self.mono(), before)
        watched.sampled += 1
        if self.judges_io:
            seen = measurements.sample_processes(watched.runner_pid, sample.mono_s)
            sample = replace(sample, read_bytes=seen.read_bytes, written_bytes=seen.written_bytes)
        niced = {}
        if self.finds_niced:
            niced = measurements.niced_processes(self.mounts, watched.cgroup)
        watched.note_niced(niced, sample.cpu_s)
        is_idle = before is not None and None is not sample.cpu_s == before.cpu_s
        peak_bytes = (
            watched.peak_bytes if is_idle else measurements.peak_memory(self.mounts, watched.cgroup)
        )
        watched.add(sample, peak_bytes)
        return judge_io(job, list(watched.samples)) if self.judges_io else None

    def _note_beyond(self, job: Job, cpu_s: float, mono_s: float) -> int | None:
        """Count what the attempt used above its lower end since the reading before, and return it
        in microseconds, or None for a job without a range of cores. The reading before the first is
        its start: what it used while no controller ran is not lost, but only known of that time as
        a whole."""
        if not job.spec.cores_max_milli:
            return None
        key, cpu_us, mono_ms = (job.id, job.attempt), round(cpu_s * 1e6), round(mono_s * 1000)
        before = self.beyond_tallies.get(key)
        if before is None and job.started_mono_s is not None:
            before = BeyondTally(mono_ms=round(job.started_mono_s * 1000))
        if before is None:
            before = BeyondTally(cpu_us=cpu_us, mono_ms=mono_ms)
        tally = before.plus(job.spec.demand.cores_milli, cpu_us, mono_ms)
        self.beyond_tallies[key] = tally
        return tally.beyond_us - before.beyond_us

    def usage(self, job: Job) -> Usage | None:
        """Return the latest reading, or None before the first. After a restart, the earlier use of
        GPUs and above the lower end are known before there is any reading."""
        key = job.id, job.attempt
        watched = self.watched(job)
        if watched is None:
            if key not in self.gpu_tallies and key not in self.beyond_tallies:
                return None
            return self._with_tallies(Usage(), key)
        usage = measurements.usage_between(*watched.latest, watched.peak_bytes)
        count = watched.memory_count
        gpus = self.gpus(job)
        usage = structs.replace(
            usage,
            memory_mean_bytes=watched.memory_sum // count if count else None,
            memory_working_bytes=watched.working_bytes,
            late_cores_milli=watched.late_cores_milli(),
            read_peak_bps=watched.read_peak_bps,
            write_peak_bps=watched.write_peak_bps,
            # The last samples of a suspended job are from before its suspension.
            cores_milli=usage.cores_milli if job.suspended_at is None else 0,
            gpu_memory_bytes=None if gpus is None else gpus.memory_bytes,
            gpu_percent=None if gpus is None else gpus.percent,
            cores_peak_milli=watched.cores_peak_milli,
        )
        return self._with_tallies(usage, key)

    def _with_tallies(self, usage: Usage, key: AttemptKey) -> Usage:
        tally, beyond = self.gpu_tallies.get(key, GpuTally()), self.beyond_tallies.get(key)
        return structs.replace(
            usage,
            gpu_memory_peak_bytes=tally.memory_peak,
            gpu_memory_single_peak_bytes=tally.single_peak,
            gpu_mean_percent=tally.mean_percent,
            beyond_us=None if beyond is None else beyond.beyond_us,
        )

    def watched_attempts(self) -> Iterable[tuple[AttemptKey, str | None, int]]:
        """Return each attempt with its cgroup, or None, and the pid of its runner."""
        return [(key, each.cgroup, each.runner_pid) for key, each in self._watched.items()]

    def note_gpus(self, key: AttemptKey, share: GpuShare, mono_s: float) -> None:
        """Add a reading of an attempt's use of GPUs."""
        watched = self._watched.get(key)
        if watched is None:
            return
        watched.gpus, watched.gpus_at_s = share, mono_s
        tally = self.gpu_tallies.get(key, GpuTally())
        self.gpu_tallies[key] = tally.plus(share.memory_bytes, share.percent)

    def note_gpu(
        self, key: AttemptKey, name: str, memory_bytes: int | None, total_bytes: int | None
    ) -> None:
        """Add a reading of an attempt's memory on the GPU of its own with this name, of which there
        are `total_bytes`; None where the driver does not tell it."""
        watched = self._watched.get(key)
        if watched is None:
            return
        watched.each_gpu.setdefault(name, _OneGpu()).add(memory_bytes, total_bytes, self.mono())
        tally = self.gpu_tallies.get(key, GpuTally())
        self.gpu_tallies[key] = tally.plus_single(memory_bytes)

    def each_gpu(self, job: Job) -> list[GpuMemory]:
        """Return the attempt's memory on each of its GPUs of which it is known now."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None:
            return []
        oldest_s = self.mono() - GPUS_STALE_S
        return [
            GpuMemory(name, tuple(each.readings), each.total_bytes)
            for name, each in watched.each_gpu.items()
            if each.readings and each.at_s >= oldest_s
        ]

    def gpus(self, job: Job) -> GpuShare | None:
        """Return the attempt's present use of GPUs, or None if it is not measured."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None or watched.gpus is None:
            return None
        return watched.gpus if self.mono() - watched.gpus_at_s <= GPUS_STALE_S else None

    def watched(self, job: Job) -> Watched | None:
        """Return what is known of the attempt, or None before its first sample."""
        watched = self._watched.get((job.id, job.attempt))
        return watched if watched is not None and watched.samples else None

    def peak_bytes(self, job: Job) -> int | None:
        """Return the most memory that the attempt has ever had, or None before the first sample."""
        watched = self.watched(job)
        return None if watched is None else watched.peak_bytes

    def pinned_cpus(self, job: Job) -> str | None:
        """Return the CPUs that the job has for itself now, as "0-3,8", or None."""
        if job.cgroup is None or job.state is not JobState.RUNNING:
            return None
        return measurements.pinned_cpus(self.mounts, job.cgroup)


class Owners:
    """Which attempt a process belongs to."""

    def __init__(self, meter: Meter) -> None:
        self.attempts = list(meter.watched_attempts())
        self._by_cgroup = {f"/{cgroup}": key for key, cgroup, _ in self.attempts if cgroup}
        self._by_runner = {pid: key for key, cgroup, pid in self.attempts if not cgroup}

    def owner_of(self, pid: int, cgroups: Iterable[str]) -> AttemptKey | None:
        for path in cgroups:
            # A container in the job has a cgroup below the job's.
            parts = path.split("/")
            for count in range(2, len(parts) + 1):
                key = self._by_cgroup.get("/".join(parts[:count]))
                if key is not None:
                    return key
        if self._by_runner:
            for parent in measurements.ancestors(pid):
                if parent in self._by_runner:
                    return self._by_runner[parent]
        return None


def _higher(peak: int | None, before: int | None, after: int | None, span_s: float) -> int | None:
    if before is None or after is None:
        return peak
    return max(peak or 0, int((after - before) / span_s))


@dataclass(slots=True)
class _JobSeries:
    attempt: int
    series: Series
    #: When it was saved last, on the monotonic clock.
    saved_ms: int


@dataclass
class Curves:
    meter: Meter
    journal: Journal
    clock: Callable[[], Now]
    _jobs: dict[int, _JobSeries] = field(default_factory=dict)

    def note(self, job: Job) -> None:
        """Add the meter's latest sample of the job."""
        watched = self.meter.watched(job)
        if watched is None:
            return
        series = self._series(job)
        point = _point(*watched.latest, self.meter.gpus(job), watched.beyond_us)
        last = series.last
        if last is None or point.end_ms > last.end_ms:
            series.add(point)

    def last(self, job: Job) -> Point | None:
        """Return the latest reading of the job's present attempt, or None."""
        kept = self._present(job)
        return None if kept is None else kept.series.last

    def job_changed(self, job: Job) -> None:
        if job.state is JobState.ENDED:
            self._jobs.pop(job.id, None)

    def of_job(self, job: Job) -> Curve | None:
        """Return the curve of the job's latest attempt, or None if nothing is known of it."""
        kept = self._present(job)
        return self._saved(job) if kept is None else self._curve(kept.attempt, kept.series)

    def final_curve(self, job: Job) -> Curve | None:
        """Return the curve of an ended job for the journal, or None if it has too few points or the
        journal has it already."""
        kept = self._present(job)
        if kept is None or len(kept.series) < _LEAST_POINTS:
            return None
        return self._curve(kept.attempt, thinned(kept.series, ENDED_POINTS))

    def save(self, *, all_of_them: bool = False) -> None:
        """Save the curves of all running jobs, or of a few that are due. Raises HostError."""
        now_ms = round(self.clock().mono_s * 1000)
        by_age = sorted(self._jobs.items(), key=lambda item: item[1].saved_ms)
        due = [each for each in by_age if now_ms - each[1].saved_ms >= _SAVE_MS]
        for job_id, kept in by_age if all_of_them else due[:_SAVED_AT_ONCE]:
            key = job_id, kept.attempt
            tally, beyond = self.meter.gpu_tallies.get(key), self.meter.beyond_tallies.get(key)
            kept.saved_ms = now_ms
            curve = self._curve(kept.attempt, thinned(kept.series, RUNNING_POINTS))
            self.journal.put_curve(
                job_id, structs.replace(curve, gpu_tally=tally, beyond_tally=beyond)
            )
        self.journal.commit()

    def resume(self, jobs: Iterable[Job]) -> None:
        """Go on with what was saved of the use of GPUs and above lower ends of the last attempts of
        these jobs, which may have ended since. Their curves are read when they are needed."""
        for job in jobs:
            curve, key = self._saved(job), (job.id, job.attempt)
            if curve is not None and curve.gpu_tally is not None:
                self.meter.gpu_tallies[key] = curve.gpu_tally
            if curve is not None and curve.beyond_tally is not None:
                self.meter.beyond_tallies[key] = curve.beyond_tally

    def _present(self, job: Job) -> _JobSeries | None:
        """Return the series of the job's present attempt, or None."""
        kept = self._jobs.get(job.id)
        return kept if kept is not None and kept.attempt == job.attempt else None

    def _saved(self, job: Job) -> Curve | None:
        curve = self.journal.curve(job.id)
        return curve if curve is not None and curve.attempt == job.attempt else None

    def _series(self, job: Job) -> Series:
        kept = self._present(job)
        if kept is None:
            curve, ahead_ms = self._saved(job), self._ahead_ms()
            points = () if curve is None else curve.points
            series = Series(each._replace(end_ms=each.end_ms - ahead_ms) for each in points)
            kept = _JobSeries(job.attempt, series, round(self.clock().mono_s * 1000))
            self._jobs[job.id] = kept
        return kept.series

    def _curve(self, attempt: int, points: Iterable[Point]) -> Curve:
        ahead_ms = self._ahead_ms()
        moved = (each._replace(end_ms=each.end_ms + ahead_ms) for each in points)
        return Curve(attempt, tuple(moved))

    def _ahead_ms(self) -> int:
        """Return by how much Unix time is now ahead of the monotonic clock, which nobody sets."""
        now = self.clock()
        return round((now.at_s - now.mono_s) * 1000)


def _point(
    before: Sample | None, after: Sample, gpus: GpuShare | None, beyond_us: int | None
) -> Point:
    """Return the usage between two samples, with a reading of GPUs and the use above the
    lower end. Of the first sample only the memory is known."""
    end_ms = round(after.mono_s * 1000)
    span_ms = 0 if before is None else max(0, end_ms - round(before.mono_s * 1000))
    gpus = gpus or GpuShare(None, None)

    def more(name: str, unit: int) -> tuple[int, int]:
        earlier, later = getattr(before, name, None), getattr(after, name)
        if earlier is None or later is None or not span_ms:
            return 0, 0
        # Without a cgroup, the figures of ended processes are missing from the later sample.
        return max(0, round((later - earlier) * unit)), span_ms

    return Point.of(
        end_ms,
        span_ms,
        cores_milli=more("cpu_s", 1_000_000),
        memory_bytes=_reading(after.memory_bytes),
        read_bps=more("read_bytes", 1),
        write_bps=more("written_bytes", 1),
        gpu_memory_bytes=_reading(gpus.memory_bytes),
        gpu_percent=_reading(gpus.percent),
        beyond_milli=(0, 0) if beyond_us is None else (beyond_us, span_ms),
    )


def _reading(amount: int | None) -> tuple[int, int]:
    """Return one reading as a sum and the number of readings in it."""
    return (0, 0) if amount is None else (amount, 1)


@dataclass
class ExternalUsage:
    """The usage of the machine by processes outside drfd."""

    meter: Meter
    _before: MachineUse | None = None
    _own_cpu_s: float = 0.0
    _own_niced_s: float = 0.0

    def update(self, first: MachineUse, last: MachineUse) -> Resources | None:
        """Return the external usage since the last call, or None at the first. `first` and `last`
        were read before and after a round of samples of all jobs: memory that a job takes or
        releases during the round is then not taken for external."""
        before, self._before = self._before, last
        own_before_s, self._own_cpu_s = self._own_cpu_s, self.meter.jobs_cpu_s() + _controller_s()
        niced_before_s, self._own_niced_s = self._own_niced_s, self.meter.jobs_niced_s()
        if before is None or last.mono_s <= before.mono_s:
            return None
        niced_s = last.niced_s - before.niced_s
        self.meter.finds_niced = niced_s / (last.mono_s - before.mono_s) > SOME_NICED
        # The machine's use is without that of niced processes, and our own is with it.
        own_niced_s = max(0.0, min(niced_s, self._own_niced_s - niced_before_s))
        cpu_s = last.cpu_s + own_niced_s - before.cpu_s - (self._own_cpu_s - own_before_s)
        memory_bytes = min(first.memory_bytes, last.memory_bytes) - self.meter.jobs_memory_bytes()
        return Resources(
            cores_milli=max(0, round(cpu_s * 1000 / (last.mono_s - before.mono_s))),
            memory_bytes=max(0, memory_bytes),
        )


def _controller_s() -> float:
    """Return the processor time of this process, which is no external load."""
    times = os.times()
    return times.user + times.system


class Sampler:
    """Samples all running jobs every PERIOD_S seconds."""

    def __init__(
        self,
        engine: Engine,
        meter: Meter,
        curves: Curves,
        outside_users: Callable[[], tuple[OutsideUse, ...]] = tuple,
    ) -> None:
        """`outside_users` returns who uses most outside drfd, and may take some time."""
        self._engine = engine
        self._meter = meter
        self._curves = curves
        self._outside_users = outside_users
        self._external = ExternalUsage(meter)

    async def run(self) -> None:
        has_failed = False
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self._take_round()
                has_failed = False
            except (OSError, MemoryError) as error:
                # Perhaps a shortage of descriptors or memory. The kernel's limits stay in force.
                if not has_failed:
                    log.error("event=not-measured error=%s", str(error) or "out of memory")
                has_failed = True

    async def _take_round(self) -> None:
        first = await asyncio.to_thread(read_machine_use)
        left = iter(list(self._engine.ledger.allocated_jobs()))
        while some := list(islice(left, _AT_ONCE)):
            breaches = await asyncio.to_thread(list, map(self._meter.sample, some))
            for job, breach in zip(some, breaches, strict=True):
                if job.id in self._engine.ledger.jobs:
                    self._curves.note(job)
                if breach is not None and job.state is JobState.RUNNING:
                    self._engine.submit(Work(Breached.of(job, self._engine.clock(), *breach)))
        self.save_curves(all_of_them=False)
        last = await asyncio.to_thread(read_machine_use)
        use = self._external.update(first, last)
        if use is not None:
            wants_pass = self._engine.see_external(use)
            load = self._engine.external
            if load is not None and load.kept != NOTHING:
                users = await asyncio.to_thread(self._outside_users)
                wants_pass = self._engine.see_outside_users(users) or wants_pass
            if wants_pass:
                self._engine.submit(Work(Tick(self._engine.clock())))

    def save_curves(self, *, all_of_them: bool) -> None:
        try:
            self._curves.save(all_of_them=all_of_them)
        except HostError as error:
            # Nobody waits for curves.
            self._engine.journal.rollback()
            log.warning("event=curves-not-saved error=%s", error)
