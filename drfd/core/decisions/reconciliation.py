"""Reconciliation with a reconnected launcher, which has first reported every attempt that it knows:
attempts that only one side knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from drfd.common.owner import Owner
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.outcome import MACHINE_CRASH
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.effects import RemoveAttempt
from drfd.core.model.job import Job, JobState, owner_of

#: Job id and number of the attempt.
AttemptKey = tuple[int, int]

_HAS_RUNNER = (JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPING)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Attempts that the launcher has and no live job does."""

    #: Attempts of this journal's jobs that have ended or were replaced by a later attempt.
    removals: list[RemoveAttempt]
    #: Attempts of no job of this journal, about which an administrator decides, by attempt.
    strays: dict[AttemptKey, Owner]


def missing_attempts(
    ledger: Ledger, known: Collection[AttemptKey], at_s: float, booted_at_s: float | None = None
) -> list[st.MissingReport]:
    """Return the jobs that should have a runner and of which the launcher has no trace.
    `booted_at_s` is the Unix time of the machine's start. The launch of STARTING jobs is still due,
    and the attempt of CLEANING ones may be removed already."""
    return [
        st.MissingReport(at_s, job.id, job.attempt, loss=loss_by_boot(job, booted_at_s))
        for job in sorted(ledger.allocated_jobs(), key=lambda job: job.id)
        if job.state in _HAS_RUNNER and (job.id, job.attempt) not in known
    ]


def loss_by_boot(job: Job, booted_at_s: float | None) -> str | None:
    """Return MACHINE_CRASH for an attempt that began before the machine was started, else None. A
    shutdown in order would have written the attempt's file to the disk."""
    if booted_at_s is None or job.started_at is None or job.started_at >= booted_at_s:
        return None
    return MACHINE_CRASH


def leftovers(
    ledger: Ledger,
    known: Mapping[AttemptKey, Owner],
    journal_id: str,
    ended: Callable[[int], Job | None],
) -> Leftovers:
    """Return the attempts that the launcher has and the ledger does not.

    `known` has all attempts of the launcher with their owners; `ended` returns a job that has left
    the ledger from the journal. An attempt with an unknown id, or another owner than the job's, is
    never removed: the journal may be an old copy.
    """
    found = Leftovers([], {})
    for key, owner in sorted(known.items(), key=lambda item: item[0]):
        job_id, attempt = key
        job = ledger.jobs.get(job_id) or ended(job_id)
        if job is None or not owner.may_be(owner_of(job, journal_id)):
            found.strays[key] = owner
        elif job_id not in ledger.jobs or job.attempt != attempt or not job.is_allocated:
            found.removals.append(RemoveAttempt(job_id, attempt))
    return found
