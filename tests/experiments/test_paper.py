"""The DRF paper: its worked examples, and its experiments on clusters, smaller.

`drf simulate alloc` solves small problems, written as people write them.
"""

import json
import os
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bench import traces
from drfd.common.errors import Refused
from drfd.sim.workload import read_lines
from drfd_experiments import facebook, macro, sharing
from drfd_experiments.alloc import (
    POLICIES,
    Allocation,
    Spec,
    allocate,
    dominant_resource,
    read_spec,
)
from drfd_experiments.cluster import (
    Batch,
    Cluster,
    ClusterRun,
    SharingScheme,
    slowdown,
)
from drfd_experiments.figures import Cell, Figure

#: The machine of the paper's section 4.1.
PAPER = {"cpu": 9, "mem": 18}


def user(name: str, *demand: object, **more: object) -> dict[str, Any]:
    return {"name": name, "demand": dict(zip(PAPER, demand, strict=False)), **more}


A, B = user("A", 1, 4), user("B", 3, 1)


def spec_of(*users: dict[str, Any], **more: Any) -> Spec:
    problem = {"capacity": PAPER, "users": list(users), "policy": "drf", "mode": "discrete"} | more
    return read_spec(json.dumps(problem))


def solve(*users: dict[str, Any], **more: Any) -> Allocation:
    return allocate(spec_of(*users, **more))


def order(*users: dict[str, Any], **more: Any) -> str:
    return " ".join(solve(*users, **more).order)


def tasks(*users: dict[str, Any], **more: Any) -> dict[str, Fraction]:
    return solve(*users, **more).tasks


# -- whole tasks -----------------------------------------------------------------------------------


def test_e1_is_table_1_of_the_paper():
    found = solve(A, B)
    assert found.tasks == {"A": 3, "B": 2}
    assert found.order == ["B", "A", "A", "B", "A"]
    assert found.shares == {
        "A": {"cpu": Fraction(1, 3), "mem": Fraction(2, 3)},
        "B": {"cpu": Fraction(2, 3), "mem": Fraction(1, 9)},
    }
    assert [found.dominant_share(name) for name in "AB"] == [Fraction(2, 3)] * 2
    spec = spec_of(A, B)
    assert [dominant_resource(spec, user) for user in spec.users] == ["mem", "cpu"]


def test_first_come_first_served_stops_at_the_first_task_that_does_not_fit():
    """Though the next user's would."""
    assert tasks(user("A", 4), user("B", 1), policy="fifo") == {"A": 2, "B": 0}
    assert tasks(user("A", 4, tasks=2), user("B", 1), policy="fifo") == {"A": 2, "B": 1}


def test_cpu_and_slots_forget_what_they_do_not_look_at():
    users = user("A", 1, 10), user("B", 1, 1)
    found = solve(*users, policy="cpu")
    assert found.tasks == {"A": 5, "B": 4}
    assert found.dominant_share("A") == Fraction(50, 18)
    for mode in ("discrete", "continuous"):
        assert tasks(*users, policy="slots", slots=30, mode=mode) == {"A": 15, "B": 15}
        three = user("A", 1, 90), user("B", 8, 1, tasks=1), user("C", 1, 1, weight=2)
        found = tasks(*three, policy="slots", slots=10, mode=mode)
        assert found == {"A": 3, "B": 1, "C": 6}


def test_who_asks_for_no_cpu_may_have_a_limited_number_of_tasks_under_cpu():
    users = user("A", 0, 10, tasks=7), user("B", 1, 1)
    for mode in ("discrete", "continuous"):
        assert tasks(*users, policy="cpu", mode=mode) == {"A": 7, "B": 9}


def test_weights_of_users_and_of_single_resources():
    machine = {"capacity": {"cpu": 12, "mem": 12}}
    assert tasks(user("A", 1, weight=3), user("B", 1), **machine) == {"A": 9, "B": 3}
    heavy = {"cpu": "0.5", "mem": 3}
    assert tasks(user("A", 1, weight=heavy), user("B", 1), **machine) == {"A": 4, "B": 8}
    only_memory = {"mem": 2}
    mine, yours = user("A", 0, 1, weight=only_memory), user("B", 0, 1)
    assert tasks(mine, yours, **machine) == {"A": 8, "B": 4}
    cores = user("A", 1, 0, weight=only_memory), user("B", 1, 0)
    assert tasks(*cores, **machine) == {"A": 6, "B": 6}


