"""Views: the JSON of jobs, arrays, their use of resources, and the fair-share tree in replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from signal import SIGTERM
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
from msgspec import to_builtins

from drfd.common.errors import DrfdError
from drfd.common.indices import Ids, show_spans
from drfd.common.signals import show_signal
from drfd.common.units import AXES, utc_time
from drfd.core.decisions.outcome import GpuMemory, attempts_text
from drfd.core.explain.ended_jobs import account_of
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import NodeRule, ShareTree, path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.calendar import Calendar, Limit
from drfd.core.model.job import (
    MAX_RANGES,
    ROOT,
    Array,
    Job,
    JobSpec,
    JobState,
    Outcome,
    Tasks,
    Usage,
    output_path,
)
from drfd.core.model.machine import Vector, not_negative, plus
from drfd.core.model.resources import Axes, ClusterNode, Resources
from drfd.core.scheduling.debts import Debt, settled, share_hours
from drfd.core.scheduling.kept_free import ExternalLoad, free_of
from drfd.core.scheduling.waits import Wait
from drfd.core.usage import MEASURES, Curve, Point
from drfd.devices.gpus import GPU
from drfd.journal.arrays import TaskCounts
from drfd.payload.pack import carried
from drfd.protocol import replies

if TYPE_CHECKING:
    # A report needs none of what measures.
    from drfd.daemon.monitoring.gpu_use import MeasuredGpu
    from drfd.daemon.monitoring.meter import GpuShare

#: The most indices, or ranges of indices, in a sentence.
_MOST_INDICES = 20
#: The resources of which the use is measured.
_MEASURED = {
    name: axis for name, axis in AXES.items() if axis.field in {each.name for each in MEASURES}
}


def resources_view(amount: Resources) -> replies.ResourcesView:
    """Return cores, bytes and bytes per second; with several disks, sums and the rates of each."""
    view = cast(replies.ResourcesView, {**sums_view(amount), "gres": dict(amount.gres)})
    if amount.gres_memory:
        view["gres_memory"] = dict(amount.gres_memory)
    if amount.disks:
        view["disks"] = {name: {"read": read, "write": write} for name, read, write in amount.disks}
    return view


def sums_view(amount: Resources) -> dict[str, float]:
    return {name: AXES[name].number(each) for name, each in amount.sums.items()}


def demand_view(spec: JobSpec) -> replies.ResourcesView:
    """Return the demand, with the upper end of a range of cores."""
    view = resources_view(spec.demand)
    if spec.cores_max_milli:
        view["cores_max"] = spec.cores_max_milli / 1000
    return view


def usage_view(usage: Usage | None, job: Job) -> replies.UsageView:
    usage = usage or Usage()
    view: replies.UsageView = {
        "cores": usage.cores_milli / 1000,
        "memory": usage.memory_bytes,
        "memory_peak": usage.memory_peak_bytes,
        "read_bytes": usage.read_bytes,
        "written_bytes": usage.written_bytes,
        "cpu_seconds": round(usage.cpu_s, 3),
    }
    if usage.beyond_us is not None:
        view["beyond_cpu_seconds"] = usage.beyond_us / 1e6
    if _gpus_asked(job.spec.demand) or usage.gpu_memory_peak_bytes:
        view["gpu_memory"] = usage.gpu_memory_bytes
        view["gpu_memory_peak"] = usage.gpu_memory_peak_bytes
        view["gpu_utilisation"] = usage.gpu_percent
        view["gpu_utilisation_mean"] = usage.gpu_mean_percent
    return view


def _gpus_asked(demand: Resources) -> int:
    return dict(demand.gres).get(GPU, 0)


def gpu_view(gpu: MeasuredGpu) -> replies.GpuView:
    users = gpu.users
    view = {
        **gpu.reading,
        "name": gpu.reading.get("name"),
        "memory_jobs": gpu.jobs_memory,
        "memory_outside": gpu.outside_memory,
        "jobs": None if users is None else sorted(key[0] for key in users if key is not None),
        "outside_uids": None
        if users is None
        else sorted({each["uid"] for each in gpu.outside if each["uid"] is not None}),
    }
    del view["slice"], view["processes"]
    return cast(replies.GpuView, view)


def _submitted_view(job: Job) -> replies.SubmittedView:
    """Return what a job was submitted with, without what only some jobs have."""
    spec = job.spec
    return {
        "id": job.id,
        "array_id": job.array_id,
        "array_index": job.array_index,
        "name": spec.name,
        "user": spec.user,
        "pool": spec.pool,
        "demand": demand_view(spec),
        "time_limit_s": spec.time_limit_s,
        "priority": spec.priority,
        "submitted_at": job.submitted_at,
    }


def _progress_view(job: Job, expected_start_s: float | None) -> replies.ProgressView:
    """Return the part of a job that snapshots show, too: nothing that only its owner may see."""
    shown = {
        **_submitted_view(job),
        "state": job.shown_state,
        "attempt": job.attempt,
        "started_at": job.started_at,
        "ended_at": job.ended_at if job.state is JobState.ENDED else None,
        "expected_start_at": expected_start_s,
        "exit_code": job.exit_code,
        "signal": job.signal,
    }
    view = cast(replies.ProgressView, shown)
    if job.suspended_s:
        view["suspended_seconds"] = job.suspended_s
    if job.suspended_at is not None:
        view["suspended_at"] = job.suspended_at
    if job.spec.group is not None:
        view["group"] = job.spec.group.name
    if job.node:
        view["node"] = job.node
    return view


def job_view(
    job: Job,
    *,
    reason: replies.CodeText | None,
    usage: Usage | None,
    private: bool,
    expected_start_s: float | None = None,
) -> replies.JobView:
    """Return a job. Without `private`, fields that only the owner may see are null.
    `expected_start_s` is the start if all jobs end as estimated, or None if it is not known."""
    outcome: replies.OutcomeView | None = None
    if job.state is JobState.ENDED and job.outcome is not None:
        # The cause of a failed launch may contain the owner's paths and commands.
        outcome = {"code": job.outcome.value, "text": job.outcome_text if private else ""}
        if job.loss is not None:
            outcome["reason"] = job.loss
    shown = {
        **_progress_view(job, expected_start_s),
        **_owned_view(job, private=private),
        "reason": reason,
        "eligible_at": job.eligible_at,
        "outcome": outcome,
        "usage": usage_view(job.usage or usage, job),
        "cgroup": job.cgroup,
    }
    view = cast(replies.JobView, shown)
    if job.spec.demand.gres:
        # A pending job has no instances.
        view["gres_instances"] = {name: list(some) for name, some in job.instances}
    return view


#: What only its owner may see of a job.
_SECRET = ("cwd", "argv", "stdout", "stderr")


def _owned_view(job: Job, *, private: bool) -> dict[str, object]:
    """Return whose the job is and what lists show of its options. Without `private`, what only its
    owner may see is null."""
    spec = job.spec
    secret: dict[str, object] = dict.fromkeys(_SECRET)
    if private:
        # Of tasks that are all alike, the patterns, such as `%a`.
        is_group = job.array_id is not None and job.array_index is None
        out, err = (
            path if is_group else output_path(path, job) for path in (spec.stdout, spec.stderr)
        )
        secret = {"cwd": spec.cwd, "argv": spec.argv, "stdout": out, "stderr": err}
    options: dict[str, object] = {
        "comment": spec.comment,
        "retry_of": None if spec.again is None else spec.again.of,
        "output_max_bytes": spec.output_max_bytes,
        "only_node": spec.demand.node or None,
        "features": list(spec.demand.features) or None,
        "preemptible": spec.preemptible or None,
    }
    known = {name: value for name, value in options.items() if value is not None}
    if spec.group is not None:
        known |= {"group": spec.group.name, "group_at_once": spec.group.at_once}
    return {"uid": spec.uid, **secret, **known}


def reason_view(reason: Wait | None) -> replies.CodeText | None:
    if reason is None:
        return None
    return {"code": reason.code, "text": reason.text()}


def wait_view(reason: Wait | None) -> replies.WaitView | None:
    """Return the reason with its evidence for tables."""
    shown = reason_view(reason)
    if reason is None or shown is None:
        return None
    columns = reason.columns()
    evidence: replies.EvidenceView = {"waits_for": columns.waits_for}
    if columns.blocked_by:
        evidence["blocked_by"] = columns.blocked_by
    if columns.shortage is not None:
        axis = columns.shortage.axis
        evidence["resource"] = axis
        evidence["needed"] = _shown_amount(axis, columns.shortage.needed)
        evidence["free"] = _shown_amount(axis, columns.shortage.free)
    if columns.until_s is not None:
        evidence["until"] = columns.until_s
    return {**shown, "evidence": evidence}


def _shown_amount(axis: str, amount: int) -> float:
    """Return an amount of any resource, also of a countable one or of one disk, as JSON has it."""
    kind = axis.partition(":")[0]
    return AXES[kind].number(amount) if kind in AXES else amount


def exit_status(job: Job) -> int:
    """Return the exit status of `wait`, `run` and `submit --wait` for this job."""
    match job.outcome:
        case Outcome.TIMEOUT:
            return 124
        case Outcome.OUT_OF_MEMORY:
            return 137
        case _ if job.signal is not None:
            return 128 + job.signal
        case Outcome.CANCELLED | Outcome.LIMIT_EXCEEDED if job.exit_code == 0:
            # The job obeyed SIGTERM and exited in order, but did not finish its work.
            return 128 + SIGTERM
        case _ if job.exit_code is not None:
            return job.exit_code
        case _:
            return 125


# -- the story and the conditions of a job ---------------------------------------------------------


def event_view(event: ev.Event, name_of: Callable[[int], str] = str) -> replies.EventView:
    """Return one line of a job's story. `name_of` gives the name of another job."""
    kind = "Changed" if isinstance(event, ev.Altered) else type(event).__name__
    return {"at": event.at_s, "event": kind, "text": event.line(name_of)}


