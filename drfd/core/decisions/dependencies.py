"""Dependencies and begin times: which are refused, and which events follow when they are met.

`report_ends` notifies waiting jobs of ends, some in each turn, because an end may concern ten
thousand jobs. The ledger has the ends that are not yet reported to all, so a restart continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from math import inf
from types import MappingProxyType

from msgspec import structs

from drfd.common.errors import Refused
from drfd.core.decisions.outcome import MAX_RETRY_PAUSE_S
from drfd.core.ledger import postponed
from drfd.core.ledger.ledger import Ledger, more_dependencies
from drfd.core.ledger.queue import ArrayState
from drfd.core.model import events as ev
from drfd.core.model.job import Dependency, Job, JobSpec, JobState, Outcome, RequiredOutcome

#: Maximum number of jobs that wait for one job, or for one array and its tasks: for a job of the
#: same user, and of another user. An end costs work for each of them, and no user may block
#: another's.
MOST_DEPENDENTS, MOST_OF_OTHERS = 10_000, 1_000
#: Maximum number of dependencies beyond the first of each job, over all live jobs of one user: each
#: costs time when the awaited job ends.
MOST_MORE = 20_000
#: Maximum number of dependencies beyond the first of each task, over all tasks of live arrays of
#: one user: each takes memory, and the end of the awaited job is an event of each task.
MOST_OF_TASKS = 100_000
#: Number of jobs about which a walk along dependencies ends: it takes some milliseconds for them,
#: and nobody else gets an answer meanwhile. A user may have a chain of 200,000.
_MOST_WALKED = 4_000
#: The name under which drfd cancels a job by a rule that its submitter has chosen.
BY_RULE = "drfd"
#: Number of jobs that become eligible by time in one turn, which delays all other requests.
_AT_ONCE = 64
#: Upper bound of any pause before another attempt, in seconds: that of a retry, or the common and
#: then the job's own pause after postponed launches; each is rounded up.
_MOST_PAUSE_S = max(MAX_RETRY_PAUSE_S, 2 * postponed.MOST_PAUSE_S) + 1


def is_met(want: RequiredOutcome, outcome: Outcome) -> bool:
    """True if the outcome meets the dependency; every outcome but COMPLETED counts as a failure."""
    return want is RequiredOutcome.ANY or (want is RequiredOutcome.OK) == (
        outcome is Outcome.COMPLETED
    )


def settle_ended(
    job_id: int, spec: JobSpec, ended: Mapping[int, Outcome], at_s: float
) -> list[ev.DependencySettled]:
    """Return the event for new dependencies of a job on jobs of which some have ended before."""
    known = {each.job_id: ended[each.job_id] for each in spec.after if each.job_id in ended}
    return [settled(job_id, spec.after, known, at_s)] if known else []


#: The begin of the outcome's text of a job that was cancelled because it could never start.
_BY_RULE_TEXT = "cancelled, because "


def is_cancelled_by_rule(job: Job) -> bool:
    """Return whether a cancelled job was cancelled because it could never start, by nobody."""
    return job.outcome_text.startswith(_BY_RULE_TEXT)


def settled(
    job_id: int, after: Iterable[Dependency], ended: Mapping[int, Outcome], at_s: float
) -> ev.DependencySettled:
    """Return one event for all ends, in this order, of jobs that the job waits for."""
    unmet = {
        each.job_id
        for each in after
        if each.job_id in ended and not is_met(each.want, ended[each.job_id])
    }
    ends = tuple(
        ev.Settled(on=on, outcome=outcome, is_met=on not in unmet) for on, outcome in ended.items()
    )
    return ev.DependencySettled(job_id, at_s, ends=ends)


def begin(ledger: Ledger, at_s: float) -> list[ev.Event]:
    """Return events for jobs whose earliest start time has passed, at most `_AT_ONCE` of them, of
    one user after the other. A pause that would last longer than the longest one counts as over:
    the clock was set back."""
    found = islice(_due(ledger, at_s), _AT_ONCE)
    return [ev.BeginReached(job_id, at_s) for job_id in found]


def is_any_due(ledger: Ledger, at_s: float) -> bool:
    """True if `begin` would return events."""
    return next(_due(ledger, at_s), None) is not None


def _due(ledger: Ledger, at_s: float) -> Iterator[int]:
    for some in zip_longest(*(_due_of(ledger, user, at_s) for user in ledger.begins.all)):
        yield from (job_id for job_id in some if job_id is not None)


def _due_of(ledger: Ledger, user: str, at_s: float) -> Iterator[int]:
    for begin_s, job_id in ledger.begins.all[user]:
        if begin_s > at_s:
            break
        yield job_id
    pauses = ledger.begins.pauses.get(user)
    if pauses and pauses[-1][0] > at_s + _MOST_PAUSE_S:
        for until_s, job_id in pauses:
            if until_s > at_s + _MOST_PAUSE_S:
                yield job_id


def refuse_impossible(
    ledger: Ledger,
    after: Sequence[Dependency],
    ended: Mapping[int, Outcome],
    *,
    user: str,
    job_id: int | None = None,
    tasks: Mapping[tuple[Dependency, ...], int] = MappingProxyType({}),
) -> None:
    """Raise Refused for dependencies on a job that does not exist, that too many wait for, or that
    waits for `job_id` itself (a job or an array), and for any beyond the limits of `user`. `tasks`
    are the numbers of tasks of an array that are to wait, by what they wait for now."""
    _refuse_too_many(ledger, after, user, job_id)
    _refuse_too_many_of_tasks(ledger, after, user, tasks)
    job = None if job_id is None else ledger.jobs.get(job_id)
    owner = job_id if job is None else job.submission_id
    for each in after:
        on = ledger.spec_of(each.job_id)
        if on is None and each.job_id not in ended:
            raise Refused("no-such-job", f"there is no job {each.job_id} to wait for")
        if on is None:
            continue
        waiting = ledger.dependents.get(each.job_id, ())
        most = MOST_DEPENDENTS if on.user == user else MOST_OF_OTHERS
        if len(waiting) >= most and owner not in waiting:
            raise Refused(
                "too-many-jobs",
                f"{len(waiting)} jobs wait for job {each.job_id} already, the most that is allowed",
                hint="wait for one of them instead",
            )
    back = None if job_id is None else _first_back(ledger, after, job_id)
    if back is not None:
        raise Refused(
            "cycle",
            f"job {back} would wait for job {job_id} and job {job_id} for it: "
            "neither could ever start"
            if back != job_id
            else f"job {job_id} cannot wait for itself",
        )


def _refuse_too_many(
    ledger: Ledger, after: Sequence[Dependency], user: str, job_id: int | None
) -> None:
    spec = None if job_id is None else ledger.spec_of(job_id)
    own = more_dependencies(after) - (0 if spec is None else more_dependencies(spec.after))
    total = ledger.job_counts.more_dependencies[user] + own
    if own > 0 and total > MOST_MORE:
        raise Refused(
            "too-many-dependencies",
            f"{user}'s jobs would wait for {total} others beyond the first of each; {MOST_MORE} "
            "are the most",
            hint="wait for an array, or for a job that waits for the others",
        )


def _refuse_too_many_of_tasks(
    ledger: Ledger,
    after: Sequence[Dependency],
    user: str,
    tasks: Mapping[tuple[Dependency, ...], int],
) -> None:
    new = more_dependencies(after)
    more = sum(count * (new - more_dependencies(old)) for old, count in tasks.items())
    total = ledger.job_counts.task_dependencies[user] + more
    if more > 0 and total > MOST_OF_TASKS:
        raise Refused(
            "too-many-dependencies",
            f"the tasks of {user}'s arrays would wait for {total} others beyond the first of each; "
            f"{MOST_OF_TASKS} are the most",
            hint="wait for an array, or for a job that waits for the others",
        )


def _first_back(ledger: Ledger, after: Sequence[Dependency], wanted: int) -> int | None:
    """Return the first of these dependencies that leads to the job `wanted`, directly or through
    others, or None. An array waits for all that its tasks wait for. Raises Refused if there are too
    many others to look at."""
    whole, array = ledger.arrays.get(wanted), ledger.arrays.of_task(wanted)
    back = {wanted} if array is None else {wanted, array.id}
    seen = set[int]()
    for each in after:
        for at, _ in _waited_for(ledger, [each.job_id], seen):
            if at in back or (whole is not None and whole.array.has_task(at)):
                return each.job_id
    if len(seen) > _MOST_WALKED:
        raise Refused(
            "too-many-dependencies",
            f"job {wanted} would wait, through others, for more than {_MOST_WALKED} jobs, too many "
            "to see whether one of them waits for it",
            hint="cancel it and submit it anew: a new job may wait for any other",
        )
    return None


def _waited_for(
    ledger: Ledger, ids: Iterable[int], seen: set[int]
) -> Iterator[tuple[int, Job | None]]:
    """Yield these jobs, tasks and arrays, and all that they wait for, directly or through others,
    but those that were `seen` before: each id with the live job, or one of an array's tasks that
    never starts. Ends when it has seen more than `_MOST_WALKED`."""
    front = [each for each in ids if each not in seen]
    seen.update(front)
    while front and len(seen) <= _MOST_WALKED:
        at = front.pop()
        array_state = ledger.arrays.get(at)
        if array_state is not None:
            yield at, _broken_task(ledger, array_state)
            new = [on for on in array_state.awaits if on not in seen]
        else:
            job = ledger.jobs.get(at)
            yield at, job
            new = [] if job is None else [on.job_id for on in job.awaits if on.job_id not in seen]
        seen.update(new)
        front += new


def _broken_task(ledger: Ledger, array_state: ArrayState) -> Job | None:
    """Return a task of an array that never starts, or None."""
    return next((ledger.jobs[each] for each in array_state.broken), None)


def may_start(ledger: Ledger, job: Job) -> bool:
    """True if a waiting job may start, or go on, without any request."""
    may_become_eligible = job.state is JobState.PENDING and job.broken is None
    return may_become_eligible or ledger.wanted(job) is not None


def awaited(job: Job, ledger: Ledger) -> list[Job]:
    """Return the live jobs that the job waits for: jobs that never start, then waiting, then
    running ones. An array is represented by one that is like the first of its tasks in this order.
    The list is empty if all have ended and the event for that is due."""
    order = {JobState.HELD: 1, JobState.PENDING: 2, JobState.SUSPENDED: 3}

    def place(each: Job) -> tuple[bool, int, int]:
        return each.broken is None, order.get(each.state, 4), each.id

    def representative(job_id: int) -> Job:
        array_state = ledger.arrays.get(job_id)
        if array_state is None:
            return ledger.jobs[job_id]
        state = min(array_state.states, key=lambda each: order.get(each, 4))
        task = _broken_task(ledger, array_state)
        broken = None if task is None else task.broken
        return structs.replace(array_state.array.common, state=state, broken=broken)

    gone = ledger.dependents.ended
    ids = dict.fromkeys(each.job_id for each in job.awaits if each.job_id not in gone)
    return sorted(map(representative, ids), key=place)


def stuck_on(job: Job, ledger: Ledger) -> Job | None:
    """Return the job with the broken dependency because of which a waiting job never starts: itself
    or one that it waits for, directly or through others. None if the job may still start, or waits
    for too many to tell."""
    if job.broken is not None:
        return job
    return _first_broken(ledger, [each.job_id for each in job.awaits], set())


def _first_broken(ledger: Ledger, ids: Iterable[int], seen: set[int]) -> Job | None:
    waited_for = _waited_for(ledger, ids, seen)
    return next(
        (each for _, each in waited_for if each is not None and each.broken is not None), None
    )


def first_stuck(job_id: int, ledger: Ledger) -> Job | None:
    """Return the job, or a task of the array, that never starts, or None. Visits each dependency
    once."""
    array_state = ledger.arrays.get(job_id)
    if array_state is None:
        job = ledger.jobs.get(job_id)
        return None if job is None or stuck_on(job, ledger) is None else job
    if array_state.broken:
        return ledger.jobs[min(array_state.broken)]
    seen = set[int]()
    for on in array_state.awaits:
        if _first_broken(ledger, [on], seen) is not None:
            return ledger.jobs[min(ledger.dependents[on][job_id])]
    return None


#: Number of a job's dependencies that cost as much work as one event.
_DEPENDENCIES = 32


def report_ends(ledger: Ledger, at_s: float, most: float = inf) -> Iterator[ev.Event]:
    """Yield the next events, about `most` of them, by which waiting jobs learn of ends, and are
    cancelled (at the Unix time `at_s`) if they can never start and were submitted so; apply each
    before asking for the next. The users of waiting jobs take turns, so one user's ten thousand,
    whosever end they wait for, do not delay another's."""
    untold, left = ledger.dependents.untold, most
    # A job that is cancelled for the end of another is an end for those that wait for it.
    while (untold or ledger.doomed) and left > 0:
        doomed = dict[str, list[int]]()
        for job_id in sorted(ledger.doomed):
            doomed.setdefault(ledger.jobs[job_id].spec.user, []).append(job_id)
        users = dict.fromkeys((*untold, *doomed))
        turns = deque(_news(ledger, user, doomed.get(user, ()), at_s) for user in users)
        while turns and left > 0:
            event, cost = next(turns[0], (None, 0))
            if event is None:
                turns.popleft()
                continue
            turns.rotate(-1)
            yield event
            left -= cost


