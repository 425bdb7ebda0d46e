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


def test_first_come_first_served_stops_at_the_first_task_that_does_not_fit() -> None:
    """Though the next user's would."""
    assert tasks(user("A", 4), user("B", 1), policy="fifo") == {"A": 2, "B": 0}
    assert tasks(user("A", 4, tasks=2), user("B", 1), policy="fifo") == {"A": 2, "B": 1}


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


def test_a_pool_without_users_takes_no_part() -> None:
    pools = {"P": {"weight": 5}, "Q": {"parent": "P"}}
    assert tasks(user("A", 1), user("B", 1, tasks=0, pool="Q"), pools=pools) == {"A": 9, "B": 0}


# -- tasks that can be cut ----------------------------------------------------------------------


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
