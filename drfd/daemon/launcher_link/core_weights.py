"""The weights of the cgroups of pools and users, by which the kernel divides cores among them.

They depend on which jobs run and on the configuration. They are sent after a turn in which a job
has started or ended, after a reload and to a new launcher, each only if it has changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from drfd.core.fairness.core_parts import CORES, divide_cores
from drfd.core.fairness.rules import Rules
from drfd.core.model.job import ALLOCATED_STATES, Job
from drfd.daemon.engine.engine import Engine
from drfd.daemon.launcher_link.link import Link
from drfd.daemon.launcher_link.messages import groups_of
from drfd.daemon.launcher_link.wire import Wire
from drfd.launcher.protocol import WEIGHT, WeightsOrder


class CoreWeights:
    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine, self._link = engine, link
        #: The ends of the cores of each job that holds some on this machine, with its leaf.
        self._jobs: dict[int, tuple[str, int, int]] = {}
        #: What the launcher was sent, and what that was computed from, with the connection.
        self._sent: dict[str, int] = {}
        self._sent_for: tuple[Wire | None, Rules, Counter[tuple[str, int, int]]] | None = None
        self._is_due = False
        link.on_ready = self.refresh
        engine.listeners.append(self.job_changed)
        for job in engine.ledger.allocated_jobs():
            self.job_changed(job)

    def job_changed(self, job: Job) -> None:
        ends = self._ends(job)
        if ends != self._jobs.get(job.id):
            if ends is None:
                del self._jobs[job.id]
            else:
                self._jobs[job.id] = ends
            self.refresh()

    def refresh(self) -> None:
        """Send what has changed, once this turn is over."""
        if not self._is_due and self._link.is_ready():
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _ends(self, job: Job) -> tuple[str, int, int] | None:
        """Return the ends of a job's cores. With weights alone, one without a range may use all."""
        axes = self._engine.ledger.axes
        if job.state not in ALLOCATED_STATES or job.node not in ("", axes.home):
            return None
        held = self._engine.ledger.allocation(job).sums[CORES]
        if not held:
            return None
        most = job.spec.cores_max_milli
        if not most and self._link.settings.cores_by == WEIGHT:
            most = self._engine.rules.own_capacity.cores_milli
        return job.spec.leaf, held, max(held, most)

    def _send(self) -> None:
        self._is_due = False
        if not self._link.is_ready() or not self._link.has_ranges():
            return
        wire, rules = self._link.wire, self._engine.rules
        # A job mostly ends where one like it starts.
        before, self._sent_for = self._sent_for, (wire, rules, Counter(self._jobs.values()))
        if self._sent_for == before:
            return
        if before is None or before[0] is not wire:
            self._sent = {}
        cores_milli = rules.own_capacity.cores_milli
        parts = divide_cores(rules.shares, self._jobs.values(), cores_milli)
        found = {"/".join(groups_of(path)): part for path, part in parts.items()}
        changed = {name: part for name, part in found.items() if self._sent.get(name) != part}
        self._sent = found
        if changed:
            self._link.send(WeightsOrder(tuple(changed.items())))
