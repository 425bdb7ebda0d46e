"""The speeds of the running jobs of a simulation, by the cores that are lent to them.

A job's use of its declared cores is known only as a mean: its processor time over its run time. It
is taken for a part of the time in which the job kept all its cores busy, and a rest in which it
used none. With more cores the busy part takes less time, in proportion (a perfect speed-up, so
results are upper bounds), and the rest takes as long as before. A job whose processor time is not
known counts as busy all the time.

Between two changes of what runs, all uses stay the same; so the ceilings, which the daemon moves
each second, are at rest. Their division is therefore made once for each change, by the daemon's
`core.lending`, and the seconds that its loop takes to follow are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.share_tree import FairShare
from drfd.core.lending import Claim, divide, node_of, places_of
from drfd.sim.driver import Speeds
from drfd.sim.workload import SimJob, Workload

#: The place of cores in a vector, which has thousandths of them.
_CORES, _UNIT = 0, 1000


def busy_part(job: SimJob) -> float:
    """Return the part of its time in which the job keeps its declared cores busy."""
    if job.cpu_s is None:
        return 1.0
    most_s = job.demand.cores_milli / 1000 * job.run_s
    return min(1.0, job.cpu_s / most_s) if most_s else 0.0


def work_s(job: SimJob) -> float:
    """Return the job's processor time in core-seconds."""
    return busy_part(job) * job.demand.cores_milli / 1000 * job.run_s


class Lender(Speeds):
    """The speeds of jobs that are lent the cores that others leave idle."""

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        #: Running job → its leaf, and its use of cores, on average over its busy and its idle time:
        #: with its declared cores, and with the most that it may be lent.
        self._jobs: dict[int, tuple[str, Claim]] = {}
        #: Running jobs that may be lent something.
        self._borrowing = 0

    def start(self, job: SimJob, leaf: str, node: str, now_s: float) -> None:
        floor = job.demand.cores_milli / 1000
        most = max(floor, min(job.most_cores_milli, self._shares.capacity[_CORES]) / 1000)
        busy = busy_part(job)
        least = busy * floor
        fastest = least / (1 - busy + busy * floor / most) if least else 0.0
        self._jobs[job.id] = leaf, Claim(job_id=job.id, least=least, most=fastest, weight=floor)
        self._borrowing += fastest > least

    def end(self, job: SimJob, now_s: float) -> Sequence[SimJob]:
        _, claim = self._jobs.pop(job.id)
        self._borrowing -= claim.most > claim.least
        return ()

    def changed(self, used: Mapping[str, Vector], now_s: float) -> Mapping[int, float]:
        if not self._borrowing:
            return {}
        cores = self._shares.capacity[_CORES] / _UNIT
        claims = {job_id: claim for job_id, (_, claim) in self._jobs.items()}
        parts = {job_id: claim.most for job_id, claim in claims.items()}
        if sum(parts.values()) > cores:
            own: dict[str, list[Claim]] = {}
            for leaf, claim in self._jobs.values():
                own.setdefault(leaf, []).append(claim)
            places = places_of(self._shares, used, _CORES, _UNIT)
            parts = divide(node_of(own, places), cores)
        return {
            job_id: max(1.0, parts[job_id] / claim.least) if claim.most > claim.least else 1.0
            for job_id, claim in claims.items()
        }


def for_lending(work: Workload, factor: float | None) -> Workload:
    """Return the workload with the run times that its jobs have on their declared cores alone.

    With a factor, each job may use so many times the cores that it declares; otherwise each has its
    own range. Notes say what was assumed.
    """
    jobs = [_prepared(job, factor) for job in work.jobs]
    notes = [
        "lending: the time in which a job keeps its cores busy shortens in proportion to the cores "
        "lent to it: an upper bound"
    ]
    if factor is not None:
        notes.append(f"as if each job could use {factor:g} times the cores that it declares")
    elif not any(job.most_cores_milli > job.demand.cores_milli for job in jobs):
        notes.append("no job has a range, so nothing is lent; --ranges 4 gives them all one")
    unknown = sum(job.cpu_s is None for job in jobs)
    if unknown:
        notes.append(
            f"{unknown:,} of {len(jobs):,} jobs say nothing of their processor time, and count as "
            "busy on all their cores all the time"
        )
    slower = sum(new.run_s > old.run_s for new, old in zip(jobs, work.jobs, strict=True))
    if slower:
        they, take = ("it", "takes") if slower == 1 else ("they", "take")
        its = "its" if slower == 1 else "their"
        notes.append(
            f"{slower:,} {'job' if slower == 1 else 'jobs'} used more cores than {they} declared; "
            f"without lending {they} {take} as long as {its} processor time does on what {they} "
            "declared"
        )
    return replace(work, jobs=jobs, notes=(*work.notes, *notes))


def _prepared(job: SimJob, factor: float | None) -> SimJob:
    cores = job.demand.cores_milli / 1000
    run_s = job.run_s
    if job.cpu_s is not None and cores and job.cpu_s > cores * run_s:
        run_s = job.cpu_s / cores
    most_milli = job.most_cores_milli
    if factor is not None:
        most_milli = round(job.demand.cores_milli * factor)
    return replace(job, run_s=run_s, most_cores_milli=most_milli)
