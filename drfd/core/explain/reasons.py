"""Why a job waits: a code of a closed list, and its evidence as values from the last pass.

The sentences are in `drfd.wording.waits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from drfd.core.amounts.vectors import Room, Vector, fits, lacking_of, plus, short_axes
from drfd.core.decisions.dependencies import awaited, is_met
from drfd.core.decisions.outcome import Attempts, attempts_of
from drfd.core.explain.holders import (
    Holder,
    ReservedFirst,
    ResourceShortage,
    ServedFirst,
    Shortfall,
    find_holders,
    find_limit_holders,
    served_first,
)
from drfd.core.fairness.rules import Rules, limit_ever
from drfd.core.fairness.share_tree import ShareTree, path_up
from drfd.core.fairness.week_quotas import QuotaUse, waits_for_week
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import ArrayState
from drfd.core.ledger.windows import blocking, first_start_s, length_s
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Outcome, Postponed, RequiredOutcome, Whose
from drfd.core.scheduling.backfill import Reservation
from drfd.core.scheduling.certainty import Certainty
from drfd.core.scheduling.plan import Plan


class ReasonCode(StrEnum):
    """All codes that a client may receive."""

    RESOURCES = "RESOURCES"
    FAIR_SHARE = "FAIR_SHARE"
    RESERVATION = "RESERVATION"
    LIMIT = "LIMIT"
    DEPENDENCY = "DEPENDENCY"
    DEPENDENCY_NEVER = "DEPENDENCY_NEVER"
    BEGIN_TIME = "BEGIN_TIME"
    HELD = "HELD"
    DRAINING = "DRAINING"
    NODE_AWAY = "NODE_AWAY"
    MAINTENANCE = "MAINTENANCE"
    QUOTA = "QUOTA"
    EXTERNAL_LOAD = "EXTERNAL_LOAD"
    MACHINE_SHORT = "MACHINE_SHORT"
    STARTING_SOON = "STARTING_SOON"


# -- evidence -------------------------------------------------------------------------------------
#
# A job is named by its label and a resource by its axis; amounts are in the unit of the axis, and
# times are Unix times.


@dataclass(frozen=True, slots=True)
class HeldBy:
    """A user holds the job, or keeps it suspended."""

    by: str
    job: str
    is_suspended: bool = False
    #: Whether somebody else than the owner did, who may not undo it.
    is_admins: bool = False


@dataclass(frozen=True, slots=True)
class Draining:
    """No job is launched until the drain is revoked."""

    #: The administrator, the Unix time since which it lasts, and the reason given, if any.
    by: str
    since_s: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class ClosedNode:
    """A node on which nothing starts now; one without more facts is not configured any more."""

    name: str
    #: Since when its launcher is away (Unix time), or None if it is there.
    away_since_s: float | None = None
    #: The drain of this node, or None if there is none.
    drained: Draining | None = None


@dataclass(frozen=True, slots=True)
class NodesClosed:
    """No job starts now on the only nodes that have as much as the job needs."""

    nodes: tuple[ClosedNode, ...]


@dataclass(frozen=True, slots=True)
class WindowAhead:
    """A maintenance window is open, or the job would run into one if it started now."""

    #: The window's name and reason, begin and end.
    name: str
    text: str
    begin_s: float
    end_s: float
    is_open: bool
    #: The job's time limit in seconds, of a suspended one what is left of it; None for no limit.
    limit_s: int | None
    #: From when on it may start; None if it is longer than all gaps between weekly windows.
    from_s: float | None


@dataclass(frozen=True, slots=True)
class OutOfQuota:
    """The job's leaf, or a pool above it, has used up its quota of this week."""

    use: QuotaUse
    #: Of a job that is only served last: what it is short of.
    shortfalls: tuple[Shortfall, ...] = ()


@dataclass(frozen=True, slots=True)
class LauncherAway:
    """The launcher is not connected."""


@dataclass(frozen=True, slots=True)
class NextPass:
    """Nothing is known to be in the job's way."""


@dataclass(frozen=True, slots=True)
class NeverStarts:
    """A dependency is broken: the job `on` ended otherwise than required."""

    job: str
    on: str
    outcome: Outcome
    required: RequiredOutcome
    #: The jobs that it waits for besides, and how each must end.
    others: tuple[tuple[str, RequiredOutcome], ...] = ()


