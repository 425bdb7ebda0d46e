"""`decide`: the events that follow from a stimulus, given the ledger and the rules.

It changes nothing. A stimulus that no longer matters (a report of an earlier attempt, the second
report of one end) gives no events. A request that must not be granted raises Refused.
`core.decisions.dependencies.report_ends` reports ends to the jobs that wait for them.

When the launcher is connected again, it first reports every attempt that it knows.
`missing_attempts` and `leftovers` then find the attempts that only one side knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from drfd.core.decisions import job_requests
from drfd.core.decisions.dependencies import begin, jobs_to_notify, never_notified
from drfd.core.decisions.job_requests import change_each, each
from drfd.core.decisions.outcome import (
    MACHINE_CRASH,
    deadline_mono_s,
    is_timed_out,
    is_to_retry,
    judge_end,
    loss_of,
    not_before_s,
    signal_for,
    timeout_text,
)
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.postponed import alone_until_s, next_try
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.effects import RemoveAttempt
from drfd.core.model.job import Job, JobState, Outcome, owner_of
from drfd.core.model.owner import UNSTARTED, Owner

#: Highest id that a launcher report can raise the next id above. No machine has given out as many,
#: so an attempt with a higher id is not drfd's.
HIGHEST_RAISED_ID = 10**15


def decide(ledger: Ledger, stimulus: st.Stimulus, rules: Rules) -> list[ev.Event]:
    match stimulus:
        case st.SubmitAsked():
            return job_requests.submit(ledger, stimulus, rules)
        case st.CancelAsked():
            return each(ledger, stimulus, job_requests.cancel)
        case st.HoldAsked():
            return each(ledger, stimulus, job_requests.hold)
        case st.ReleaseAsked():
            return each(ledger, stimulus, job_requests.release)
        case st.RequeueAsked():
            return each(ledger, stimulus, job_requests.requeue)
        case st.SuspendAsked():
            return each(ledger, stimulus, job_requests.suspend)
        case st.ResumeAsked():
            return each(ledger, stimulus, job_requests.resume)
        case st.SignalAsked():
            return each(ledger, stimulus, job_requests.signal)
        case st.ChangeAsked():
            return change_each(ledger, stimulus, rules)
        case st.DrainAsked():
            return job_requests.drain(ledger, stimulus)
        case st.AttemptStarted():
            return _about(ledger, stimulus, ev.Launched, _attempt_started)
        case st.LaunchAborted():
            return _about(ledger, stimulus, ev.LaunchFailed, _launch_aborted)
        case st.LaunchShort():
            return _about(ledger, stimulus, ev.LaunchPostponed, partial(_launch_short, ledger))
        case st.AttemptEnded():
            return _about(ledger, stimulus, ev.Exited, _attempt_ended)
        case st.Frozen():
            return _about(ledger, stimulus, ev.Suspended, _frozen)
        case st.AttemptMissing():
            return _attempt_missing(ledger, stimulus)
        case st.AttemptRemoved():
            return _about(ledger, stimulus, ev.Cleaned, _attempt_removed)
        case st.NeverNotified():
            return never_notified(ledger, stimulus)
        case st.IdsSeen():
            return _ids_seen(ledger, stimulus)
        case st.Breached():
            return _about(ledger, stimulus, ev.StopRequested, _breached)
        case st.Tick():
            return _tick(ledger, stimulus, rules)


Report = TypeVar("Report", bound=st.AttemptStarted | st.AttemptEnded | st.AttemptReport)


def _about(
    ledger: Ledger,
    report: Report,
    kind: type[ev.JobEvent],
    judge: Callable[[Job, Report], list[ev.Event]],
) -> list[ev.Event]:
    """Return the events of `judge` if the report is about the present attempt of its job, and the
    job's state allows `kind`."""
    job = ledger.jobs.get(report.job_id)
    if job is None or job.attempt != report.attempt or job.state not in kind.moves:
        return []
    return judge(job, report)


def _attempt_started(job: Job, up: st.AttemptStarted) -> list[ev.Event]:
    if job.started_at is not None:
        return []
    return [
        ev.Launched(
            job_id=job.id, at_s=up.at_s, attempt=up.attempt, mono_s=up.mono_s, cgroup=up.cgroup
        )
    ]


def _launch_aborted(job: Job, abort: st.LaunchAborted) -> list[ev.Event]:
    outcome, text = Outcome.LAUNCH_FAILED, abort.text
    if job.stop is not None and job.stop.outcome is not None:
        outcome, text = job.stop.outcome, job.stop.text
    return [
        ev.LaunchFailed(
            job_id=job.id, at_s=abort.now.at_s, attempt=abort.attempt, text=text, outcome=outcome
        )
    ]


def _launch_short(ledger: Ledger, job: Job, short: st.LaunchShort) -> list[ev.Event]:
    if job.stop is not None and job.stop.outcome is not None:
        # The job is to stop, so its launch is not tried again.
        abort = st.LaunchAborted(short.now, short.job_id, short.attempt, short.text)
        return _launch_aborted(job, abort)
    at_s = short.now.at_s
    why = next_try(
        ledger.shortages, job, short.whose, text=short.text, resource=short.resource, at_s=at_s
    )
    return [
        ev.LaunchPostponed(
            job_id=job.id,
            at_s=at_s,
            attempt=short.attempt,
            why=why,
            not_before_s=alone_until_s(why),
        )
    ]


