"""A job that waits for other jobs, for a time or for another try: what events make of it.

As long as anything but the machine keeps it from starting it is PENDING and not eligible, and in no
queue. For the ledger alone; as there, nothing is judged here.
"""

from __future__ import annotations

from dataclasses import replace

from drfd.core import events as ev
from drfd.core.job import Broken, Job, JobState
from drfd.core.queue import Line

#: So many of the signals that a job was to be sent are remembered: what has piled up beyond that
#: while it could not be sent is lost, as the kernel merges equal ones.
SIGNALS_KEPT = 16


def submitted(event: ev.Submitted | ev.ArraySubmitted) -> Job:
    """The job, or the one that stands for all tasks of the array."""
    spec = event.spec
    array_id = event.array_id if isinstance(event, ev.ArraySubmitted) else None
    job = Job(
        id=event.job_id if isinstance(event, ev.Submitted) else event.array_id,
        array_id=array_id,
        spec=spec,
        state=JobState.HELD if event.held else JobState.PENDING,
        submitted_at=event.at_s,
        held_by=spec.user if event.held else None,
        awaits=spec.after,
        not_before_s=spec.begin_s,
    )
    return eligible(job, event.at_s)


def eligible(job: Job, at_s: float) -> Job:
    """The same job, eligible if nothing keeps it back at that time."""
    is_early = job.not_before_s is not None and job.not_before_s > at_s
    if job.state is not JobState.PENDING or job.awaits or job.broken is not None or is_early:
        return replace(job, eligible_at=None)
    since_s = at_s if job.eligible_at is None else job.eligible_at
    return replace(job, eligible_at=since_s, not_before_s=None)


def settled(job: Job, event: ev.DependencySettled) -> Job:
    awaits = tuple([each for each in job.awaits if each.job_id != event.on])
    broken = job.broken
    if not event.is_met and broken is None:
        broken = Broken(event.on, event.outcome)
    return eligible(replace(job, awaits=awaits, broken=broken), event.at_s)


def changed(job: Job, event: ev.Changed) -> Job:
    job = replace(job, spec=event.spec)
    if event.sets_after:
        job = replace(job, awaits=event.spec.after, broken=None)
    if event.sets_begin:
        job = replace(job, not_before_s=event.spec.begin_s)
    return eligible(job, event.at_s) if event.sets_after or event.sets_begin else job


def queued_again(job: Job, event: ev.Requeued | ev.Retried) -> Job:
    """It begins anew, and so does its patience: it has had its turn."""
    again = Job(
        id=job.id,
        spec=job.spec,
        state=JobState.PENDING,
        attempt=job.attempt,
        submitted_at=job.submitted_at,
        preempted_at=job.preempted_at,
        retries=job.retries,
        last_end=job.last_end,
        array_id=job.array_id,
        array_index=job.array_index,
    )
    if isinstance(event, ev.Retried):
        again = replace(
            again,
            not_before_s=event.not_before_s,
            retries=job.retries + 1,
            last_end=f"attempt {job.attempt} ended {job.outcome} ({job.outcome_text})",
        )
    return eligible(again, event.at_s)


def signalled(job: Job, number: int) -> Job:
    signals = (*job.signals, number)[-SIGNALS_KEPT:]
    return replace(job, signals=signals, signal_count=job.signal_count + 1)


def count_conditions(job: Job, sign: int, dependents: dict[int, set[int]], begins: Line) -> None:
    """Enter (`sign` 1) or strike out (-1) what a job that has not started waits for, or what all
    tasks of an array do that have no record of their own."""
    if job.state not in (JobState.PENDING, JobState.HELD):
        return
    for on in {each.job_id for each in job.awaits}:
        if sign > 0:
            dependents.setdefault(on, set()).add(job.id)
        else:
            dependents[on].remove(job.id)
            if not dependents[on]:
                del dependents[on]
    if job.not_before_s is not None:
        change = begins.add if sign > 0 else begins.remove
        change((job.not_before_s, job.id))
