"""After a restart: what the launcher's list of attempts says about the books.

The launcher first reports every attempt it knows as if its news had just come (up, ended, broke);
what remains is what only one side knows.
"""

from __future__ import annotations

from collections.abc import Collection

from drfd.core.effects import Remove
from drfd.core.job import JobState
from drfd.core.ledger import Ledger
from drfd.core.stimuli import AttemptMissing, Now

AttemptKey = tuple[int, int]

_HAS_RUNNER = (JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPING)


def missing_attempts(
    ledger: Ledger, known: Collection[AttemptKey], now: Now
) -> list[AttemptMissing]:
    """Jobs that should have a runner and of which the launcher has no trace.

    STARTING jobs are not among them (their launch is owed and will be sent), nor CLEANING ones
    (there may be nothing left to clean; the removal says so).
    """
    return [
        AttemptMissing(now, job.id, job.attempt)
        for job in sorted(ledger.holders(), key=lambda job: job.id)
        if job.state in _HAS_RUNNER and (job.id, job.attempt) not in known
    ]


def strays(ledger: Ledger, known: Collection[AttemptKey]) -> list[Remove]:
    """Attempts that the books have closed, or replaced by a later one: to be removed."""
    found = []
    for job_id, attempt in sorted(known):
        job = ledger.jobs.get(job_id)
        # An id that was never given out is not ours to kill: the journal may be an old copy.
        if job_id >= ledger.next_id:
            continue
        if job is None or job.attempt != attempt or not job.holds_resources:
            found.append(Remove(job_id, attempt))
    return found
