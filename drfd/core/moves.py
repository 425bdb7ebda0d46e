"""What an event makes of a job."""

from __future__ import annotations

from dataclasses import replace

from drfd.core import awaiting
from drfd.core import events as ev
from drfd.core.job import Job, JobState, Outcome, Stop


def moved(job: Job, event: ev.JobEvent, state: JobState) -> Job:
    """`state`: the next one, as the table says."""
    match event:
        case ev.Held():
            return replace(job, state=state, held_by=event.by, eligible_at=None)
        case ev.Released():
            return awaiting.eligible(replace(job, state=state, held_by=None), event.at_s)
        case ev.Cancelled():
            return replace(
                job,
                state=state,
                ended_at=event.at_s,
                outcome=Outcome.CANCELLED,
                outcome_text=f"cancelled by {event.by} before it "
                + ("was tried again" if job.retries else "started"),
            )
        case ev.Admitted():
            return replace(job, state=state, attempt=event.attempt, instances=event.instances)
        case ev.Launched():
            return replace(
                job,
                state=state,
                started_at=event.at_s,
                started_mono_s=event.mono_s,
                cgroup=event.cgroup,
            )
        case ev.LaunchFailed():
            return replace(
                job,
                state=state,
                freezing=False,
                ended_at=event.at_s,
                outcome=event.outcome,
                outcome_text=event.text,
            )
        case ev.StopRequested():
            stop = Stop(
                outcome=event.outcome,
                text=event.text,
                at_s=event.at_s,
                mono_s=event.mono_s,
                # What is frozen cannot take a SIGTERM, nor the time to act on it.
                escalated=job.suspended_at is not None,
            )
            if job.stop is not None:
                # It was to be requeued: its grace time runs already.
                stop = replace(job.stop, outcome=event.outcome, text=event.text)
            job = replace(job, state=state, stop=stop, freezing=False)
            if state is JobState.CLEANING:
                return replace(job, outcome=event.outcome, outcome_text=event.text)
            return job
        case ev.PreemptRequested():
            stop = Stop(outcome=None, text=event.text, at_s=event.at_s, mono_s=event.mono_s)
            return replace(job, state=state, stop=stop, freezing=False, preempted_at=event.at_s)
        case ev.Escalated():
            assert job.stop is not None
            return replace(job, state=state, stop=replace(job.stop, escalated=True))
        case ev.Exited():
            return replace(
                job,
                state=state,
                freezing=False,
                ended_at=event.at_s,
                exit_code=event.exit_code,
                signal=event.signal,
                outcome=event.outcome,
                outcome_text=event.text,
                usage=event.usage,
            )
        case ev.Cleaned():
            return replace(job, state=state)
        case ev.Requeued() | ev.Retried():
            return awaiting.queued_again(job, event)
        case ev.DependencySettled():
            return awaiting.settled(job, event)
        case ev.BeginReached():
            return awaiting.eligible(replace(job, not_before_s=None), event.at_s)
        case ev.Changed():
            return awaiting.changed(job, event)
        case ev.Warned():
            return awaiting.signalled(replace(job, warned=True), event.signal)
        case ev.SignalRequested():
            return awaiting.signalled(job, event.signal)
        case ev.SuspendRequested():
            if state is JobState.RUNNING:
                job = replace(job, freezing=True)
            preempted_at = event.at_s if event.by is None else job.preempted_at
            return replace(job, held_by=event.by, preempted_at=preempted_at)
        case ev.Suspended():
            return replace(
                job,
                state=state,
                freezing=False,
                suspended_at=event.at_s,
                suspended_mono_s=event.mono_s,
                suspensions=job.suspensions + 1,
            )
        case ev.ResumeRequested():
            return replace(job, held_by=None)
        case ev.Resumed():
            assert job.suspended_mono_s is not None
            return replace(
                job,
                state=state,
                suspended_at=None,
                suspended_mono_s=None,
                suspended_s=job.suspended_s + event.mono_s - job.suspended_mono_s,
            )
        case ev.Submitted():
            raise AssertionError("a job is born once")
