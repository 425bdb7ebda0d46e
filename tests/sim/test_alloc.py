"""Small problems, written as people write them, to the results of the worked examples."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from drfd.common.errors import Refused
from drfd.sim.alloc import POLICIES, Allocation, Spec, allocate, dominant_resource, read_spec

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


# -- whole tasks --------------------------------------------------------------------------------


def test_e1_is_table_1_of_the_paper() -> None:
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


def test_a_tie_goes_to_the_larger_task_and_then_to_the_first_in_the_list() -> None:
    """Whoever is listed first in E1, B's task has the larger dominant share: 1/3 against 2/9."""
    assert order(B, A) == order(A, B) == "B A A B A"
    assert order(user("X", 3), user("Y", 3), user("Z", 3)) == "X Y Z"
    assert order(user("Z", 3), user("Y", 3), user("X", 3)) == "Z Y X"


def test_e21_is_the_walk_through_of_the_mesos_post() -> None:
    machine = {"capacity": {"cpu": 10, "mem": 20}}
    assert order(user("A", 3, 2), user("B", 1, 5), **machine) == "A B B A B"


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ([user("A", 0.5, 0.512)], {"A": 12}),
        ([user("A", 0.5, 0.512), user("B", "0.5", "0.512")], {"A": 6, "B": 6}),
        ([user(name, 0.5, 0.512) for name in "ABC"], {"A": 4, "B": 4, "C": 4}),
        ([user("A", 2, 1), user("B", 1, 2)], {"A": 2, "B": 2}),
        ([user("A", 2, 1), user("B", 1, 2.5)], {"A": 2, "B": 1}),
    ],
    ids=["E22 alone", "E22 two", "E22 three", "E23", "E24"],
)
def test_the_experiments_of_the_mesos_post(
    users: list[dict[str, Any]], expected: dict[str, int]
) -> None:
    assert tasks(*users, capacity={"cpu": 6, "mem": 6.6}) == expected


def test_decimals_are_exact() -> None:
    """Ten tenths are one, in numbers as in quotes."""
    for tenth in (0.1, "0.1", "1e-1", ".1"):
        assert tasks(user("A", tenth), capacity={"cpu": 1}) == {"A": 10}


def test_e12_first_come_first_served_serves_users_as_listed() -> None:
    op1, op2 = user("op1", 1, 4, tasks=1000), user("op2", 10, 1, tasks=500)
    machine = {"capacity": {"cpu": 3200, "mem": 6400}, "policy": "fifo"}
    assert tasks(op1, op2, **machine) == {"op1": 1000, "op2": 220}
    assert tasks(op2, op1, **machine) == {"op1": 0, "op2": 320}
    assert tasks(op1, op2, mode="continuous", **machine) == {"op1": 1000, "op2": 220}


def test_first_come_first_served_stops_at_the_first_task_that_does_not_fit() -> None:
    """Though the next user's would."""
    assert tasks(user("A", 4), user("B", 1), policy="fifo") == {"A": 2, "B": 0}
    assert tasks(user("A", 4, tasks=2), user("B", 1), policy="fifo") == {"A": 2, "B": 1}


def test_algorithm_1_stops_where_drf_goes_on() -> None:
    users = user("A", 0.29, tasks=None), user("B", 0.1)
    machine = {"capacity": {"cpu": 1}}
    assert tasks(*users, policy="algorithm1", **machine) == {"A": 2, "B": 4}
    assert tasks(*users, policy="drf", **machine) == {"A": 1, "B": 7}
    full = user("A", 4, 0), user("B", 0, 1)
    assert tasks(*full, policy="algorithm1")["B"] < 18
    assert tasks(*full, policy="drf")["B"] == 18


def test_cpu_and_slots_forget_what_they_do_not_look_at() -> None:
    users = user("A", 1, 10), user("B", 1, 1)
    found = solve(*users, policy="cpu")
    assert found.tasks == {"A": 5, "B": 4}
    assert found.dominant_share("A") == Fraction(50, 18)
    assert tasks(*users, policy="slots", slots=30) == {"A": 15, "B": 15}


def test_who_asks_for_no_cpu_may_have_a_limited_number_of_tasks_under_cpu() -> None:
    users = user("A", 0, 10, tasks=7), user("B", 1, 1)
    for mode in ("discrete", "continuous"):
        assert tasks(*users, policy="cpu", mode=mode) == {"A": 7, "B": 9}