@dataclass(frozen=True, slots=True)
class HeldAndNever:
    """The job is held too, but a release would not let it start."""

    never: NeverStarts
    held: HeldBy


@dataclass(frozen=True, slots=True)
class DependenciesEnded:
    """All dependencies have ended, and the event for that is due."""


@dataclass(frozen=True, slots=True)
class AwaitedJob:
    """A job or an array that another job waits for."""

    label: str
    user: str
    is_array: bool
    #: The number of an array's live tasks in each state, the latest in a job's life first; of a
    #: job, its state and 1. Empty if it can never start.
    states: tuple[tuple[JobState, int], ...]
    #: The end of a running job at its time limit.
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The job waits for another one, and `others` more."""

    awaited: AwaitedJob
    others: int = 0
    #: Whether it waits for jobs that wait for this one, and not for this one itself.
    is_through_others: bool = False


@dataclass(frozen=True, slots=True)
class StartsFrom:
    """The job has a begin time, or pauses before its next attempt."""

    at_s: float
    attempts: Attempts | None


@dataclass(frozen=True, slots=True)
class BeyondMachine:
    """The job needs more than the machine has since its configuration was changed."""

    job: str
    axis: str
    needed: int
    capacity: int
    #: Whether the disk or resource is gone and the job may still be changed to do without it.
    is_dispensable: bool


@dataclass(frozen=True, slots=True)
class ArrayLimit:
    """The array already runs as many tasks as may run at once, or earlier ones come first."""

    array_id: int
    at_once: int
    #: The number of tasks that run; if it is less, earlier tasks come first and wait themselves.
    running: int


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """As many of the user's jobs of a group run as the job allows, or others of it come first."""

    user: str
    group: str
    at_once: int
    running: int


@dataclass(frozen=True, slots=True)
class BeyondLimit:
    """The job needs more than its leaf, or a pool above it, may ever hold."""

    job: str
    path: str
    axis: str
    needed: int
    limit: int
    #: Whether the job may still be changed to ask for less.
    is_changeable: bool


@dataclass(frozen=True, slots=True)
class LimitAtThisHour:
    """The job needs more than its leaf, or a pool above it, may hold at the present hour."""

    path: str
    axis: str
    needed: int
    limit: int
    #: When the limit rises.
    until_s: float | None
    #: The first time at which all limits let the job start; None if there is none.
    from_s: float | None


