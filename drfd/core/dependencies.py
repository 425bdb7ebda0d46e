"""Jobs that wait for others to end, and for their time: what is granted, and what follows.

An end costs as much as it has dependents, a moment as much as the jobs that it lets go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


def settle(ledger: Ledger, event: ev.Event) -> list[ev.Event]:
    """What the event, if it is a job's end, means for those that wait for this job."""
    if not isinstance(event, ev.Cleaned | ev.Cancelled):
        return []
    job = ledger.jobs[event.job_id]
    outcome = job.outcome or Outcome.CANCELLED
    return [
        _settled(dependent, ledger.jobs[dependent].awaits, job.id, outcome, event.at_s)
        for dependent in sorted(ledger.dependents.get(job.id, ()))
    ]


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
    """Raise Refused for dependencies of a job of `user` on jobs that do not exist, that too many
    wait for, or that wait for `job_id`."""
    for each in after:
        on = ledger.jobs.get(each.job_id)
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
    """Does the job wait for the other, also by way of further ones, or is it the same?"""
    seen, front = {job_id}, [job_id]
    while front:
        at = front.pop()
        if at == wanted:
            return True
        job = ledger.jobs.get(at)
        new = {each.job_id for each in job.awaits} - seen if job is not None else set()
        seen |= new
        front += new
    return False


def may_become_eligible(job: Job) -> bool:
    """Of a job that is not: will it be by the course of things?"""
    return job.state is JobState.PENDING and job.broken is None


def why_never(job: Job) -> str:
    """Of a job with a broken dependency: what ended how, and the way out."""
    broken = job.broken
    assert broken is not None
    wants = [each.want for each in job.spec.after if each.job_id == broken.job_id]
    want = next((want for want in wants if not is_met(want, broken.outcome)), Want.OK)
    wish = "fail" if want is Want.FAIL else "end well"
    return (
        f"job {broken.job_id} ended {broken.outcome} and was to {wish}, so this one never starts; "
        f"drf cancel {job.id}, or drf set --after '' {job.id}"
    )


def awaited(job: Job, ledger: Ledger) -> list[Job]:
    """The live jobs that it waits for, those that may keep it waiting longest first: what never
    starts, what waits, what runs."""
    order = {JobState.HELD: 1, JobState.PENDING: 2, JobState.SUSPENDED: 3}
    jobs = [ledger.jobs[each] for each in dict.fromkeys(each.job_id for each in job.awaits)]
    return sorted(jobs, key=lambda each: (each.broken is None, order.get(each.state, 4), each.id))