def conditions_view(job: Job, name_of: Callable[[int], str] = str) -> replies.ConditionsView:
    """Return the conditions of the start, and the retries, that the submission asked for."""
    spec = job.spec
    retry, warn = spec.retry, spec.warn
    return {
        "after": [
            {"id": each.job_id, "label": name_of(each.job_id), "want": each.want.value}
            for each in spec.after
        ],
        "begin_at": spec.begin_s,
        "retry": None
        if retry is None
        else {"times": retry.times, "on": [each.value for each in retry.on], "done": job.retries},
        "warn": None
        if warn is None
        else {"signal": show_signal(warn.signal), "before_s": warn.before_s},
        "attempts": attempts_text(job),
        "if_never": "cancel" if spec.cancel_if_never else "keep",
    }


def option_fields(spec: JobSpec, notice: Sequence[str]) -> dict[str, object]:
    """Return the fields of a submit request that its options set, but those about conditions.
    `notice` is the command that notifies its owner."""
    demand = spec.demand
    amounts = _amounts(demand)
    end = {"cores_max_milli": spec.cores_max_milli} if spec.cores_max_milli else {}
    memory = {"gres_memory": dict(demand.gres_memory)} if demand.gres_memory else {}
    is_own_pool = spec.pool == f"root.{spec.user}"
    given: dict[str, object] = {
        **to_builtins(spec.requested()),
        "append": spec.append or None,
        "demand": {
            **amounts.pop(""), **end, **({"disks": amounts} if amounts else {}),
            "gres": dict(demand.gres), **memory,
        },
        "node": demand.node or None,
        "features": list(demand.features) or None,
        "name": spec.name,
        "pool": None if is_own_pool else spec.pool.removeprefix("root."),
        "time_limit_s": spec.time_limit_s or 0,
        "stdout": spec.stdout,
        "stderr": spec.stderr,
        "notify": {"on": [*spec.notify], "argv": [*map(carried, notice)]} if spec.notify else None,
        "group": None if spec.group is None else str(spec.group),
        "if_never": "cancel" if spec.cancel_if_never else "keep",
    }  # fmt: skip
    return {key: value for key, value in given.items() if value is not None}