def test_weights_of_users_and_of_single_resources() -> None:
    machine = {"capacity": {"cpu": 12, "mem": 12}}
    assert tasks(user("A", 1, weight=3), user("B", 1), **machine) == {"A": 9, "B": 3}
    heavy = {"cpu": "0.5", "mem": 3}
    assert tasks(user("A", 1, weight=heavy), user("B", 1), **machine) == {"A": 4, "B": 8}
    assert tasks(user("A", 1, weight=["0.5", 3]), user("B", 1), **machine) == {"A": 4, "B": 8}
    only_memory = {"mem": 2}
    mine, yours = user("A", 0, 1, weight=only_memory), user("B", 0, 1)
    assert tasks(mine, yours, **machine) == {"A": 8, "B": 4}
    cores = user("A", 1, 0, weight=only_memory), user("B", 1, 0)
    assert tasks(*cores, **machine) == {"A": 6, "B": 6}


# -- trees --------------------------------------------------------------------------------------

E18 = [user("op1", 1, 0), user("op2", 1, 0, pool="P"), user("op3", 0, 1, pool="P")]
ONE = {"cpu": 1, "mem": 1}


@pytest.mark.parametrize("policy", ["drf", "hdrf"])
def test_e18_the_pool_shares_with_the_user_beside_it(policy: str) -> None:
    found = tasks(*E18, capacity=ONE, pools={"P": {}}, policy=policy, mode="continuous")
    assert found == {"op1": Fraction(1, 2), "op2": Fraction(1, 2), "op3": 1}
    whole = tasks(*E18, capacity={"cpu": 12, "mem": 12}, pools={"P": {}}, policy=policy)
    assert whole == {"op1": 6, "op2": 6, "op3": 12}


def test_e17_pools_nest_and_names_may_be_anything() -> None:
    pools = {
        "a.b": {"weight": 30, "parent": None},
        "a": {"weight": 80, "parent": "a.b"},
        "root": {"weight": 50},
    }
    users = [
        user("x", 1, weight=20, pool="a.b"),
        user("a", 1, weight=50, pool="a"),
        user("q", 1, weight=50, pool="a"),
        user("b", 1, weight=20),
        user("u0", 1, weight=30, pool="root"),
        user("p1", 1, weight=70, pool="root"),
    ]
    for mode in ("discrete", "continuous"):
        found = tasks(*users, capacity={"cpu": 100}, pools=pools, mode=mode)
        assert list(found.values()) == [6, 12, 12, 20, 15, 35]


def test_a_pool_without_users_takes_no_part() -> None:
    pools = {"P": {"weight": 5}, "Q": {"parent": "P"}}
    assert tasks(user("A", 1), user("B", 1, tasks=0, pool="Q"), pools=pools) == {"A": 9, "B": 0}


def test_naive_comparison_lets_a_pool_that_is_rich_in_memory_wait_for_cpus() -> None:
    """op3 has all the memory before CPUs are given out; then op1 takes all of them."""
    pool = {"P": {"weight": 1, "parent": None}}
    users = [user("op3", 0, 12, pool="P"), user("op1", 1, 0), user("op2", 1, 0, pool="P")]
    machine = {"capacity": {"cpu": 12, "mem": 12}, "pools": pool}
    assert tasks(*users, policy="hdrf-naive", **machine) == {"op1": 12, "op3": 1, "op2": 0}
    assert tasks(*users, policy="hdrf", **machine) == {"op1": 6, "op3": 1, "op2": 6}


# -- tasks that can be cut ----------------------------------------------------------------------


def near(found: dict[str, Fraction], **expected: Fraction) -> bool:
    return found.keys() == expected.keys() and all(
        abs(found[name] - tasks) <= tasks / 10**12 for name, tasks in expected.items()
    )


def test_e2_and_e3_the_other_policies_on_the_papers_example() -> None:
    cut = {"mode": "continuous"}
    assert tasks(A, B, policy="drf", **cut) == {"A": 3, "B": 2}
    asset = tasks(A, B, policy="asset", **cut)
    assert asset == {"A": Fraction("2.52"), "B": Fraction("2.16")}
    ceei = tasks(A, B, policy="ceei", **cut)
    assert near(ceei, A=Fraction(45, 11), B=Fraction(18, 11))
    assert solve(A, B, policy="drf", **cut).order == []


def test_e6_a_lie_in_the_market() -> None:
    more = {"capacity": {"cpu": 100, "mem": 100}, "policy": "ceei", "mode": "continuous"}
    honest, lie = user("1", 16, 1), user("1", 16, 8)
    found = tasks(honest, user("2", 1, 2), **more)
    assert near(found, **{"1": Fraction(100, 31), "2": Fraction(1500, 31)})
    found = tasks(lie, user("2", 1, 2), **more)
    assert near(found, **{"1": Fraction(25, 6), "2": Fraction(100, 3)})


