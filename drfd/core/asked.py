"""What people ask for: who may, whether it can be, and what follows.

Raises Refused for what must not be granted; what is granted already gives no events.
"""

from __future__ import annotations

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.dependencies import refuse_impossible, settle_ended
from drfd.core.job import Job, JobSpec, JobState, Outcome
from drfd.core.ledger import Ledger
from drfd.core.lifecycle import TRANSITIONS
from drfd.core.resources import short_axes
from drfd.core.retry import is_to_retry
from drfd.core.rules import Rules
from drfd.core.tree import path_up
from drfd.errors import NotPermitted, Refused
from drfd.indices import count_of
from drfd.units import show_amount, show_duration, show_need, show_size


def may_touch(actor: st.Actor, uid: int) -> bool:
    """The one ownership rule, for every verb."""
    return actor.is_admin or actor.uid == uid


def refuse_unfit(spec: JobSpec, rules: Rules) -> None:
    """Raise Refused for a demand that this machine can never satisfy."""
    there = dict(rules.capacity.gres)
    for unknown in [name for name, _ in spec.demand.gres if name not in there]:
        has = ", ".join(f"{count} {name}" for name, count in there.items())
        raise Refused(
            "no-such-resource",
            f"this machine has no resource {unknown!r}",
            hint=f"it has {has}" if has else "no countable resource is given out here",
        )
    gone = rules.axes.unknown_disk(spec.demand)
    if gone is not None:
        raise Refused("no-such-disk", f"this machine has no disk {gone!r}")
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


def refuse_late_warning(spec: JobSpec) -> None:
    """Raise Refused for a warning that would not come within the wall time."""
    if spec.warn is None:
        return
    if spec.time_limit_s is None:
        raise Refused(
            "no-limit", "there is no time limit to warn of", hint="say -t TIME, or leave --warn out"
        )
    if spec.warn.before_s >= spec.time_limit_s:
        raise Refused(
            "bad-value",
            f"the warning is to come {show_duration(spec.warn.before_s)} before the end of "
            f"{show_duration(spec.time_limit_s)}: no time is left to run before it",
            hint="ask for a longer -t, or for a later --warn",
        )


def submit(ledger: Ledger, asked: st.SubmitAsked, rules: Rules) -> list[ev.Event]:
    refuse_unfit(asked.spec, rules)
    refuse_late_warning(asked.spec)
    after, at_s = asked.spec.after, asked.now.at_s
    refuse_impossible(ledger, after, asked.ended, user=asked.spec.user)
    _refuse_too_many(ledger.census.waiting[asked.spec.user], asked, rules)
    _refuse_too_long(ledger.census.letters[asked.spec.user], asked, rules)
    _refuse_too_much_kept(asked, rules)
    job_id = ledger.next_id
    if asked.spans:
        return [
            ev.ArraySubmitted(
                array_id=job_id,
                at_s=at_s,
                spec=asked.spec,
                spans=asked.spans,
                at_once=asked.at_once,
                held=asked.held,
            ),
            *settle_ended(job_id, after, asked.ended, at_s),
        ]
    return [
        ev.Submitted(job_id=job_id, at_s=at_s, spec=asked.spec, held=asked.held),
        *settle_ended(job_id, after, asked.ended, at_s),
    ]


def _refuse_too_many(waiting: int, asked: st.SubmitAsked, rules: Rules) -> None:
    most, user = rules.max_waiting_per_user, asked.spec.user
    if waiting >= most:
        raise Refused(
            "too-many-jobs",
            f"{user} already has {waiting} jobs waiting, the most that is allowed",
            hint="wait for some of them to start",
        )
    count = count_of(asked.spans)
    if waiting + count > most:
        raise Refused(
            "too-many-jobs",
            f"the array has {count} tasks, and {user} may have {most} jobs waiting"
            + (f" and has {waiting}" if waiting else ""),
            hint="submit it in parts",
        )


def _refuse_too_long(waiting: int, asked: st.SubmitAsked, rules: Rules) -> None:
    letters = asked.spec.letters * max(1, count_of(asked.spans))
    if waiting + letters <= rules.max_letters_per_user:
        return
    user = asked.spec.user
    raise Refused(
        "too-long",
        f"the commands of all waiting jobs of {user} would have {show_size(waiting + letters)}, "
        f"and may have {show_size(rules.max_letters_per_user)}",
        hint="have long lists of arguments read from a file, or wait for some jobs to start",
    )


def _refuse_too_much_kept(asked: st.SubmitAsked, rules: Rules) -> None:
    most = rules.max_kept_bytes_per_user
    if asked.kept_bytes <= most:
        return
    raise Refused(
        "too-long",
        f"the environments and scripts of all jobs of {asked.spec.user} would have "
        f"{show_size(asked.kept_bytes)}, and may have {show_size(most)}",
        hint="submit jobs with the same environment and script, or wait for some to end",
    )


def no_such(job_id: int) -> Refused:
    return Refused("no-such-job", f"there is no live job {job_id}")


