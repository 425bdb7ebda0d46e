"""Requests of users: who may make them, which are refused, and how `drf set` changes a job.

`core.decisions.stimuli` has the requests themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from drfd.common.errors import NotPermitted, Refused
from drfd.common.indices import Span, count_of
from drfd.common.units import (
    Most,
    show_amount,
    show_cores,
    show_duration,
    show_need,
    show_range,
    show_size,
)
from drfd.core.amounts.resources import CORE_MILLI, NOTHING, Axes, Resources, with_gres
from drfd.core.amounts.vectors import Vector, fits, short_axes
from drfd.core.fairness.rules import Rules, limit_ever
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Kind, kind_of
from drfd.core.model.job import Dependency, GroupKey, Job, JobSpec, show_path
from drfd.core.model.limit_hours import NO_HOURS, LimitHours
from drfd.core.model.ranges import most_of
from drfd.core.model.stimuli import Actor, Change
from drfd.devices.gpu import GPU


def owns(actor: Actor, spec: JobSpec) -> bool:
    """Return whether a job is the user's own.

    The name is compared too, because the uid of a deleted account may be given to another.
    """
    return (actor.uid, actor.user) == (spec.uid, spec.user)


def may_touch(actor: Actor, spec: JobSpec) -> bool:
    """Return whether the user may act on a job: the ownership rule of most verbs."""
    return actor.is_admin or owns(actor, spec)


def refuse_unknown_node(name: str, axes: Axes) -> None:
    """Raise Refused if there is no node of this name."""
    names = [node.name for node in axes.nodes]
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is one machine alone"
        raise Refused("no-such-node", f"there is no node {name!r}", hint=there)


def _refuse_without_node(demand: Resources, asked: Vector, axes: Axes) -> None:
    """Raise Refused for a demand that no node can satisfy, where there are several."""
    if demand.node:
        refuse_unknown_node(demand.node, axes)
    among = axes.nodes_for(demand)
    able = [node for node in axes.nodes if node.name in among]
    lacks = not any(
        demand.node in ("", node.name) and node.features.issuperset(demand.features)
        for node in axes.nodes
    )
    if demand.features and lacks:
        words = " and ".join(demand.features)
        known = sorted({each for node in axes.nodes for each in node.features})
        raise Refused(
            "no-such-node",
            f"no node {demand.node or 'here'} has the features {words}",
            hint=f"features here: {', '.join(known) or 'none'}",
        )
    if axes.nodes and not able:
        # Its node is there and has the features, so it is for the part of a core.
        where = f"node {demand.node} gives" if demand.node else "the nodes with these features give"
        raise Refused(
            "no-such-node",
            f"{where} whole cores to jobs, and the job asks for a part of one",
            hint=f"not queued; write -c {-(-demand.cores_milli // CORE_MILLI)}",
        )
    if not able or any(fits(asked, axes.amounts(node.capacity)) for node in able):
        return
    columns = zip(*(axes.amounts(node.capacity) for node in able), strict=True)
    largest = tuple(map(max, columns))
    for axis in short_axes(asked, largest):
        name = axes.names[axis]
        raise Refused(
            "too-big",
            f"the job asks for {show_need(name, asked[axis])}, and no node for it has more than "
            f"{show_amount(name, largest[axis])}: a job runs on one node",
            hint="not queued; ask for less",
        )
    raise Refused(
        "too-big",
        "no node has as much of all that the job asks for: a job runs on one node",
        hint="not queued; ask for less; `drf nodes` shows what each of them has",
    )


def refuse_unfit(
    spec: JobSpec, rules: Rules, hours: LimitHours = NO_HOURS, now_s: float = 0.0
) -> None:
    """Raise Refused for a demand that this machine can never satisfy, with these limits by hour."""
    there = dict(rules.capacity.gres)
    for unknown in [name for name, _ in spec.demand.gres if name not in there]:
        has = ", ".join(f"{count} {name}" for name, count in there.items())
        raise Refused(
            "no-such-resource",
            f"{'no node here has a' if rules.axes.nodes else 'this machine has no'} resource "
            f"{unknown!r}",
            hint=f"{'there are' if rules.axes.nodes else 'it has'} {has}"
            if has
            else "no countable resource is given out here",
        )
    for name, memory_bytes in spec.demand.gres_memory:
        if name != GPU:
            raise Refused(
                "bad-value",
                f"--gres: memory of {name} cannot be declared; only that of a {GPU} is measured",
                hint=f"leave out memory= after {name}",
            )
        _, size = rules.axes.shared or (name, 0)
        if rules.axes.is_shared(name) and memory_bytes > size:
            raise Refused(
                "too-big",
                f"the job asks for {show_size(memory_bytes)} of a {name}'s memory, and each "
                f"{name} here has {show_size(size)}: it could never start",
                hint="not queued; ask for less",
            )
    gone = rules.axes.unknown_disk(spec.demand)
    if gone is not None:
        raise Refused("no-such-disk", f"this machine has no disk {gone!r}")
    asked = rules.axes.vector(spec.demand)
    # Of several nodes, the largest is what counts, and not the sum.
    _refuse_without_node(spec.demand, asked, rules.axes)
    for axis in short_axes(asked, rules.shares.capacity):
        name = rules.axes.names[axis]
        raise Refused(
            "too-big",
            f"the job asks for {show_need(name, asked[axis])}, and this machine has "
            f"{show_amount(name, rules.shares.capacity[axis])} for jobs: it could never start",
            hint="not queued; ask for less",
        )
    found = limit_ever(rules, hours, spec.leaf, asked, now_s)
    if found is not None:
        raise Refused(
            "above-limit",
            f"the job asks for {show_need(found.axis, found.needed)}, and {found.path} may hold "
            f"{show_amount(found.axis, found.limit)} at most: it could never start",
            hint="not queued; ask for less",
        )
    paths = path_up(spec.leaf)
    if not hours.covers(paths):
        return
    amounts = dict(zip(rules.axes.names, asked, strict=True))
    if hours.first_fit_s(paths, amounts, now_s) is None:
        raise Refused(
            "above-limit",
            f"at no hour do the limits of {' and '.join(map(show_path, paths))} together let the "
            "job start",
            hint="not queued; ask for less, or name another pool with -p",
        )


def refuse_late_warning(spec: JobSpec) -> None:
    """Raise Refused for a warning that would not come within the wall time."""
    if spec.warn is None:
        return
    if spec.time_limit_s is None:
        raise Refused(
            "no-limit", "there is no time limit to warn of", hint="say -t TIME, or leave --warn out"
        )
    if spec.warn.before_s >= spec.time_limit_s:
        raise Refused(
            "bad-value",
            f"the warning is to come {show_duration(spec.warn.before_s)} before the end of "
            f"{show_duration(spec.time_limit_s)}: no time is left to run before it",
            hint="ask for a longer -t, or for a later --warn",
        )


def in_group(ledger: Ledger, spec: JobSpec) -> JobSpec:
    """Return the specification of a new job. If it names a group and no limit, it has that of the
    group's jobs that wait, or else of those that run; of several limits the lowest."""
    key = spec.group_key
    state = None if key is None else ledger.groups.get(key)
    if spec.group is None or spec.group.at_once is not None or state is None:
        return spec
    found = [at_once for *_, at_once in state.kinds if at_once is not None]
    if not found and state.running:
        groups = (job.spec.group for job in ledger.allocated_jobs() if job.spec.group_key == key)
        found = [each.at_once for each in groups if each is not None and each.at_once is not None]
    return replace(spec, group=replace(spec.group, at_once=min(found))) if found else spec


