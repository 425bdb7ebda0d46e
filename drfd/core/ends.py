"""When what is held comes back, as estimated: kept from pass to pass.

Whoever applies an event says which job it was about (`note`); only those jobs are read again, and
those whose estimate has run out, or has changed with what their user's last jobs took
(`note_user`). So a pass on a machine full of small jobs does not read all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drfd.core.estimate import RunTimes, estimated_end_s
from drfd.core.job import Job, JobState
from drfd.core.ledger import Ledger
from drfd.core.resources import Vector

#: The line is made anew when one in so many of those in it has another time.
_FEW = 10


class _Holder(NamedTuple):
    """A job that will give something back."""

    job: Job
    held: Vector
    #: Unix time, without the time that it was frozen; None: that moves with the clock.
    started_s: float | None


class Ends:
    def __init__(self, ledger: Ledger, run_times: RunTimes) -> None:
        """Over tables that may change later."""
        self._ledger, self._run_times = ledger, run_times
        #: Jobs that were suspended and wait to go on, with leaf and what they wait for.
        self.suspended: dict[int, tuple[str, Vector]] = {}
        self._holders: dict[int, _Holder] = {}
        self._of_user: dict[str, set[int]] = {}
        #: Those whose end moves with the clock.
        self._moving: set[int] = set()
        self._noted = {job.id for job in ledger.holders()}
        #: (time, id) in order, but for the `_stale` ones; as of `_read_at_s`.
        self._line: list[tuple[float, int]] = []
        #: The times in it, by id.
        self._places: dict[int, float] = {}
        self._stale: set[int] = set()
        self._read_at_s = float("-inf")

    def note(self, job_id: int) -> None:
        """An event was about the job."""
        self._noted.add(job_id)

    def note_user(self, user: str) -> None:
        """One of the user's jobs has ended: the others are estimated anew."""
        self._stale.update(self._of_user.get(user, ()))

    def settle(self) -> None:
        """Read the jobs that events were about."""
        for job_id in self._noted:
            self._forget(job_id)
            job = self._ledger.jobs.get(job_id)
            if job is not None and job.holds_resources:
                self._enter(job)
        self._noted.clear()

    def at(self, now_s: float) -> Iterator[tuple[float, Vector]]:
        """(time, what comes back), in order of time; for jobs that have been read. Never past."""
        self._sort(now_s)
        return ((end_s, self._holders[job_id].held) for end_s, job_id in self._line)

    def _enter(self, job: Job) -> None:
        wanted = self._ledger.wanted(job)
        if wanted is not None:
            self.suspended[job.id] = job.spec.leaf, wanted
        elif job.state is JobState.SUSPENDED:
            # Nobody knows when what somebody keeps suspended will go on.
            return
        started_s = None
        if job.started_at is not None and job.suspended_at is None:
            started_s = job.started_at + job.suspended_s
        if started_s is None:
            self._moving.add(job.id)
        self._holders[job.id] = _Holder(job, self._ledger.held(job), started_s)
        self._of_user.setdefault(job.spec.user, set()).add(job.id)
        self._stale.add(job.id)

    def _forget(self, job_id: int) -> None:
        self.suspended.pop(job_id, None)
        holder = self._holders.pop(job_id, None)
        if holder is not None:
            user = holder.job.spec.user
            self._of_user[user].remove(job_id)
            if not self._of_user[user]:
                del self._of_user[user]
            self._moving.discard(job_id)
            self._stale.add(job_id)

    def _sort(self, now_s: float) -> None:
        if now_s < self._read_at_s:
            # The clock has been set back.
            self._stale.update(self._holders)
        self._read_at_s = now_s
        for end_s, job_id in self._line:
            if end_s > now_s:
                break
            self._stale.add(job_id)
        stale, line = self._stale, self._line
        stale |= self._moving
        if not stale:
            return
        fresh = list(self._estimated([each for each in stale if each in self._holders], now_s))
        if len(stale) * _FEW < len(line):
            for job_id in stale:
                if job_id in self._places:
                    del line[bisect_left(line, (self._places.pop(job_id), job_id))]
            for each in fresh:
                insort(line, each)
        else:
            line = [each for each in line if each[1] not in stale]
            line += fresh
            # Mostly in order already, which costs a comparison for each.
            line.sort()
            self._line = line
            for job_id in stale:
                self._places.pop(job_id, None)
        self._places.update((job_id, end_s) for end_s, job_id in fresh)
        stale.clear()

    def _estimated(self, job_ids: Iterable[int], now_s: float) -> Iterator[tuple[float, int]]:
        lengths: dict[tuple[str, int | None], float] = {}
        for job_id in job_ids:
            job, _, started_s = self._holders[job_id]
            if started_s is None:
                yield self._run_times.end_s(job, now_s), job_id
                continue
            limit_s = job.spec.time_limit_s
            key = job.spec.user, limit_s
            length_s = lengths.get(key)
            if length_s is None:
                length_s = lengths[key] = self._run_times.length_s(job.spec)
            end_s = started_s + length_s
            if end_s <= now_s:
                end_s = estimated_end_s(started_s, length_s, limit_s, now_s)
            yield end_s, job_id