def _amounts(demand: Resources) -> dict[str, dict[str, int]]:
    """Return the amounts as a request has them, by the name of the disk; all others under ""."""
    found: dict[str, dict[str, int]] = {"": {}}
    for name, amount in demand.amounts.items():
        kind, _, disk = name.partition(":")
        found.setdefault(disk, {})[AXES[kind].field] = amount
    return found


#: In place of the conditions of another user's job.
NO_CONDITIONS: replies.ConditionsView = {
    "after": [], "begin_at": None, "retry": None, "warn": None, "attempts": "", "if_never": "keep",
}  # fmt: skip


# -- rows of snapshots, and use over time ---------------------------------------------------------


def row_view(
    row: Job | Tasks,
    *,
    reason: replies.WaitView | None = None,
    expected_start_s: float | None = None,
    now: replies.NowView | None = None,
) -> replies.SnapshotRow:
    """Return a row of a snapshot: a job, or tasks of an array that are all alike. It contains
    nothing that only the owner may see."""
    group = row if isinstance(row, Tasks) else None
    job = row.job if isinstance(row, Tasks) else row
    outcome = job.outcome if job.state is JobState.ENDED else None
    return {
        **_progress_view(job, expected_start_s),
        "id": job.id if group is None else group.array.id,
        "label": job.label if group is None else tasks_label(group),
        "tasks": 1 if group is None else group.size,
        "reason": reason,
        "outcome": None if outcome is None else outcome.value,
        "now": now,
    }


