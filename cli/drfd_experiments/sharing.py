"""The worked examples, and figure 8: two jobs share a cluster, and their tasks change twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from drfd_experiments.alloc import Allocation, Spec, User, allocate
from drfd_experiments.cluster import Batch, Cluster, ClusterRun, SharingScheme, vector
from drfd_experiments.figures import Cell, Figure, Table, headers, means_over_time

#: Resource → the amount of it, and user → the amounts of one task.
_PAPER_MACHINE = {"CPU": 9, "memory": 18}
_PAPER_USERS = {"A": (1, 4), "B": (3, 1)}
_NAMES = {"drf": "DRF", "asset": "asset fairness", "ceei": "CEEI"}


def divide(
    machine: Mapping[str, int],
    users: Mapping[str, tuple[int, ...]],
    policy: str = "drf",
    mode: str = "continuous",
) -> Allocation:
    """Divide a small machine among users with endless work."""
    capacity = {name: Decimal(top) for name, top in machine.items()}
    wanting = [
        User(name=name, demand=dict(zip(machine, map(Decimal, demand), strict=True)))
        for name, demand in users.items()
    ]
    return allocate(Spec(policy=policy, mode=mode, capacity=capacity, users=wanting))


def table1() -> Figure:
    count: Counter[str] = Counter()
    rows: list[list[Cell]] = []
    for name in divide(_PAPER_MACHINE, _PAPER_USERS, mode="discrete").order:
        count[name] += 1
        held = [
            [count[user] * amount / top for amount, top in pairs]
            for user, demand in _PAPER_USERS.items()
            for pairs in [zip(demand, _PAPER_MACHINE.values(), strict=True)]
        ]
        rows.append([name, *(part for parts in held for part in (*parts, max(parts)))])
        rows[-1] += [sum(column) for column in zip(*held, strict=True)]
    columns = headers(
        "SERVED, A CPU %, A MEM %, A DOMINANT %, B CPU %, B MEM %, B DOMINANT %, "
        "CPU USED %, MEM USED %"
    )
    return Figure(
        name="table1",
        title="Table 1: DRF serves two users, task by task",
        about=[
            "9 CPUs and 18 GB; a task of A needs 1 CPU and 4 GB, one of B 3 CPUs and 1 GB.",
            "The user with the least dominant share is served, until nothing fits.",
        ],
        tables=[Table(title="After each task that starts", columns=columns, rows=rows)],
    )


def figure4() -> Figure:
    paper = {"drf": "3 and 2", "asset": "2.5 and 2.2", "ceei": "4.1 and 1.6"}
    rows: list[list[Cell]] = []
    for policy in paper:
        found = divide(_PAPER_MACHINE, _PAPER_USERS, policy)
        for user, parts in found.shares.items():
            row = [float(part) for part in parts.values()]
            said = f"{paper[policy]} tasks" if user == "A" else ""
            rows.append([_NAMES[policy], user, float(found.tasks[user]), *row, said])
    columns = headers("POLICY, USER, TASKS, CPU %, MEM %, THE PAPER")
    return Figure(
        name="fig4",
        title="Figure 4: three ways to divide one machine",
        about=[
            "9 CPUs and 18 GB as in Table 1, with tasks that can be cut.",
            "Asset fairness counts 1 CPU as worth 2 GB, for the machine has twice as many.",
        ],
        tables=[Table(title="What each user gets", columns=columns, rows=rows)],
    )


def _compared(
    name: str,
    title: str,
    about: Sequence[str],
    capacity: int,
    policies: Sequence[str],
    cases: Mapping[str, Mapping[str, tuple[int, int]]],
) -> Figure:
    """Return a table for each of some cases: what users get of two resources by each policy."""
    machine = {"R1": capacity, "R2": capacity}
    columns = headers("POLICY, USER, TASKS, R1 %, R2 %")
    tables = []
    for case, users in cases.items():
        rows: list[list[Cell]] = []
        for policy in policies:
            found = divide(machine, users, policy)
            for user, tasks in found.tasks.items():
                parts = map(float, found.shares[user].values())
                rows.append([_NAMES[policy], user, float(tasks), *parts])
        tables.append(Table(title=case, columns=columns, rows=rows))
    return Figure(name=name, title=title, about=about, tables=tables)


#: The worked examples by the name of their experiment.
EXAMPLES: dict[str, Callable[[], Figure]] = {
    "table1": table1,
    "fig4": figure4,
    "fig5": partial(
        _compared, "fig5", "Figure 5: asset fairness breaks the sharing incentive",
        ["30 of each resource; a task of user 1 needs 1 and 3, one of user 2 needs 1 and 1."],
        30, ("asset", "drf"), {"What each user gets": {"1": (1, 3), "2": (1, 1)}},
    ),
    "fig6": partial(
        _compared, "fig6", "Figure 6: under CEEI it pays to lie",
        ["100 of each resource; a task of user 1 needs 16 and 1, one of user 2 needs 1 and 2.",
         "Then user 1 asks for 8 of the second resource, of which it needs only 1."],
        100, ("ceei", "drf"),
        {"All tell what they need": {"1": (16, 1), "2": (1, 2)},
         "User 1 lies": {"1": (16, 8), "2": (1, 2)}},
    ),
    "fig7": partial(
        _compared, "fig7", "Figure 7: under CEEI one user may lose when another leaves",
        ["100 of each resource; tasks need 4 and 1, 1 and 16, 16 and 1. User 3 leaves."],
        100, ("ceei", "drf"),
        {"Three users": {"1": (4, 1), "2": (1, 16), "3": (16, 1)},
         "Without user 3": {"1": (4, 1), "2": (1, 16)}},
    ),
}  # fmt: skip


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
    outcome = ClusterRun(batches, cluster, way, step_s=1, seed=seed).run(phase_s * len(PHASES))
    top = cluster.capacity
    return {
        job: [(cores / top[0], memory / top[1]) for cores, memory in held]
        for job, held in outcome.held.items()
    }


def figure8(seed: int, *, nodes: int = NODES, phase_s: int = _PHASE_S) -> Figure:
    shares = simulate(seed, nodes=nodes, phase_s=phase_s, task_s=_TASK_S)
    rows: list[list[Cell]] = []
    machine = dict(zip(("CPU", "memory"), (each * nodes for each in NODE), strict=True))
    for number, phase in enumerate(PHASES):
        # On an empty machine, if tasks could be cut.
        ideal = divide(machine, dict(zip(JOBS, phase.demands, strict=True)))
        for job, (cpus, gb) in zip(JOBS, phase.demands, strict=True):
            # In the second half the first tasks of the phase have ended.
            held = shares[job][number * phase_s + phase_s // 2 : (number + 1) * phase_s]
            cpu, memory = (sum(column) / len(held) for column in zip(*held, strict=True))
            said, goal = phase.paper if job == JOBS[0] else "", float(ideal.dominant_share(job))
            task = f"{cpus} CPU, {gb} GB"
            rows.append([number + 1, job, task, cpu, memory, max(cpu, memory), goal, said])
    columns = headers("PHASE, JOB, TASK, CPU %, MEM %, DOMINANT %, IF CUT %, THE PAPER")
    curves = {
        f"{job}: {name}": [parts[axis] for parts in shares[job]]
        for axis, name in enumerate(("CPU", "MEM"))
        for job in JOBS
    }
    quarter_s = phase_s // 4
    phases = Table(title="Mean shares in the second half of each phase", columns=columns, rows=rows)
    return Figure(
        name="fig8",
        title="Figure 8: two jobs whose tasks change every two minutes, under DRF",
        about=[
            f"{nodes} nodes with {NODE[0]} CPUs and {NODE[1]} GB each; phases of {phase_s} s.",
            f"Tasks run about {_TASK_S} s (the paper does not say); each runs on one node.",
            "A running task keeps what it has: a new phase comes in as the old tasks end.",
        ],
        tables=[
            phases,
            means_over_time(
                f"Mean shares in each {quarter_s} seconds", curves, quarter_s, quarter_s
            ),
        ],
    )