def owned(ledger: Ledger, job_id: int, actor: st.Actor) -> Job:
    job = ledger.find(job_id)
    if job is None:
        raise no_such(job_id)
    if not may_touch(actor, job.spec.uid):
        raise NotPermitted("not-yours", f"job {job.label} belongs to {job.spec.user}")
    return job


def cancel(ledger: Ledger, asked: st.CancelAsked) -> list[ev.Event]:
    job = owned(ledger, asked.job_id, asked.actor)
    now = asked.now
    if ev.Cancelled in TRANSITIONS[job.state]:
        return [ev.Cancelled(job_id=job.id, at_s=now.at_s, by=asked.actor.user)]
    return stop(job, now, Outcome.CANCELLED, f"cancelled by {asked.actor.user}")


def stop(job: Job, now: st.Now, outcome: Outcome, text: str) -> list[ev.Event]:
    """The request to stop, or nothing when it is being stopped or is over already. One that was
    only to be requeued, or tried again, ends for good now."""
    is_ended = job.state is JobState.CLEANING and job.outcome is not None
    is_over = is_ended and not (is_to_retry(job) and outcome is Outcome.CANCELLED)
    if is_over or (job.stop is not None and job.stop.outcome is not None):
        return []
    return [
        ev.StopRequested(
            job_id=job.id, at_s=now.at_s, mono_s=now.mono_s, outcome=outcome, text=text
        )
    ]


def hold(ledger: Ledger, asked: st.HoldAsked) -> list[ev.Event]:
    job = owned(ledger, asked.job_id, asked.actor)
    outweighs = asked.actor.is_admin and job.held_by == job.spec.user != asked.actor.user
    if job.state is JobState.HELD and not outweighs:
        return []
    if ev.Held not in TRANSITIONS[job.state]:
        raise Refused(
            "not-waiting", f"job {job.label} is {job.shown_state}; only a waiting job can be held"
        )
    return [ev.Held(job_id=job.id, at_s=asked.now.at_s, by=asked.actor.user)]


def release(ledger: Ledger, asked: st.ReleaseAsked) -> list[ev.Event]:
    job = owned(ledger, asked.job_id, asked.actor)
    if ev.Released not in TRANSITIONS[job.state]:
        raise Refused("not-held", f"job {job.label} is {job.shown_state}, not held")
    _refuse_if_kept(job, asked.actor)
    return [ev.Released(job_id=job.id, at_s=asked.now.at_s, by=asked.actor.user)]


def suspend(ledger: Ledger, asked: st.SuspendAsked) -> list[ev.Event]:
    job = owned(ledger, asked.job_id, asked.actor)
    if ev.SuspendRequested not in TRANSITIONS[job.state]:
        hint = "drf hold keeps a waiting job from starting" if job.state is JobState.PENDING else ""
        raise Refused(
            "not-running",
            f"job {job.label} is {job.shown_state}; only a running job can be suspended",
            hint=hint,
        )
    outweighs = asked.actor.is_admin and job.held_by == job.spec.user != asked.actor.user
    if job.held_by is not None and not outweighs:
        return []
    by = asked.actor.user
    return [
        ev.SuspendRequested(job_id=job.id, at_s=asked.now.at_s, by=by, text=f"suspended by {by}")
    ]


def resume(ledger: Ledger, asked: st.ResumeAsked) -> list[ev.Event]:
    job = owned(ledger, asked.job_id, asked.actor)
    if job.state is not JobState.SUSPENDED and not job.freezing:
        raise Refused("not-suspended", f"job {job.label} is {job.shown_state}, not suspended")
    _refuse_if_kept(job, asked.actor)
    if job.held_by is None:
        return []
    return [ev.ResumeRequested(job_id=job.id, at_s=asked.now.at_s, by=asked.actor.user)]


def signal(ledger: Ledger, asked: st.SignalAsked) -> list[ev.Event]:
    job = owned(ledger, asked.job_id, asked.actor)
    is_frozen = job.state is JobState.SUSPENDED or job.freezing
    if ev.SignalRequested not in TRANSITIONS[job.state] or is_frozen:
        raise Refused(
            "not-running",
            f"job {job.label} is {job.shown_state}; only a running job can be sent a signal",
            hint=f"drf resume {job.label} lets it run" if is_frozen else "",
        )
    by = asked.actor.user
    return [ev.SignalRequested(job_id=job.id, at_s=asked.now.at_s, signal=asked.signal, by=by)]


def _refuse_if_kept(job: Job, actor: st.Actor) -> None:
    """What an administrator holds, only an administrator lets go."""
    if job.held_by not in (None, actor.user, job.spec.user) and not actor.is_admin:
        raise NotPermitted("held-by-admin", f"job {job.label} is held by {job.held_by}")


def drain(ledger: Ledger, asked: st.DrainAsked) -> list[ev.Event]:
    if not asked.actor.is_admin:
        raise NotPermitted("not-admin", "only an administrator may drain or undrain")
    if ledger.draining is asked.on:
        return []
    return [ev.Drained(at_s=asked.now.at_s, on=asked.on, by=asked.actor.user)]
