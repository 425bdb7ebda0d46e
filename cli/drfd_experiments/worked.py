"""The paper's worked examples: Table 1, and the small machines of figures 4 to 7."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

from drfd.sim.figures import Panel
from drfd_experiments.alloc import Allocation, Spec, User, allocate
from drfd_experiments.figures import Cell, Column, Figure, Table

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
    names = [f"{user} {name}" for user in _PAPER_USERS for name in ("CPU", "MEM", "DOMINANT")]
    columns = [Column("SERVED"), *(Column(name, "%") for name in (*names, "CPU USED", "MEM USED"))]
    return Figure(
        name="table1",
        title="Table 1: DRF serves two users, task by task",
        about=[
            "9 CPUs and 18 GB; a task of A needs 1 CPU and 4 GB, one of B 3 CPUs and 1 GB.",
            "The user with the least dominant share is served, until nothing fits.",
        ],
        tables=[Table(title="After each task that starts", columns=columns, rows=rows)],
        notes=["The paper: B A A B A, then 2/3 of the memory for A and 2/3 of the CPUs for B."],
    )


def figure4() -> Figure:
    paper = {
        "drf": "3 and 2 tasks", "asset": "2.5 and 2.2 tasks", "ceei": "4.1 and 1.6 tasks",
    }  # fmt: skip
    rows: list[list[Cell]] = []
    bars: dict[str, list[tuple[float, float]]] = {}
    for at, policy in enumerate(paper):
        found = divide(_PAPER_MACHINE, _PAPER_USERS, policy)
        for user, parts in found.shares.items():
            row = [float(part) for part in parts.values()]
            said = paper[policy] if user == "A" else ""
            rows.append([_NAMES[policy], user, float(found.tasks[user]), *row, said])
            for resource, part in parts.items():
                bars.setdefault(f"{user}, {resource}", []).append((at, float(part)))
    columns = [
        Column("POLICY"), Column("USER"), Column("TASKS"), Column("CPU", "%"), Column("MEM", "%"),
        Column("THE PAPER"),
    ]  # fmt: skip
    return Figure(
        name="fig4",
        title="Figure 4: three ways to divide one machine",
        about=["9 CPUs and 18 GB as in Table 1, with tasks that can be cut.",
               "Asset fairness counts 1 CPU as worth 2 GB, for the machine has twice as many."],
        tables=[Table(title="What each user gets", columns=columns, rows=rows)],
        panels=[Panel(title="Shares by policy", x="", y="share", curves=bars, top=1.0,
                      names=[_NAMES[policy] for policy in paper])],
        notes=[
            "Only DRF gives both the same dominant share, 2/3.",
            "CEEI's part of A is given in the paper as 4.1 CPUs (45/11); of B, 4.9 CPUs.",
        ],
    )  # fmt: skip


def figure5() -> Figure:
    machine = {"R1": 30, "R2": 30}
    users = {"1": (1, 3), "2": (1, 1)}
    return Figure(
        name="fig5",
        title="Figure 5: asset fairness breaks the sharing incentive",
        about=["30 of each resource; a task of user 1 needs 1 and 3, one of user 2 needs 1 and 1."],
        tables=[_compared(machine, users, ("asset", "drf"))],
        notes=[
            "The paper: under asset fairness user 2 gets 12 of each resource: less than 15, half "
            "of the machine, which it would have alone.",
            "Under DRF it gets 15.",
        ],
    )


def figure6() -> Figure:
    machine = {"R1": 100, "R2": 100}
    honest = {"1": (16, 1), "2": (1, 2)}
    lying = {"1": (16, 8), "2": (1, 2)}
    return Figure(
        name="fig6",
        title="Figure 6: under CEEI it pays to lie",
        about=[
            "100 of each resource; a task of user 1 needs 16 and 1, one of user 2 needs 1 and 2.",
            "Then user 1 asks for 8 of the second resource, of which it needs only 1.",
        ],
        tables=[
            _compared(machine, honest, ("ceei", "drf"), "All tell what they need"),
            _compared(machine, lying, ("ceei", "drf"), "User 1 lies"),
        ],
        notes=["The paper: CEEI gives the liar 4.2 tasks in place of 3.2; DRF the same as before."],
    )


def figure7() -> Figure:
    machine = {"R1": 100, "R2": 100}
    two = {"1": (4, 1), "2": (1, 16)}
    return Figure(
        name="fig7",
        title="Figure 7: under CEEI one user may lose when another leaves",
        about=["100 of each resource; tasks need 4 and 1, 1 and 16, 16 and 1. User 3 leaves."],
        tables=[
            _compared(machine, two | {"3": (16, 1)}, ("ceei", "drf"), "Three users"),
            _compared(machine, two, ("ceei", "drf"), "Without user 3"),
        ],
        notes=["The paper: under CEEI user 2 falls from 5.4 tasks to 4.8; under DRF nobody falls."],
    )


def _compared(
    machine: Mapping[str, int],
    users: Mapping[str, tuple[int, ...]],
    policies: tuple[str, ...],
    title: str = "What each user gets",
) -> Table:
    rows: list[list[Cell]] = []
    for policy in policies:
        found = divide(machine, users, policy)
        for user, tasks in found.tasks.items():
            parts = map(float, found.shares[user].values())
            rows.append([_NAMES[policy], user, float(tasks), *parts])
    columns = [Column("POLICY"), Column("USER"), Column("TASKS")]
    columns += [Column(name, "%") for name in machine]
    return Table(title=title, columns=columns, rows=rows)


#: The worked examples by the name of their experiment.
EXAMPLES = {
    "table1": table1, "fig4": figure4, "fig5": figure5, "fig6": figure6, "fig7": figure7,
}  # fmt: skip
