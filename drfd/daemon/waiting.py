"""Clients that wait for jobs, or whole arrays, to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from drfd.core.dependencies import stuck_on
from drfd.core.evidence import progress_text
from drfd.core.job import Job, JobState
from drfd.core.reasons import Reason, ReasonCode
from drfd.daemon.breath import Breath
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import clock_time
from drfd.wire.views import View, reason_view


@dataclass(eq=False, slots=True)
class _Waiter:
    #: Something of it has ended, or can never start.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    has_end: bool = False


@dataclass
class Waiting:
    engine: Engine
    #: By the id of a job or an array: set by its end; the waiters look again.
    _waiters: dict[int, set[_Waiter]] = field(default_factory=dict)
    #: All of them will look again anyway.
    _has_knocked: bool = False

    def job_changed(self, job: Job) -> None:
        """Or all tasks of an array that had no record of their own."""
        if job.state is not JobState.ENDED:
            if job.broken is not None or (job.awaits and self._is_waited_for(job)):
                self._knock()
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
        stuck = (job for job in found if job is not None and stuck_on(job, ledger) is not None)
        return next(stuck, None)

    def in_vain(self, job: Job) -> View:
        """Of the view of such a job, what is to be told otherwise: for whom it waits in the end."""
        ledger = self.engine.ledger
        last = stuck_on(job, ledger)
        if last is None or last.id == job.id or any(on.job_id == last.id for on in job.awaits):
            return {}
        whom = progress_text(last, ledger, clock_time)
        reason = Reason(ReasonCode.DEPENDENCY, f"waits, over others, for {whom}")
        return {"reason": reason_view(reason)}

    async def until_ended(
        self, ids: Sequence[int], *, any_one: bool, timeout_s: float | None
    ) -> list[int]:
        """Those that have ended when all have, or any one, or the time is over. What can never
        start is not waited for."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waiter, breath = _Waiter(), Breath()
        try:
            for job_id in ids:
                if self.has_ended(job_id):
                    waiter.has_end = True
                else:
                    self._waiters.setdefault(job_id, set()).add(waiter)
                await breath.take()
            left = list(ids)
            while not (any_one and waiter.has_end):
                waiter.changed.clear()
                self._has_knocked = False
                if await self._are_settled(left):
                    break
                left_s = None if deadline is None else deadline - time.monotonic()
                try:
                    await asyncio.wait_for(waiter.changed.wait(), left_s)
                except TimeoutError:
                    break
        finally:
            for job_id in ids:
                self._forget(job_id, waiter)
        ended = []
        for job_id in ids:
            if self.has_ended(job_id):
                ended.append(job_id)
            await breath.take()
        return ended

    async def _are_settled(self, left: list[int]) -> bool:
        """Has each ended, or can it never start? Of `left` only those stay that must be looked at
        again, so that many ends cost no more than there are ids."""
        breath = Breath()
        while left and self.has_ended(left[-1]):
            left.pop()
            await breath.take()
        for job_id in reversed(left):
            if not self.has_ended(job_id) and self.stuck(job_id) is None:
                return False
            await breath.take()
        return True

    def _is_waited_for(self, job: Job) -> bool:
        """By a client, or by another job; of an array, one of its tasks may be."""
        ids = (job.id, job.array_id)
        return job.id == job.array_id or any(
            each in self._waiters or each in self.engine.ledger.dependents for each in ids
        )

    def _knock(self) -> None:
        """Something can never start, or may wait for what cannot: the waiters look again, and stay
        if that is not all they wait for."""
        if not self._has_knocked:
            self._has_knocked = True
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.changed.set()

    def _wake(self, job_id: int) -> None:
        for waiter in self._waiters.pop(job_id, ()):
            waiter.has_end = True
            waiter.changed.set()

    def _forget(self, job_id: int, waiter: _Waiter) -> None:
        waiters = self._waiters.get(job_id)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[job_id]
