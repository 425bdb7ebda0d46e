"""Why a job waits: what the first check finds that finds something, in view of the last pass.

A check is a function that returns the reason (`core.scheduling.waits`), or None. What a pass
decides is read from its plan (`Plan.closed_gate`); what keeps a job out of the queues, or stops all
starts, is read from the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from drfd.core.decisions.dependencies import awaited, is_met
from drfd.core.decisions.outcome import attempts_text
from drfd.core.explain import holders
from drfd.core.explain.holders import Case
from drfd.core.fairness.rules import Rules, limit_ever
from drfd.core.fairness.share_tree import ShareTree, path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.calendar import length_s
from drfd.core.model.job import ROOT, Job, JobState, RequiredOutcome
from drfd.core.model.machine import FreeResources, Vector, minus, short_axes
from drfd.core.scheduling import waits
from drfd.core.scheduling.backfill import NoRoom
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.waits import ResourceShortage, Wait


def explain_wait(
    job: Job,
    ledger: Ledger,
    last: Plan | None,
    rules: Rules,
    *,
    can_launch: bool = True,
    name_of: Callable[[int], str] = str,
    label: str = "",
) -> Wait | None:
    """Return the reason, or None for a job that does not wait. `last` is the latest pass, or None.
    `can_launch` says whether the launcher is connected. `name_of` returns the label of a job that
    has left the ledger. `label` stands in commands for a job that represents tasks of an array."""
    demand = ledger.wanted(job)
    checks = CONDITIONS if demand is None else BEFORE_PASS if last is None else CHECKS
    otherwise = None if demand is None else waits.NextPass()
    known = last or Plan(free=FreeResources(()))
    case = Case(job, demand or (), ledger, known, rules, can_launch, name_of, label or job.label)
    return next((found for check in checks if (found := check(case)) is not None), otherwise)


# -- conditions other than resources ---------------------------------------------------------------


def held(case: Case) -> Wait | None:
    job, by = case.job, case.job.held_by or ""
    is_admins = by not in ("", job.spec.user)
    if job.state is JobState.SUSPENDED:
        since, most_s = job.kept_since, case.rules.max_suspended_s
        ends_s = None if since is None or most_s is None else since.at_s + most_s
        return waits.SuspendedBy(by, case.label, is_admins, ends_s)
    who = waits.HeldBy(by, case.label, is_admins) if job.state is JobState.HELD else None
    if job.broken is None or job.state not in (JobState.HELD, JobState.PENDING):
        return who
    broken, name_of, others = job.broken, case.name_of, []
    wants = [each.want for each in job.spec.after if each.job_id == broken.job_id]
    want = next((want for want in wants if not is_met(want, broken.outcome)), RequiredOutcome.OK)
    for each in job.awaits:
        if each.job_id != broken.job_id:
            is_live = case.ledger.lives(each.job_id)
            label = (case.ledger.label_of if is_live else name_of)(each.job_id)
            others.append((label, each.want))
    on = name_of(broken.job_id)
    return waits.NeverStarts(case.label, on, broken.outcome, want, tuple(others), who)


def unmet(case: Case) -> Wait | None:
    job = case.job
    if job.state is not JobState.PENDING:
        return None
    if job.awaits:
        found = awaited(job, case.ledger)
        if not found:
            return waits.DependenciesEnded()
        return waits.WaitsFor(awaited_job(found[0], case.ledger), len(found) - 1)
    if job.not_before_s is None:
        return None
    if job.postponed is not None:
        return waits.MachineShort(job.postponed)
    return waits.StartsFrom(job.not_before_s, attempts_text(job))


def awaited_job(job: Job, ledger: Ledger) -> waits.AwaitedJob:
    """Return the facts about a job, or an array, that another job waits for."""
    is_array, until_s = job.id == job.array_id, None
    states: tuple[tuple[JobState, int], ...] = ((job.state, 1),)
    if job.broken is not None:
        states = ()
    elif is_array:
        counts = ledger.arrays[job.id].states
        states = tuple([(state, counts[state]) for state in _FURTHEST_FIRST if counts[state]])
    elif job.state is JobState.RUNNING:
        until_s = holders.limit_ends_s(job)
    return waits.AwaitedJob(job.label, job.spec.user, is_array, states, until_s)


#: The states of live jobs, the latest in a job's life first.
_FURTHEST_FIRST = tuple(state for state in reversed(JobState) if state is not JobState.ENDED)


# -- the machine, its nodes, and what is due in time -----------------------------------------------


def drained(case: Case) -> Wait | None:
    stop = case.ledger.drains.get("")
    return None if stop is None else _draining(stop)


def _draining(stop: ev.Drained) -> waits.Draining:
    return waits.Draining(stop.by, stop.stopped_s, stop.reason)


def launcher_away(case: Case) -> Wait | None:
    return None if case.can_launch else waits.LauncherAway()


def machine_short(case: Case) -> Wait | None:
    return case.plan.pause


def unknown_node(case: Case) -> Wait | None:
    node = case.job.spec.demand.node
    if not node or node in (each.name for each in case.rules.axes.nodes):
        return None
    return waits.NodesAway((waits.ClosedNode(node),))


def beyond_machine(case: Case) -> Wait | None:
    job, rules, capacity = case.job, case.rules, case.rules.shares.capacity
    for axis in short_axes(case.demand, capacity):
        name = rules.axes.names[axis]
        is_lost = name.partition(":")[2] in rules.axes.lost or name in rules.lost_gres
        may_do_without = is_lost and job.state is JobState.PENDING
        amounts = case.demand[axis], capacity[axis]
        return waits.BeyondMachine(case.label, name, *amounts, may_do_without)
    return None


def nodes_closed(case: Case) -> Wait | None:
    ledger, names = case.ledger, _closed_nodes(case.demand, case.ledger, case.rules)
    found = []
    for name in names:
        stop = ledger.drains.get(name)
        away_s, told = ledger.nodes_away.get(name), None if stop is None else _draining(stop)
        found.append(waits.ClosedNode(name, away_s, told))
    if not found:
        return None
    all_drained = all(each.drained is not None for each in found)
    return (waits.NodesDrained if all_drained else waits.NodesAway)(tuple(found))


def _closed_nodes(demand: Vector, ledger: Ledger, rules: Rules) -> list[str]:
    """Return the closed nodes of which one must be opened for such a job to start; none if another
    node has enough without jobs, or none has."""
    names, free = ledger.closed_nodes, rules.free
    if not names or free.without(names).fits(demand):
        return []
    return [name for name in free.nodes if free.without(free.nodes.keys() - {name}).fits(demand)]


def window(case: Case) -> Wait | None:
    job, ledger = case.job, case.ledger
    if not ledger.queues.is_held_back(job):
        return None
    now_s, length = ledger.latest_pass_s, length_s(job)
    ahead = ledger.calendar.ahead(length, now_s)
    if ahead is None:
        # The windows have changed since the latest pass.
        return waits.NextPass()
    return waits.WindowAhead(
        ahead.name,
        ahead.reason,
        ahead.start_s,
        ahead.end_s,
        ahead.start_s <= now_s,
        None if job.spec.time_limit_s is None else length,
        ledger.calendar.first_start_s(now_s, length),
    )


# -- limits ----------------------------------------------------------------------------------------


def beyond_limit(case: Case) -> Wait | None:
    """Return the limit within which the job does not fit even alone, or None."""
    job, ledger, rules = case.job, case.ledger, case.rules
    if rules.shares.fits_alone(case.leaf, case.demand):
        return None
    now_s, calendar = ledger.latest_pass_s, ledger.calendar
    ever = limit_ever(rules, calendar, case.leaf, case.demand, now_s)
    if ever is not None:
        return waits.BeyondLimit(case.label, *ever, job.state is JobState.PENDING)
    asked, paths = dict(zip(rules.axes.names, case.demand, strict=True)), path_up(case.leaf)
    for path in paths:
        limits = rules.shares.rule(path).limit or ()
        for (name, needed), most in zip(asked.items(), limits, strict=False):
            if most is not None and needed > most:
                from_s = calendar.first_start_s(now_s, None, paths, asked)
                until_s = _limit_rises_s(ledger, path, name)
                return waits.BeyondLimitNow(path, name, needed, most, until_s, from_s)
    return None


def _limit_rises_s(ledger: Ledger, path: str, axis: str) -> float | None:
    """Return when the node may hold more of the axis, or None if that does not depend on the
    hour."""
    steps = ledger.calendar.steps.get(path)
    return None if steps is None else steps.rises_s(axis, ledger.latest_pass_s)


def count_limit(case: Case) -> Wait | None:
    """Return the limit on how many jobs of its array, or of its group, run at once."""
    job, queues = case.job, case.ledger.queues
    limit = queues.limit_of(job, case.demand)
    if limit is None:
        return None
    (_, of), at_once = limit
    name = f"array {of}" if isinstance(of, int) else f"group {of}"
    return waits.CountLimit(name, at_once, queues.running[limit[0]])


def path_limit(case: Case, tree: ShareTree) -> waits.PathLimit | None:
    """Return the limit of the leaf, or of a pool above it, that is reached in the tree."""
    path, demand = tree.reached_limit(case.leaf, case.demand), case.demand
    if path is None:
        return None
    most = tree.nodes[path].limit or ()
    axis = short_axes(demand, minus(most, tree.held(path)))[0]
    held, name = case.share_tree.held(path)[axis], case.rules.axes.names[axis]
    lacking, until_s = held + demand[axis] - most[axis], _limit_rises_s(case.ledger, path, name)
    who = holders.find_limit_holders(case, path, axis, lacking)
    return waits.PathLimit(path, name, most[axis], held, demand[axis], until_s, *who)


# -- the gates of the pass -------------------------------------------------------------------------


def closed_in_pass(case: Case) -> Wait | None:
    """Return the gate that the pass has left closed for the job, or for an earlier one of its
    leaf with the same demand."""
    job, plan, tree = case.job, case.plan, case.share_tree
    for job_id in (job.id, case.ledger.queues[case.leaf][case.demand].first[1]):
        match plan.closed_gate(case.demand, job_id, case.leaf, tree):
            case None:
                continue
            case Wait() as reason:
                return reason
            case NoRoom(path):
                return _without_room(case, path)
            case closed:
                return closed.reason(job, job_id, plan, case.ledger, case.rules)
    return None


#: How many programs outside drfd are named at most, and the least part (1/n) that each uses.
_TOLD_USERS, _TOLD_PART = 3, 20


def external_use(case: Case) -> Wait | None:
    """Return the use by processes outside drfd, if the job would fit in what is kept for them."""
    demand, plan, rules, ledger = case.demand, case.plan, case.rules, case.ledger
    load = plan.external
    if load is None:
        return None
    free = plan.free + rules.axes.at_home(load.kept)
    if not free.reopened(ledger.allocated).fits(demand):
        return None
    axis = case.short[0]
    used, kept = (rules.axes.vector(each)[axis] for each in (load.used, load.kept))
    needed, there_free = plan.free.shortage(demand, axis)
    shortage = ResourceShortage(rules.axes.names[axis], needed, max(0, there_free))
    instances = tuple(
        (each, users)
        for (name, each), users in load.instances
        if rules.axes.axis_of(name) == shortage.axis
    )
    parts = [(user, program, rules.axes.vector(use)[axis]) for user, program, use in load.users]
    least = max(1, used // _TOLD_PART)
    users = sorted((part for part in parts if part[2] >= least), key=lambda part: -part[2])
    return waits.ExternalUse(shortage, used, kept, instances, users=tuple(users[:_TOLD_USERS]))


def _without_room(case: Case, path: str) -> Wait | None:
    """Return what takes the room at the node that the job lacks."""
    job, plan, found = case.job, case.plan, case.plan.told_without_room
    key = case.leaf, case.demand, case.ledger.allocated
    # A suspended job holds something itself.
    if job.state is not JobState.PENDING:
        found = {}
    if key not in found:
        if path != ROOT:
            found[key] = path_limit(case, case.share_tree)
        else:
            found[key] = external_use(case) or _too_little(case)
    reason = found[key]
    if not isinstance(reason, waits.TooLittleFree):
        return reason
    own = plan.reservation_of(job.id)
    if own is not None:
        return waits.HasReservation(reason.shortfalls, own.start_s, plan.certainty_of(own))
    debt, allowance_s = plan.debts.get(case.leaf), case.rules.reserving.allowance_s
    if debt is not None and debt.beyond(allowance_s):
        return waits.OwesIdle(reason.shortfalls, case.leaf, debt.repaid_s(allowance_s))
    return reason


def _too_little(case: Case) -> Wait:
    blame = holders.find_holders(case)
    tree = holders.after(case, blame)
    # It would wait for this even if these jobs gave back what they hold.
    found: Wait | None = path_limit(case, tree)
    if found is None and case.rules.policy == "drf":
        found = holders.served_first(case, blame, tree)
    return found or waits.TooLittleFree(blame.shortfalls)


#: The checks of a job that waits for a condition, of other jobs before their first pass, and of
#: other jobs. The first that finds something has the reason.
CONDITIONS = (held, unmet)
BEFORE_PASS = (
    *(drained, launcher_away, machine_short, unknown_node, beyond_machine, nodes_closed),
    *(beyond_limit, window, count_limit),
)
CHECKS = (*BEFORE_PASS, closed_in_pass)


# -- why nobody knows when a job starts ------------------------------------------------------------

#: The longest chain of jobs that wait for each other that is followed.
_LONGEST = 32


def unknown_start(
    reason: Wait, ledger: Ledger, reason_of: Callable[[Job], Wait | None]
) -> str | None:
    """Return why nobody can say when a job starts that waits for this reason, if it is not for the
    end of jobs before it: that of the last one of the jobs that must go on before it. `reason_of`
    returns the reason of a live job."""
    name, seen = "it", set[str]()
    while len(seen) < _LONGEST:
        label, job = next(_before(reason, ledger), (None, None))
        further = None if job is None else reason_of(job)
        if label is None or further is None or label in seen:
            break
        seen.add(label)
        reason, name = further, f"job {label}"
    return reason.unknown(name)


def _before(reason: Wait, ledger: Ledger) -> Iterator[tuple[str, Job]]:
    """Yield the jobs that wait themselves and that the reason names as those before a job."""
    label = reason.ahead.format(reason)
    job = _find(label, ledger) if label else None
    if job is not None:
        yield label, job
    shortfalls = reason.shortfalls if isinstance(reason, waits.TooLittleFree) else ()
    for holder in [each for one in shortfalls for each in one.holders]:
        job = _find(holder.job, ledger)
        # Only this one gives nothing back until somebody acts.
        if job is not None and job.state is JobState.SUSPENDED and job.held_by is not None:
            yield holder.job, job


def _find(label: str, ledger: Ledger) -> Job | None:
    """Return the live job or task with this label, or for an array one of its tasks."""
    first, _, index = label.partition("_")
    array_state = ledger.arrays.get(int(first))
    if array_state is None:
        return ledger.jobs.get(int(first))
    if index:
        job_id = array_state.array.id_of(int(index))
    else:
        return next(ledger.tasks(array_state.array))
    return None if job_id is None else ledger.jobs.get(job_id)