def _attempt_ended(job: Job, end: st.AttemptEnded) -> list[ev.Event]:
    outcome, text = judge_end(job, end)
    return [
        ev.Exited(
            job_id=job.id,
            at_s=end.at_s,
            attempt=end.attempt,
            exit_code=end.exit_code,
            signal=end.signal,
            outcome=outcome,
            text=text,
            usage=end.usage,
            loss=loss_of(outcome, end),
        )
    ]


def _frozen(job: Job, news: st.Frozen) -> list[ev.Event]:
    # Ignore a report that is repeated after a restart, or that a thaw has overtaken.
    if not job.freezing:
        return []
    return [
        ev.Suspended(job_id=job.id, at_s=news.now.at_s, attempt=job.attempt, mono_s=news.now.mono_s)
    ]


def _attempt_missing(ledger: Ledger, missing: st.AttemptMissing) -> list[ev.Event]:
    job = ledger.jobs.get(missing.job_id)
    # A STARTING job has not been launched yet: the launch is still owed.
    if job is None or job.state is JobState.STARTING:
        return []
    end = st.AttemptEnded(
        job_id=missing.job_id,
        attempt=missing.attempt,
        at_s=missing.now.at_s,
        mono_s=None,
        exit_code=None,
        signal=None,
        oom_killed=False,
        over_limit=False,
        usage=None,
        loss=missing.loss,
    )
    return _about(ledger, end, ev.Exited, _attempt_ended)


def _attempt_removed(job: Job, gone: st.AttemptRemoved) -> list[ev.Event]:
    if job.outcome is None:
        at_s, keeper = gone.now.at_s, None if job.stop is None else job.stop.held_by
        again = ev.Requeued(job_id=job.id, at_s=at_s, attempt=gone.attempt)
        return [again, *([ev.Held(job_id=job.id, at_s=at_s, by=keeper)] if keeper else [])]
    if is_to_retry(job):
        return [
            ev.Retried(
                job_id=job.id,
                at_s=gone.now.at_s,
                attempt=gone.attempt,
                not_before_s=not_before_s(job, gone.now.at_s),
            )
        ]
    return [ev.Cleaned(job_id=job.id, at_s=gone.now.at_s, attempt=gone.attempt, notice=gone.notice)]


def _ids_seen(ledger: Ledger, seen: st.IdsSeen) -> list[ev.Event]:
    """Raise the next id above all ids that the launcher knows.

    A journal restored from an old copy would otherwise give two jobs, perhaps of two users, one id.
    """
    if seen.highest < ledger.next_id or seen.highest > HIGHEST_RAISED_ID:
        return []
    return [ev.IdsRaised(at_s=seen.now.at_s, next_id=seen.highest + 1)]


def _breached(job: Job, breach: st.Breached) -> list[ev.Event]:
    return job_requests.stop(job, breach.now, breach.outcome, breach.text)


def _tick(ledger: Ledger, tick: st.Tick, rules: Rules) -> list[ev.Event]:
    found: list[ev.Event] = []
    for job in ledger.allocated_jobs():
        due_mono_s = deadline_mono_s(job, rules.grace_s, tick.heard.since_mono_s(job.node))
        if due_mono_s is None or due_mono_s > tick.now.mono_s:
            continue
        if job.state is JobState.STOPPING:
            found.append(ev.Escalated(job_id=job.id, at_s=tick.now.at_s))
        elif is_timed_out(job, tick.now.mono_s):
            found += job_requests.stop(job, tick.now, Outcome.TIMEOUT, timeout_text(job))
        else:
            assert job.spec.warn is not None
            signal = signal_for(job, job.spec.warn.signal)
            found.append(ev.Warned(job_id=job.id, at_s=tick.now.at_s, signal=signal))
    found += begin(ledger, tick.now.at_s)
    return sorted(found, key=lambda event: getattr(event, "job_id", 0))


# -- reconciliation with the launcher -----------------------------------------------------------

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
    ledger: Ledger, known: Collection[AttemptKey], now: st.Now, booted_at_s: float | None = None
) -> list[st.AttemptMissing]:
    """Return the jobs that should have a runner and of which the launcher has no trace.

    `booted_at_s` is the Unix time at which the machine was started. STARTING jobs are not among
    them, since their launch is still owed, nor CLEANING ones, whose attempt may be gone already.
    """
    return [
        st.AttemptMissing(now, job.id, job.attempt, loss_by_boot(job, booted_at_s))
        for job in sorted(ledger.allocated_jobs(), key=lambda job: job.id)
        if job.state in _HAS_RUNNER and (job.id, job.attempt) not in known
    ]


def loss_by_boot(job: Job, booted_at_s: float | None) -> str | None:
    """Return MACHINE_CRASH for an attempt that began before the machine was started, else None.

    A shutdown in order would have written the attempt's file to the disk.
    """
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
    the ledger from the journal. An attempt with an id that was never given out, or with another
    owner than the job's, is never removed: the journal may be an old copy, and the processes are
    somebody's work.
    """
    found = Leftovers([], {})
    for key, owner in sorted(known.items(), key=lambda item: item[0]):
        job_id, attempt = key
        job = ledger.find(job_id) or ended(job_id)
        if job is None or not owner.may_be(owner_of(job, journal_id)):
            found.strays[key] = owner
        elif attempt == UNSTARTED and jobs_to_notify(ledger, job_id):
            # Its file says whether the owner has been notified.
            continue
        elif job_id not in ledger.jobs or job.attempt != attempt or not job.is_allocated:
            found.removals.append(RemoveAttempt(job_id, attempt))
    return found
