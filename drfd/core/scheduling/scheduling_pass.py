"""One scheduling pass: which waiting jobs start now, in view of everything in the ledger.

`schedule` is the only way into a pass: the daemon, the simulator and the forecast call it. It hands
what is free, and the index of waiting jobs, to the configured policy (`POLICIES`), and then applies
what no policy knows: shortages, draining, and the limits on launches and of users' groups. Of
leaves that wait for the next week's quota no policy learns. A pass changes no table; `start_events`
turns its plan into events.
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
from drfd.core.model.job import GroupKey, JobState
from drfd.core.model.stimuli import Now
from drfd.core.scheduling.backfill import PassContext, Reservation
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
    if ledger.groups:
        plan = _within_groups(plan, ledger, free, pass_context.before)
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


def _with_fewer(
    plan: Plan,
    admitted: list[int],
    free: Vector,
    ledger: Ledger,
    before: tuple[Reservation, ...],
) -> Plan:
    """Return the plan with only some of its jobs admitted. The plan's reservations were computed
    for a machine on which all of them run, so those of the last pass stay until the next one."""
    kept = frozenset(admitted)
    left = tuple(each for each in before if each.job_id not in kept)
    share_tree = plan.share_tree
    if share_tree is not None:
        out = [ledger.job(job_id) for job_id in plan.admitted if job_id not in kept]
        wanted = ((job.spec.leaf, ledger.wanted(job)) for job in out)
        # Otherwise a wait would be explained by what jobs hold that have not started.
        share_tree = share_tree.without((leaf, each) for leaf, each in wanted if each is not None)
    return replace(plan, admitted=admitted, free=free, reservations=left, share_tree=share_tree)


def _free_beside(admitted: list[int], plan: Plan, free: Vector) -> Vector:
    """Return what is left of the free resources when these of the plan's jobs have started."""
    for job_id in admitted:
        free = minus(free, plan.held[job_id])
    return free


def _within_groups(
    plan: Plan, ledger: Ledger, free: Vector, before: tuple[Reservation, ...]
) -> Plan:
    """Return the plan without jobs for which, as they say, too many jobs of their group would run.
    No policy knows this: the queues offer as many jobs of each kind as may start."""
    running: dict[GroupKey, int] = {}
    admitted: list[int] = []
    for job_id in plan.admitted:
        job = ledger.job(job_id)
        group, key = job.spec.group, job.spec.group_key
        if group is not None and key is not None and job.state is JobState.PENDING:
            count = running.get(key)
            count = ledger.groups.running(key) if count is None else count
            if group.at_once is not None and count >= group.at_once:
                continue
            running[key] = count + 1
        admitted.append(job_id)
    if len(admitted) == len(plan.admitted):
        return plan
    # Other jobs may start at once in the room of the jobs left out.
    left = _free_beside(admitted, plan, free)
    return replace(_with_fewer(plan, admitted, left, ledger, before), is_cut=True)
