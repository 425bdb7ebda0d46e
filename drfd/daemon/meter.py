"""Live use of the running jobs: the latest samples, and what they show against the limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from drfd.core.job import Job, Outcome, Usage
from drfd.core.limits import IO_WINDOW_S, Sample, judge_samples
from drfd.host import usage as host_usage

#: Seconds between two samples of a job.
PERIOD_S = 2.0

Key = tuple[int, int]


@dataclass
class _Watched:
    runner_pid: int
    samples: deque[Sample] = field(
        default_factory=lambda: deque(maxlen=int(IO_WINDOW_S / PERIOD_S) + 2)
    )
    peak_bytes: int = 0


@dataclass
class Meter:
    """Knows only what it was told of; an attempt that is not `watch`ed reads as None."""

    mono: Callable[[], float]
    #: Controller → directory; empty where jobs run without cgroups.
    mounts: Mapping[str, str] = field(default_factory=dict)
    _watched: dict[Key, _Watched] = field(default_factory=dict)

    def watch(self, key: Key, runner_pid: int) -> None:
        self._watched.setdefault(key, _Watched(runner_pid))

    def forget(self, key: Key) -> None:
        self._watched.pop(key, None)

    def sample(self, job: Job) -> tuple[Outcome, str] | None:
        """Take a sample; the breach that it completes, where the kernel does not enforce limits."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None:
            return None
        if job.cgroup is not None:
            watched.samples.append(
                host_usage.sample_cgroup_v1(self.mounts, job.cgroup, self.mono())
            )
            peak = host_usage.peak_memory_v1(self.mounts, job.cgroup)
            watched.peak_bytes = max(watched.peak_bytes, peak or 0)
            return None
        sample = host_usage.sample_processes(watched.runner_pid, self.mono())
        watched.samples.append(sample)
        watched.peak_bytes = max(watched.peak_bytes, sample.memory_bytes or 0)
        return judge_samples(job, list(watched.samples))

    def usage(self, job: Job) -> Usage | None:
        """The latest reading; None before the first."""
        watched = self._watched.get((job.id, job.attempt))
        if watched is None or not watched.samples:
            return None
        before = watched.samples[-2] if len(watched.samples) > 1 else None
        return host_usage.usage_between(before, watched.samples[-1], watched.peak_bytes)