@dataclass(frozen=True, slots=True)
class PathLimit:
    """The limit of the job's leaf, or of a pool above it."""

    path: str
    axis: str
    limit: int
    held: int
    needed: int
    #: When the limit rises, if it depends on the hour.
    until_s: float | None = None
    #: Jobs whose part would be enough for the job, and the number of those not named.
    holders: tuple[Holder, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class TooLittleFree:
    """The job waits for resources that jobs hold."""

    shortfalls: tuple[Shortfall, ...]


@dataclass(frozen=True, slots=True)
class HasReservation:
    """What is given back is reserved for the job, which starts by `start_s` if jobs end as
    estimated."""

    shortfalls: tuple[Shortfall, ...]
    start_s: float
    certainty: Certainty = Certainty.ESTIMATED


@dataclass(frozen=True, slots=True)
class ExternalUse:
    """The job would fit but for processes outside drfd."""

    shortage: ResourceShortage
    #: Their use of the resource, and the part of it that is taken from the capacity for jobs.
    used: int
    kept: int
    #: Of a countable resource: the instances that they use, each with the names of their users.
    instances: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: The other node on which they run, as jobs of its scheduler; "" for the controller's own.
    node: str = ""


@dataclass(frozen=True, slots=True)
class KeptFor:
    """The job fits, but would delay a reservation."""

    #: The job with the reservation; the user is None if it has left the ledger.
    job: str
    user: str | None
    needs: tuple[tuple[str, int], ...]
    #: Its expected start, if one is known.
    start_s: float | None
    is_drain: bool
    #: An earlier job with the same demand, which would delay the reservation in place of this one.
    behind: str | None = None
    #: The start of this job's own reservation.
    own_start_s: float | None = None


@dataclass(frozen=True, slots=True)
class MayNotPass:
    """The job fits, but an earlier one of its leaf has waited too long to be passed."""

    job: str
    #: The start of the waiting job's own reservation.
    own_start_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlotsTaken:
    """All slots of the policy "slots" are taken."""

    count: int


@dataclass(frozen=True, slots=True)
class BehindInFifo:
    """An earlier job waits, which the policy "fifo" lets nobody pass."""

    job: str
    user: str


Evidence = (
    HeldBy
    | Draining
    | NodesClosed
    | WindowAhead
    | OutOfQuota
    | LauncherAway
    | NextPass
    | NeverStarts
    | HeldAndNever
    | DependenciesEnded
    | WaitsFor
    | StartsFrom
    | Postponed
    | BeyondMachine
    | ArrayLimit
    | GroupLimit
    | BeyondLimit
    | LimitAtThisHour
    | PathLimit
    | TooLittleFree
    | HasReservation
    | ExternalUse
    | ServedFirst
    | ReservedFirst
    | KeptFor
    | MayNotPass
    | SlotsTaken
    | BehindInFifo
)


@dataclass(frozen=True, slots=True)
class WaitReason:
    code: ReasonCode
    evidence: Evidence


# -- the reason of a job ---------------------------------------------------------------------------


def explain_wait(
    job: Job,
    ledger: Ledger,
    last: Plan | None,
    rules: Rules,
    *,
    can_launch: bool = True,
    name_of: Callable[[int], str] = str,
    used_up: Mapping[str, QuotaUse] = MappingProxyType({}),
) -> WaitReason | None:
    """Return the reason, or None for a job that does not wait.

    `last` is the latest pass, or None before the first one. `can_launch` tells whether the launcher
    is connected. `name_of` returns the label of a job that has left the ledger. `used_up` are the
    nodes that have used up their quota of the week by now.
    """
    if job.state is JobState.HELD and job.broken is not None:
        both = HeldAndNever(_never_starts(job, ledger, name_of), _held(job))
        return WaitReason(ReasonCode.DEPENDENCY_NEVER, both)
    if job.state is JobState.HELD:
        return WaitReason(ReasonCode.HELD, _held(job))
    demand = ledger.wanted(job)
    if job.state is JobState.SUSPENDED and demand is None:
        return WaitReason(ReasonCode.HELD, _held(job))
    if demand is None:
        return _unready(job, ledger, name_of)
    if ledger.drained is not None:
        return WaitReason(ReasonCode.DRAINING, _draining(ledger.drained))
    if not can_launch:
        return WaitReason(ReasonCode.STARTING_SOON, LauncherAway())
    kept_by = None if last is None else last.shortages.delaying(job)
    # A resumption needs no launch, but a pass skips all jobs of a user with a shortage.
    if kept_by is not None and (kept_by.whose is Whose.MACHINE or job.state is JobState.SUSPENDED):
        return WaitReason(ReasonCode.MACHINE_SHORT, kept_by)
    node = job.spec.demand.node
    if node and node not in (each.name for each in rules.axes.nodes):
        return WaitReason(ReasonCode.NODE_AWAY, NodesClosed((ClosedNode(node),)))
    beyond = short_axes(demand, rules.shares.capacity)
    if beyond:
        return WaitReason(ReasonCode.RESOURCES, _beyond_machine(job, demand, beyond[0], rules))
    closed = _nodes_closed(demand, ledger, rules)
    if closed is not None:
        all_drained = all(each.drained is not None for each in closed.nodes)
        code = ReasonCode.DRAINING if all_drained else ReasonCode.NODE_AWAY
        return WaitReason(code, closed)
    beyond_limit = _beyond_limit(job, demand, ledger, rules)
    if beyond_limit is not None:
        return WaitReason(ReasonCode.LIMIT, beyond_limit)
    out_of_quota = waits_for_week(job.spec.leaf, used_up)
    if out_of_quota is not None:
        return WaitReason(ReasonCode.QUOTA, OutOfQuota(out_of_quota))
    if ledger.queues.is_held_back(job):
        ahead = _window_ahead(job, ledger)
        if ahead is not None:
            return WaitReason(ReasonCode.MAINTENANCE, ahead)
        return WaitReason(ReasonCode.STARTING_SOON, NextPass())
    if ledger.queues.is_beyond_array(job):
        return WaitReason(ReasonCode.LIMIT, _array_limit(job, ledger))
    if ledger.queues.is_beyond_group(job, demand):
        return WaitReason(ReasonCode.LIMIT, _group_limit(job, ledger))
    if last is None:
        return WaitReason(ReasonCode.STARTING_SOON, NextPass())
    by_policy = _by_policy(job, ledger, last, rules)
    if by_policy is not None:
        return by_policy
    if kept_by is not None and fits(demand, last.free):
        return WaitReason(ReasonCode.MACHINE_SHORT, kept_by)
    share_tree = last.share_tree or rules.shares.share_tree(ledger.used, ledger.queues)
    leaf = job.spec.leaf
    short = short_axes(demand, last.free)
    if not short:
        limit = _path_limit(job, demand, ledger, share_tree, last, rules)
        if limit is not None:
            return WaitReason(ReasonCode.LIMIT, limit)
        kept_back = _kept_back(job, demand, ledger, last, rules)
        if kept_back is not None:
            return WaitReason(ReasonCode.RESERVATION, kept_back)
        return WaitReason(ReasonCode.STARTING_SOON, NextPass())
    if _is_external(demand, last, ledger):
        return WaitReason(ReasonCode.EXTERNAL_LOAD, _external_use(demand, last, rules, ledger))
    reason = _too_little(job, demand, share_tree, ledger, last, rules)
    behind = [used_up[path] for path in path_up(leaf) if path in share_tree.last & used_up.keys()]
    fact = reason.evidence
    if behind and isinstance(fact, TooLittleFree | ServedFirst | ReservedFirst):
        return WaitReason(ReasonCode.QUOTA, OutOfQuota(behind[0], fact.shortfalls))
    own = last.reservation_of(job.id)
    if own is not None and isinstance(reason.evidence, TooLittleFree | ServedFirst | ReservedFirst):
        shortfalls = reason.evidence.shortfalls
        return WaitReason(
            ReasonCode.RESOURCES, HasReservation(shortfalls, own.start_s, last.certainty_of(own))
        )
    return reason


def _held(job: Job) -> HeldBy:
    by, is_suspended = job.held_by or "", job.state is JobState.SUSPENDED
    return HeldBy(by, job.label, is_suspended, is_admins=by not in ("", job.spec.user))


def _too_little(
    job: Job, demand: Vector, share_tree: ShareTree, ledger: Ledger, last: Plan, rules: Rules
) -> WaitReason:
    """Return the reason of a job for which too little is free."""
    leaf = job.spec.leaf
    # A listing explains many jobs that are alike. A suspended job holds something itself.
    notes = last.notes if job.state is JobState.PENDING else {}
    key = leaf, demand, ledger.allocations.version
    known: WaitReason | None = notes.get(key)
    if known is not None:
        return known
    blame = find_holders(job, demand, ledger, last, rules)
    limit = _path_limit(job, demand, ledger, share_tree, last, rules, blame.given_back)
    is_fair = rules.policy == "drf"
    served = served_first(job, blame, ledger, last, rules) if is_fair else None
    if limit is not None:
        # It would wait even if these jobs gave back what they hold.
        reason = WaitReason(ReasonCode.LIMIT, limit)
    elif isinstance(served, ReservedFirst):
        reason = WaitReason(ReasonCode.RESERVATION, served)
    elif served is not None:
        reason = WaitReason(ReasonCode.FAIR_SHARE, served)
    else:
        reason = WaitReason(ReasonCode.RESOURCES, TooLittleFree(blame.shortfalls))
    notes[key] = reason
    return reason


def _beyond_machine(job: Job, demand: Vector, axis: int, rules: Rules) -> BeyondMachine:
    name = rules.axes.names[axis]
    is_lost = name.partition(":")[2] in rules.axes.lost or name in rules.lost_gres
    is_dispensable = is_lost and job.state is JobState.PENDING
    return BeyondMachine(job.label, name, demand[axis], rules.shares.capacity[axis], is_dispensable)


def _path_limit(
    job: Job,
    demand: Vector,
    ledger: Ledger,
    share_tree: ShareTree,
    last: Plan,
    rules: Rules,
    given_back: Mapping[str, Vector] = MappingProxyType({}),
) -> PathLimit | None:
    """Return the limit of the leaf, or of a pool above it, that delays the job, or None. It must
    delay the job even when the nodes have given back `given_back`."""
    for path in path_up(job.spec.leaf):
        limit = rules.shares.rule(path).limit
        for axis, most in enumerate(limit or ()):
            held = share_tree.held(path)[axis] if path in share_tree.used else 0
            left = held - (given_back[path][axis] if path in given_back else 0)
            if most is not None and demand[axis] and left + demand[axis] > most:
                name = rules.axes.names[axis]
                until_s = _limit_rises_s(ledger, path, name)
                lacking = held + demand[axis] - most
                holders, more = find_limit_holders(job, path, axis, lacking, ledger, last)
                return PathLimit(path, name, most, held, demand[axis], until_s, holders, more)
    return None


def _beyond_limit(
    job: Job, demand: Vector, ledger: Ledger, rules: Rules
) -> BeyondLimit | LimitAtThisHour | None:
    """Return the limit within which the job does not fit even alone, or None."""
    if fits(demand, rules.shares.most(job.spec.leaf)):
        return None
    now_s, hours = ledger.held_back_s, ledger.limit_hours
    ever = limit_ever(rules, hours, job.spec.leaf, demand, now_s)
    if ever is not None:
        is_pending = job.state is JobState.PENDING
        return BeyondLimit(job.label, ever.path, ever.axis, ever.needed, ever.limit, is_pending)
    paths = path_up(job.spec.leaf)
    asked = dict(zip(rules.axes.names, demand, strict=True))
    for path in paths:
        for (name, needed), most in zip(
            asked.items(), rules.shares.rule(path).limit or (), strict=False
        ):
            if most is not None and needed > most:
                from_s = hours.first_fit_s(paths, asked, now_s)
                until_s = _limit_rises_s(ledger, path, name)
                return LimitAtThisHour(path, name, needed, most, until_s, from_s)
    return None


def _draining(stop: ev.Drained) -> Draining:
    return Draining(stop.by, stop.stopped_s, stop.reason)


def _nodes_closed(demand: Vector, ledger: Ledger, rules: Rules) -> NodesClosed | None:
    """Return the closed nodes of which one must be opened for the job to start, or None if another
    node has enough without jobs, or none has."""
    names = ledger.closed_nodes
    room = rules.axes.room(rules.shares.capacity) if names else None
    if not isinstance(room, Room) or fits(demand, room.without(names)):
        return None
    able = [name for name in room.nodes if fits(demand, room.without(room.nodes.keys() - {name}))]
    if not able:
        return None
    return NodesClosed(tuple([_closed_node(name, ledger) for name in able]))


def _closed_node(name: str, ledger: Ledger) -> ClosedNode:
    stop = ledger.node_drains.get(name)
    drained = None if stop is None else _draining(stop)
    return ClosedNode(name, ledger.nodes_away.get(name), drained)


def _limit_rises_s(ledger: Ledger, path: str, axis: str) -> float | None:
    """Return when the node may hold more of the axis, or None if that does not depend on the
    hour."""
    steps = ledger.limit_hours.steps.get(path)
    return None if steps is None else steps.rises_s(axis, ledger.held_back_s)


def _array_limit(job: Job, ledger: Ledger) -> ArrayLimit | GroupLimit:
    """Return what keeps a task out of the queue that is not among its array's next ones."""
    array_state = ledger.arrays[job.array_id or 0]
    array, running = array_state.array, array_state.active
    at_once = array.at_once or 0
    group = job.spec.group
    if running < at_once and group is not None and group.at_once is not None:
        by_group = _group_limit(job, ledger)
        if by_group.running >= by_group.at_once:
            # The array may run more; its next tasks wait for their group.
            return by_group
    return ArrayLimit(array.id, at_once, running)


def _window_ahead(job: Job, ledger: Ledger) -> WindowAhead | None:
    """Return the window for which the job is held back, or None if the windows have changed since
    the latest pass."""
    now_s, length = ledger.held_back_s, length_s(job)
    window = blocking(ledger.windows, length, now_s)
    if window is None:
        return None
    return WindowAhead(
        window.name,
        window.reason,
        window.start_s,
        window.end_s,
        window.start_s <= now_s,
        None if job.spec.time_limit_s is None else length,
        first_start_s(ledger.windows, length, now_s),
    )


def _group_limit(job: Job, ledger: Ledger) -> GroupLimit:
    group = job.spec.group
    assert group is not None
    running = ledger.groups.running((job.spec.user, group.name))
    return GroupLimit(job.spec.user, group.name, group.at_once or 0, running)


def _is_external(demand: Vector, last: Plan, ledger: Ledger) -> bool:
    """Return whether the demand would fit in what is kept free for processes outside drfd too."""
    load = last.external
    if load is None:
        return False
    free = plus(last.free, load.kept_by_node(ledger))
    return fits(demand, free.reopened(ledger.allocated) if isinstance(free, Room) else free)


def _external_use(demand: Vector, last: Plan, rules: Rules, ledger: Ledger) -> ExternalUse:
    load = last.external
    assert load is not None
    axis = short_axes(demand, last.free)[0]
    used, kept = (rules.axes.vector(each)[axis] for each in (load.used, load.kept))
    node = ""
    elsewhere = load.kept_elsewhere(ledger)
    if elsewhere is not None and not fits(demand, plus(last.free, rules.axes.at_home(load.kept))):
        for name, there in sorted(elsewhere.nodes.items()):
            if fits(demand, plus(last.free, rules.axes.on_node(name, there))):
                short = (each for each in short_axes(demand, last.free) if there[each])
                node, axis = name, next(short, axis)
                used = kept = there[axis]
                break
    needed, free = lacking_of(demand, last.free, axis)
    shortage = ResourceShortage(rules.axes.names[axis], needed, max(0, free))
    instances = tuple(
        (each, users)
        for (name, each), users in load.instances
        if rules.axes.axis_of(name) == shortage.axis
    )
    return ExternalUse(shortage, used, kept, instances if not node else (), node)


def _unready(job: Job, ledger: Ledger, name_of: Callable[[int], str]) -> WaitReason | None:
    """Return the condition, other than resources, that the job waits for, or None."""
    if job.state is not JobState.PENDING:
        return None
    if job.broken is not None:
        return WaitReason(ReasonCode.DEPENDENCY_NEVER, _never_starts(job, ledger, name_of))
    if job.awaits:
        first, *others = awaited(job, ledger) or (None,)
        if first is None:
            return WaitReason(ReasonCode.DEPENDENCY, DependenciesEnded())
        return WaitReason(ReasonCode.DEPENDENCY, WaitsFor(awaited_job(first, ledger), len(others)))
    if job.not_before_s is not None and job.postponed is not None:
        return WaitReason(ReasonCode.MACHINE_SHORT, job.postponed)
    if job.not_before_s is not None:
        return WaitReason(ReasonCode.BEGIN_TIME, StartsFrom(job.not_before_s, attempts_of(job)))
    return None


def _never_starts(job: Job, ledger: Ledger, name_of: Callable[[int], str]) -> NeverStarts:
    broken = job.broken
    assert broken is not None
    wants = [each.want for each in job.spec.after if each.job_id == broken.job_id]
    want = next((want for want in wants if not is_met(want, broken.outcome)), RequiredOutcome.OK)
    others = []
    for each in job.awaits:
        if each.job_id != broken.job_id:
            live = ledger.find_common(each.job_id)
            others.append((name_of(each.job_id) if live is None else live.label, each.want))
    return NeverStarts(job.label, name_of(broken.job_id), broken.outcome, want, tuple(others))


def awaited_job(job: Job, ledger: Ledger) -> AwaitedJob:
    """Return the evidence on a job, or on an array, that another job waits for."""
    is_array = job.id == job.array_id
    label, user = job.label, job.spec.user
    if job.broken is not None:
        return AwaitedJob(label, user, is_array, ())
    if is_array:
        return AwaitedJob(label, user, is_array, _task_states(ledger.arrays[job.id], ledger))
    until_s, limit_s = None, job.spec.time_limit_s
    if job.state is JobState.RUNNING and job.started_at is not None and limit_s is not None:
        until_s = job.started_at + job.suspended_s + limit_s
    return AwaitedJob(label, user, is_array, ((job.state, 1),), until_s)


#: The states of live jobs, the latest in a job's life first.
_FURTHEST_FIRST = tuple(state for state in reversed(JobState) if state is not JobState.ENDED)


def _task_states(array_state: ArrayState, ledger: Ledger) -> tuple[tuple[JobState, int], ...]:
    """Count the live tasks in each state."""
    if array_state.states is None:
        # Cached, because a listing explains each job that waits for the array.
        array_state.states = Counter(ledger.jobs[each].state for each in array_state.live)
        if array_state.unmaterialized:
            array_state.states[array_state.array.common.state] += len(array_state.unmaterialized)
    counts = array_state.states
    return tuple([(state, counts[state]) for state in _FURTHEST_FIRST if counts[state]])


def _kept_back(
    job: Job, demand: Vector, ledger: Ledger, last: Plan, rules: Rules
) -> KeptFor | MayNotPass | None:
    """Return the reservation that the job, or an earlier one of its leaf, would delay, or the
    earlier job that it may not pass."""
    own_start_s = _known_start_s(last, last.reservation_of(job.id))
    hurt = last.delayed_reservation(job.id, demand)
    if hurt is not None:
        return _kept_for(hurt, ledger, last, rules, None, own_start_s)
    groups = ledger.queues[job.spec.leaf]
    _, alike = groups[demand].first
    hurt = last.delayed_reservation(alike, demand)
    if alike != job.id and hurt is not None:
        return _kept_for(hurt, ledger, last, rules, ledger.job(alike).label, own_start_s)
    most = rules.shares.most(job.spec.leaf)
    able = ((line.first, asks) for asks, line in groups.items() if fits(asks, most))
    (_, first), _ = min(able, default=((0, job.id), demand))
    if first == last.starvation_guard and first != job.id:
        return MayNotPass(ledger.job(first).label, own_start_s)
    return None


def _known_start_s(last: Plan, reservation: Reservation | None) -> float | None:
    """Return when the reserved job starts, or None if that rests on something of which nothing is
    known."""
    if reservation is None or last.certainty_of(reservation) is Certainty.UNKNOWN:
        return None
    return reservation.start_s


def _kept_for(
    hurt: Reservation,
    ledger: Ledger,
    last: Plan,
    rules: Rules,
    behind: str | None,
    own_start_s: float | None,
) -> KeptFor:
    job = ledger.find(hurt.job_id)
    needs = zip(rules.axes.names, hurt.demand, strict=True)
    return KeptFor(
        str(hurt.job_id) if job is None else job.label,
        None if job is None else job.spec.user,
        tuple([(axis, amount) for axis, amount in needs if amount]),
        _known_start_s(last, hurt),
        hurt.is_drain,
        behind,
        own_start_s,
    )


def _by_policy(job: Job, ledger: Ledger, last: Plan, rules: Rules) -> WaitReason | None:
    """Return the reason under the policies "slots" and "fifo", if they give one."""
    if rules.policy == "slots":
        taken = sum(ledger.slots_taken().values())
        if taken < rules.slot_count:
            return None
        return WaitReason(ReasonCode.RESOURCES, SlotsTaken(rules.slot_count))
    if rules.policy != "fifo":
        return None
    demand = ledger.wanted(job)
    assert demand is not None
    ahead = _first_of(job.spec.leaf, ledger, rules)
    if ahead == job.id:
        short = short_axes(demand, last.free)
        if short and _is_external(demand, last, ledger):
            return WaitReason(ReasonCode.EXTERNAL_LOAD, _external_use(demand, last, rules, ledger))
        if short:
            blame = find_holders(job, demand, ledger, last, rules)
            return WaitReason(ReasonCode.RESOURCES, TooLittleFree(blame.shortfalls))
        heads = (_first_of(leaf, ledger, rules) for leaf in last.order)
        blocked = (
            head
            for head in heads
            if head is not None and short_axes(ledger.demand(ledger.job(head)), last.free)
        )
        ahead = next(blocked, None)
    if ahead is None:
        return None
    other = ledger.job(ahead)
    return WaitReason(ReasonCode.RESERVATION, BehindInFifo(other.label, other.spec.user))


def _first_of(leaf: str, ledger: Ledger, rules: Rules) -> int | None:
    """Return the first waiting job of the leaf that fits the machine and its limits, or None."""
    groups = ledger.queues.get(leaf, {})
    most = rules.shares.most(leaf)
    able = (
        entries.first
        for demand, entries in groups.items()
        if fits(demand, most) and _nodes_closed(demand, ledger, rules) is None
    )
    _, job_id = min(able, default=(0, None))
    return job_id