def test_the_market_is_continuous_where_nothing_is_said() -> None:
    problem = {"capacity": PAPER, "users": [A, B], "policy": "ceei"}
    assert read_spec(json.dumps(problem)).mode == "continuous"


def test_e13_with_weights() -> None:
    users = user("A", 1, 4, weight=0.4), user("B", 10, 1, weight="0.6")
    machine = {"capacity": {"cpu": 1600, "mem": 3200}}
    for mode in ("discrete", "continuous"):
        assert tasks(*users, mode=mode, **machine) == {"A": 400, "B": 120}


def test_e8_and_e10_are_fractions() -> None:
    cut = {"mode": "continuous"}
    users = user("A", 2, 1), user("B", 1, 2)
    assert tasks(*users, capacity=ONE, **cut) == {"A": Fraction(1, 3), "B": Fraction(1, 3)}
    more = {"cpu": 1, "mem": 4}
    assert tasks(*users, capacity=more, **cut) == {"A": Fraction(1, 4), "B": Fraction(1, 2)}
    yarn = user("A", 1, 5), user("B", 5, 2)
    ten = {"cpu": 10, "mem": 10}
    assert tasks(*yarn, capacity=ten, **cut) == {"A": Fraction(10, 7), "B": Fraction(10, 7)}
    assert tasks(*yarn, capacity=ten) == {"A": 1, "B": 1}


def test_a_number_of_tasks_may_be_a_fraction_where_tasks_can_be_cut() -> None:
    found = tasks(user("A", 1, tasks="2.5"), user("B", 1), mode="continuous")
    assert found == {"A": Fraction(5, 2), "B": Fraction(13, 2)}