def tasks_label(group: Tasks) -> str:
    """Return the label of the tasks, such as `42_[8-99]`."""
    shown: list[Ids] = list(group.ids[:MAX_RANGES])
    more = ",…" if len(group.ids) > MAX_RANGES else ""
    return f"{group.array.id}_[{show_spans(group.array.spans_of(*shown))}{more}]"


def now_view(
    now: Point,
    job: Job,
    peak_bytes: int | None = None,
    gpus: GpuShare | None = None,
    each_gpu: Sequence[GpuMemory] = (),
) -> replies.NowView:
    """Return the present use; null where it is not known."""
    used = {name: _number_of(name, now.mean(axis.field)) for name, axis in _MEASURED.items()}
    view = cast(replies.NowView, {**used, "memory_peak": peak_bytes})
    if job.suspended_at is not None:
        # It is not sampled.
        view["cores"] = 0.0
    if gpus is not None:
        view["gpu_memory"], view["gpu_utilisation"] = gpus.memory_bytes, gpus.percent
    if each_gpu and job.spec.demand.gres_memory:
        view["gpu_memory_single"] = max(each.readings[-1] for each in each_gpu)
    return view


def _number_of(axis: str, amount: int | None) -> float | None:
    return None if amount is None else AXES[axis].number(amount)


def sum_view(uses: Sequence[replies.NowView]) -> replies.SumView:
    """Return the present use of several jobs together; null where it is known of none."""
    sums: dict[str, float | None] = {}
    for name in _MEASURED:
        known = [amount for use in uses if (amount := cast(Any, use)[name]) is not None]
        sums[name] = round(sum(known), 3) if known else None
    return cast(replies.SumView, sums)


def usage_points_view(curve: Curve | None, spec: JobSpec) -> replies.UsageReply:
    return {"usage": curve_view(curve or Curve(0), spec.demand), "demand": demand_view(spec)}


def curve_view(curve: Curve, demand: Resources) -> replies.CurveView:
    """Return the points, oldest first: means of the interval that ends at `at`, or null. `demand`
    is the job's."""

    def means(name: str) -> list[int | None]:
        return [each.mean(name) for each in curve.points]

    amounts = {
        name: [_number_of(name, mean) for mean in means(axis.field)]
        for name, axis in _MEASURED.items()
    }
    at = [each.end_ms / 1000 for each in curve.points]
    view = cast(replies.CurveView, {"at": at, **amounts})
    beyond = [_number_of("cores", mean) for mean in means("beyond_milli")]
    if any(each is not None for each in beyond):
        view["cores_beyond"] = beyond
    used = means("gpu_memory_bytes"), means("gpu_percent")
    if any(map(any, used)) or _gpus_asked(demand):
        view["gpu_memory"], view["gpu_utilisation"] = used
    return view


# -- what ended jobs used ------------------------------------------------------------------------


def ended_job_view(job: Job, *, private: bool) -> replies.JobView:
    """Return an ended job with the recorded use of its last attempt and of all its runs."""
    view = job_view(job, reason=None, usage=None, private=private)
    view["used"] = used_view(job)
    all_runs = all_runs_view(job)
    if all_runs is not None:
        view["all_runs"] = all_runs
    return view


