"""What `drf set` may change of a job, and what is checked again as at its submission.

While a job waits its owner may change what was asked; once it has started, its wall time alone: the
owner may shorten it, and an administrator may lengthen it too, since others count on its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.asked import owned, refuse_late_warning, refuse_unfit
from drfd.core.asked_together import each
from drfd.core.dependencies import refuse_impossible, settle_ended
from drfd.core.job import Dependency, Job, JobSpec, JobState
from drfd.core.ledger import Ledger
from drfd.core.resources import Axes, Resources
from drfd.core.rules import Rules
from drfd.errors import NotPermitted, Refused
from drfd.units import show_cores, show_duration, show_size

_WAITS = (JobState.PENDING, JobState.HELD)
_RUNS = (JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED)


def change_each(ledger: Ledger, asked: st.ChangeAsked, rules: Rules) -> list[ev.Event]:
    """Of a job, or of all tasks of an array."""
    if asked.change.after and asked.job_id in ledger.arrays:
        user = ledger.arrays[asked.job_id].array.spec.user
        refuse_impossible(ledger, asked.change.after, asked.ended, user=user, job_id=asked.job_id)
    return each(ledger, asked, lambda ledger, asked: change(ledger, asked, rules))


def change(ledger: Ledger, asked: st.ChangeAsked, rules: Rules) -> list[ev.Event]:
    job = owned(ledger, asked.job_id, asked.actor)
    wish, at_s = asked.change, asked.now.at_s
    spec = _changed(job.spec, wish, rules)
    if job.state in _RUNS:
        _refuse_while_running(job, wish, spec, asked.actor)
    elif job.state not in _WAITS:
        raise Refused(
            "not-waiting", f"job {job.label} is {job.shown_state}: nothing can be changed"
        )
    elif (spec.demand, spec.pool) != (job.spec.demand, job.spec.pool):
        # What fits no more since the configuration was changed may still get another name.
        _refuse_unfit(spec, rules)
    if wish.time_limit_s is not None:
        refuse_late_warning(spec)
    if wish.after is not None:
        refuse_impossible(ledger, wish.after, asked.ended, user=job.spec.user, job_id=job.id)
    sets_begin = wish.begin_s is not None
    is_waiting_anew = job.not_before_s is not None or job.spec.begin_s != spec.begin_s
    if spec == job.spec and not (sets_begin and is_waiting_anew):
        return []
    return [
        ev.Changed(
            job_id=job.id,
            at_s=at_s,
            by=asked.actor.user,
            spec=spec,
            sets_after=wish.after is not None,
            sets_begin=sets_begin,
            text=", ".join(_differences(job.spec, spec, ledger, asked.names))
            or "may start at once",
        ),
        *settle_ended(job.id, wish.after or (), asked.ended, at_s),
    ]


def _refuse_unfit(spec: JobSpec, rules: Rules) -> None:
    try:
        refuse_unfit(spec, rules)
    except Refused as refusal:
        gone = rules.axes.unknown_disk(spec.demand)
        cure = f"; --io {gone}=0 takes the disk off it" if refusal.code == "no-such-disk" else ""
        hint = f"the job stays as it is{cure}"
        raise Refused(refusal.code, refusal.text, hint=hint) from None


def _changed(spec: JobSpec, wish: st.Change, rules: Rules) -> JobSpec:
    return replace(
        spec,
        name=spec.name if wish.name is None else wish.name,
        pool=spec.pool if wish.pool is None else rules.pool_for(spec.user, wish.pool),
        priority=spec.priority if wish.priority is None else wish.priority,
        time_limit_s=spec.time_limit_s if wish.time_limit_s is None else wish.time_limit_s or None,
        demand=replace(
            _with_rates(spec.demand, wish, rules.axes),
            cores_milli=_given(wish.cores_milli, spec.demand.cores_milli),
            memory_bytes=_given(wish.memory_bytes, spec.demand.memory_bytes),
            gres=_counts(spec.demand.gres, wish.gres or ()),
        ),
        after=spec.after if wish.after is None else wish.after,
        begin_s=spec.begin_s if wish.begin_s is None else wish.begin_s or None,
    )


def _with_rates(demand: Resources, wish: st.Change, axes: Axes) -> Resources:
    """The demand with the rates that are wished for, on the disks that the machine has. Of a disk
    that it has no more, none is wished for or the job keeps what it asked."""
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


def _counts(
    before: tuple[tuple[str, int], ...], wish: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    """Countables with those that are wished for in place of what was asked of the same name."""
    counts = dict(before) | dict(wish)
    return tuple(sorted((name, count) for name, count in counts.items() if count))


def _given(wish: int | None, before: int) -> int:
    return before if wish is None else wish


def _refuse_while_running(job: Job, wish: st.Change, spec: JobSpec, actor: st.Actor) -> None:
    """Raise Refused for all but another wall time, and a longer one."""
    asked = [each.name for each in fields(wish) if getattr(wish, each.name) is not None]
    if asked != ["time_limit_s"]:
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


def _differences(
    before: JobSpec, after: JobSpec, ledger: Ledger, names: Mapping[int, str]
) -> list[str]:
    """What is different, for people; `names` of what the books do not hold any more."""
    pairs = [
        ("name", before.name, after.name),
        ("pool", before.pool, after.pool),
        ("priority", str(before.priority), str(after.priority)),
        ("time limit", _limit(before), _limit(after)),
        ("cores", show_cores(before.demand.cores_milli), show_cores(after.demand.cores_milli)),
        ("memory", show_size(before.demand.memory_bytes), show_size(after.demand.memory_bytes)),
        ("io", _rates(before.demand), _rates(after.demand)),
        ("gres", _gres(before.demand), _gres(after.demand)),
        ("after", _after(before.after, ledger, names), _after(after.after, ledger, names)),
    ]
    found = [f"{what} {old} → {new}" for what, old, new in pairs if old != new]
    # The core has no time zone to write a time in.
    return found + ["begin time"] * (before.begin_s != after.begin_s)


def _limit(spec: JobSpec) -> str:
    return "unlimited" if spec.time_limit_s is None else show_duration(spec.time_limit_s)


def _rates(demand: Resources) -> str:
    rates = demand.disks or (("", demand.read_bps, demand.write_bps),)
    return " ".join(
        f"{name and name + '='}{show_size(read)}/{show_size(write)}" for name, read, write in rates
    )


def _gres(demand: Resources) -> str:
    return ", ".join(f"{count} {name}" for name, count in demand.gres) or "none"


def _after(after: tuple[Dependency, ...], ledger: Ledger, names: Mapping[int, str]) -> str:
    def name(job_id: int) -> str:
        job = ledger.find(job_id)
        return names.get(job_id, str(job_id)) if job is None else job.label

    return ",".join(f"{name(each.job_id)}:{each.want}" for each in after) or "nothing"
