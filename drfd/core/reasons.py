"""Why a job waits: a code of a closed list and its evidence, read off the pass that was taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from drfd.core.admission import Plan
from drfd.core.job import Job, JobState
from drfd.core.ledger import Ledger
from drfd.core.resources import short_axes
from drfd.core.rules import Rules
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


#: Turns Unix time into a clock time for people; the core has no time zone.
ShowClock = Callable[[float], str]


def explain_wait(
    job: Job, ledger: Ledger, last: Plan | None, rules: Rules, show_clock: ShowClock
) -> Reason | None:
    """The reason, or None for a job that does not wait. `last` is the latest pass, if any yet."""
    if job.state is JobState.HELD:
        return Reason(ReasonCode.HELD, f"held by {job.held_by}; drf release {job.id} lets it go")
    if job.state is not JobState.PENDING:
        return None
    if ledger.draining:
        return Reason(ReasonCode.DRAINING, "launching is stopped (drf drain) until drf undrain")
    demand = ledger.demand(job)
    beyond = short_axes(demand, rules.room)
    if beyond:
        name = rules.axes.names[beyond[0]]
        return Reason(
            ReasonCode.RESOURCES,
            f"needs {show_need(name, demand[beyond[0]])}, and the machine gives only "
            f"{show_amount(name, rules.room[beyond[0]])} since its configuration was changed",
        )
    if last is None or not short_axes(demand, last.free):
        return Reason(ReasonCode.STARTING_SOON, "starts with the next pass")
    axis = short_axes(demand, last.free)[0]
    shortage = _shortage(rules, axis, demand[axis], last)
    ahead = _further_below(job.spec.pool, last, ledger, rules)
    if ahead:
        return Reason(
            ReasonCode.FAIR_SHARE, f"{shortage}; {_share_evidence(job, ahead, ledger, rules)}"
        )
    holder = _largest_holder(ledger, axis, show_clock)
    return Reason(ReasonCode.RESOURCES, f"{shortage}{holder}")


def _shortage(rules: Rules, axis: int, needed: int, last: Plan) -> str:
    name = rules.axes.names[axis]
    return f"needs {show_need(name, needed)}, {show_amount(name, max(0, last.free[axis]))} free"


def _largest_holder(ledger: Ledger, axis: int, show_clock: ShowClock) -> str:
    holders = [job for job in ledger.holders() if ledger.demand(job)[axis]]
    if not holders:
        return ""
    most = max(holders, key=lambda job: (ledger.demand(job)[axis], -job.id))
    amount = show_amount(ledger.axes.names[axis], ledger.demand(most)[axis])
    until = ""
    if most.started_at is not None and most.spec.time_limit_s is not None:
        until = f" until {show_clock(most.started_at + most.spec.time_limit_s)} at the latest"
    return f"; job {most.id} ({most.spec.user}) holds {amount}{until}"


def _further_below(leaf: str, last: Plan, ledger: Ledger, rules: Rules) -> list[str]:
    """The waiting leaves that are served before `leaf` because they have less of what they are
    entitled to, and not only because they asked first."""
    if leaf not in last.order:
        return []

    def key(other: str) -> int:
        return rules.shares.order_key(other, ledger.used.get(other, ledger.nothing))

    before = last.order[: last.order.index(leaf)]
    return [other for other in before if key(other) < key(leaf)]


def _share_evidence(job: Job, ahead: list[str], ledger: Ledger, rules: Rules) -> str:
    active = ledger.active_leaves()

    def level(leaf: str) -> str:
        used = ledger.used.get(leaf, ledger.nothing)
        return f"{float(rules.shares.satisfaction(leaf, used, active)):.0%}"

    names = ", ".join(f"{leaf} at {level(leaf)}" for leaf in ahead[:3])
    more = f" and {len(ahead) - 3} more" if len(ahead) > 3 else ""
    verb = "is" if len(ahead) == 1 else "are"
    return (
        f"{names}{more} of the entitlement {verb} served first; "
        f"{job.spec.pool} is at {level(job.spec.pool)}"
    )