def all_runs_view(job: Job) -> replies.AllRunsView | None:
    """Return the sums over all runs of an ended job, or None if no run came before its last
    attempt."""
    account = account_of(job)
    if account is None or job.earlier_runs is None or job.state is not JobState.ENDED:
        return None
    is_measured = bool(account.get("peak_max"))
    frozen_ms = account.get("frozen_ms", 0)
    return {
        "runs": account.get("runs", 0),
        "wall_seconds": (account.get("run_ms", 0) + frozen_ms) / 1000,
        "suspended_seconds": frozen_ms / 1000,
        "cpu_seconds": round(account.get("cores.used", 0) / 1e6, 3) if is_measured else None,
        "memory_peak": account.get("peak_max") if is_measured else None,
        "read_bytes": account.get("read_bytes") if is_measured else None,
        "written_bytes": account.get("written_bytes") if is_measured else None,
        "gpu_memory_peak": account.get("gpu_memory_peak_max"),
        "beyond_cpu_seconds": _seconds(account.get("beyond_us")),
    }


def used_view(job: Job) -> replies.UsedView:
    """Return what an ended job used, with null for values that were not measured."""
    ran = job.started_at is not None and job.ended_at is not None
    wall_s = round(max(0.0, (job.ended_at or 0.0) - (job.started_at or 0.0)), 3) if ran else None
    frozen_s = round(job.frozen_s(job.ended_at or 0.0), 3) if ran else None
    # Every job has had some memory: a peak of zero means that it was not measured at all.
    is_measured = job.usage is not None and bool(job.usage.memory_peak_bytes)
    usage = job.usage if is_measured and job.usage is not None else Usage()
    # Only the use of GPUs and of cores beyond the lower end may be known from before a restart.
    kept = job.usage or usage
    return {
        "wall_seconds": wall_s,
        "suspended_seconds": frozen_s,
        "cpu_seconds": round(usage.cpu_s, 3) if is_measured else None,
        "late_cores": None if usage.late_cores_milli is None else usage.late_cores_milli / 1000,
        "memory_peak": usage.memory_peak_bytes if is_measured else None,
        "memory_mean": usage.memory_mean_bytes,
        "memory_working": usage.memory_working_bytes,
        "largest_process": usage.largest_process_bytes,
        "read_bytes": usage.read_bytes if is_measured else None,
        "written_bytes": usage.written_bytes if is_measured else None,
        "read_peak": usage.read_peak_bps,
        "write_peak": usage.write_peak_bps,
        "quota_periods": usage.quota_periods,
        "throttled_periods": usage.throttled_periods,
        "throttled_seconds": _seconds(usage.throttled_us),
        "limit_hits": usage.limit_hits,
        "oom_kills": usage.oom_kills,
        "io_stalled_seconds": _seconds(usage.io_stalled_us),
        "processes_peak": usage.processes_peak,
        "gpu_memory_peak": kept.gpu_memory_peak_bytes,
        "gpu_utilisation_mean": kept.gpu_mean_percent,
        "cores_peak": None if usage.cores_peak_milli is None else usage.cores_peak_milli / 1000,
        "beyond_cpu_seconds": _seconds(kept.beyond_us),
    }


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


# -- arrays ---------------------------------------------------------------------------------------


def array_view(array: Array, ended: TaskCounts, live: Mapping[JobState, int]) -> replies.ArrayView:
    """Return an array; `live` is the number of live tasks by state."""
    view = {
        **_submitted_view(array.common),
        **_owned_view(array.common, private=True),
        "array_tasks": array.indices,
        "tasks": array.size,
        "counts": {**ended.counts, **{state.value: count for state, count in live.items()}},
        "indices": {state: show_spans(array.spans_of(*ids)) for state, ids in ended.bad.items()},
    }
    return cast(replies.ArrayView, view)


def ended_array_view(view: replies.ArrayView, bad: Job | None) -> replies.EndedArrayView:
    """Return an array that has ended. `bad` is the first task that did not complete, or None."""
    code = Outcome.COMPLETED if bad is None or bad.outcome is None else bad.outcome
    parts = [f"{view['counts'].get(Outcome.COMPLETED, 0)} of {view['tasks']} tasks completed"]
    parts += [
        f"{view['counts'][state]} {state} ({_first(indices)})"
        for state, indices in view["indices"].items()
    ]
    return {
        **view,
        "state": code.value,
        "reason": None,
        "outcome": {"code": code.value, "text": "; ".join(parts)},
        "status": 0 if bad is None else exit_status(bad),
    }


