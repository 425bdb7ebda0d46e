"""All judgement: what follows from a stimulus, given the books and the rules.

Returns events and changes nothing. A stimulus that no longer matters (news of an earlier attempt,
the second report of one end) gives no events. Requests that must not be granted raise Refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from drfd.core import asked
from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.admission import run_pass
from drfd.core.asked_together import each
from drfd.core.backfill import Outlook
from drfd.core.change import change_each
from drfd.core.dependencies import begin, settle
from drfd.core.external import ExternalLoad
from drfd.core.instances import Instance, choose, each_of
from drfd.core.job import Job, JobState, Outcome
from drfd.core.ledger import Ledger
from drfd.core.lifecycle import TRANSITIONS
from drfd.core.limits import deadline_mono_s, is_timed_out, timeout_text
from drfd.core.lineup import Lineup
from drfd.core.outcome import judge_end
from drfd.core.plan import Plan
from drfd.core.policies import plan_by
from drfd.core.resources import Vector, minus
from drfd.core.retry import is_to_retry, not_before_s
from drfd.core.rules import Rules
from drfd.core.tally import Terms


def decide(ledger: Ledger, stimulus: st.Stimulus, rules: Rules) -> list[ev.Event]:
    events = _judge(ledger, stimulus, rules)
    # With the end of a job comes what it means for those that wait for it.
    return [*events, *settle(ledger, events)]


def _judge(ledger: Ledger, stimulus: st.Stimulus, rules: Rules) -> list[ev.Event]:
    match stimulus:
        case st.SubmitAsked():
            return asked.submit(ledger, stimulus, rules)
        case st.CancelAsked():
            return each(ledger, stimulus, asked.cancel)
        case st.HoldAsked():
            return each(ledger, stimulus, asked.hold)
        case st.ReleaseAsked():
            return each(ledger, stimulus, asked.release)
        case st.SuspendAsked():
            return each(ledger, stimulus, asked.suspend)
        case st.ResumeAsked():
            return each(ledger, stimulus, asked.resume)
        case st.SignalAsked():
            return each(ledger, stimulus, asked.signal)
        case st.ChangeAsked():
            return change_each(ledger, stimulus, rules)
        case st.DrainAsked():
            return asked.drain(ledger, stimulus)
        case st.RunnerUp():
            return _runner_up(ledger, stimulus)
        case st.LaunchBroke():
            return _launch_broke(ledger, stimulus)
        case st.RunnerEnded():
            return _runner_ended(ledger, stimulus)
        case st.Frozen():
            return _frozen(ledger, stimulus)
        case st.AttemptMissing():
            return _attempt_missing(ledger, stimulus)
        case st.CgroupGone():
            return _cgroup_gone(ledger, stimulus)
        case st.Breached():
            return _breached(ledger, stimulus)
        case st.Tick():
            return _tick(ledger, stimulus, rules)
        case st.SchedulePass():
            return list(admit_all(ledger, schedule(ledger, rules).admitted, stimulus.now))


def schedule(
    ledger: Ledger,
    rules: Rules,
    spent: Mapping[str, float] | None = None,
    outlook: Outlook | None = None,
    recent: Mapping[str, Vector] | None = None,
) -> Plan:
    """The pass that `SchedulePass` stands for, with what it saw. `spent`: see `core.history`;
    `recent`: see `core.shortjobs`; without an `outlook` nothing is reserved."""
    return schedule_on(line_up(ledger, rules, spent or {}, recent or {}), ledger, rules, outlook)


def line_up(
    ledger: Ledger, rules: Rules, spent: Mapping[str, float], recent: Mapping[str, Vector]
) -> Lineup:
    """All who wait, for any number of passes with these rules, as long as it is told of every leaf
    that an event changes."""
    return Lineup(
        queues=ledger.queues, used=ledger.used, shares=rules.shares, spent=spent, recent=recent
    )


def schedule_on(
    lineup: Lineup,
    ledger: Ledger,
    rules: Rules,
    outlook: Outlook | None,
    most_looks: int | None = None,
) -> Plan:
    """The same pass over a line-up that has been kept. `most_looks`: see `run_pass`."""
    external = outlook.external if outlook is not None else None
    free = free_of(ledger, rules, external)
    if ledger.draining:
        # Who has a place finds it again.
        before = outlook.before if outlook is not None else ()
        return Plan(admitted=[], free=free, order=[], reservations=before)
    if rules.policy == "drf":
        plan = run_pass(lineup, free=free, outlook=outlook, most_looks=most_looks)
    else:
        plan = plan_by(
            rules.policy,
            queues=ledger.queues,
            used=ledger.used,
            free=free,
            shares=rules.shares,
            spent=lineup.spent,
            outlook=outlook,
            terms=Terms(slots=rules.slot_count, running=ledger.slots_taken()),
        )
    return plan if external is None else replace(plan, external=external)


def free_of(ledger: Ledger, rules: Rules, external: ExternalLoad | None) -> Vector:
    """What jobs may start in; below zero where more is held than there is."""
    free = minus(rules.room, ledger.booked)
    return free if external is None else minus(free, rules.axes.vector(external.kept))


def admit_all(
    ledger: Ledger, job_ids: Iterable[int], now: st.Now
) -> Iterator[ev.Admitted | ev.Resumed]:
    """What a pass decides of these jobs: each starts, or goes on. Whether or not an event is
    applied before the next is asked for."""
    given: set[Instance] = set()
    for job_id in job_ids:
        event = admit(ledger, job_id, now, given)
        if isinstance(event, ev.Admitted):
            given.update(each_of(event.instances))
        yield event


def admit(
    ledger: Ledger, job_id: int, now: st.Now, given: Collection[Instance] = ()
) -> ev.Admitted | ev.Resumed:
    """`given`: countable things that the books do not know yet to be taken."""
    job = ledger.job(job_id)
    if job.state is JobState.SUSPENDED:
        return ev.Resumed(job_id=job_id, at_s=now.at_s, mono_s=now.mono_s)
    taken = {*ledger.taken, *given} if job.spec.demand.gres else set[Instance]()
    instances = choose(job.spec.demand.gres, ledger.axes.instances, taken)
    return ev.Admitted(job_id=job_id, at_s=now.at_s, attempt=job.attempt + 1, instances=instances)


def _current(ledger: Ledger, job_id: int, attempt: int, kind: type) -> Job | None:
    """The job, if the news is about its present attempt and its state allows the event `kind`."""
    job = ledger.jobs.get(job_id)
    if job is None or job.attempt != attempt or kind not in TRANSITIONS[job.state]:
        return None
    return job


def _runner_up(ledger: Ledger, up: st.RunnerUp) -> list[ev.Event]:
    job = _current(ledger, up.job_id, up.attempt, ev.Launched)
    if job is None or job.started_at is not None:
        return []
    return [
        ev.Launched(
            job_id=job.id, at_s=up.at_s, attempt=up.attempt, mono_s=up.mono_s, cgroup=up.cgroup
        )
    ]


def _launch_broke(ledger: Ledger, broke: st.LaunchBroke) -> list[ev.Event]:
    job = _current(ledger, broke.job_id, broke.attempt, ev.LaunchFailed)
    if job is None:
        return []
    outcome, text = Outcome.LAUNCH_FAILED, broke.text
    if job.stop is not None and job.stop.outcome is not None:
        outcome, text = job.stop.outcome, job.stop.text
    return [
        ev.LaunchFailed(
            job_id=job.id, at_s=broke.now.at_s, attempt=broke.attempt, text=text, outcome=outcome
        )
    ]


def _runner_ended(ledger: Ledger, end: st.RunnerEnded) -> list[ev.Event]:
    job = _current(ledger, end.job_id, end.attempt, ev.Exited)
    if job is None:
        return []
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
        )
    ]


def _frozen(ledger: Ledger, news: st.Frozen) -> list[ev.Event]:
    job = _current(ledger, news.job_id, news.attempt, ev.Suspended)
    # Frozen again after a restart, or thawed meanwhile.
    if job is None or not job.freezing:
        return []
    return [
        ev.Suspended(job_id=job.id, at_s=news.now.at_s, attempt=job.attempt, mono_s=news.now.mono_s)
    ]


def _attempt_missing(ledger: Ledger, missing: st.AttemptMissing) -> list[ev.Event]:
    job = ledger.jobs.get(missing.job_id)
    # A job that is STARTING has simply not been launched yet: the launch is still owed.
    if job is None or job.state is JobState.STARTING:
        return []
    end = st.RunnerEnded(
        job_id=missing.job_id,
        attempt=missing.attempt,
        at_s=missing.now.at_s,
        mono_s=None,
        exit_code=None,
        signal=None,
        oom_killed=False,
        over_limit=False,
        usage=None,
    )
    return _runner_ended(ledger, end)


def _cgroup_gone(ledger: Ledger, gone: st.CgroupGone) -> list[ev.Event]:
    job = _current(ledger, gone.job_id, gone.attempt, ev.Cleaned)
    if job is None:
        return []
    if job.outcome is None:
        return [ev.Requeued(job_id=job.id, at_s=gone.now.at_s, attempt=gone.attempt)]
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


def _breached(ledger: Ledger, breach: st.Breached) -> list[ev.Event]:
    job = _current(ledger, breach.job_id, breach.attempt, ev.StopRequested)
    return [] if job is None else asked.stop(job, breach.now, breach.outcome, breach.text)


def _tick(ledger: Ledger, tick: st.Tick, rules: Rules) -> list[ev.Event]:
    found: list[ev.Event] = []
    for job in ledger.holders():
        due_mono_s = deadline_mono_s(job, rules.grace_s)
        if due_mono_s is None or due_mono_s > tick.now.mono_s:
            continue
        if job.state is JobState.STOPPING:
            found.append(ev.Escalated(job_id=job.id, at_s=tick.now.at_s))
        elif is_timed_out(job, tick.now.mono_s):
            found += asked.stop(job, tick.now, Outcome.TIMEOUT, timeout_text(job))
        else:
            assert job.spec.warn is not None
            found.append(ev.Warned(job_id=job.id, at_s=tick.now.at_s, signal=job.spec.warn.signal))
    found += begin(ledger, tick.now.at_s)
    return sorted(found, key=lambda event: getattr(event, "job_id", 0))
