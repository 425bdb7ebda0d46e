"""Figures 9 to 12: DRF against slots and against fair shares of the CPU alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from drfd_experiments.cluster import (
    SWAP_COST,
    Batch,
    Cluster,
    ClusterRun,
    SharingScheme,
    vector,
)
from drfd_experiments.figures import Cell, Figure, Table, headers

NODE = (8, 6)
NODES = 48
RUN_S = 600
_JOB_TASKS = 80
_USERS_OF_A_KIND = 4
#: Run time of a task. The paper does not give it; with this one its 35 large jobs end under DRF.
_TASK_S = 16.5


@dataclass(frozen=True, slots=True)
class TaskKind:
    name: str
    #: CPUs and GB of a task.
    cpus: int
    gb: float


LARGE = TaskKind("large", 2, 2)
SMALL = TaskKind("small", 1, 0.5)

#: The ways to share, with the large jobs that the paper has for each in figure 9; its text gives no
#: numbers for figures 10 to 12.
WAYS = {
    SharingScheme(name="DRF", policy="drf"): 35,
    **{
        SharingScheme(name=f"{slots} slots", policy="slots", slots=slots): jobs
        for slots, jobs in ((3, 33), (4, 30), (5, 17), (6, 8))
    },
    SharingScheme(name="CPU-fair", policy="cpu"): 13,
}


@dataclass(frozen=True, slots=True)
class MacroResult:
    """The result of one way to share the cluster."""

    way: SharingScheme
    outcome: ClusterRun

    def jobs(self, kind: TaskKind) -> int:
        return len(self._times(kind))

    def response_s(self, kind: TaskKind) -> float | None:
        """Return the mean time from submission to end, or None if no job has ended."""
        times = self._times(kind)
        return sum(times) / len(times) if times else None

    def _times(self, kind: TaskKind) -> list[float]:
        ended = self.outcome.ended
        return [each.took_s for each in ended if each.batch.user.startswith(kind.name)]


@cache
def results(seed: int, nodes: int) -> tuple[MacroResult, ...]:
    """Simulate all ways to share the cluster. The four figures show the same runs."""
    cluster = Cluster(nodes=nodes, node=vector(*NODE))
    batches = [
        Batch(
            user=f"{kind.name} {number}",
            tasks=_tasks(nodes),
            demand=vector(kind.cpus, kind.gb),
            task_s=_TASK_S,
            repeats=True,
        )
        for kind in (LARGE, SMALL)
        for number in range(1, _USERS_OF_A_KIND + 1)
    ]
    return tuple(
        MacroResult(way, ClusterRun(batches, cluster, way, step_s=1, seed=seed).run(RUN_S))
        for way in WAYS
    )


def figure(number: int, seed: int, nodes: int) -> Figure:
    """Return a figure: 9 and 10 count the large and the small jobs, 11 and 12 time them."""
    kind = LARGE if number in (9, 11) else SMALL
    counts = f"{kind.name} jobs completed"
    title = counts if number in (9, 10) else f"mean response time of {kind.name} jobs"
    about = [
        f"{nodes} nodes with {NODE[0]} CPUs and {NODE[1]} GB each, {RUN_S} s.",
        f"Four users have large jobs (tasks of 2 CPUs, 2 GB) and four small ones (1 CPU, 0.5 GB): "
        f"{_tasks(nodes)} tasks a job, the next one when it has ended.",
        f"Tasks run about {_TASK_S} s (the paper does not say; so 35 large jobs end under DRF).",
        "Slots take any task, and CPU-fair looks at CPUs alone: both overcommit memory. A model "
        "stands for the swapping: on a node whose tasks need more than it has, where the part f "
        f"of that does not fit, all take 1 + {SWAP_COST} f^2 times as long.",
    ]
    rows: list[list[Cell]] = [
        [
            *(each.way.name, each.jobs(LARGE), WAYS[each.way], each.jobs(SMALL)),
            *(each.response_s(LARGE), each.response_s(SMALL), each.outcome.overcommitted),
        ]
        for each in results(seed, nodes)
    ]
    columns = headers(
        "SHARED BY, LARGE JOBS, PAPER, SMALL JOBS, LARGE TAKE s, SMALL TAKE s, OVERCOMMITTED %"
    )
    shows = "Jobs completed, their mean response times, node time with too little memory"
    table = Table(title=shows, columns=columns, rows=rows)
    name = f"fig{number}"
    return Figure(name=name, title=f"Figure {number}: {title}", about=about, tables=[table])


def _tasks(nodes: int) -> int:
    """Return the number of tasks of a job: as many for each node as in the paper."""
    return max(1, _JOB_TASKS * nodes // NODES)