def _first(indices: str) -> str:
    """Return the first indices, and an ellipsis if there are more than a sentence may name."""
    pieces = indices.split(",")
    return ",".join([*pieces[:_MOST_INDICES], *["…"] * (len(pieces) > _MOST_INDICES)])


# -- the machines ---------------------------------------------------------------------------------

LOCAL, SLURM = "local", "slurm"
UP, AWAY, DRAINED = "up", "away", "drained"
#: Why a node is away of which no more is known.
_NO_LAUNCHER = "no launcher takes orders for it"


def machine_views(
    ledger: Ledger,
    rules: Rules,
    *,
    away_since_s: float | None,
    causes: Mapping[str, str],
) -> list[replies.MachineView]:
    """Return the machines, the controller's own first. `away_since_s` is since when the only
    launcher has been away, for a single machine, or None; `causes` has why nodes are away of which
    more is known than that."""
    nodes = ledger.axes.nodes or (ClusterNode(name="", capacity=rules.capacity),)
    home, held, counts = ledger.axes.home, dict[str, Vector](), dict[str, int]()
    for job in ledger.allocated_jobs():
        name = job.node or home
        amounts = ledger.allocation(job).sums
        held[name] = plus(held[name], amounts) if name in held else amounts
        counts[name] = counts.get(name, 0) + 1
    found: list[replies.MachineView] = []
    for node in nodes:
        since_s = ledger.nodes_away.get(node.name) if ledger.axes.nodes else away_since_s
        own = ledger.drains.get(node.name) if node.name else None
        state, since_s, text = _standing(
            since_s, own or ledger.drains.get(""), causes.get(node.name) or _NO_LAUNCHER
        )
        view: replies.MachineView = {
            "name": node.name,
            "engine": LOCAL if node.name == home else SLURM,
            "features": sorted(node.features),
            "state": state,
            "since": since_s,
            "text": text,
            "capacity": resources_view(node.capacity),
            "allocated": resources_view(ledger.axes.resources(held.get(node.name, ledger.nothing))),
            "running": counts.get(node.name, 0),
        }
        if own is not None:
            view["drain"] = _drain_view(own)
        found.append(view)
    return found


def _standing(
    away_since_s: float | None, stop: ev.Drained | None, cause: str
) -> tuple[str, float | None, str]:
    """Return state, since when, and why. One that is away counts as that also while drained."""
    if away_since_s is not None:
        return AWAY, away_since_s, cause
    if stop is not None:
        return DRAINED, stop.stopped_s, stop.reason
    return UP, None, ""


# -- the fair-share tree and external load ---------------------------------------------------------


def external_view(external: ExternalLoad | None) -> replies.ExternalView | None:
    """Return the use by processes outside drfd and the capacity left to them, or None if they use
    no more than is reserved for them."""
    if external is None or external.is_of_instances_alone:
        return None
    return {
        "cores": external.used.cores_milli / 1000,
        "memory": external.used.memory_bytes,
        "kept": {
            "cores": external.kept.cores_milli / 1000,
            "memory": external.kept.memory_bytes,
        },
    }


def drain_part(ledger: Ledger) -> replies.DrainPart:
    """Return what is added to a reply while launching is stopped."""
    return {"drain": _drain_view(ledger.drains[""])} if ledger.draining else {}


def _drain_view(stop: ev.Drained) -> replies.DrainView:
    return {"by": stop.by, "since": stop.stopped_s, "reason": stop.reason}


def limit_hours_view(calendar: Calendar, now_s: float) -> list[replies.LimitHoursView]:
    """Return the limits now, and the next ones, of each node whose limits depend on the hour."""
    found: list[replies.LimitHoursView] = []
    for path, steps in sorted(calendar.steps.items()):
        until_s, limit = next(iter(steps.after(now_s)), (None, None))
        found.append(
            {
                "path": path,
                "limit": _limit_view(steps.at(now_s)),
                "until": until_s,
                "next": None if limit is None else _limit_view(limit),
                "text": steps.text(path, now_s, utc_time),
            }
        )
    return found


def _limit_view(limit: Limit) -> dict[str, float]:
    return {name: _shown_amount(name, most) for name, most in limit.items()}


