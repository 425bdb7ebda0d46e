"""Live use of the running jobs: the latest samples, and what they show against the limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from drfd.core.job import Job, JobState, Outcome, Usage
from drfd.core.limits import IO_WINDOW_S, Sample, judge_io, judge_samples
from drfd.host import usage as host_usage
from drfd.launcher.protocol import UNIFIED, Message

#: Seconds between two samples of a job.
PERIOD_S = 2.0
#: Between two samples closer than this, a rate says nothing.
_LEAST_SPAN_S = 1.0

Key = tuple[int, int]


@dataclass
class _Watched:
    runner_pid: int
    #: None: it has none. Told by the launcher, for the books may not know it yet.
    cgroup: str | None
    samples: deque[Sample] = field(
        default_factory=lambda: deque(maxlen=int(IO_WINDOW_S / PERIOD_S) + 2)
    )
    peak_bytes: int = 0
    #: The most processor time seen: what single processes used is lost when they are gone.
    cpu_s: float = 0.0
    #: Of the memory in all samples while it ran: sum, how many, highest.
    memory_sum: int = 0
    memory_count: int = 0
    working_bytes: int | None = None
    #: The highest rates between two samples, per second.
    read_peak_bps: int | None = None
    write_peak_bps: int | None = None

    def add(self, sample: Sample, peak_bytes: int | None) -> None:
        """`peak_bytes` as the kernel has recorded it; None: the highest sample has to do."""
        if self.samples:
            self._rate(self.samples[-1], sample)
        self.samples.append(sample)
        peak = sample.memory_bytes if peak_bytes is None else peak_bytes
        self.peak_bytes = max(self.peak_bytes, peak or 0)
        self.cpu_s = max(self.cpu_s, sample.cpu_s or 0.0)

    def note_memory(self) -> None:
        """The latest sample is one of a job that runs: it counts for the mean."""
        memory = self.samples[-1].memory_bytes
        if memory is not None:
            self.memory_sum += memory
            self.memory_count += 1
            self.working_bytes = max(self.working_bytes or 0, memory)

    def late_cores_milli(self) -> int | None:
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


@dataclass
class Meter:
    """Knows only what it was told of; an attempt that is not `watch`ed reads as None."""

    mono: Callable[[], float]
    #: As the launcher's hello has it; empty where jobs run without cgroups.
    mounts: Mapping[str, str] = field(default_factory=dict)
    #: Whether disk rates are for us to judge, although jobs have cgroups.
    judges_io: bool = False
    _watched: dict[Key, _Watched] = field(default_factory=dict)
    #: Processor time of attempts that are forgotten.
    _gone_cpu_s: float = 0.0

    def heed(self, hello: Message) -> None:
        """What the launcher says of itself: where to read, and what it does not enforce."""
        self.mounts = hello["mounts"]
        self.judges_io = hello["controls"]["read"].startswith("measured")

    def watch(self, key: Key, runner_pid: int, cgroup: str | None) -> None:
        self._watched.setdefault(key, _Watched(runner_pid, cgroup))

    def forget(self, key: Key) -> None:
        watched = self._watched.pop(key, None)
        if watched is not None:
            self._gone_cpu_s += watched.cpu_s

    def note_end(self, key: Key, cpu_s: float) -> None:
        """The processor time that the runner saw its job use, once it has ended."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.cpu_s = max(watched.cpu_s, cpu_s)

    def jobs_cpu_s(self) -> float:
        """Processor time of all attempts ever watched, as of their latest samples."""
        return self._gone_cpu_s + sum(each.cpu_s for each in self._watched.values())

    def jobs_memory_bytes(self) -> int:
        """Memory of all attempts that are watched, as of their latest samples."""
        samples = (each.samples[-1] for each in self._watched.values() if each.samples)
        return sum(sample.memory_bytes or 0 for sample in samples)

    def sample(self, job: Job) -> tuple[Outcome, str] | None:
        """Take a sample; the breach that it completes, where the kernel does not enforce limits."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None:
            return None
        breach = self._sample(job, watched)
        watched.note_memory()
        return breach

    def sample_end(self, job: Job) -> None:
        """The last sample, when all its processes are gone and only counters are left. Of a job
        that ended before the first, its runner has counted all that can be told."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is not None and watched.samples:
            self._sample(job, watched)

    def _sample(self, job: Job, watched: _Watched) -> tuple[Outcome, str] | None:
        if watched.cgroup is None:
            sample = host_usage.sample_processes(watched.runner_pid, self.mono())
            watched.add(sample, peak_bytes=None)
            return judge_samples(job, list(watched.samples))
        if UNIFIED not in self.mounts:
            sample = host_usage.sample_cgroup_v1(self.mounts, watched.cgroup, self.mono())
            watched.add(sample, host_usage.peak_memory_v1(self.mounts, watched.cgroup))
            return None
        mount = self.mounts[UNIFIED]
        sample = host_usage.sample_cgroup_v2(mount, watched.cgroup, self.mono())
        if self.judges_io:
            seen = host_usage.sample_processes(watched.runner_pid, sample.mono_s)
            sample = replace(sample, read_bytes=seen.read_bytes, written_bytes=seen.written_bytes)
        watched.add(sample, host_usage.peak_memory_v2(mount, watched.cgroup))
        return judge_io(job, list(watched.samples)) if self.judges_io else None

    def usage(self, job: Job) -> Usage | None:
        """The latest reading; None before the first."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None or not watched.samples:
            return None
        before = watched.samples[-2] if len(watched.samples) > 1 else None
        usage = host_usage.usage_between(before, watched.samples[-1], watched.peak_bytes)
        count = watched.memory_count
        return replace(
            usage,
            memory_mean_bytes=watched.memory_sum // count if count else None,
            memory_working_bytes=watched.working_bytes,
            late_cores_milli=watched.late_cores_milli(),
            read_peak_bps=watched.read_peak_bps,
            write_peak_bps=watched.write_peak_bps,
            # No samples are taken of what stands still.
            cores_milli=usage.cores_milli if job.suspended_at is None else 0,
        )

    def latest(self, job: Job) -> tuple[Sample | None, Sample] | None:
        """The last two samples; None before the first."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None or not watched.samples:
            return None
        samples = watched.samples
        return samples[-2] if len(samples) > 1 else None, samples[-1]

    def peak_bytes(self, job: Job) -> int | None:
        """The most memory it has ever had."""
        watched = self._watched.get((job.id, job.attempt))
        return None if watched is None or not watched.samples else watched.peak_bytes

    def pinned_cpus(self, job: Job) -> str | None:
        """The CPUs that a job has for itself now, as "0-3,8"."""
        if job.cgroup is None or job.state is JobState.SUSPENDED:
            return None
        if UNIFIED in self.mounts:
            return host_usage.pinned_cpus_v2(self.mounts[UNIFIED], job.cgroup)
        return host_usage.pinned_cpus_v1(self.mounts, job.cgroup)


def _higher(peak: int | None, before: int | None, after: int | None, span_s: float) -> int | None:
    if before is None or after is None:
        return peak
    return max(peak or 0, int((after - before) / span_s))
