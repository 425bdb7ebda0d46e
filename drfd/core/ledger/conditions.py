"""The conditions of waiting jobs: the ends of other jobs, begin times, and pauses before retries.

A job with a condition is PENDING but not eligible, and in no queue. Only the ledger uses the
functions of this module, and like the ledger it decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from drfd.core.ledger.queue import Line
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


class Begins(Line):
    """Earliest start times with the job's id, in order: begin times of users, and pauses of drfd.

    Only the ledger writes it.
    """

    __slots__ = ("pauses",)

    def __init__(self) -> None:
        super().__init__()
        #: The entries that are pauses.
        self.pauses = Line()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Begins) and self.pauses != other.pauses:
            return False
        return super().__eq__(other)

    __hash__ = None  # mutable

    def count(self, job: Job, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) the earliest start time of a job, if it has one."""
        if job.not_before_s is None:
            return
        for line in (self, self.pauses) if job.not_before_s != job.spec.begin_s else (self,):
            line.change([(job.not_before_s, job.id, job.id)], sign)


def recount_conditions(before: Job, job: Job, dependents: Dependents, begins: Begins) -> None:
    """Replace the conditions of a waiting job by its present ones.

    Only the difference is written: of a thousand dependencies, usually a single one has ended.
    """
    waits = (JobState.PENDING, JobState.HELD)
    if before.state not in waits or job.state not in waits:
        count_conditions(before, -1, dependents, begins)
        count_conditions(job, 1, dependents, begins)
        return
    if before.awaits != job.awaits:
        old = {each.job_id for each in before.awaits}
        new = {each.job_id for each in job.awaits}
        for on in old - new:
            dependents.remove(on, job.id)
        for on in new - old:
            dependents.add(on, job.id)
    begins.count(before, -1)
    begins.count(job, 1)


def count_conditions(job: Job, sign: int, dependents: Dependents, begins: Begins) -> None:
    """Add (`sign` 1) or remove (-1) the conditions of a job that has not started.

    The job may represent all tasks of an array that have no record of their own.
    """
    if job.state not in (JobState.PENDING, JobState.HELD):
        return
    if not job.awaits and job.not_before_s is None:
        return
    for on in {each.job_id for each in job.awaits}:
        if sign > 0:
            dependents.add(on, job.id)
        else:
            dependents.remove(on, job.id)
    begins.count(job, sign)
