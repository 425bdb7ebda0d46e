"""All judgement: what follows from a stimulus, given the books and the rules.

Returns events and changes nothing. A stimulus that no longer matters (news of an earlier attempt,
the second report of one end) gives no events. Requests that must not be granted raise Refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.admission import Outlook, Plan, plan
from drfd.core.fairshare import path_up
from drfd.core.job import Job, JobSpec, JobState, Outcome
from drfd.core.ledger import Ledger
from drfd.core.lifecycle import TRANSITIONS
from drfd.core.limits import deadline_mono_s, timeout_text
from drfd.core.outcome import judge_end
from drfd.core.resources import minus, short_axes
from drfd.core.rules import Rules
from drfd.errors import NotPermitted, Refused
from drfd.units import show_amount, show_need


def decide(ledger: Ledger, stimulus: st.Stimulus, rules: Rules) -> list[ev.Event]:
    match stimulus:
        case st.SubmitAsked():
            return _submit(ledger, stimulus, rules)
        case st.CancelAsked():
            return _cancel(ledger, stimulus)
        case st.HoldAsked():
            return _hold(ledger, stimulus)
        case st.ReleaseAsked():
            return _release(ledger, stimulus)
        case st.DrainAsked():
            return _drain(ledger, stimulus)
        case st.RunnerUp():
            return _runner_up(ledger, stimulus)
        case st.LaunchBroke():
            return _launch_broke(ledger, stimulus)
        case st.RunnerEnded():
            return _runner_ended(ledger, stimulus)
        case st.AttemptMissing():
            return _attempt_missing(ledger, stimulus)
        case st.CgroupGone():
            return _cgroup_gone(ledger, stimulus)
        case st.Breached():
            return _breached(ledger, stimulus)
        case st.Tick():
            return _tick(ledger, stimulus, rules)
        case st.SchedulePass():
            admitted = schedule(ledger, rules).admitted
            return [admit(ledger, job_id, stimulus.now) for job_id in admitted]


def schedule(
    ledger: Ledger,
    rules: Rules,
    spent: Mapping[str, float] | None = None,
    outlook: Outlook | None = None,
) -> Plan:
    """The pass that `SchedulePass` stands for, with what it saw. `spent`: see `core.history`;
    without an `outlook` nothing is reserved."""
    return plan(
        queues={} if ledger.draining else ledger.queues,
        used=ledger.used,
        free=minus(rules.room, ledger.booked),
        shares=rules.shares,
        spent=spent,
        outlook=outlook,
    )


def admit(ledger: Ledger, job_id: int, now: st.Now) -> ev.Admitted:
    return ev.Admitted(job_id=job_id, at_s=now.at_s, attempt=ledger.jobs[job_id].attempt + 1)


def may_touch(actor: st.Actor, uid: int) -> bool:
    """The one ownership rule, for every verb."""
    return actor.is_admin or actor.uid == uid


def refuse_unfit(spec: JobSpec, rules: Rules) -> None:
    """Raise Refused for a demand that this machine can never satisfy."""
    unknown = rules.axes.unknown_gres(spec.demand)
    if unknown is not None:
        raise Refused("no-such-resource", f"this machine has no resource {unknown!r}")
    asked = rules.axes.vector(spec.demand)
    for axis in short_axes(asked, rules.room):
        name = rules.axes.names[axis]
        raise Refused(
            "too-big",
            f"the job asks for {show_need(name, asked[axis])}, and this machine has "
            f"{show_amount(name, rules.room[axis])} for jobs: it could never start",
            hint="not queued; ask for less",
        )
    for path in path_up(spec.leaf):
        limit = rules.shares.rule(path).limit or ()
        for name, most, amount in zip(rules.axes.names, limit, asked, strict=False):
            if most is not None and amount > most:
                raise Refused(
                    "above-limit",
                    f"the job asks for {show_need(name, amount)}, and {path} may hold "
                    f"{show_amount(name, most)} at most: it could never start",
                    hint="not queued; ask for less",
                )


def _submit(ledger: Ledger, asked: st.SubmitAsked, rules: Rules) -> list[ev.Event]:
    refuse_unfit(asked.spec, rules)
    waiting = ledger.waiting[asked.spec.user]
    if waiting >= rules.max_waiting_per_user:
        raise Refused(
            "too-many-jobs",
            f"{asked.spec.user} already has {waiting} jobs waiting, the most that is allowed",
            hint="wait for some of them to start",
        )
    return [
        ev.Submitted(job_id=ledger.next_id, at_s=asked.now.at_s, spec=asked.spec, held=asked.held)
    ]


def _owned(ledger: Ledger, job_id: int, actor: st.Actor) -> Job:
    job = ledger.jobs.get(job_id)
    if job is None:
        raise Refused("no-such-job", f"there is no live job {job_id}")
    if not may_touch(actor, job.spec.uid):
        raise NotPermitted("not-yours", f"job {job_id} belongs to {job.spec.user}")
    return job


def _cancel(ledger: Ledger, asked: st.CancelAsked) -> list[ev.Event]:
    job = _owned(ledger, asked.job_id, asked.actor)
    now = asked.now
    if ev.Cancelled in TRANSITIONS[job.state]:
        return [ev.Cancelled(job_id=job.id, at_s=now.at_s, by=asked.actor.user)]
    return _stop(job, now, Outcome.CANCELLED, f"cancelled by {asked.actor.user}")


def _stop(job: Job, now: st.Now, outcome: Outcome, text: str) -> list[ev.Event]:
    """The request to stop, or nothing when it is being stopped or is over already."""
    if ev.StopRequested not in TRANSITIONS[job.state]:
        return []
    return [
        ev.StopRequested(
            job_id=job.id, at_s=now.at_s, mono_s=now.mono_s, outcome=outcome, text=text
        )
    ]


def _hold(ledger: Ledger, asked: st.HoldAsked) -> list[ev.Event]:
    job = _owned(ledger, asked.job_id, asked.actor)
    outweighs = asked.actor.is_admin and job.held_by == job.spec.user != asked.actor.user
    if job.state is JobState.HELD and not outweighs:
        return []
    if ev.Held not in TRANSITIONS[job.state]:
        raise Refused(
            "not-waiting", f"job {job.id} is {job.shown_state}; only a waiting job can be held"
        )
    return [ev.Held(job_id=job.id, at_s=asked.now.at_s, by=asked.actor.user)]


def _release(ledger: Ledger, asked: st.ReleaseAsked) -> list[ev.Event]:
    job = _owned(ledger, asked.job_id, asked.actor)
    if ev.Released not in TRANSITIONS[job.state]:
        raise Refused("not-held", f"job {job.id} is {job.shown_state}, not held")
    if job.held_by not in (None, asked.actor.user, job.spec.user) and not asked.actor.is_admin:
        raise NotPermitted("held-by-admin", f"job {job.id} is held by {job.held_by}")
    return [ev.Released(job_id=job.id, at_s=asked.now.at_s, by=asked.actor.user)]


def _drain(ledger: Ledger, asked: st.DrainAsked) -> list[ev.Event]:
    if not asked.actor.is_admin:
        raise NotPermitted("not-admin", "only an administrator may drain or undrain")
    if ledger.draining is asked.on:
        return []
    return [ev.Drained(at_s=asked.now.at_s, on=asked.on, by=asked.actor.user)]


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
    if job.stop is not None:
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
    return [ev.Cleaned(job_id=job.id, at_s=gone.now.at_s, attempt=gone.attempt)]


def _breached(ledger: Ledger, breach: st.Breached) -> list[ev.Event]:
    job = _current(ledger, breach.job_id, breach.attempt, ev.StopRequested)
    return [] if job is None else _stop(job, breach.now, breach.outcome, breach.text)


def _tick(ledger: Ledger, tick: st.Tick, rules: Rules) -> list[ev.Event]:
    found: list[ev.Event] = []
    for job in ledger.holders():
        due_mono_s = deadline_mono_s(job, rules.grace_s)
        if due_mono_s is None or due_mono_s > tick.now.mono_s:
            continue
        if job.state is JobState.STOPPING:
            found.append(ev.Escalated(job_id=job.id, at_s=tick.now.at_s))
        else:
            found += _stop(job, tick.now, Outcome.TIMEOUT, timeout_text(job))
    return sorted(found, key=lambda event: getattr(event, "job_id", 0))
