"""What clients are shown: the documented JSON, and nothing else of the daemon's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from signal import SIGTERM
from typing import Any

from drfd.core import events as ev
from drfd.core.decide import free_of
from drfd.core.external import ExternalLoad
from drfd.core.fairshare import Standing
from drfd.core.job import Job, JobState, Outcome, Usage, output_path
from drfd.core.ledger import Ledger
from drfd.core.outcome import signal_name
from drfd.core.reasons import Reason
from drfd.core.resources import Axes, Resources, Vector
from drfd.core.retry import attempts_text
from drfd.core.rules import ROOT, Rules
from drfd.core.tree import NodeRule, path_up
from drfd.errors import DrfdError
from drfd.indices import count_of

View = dict[str, Any]


def resources_view(amount: Resources) -> View:
    """Cores as a number, sizes in bytes, rates in bytes per second: where there are several disks,
    their sums, and each by its name besides."""
    read_bps, write_bps = amount.rate_sums
    view: View = {
        "cores": amount.cores_milli / 1000,
        "memory": amount.memory_bytes,
        "read": read_bps,
        "write": write_bps,
        "gres": dict(amount.gres),
    }
    if amount.disks:
        view["disks"] = {name: {"read": read, "write": write} for name, read, write in amount.disks}
    return view


def usage_view(usage: Usage | None) -> View:
    usage = usage or Usage()
    return {
        "cores": usage.cores_milli / 1000,
        "memory": usage.memory_bytes,
        "memory_peak": usage.memory_peak_bytes,
        "read_bytes": usage.read_bytes,
        "written_bytes": usage.written_bytes,
        "cpu_seconds": round(usage.cpu_s, 3),
    }


def job_view(
    job: Job,
    *,
    reason: Reason | None,
    usage: Usage | None,
    private: bool,
    expected_start_s: float | None = None,
) -> View:
    """One job. Without `private`, what only its owner may see is null. `expected_start_s`: when it
    starts if all ends as estimated, where that is known."""
    ended = job.state is JobState.ENDED
    outcome = None
    if ended and job.outcome is not None:
        # Why a launch failed may name paths and commands of the owner's.
        outcome = {"code": job.outcome.value, "text": job.outcome_text if private else ""}
    stdout = output_path(job.spec.stdout, job)
    stderr = output_path(job.spec.stderr, job)
    view = {
        "id": job.id,
        "array_id": job.array_id,
        "array_index": job.array_index,
        "name": job.spec.name,
        "user": job.spec.user,
        "uid": job.spec.uid,
        "pool": job.spec.pool,
        "state": job.shown_state,
        "reason": reason_view(reason),
        "demand": resources_view(job.spec.demand),
        "time_limit_s": job.spec.time_limit_s,
        "priority": job.spec.priority,
        "attempt": job.attempt,
        "submitted_at": job.submitted_at,
        "eligible_at": job.eligible_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at if ended else None,
        "expected_start_at": expected_start_s,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "outcome": outcome,
        "usage": usage_view(job.usage or usage),
        "cwd": job.spec.cwd if private else None,
        "argv": list(job.spec.argv) if private else None,
        "stdout": stdout if private else None,
        "stderr": stderr if private else None,
        "cgroup": job.cgroup,
    }
    if job.spec.demand.gres:
        # Which of them it has, or had; of a job that waits, none.
        view["gres_instances"] = {name: list(some) for name, some in job.instances}
    return view


def reason_view(reason: Reason | None) -> View | None:
    return None if reason is None else {"code": reason.code.value, "text": reason.text}


def event_view(event: ev.Event, name_of: Callable[[int], str] = str) -> View:
    """One line of a job's history: when, what, and what is worth saying of it. `name_of`: what
    people call another job."""
    text = ""
    match event:
        case ev.Admitted():
            text = f"attempt {event.attempt}"
            text += "".join(f", {name} {','.join(some)}" for name, some in event.instances)
        case ev.Retried():
            text = f"after attempt {event.attempt}"
        case (
            ev.LaunchFailed()
            | ev.StopRequested()
            | ev.PreemptRequested()
            | ev.SuspendRequested()
            | ev.Exited()
        ):
            text = event.text
        case ev.Cleaned() if event.notice is not None:
            text = f"notification {event.notice}"
        case ev.ArraySubmitted():
            text = f"{count_of(event.spans)} tasks"
        case ev.Held() | ev.Released() | ev.Cancelled() | ev.ResumeRequested():
            text = f"by {event.by}"
        case ev.DependencySettled():
            text = f"job {name_of(event.on)} ended {event.outcome}"
        case ev.Warned():
            text = f"the time limit is near: {_signal(event.signal)} sent"
        case ev.SignalRequested():
            text = f"{_signal(event.signal)}, by {event.by}"
        case ev.Changed():
            text = f"{event.text}, by {event.by}"
        case _:
            pass
    return {"at": event.at_s, "event": type(event).__name__, "text": text}


def conditions_view(job: Job, name_of: Callable[[int], str] = str) -> View:
    """What was said at the submission of when it may start, and of further tries."""
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
        else {"signal": _signal(warn.signal), "before_s": warn.before_s},
        "attempts": attempts_text(job),
    }


def _signal(number: int) -> str:
    name = signal_name(number)
    return name if name.startswith("SIG") else f"signal {number}"


def external_view(external: ExternalLoad | None) -> View | None:
    """What processes outside drfd use, and how much of the capacity is left to them; None: they
    use no more than is there for them."""
    if external is None:
        return None
    return {
        "cores": external.used.cores_milli / 1000,
        "memory": external.used.memory_bytes,
        "kept": {
            "cores": external.kept.cores_milli / 1000,
            "memory": external.kept.memory_bytes,
        },
    }


def shares_view(ledger: Ledger, rules: Rules, external: ExternalLoad | None = None) -> View:
    """Every active node of the tree, and every configured pool, by path."""
    free = free_of(ledger, rules, external)
    active = ledger.active_leaves()
    standing = rules.shares.standing(ledger.used, active)
    counts: dict[str, tuple[int, int]] = {}
    for leaf in active:
        running, pending = len(ledger.holding.get(leaf, ())), len(ledger.queues.get(leaf, ()))
        for path in path_up(leaf):
            before = counts.get(path, (0, 0))
            counts[path] = before[0] + running, before[1] + pending
    nodes = {path: _node_view(path, standing, rules, counts[path]) for path in standing.used}
    for name in rules.pools:
        path = f"{ROOT}.{name}"
        if path not in nodes:
            # As it would stand if somebody came.
            standing.enter(path)
            standing.settle()
            nodes[path] = _node_view(path, standing, rules, (0, 0))
            standing.leave(path)
    view = {
        "capacity": resources_view(rules.capacity),
        "free": resources_view(rules.axes.resources(_not_negative(free))),
        "nodes": [nodes[path] for path in sorted(nodes)],
    }
    return view if external is None else view | {"external": external_view(external)}


def _node_view(path: str, standing: Standing, rules: Rules, jobs: tuple[int, int]) -> View:
    """`jobs`: how many run and wait, in it and below."""
    used = standing.used[path]
    dominant = rules.shares.dominant_axis(used)
    running, pending = jobs
    return {
        "path": path,
        "weight": _weight_view(rules.shares.rule(path), rules.axes),
        "entitlement": _number(standing.entitlement(path)),
        "usage": resources_view(rules.axes.resources(used)),
        "dominant_resource": None if dominant is None else rules.axes.names[dominant],
        "dominant_share": _number(rules.shares.dominant_share(used)),
        "satisfaction": _number(standing.satisfaction(path)),
        "running": running,
        "pending": pending,
    }


def _weight_view(rule: NodeRule, axes: Axes) -> float | dict[str, float]:
    """One number, or one for each resource where they differ."""
    weights = rule.weights or (Fraction(1),)
    if len(set(weights)) == 1:
        return float(weights[0])
    return {name: float(weight) for name, weight in zip(axes.names, weights, strict=True)}


def error_view(error: DrfdError) -> View:
    return {
        "kind": type(error).__name__,
        "code": error.code,
        "text": error.text,
        "hint": error.hint,
    }


def exit_status(job: Job) -> int:
    """What `wait`, `run` and `submit --wait` exit with for this job."""
    match job.outcome:
        case Outcome.TIMEOUT:
            return 124
        case Outcome.OUT_OF_MEMORY:
            return 137
        case _ if job.signal is not None:
            return 128 + job.signal
        case Outcome.CANCELLED | Outcome.LIMIT_EXCEEDED if job.exit_code == 0:
            # It took the SIGTERM and left in order, and has not done what it was to do.
            return 128 + SIGTERM
        case _ if job.exit_code is not None:
            return job.exit_code
        case _:
            return 125


def counts_view(rows: Sequence[View]) -> dict[str, int]:
    """Jobs by state; a row may stand for many tasks."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + row.get("tasks", 1)
    return counts


def _not_negative(vector: Vector) -> Vector:
    """After a change of configuration more may be booked than there is: nothing is free then."""
    return tuple(max(0, amount) for amount in vector)


def _number(share: Fraction) -> float:
    return round(float(share), 9)