def shares_view(
    ledger: Ledger,
    rules: Rules,
    external: ExternalLoad | None = None,
    debts: Mapping[str, Debt] = MappingProxyType({}),
    now_s: float = 0,
) -> replies.SharesReply:
    """Return every node of the tree with a job and every configured pool, in order of their paths.
    `debts` are those after a pass and are shown as they are at `now_s` (Unix time)."""
    # After a change of the configuration, more may be allocated than there is.
    free = not_negative(free_of(ledger, rules, external).sums)
    active = ledger.active_leaves()
    tree = rules.shares.share_tree(ledger.used, active)
    counts: dict[str, tuple[int, int]] = {}
    waiting = ledger.job_counts.waiting_of
    for leaf in {*active, *waiting}:
        running, pending = len(ledger.allocations.get(leaf, ())), waiting[leaf]
        for path in path_up(leaf):
            before = counts.get(path, (0, 0))
            counts[path] = before[0] + running, before[1] + pending
    nodes = {path: _node_view(path, tree, rules, counts[path]) for path in tree.charged}
    for path in (*(f"{ROOT}.{name}" for name in rules.pools), *counts):
        if path not in nodes:
            # One without a job that may start is shown as it would be with its first.
            tree.enter(path)
            tree.redivide()
            nodes[path] = _node_view(path, tree, rules, counts.get(path, (0, 0)))
            tree.leave(path)
    for path, debt in settled(debts, now_s, tree).items():
        if path in nodes:
            nodes[path]["debt"] = {
                "owed_hours": share_hours(debt.owed),
                "allowed_hours": share_hours(debt.allowed(rules.reserving.allowance_s)),
            }
    view: replies.SharesReply = {
        "capacity": resources_view(rules.axes.resources(rules.shares.capacity)),
        "free": resources_view(rules.axes.resources(free)),
        "nodes": [nodes[path] for path in sorted(nodes)],
    }
    if external is not None:
        view["external"] = external_view(external)
    return view


def _node_view(path: str, tree: ShareTree, rules: Rules, jobs: tuple[int, int]) -> replies.NodeView:
    """Return a node. `jobs` are the numbers of running and pending jobs in it and below."""
    used = tree.charged[path]
    dominant = rules.shares.dominant_axis(used)
    running, pending = jobs
    return {
        "path": path,
        "weight": _weight_view(rules.shares.rule(path), rules.axes),
        "entitlement": _number(tree.least_entitled(path)),
        "usage": resources_view(rules.axes.resources(used)),
        "dominant_resource": None if dominant is None else rules.axes.names[dominant],
        "dominant_share": _number(rules.shares.dominant_share(used)),
        "satisfaction": _number(tree.satisfaction(path)),
        "running": running,
        "pending": pending,
    }


def _weight_view(rule: NodeRule, axes: Axes) -> float | dict[str, float]:
    """Return one weight, or one for each resource where they differ."""
    weights = rule.weights or (Fraction(1),)
    if len(set(weights)) == 1:
        return float(weights[0])
    return {name: float(weight) for name, weight in zip(axes.names, weights, strict=True)}


def _number(share: Fraction) -> float:
    return round(float(share), 9)


# -- replies ---------------------------------------------------------------------------------------

#: Bytes of rows, beyond those of ordinary ones, after which a list is full: each row of a task has
#: the paths of its array.
FULL_BYTES, _ROW_BYTES = 8 << 20, 1 << 10
_encoder = msgspec.json.Encoder()

T = TypeVar("T")


@dataclass
class Listed(Generic[T]):
    """The rows of a reply until it is complete, each encoded at once: Python's garbage collector,
    which stops the loop, would visit each dictionary of a long list."""

    rows: list[T] = field(default_factory=list)
    #: Beyond those of ordinary rows.
    _size_bytes: int = 0

    def add(self, row: T) -> None:
        data = _encoder.encode(row)
        self._size_bytes += max(0, len(data) - _ROW_BYTES)
        self.rows.append(cast(T, msgspec.Raw(data)))

    @property
    def is_full(self) -> bool:
        return self._size_bytes > FULL_BYTES


def short_row(view: T) -> T:
    """Return a row without the texts of any length that only its owner may see."""
    shown = dict(cast(Any, view)) | dict.fromkeys(_SECRET)
    if shown["outcome"] is not None:
        shown["outcome"] = {**shown["outcome"], "text": ""}
    return cast(T, shown)


def error_view(error: DrfdError) -> replies.ErrorView:
    return {
        "kind": type(error).__name__,
        "code": error.code,
        "text": error.text,
        "hint": error.hint,
    }
