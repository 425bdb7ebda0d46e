"""What a run is judged by, as figures under names: documented JSON, and the source of all tables.

All of it follows from the run alone, so equal runs have equal figures, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

from drfd.sim.driver import Ran, Run
from drfd.sim.overtime import over_time
from drfd.sim.workload import SimJob

View = dict[str, Any]

#: Jobs that run shorter count as if they ran so long: else a job of a second that waits for a
#: minute would say more than all others.
SLOWDOWN_LEAST_S = 10.0
#: Where one class of sizes ends and the next begins: parts of the machine, in whichever resource a
#: job asks for the most of.
SIZES = (0.01, 0.1)


def measure(run: Run) -> View:
    waits = [ran.wait_s for ran in run.ran]
    slowdowns = [slowdown(ran) for ran in run.ran]
    first_s = min((ran.job.submit_s for ran in run.ran), default=0.0)
    last_s = max((ran.end_s for ran in run.ran), default=0.0)
    span_s = last_s - first_s
    found = over_time(run)
    worst = found.worst
    return {
        "policy": run.policy,
        "estimates": run.estimates,
        "jobs": len(run.ran),
        "refused": len(run.refused),
        "unstarted": len(run.unstarted),
        "passes": run.passes,
        "span_s": span_s,
        "jobs_per_hour": len(run.ran) / span_s * 3600 if span_s else None,
        "wait_s": spread(waits),
        "slowdown": spread(slowdowns),
        "use": _use(run, span_s),
        "promise_kept": {
            "mean": _mean(list(found.kept.values())),
            "least": _least(found.kept),
            "worst_window": None
            if worst is None
            else {
                "kept": worst.kept,
                "leaf": worst.leaf,
                "start_s": worst.start_s - first_s,
                "length_s": worst.length_s,
            },
        },
        "envy": found.envy,
        "longest_wait_s": _by_size(run),
        "largest_job": _largest(run),
        "users": _users(run, found.kept),
    }


def slowdown(ran: Ran) -> float:
    """Bounded slowdown: the time from submission to end, over the time that it ran."""
    return max(1.0, (ran.wait_s + ran.job.run_s) / max(ran.job.run_s, SLOWDOWN_LEAST_S))


def size(job: SimJob, run: Run) -> float:
    """The largest part that the job asks for of any resource of the machine."""
    return float(run.rules.shares.dominant_share(run.rules.axes.vector(job.demand)))


def spread(values: Sequence[float]) -> View:
    """Mean, and percentiles by the nearest rank; None where there is nothing."""
    ordered = sorted(values)

    def at(percent: int) -> float | None:
        return ordered[max(1, ceil(len(ordered) * percent / 100)) - 1] if ordered else None

    return {
        "mean": _mean(ordered),
        "median": at(50),
        "p95": at(95),
        "p99": at(99),
        "max": at(100),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _least(by_leaf: dict[str, float]) -> View | None:
    leaf = min(by_leaf, key=lambda each: (by_leaf[each], each), default=None)
    return None if leaf is None else {"kept": by_leaf[leaf], "leaf": leaf}


def _use(run: Run, span_s: float) -> View:
    """The mean part of each resource that was held, from the first submission to the last end."""
    rules = run.rules
    sums = [0.0] * len(rules.room)
    for ran in run.ran:
        for axis, amount in enumerate(rules.axes.vector(ran.job.demand)):
            sums[axis] += amount * ran.job.run_s
    rows = zip(rules.axes.names, sums, rules.room, strict=True)
    return {name: held / (top * span_s) if span_s else 0.0 for name, held, top in rows if top}


def _by_size(run: Run) -> list[View]:
    longest: list[list[Any]] = [[0, None] for _ in (*SIZES, 1)]
    sizes: dict[object, int] = {}
    for ran in run.ran:
        at = sizes.get(ran.job.demand)
        if at is None:
            at = sizes[ran.job.demand] = sum(size(ran.job, run) >= bound for bound in SIZES)
        longest[at][0] += 1
        longest[at][1] = max(ran.wait_s, longest[at][1] or 0.0)
    bounds = zip((0.0, *SIZES), (*SIZES, None), strict=True)
    return [
        {"from": low, "below": high, "jobs": jobs, "longest_wait_s": wait_s}
        for (low, high), (jobs, wait_s) in zip(bounds, longest, strict=True)
    ]


def _largest(run: Run) -> View | None:
    """The job that asks for the most; of equal ones the first."""
    asked = {ran.job.demand: ran.job for ran in run.ran}
    if not asked:
        return None
    most = max(asked, key=lambda demand: size(asked[demand], run))
    ran = min((each for each in run.ran if each.job.demand == most), key=lambda each: each.job.id)
    return {"name": ran.job.name, "share": size(ran.job, run), "wait_s": ran.wait_s}


def _users(run: Run, kept: dict[str, float]) -> View:
    by_leaf: dict[str, list[Ran]] = {}
    for ran in run.ran:
        by_leaf.setdefault(run.leaves[ran.job.id], []).append(ran)
    return {
        leaf: {
            "user": rans[0].job.user,
            "jobs": len(rans),
            "wait_s": spread([ran.wait_s for ran in rans]),
            "slowdown": spread([slowdown(ran) for ran in rans]),
            "promise_kept": kept.get(leaf),
            "share": _held(run, rans),
        }
        for leaf, rans in sorted(by_leaf.items())
    }


def _held(run: Run, rans: Iterable[Ran]) -> float:
    """The user's part of all that was held, of the resource of which that is the most."""
    rules = run.rules
    mine = [0.0] * len(rules.room)
    for ran in rans:
        for axis, amount in enumerate(rules.axes.vector(ran.job.demand)):
            mine[axis] += amount * ran.job.run_s
    first_s = min(ran.job.submit_s for ran in run.ran)
    span_s = max(ran.end_s for ran in run.ran) - first_s
    pairs = zip(mine, rules.room, strict=True)
    return max((held / (top * span_s) for held, top in pairs if top and span_s), default=0.0)