def refuse_too_many(waiting: int, user: str, spans: Sequence[Span], rules: Rules) -> None:
    """Raise Refused for a job, or an array, beyond the limit of the user's waiting jobs."""
    most = rules.max_waiting_per_user
    if waiting >= most:
        raise Refused(
            "too-many-jobs",
            f"{user} already has {waiting} jobs waiting, the most that is allowed",
            hint="wait for some of them to start",
        )
    count = count_of(spans)
    if waiting + count > most:
        raise Refused(
            "too-many-jobs",
            f"the array has {count} tasks, and {user} may have {most} jobs waiting"
            + (f" and has {waiting}" if waiting else ""),
            hint="submit it in parts",
        )


#: Different demands for which jobs of a group with a limit may wait. Whenever a job of the group
#: starts or ends, the queue of each demand may change.
MOST_KINDS = 1000


#: Kinds of jobs that the events of one request bring into a group, by group.
NewKinds = defaultdict[GroupKey, set[Kind]]


def refuse_many_kinds(ledger: Ledger, spec: JobSpec, new: NewKinds) -> None:
    """Raise Refused if jobs of too many unlike demands would wait in the group; else add the job's
    kind to `new`, which has those of the same request that are not in the ledger yet.

    Held jobs count, and those that wait for a time or another job: all of them may come free at
    once, and nothing can be refused then.
    """
    kind = kind_of(spec, ledger.axes.vector(spec.demand))
    _, _, key, _ = kind
    if spec.group is None or key is None:
        return
    state = ledger.groups.get(key)
    there = {} if state is None else state.kinds
    if kind in there or kind in new[key]:
        return
    if len(there) + len(new[key]) >= MOST_KINDS:
        raise Refused(
            "too-many-kinds",
            f"jobs of {MOST_KINDS} different demands wait in the group {spec.group.name}, and a "
            "group with a limit takes no more",
            hint="give its jobs equal demands, or take another group",
        )
    new[key].add(kind)