# -- trees -----------------------------------------------------------------------------------------

E18 = [user("op1", 1, 0), user("op2", 1, 0, pool="P"), user("op3", 0, 1, pool="P")]
ONE = {"cpu": 1, "mem": 1}


@pytest.mark.parametrize("policy", ["drf", "hdrf"])
def test_e18_the_pool_shares_with_the_user_beside_it(policy):
    found = tasks(*E18, capacity=ONE, pools={"P": {}}, policy=policy, mode="continuous")
    assert found == {"op1": Fraction(1, 2), "op2": Fraction(1, 2), "op3": 1}
    whole = tasks(*E18, capacity={"cpu": 12, "mem": 12}, pools={"P": {}}, policy=policy)
    assert whole == {"op1": 6, "op2": 6, "op3": 12}


def test_a_pool_without_users_takes_no_part():
    pools = {"P": {"weight": 5}, "Q": {"parent": "P"}}
    assert tasks(user("A", 1), user("B", 1, tasks=0, pool="Q"), pools=pools) == {"A": 9, "B": 0}


# -- tasks that can be cut -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["discrete", "continuous"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_divides_the_papers_machine(policy, mode):
    if (policy, mode) == ("ceei", "discrete"):
        with pytest.raises(Refused, match="ceei is continuous only"):
            spec_of(A, B, policy=policy, mode=mode)
        return
    found = solve(A, B, policy=policy, mode=mode, slots=4)
    assert sum(found.tasks.values()) >= 4
    assert len(found.order) == (sum(found.tasks.values()) if mode == "discrete" else 0)


# -- bad problems ----------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"capacity": PAPER, "users": [A, B]}


