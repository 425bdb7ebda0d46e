"""What everything but drfd and its jobs uses of the machine: the whole, less what we know of."""

from __future__ import annotations

import os
from dataclasses import dataclass

from drfd.core.resources import Resources
from drfd.daemon.meter import Meter
from drfd.host.capacity import MachineUse


@dataclass
class Neighbours:
    meter: Meter
    _before: MachineUse | None = None
    _own_cpu_s: float = 0.0

    def look(self, first: MachineUse, last: MachineUse) -> Resources | None:
        """The use between this look and the one before; None at the first. `first` and `last` are
        of before and after a round of samples of all jobs: what a job took or gave back between
        its sample and one of them is not taken for somebody else's."""
        before, self._before = self._before, last
        own_before_s, self._own_cpu_s = self._own_cpu_s, self.meter.jobs_cpu_s() + _controller_s()
        if before is None or last.mono_s <= before.mono_s:
            return None
        cpu_s = last.cpu_s - before.cpu_s - (self._own_cpu_s - own_before_s)
        memory_bytes = min(first.memory_bytes, last.memory_bytes) - self.meter.jobs_memory_bytes()
        return Resources(
            cores_milli=max(0, round(cpu_s * 1000 / (last.mono_s - before.mono_s))),
            memory_bytes=max(0, memory_bytes),
        )


def _controller_s() -> float:
    """Processor time of this very process: a thousand submissions are no load from outside."""
    times = os.times()
    return times.user + times.system