def no_such(job_id: int) -> Refused:
    return Refused("no-such-job", f"there is no live job {job_id}")


def owned(ledger: Ledger, job_id: int, actor: Actor) -> Job:
    job = ledger.find(job_id)
    if job is None:
        raise no_such(job_id)
    if not may_touch(actor, job.spec):
        raise NotPermitted("not-yours", f"job {job.label} belongs to {job.spec.user}")
    return job


def refuse_if_kept(job: Job, actor: Actor) -> None:
    """Raise NotPermitted if an administrator holds the job and the user is not one."""
    if job.held_by not in (None, actor.user, job.spec.user) and not actor.is_admin:
        raise NotPermitted("held-by-admin", f"job {job.label} is held by {job.held_by}")


#: Fields of `Change` for amounts that may be ranges.
_AMOUNTS = frozenset(
    (
        *("cores_milli", "cores_max_milli", "read_bps", "write_bps", "read_max_bps"),
        *("write_max_bps", "disks"),
    )
)
#: Number of dependencies named in the text of a change; there may be a thousand.
_NAMED = 10


def refuse_unfit_change(spec: JobSpec, rules: Rules, hours: LimitHours, now_s: float) -> None:
    try:
        refuse_unfit(spec, rules, hours, now_s)
    except Refused as refusal:
        gone = rules.axes.unknown_disk(spec.demand)
        remedy = f"; --io {gone}=0 takes the disk off it" if refusal.code == "no-such-disk" else ""
        hint = f"the job stays as it is{remedy}"
        raise Refused(refusal.code, refusal.text, hint=hint) from None


def changed(spec: JobSpec, wish: Change, rules: Rules) -> JobSpec:
    demand = replace(
        with_gres(
            _with_rates(spec.demand, wish, rules.axes),
            dict(spec.demand.gres) | dict(wish.gres or ()),
            dict(spec.demand.gres_memory) | dict(wish.gres_memory or ()),
        ),
        cores_milli=_given(wish.cores_milli, spec.demand.cores_milli),
        memory_bytes=_given(wish.memory_bytes, spec.demand.memory_bytes),
    )
    return replace(
        spec,
        name=spec.name if wish.name is None else wish.name,
        pool=spec.pool if wish.pool is None else rules.pool_for(spec.user, wish.pool),
        priority=spec.priority if wish.priority is None else wish.priority,
        time_limit_s=spec.time_limit_s if wish.time_limit_s is None else wish.time_limit_s or None,
        demand=demand,
        most=_with_most(spec, demand, wish, rules),
        after=spec.after if wish.after is None else wish.after,
        begin_s=spec.begin_s if wish.begin_s is None else wish.begin_s or None,
        group=spec.group if wish.group is None else wish.group if wish.group.name else None,
    )


def _with_most(spec: JobSpec, demand: Resources, wish: Change, rules: Rules) -> Resources | None:
    """Return the upper ends of the ranges with the requested ones. A new lower end without an upper
    one makes a single figure of the range."""
    if all(getattr(wish, name) is None for name in _AMOUNTS):
        return spec.most
    before, axes = spec.most or NOTHING, rules.axes
    only = (axes.disks or ("",))[0]
    known = (*(axes.disks or (only,)), *(name for name, _, _ in demand.disks))
    rates: dict[str, tuple[Most, Most]] = {name: before.rates(name) for name in known}
    read, write = rates[only]
    rates[only] = (
        _upper(wish.read_max_bps, wish.read_bps, read),
        _upper(wish.write_max_bps, wish.write_bps, write),
    )
    # Rates of a disk are given together.
    rates |= {name: (0, 0) for name, _, _ in wish.disks or ()}
    rates |= {name: (reads, writes) for name, reads, writes in wish.disks_max}
    cores = _upper(wish.cores_max_milli, wish.cores_milli, before.cores_milli)
    return most_of(demand, cores, rates, rules.capacity)


def _upper(wish: Most | None, least: int | None, before: Most) -> Most:
    if wish is not None:
        return wish
    return before if least is None else 0


def _with_rates(demand: Resources, wish: Change, axes: Axes) -> Resources:
    """Return the demand with the requested rates on the machine's disks.

    On a disk that the machine no longer has, the job keeps its rates or sets them to zero.
    """
    plain, named = (wish.read_bps, wish.write_bps), wish.disks or ()
    if plain == (None, None) and not named:
        return demand
    only = (axes.disks or ("",))[0]
    if len(axes.disks) > 1 and plain != (None, None):
        raise Refused(
            "bad-value",
            "--io: this machine has several disks; say which one is meant",
            hint=f"--io NAME=RATE, with one of {', '.join(axes.disks)}",
        )
    gone = demand.used_disks.difference(axes.disks)
    rates_of = {name: demand.rates(name) for name in (*(axes.disks or (only,)), *gone)}
    read_bps, write_bps = rates_of[only]
    rates_of[only] = _given(plain[0], read_bps), _given(plain[1], write_bps)
    for name, read, write in named:
        if read or write or name not in gone:
            _refuse_unknown_disk(name, axes)
        rates_of[name] = read, write
    left = {name: rates for name, rates in rates_of.items() if name not in gone or any(rates)}
    if list(left) == [only]:
        read_bps, write_bps = left[only]
        return replace(demand, read_bps=read_bps, write_bps=write_bps, disks=())
    disks = tuple(sorted((name, *rates) for name, rates in left.items()))
    return replace(demand, read_bps=0, write_bps=0, disks=disks)