def complaint(text: str) -> str:
    with pytest.raises(Refused) as caught:
        allocate(read_spec(text))
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON: Input data was truncated"),
        ("[]", "Expected `object`, got `array` (see drf simulate alloc --help)"),
        ("[" * 100_000, "Expected `object`, got `array`"),
        ('{"capacity": ' + "9" * 5000 + "}", "capacity: Number out of range"),
        ("{}", "Object missing required field `capacity`"),
        ('{"capacity": {"cpu": 1}}', "Object missing required field `users`"),
        ('{"capacity": {}, "users": []}', "capacity: names no resource (write "),
    ],
)
def test_what_is_not_a_problem_is_said_in_one_line(text, said):
    assert complaint(text).startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"polcy": "drf"}, "Object contains unknown field `polcy` (see"),
        ({"policy": "dfr"}, "policy: dfr is not known (did you mean drf?)"),
        ({"policy": ["drf"]}, "policy: Expected `str | null`, got `array`"),
        ({"policy": "easy"}, "policy: easy is not known (known: drf, hdrf, hdrf-naive, "),
        ({"mode": "exact"}, "mode: exact is not known (known: discrete, continuous)"),
        ({"policy": "slots"}, 'slots: is missing; the policy slots needs it (write "slots": 4)'),
        ({"slots": 0}, "slots: 0 is not above zero"),
        ({"slots": 1.5}, "slots: Expected `int | null`, got `float`"),
        ({"capacity": {"cpu": 0}}, "capacity.cpu: 0 is not above zero (write 2 or 0.5)"),
        ({"capacity": {"cpu": True}}, "capacity[...]: Expected `decimal`, got `bool`"),
        ({"capacity": {"cpu": "many"}}, "capacity[...]: Invalid decimal string"),
        ({"capacity": {"cpu": "1/2"}}, "capacity[...]: Invalid decimal string"),
        ({"capacity": {"cpu": "nan"}}, "capacity.cpu: NaN is beyond all measure"),
        ({"capacity": {"cpu": 1e30}}, "capacity.cpu: 1E+30 is beyond all measure"),
        ({"capacity": {"cpu": 1e-30}}, "capacity.cpu: 1E-30 is beyond all measure"),
        ({"capacity": {"cpu": "1e999999999"}}, "capacity.cpu: 1E+999999999 is beyond all measure"),
        ({"capacity": {"cpu": None}}, "capacity[...]: Expected `decimal`, got `null`"),
        ({"capacity": [9]}, "capacity: Expected `object`, got `array`"),
        ({"users": {"A": 1}}, "users: Expected `array`, got `object`"),
        ({"users": [1]}, "users[0]: Expected `object`, got `int`"),
        ({"users": [A, A]}, "users[1].name: A stands twice (give another name)"),
        ({"users": [{"demand": {"cpu": 1}}]}, "users[0]: Object missing required field `name`"),
        ({"users": [{"name": "A"}]}, "users[0]: Object missing required field `demand`"),
        ({"users": [A | {"name": ""}]}, "users[0].name: is empty"),
        ({"users": [A | {"name": 7}]}, "users[0].name: Expected `str`, got `int`"),
        ({"users": [A | {"wieght": 1}]}, "users[0]: Object contains unknown field `wieght`"),
        ({"users": [A | {"weight": 0}]}, "users[0].weight: 0 is not above zero"),
        ({"users": [A | {"weight": {"cpu": -1}}]}, "users[0].weight.cpu: -1 is not above zero"),
        ({"users": [A | {"weight": {"gpu": 1}}]}, "users[0].weight: gpu is not known (did you"),
        ({"users": [A | {"weight": {"cpu": None}}]}, "users[0].weight[...]: Expected `decimal`, "),
        ({"users": [A | {"tasks": -1}]}, "users[0].tasks: -1 is below zero"),
        ({"users": [A | {"tasks": 1.5}]}, "users[0].tasks: must be a whole number in mode discr"),
        ({"users": [A | {"pool": "P"}]}, "users[0].pool: P is not known (known: none)"),
        ({"users": [A | {"pool": "lib"}], "pools": {"lab": {}}}, "users[0].pool: lib is not known "
         "(did you mean lab?)"),
        ({"users": [A | {"demand": {"cpu": 0}}]}, "users[0].demand: asks for nothing, so its"),
        ({"users": [A | {"demand": {}}]}, "users[0].demand: asks for nothing, so its tasks would"),
        ({"users": [A | {"demand": {"cpus": 1}}]}, "users[0].demand: cpus is not known (did you "
         "mean cpu?)"),
        ({"users": [A | {"demand": {"cpu": "-1"}}]}, "users[0].demand.cpu: -1 is below zero"),
        ({"users": [user("A", 0, 1)], "policy": "cpu"}, "users[0].demand: asks for no cpu, so the"),
        ({"policy": "ceei", "users": [A | {"weight": {"cpu": 2}}]}, "users[0].weight: must be one"),
        ({"policy": "ceei", "users": [A | {"pool": "P"}], "pools": {"P": {}}}, "users[0].pool: "),
        ({"pools": {"P": 3}}, "pools[...]: Expected `object`, got `int`"),
        ({"pools": {"P": {"parent": "Q"}}}, "pools.P.parent: Q is not known (known: P)"),
        ({"pools": {"P": {"parent": "P"}}}, "pools.P.parent: more than 20 pools are above it, or"),
        ({"pools": {"P": {"parent": "Q"}, "Q": {"parent": "P"}}}, "pools.P.parent: more than 20"),
        ({"pools": {"P": {"users": []}}}, "pools[...]: Object contains unknown field `users`"),
        ({"capacity": {"cpu": 10**9}, "users": [user("A", 1)]}, "the machine has room for more "
         "than 200000 tasks"),
        ({"capacity": {"cpu": 192}, "users": [user("A", "0.12345678901234567")]}, "capacity: "
         "counted in the finest digit of any demand, it is more than 2^60"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place_and_its_cure(change, said):
    assert complaint(json.dumps(GOOD | change)).startswith(said)


# -- the paper -------------------------------------------------------------------------------------


#: Of the paper's 48 nodes.
FEW = 12
HALF = 24


def column(figure: Figure, name: str, table: int = 0) -> list[Cell]:
    found = figure.tables[table]
    at = [each.name for each in found.columns].index(name)
    return [row[at] for row in found.rows]


def test_the_worked_figures_have_the_papers_tasks():
    tasks = column(sharing.figure4(), "TASKS")
    assert tasks == pytest.approx([3, 2, 63 / 25, 54 / 25, 45 / 11, 18 / 11])
    assert column(sharing.EXAMPLES["fig5"](), "TASKS") == pytest.approx([6, 12, 5, 15])
    honest, lying = (column(sharing.EXAMPLES["fig6"](), "TASKS", table) for table in (0, 1))
    assert honest == pytest.approx([100 / 31, 1500 / 31, 25 / 6, 100 / 3])
    assert lying == pytest.approx([25 / 6, 100 / 3, 25 / 6, 100 / 3])
    three, two = (column(sharing.EXAMPLES["fig7"](), "TASKS", table) for table in (0, 1))
    assert three == pytest.approx([11.3, 5.4, 3.1, 400 / 33, 100 / 33, 100 / 33], abs=0.06)
    assert two == pytest.approx([23.8, 4.8, 20, 5], abs=0.06)


@pytest.mark.slow
def test_figure_8_shares_are_the_papers_in_each_phase():
    figure = sharing.figure8(1, nodes=FEW, phase_s=60)
    first, second, third = zip(*[iter(column(figure, "DOMINANT"))] * 2, strict=True)
    assert first == pytest.approx((0.714, 0.75), abs=0.03)
    assert second == pytest.approx((0.5, 0.5), abs=0.04)
    assert third == pytest.approx((0.43, 0.43), abs=0.06), "fragmented"
    ideal = column(figure, "IF CUT")
    assert ideal == pytest.approx([0.741, 0.741, 0.5, 0.5, 0.5, 0.5], abs=0.001)
    over_time = figure.tables[1]
    assert [row[0] for row in over_time.rows] == list(range(0, 180, 15))
    assert over_time.rows[3][1:] == pytest.approx((0.25, 0.75, 0.714, 0.214), abs=0.03)


@pytest.fixture(scope="module")
def macro_results() -> dict[str, macro.MacroResult]:
    return {each.way.name: each for each in macro.results(1, HALF)}


@pytest.mark.slow
def test_figures_9_to_12_slots_are_worse_than_drf_for_everybody(macro_results):
    drf = macro_results["DRF"]
    for count in (3, 4, 5, 6):
        slots = macro_results[f"{count} slots"]
        for kind in (macro.LARGE, macro.SMALL):
            assert slots.jobs(kind) < drf.jobs(kind)
            best, theirs = drf.response_s(kind), slots.response_s(kind)
            assert best is not None and theirs is not None
            assert theirs > best


@pytest.fixture(scope="module")
def hour() -> facebook.Load:
    return facebook.generated(1, hours=1)


@pytest.mark.slow
def test_figure_13_drf_uses_more_than_slots(hour):
    figure = facebook.figure13(hour, 1, 6)
    for name in ("CPU", "MEM"):
        drf, slots = column(figure, name)
        assert drf > slots  # type: ignore[operator]
    drf_s, slots_s = column(figure, "ALL DONE")
    assert drf_s < slots_s  # type: ignore[operator]
    assert any("GENERATED" in line for line in figure.about)
    assert any("SYNTHETIC" in line for line in figure.about)


@pytest.mark.slow
def test_figure_14_jobs_end_sooner_under_drf(hour):
    saved = column(facebook.figure14(hour, 1, 6), "SHORTER BY")
    assert min(saved) > -0.05  # type: ignore[type-var,operator]
    assert max(saved) > 0.3  # type: ignore[type-var,operator]


def load(text: str) -> facebook.Load:
    return facebook.load_of(read_lines(text.splitlines(keepends=True), source="x"))


def test_a_swim_sample_is_read_in_either_form():
    ours = "job,submit_s,input_bytes,shuffle_bytes,output_bytes\njob0,23,410483,0,2513586060\n"
    theirs = "job0\t23\t23\t410483\t0\t2513586060\n"
    assert load(ours).jobs == load(theirs).jobs == ((23, 2),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\t1\t2\t3\t4\t5\nb\t1\t2\t3\n", "x: line 2: it has 4 fields, not 6"),
        ("user,submit_s,run_s,cores,memory\na,1,1,1,1G\n", "x: is no SWIM sample, but a table of"),
    ],
)
def test_a_bad_sample_is_refused_by_line(text, words):
    with pytest.raises(Refused) as caught:
        load(text)
    assert caught.value.text.startswith(words)


