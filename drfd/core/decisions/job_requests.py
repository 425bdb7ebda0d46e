"""Requests of users: who may make them, which are refused, and how `drf set` changes a job.

`core.decisions.stimuli` has the requests themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from msgspec import structs

from drfd.common.errors import NotPermitted, Refused
from drfd.common.indices import Span, count_of
from drfd.common.units import (
    AXES,
    DISK_AXES,
    show_amount,
    show_duration,
    show_need,
    show_size,
)
from drfd.core.fairness.rules import Rules, limit_ever
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Kind
from drfd.core.ledger.queue import kind_of as kind_of_job
from drfd.core.model.calendar import Calendar
from drfd.core.model.job import Actor, Dependency, GroupKey, Job, JobSpec, show_path
from drfd.core.model.machine import Vector, fits, short_axes
from drfd.core.model.options import (
    OPTIONS,
    Change,
    amount_words,
    changed_fields,
    cores_end,
)
from drfd.core.model.resources import (
    CORE_MILLI,
    Axes,
    Resources,
    disk_axes,
    kind_of,
    with_gres,
)
from drfd.devices.gpu import GPU

T = TypeVar("T")


def owns(actor: Actor, spec: JobSpec) -> bool:
    """Return whether a job is the user's own. The name is compared too, because the uid of a
    deleted account may be given to another."""
    return (actor.uid, actor.user) == (spec.uid, spec.user)


def may_touch(actor: Actor, spec: JobSpec) -> bool:
    """Return whether the user may act on a job: the ownership rule of most verbs."""
    return actor.is_admin or owns(actor, spec)


def refuse_unknown_node(name: str, axes: Axes) -> None:
    names = [node.name for node in axes.nodes]
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is only this machine"
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
        most = show_amount(name, largest[axis])
        but = f"no node for it has more than {most}: a job runs on one node"
        raise _too_much(show_need(name, asked[axis]), but)
    raise Refused(
        "too-big",
        "no node has as much of all that the job asks for: a job runs on one node",
        hint="not queued; ask for less; `drf nodes` shows what each of them has",
    )


def _too_much(asked: str, but: str, code: str = "too-big") -> Refused:
    text = f"the job asks for {asked}, and {but}"
    return Refused(code, text, hint="not queued; ask for less")


def refuse_unfit(spec: JobSpec, rules: Rules, calendar: Calendar, now_s: float) -> None:
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
            but = f"each {name} here has {show_size(size)}: it could never start"
            raise _too_much(f"{show_size(memory_bytes)} of a {name}'s memory", but)
    gone = rules.axes.unknown_disk(spec.demand)
    if gone is not None:
        raise Refused("no-such-disk", f"this machine has no disk {gone!r}")
    asked = rules.axes.vector(spec.demand)
    # Of several nodes, the largest is what counts, and not the sum.
    _refuse_without_node(spec.demand, asked, rules.axes)
    for axis in short_axes(asked, rules.shares.capacity):
        name = rules.axes.names[axis]
        most = show_amount(name, rules.shares.capacity[axis])
        but = f"this machine has {most} for jobs: it could never start"
        raise _too_much(show_need(name, asked[axis]), but)
    found = limit_ever(rules, calendar, spec.leaf, asked, now_s)
    if found is not None:
        most = show_amount(found.axis, found.limit)
        but = f"{found.path} may hold {most} at most: it could never start"
        raise _too_much(show_need(found.axis, found.needed), but, "above-limit")
    paths = path_up(spec.leaf)
    if not calendar.covers(paths):
        return
    amounts = dict(zip(rules.axes.names, asked, strict=True))
    if calendar.first_start_s(now_s, None, paths, amounts) is None:
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
    key, queues = spec.group_key, ledger.queues
    if spec.group is None or key is None or spec.group.at_once is not None:
        return spec
    found = [at_once for *_, at_once in queues.kinds.get(key, ())]
    if not found and queues.running[key]:
        groups = (job.spec.group for job in ledger.allocated_jobs() if job.spec.group_key == key)
        found = [each.at_once for each in groups if each is not None and each.at_once is not None]
    return structs.replace(spec, group=replace(spec.group, at_once=min(found))) if found else spec


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
    """Raise Refused if jobs of too many different demands would wait in the group; else add the
    job's kind to `new`, the kinds of the same request. Held jobs and those with conditions count,
    because all of them may become eligible at once."""
    key, kind = spec.group_key, kind_of_job(spec, ledger.axes.vector(spec.demand))
    if spec.group is None or key is None or kind is None:
        return
    there = ledger.queues.kinds.get(key, ())
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
    job = ledger.jobs.get(job_id)
    if job is None:
        raise no_such(job_id)
    if not may_touch(actor, job.spec):
        raise NotPermitted("not-yours", f"job {job.label} belongs to {job.spec.user}")
    return job


def refuse_if_kept(job: Job, actor: Actor) -> None:
    """Raise NotPermitted if an administrator holds the job and the user is not one."""
    if job.held_by not in (None, actor.user, job.spec.user) and not actor.is_admin:
        raise NotPermitted("held-by-admin", f"job {job.label} is held by {job.held_by}")


#: Number of dependencies named in the text of a change; there may be a thousand.
NAMED_DEPENDENCIES = 10


def refuse_unfit_change(spec: JobSpec, rules: Rules, calendar: Calendar, now_s: float) -> None:
    try:
        refuse_unfit(spec, rules, calendar, now_s)
    except Refused as refusal:
        gone = rules.axes.unknown_disk(spec.demand)
        remedy = f"; --io {gone}=0 takes the disk off it" if refusal.code == "no-such-disk" else ""
        hint = f"the job stays as it is{remedy}"
        raise Refused(refusal.code, refusal.text, hint=hint) from None


def changed(spec: JobSpec, wish: Change, rules: Rules) -> JobSpec:
    demand = with_gres(
        _with_amounts(spec.demand, wish.demand.amounts, rules.axes),
        dict(spec.demand.gres) | wish.demand.gres,
        dict(spec.demand.gres_memory) | wish.demand.gres_memory,
    )
    changes = changed_fields(wish)
    if wish.pool is not None:
        changes["pool"] = rules.pool_for(spec.user, wish.pool)
    most = wish.demand.cores_max_milli
    if most is None:
        # A new lower end without an upper one makes a single figure of the range.
        most = spec.cores_max_milli if wish.demand.cores_milli is None else 0
    end = cores_end(demand.cores_milli, most, rules.capacity.cores_milli)
    return structs.replace(spec, demand=demand, cores_max_milli=end, **changes)


def _on_disks(amounts: Mapping[str, T], axes: Axes) -> dict[tuple[str, str], T]:
    """Return amounts by the kind of their axis and the disk, that of the only one with its name."""
    parts = ((axis.partition(":"), amount) for axis, amount in amounts.items())
    only = (axes.disks or ("",))[0]
    return {(kind, disk or only): amount for (kind, _, disk), amount in parts}


def _with_amounts(demand: Resources, wish: Mapping[str, int], axes: Axes) -> Resources:
    """Return the demand with the requested amounts, on the machine's disks. On a disk that the
    machine no longer has, the job keeps its rates or sets them to zero."""
    asked = {key: rate for key, rate in _on_disks(wish, axes).items() if key[0] in DISK_AXES}
    if not asked:
        return demand.with_amounts({**demand.amounts, **wish})
    if len(axes.disks) > 1 and not wish.keys().isdisjoint(DISK_AXES):
        raise Refused(
            "bad-value",
            "--io: this machine has several disks; say which one is meant",
            hint=f"--io NAME=RATE, with one of {', '.join(axes.disks)}",
        )
    known, gone = axes.disks or ("",), demand.used_disks.difference(axes.disks)
    for (_, disk), rate in asked.items():
        if disk not in known and (rate or disk not in gone):
            known_names = ", ".join(filter(None, axes.disks))
            hint = f"disks: {known_names}" if known_names else "no disk is managed here"
            raise Refused("no-such-disk", f"--io: there is no disk {disk!r} here", hint=hint)
    rates = {
        disk: [
            asked.get((kind, disk), rate)
            for kind, rate in zip(DISK_AXES, demand.rates(disk), strict=True)
        ]
        for disk in (*known, *gone)
    }
    left = sorted(disk for disk, pair in rates.items() if disk not in gone or any(pair))
    names = disk_axes([""] if left == [known[0]] else left)
    amounts = {**demand.amounts, **wish}
    plain = {axis: amounts[axis] for axis in amounts if kind_of(axis) not in DISK_AXES}
    found = chain.from_iterable(rates[disk] for disk in left)
    return demand.with_amounts(plain | dict(zip(names, found, strict=True)))


def refuse_while_running(job: Job, wish: Change, spec: JobSpec, actor: Actor) -> None:
    """Raise Refused for all but the wall time, which only an administrator may lengthen."""
    free = [option.name for option in OPTIONS if option.is_of_running]
    asked = {name for name, value in changed_fields(wish).items() if value != ()}
    is_held = (
        wish.demand.gres
        or wish.demand.gres_memory
        or not all(AXES[kind_of(axis)].is_rate for axis in wish.demand.amounts)
    )
    as_before = structs.replace(spec, **{name: getattr(job.spec, name) for name in free})
    if is_held or asked.difference(free) or as_before != job.spec:
        raise Refused(
            "not-waiting",
            f"job {job.label} is {job.shown_state}; of a job that has started only the time limit "
            "(-t) can be changed",
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
    found = []
    for option in OPTIONS:
        old, new = getattr(before, option.name), getattr(after, option.name)
        is_same_range = before.cores_max_milli == after.cores_max_milli
        if old == new and (option.name != "demand" or is_same_range):
            continue
        texts = {option.label: (option.show(old), option.show(new))}
        match option.name:
            case "demand":
                olds, news = _shown(before), _shown(after)
                texts = {label: (olds[label], text) for label, text in news.items()}
            case "cores_max_milli":
                continue
            case "after":
                texts = {"after": (_after(old, ledger, names), _after(new, ledger, names))}
            case "begin_s":
                # The core has no time zone, so it cannot write the time.
                found.append(option.label)
                continue
        found += [f"{label} {old} → {new}" for label, (old, new) in texts.items() if old != new]
    return found


def _shown(spec: JobSpec) -> dict[str, str]:
    """Return the amounts that the job declares as text, by what they are called."""
    words = amount_words(spec.demand.amounts, spec.cores_max_milli, is_exact=False)
    by_option: dict[str, list[str]] = {}
    for (option, _), word in words.items():
        by_option.setdefault(option, []).append(word)
    labels = {axis.option: "io" if axis.is_of_disks else name for name, axis in AXES.items()}
    memory = dict(spec.demand.gres_memory)
    gres = (_counted(name, count, memory.get(name)) for name, count in spec.demand.gres)
    found = {labels[option]: " ".join(some) for option, some in by_option.items()}
    return found | {"gres": ", ".join(gres) or "none"}


def _counted(name: str, count: int, memory_bytes: int | None) -> str:
    memory = "" if memory_bytes is None else f" with {show_size(memory_bytes)} of memory each"
    return f"{count} {name}{memory}"


def _after(after: tuple[Dependency, ...], ledger: Ledger, names: Mapping[int, str]) -> str:
    def name(job_id: int) -> str:
        job = ledger.jobs.get(job_id)
        return names.get(job_id, str(job_id)) if job is None else job.label

    named = ",".join(f"{name(each.job_id)}:{each.want}" for each in after[:NAMED_DEPENDENCIES])
    more = f" and {len(after) - NAMED_DEPENDENCIES} more" if len(after) > NAMED_DEPENDENCIES else ""
    return f"{named}{more}" or "nothing"
