"""Why a job waits: a code of a closed list and its evidence, read off the pass that was taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from drfd.core.dependencies import awaited, why_never
from drfd.core.evidence import (
    ShowClock,
    external_text,
    holder_text,
    is_external,
    kept_text,
    limit_text,
    progress_text,
    share_text,
    shortage_text,
)
from drfd.core.job import Job, JobState
from drfd.core.ledger import Ledger
from drfd.core.plan import Plan
from drfd.core.resources import Vector, fits, short_axes
from drfd.core.retry import attempts_text
from drfd.core.rules import Rules
from drfd.core.serving import Ahead
from drfd.units import show_amount, show_need


class ReasonCode(StrEnum):
    """Every code that a client may meet."""

    RESOURCES = "RESOURCES"
    FAIR_SHARE = "FAIR_SHARE"
    RESERVATION = "RESERVATION"
    LIMIT = "LIMIT"
    DEPENDENCY = "DEPENDENCY"
    DEPENDENCY_NEVER = "DEPENDENCY_NEVER"
    BEGIN_TIME = "BEGIN_TIME"
    HELD = "HELD"
    DRAINING = "DRAINING"
    EXTERNAL_LOAD = "EXTERNAL_LOAD"
    STARTING_SOON = "STARTING_SOON"


@dataclass(frozen=True, slots=True)
class Reason:
    code: ReasonCode
    text: str


def explain_wait(
    job: Job,
    ledger: Ledger,
    last: Plan | None,
    rules: Rules,
    show_clock: ShowClock,
    *,
    can_launch: bool = True,
    name_of: Callable[[int], str] = str,
) -> Reason | None:
    """The reason, or None for a job that does not wait. `last` is the latest pass, if any yet.
    `can_launch`: there is somebody to start it. `name_of`: what people call a job that has
    ended."""
    if job.state is JobState.HELD:
        return Reason(ReasonCode.HELD, f"held by {job.held_by}; drf release {job.label} lets it go")
    demand = ledger.wanted(job)
    if job.state is JobState.SUSPENDED and demand is None:
        return Reason(
            ReasonCode.HELD, f"suspended by {job.held_by}; drf resume {job.label} lets it go on"
        )
    if demand is None:
        return _unready(job, ledger, show_clock, name_of)
    if ledger.draining:
        return Reason(ReasonCode.DRAINING, "launching is stopped (drf drain) until drf undrain")
    if not can_launch:
        return Reason(
            ReasonCode.STARTING_SOON, "the launcher is away; jobs start again when it is back"
        )
    beyond = short_axes(demand, rules.room)
    if beyond:
        name = rules.axes.names[beyond[0]]
        return Reason(
            ReasonCode.RESOURCES,
            f"needs {show_need(name, demand[beyond[0]])}, and the machine gives only "
            f"{show_amount(name, rules.room[beyond[0]])} since its configuration was changed"
            f"{_way_without(job, name, rules)}",
        )
    if ledger.queues.is_shut_out(job):
        most = ledger.arrays[job.array_id or 0].array.at_once
        return Reason(
            ReasonCode.LIMIT, f"array {job.array_id} runs {most} tasks at once at the most"
        )
    if last is None:
        return Reason(ReasonCode.STARTING_SOON, "starts with the next pass")
    by_policy = _by_policy(job, ledger, last, rules, show_clock)
    if by_policy is not None:
        return by_policy
    standing = last.standing or rules.shares.standing(ledger.used, ledger.queues)
    leaf = job.spec.leaf
    short = short_axes(demand, last.free)
    own = last.reservation_of(job.id)
    if not short:
        held_back = limit_text(leaf, demand, standing, rules)
        if held_back is not None:
            return Reason(ReasonCode.LIMIT, held_back)
        kept_back = _kept_back(job, demand, ledger, last, rules, show_clock)
        if kept_back is not None:
            until = "" if own is None else f"; it starts by {show_clock(own.start_s)} itself"
            return Reason(ReasonCode.RESERVATION, f"it fits, but {kept_back}{until}")
        return Reason(ReasonCode.STARTING_SOON, "starts with the next pass")
    if is_external(demand, last, rules):
        return Reason(ReasonCode.EXTERNAL_LOAD, external_text(demand, last, rules))
    axis = short[0]
    shortage = shortage_text(rules, axis, demand[axis], last)
    if own is not None:
        return Reason(
            ReasonCode.RESOURCES,
            f"{shortage}; what others give back is kept for it, "
            f"and it starts by {show_clock(own.start_s)} if they end as expected",
        )
    ahead = last.queueing.ahead_of(leaf) if last.queueing is not None else Ahead()
    if ahead.count:
        return Reason(ReasonCode.FAIR_SHARE, f"{shortage}; {share_text(leaf, ahead, standing)}")
    holder = holder_text(ledger, axis, show_clock)
    return Reason(ReasonCode.RESOURCES, f"{shortage}{holder}")


def _way_without(job: Job, axis: str, rules: Rules) -> str:
    """What the owner of a waiting job can do where a disk or a countable is gone altogether."""
    if job.state is not JobState.PENDING:
        return ""
    disk = axis.partition(":")[2]
    if disk in rules.axes.lost:
        return f"; drf set --io {disk}=0 {job.label} lets it do without"
    if axis in rules.lost_gres:
        return f"; drf set --gres {axis}=0 {job.label} lets it do without"
    return ""


def _unready(
    job: Job, ledger: Ledger, show_clock: ShowClock, name_of: Callable[[int], str]
) -> Reason | None:
    """What keeps it from starting whatever room there is; None: it does not wait."""
    if job.state is not JobState.PENDING:
        return None
    if job.broken is not None:
        return Reason(ReasonCode.DEPENDENCY_NEVER, why_never(job, name_of))
    if job.awaits:
        first, *others = awaited(job, ledger)
        more = f", and {len(others)} more" if others else ""
        return Reason(
            ReasonCode.DEPENDENCY, f"waits for {progress_text(first, ledger, show_clock)}{more}"
        )
    if job.not_before_s is not None:
        attempts = attempts_text(job)
        about = f"{attempts}; it" if attempts else "it"
        return Reason(
            ReasonCode.BEGIN_TIME, f"{about} may start from {show_clock(job.not_before_s)} on"
        )
    return None


def _kept_back(
    job: Job, demand: Vector, ledger: Ledger, last: Plan, rules: Rules, show_clock: ShowClock
) -> str | None:
    """The reservation that the job, or one of its own leaf that it stands behind, would hurt."""
    hurt = last.hurt_by(job.id, demand)
    if hurt is not None:
        late = "" if hurt.is_drain else "; this job would not have ended by then"
        return f"{kept_text(hurt, ledger, rules, show_clock)}{late}"
    groups = ledger.queues[job.spec.leaf].groups
    _, alike = groups[demand].first
    hurt = last.hurt_by(alike, demand)
    if alike != job.id and hurt is not None:
        kept = kept_text(hurt, ledger, rules, show_clock)
        return f"job {ledger.job(alike).label}, which needs the same, comes first; {kept}"
    most = rules.shares.standing({}, [job.spec.leaf]).most(job.spec.leaf)
    able = ((line.first, asks) for asks, line in groups.items() if fits(asks, most))
    (_, first), _ = min(able, default=((0, job.id), demand))
    if first == last.eldest and first != job.id:
        who = ledger.job(first).label
        return f"job {who} comes first: it has waited so long that no later job may pass it"
    return None


def _by_policy(
    job: Job, ledger: Ledger, last: Plan, rules: Rules, show_clock: ShowClock
) -> Reason | None:
    """What makes it wait under another policy than the usual one."""
    if rules.policy == "slots":
        taken = sum(ledger.slots_taken().values())
        if taken < rules.slot_count:
            return None
        return Reason(
            ReasonCode.RESOURCES, f"all {rules.slot_count} slots are taken (policy slots)"
        )
    if rules.policy != "fifo":
        return None
    demand = ledger.wanted(job)
    assert demand is not None
    ahead = _first_of(job.spec.leaf, ledger, rules)
    if ahead == job.id:
        short = short_axes(demand, last.free)
        if short and is_external(demand, last, rules):
            return Reason(ReasonCode.EXTERNAL_LOAD, external_text(demand, last, rules))
        if short:
            shortage = shortage_text(rules, short[0], demand[short[0]], last)
            holder = holder_text(ledger, short[0], show_clock)
            return Reason(ReasonCode.RESOURCES, f"{shortage}{holder}")
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
    return Reason(
        ReasonCode.RESERVATION,
        f"job {other.label} ({other.spec.user}) comes first and waits itself; "
        "with the policy fifo nobody passes it",
    )


def _first_of(leaf: str, ledger: Ledger, rules: Rules) -> int | None:
    """The first waiting job of the leaf that the machine could ever run."""
    groups = ledger.queues[leaf].groups if leaf in ledger.queues else {}
    able = (entries.first for demand, entries in groups.items() if fits(demand, rules.room))
    _, job_id = min(able, default=(0, None))
    return job_id
