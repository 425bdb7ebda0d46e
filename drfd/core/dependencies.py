"""Jobs that wait for others to end, and for their time: what is granted, and what follows.

An end costs as much as it has dependents, a moment as much as the jobs that it lets go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from drfd.core import events as ev
from drfd.core.job import Dependency, Job, JobState, Outcome, Want
from drfd.core.ledger import Ledger
from drfd.errors import Refused

#: So many jobs may wait for one, and so many if they are not all its owner's: its end is one turn,
#: in which everybody else waits, and nobody may fill up another's job.
MOST_DEPENDENTS, MOST_OF_OTHERS = 10_000, 1_000
#: So many jobs are let go in one turn when a time has come, for the same reason.
_AT_ONCE = 1_000


def is_met(want: Want, outcome: Outcome) -> bool:
    """Any end but a good one is a failure, also a cancellation."""
    return want is Want.ANY or (want is Want.OK) == (outcome is Outcome.COMPLETED)


def settle(ledger: Ledger, events: Sequence[ev.Event]) -> list[ev.Event]:
    """What these events, so far as they are ends, mean for those that wait for what ends. The
    events are not in the books yet. What is itself over by then is told nothing."""
    ended, rests = _ends(ledger, events)
    found: list[ev.Event] = []
    for event in events:
        if not isinstance(event, ev.Cleaned | ev.Cancelled):
            continue
        for on in _ended_by(ledger, event, ended):
            for dependent in sorted(ledger.dependents.get(on, ())):
                if dependent not in ended and dependent not in rests:
                    awaits = _waiting(ledger, dependent).awaits
                    found.append(_settled(dependent, awaits, on, ended[on], event.at_s))
    return list(dict.fromkeys(found))


def _ends(ledger: Ledger, events: Sequence[ev.Event]) -> tuple[dict[int, Outcome], set[int]]:
    """Jobs, tasks and arrays that end with these events, and how; and the arrays of which all that
    has no record ends. Of the tasks without a record, those that somebody waits for."""
    ended: dict[int, Outcome] = {}
    rests = set()
    for event in events:
        if not isinstance(event, ev.Cleaned | ev.Cancelled):
            continue
        roster = ledger.arrays.get(event.job_id)
        if roster is not None:
            rests.add(event.job_id)
            waited_for = [each for each in ledger.dependents if roster.has_unborn(each)]
            ended.update(dict.fromkeys(waited_for, Outcome.CANCELLED))
        else:
            ended[event.job_id] = ledger.job(event.job_id).outcome or Outcome.CANCELLED
    for array_id in rests | {_waiting(ledger, job_id).array_id for job_id in ended}:
        roster = None if array_id is None else ledger.arrays[array_id]
        if roster is not None and roster.is_over_after(ended, rest=array_id in rests):
            ended[roster.array.id] = roster.outcome_after(ended, rest=array_id in rests)
    return ended, rests


def _ended_by(
    ledger: Ledger, event: ev.Cleaned | ev.Cancelled, ended: Mapping[int, Outcome]
) -> list[int]:
    """Of what has ended, what this event is about: a job, and the array that it was the last of."""
    roster = ledger.arrays.get(event.job_id)
    if roster is not None:
        found = [each for each in ended if roster.has_unborn(each)]
        return [*found, event.job_id] if event.job_id in ended else found
    array_id = ledger.job(event.job_id).array_id
    if array_id is None or array_id not in ended:
        return [event.job_id]
    return [event.job_id, array_id]


def _waiting(ledger: Ledger, job_id: int) -> Job:
    """A job, or what stands for the tasks of an array that have no record of their own."""
    roster = ledger.arrays.get(job_id)
    return ledger.job(job_id) if roster is None else roster.array.common


def settle_ended(
    job_id: int, after: Sequence[Dependency], ended: Mapping[int, Outcome], at_s: float
) -> list[ev.Event]:
    """The same for a job that comes to wait for jobs of which some have ended before."""
    ids = dict.fromkeys(each.job_id for each in after if each.job_id in ended)
    return [_settled(job_id, after, on, ended[on], at_s) for on in ids]


def _settled(
    job_id: int, after: Iterable[Dependency], on: int, outcome: Outcome, at_s: float
) -> ev.DependencySettled:
    met = all(is_met(each.want, outcome) for each in after if each.job_id == on)
    return ev.DependencySettled(job_id=job_id, at_s=at_s, on=on, outcome=outcome, is_met=met)


def begin(ledger: Ledger, at_s: float) -> list[ev.Event]:
    """The jobs whose time has come; if they are many, the first of them."""
    found: list[ev.Event] = []
    for not_before_s, job_id in ledger.begins:
        if not_before_s > at_s or len(found) == _AT_ONCE:
            break
        found.append(ev.BeginReached(job_id=job_id, at_s=at_s))
    return found


def refuse_impossible(
    ledger: Ledger,
    after: Sequence[Dependency],
    ended: Mapping[int, Outcome],
    *,
    user: str,
    job_id: int | None = None,
) -> None:
    """Raise Refused for dependencies of a job of `user` on what does not exist, what too many wait
    for, or what waits for `job_id` itself, a job or an array."""
    for each in after:
        roster = ledger.arrays.get(each.job_id)
        on = ledger.find(each.job_id) if roster is None else roster.array.common
        if on is None and each.job_id not in ended:
            raise Refused("no-such-job", f"there is no job {each.job_id} to wait for")
        waiting = ledger.dependents.get(each.job_id, ())
        most = MOST_DEPENDENTS if on is None or on.spec.user == user else MOST_OF_OTHERS
        if len(waiting) >= most and job_id not in waiting:
            raise Refused(
                "too-many-jobs",
                f"{len(waiting)} jobs wait for job {each.job_id} already, the most that is allowed",
                hint="wait for one of them instead",
            )
        if job_id is not None and _waits_for(ledger, each.job_id, job_id):
            raise Refused(
                "cycle",
                f"job {each.job_id} would wait for job {job_id} and job {job_id} for it: "
                "neither could ever start"
                if each.job_id != job_id
                else f"job {job_id} cannot wait for itself",
            )


def _waits_for(ledger: Ledger, job_id: int, wanted: int) -> bool:
    """Does the job wait for the other, also by way of further ones, or is it the same? An array
    ends with its tasks, so it waits for what they wait for."""
    seen, front = {job_id}, [job_id]
    while front:
        at = front.pop()
        if at == wanted or _is_task(ledger, at, wanted) or _is_task(ledger, wanted, at):
            return True
        roster, job = ledger.arrays.get(at), ledger.find(at)
        new: set[int] = set()
        if roster is not None:
            new = {*roster.live, *(each.job_id for each in roster.array.common.awaits)}
        elif job is not None:
            new = {each.job_id for each in job.awaits}
        front += new - seen
        seen |= new
    return False


def _is_task(ledger: Ledger, job_id: int, array_id: int) -> bool:
    roster = ledger.arrays.get(array_id)
    return roster is not None and roster.array.has_task(job_id)


def may_become_eligible(job: Job) -> bool:
    """Of a job that is not: will it be by the course of things?"""
    return job.state is JobState.PENDING and job.broken is None


def why_never(job: Job, name_of: Callable[[int], str] = str) -> str:
    """Of a job with a broken dependency: what ended how, and the way out. `name_of`: what people
    call a job that may not be in the books any more."""
    broken = job.broken
    assert broken is not None
    wants = [each.want for each in job.spec.after if each.job_id == broken.job_id]
    want = next((want for want in wants if not is_met(want, broken.outcome)), Want.OK)
    wish = "fail" if want is Want.FAIL else "end well"
    return (
        f"job {name_of(broken.job_id)} ended {broken.outcome} and was to {wish}, "
        "so this one never starts; "
        f"drf cancel {job.label}, or drf set --after '' {job.label}"
    )


def awaited(job: Job, ledger: Ledger) -> list[Job]:
    """The live jobs that it waits for, those that may keep it waiting longest first: what never
    starts, what waits, what runs. Of an array, the task that is first in this."""
    order = {JobState.HELD: 1, JobState.PENDING: 2, JobState.SUSPENDED: 3}

    def place(each: Job) -> tuple[bool, int, int]:
        return each.broken is None, order.get(each.state, 4), each.id

    def standing_for(job_id: int) -> Job:
        roster = ledger.arrays.get(job_id)
        if roster is None:
            return ledger.job(job_id)
        return replace(min(_parts(ledger, job_id), key=place), id=job_id, array_index=None)

    ids = dict.fromkeys(each.job_id for each in job.awaits)
    return sorted(map(standing_for, ids), key=place)


def stuck_on(job: Job, ledger: Ledger) -> Job | None:
    """Of a waiting job that never starts, as things stand: the one with the broken dependency, it
    itself or one that it waits for, over any number of others. None: it may still start."""
    left, seen = [job], set[int]()
    while left:
        each = left.pop()
        if each.broken is not None:
            return each
        for on in each.awaits:
            if on.job_id not in seen:
                seen.add(on.job_id)
                left += _parts(ledger, on.job_id)
    return None


def _parts(ledger: Ledger, job_id: int) -> list[Job]:
    """A live job, or the tasks of an array, those that have no record of their own as one."""
    roster = ledger.arrays.get(job_id)
    if roster is None:
        return [ledger.job(job_id)]
    tasks = [ledger.jobs[each] for each in sorted(roster.live)]
    return [*tasks, roster.array.common] if roster.unborn else tasks
