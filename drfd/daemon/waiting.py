"""Clients that wait for jobs, or whole arrays, to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from drfd.core.job import Job, JobState
from drfd.daemon.engine import Engine


@dataclass
class Waiting:
    engine: Engine
    #: By the id of a job or an array: set by its end; the waiters look again.
    _waiters: dict[int, set[asyncio.Event]] = field(default_factory=dict)

    def job_changed(self, job: Job) -> None:
        """Or all tasks of an array that had no record of their own."""
        if job.state is not JobState.ENDED:
            if job.broken is not None:
                self._knock(job)
            return
        if job.id == job.array_id:
            for job_id in [each for each in self._waiters if self.has_ended(each)]:
                self._wake(job_id)
            return
        self._wake(job.id)
        if job.array_id is not None and self.has_ended(job.array_id):
            self._wake(job.array_id)

    def has_ended(self, job_id: int) -> bool:
        """Of a job or an array that there has been."""
        ledger = self.engine.ledger
        return ledger.find(job_id) is None and job_id not in ledger.arrays

    def stuck(self, job_id: int) -> Job | None:
        """A job that can never start, as things stand; of an array, one of its tasks."""
        ledger = self.engine.ledger
        roster = ledger.arrays.get(job_id)
        if roster is None:
            found = [ledger.find(job_id)]
        else:
            found = [ledger.jobs[each] for each in sorted(roster.live)]
            if roster.unborn:
                found.append(ledger.find(roster.unborn.first[1]))
        return next((job for job in found if job is not None and job.broken is not None), None)

    async def until_ended(
        self, ids: Sequence[int], *, any_one: bool, timeout_s: float | None
    ) -> list[int]:
        """Those that have ended when all have, or any one, or the time is over. What can never
        start is not waited for."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        changed = asyncio.Event()
        for job_id in ids:
            if not self.has_ended(job_id):
                self._waiters.setdefault(job_id, set()).add(changed)
        try:
            while not (any_one and any(map(self.has_ended, ids))):
                if all(self.has_ended(each) or self.stuck(each) is not None for each in ids):
                    break
                left = None if deadline is None else deadline - time.monotonic()
                try:
                    await asyncio.wait_for(changed.wait(), left)
                except TimeoutError:
                    break
                changed.clear()
        finally:
            for job_id in ids:
                self._forget(job_id, changed)
        return [job_id for job_id in ids if self.has_ended(job_id)]

    def _knock(self, job: Job) -> None:
        """It can never start, or all that have no record in the array: the waiters look again, and
        stay if that is not all they wait for."""
        roster = None if job.array_id is None else self.engine.ledger.arrays.get(job.array_id)
        alike = [job.id, *([] if job.array_id is None else [job.array_id])]
        if roster is not None and job.id == job.array_id:
            alike += [each for each in self._waiters if roster.has_unborn(each)]
        for job_id in alike:
            for event in self._waiters.get(job_id, ()):
                event.set()

    def _wake(self, job_id: int) -> None:
        for event in self._waiters.pop(job_id, ()):
            event.set()

    def _forget(self, job_id: int, changed: asyncio.Event) -> None:
        waiters = self._waiters.get(job_id)
        if waiters is not None:
            waiters.discard(changed)
            if not waiters:
                del self._waiters[job_id]
