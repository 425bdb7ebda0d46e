"""Worked examples of the DRF paper, of posts and of a lecture, to the digits they give.

The numbers are those of EXAMPLES.md beside it, under the same names. Examples of whole tasks in
one pass are in test_policies.py, too (E1, E20 to E24).
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import pytest

from core.worlds import plan
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue, Line
from drfd.core.model.machine import Vector, minus, plus, total
from drfd_experiments import theory
from drfd_experiments.theory import FlowDemand, Tasks, ceei

Wants = dict[str, FlowDemand]


def asks(**demands: tuple[float, ...]) -> Wants:
    """Leaf → the vector of one task; without end. "__" stands for a dot."""
    return {
        name.replace("__", "."): FlowDemand(demand=tuple(Fraction(str(each)) for each in vector))
        for name, vector in demands.items()
    }


def limited(wants: Wants, **tasks: int) -> Wants:
    return {
        leaf: FlowDemand(demand=want.demand, tasks=Fraction(tasks[leaf]) if leaf in tasks else None)
        for leaf, want in wants.items()
    }


def machine(*capacity: int, weights: Mapping[str, str] | None = None) -> FairShare:
    """Weights by path, the same for all resources."""
    given = (weights or {}).items()
    rules = {path: NodeRule(weights=(Fraction(each),) * len(capacity)) for path, each in given}
    return FairShare(capacity, rules)


def holding(wants: Wants, tasks: Tasks) -> dict[str, list[Fraction]]:
    return {leaf: [tasks[leaf] * each for each in want.demand] for leaf, want in wants.items()}


def dominant(capacity: Vector, wants: Wants, tasks: Tasks) -> dict[str, Fraction]:
    return {
        leaf: max(amount / top for amount, top in zip(held, capacity, strict=True))
        for leaf, held in holding(wants, tasks).items()
    }


def runs(want: FlowDemand, bundle: list[Fraction]) -> Fraction:
    """How many tasks a bundle is good for."""
    return min(amount / each for each, amount in zip(want.demand, bundle, strict=True) if each)


def to_one_digit(*amounts: Fraction) -> list[float]:
    return [round(float(amount), 1) for amount in amounts]


#: Whole tasks: leaf → (vector, how many), submitted leaf by leaf.
Jobs = dict[str, tuple[Vector, int]]


def ran(
    policy: str, shares: FairShare, jobs: Jobs, used: Mapping[str, Vector] | None = None
) -> Counter[str]:
    """How many tasks of each leaf one pass starts."""
    queues: dict[str, LeafQueue] = {}
    owner: dict[int, str] = {}
    for leaf, (vector, count) in jobs.items():
        for _ in range(count):
            job_id = len(owner)
            owner[job_id] = leaf
            line = queues.setdefault(leaf, {}).setdefault(vector, Line())
            line.add((0, job_id))
    held = total((used or {}).values(), (0,) * len(shares.capacity))
    done = plan(
        policy, queues=queues, used=used or {}, free=minus(shares.capacity, held), shares=shares
    )
    return Counter(owner[job_id] for job_id in done.admitted)


#: The machine and the users of the paper's section 4.1.
PAPER, E1 = machine(9, 18), asks(A=(1, 4), B=(3, 1))


# -- the paper ----------------------------------------------------------------------------------

LIARS = asks(three=(0, 1, 0), four=(0, 0.5, 1))
LEVELS = {
    "a": "30", "a.x": "20", "a.y": "80", "a.y.p": "50", "a.y.q": "50",
    "b": "20", "c": "50", "c.u": "30", "c.v": "70",
}  # fmt: skip
BOTH = machine(50 * 32, 50 * 64, weights={"A": "0.4", "B": "0.6"})
#: Policy, machine, demands, and the tasks of each in their order.
CUT: dict[str, tuple[object, FairShare, Wants, str]] = {
    "E1, dominant shares of two thirds": (theory.drf, PAPER, E1, "3 2"),
    "E2, 6 $ a task of A and 7 $ of B": (theory.asset, PAPER, E1, "63/25 54/25"),
    "E4, asset fairness breaks the sharing incentive: two has less than half of both": (
        theory.asset, machine(30, 30), asks(one=(1, 3), two=(1, 1)), "6 12",
    ),
    "E4, DRF": (theory.drf, machine(30, 30), asks(one=(1, 3), two=(1, 1)), "5 15"),
    "E5, and bottleneck fairness: one has three sevenths of what both want most": (
        theory.asset, machine(21, 21), asks(one=(3, 2), two=(4, 1)), "3 3",
    ),
    "E5, DRF": (theory.drf, machine(21, 21), asks(one=(3, 2), two=(4, 1)), "7/2 21/8"),
    "E5b": (theory.asset, machine(77, 77), asks(one=(4, 2), two=(1, 1)), "11 33"),
    "E5b, with more of something one has less": (
        theory.asset, machine(77, 154), asks(one=(4, 2), two=(1, 1)), "21/2 35",
    ),
    "E8": (theory.drf, machine(1, 1), asks(A=(2, 1), B=(1, 2)), "1/3 1/3"),
    "E8, under DRF too": (theory.drf, machine(1, 4), asks(A=(2, 1), B=(1, 2)), "1/4 1/2"),
    "E10, cut": (theory.drf, machine(10, 10), asks(A=(1, 5), B=(5, 2)), "10/7 10/7"),
    "E12, first come, first served": (
        theory.fifo, machine(3200, 6400), limited(asks(a=(1, 4), b=(10, 1)), a=1000, b=500),
        "1000 220",
    ),
    "E13, alone on 20 nodes half the CPUs are idle": (
        theory.drf, machine(20 * 32, 20 * 64), asks(A=(1, 4)), "320",
    ),
    "E13, on 30": (theory.drf, machine(30 * 32, 30 * 64), asks(B=(10, 1)), "96"),
    "E13, together a quarter more": (theory.drf, BOTH, asks(A=(1, 4), B=(10, 1)), "400 120"),
    "E14": (theory.drf, machine(1, 1), asks(one=(1, 0.5), two=(0.5, 1)), "2/3 2/3"),
    "E15": (theory.drf, machine(1, 1), asks(one=(1, 1), two=(0, 1)), "1/2 1/2"),
    "E16": (
        theory.drf, machine(1, 1, 1), asks(one=(1, 0, 0), two=(1, 0, 0)) | LIARS, "1/2 1/2 2/3 2/3",
    ),
    "E16, two lie and lose nothing, and a third gains": (
        theory.drf, machine(1, 1, 1), asks(one=(1, 0, 0.5), two=(1, 0, 0.5)) | LIARS,
        "1/2 1/2 3/4 1/2",
    ),
    "E17, 30 % {20 %, 80 % {50, 50}}, 20 %, 50 % {30, 70}": (
        theory.drf, machine(100, weights=LEVELS),
        asks(a__x=(1,), a__y__p=(1,), a__y__q=(1,), b=(1,), c__u=(1,), c__v=(1,)),
        "6 12 12 20 15 35",
    ),
    "E18": (
        theory.drf, machine(1, 1), asks(op1=(1, 0), pool__op2=(1, 0), pool__op3=(0, 1)),
        "1/2 1/2 1",
    ),
    "E21, cut": (theory.drf, machine(10, 20), asks(A=(3, 2), B=(1, 5)), "50/21 20/7"),
    # Rescaling n3 as if its blocked child could go on would give 2/3 and 1/3 of the GPUs.
    "blocked nodes do not count, as in the document of Volcano": (
        theory.drf, machine(1, 1),
        asks(n1=(1, 0), n2=(1, 0), n3__n31=(1, 0), n3__n32=(0, 1), n4=(0, 1)),
        "1/3 1/3 1/3 1/2 1/2",
    ),
    "a blocked sibling does not hold up the other, in Volcano's second example": (
        theory.drf, machine(1, 1), asks(n1=(0, 1), n2__n21=(1, 0), n2__n22=(0, 1)), "1/2 1 1/2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("policy", "shares", "wants", "tasks"), CUT.values(), ids=CUT)
def test_tasks_that_can_be_cut(policy, shares, wants, tasks):
    assert policy(shares, wants) == dict(zip(wants, map(Fraction, tasks.split()), strict=True))


def test_e3_the_market_gives_a_more_and_b_less():
    tasks = ceei((9, 18), E1)
    assert abs(tasks["A"] - Fraction(45, 11)) < Fraction(1, 10**11)
    assert abs(tasks["B"] - Fraction(18, 11)) < Fraction(1, 10**11)
    held = holding(E1, tasks)
    assert to_one_digit(*held["A"]) == [4.1, 16.4]
    assert to_one_digit(*held["B"]) == [4.9, 1.6]


def test_e6_a_lie_gains_in_the_market_and_not_under_drf():
    """Theorem 4."""
    honest, lie = asks(one=(16, 1), two=(1, 2)), asks(one=(16, 8), two=(1, 2))
    before, after = ceei((100, 100), honest), ceei((100, 100), lie)
    tiny = Fraction(1, 10**11)
    assert abs(before["one"] - Fraction(100, 31)) < tiny
    assert abs(before["two"] - Fraction(1500, 31)) < tiny * 100
    assert to_one_digit(before["one"], before["two"]) == [3.2, 48.4]
    assert abs(after["one"] - Fraction(25, 6)) < tiny
    assert abs(after["two"] - Fraction(100, 3)) < tiny * 100
    fair = {"one": Fraction(25, 6), "two": Fraction(100, 3)}
    assert theory.drf(machine(100, 100), honest) == fair
    assert theory.drf(machine(100, 100), lie) == fair


def test_e7_in_the_market_one_may_lose_when_another_leaves():
    """Theorem 5."""
    wants = asks(one=(4, 1), two=(1, 16), three=(16, 1))
    left = {name: wants[name] for name in ("one", "two")}
    assert to_one_digit(*ceei((100, 100), wants).values()) == [11.3, 5.4, 3.1]
    assert to_one_digit(*ceei((100, 100), left).values()) == [23.8, 4.8]
    shares = machine(100, 100)
    fair = {"one": Fraction(400, 33), "two": Fraction(100, 33), "three": Fraction(100, 33)}
    assert theory.drf(shares, wants) == fair
    assert theory.drf(shares, left) == {"one": 20, "two": 5}


def test_e9_who_asks_for_more_kinds_is_bounded_by_the_most_wanted():
    others = {f"user{at}": want for at in range(9) for want in asks(x=(0, 1)).values()}
    tasks = theory.drf(machine(1, 1), asks(first=(1, 0)) | others)
    assert tasks.pop("first") == 1
    assert set(tasks.values()) == {Fraction(1, 9)}
    told = theory.drf(machine(1, 1), asks(first=(1, 1)) | others)
    assert set(told.values()) == {Fraction(1, 10)}


def test_weights_are_the_ratio_of_dominant_shares():
    """Section 4.3: with weights of users A : B = 3 : 1, and with equal ones as without any."""
    wants = asks(A=(1, 4), B=(3, 1))
    tasks = theory.drf(machine(9, 18, weights={"A": "3", "B": "1"}), wants)
    parts = dominant((9, 18), wants, tasks)
    assert parts["A"] == 3 * parts["B"]
    same = machine(9, 18, weights={"A": "7", "B": "7"})
    assert theory.drf(same, wants) == theory.drf(PAPER, wants)


def test_weights_of_single_resources_weigh_each_share():
    """s_i = max_j u_ij / w_ij, with weights that sum to the same on each resource."""
    rules = {
        "A": NodeRule(weights=(Fraction(1), Fraction(3))),
        "B": NodeRule(weights=(Fraction(3), Fraction(1))),
    }
    wants = asks(A=(1, 4), B=(3, 1))
    tasks = theory.drf(FairShare((9, 18), rules), wants)
    level = {}
    for leaf, held in holding(wants, tasks).items():
        weights = rules[leaf].weights or ()
        pairs = zip(held, (9, 18), weights, strict=True)
        level[leaf] = max(amount / top / weight for amount, top, weight in pairs)
    assert level["A"] == level["B"] == Fraction(1, 4)


def test_e11_who_has_less_of_everything_envies_and_under_drf_nobody_does():
    wants = asks(one=(1, 4), two=(2, 6))
    posed = {leaf: list(want.demand) for leaf, want in wants.items()}
    assert runs(wants["one"], posed["two"]) == Fraction(3, 2) > runs(wants["one"], posed["one"])
    assert runs(wants["two"], posed["one"]) < 1
    tasks = theory.drf(machine(10, 10), wants)
    held = holding(wants, tasks)
    assert runs(wants["one"], held["two"]) <= tasks["one"]
    assert runs(wants["two"], held["one"]) <= tasks["two"]


#: Figure 8: 48 nodes of 4 CPUs and 14 GB.
E25 = [
    (asks(one=(1, 10), two=(1, 1)), (49.8, 142.2), (74, 74), {"one": 1, "two": 3}),
    (asks(one=(2, 4), two=(1, 3)), (48, 96), (50, 50), {"one": 1, "two": 2}),
    (asks(one=(1, 7), two=(1, 4)), (48, 84), (50, 50), {"one": 1, "two": 1}),
]


@pytest.mark.parametrize(("wants", "count", "percent", "whole"), E25, ids=["0-2", "2-4", "4-6 min"])
def test_e25_figure_8_in_the_aggregate(wants, count, percent, whole):
    tasks = theory.drf(machine(192, 672), wants)
    assert to_one_digit(*tasks.values()) == list(count)
    parts = dominant((192, 672), wants, tasks)
    assert tuple(round(float(part * 100)) for part in parts.values()) == percent


@pytest.mark.parametrize(("wants", "count", "percent", "whole"), E25, ids=["0-2", "2-4", "4-6 min"])
def test_e25_figure_8_on_one_node(wants, count, percent, whole):
    """Whole tasks: 71 % of the memory and 75 % of the CPUs; 50 % of the CPUs both; and the third
    pair leaves 3 GB that fit nobody, so the second job has less than its half."""
    node = machine(4, 14)
    jobs: Jobs = {
        leaf: (tuple(int(each) for each in want.demand), 20) for leaf, want in wants.items()
    }
    assert ran("drf", node, jobs) == whole
    parts = dominant(node.capacity, wants, {leaf: Fraction(n) for leaf, n in whole.items()})
    expected = {3: (Fraction(10, 14), Fraction(3, 4)), 2: (Fraction(1, 2), Fraction(1, 2))}
    assert tuple(parts.values()) == expected.get(whole["two"], (Fraction(1, 2), Fraction(2, 7)))


# -- the lecture --------------------------------------------------------------------------------


OP1, OP2 = (1, 4), (10, 1)
#: One of the lecture's nodes: 32 CPUs and 64 GB.
NODE = machine(32, 64)


def test_e12_whole_tasks_in_the_aggregate():
    """Left are 2200 CPUs and 2400 GB: 220 tasks of the second operation."""
    jobs: Jobs = {"op1": (OP1, 1000), "op2": (OP2, 500)}
    assert ran("fifo", machine(3200, 6400), jobs) == {"op1": 1000, "op2": 220}
    assert ran("fifo", machine(3200, 6400), {"op1": (OP1, 1000)}) == {"op1": 1000}


def packed(per_node: list[int]) -> int:
    """How many tasks of the second operation fit where so many of the first one are, node by node,
    first come, first served on each of 100 nodes."""
    nodes = [
        ran(
            "fifo", NODE, {"op1": (OP1, count), "op2": (OP2, 500)} if count else {"op2": (OP2, 500)}
        )
        for count in per_node
    ]
    assert len(nodes) == 100
    assert sum(node["op1"] for node in nodes) == 1000
    return sum(node["op2"] for node in nodes)


@pytest.mark.slow
def test_e12_with_nodes_it_depends_on_the_packing():
    first_fit, left = [], 1000
    for _ in range(100):
        most = ran("fifo", NODE, {"op1": (OP1, left)})["op1"]
        first_fit.append(most)
        left -= most
    assert first_fit == [16] * 62 + [8] + [0] * 37
    assert packed(first_fit) == 113
    assert packed([10] * 100) == 200
    assert packed([12] * 80 + [2] * 20) == 220


def test_e13_node_by_node_and_whole():
    assert ran("drf", NODE, {"A": (OP1, 99)}) == {"A": 16}, "320 on 20 nodes"
    assert 30 * ran("drf", NODE, {"B": (OP2, 99)})["B"] == 90
    assert ran("drf", BOTH, {"A": (OP1, 900), "B": (OP2, 900)}) == {"A": 400, "B": 120}


def test_the_lectures_dominant_resources():
    """op1 needs 1000 of 3200 CPUs and 4000 of 6400 GB: memory; a task of <10, 1> is about CPU."""
    shares = FairShare((3200, 6400))
    assert shares.dominant_axis((1000, 4000)) == 1
    assert shares.dominant_axis((10, 1)) == 0


def test_a_night_of_one_users_jobs_leaves_nothing_for_the_others_in_the_morning():
    """Three users of 20, 30 and 50 %; A has filled the machine: without preemption B and C wait,
    and come first when something ends."""
    shares = machine(100, weights={"A": "0.2", "B": "0.3", "C": "0.5"})
    jobs: Jobs = {"A": ((1,), 9), "B": ((1,), 9), "C": ((1,), 9)}
    assert ran("drf", shares, jobs, {"A": (100,)}) == {}
    assert ran("drf", shares, jobs, {"A": (92,)}) == {"B": 3, "C": 5}


@pytest.mark.parametrize(
    ("policy", "cores"), [("hdrf-naive", {"op1": 12, "pool.op2": 0}), ("drf", None)]
)
def test_e18_naive_comparison_starves_op2_and_min_satisfaction_does_not(policy, cores):
    """From the fill, op2's tasks end one by one, and each time the place is given out anew."""
    shares = machine(12, 12)
    used: dict[str, Vector] = {"op1": (6, 0), "pool.op2": (6, 0), "pool.op3": (0, 12)}
    waits: Jobs = {"op1": ((1, 0), 50), "pool.op2": ((1, 0), 50), "pool.op3": ((0, 1), 50)}
    for _ in range(60):
        if used["pool.op2"][0]:
            used["pool.op2"] = minus(used["pool.op2"], (1, 0))
        for leaf, count in ran(policy, shares, waits, used).items():
            used[leaf] = plus(used[leaf], (count, 0))
    held = {leaf: vector[0] for leaf, vector in used.items() if leaf != "pool.op3"}
    assert held == (cores or {"op1": 8, "pool.op2": 4})
    assert used["pool.op3"] == (0, 12)