def _refuse_unknown_disk(name: str, axes: Axes) -> None:
    if name not in axes.disks:
        known = ", ".join(filter(None, axes.disks))
        hint = f"disks: {known}" if known else "no disk is managed here"
        raise Refused("no-such-disk", f"--io: there is no disk {name!r} here", hint=hint)


def _given(wish: int | None, before: int) -> int:
    return before if wish is None else wish


def _changes_most_alone(before: JobSpec, after: JobSpec) -> bool:
    return before == replace(after, time_limit_s=before.time_limit_s, most=before.most)


def refuse_while_running(job: Job, wish: Change, spec: JobSpec, actor: Actor) -> None:
    """Raise Refused for all but the wall time, which only an administrator may lengthen."""
    asked = {each.name for each in fields(wish) if getattr(wish, each.name) not in (None, ())}
    others = asked.difference(_AMOUNTS, {"disks_max", "time_limit_s"})
    if others or not _changes_most_alone(job.spec, spec):
        raise Refused(
            "not-waiting",
            f"job {job.label} is {job.shown_state}; of a job that has started only the time limit "
            "(-t) can be changed, and the upper end of a range (-c 2..8)",
        )
    before, after = job.spec.time_limit_s, spec.time_limit_s
    is_longer = before is not None and (after is None or after > before)
    if is_longer and not actor.is_admin:
        raise NotPermitted(
            "not-admin",
            f"job {job.label} is {job.shown_state}; only an administrator may give it more time",
        )


def differences(
    before: JobSpec, after: JobSpec, ledger: Ledger, names: Mapping[int, str]
) -> list[str]:
    """Return the differences for people; `names` has the labels of jobs that left the ledger."""
    pairs = [
        ("name", before.name, after.name),
        ("pool", before.pool, after.pool),
        ("priority", str(before.priority), str(after.priority)),
        ("time limit", _limit(before), _limit(after)),
        ("cores", _cores(before), _cores(after)),
        ("memory", show_size(before.demand.memory_bytes), show_size(after.demand.memory_bytes)),
        ("io", _rates(before), _rates(after)),
        ("gres", _gres(before.demand), _gres(after.demand)),
        ("group", str(before.group or "none"), str(after.group or "none")),
        ("after", _after(before.after, ledger, names), _after(after.after, ledger, names)),
    ]
    found = [f"{what} {old} → {new}" for what, old, new in pairs if old != new]
    # The core has no time zone, so it cannot write the time.
    return found + ["begin time"] * (before.begin_s != after.begin_s)


def _limit(spec: JobSpec) -> str:
    return "unlimited" if spec.time_limit_s is None else show_duration(spec.time_limit_s)


def _cores(spec: JobSpec) -> str:
    most = None if spec.most is None else spec.most.cores_milli
    return show_range(show_cores(spec.demand.cores_milli), show_cores(most) if most else None)


def _rates(spec: JobSpec) -> str:
    demand, most = spec.demand, spec.most or NOTHING
    rates = demand.disks or (("", demand.read_bps, demand.write_bps),)

    def shown(least: int, end: int) -> str:
        return show_range(show_size(least), show_size(end) if end else None)

    return " ".join(
        f"{name and name + '='}" + "/".join(map(shown, pair, most.rates(name)))
        for name, *pair in rates
    )


def _gres(demand: Resources) -> str:
    memory = dict(demand.gres_memory)
    return ", ".join(_counted(name, count, memory.get(name)) for name, count in demand.gres) or (
        "none"
    )


def _counted(name: str, count: int, memory_bytes: int | None) -> str:
    memory = "" if memory_bytes is None else f" with {show_size(memory_bytes)} of memory each"
    return f"{count} {name}{memory}"


def _after(after: tuple[Dependency, ...], ledger: Ledger, names: Mapping[int, str]) -> str:
    def name(job_id: int) -> str:
        job = ledger.find(job_id)
        return names.get(job_id, str(job_id)) if job is None else job.label

    named = ",".join(f"{name(each.job_id)}:{each.want}" for each in after[:_NAMED])
    more = f" and {len(after) - _NAMED} more" if len(after) > _NAMED else ""
    return f"{named}{more}" or "nothing"
