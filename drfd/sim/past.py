"""This machine's own past as a workload: the jobs that a daemon tells of in `history`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from drfd.core.resources import Resources
from drfd.core.rules import Claim, Pool
from drfd.sim.forms import pool_name
from drfd.sim.pools import Shape
from drfd.sim.rows import Bad, Found, collect
from drfd.sim.workload import Workload

#: One object of the daemon's JSON.
View = Mapping[str, Any]

_SEVERAL_DISKS = "the disks of this machine count as one here, with the sums of their rates"
_PREEMPTED = "jobs that were tried again count once, with the run time of their last attempt"


def of_history(jobs: Iterable[View]) -> Workload:
    """The jobs that have run, in any order; the others are named as those that never started."""
    seen = list(jobs)
    notes = []
    if any("disks" in job["demand"] for job in seen):
        notes.append(_SEVERAL_DISKS)
    if any(job["attempt"] > 1 for job in seen):
        notes.append(_PREEMPTED)
    found = collect(_found(seen), source="the history of this machine", kind="drf history")
    return replace(found, notes=tuple(notes), unit="job")


def amount_of(view: View) -> Resources:
    return Resources(
        cores_milli=round(view["cores"] * 1000),
        memory_bytes=view["memory"],
        read_bps=view["read"],
        write_bps=view["write"],
        gres=tuple(sorted((name, count) for name, count in view["gres"].items() if count)),
    )


def shape_of(nodes: Iterable[View], workload: Workload) -> Shape:
    """The weights that the daemon tells of now; what it has no node of weighs 1. Limits and
    guarantees are not among what it tells."""
    weights = {node["path"].removeprefix("root."): node["weight"] for node in nodes}
    pools = {
        group: Pool(**_weight(weights.get(group, 1)))
        for group in {job.group for job in workload.jobs if job.group}
    }
    members = {}
    for job in workload.jobs:
        name = job.user if job.group is None else f"{job.group}.{job.user}"
        if name in weights and weights[name] != 1:
            members[job.group or "", job.user] = Claim(**_weight(weights[name]))
    return Shape(pools=pools, members=members)


def _weight(weight: float | Mapping[str, float]) -> dict[str, Any]:
    if isinstance(weight, Mapping):
        return {"weights": {name: Fraction(str(each)) for name, each in weight.items()}}
    return {"weight": Fraction(str(weight))}


def _found(jobs: Iterable[View]) -> Iterator[tuple[int, Callable[[], Found]]]:
    for job in sorted(jobs, key=lambda job: int(job["id"])):
        yield job["id"], lambda job=job: _job(job)  # type: ignore[misc]


def _job(job: View) -> Found:
    if job["started_at"] is None:
        raise Bad("it never started")
    frozen_s = (job.get("used") or {}).get("suspended_seconds") or 0.0
    return Found(
        name=str(job["id"]),
        submit_s=job["submitted_at"],
        run_s=max(0.0, job["ended_at"] - job["started_at"] - frozen_s),
        demand=amount_of(job["demand"]),
        limit_s=job["time_limit_s"],
        user=job["user"],
        group=pool_name(job["pool"], job["user"]),
    )