def _news(
    ledger: Ledger, user: str, doomed: Iterable[int], at_s: float
) -> Iterator[tuple[ev.JobEvent, int]]:
    """Yield the events of one user's jobs to be cancelled, and of those that wait for ends, in the
    order in which these happened, each with the number of events that cost as much work."""
    for job_id in doomed:
        if job_id in ledger.doomed:
            yield _cancelled(ledger, ledger.jobs[job_id], at_s), 1
    untold = ledger.dependents.untold
    for on in [*untold.get(user, ())]:
        # The tasks of one after the other: each turn begins anew, and there may be many arrays.
        for owner in [*untold.get(user, {}).get(on, ())]:
            for job_id in sorted(ledger.dependents.get(on, {}).get(owner, ())):
                job = ledger.jobs.get(job_id)
                # It may have been told meanwhile.
                if job is not None and any(each.job_id == on for each in job.awaits):
                    yield _settled_for(ledger, job), 1 + len(job.awaits) // _DEPENDENCIES


def _cancelled(ledger: Ledger, job: Job, at_s: float) -> ev.Cancelled:
    """Return the cancellation of a job that can never start."""
    assert job.broken is not None
    ended = f"job {ledger.label_of(job.broken.job_id)} ended {job.broken.outcome}"
    why = f"{_BY_RULE_TEXT}{ended} and it could never start (--if-never cancel)"
    return ev.Cancelled(job.id, at_s, by=BY_RULE, why=why)


def report_all_ends(ledger: Ledger, at_s: float) -> list[ev.Event]:
    """Report all ends in this ledger at once, and return the applied events."""
    applied: list[ev.Event] = []
    for event in report_ends(ledger, at_s):
        ledger.apply(event)
        applied.append(event)
    return applied


def _settled_for(ledger: Ledger, job: Job) -> ev.DependencySettled:
    """Return the event for all ends that the job waits for, in the order in which they happened."""
    ended = ledger.dependents.ended
    ids = {each.job_id for each in job.awaits if each.job_id in ended}
    in_order = sorted(ids, key=lambda on: (ended[on].at_s, on))
    outcomes = {on: ended[on].outcome for on in in_order}
    return settled(job.id, job.awaits, outcomes, ended[in_order[-1]].at_s)
