"""The evidence behind a reason, in words: who holds what, what is kept free, who is ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from drfd.core.fairshare import Standing
from drfd.core.job import Job, JobState
from drfd.core.ledger import Ledger
from drfd.core.plan import Plan
from drfd.core.reservation import Reservation
from drfd.core.resources import Vector, fits, plus, short_axes
from drfd.core.roster import Roster
from drfd.core.rules import Rules
from drfd.core.serving import Ahead
from drfd.core.tree import path_up
from drfd.units import show_amount, show_need

#: Turns Unix time into a clock time for people; the core has no time zone.
ShowClock = Callable[[float], str]


#: The states of what is not over, the last of a life first.
_FURTHEST_FIRST = tuple(state for state in reversed(JobState) if state is not JobState.ENDED)


def shortage_text(rules: Rules, axis: int, needed: int, last: Plan) -> str:
    name = rules.axes.names[axis]
    return f"needs {show_need(name, needed)}, {show_amount(name, max(0, last.free[axis]))} free"


def limit_text(leaf: str, demand: Vector, standing: Standing, rules: Rules) -> str | None:
    """The limit of the leaf, or of a pool that it is in, that keeps the job back."""
    for path in path_up(leaf):
        limit = rules.shares.rule(path).limit
        for axis, most in enumerate(limit or ()):
            held = standing.held(path)[axis] if path in standing.used else 0
            if most is not None and demand[axis] and held + demand[axis] > most:
                name = rules.axes.names[axis]
                return (
                    f"{path} may hold {show_need(name, most)} and holds {show_amount(name, held)}; "
                    f"the job needs {show_amount(name, demand[axis])}"
                )
    return None


def kept_text(kept: Reservation, ledger: Ledger, rules: Rules, show_clock: ShowClock) -> str:
    """What is kept free, for whom and until when."""
    job = ledger.find(kept.job_id)
    who = str(kept.job_id) if job is None else f"{job.label} ({job.spec.user})"
    needs = ", ".join(
        show_need(name, amount)
        for name, amount in zip(rules.axes.names, kept.demand, strict=True)
        if amount
    )
    how = "everything that it needs" if kept.is_drain else "room"
    return (
        f"{how} is kept free for job {who}, which needs {needs} and is "
        f"expected to start by {show_clock(kept.start_s)}"
    )


def is_external(demand: Vector, last: Plan, rules: Rules) -> bool:
    """Would it fit but for what is kept for load from outside?"""
    load = last.external
    return load is not None and fits(demand, plus(last.free, rules.axes.vector(load.kept)))


def external_text(demand: Vector, last: Plan, rules: Rules) -> str:
    """The shortage of a job that would fit but for load from outside."""
    load = last.external
    assert load is not None
    axis = short_axes(demand, last.free)[0]
    name = rules.axes.names[axis]
    used, kept = (
        show_amount(name, rules.axes.vector(each)[axis]) for each in (load.used, load.kept)
    )
    beyond = "" if used == kept else f", {kept} of it out of what is for jobs"
    shortage = shortage_text(rules, axis, demand[axis], last)
    return f"{shortage}; processes outside drfd use {used}{beyond}"


def holder_text(ledger: Ledger, axis: int, show_clock: ShowClock) -> str:
    most = ledger.largest_holder(axis)
    if most is None:
        return ""
    amount = show_amount(ledger.axes.names[axis], ledger.held(most)[axis])
    until = ""
    # The wall time of a frozen job stands still.
    if most.started_at is not None and most.spec.time_limit_s and most.suspended_at is None:
        end_s = most.started_at + most.suspended_s + most.spec.time_limit_s
        until = f" until {show_clock(end_s)} at the latest"
    return f"; job {most.label} ({most.spec.user}) holds {amount}{until}"


def share_text(leaf: str, ahead: Ahead, standing: Standing) -> str:
    def level(path: str) -> str:
        return f"{float(standing.satisfaction(path)):.0%}"

    names = ", ".join(f"{other} at {level(other)}" for other in ahead.names)
    others = ahead.count - len(ahead.names)
    more = f" and {others} more" if others else ""
    verb = "is" if ahead.count == 1 else "are"
    return f"{names}{more} of the entitlement {verb} served first; {leaf} is at {level(leaf)}"


def progress_text(job: Job, ledger: Ledger, show_clock: ShowClock) -> str:
    """A job that another waits for: whose it is, how it stands, and when it will have ended. Of an
    array, how many of its tasks stand how."""
    is_array = job.id == job.array_id
    name = f"{'array' if is_array else 'job'} {job.label} ({job.spec.user})"
    if job.broken is not None:
        return f"{name}, which never starts: see drf why {job.label}"
    # Of an array this is one task of several.
    limit_s = None if is_array else job.spec.time_limit_s
    until = ""
    if job.state is JobState.RUNNING and job.started_at is not None and limit_s is not None:
        end_s = job.started_at + job.suspended_s + limit_s
        until = f" and ends by {show_clock(end_s)} at the latest"
    if is_array:
        return f"{name}, which is {_tasks_text(ledger.arrays[job.id], ledger)}"
    return f"{name}, which is {job.state}{until}"


def _tasks_text(roster: Roster, ledger: Ledger) -> str:
    """ "PENDING", or "RUNNING (2 tasks) and PENDING (7)": those that are not over."""
    counts = Counter(ledger.jobs[each].state for each in roster.live)
    if roster.unborn:
        counts[roster.array.common.state] += len(roster.unborn)
    found = [(state, counts[state]) for state in _FURTHEST_FIRST if counts[state]]
    if len(found) == 1:
        return str(found[0][0])
    (first, count), *others = found
    parts = [f"{first} ({count} task{'' if count == 1 else 's'})"]
    parts += [f"{state} ({count})" for state, count in others]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
