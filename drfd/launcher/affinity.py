"""Where no quota can be had: each job on as many CPUs as it declares, neighbours on others."""

from __future__ import annotations

import os

#: What `Confinement.controls` says of it.
CONTROL = "measured: kept on as many CPUs as it declares, rounded up"


class Affinity:
    def __init__(self) -> None:
        self._next_cpu = 0

    def choose(self, cores_milli: int) -> None:
        """For the next job, in the launcher; its runner is forked after this."""
        self._next_cpu += _whole(cores_milli)

    def keep(self, cores_milli: int) -> None:
        """Called in the job's own process: it stays on the CPUs chosen last."""
        cpus = sorted(os.sched_getaffinity(0))
        count = min(_whole(cores_milli), len(cpus))
        first = (self._next_cpu - count) % len(cpus)
        os.sched_setaffinity(0, {cpus[(first + i) % len(cpus)] for i in range(count)})


def _whole(cores_milli: int) -> int:
    return max(1, -(-cores_milli // 1000))