# -- recorded results ------------------------------------------------------------------------------


#: What takes longer than a moment is only compared when asked for.
FAST = ("table1", "fig4", "fig8")
FOUND = traces.blocks(traces.PAPER.read_text())
BLOCKS = {block.commands[0].split()[-1]: block for block in FOUND}


@pytest.mark.slow
def test_there_is_a_block_of_each_kind():
    assert [*BLOCKS] == ["table1", "fig4", "fig8", "fig9", "fig12", "fig13", "fig14"]
    assert len(FOUND) == len(BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_the_results_are_what_is_printed(tmp_path, name):
    if name not in FAST and "DRFD_TEST_LONG" not in os.environ:
        pytest.skip("takes a while; set DRFD_TEST_LONG")
    printed = traces.run(BLOCKS[name], tmp_path, **traces.PAPER_ENV)
    assert printed == BLOCKS[name].printed


# -- a cluster in virtual time ---------------------------------------------------------------------


DRF = SharingScheme(name="DRF", policy="drf")
TEN_S = Batch(user="a", tasks=1, demand=(1000, 1024), task_s=10)


def ran(
    *batches: Batch,
    way: SharingScheme = DRF,
    nodes: int = 1,
    end_s: float | None = None,
    swap_cost: int = 40,
) -> ClusterRun:
    cluster = Cluster(nodes=nodes, node=(4000, 4096), swap_cost=swap_cost)
    return ClusterRun(batches, cluster, way, step_s=1, seed=1).run(end_s)


def test_slots_count_on_each_node():
    outcome = ran(
        replace(TEN_S, tasks=30), way=SharingScheme(name="", policy="slots", slots=3), nodes=2
    )
    assert max(held for held, _ in outcome.held["a"]) == 6000, "three tasks on each of two"


def test_slots_overcommit_and_pay_for_it():
    large = replace(TEN_S, tasks=2, demand=(1000, 4096))
    two = SharingScheme(name="", policy="slots", slots=2)
    outcome = ran(large, way=two)
    # Half of 8 GB is swapped out: 11 times as long, for the two together.
    assert outcome.end_s >= 8 * 11
    assert outcome.overcommitted > 0.5
    free = ran(large, way=two, swap_cost=0)
    assert free.end_s <= 12
    assert ran(large).end_s <= 24, "DRF runs them one after the other"


def test_who_shares_a_node_with_a_hog_is_slowed_too():
    small = replace(TEN_S, user="b", demand=(1000, 1))
    hogs = replace(TEN_S, tasks=2, demand=(1000, 4096))
    alone = ran(small).end_s
    outcome = ran(hogs, small, way=SharingScheme(name="", policy="slots", slots=3))
    (ended,) = [each for each in outcome.ended if each.batch.user == "b"]
    assert ended.ended_s > 5 * alone


def test_a_batch_that_repeats_comes_again_when_it_has_ended():
    outcome = ran(replace(TEN_S, tasks=4, repeats=True), end_s=100)
    assert 7 <= len(outcome.ended) <= 12
    ends = [each.ended_s for each in outcome.ended]
    assert [each.submitted_s for each in outcome.ended] == [0, *ends[:-1]]
    assert outcome.end_s == 100
    assert len(outcome.held["a"]) == 100


def test_what_is_withdrawn_does_not_start():
    outcome = ran(replace(TEN_S, tasks=100, until_s=5))
    assert 8 <= outcome.end_s <= 12, "those that ran already went on"
    assert max(held for held, _ in outcome.held["a"]) == 4000


def test_a_cluster_that_reserves_makes_room_for_a_large_task():
    """Without, tasks of one core take each core as it comes free, for ever."""
    small = replace(TEN_S, user="b", tasks=400)
    large = replace(TEN_S, demand=(4000, 1024), tasks=20, at_s=1)
    passed = ran(small, large, end_s=200)
    kept = ran(small, large, end_s=200, way=replace(DRF, reserves=True))
    assert not any(held for held, _ in passed.held["a"])
    cores = [held for held, _ in kept.held["a"]]
    assert cores.index(4000) <= 30
    assert sum(cores) > 0.3 * 4000 * 200


NODE_8 = (8000, 6144)
AMOUNTS = some.tuples(some.integers(0, 30_000), some.integers(0, 30_000))


@given(some.tuples(some.integers(0, NODE_8[0]), some.integers(0, NODE_8[1])), some.integers(0, 100))
def test_who_stays_within_the_node_is_not_slowed(held, cost):
    assert slowdown(held, NODE_8, cost) == 1


@given(AMOUNTS, AMOUNTS, some.integers(0, 100))
def test_more_on_a_node_is_never_faster(held, more, cost):
    both = (held[0] + more[0], held[1] + more[1])
    assert slowdown(both, NODE_8, cost) >= slowdown(held, NODE_8, cost)
