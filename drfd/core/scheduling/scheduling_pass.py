"""One scheduling pass: which waiting jobs start now, in view of everything in the ledger.

`schedule` is the only way into a pass: the daemon, the simulator and the forecast call it. It hands
what is free, and the index of waiting jobs, to the configured policy (`POLICIES`). While launching
is stopped no policy is asked; of leaves that wait for the end of a shortage or for the next week's
quota none learns. A pass changes no table; `start_events` turns its plan into events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from drfd.core.amounts.instances import Instance, Instances, choose_instances, each_instance
from drfd.core.amounts.resources import NOTHING
from drfd.core.amounts.vectors import Room, Vector, minus, node_of
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.week_quotas import QuotaUse, leaves_out_of_quota
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.postponed import MACHINE
from drfd.core.model import events as ev
from drfd.core.model.job import JobState
from drfd.core.model.stimuli import Now
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.kept_free import ExternalLoad, kept
from drfd.core.scheduling.plan import PassInput, PassLimits, Plan, PolicyOptions
from drfd.core.scheduling.policies import POLICIES
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex


def schedule(
    ledger: Ledger,
    rules: Rules,
    wait_index: WaitIndex,
    pass_context: PassContext,
    limits: PassLimits = PassLimits(),  # noqa: B008  # immutable
    used_up: Mapping[str, QuotaUse] = MappingProxyType({}),
) -> Plan:
    """Return the plan of one pass. `wait_index` (see `build_wait_index`) is kept from pass to pass
    and must have been told of every change since the last one. `used_up` are the nodes that have
    used up their quota of the week."""
    free = free_of(ledger, rules, pass_context.external)
    shortages = ledger.shortages.pausing(pass_context.now_s)
    if ledger.draining or MACHINE in shortages:
        # Reservations are renewed when launches go on.
        before = pass_context.before
        return Plan(admitted=[], free=free, order=[], reservations=before, shortages=shortages)
    shut = shortages.blocked_leaves(ledger.queues) if shortages else frozenset[str]()
    shut |= leaves_out_of_quota(ledger.queues, used_up)
    wait_index.shut(shut)
    wait_index.put_last(frozenset(used_up))
    if shut:
        before = tuple([each for each in pass_context.before if each.leaf not in shut])
        pass_context = replace(pass_context, before=before)
    options = PolicyOptions()
    if rules.policy == "slots":
        options = PolicyOptions(slots=rules.slot_count, running=ledger.slots_taken())
    pass_input = PassInput(
        wait_index=wait_index,
        free=free,
        pass_context=pass_context,
        limits=limits,
        options=options,
    )
    plan = POLICIES[rules.policy](pass_input)
    external = pass_context.external
    return replace(plan, external=external, shortages=shortages)


def start_events(ledger: Ledger, plan: Plan, now: Now) -> Iterator[ev.Admitted | ev.Resumed]:
    """Yield, for each job that the plan admits, the event by which it starts or is resumed. It
    makes no difference whether an event is applied before the next is asked for."""
    chosen: set[Instance] = set()
    if plan.external is not None:
        chosen.update(each for each, _ in plan.external.instances)
    for job_id in plan.admitted:
        job = ledger.job(job_id)
        if job.state is JobState.SUSPENDED:
            yield ev.Resumed(job_id=job_id, at_s=now.at_s, mono_s=now.mono_s)
            continue
        instances: Instances = ()
        axes, node = ledger.axes, node_of(plan.held.get(job_id))
        if job.spec.demand.gres and axes.is_home(node):
            taken = {*ledger.taken, *chosen}
            whole, shared = axes.split_gres(job.spec.demand.gres, plan.held.get(job_id))
            instances = choose_instances(whole, axes.instances, taken, axes.places)
            instances = tuple(sorted((*instances, *shared)))
            chosen.update(each_instance(instances))
        yield ev.Admitted(
            job_id=job_id,
            at_s=now.at_s,
            attempt=job.attempt + 1,
            instances=instances,
            node=node,
            why=plan.start_reason(job_id),
        )


def build_wait_index(
    ledger: Ledger, rules: Rules, past_usage: Mapping[str, float], recent: Mapping[str, Vector]
) -> WaitIndex:
    """Return an index of all waiting jobs, for any number of passes with these rules. It must be
    told of every leaf that an event changes."""
    return WaitIndex(
        LeafTables(
            queues=ledger.queues,
            gates=ledger.queues,
            used=ledger.used,
            shares=rules.shares,
            past_usage=past_usage,
            recent=recent,
        )
    )


def free_of(ledger: Ledger, rules: Rules, external: ExternalLoad | None) -> Vector:
    """Return the free resources; an amount is negative where more is held than there is."""
    free = minus(rules.room, ledger.allocated)
    if isinstance(free, Room):
        free = free.without(ledger.closed_nodes)
    taken = kept(ledger, rules, external)
    if external is not None:
        return replace(external, kept=taken).taken_from(free, ledger)
    return free if taken is NOTHING else minus(free, rules.axes.at_home(taken))