@pytest.mark.parametrize("mode", ["discrete", "continuous"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_divides_the_papers_machine(policy: str, mode: str) -> None:
    if (policy, mode) == ("ceei", "discrete"):
        with pytest.raises(Refused, match="ceei is continuous only"):
            spec_of(A, B, policy=policy, mode=mode)
        return
    found = solve(A, B, policy=policy, mode=mode, slots=4)
    assert sum(found.tasks.values()) >= 4
    assert len(found.order) == (sum(found.tasks.values()) if mode == "discrete" else 0)


def test_nobody_is_a_problem_too() -> None:
    assert solve() == Allocation(tasks={}, shares={}, order=[])
    assert solve(mode="continuous") == Allocation(tasks={}, shares={}, order=[])


# -- bad problems -------------------------------------------------------------------------------

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
        ("", "is not JSON: line 1, column 1: Expecting value"),
        ("{", "is not JSON: line 1, column 2: "),
        ('{"a": 1, "a": 2}', "the key a stands twice in one object (leave one out)"),
        ("[]", "[] is not an object"),
        ("[" * 100_000, "is JSON with numbers or nesting beyond all measure"),
        ('{"capacity": ' + "9" * 5000 + "}", "is JSON with numbers or nesting beyond all measure"),
        ('{"capacity": 1e99999999999999999999}', "is JSON with numbers or nesting beyond all"),
        ("{}", "capacity: is missing"),
        ('{"capacity": {"cpu": 1}}', "users: is missing"),
        ('{"capacity": {}, "users": []}', "capacity: names no resource (write "),
    ],
)
def test_what_is_not_a_problem_is_said_in_one_line(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"polcy": "drf"}, "polcy: unknown key (did you mean policy?)"),
        ({"xyz": 1}, "xyz: unknown key (known keys: capacity, users, pools, policy, mode, slots)"),
        ({"policy": "dfr"}, "policy: dfr is not known (did you mean drf?)"),
        ({"policy": ["drf"]}, 'policy: ["drf"] is not known (did you mean drf?)'),
        ({"policy": "easy"}, "policy: easy is not known (one of drf, hdrf, hdrf-naive, "),
        ({"mode": "exact"}, "mode: exact is not known (one of discrete, continuous)"),
        ({"policy": "slots"}, 'slots: is missing; the policy slots needs it (write "slots": 4)'),
        ({"slots": 0}, "slots: 0 is not above zero"),
        ({"slots": 1.5}, "slots: 1.5 is not a whole number"),
        ({"capacity": {"cpu": 0}}, "capacity.cpu: 0 is not above zero (write 2 or 0.5)"),
        ({"capacity": {"cpu": True}}, 'capacity.cpu: true is not a number (write 2, 0.5 or "0.5")'),
        ({"capacity": {"cpu": "many"}}, "capacity.cpu: many is not a number"),
        ({"capacity": {"cpu": "1/2"}}, "capacity.cpu: 1/2 is not a number"),
        ({"capacity": {"cpu": float("nan")}}, "capacity.cpu: NaN is not a number"),
        ({"capacity": {"cpu": 1e30}}, "capacity.cpu: 1E+30 is beyond all measure"),
        ({"capacity": {"cpu": 1e-30}}, "capacity.cpu: 1E-30 is beyond all measure"),
        ({"capacity": {"cpu": "1e999999999"}}, "capacity.cpu: 1e999999999 is beyond all measure"),
        ({"capacity": {"cpu": None}}, "capacity.cpu: null is not a number"),
        ({"capacity": [9]}, "capacity: [9] is not an object"),
        ({"users": {"A": 1}}, 'users: {"A": 1} is not a list'),
        ({"users": [1]}, "users[0]: 1 is not an object"),
        ({"users": [A, A]}, "users[1].name: A stands twice (give another name)"),
        ({"users": [{"demand": {"cpu": 1}}]}, "users[0].name: is missing"),
        ({"users": [{"name": "A"}]}, "users[0].demand: is missing"),
        ({"users": [A | {"name": ""}]}, 'users[0].name: "" is not a name'),
        ({"users": [A | {"name": 7}]}, "users[0].name: 7 is not a name"),
        ({"users": [A | {"wieght": 1}]}, "users[0].wieght: unknown key (did you mean weight?)"),
        ({"users": [A | {"weight": 0}]}, "users[0].weight: 0 is not above zero"),
        ({"users": [A | {"weight": {"cpu": -1}}]}, "users[0].weight.cpu: -1 is not above zero"),
        ({"users": [A | {"weight": {"gpu": 1}}]}, "users[0].weight.gpu: unknown key (did you mean"),
        ({"users": [A | {"weight": {"cpu": None}}]}, "users[0].weight.cpu: null is not a number"),
        ({"users": [A | {"weight": [1]}]}, "users[0].weight: [1] is not one number for each reso"),
        ({"users": [A | {"weight": [1, 0]}]}, "users[0].weight.mem: 0 is not above zero"),
        ({"users": [A | {"tasks": -1}]}, "users[0].tasks: -1 is below zero"),
        ({"users": [A | {"tasks": 1.5}]}, "users[0].tasks: must be a whole number in mode discr"),
        ({"users": [A | {"pool": "P"}]}, "users[0].pool: there is no pool P (there are: none)"),
        ({"users": [A | {"pool": "lib"}], "pools": {"lab": {}}}, "users[0].pool: there is no pool "
         "lib (did you mean lab?)"),
        ({"users": [A | {"demand": {"cpu": 0}}]}, "users[0].demand: asks for nothing, so its"),
        ({"users": [A | {"demand": {}}]}, "users[0].demand: asks for nothing, so its tasks would"),
        ({"users": [A | {"demand": {"cpus": 1}}]}, "users[0].demand.cpus: unknown key (did you mean"
         " cpu?)"),
        ({"users": [A | {"demand": {"cpu": "-1"}}]}, "users[0].demand.cpu: -1 is below zero"),
        ({"users": [user("A", 0, 1)], "policy": "cpu"}, "users[0].demand: asks for no cpu, so the"),
        ({"policy": "ceei", "users": [A | {"weight": {"cpu": 2}}]}, "users[0].weight: must be one"),
        ({"policy": "ceei", "users": [A | {"pool": "P"}], "pools": {"P": {}}}, "users[0].pool: "),
        ({"pools": {"P": 3}}, "pools.P: 3 is not an object"),
        ({"pools": {"P": {"parent": "Q"}}}, "pools.P.parent: there is no pool Q (there are: P)"),
        ({"pools": {"P": {"parent": "P"}}}, "pools.P.parent: more than 20 pools are above it, or"),
        ({"pools": {"P": {"parent": "Q"}, "Q": {"parent": "P"}}}, "pools.P.parent: more than 20"),
        ({"pools": {"P": {"users": []}}}, "pools.P.users: unknown key (known keys: weight, "),
        ({"capacity": {"cpu": 10**9}, "users": [user("A", 1)]}, "the machine has room for more "
         "than 200000 tasks"),
        ({"capacity": {"cpu": 192}, "users": [user("A", "0.12345678901234567")]}, "capacity: "
         "counted in the finest digit of any demand, it is more than 2^60"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place_and_its_cure(change: dict[str, Any], said: str) -> None:
    assert complaint(json.dumps(GOOD | change)).startswith(said)


def test_what_is_too_fine_for_whole_tasks_is_not_for_tasks_that_can_be_cut() -> None:
    found = tasks(user("A", "0.12345678901234567"), capacity={"cpu": 192}, mode="continuous")
    assert found["A"] == 192 / Fraction("0.12345678901234567")