def test_e18_the_fill_is_the_same_by_all():
    waits: Jobs = {"op1": ((1, 0), 50), "pool.op2": ((1, 0), 50), "pool.op3": ((0, 1), 50)}
    for policy in ("drf", "hdrf-naive"):
        assert ran(policy, machine(12, 12), waits) == {"op1": 6, "pool.op2": 6, "pool.op3": 12}


def test_e19_a_flattened_pool_is_robbed_and_min_satisfaction_keeps_its_promise():
    """The source gives no vectors; with a hundredth of what is not dominant its 12.7 % come out.
    The pool has that much of each resource; without the hundredths it is an eighth."""
    members = {"x": (1, 0.01, 0.01), "y": (0.01, 1, 0.01), "z": (0.01, 0.01, 1)}

    def pool_part(shares: FairShare, wants: Wants) -> list[Fraction]:
        held = holding(wants, theory.drf(shares, wants))
        held.pop("A")
        return [sum(column, Fraction(0)) for column in zip(*held.values(), strict=True)]

    flat = machine(1, 1, 1, weights={"A": "0.7", "x": "0.1", "y": "0.1", "z": "0.1"})
    together = asks(A=(1, 1, 1), **members)
    assert {round(float(part * 100), 1) for part in pool_part(flat, together)} == {12.7}
    alone = asks(A=(1, 1, 1), x=(1, 0, 0), y=(0, 1, 0), z=(0, 0, 1))
    assert set(pool_part(flat, alone)) == {Fraction(1, 8)}

    tree = machine(1, 1, 1, weights={"A": "7", "pool": "3"})
    in_pool = asks(A=(1, 1, 1), **{f"pool__{name}": vector for name, vector in members.items()})
    assert set(pool_part(tree, in_pool)) == {Fraction(3, 10)}


# -- the walk-through and the references --------------------------------------------------------


def test_blocked_nodes_do_not_count_for_whole_tasks_either():
    first: Jobs = {
        "n1": ((1, 0), 99), "n2": ((1, 0), 99), "n3.n31": ((1, 0), 99), "n3.n32": ((0, 1), 99),
        "n4": ((0, 1), 99),
    }  # fmt: skip
    assert ran("drf", machine(12, 12), first) == {
        "n1": 4, "n2": 4, "n3.n31": 4, "n3.n32": 6, "n4": 6,
    }  # fmt: skip
    second: Jobs = {"n1": ((0, 1), 99), "n2.n21": ((1, 0), 99), "n2.n22": ((0, 1), 99)}
    assert ran("drf", machine(12, 12), second) == {"n1": 6, "n2.n21": 12, "n2.n22": 6}
