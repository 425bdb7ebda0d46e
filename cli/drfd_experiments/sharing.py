"""Figure 8: two jobs share a cluster, and their tasks change twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drfd.sim.figures import Panel, Point
from drfd_experiments.cluster import Batch, Cluster, SharingScheme, run, vector
from drfd_experiments.figures import Cell, Column, Figure, Table
from drfd_experiments.worked import divide

JOBS = ("job 1", "job 2")
#: CPUs and GB that the paper's nodes had for tasks.
NODE = (4, 14)
NODES = 48
_PHASE_S = 120
#: Run time of a task. The paper does not give it; short tasks show the change between phases.
_TASK_S = 10


@dataclass(frozen=True, slots=True)
class Phase:
    #: (CPUs, GB) of a task of each job.
    demands: tuple[tuple[int, int], tuple[int, int]]
    #: The paper's words on the dominant shares.
    paper: str


PHASES = (
    Phase(((1, 10), (1, 1)), "about 70 % of memory, 75 % of CPUs"),
    Phase(((2, 4), (1, 3)), "equal shares of CPUs"),
    Phase(((1, 7), (1, 4)), "shares of memory, not quite equal"),
)


#: Job → (CPU, memory) as parts of the machine, for each second.
Shares = Mapping[str, Sequence[tuple[float, float]]]


def expected(phase: Phase, nodes: int, mode: str = "continuous") -> list[float]:
    """Return the dominant share of each job on an empty machine, by a mode of `alloc`."""
    machine = dict(zip(("CPU", "memory"), (each * nodes for each in NODE), strict=True))
    found = divide(machine, dict(zip(JOBS, phase.demands, strict=True)), mode=mode)
    return [float(found.dominant_share(job)) for job in JOBS]


def simulate(seed: int, *, nodes: int, phase_s: int, task_s: float) -> Shares:
    """Return the shares of both jobs on so many nodes, in phases and with tasks of this length."""
    cluster = Cluster(nodes=nodes, node=vector(*NODE))
    batches = [
        Batch(
            user=job,
            # More tasks than can start in a phase.
            tasks=int(2 * phase_s // task_s) * nodes * NODE[0] + nodes * NODE[0],
            demand=vector(*demand),
            task_s=task_s,
            at_s=number * phase_s,
            until_s=(number + 1) * phase_s,
        )
        for number, phase in enumerate(PHASES)
        for job, demand in zip(JOBS, phase.demands, strict=True)
    ]
    way = SharingScheme(name="DRF", policy="drf", reserves=True)
    outcome = run(batches, cluster, way, step_s=1, seed=seed, end_s=phase_s * len(PHASES))
    top = cluster.capacity
    return {
        job: [(cores / top[0], memory / top[1]) for cores, memory in held]
        for job, held in outcome.held.items()
    }


def figure8(seed: int, *, nodes: int = NODES, phase_s: int = _PHASE_S) -> Figure:
    shares = simulate(seed, nodes=nodes, phase_s=phase_s, task_s=_TASK_S)
    return Figure(
        name="fig8",
        title="Figure 8: two jobs whose tasks change every two minutes, under DRF",
        about=[
            f"{nodes} nodes with {NODE[0]} CPUs and {NODE[1]} GB each; phases of {phase_s} s.",
            f"Tasks run about {_TASK_S} s (the paper does not say); each runs on one node.",
            "A running task keeps what it has: a new phase comes in as the old tasks end.",
        ],
        tables=[phase_table(shares, phase_s, nodes)],
        panels=panels(shares),
        notes=[
            "DRF evens out the dominant shares; whole tasks on single nodes keep it from the share "
            "that tasks would have that could be cut.",
            "In phase 1 one task of 10 GB and three of 1 GB fill a node: 71 % and 75 %.",
            "In phase 3 a node has room for one of 7 GB and one of 4 GB, or for three of 4 GB: "
            "what is left over goes to job 2, and 3 GB or 2 GB of each node to nobody. The paper "
            "names the same cause.",
        ],
    )


def steady(shares: Shares, job: str, phase: int, phase_s: int) -> tuple[float, float]:
    """Return the mean parts in the second half of a phase, when its first tasks have ended."""
    rows = shares[job][phase * phase_s + phase_s // 2 : (phase + 1) * phase_s]
    cpu, memory = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return cpu, memory


def phase_table(shares: Shares, phase_s: int, nodes: int) -> Table:
    """Return the table of a run, simulated or on a real machine, from its shares by second."""
    rows: list[list[Cell]] = []
    for number, phase in enumerate(PHASES):
        ideal = expected(phase, nodes)
        for job, (cpus, gb), goal in zip(JOBS, phase.demands, ideal, strict=True):
            cpu, memory = steady(shares, job, number, phase_s)
            said = phase.paper if job == JOBS[0] else ""
            task = f"{cpus} CPU, {gb} GB"
            rows.append([number + 1, job, task, cpu, memory, max(cpu, memory), goal, said])
    columns = [
        Column("PHASE"), Column("JOB"), Column("TASK"), Column("CPU", "%"), Column("MEM", "%"),
        Column("DOMINANT", "%"), Column("IF CUT", "%"), Column("THE PAPER"),
    ]  # fmt: skip
    return Table(title="Mean shares in the second half of each phase", columns=columns, rows=rows)


def panels(shares: Shares) -> list[Panel]:
    def curves(value: int | None) -> dict[str, list[Point]]:
        return {
            job: [(at, max(row) if value is None else row[value]) for at, row in enumerate(rows)]
            for job, rows in shares.items()
        }

    names = (("CPU", 0), ("Memory", 1), ("Dominant share", None))
    return [
        Panel(title=name, x="seconds", y="share", curves=curves(value), top=1.0, steps=True)
        for name, value in names
    ]
