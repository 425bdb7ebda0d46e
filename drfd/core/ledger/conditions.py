"""The conditions of waiting jobs: the ends of other jobs, begin times, and pauses before retries.

A job with a condition is PENDING but not eligible, and in no queue. Only the ledger uses the
functions of this module, and like the ledger it decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from drfd.core.ledger.queue import Entry
from drfd.core.model.job import Job, JobState, Outcome


class End(NamedTuple):
    """The end of a job, task or array for which some jobs still wait."""

    outcome: Outcome
    #: Unix time of the end.
    at_s: float
    #: The owner of the ended job.
    user: str


class Dependents(dict[int, set[int]]):
    """Ids of the jobs that wait for a job's end, by that job's id. Only the ledger writes it."""

    def __init__(self) -> None:
        super().__init__()
        #: Ends that have not been reported to all waiting jobs yet, by key; `report_ends` in
        #: `core.decisions.dependencies` reports them.
        self.ended: dict[int, End] = {}

    def add(self, on: int, job_id: int) -> None:
        self.setdefault(on, set()).add(job_id)

    def remove(self, on: int, job_id: int) -> None:
        self[on].remove(job_id)
        if not self[on]:
            del self[on]
            self.ended.pop(on, None)

    def note_end(self, on: int, outcome: Outcome, at_s: float, user: str) -> None:
        """Record the end of a job, task or array if any job waits for it."""
        if on in self:
            self.ended[on] = End(outcome, at_s, user)


@dataclass
class Begins:
    """Earliest start times with the job's id, in order. Only the ledger writes it."""

    #: Begin times of users, and pauses of drfd.
    all: list[Entry] = field(default_factory=list)
    #: Those that are pauses.
    pauses: list[Entry] = field(default_factory=list)


def count_conditions(
    before: Job | None, after: Job | None, dependents: Dependents, begins: Begins
) -> None:
    """Replace the conditions of a job by its present ones; None stands for no job. Only those of a
    job that has not started count, which may represent the tasks of an array without a record.

    Only the difference is written: of a thousand dependencies, usually a single one has ended.
    """
    old, new = _awaited(before), _awaited(after)
    for job, sign, ids in (before, -1, old - new), (after, 1, new - old):
        if job is None or job.state not in _WAITING:
            continue
        for on in ids:
            (dependents.add if sign > 0 else dependents.remove)(on, job.id)
        if job.not_before_s is not None:
            is_pause = job.not_before_s != job.spec.begin_s
            for times in (begins.all, begins.pauses) if is_pause else (begins.all,):
                if sign > 0:
                    insort(times, (job.not_before_s, job.id))
                else:
                    del times[bisect_left(times, (job.not_before_s, job.id))]


_WAITING = (JobState.PENDING, JobState.HELD)


def _awaited(job: Job | None) -> frozenset[int]:
    if job is None or not job.awaits or job.state not in _WAITING:
        return frozenset()
    return frozenset(each.job_id for each in job.awaits)
