"""What `drf simulate alloc` is given: a small machine, its users, and a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from drfd.sim.strict import (
    Read,
    Table,
    decoded,
    name_of,
    one_of,
    read_amount,
    read_count,
    read_list,
    read_name,
    read_positive,
    read_table,
    refuse,
    shown,
)

#: The policies of `drf simulate alloc`, the usual one first.
POLICIES = (
    *("drf", "hdrf", "hdrf-naive", "algorithm1"),
    *("asset", "ceei", "cpu", "slots", "fifo"),
)
MODES = ("discrete", "continuous")

#: Pools inside pools.
_DEEPEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A user, or a pool."""

    name: str
    #: One per resource, in the order of the capacity.
    weights: tuple[Fraction, ...]
    #: The pool that it is in; None: none.
    pool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class User(Node):
    #: One task, in the order of the capacity.
    demand: tuple[Fraction, ...]
    #: None: without end.
    tasks: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    policy: str
    mode: str
    capacity: Mapping[str, Fraction]
    users: Sequence[User]
    pools: Mapping[str, Node] = field(default_factory=dict)
    slots: int | None = None


def read_spec(text: str) -> Spec:
    """Raises Refused, whose words begin with the place in the text."""
    top = Table(decoded(text), "", ("capacity", "users", "pools", "policy", "mode", "slots"))
    policy = top.take("policy", one_of(POLICIES), POLICIES[0])
    mode = top.take("mode", one_of(MODES), "continuous" if policy == "ceei" else "discrete")
    capacity = top.need("capacity", _amounts)
    pools = _pools(top.take("pools", read_table, {}), capacity)
    users = [
        _user(value, f"users[{at}]", capacity, pools)
        for at, value in enumerate(top.need("users", read_list))
    ]
    spec = Spec(
        policy=policy,
        mode=mode,
        capacity=capacity,
        users=users,
        pools=pools,
        slots=top.take("slots", read_count, None),
    )
    _check(spec)
    return spec


def _check(spec: Spec) -> None:
    """What is wrong between the parts."""
    seen: set[str] = set()
    for at, user in enumerate(spec.users):
        if user.name in seen:
            refuse(f"users[{at}].name", f"{shown(user.name)} stands twice", "give another name")
        seen.add(user.name)
        is_whole = user.tasks is None or user.tasks.denominator == 1
        if spec.mode == "discrete" and not is_whole:
            refuse(
                f"users[{at}].tasks",
                "must be a whole number in mode discrete",
                'round it, or ask for "mode": "continuous"',
            )
        if spec.policy == "cpu" and not user.demand[0] and user.tasks is None:
            first = next(iter(spec.capacity))
            refuse(
                f"users[{at}].demand",
                f"asks for no {shown(first)}, so the policy cpu gives tasks without end",
                'limit them with "tasks"',
            )
        if spec.policy == "ceei" and len(set(user.weights)) > 1:
            refuse(f"users[{at}].weight", "must be one number for the policy ceei", "write 2")
        if spec.policy == "ceei" and user.pool is not None:
            refuse(f"users[{at}].pool", "the policy ceei knows no pools", "leave it out")
    if spec.policy == "ceei" and spec.mode == "discrete":
        refuse("mode", "the policy ceei is continuous only", 'write "mode": "continuous"')
    if spec.policy == "slots" and spec.slots is None:
        refuse("slots", "is missing; the policy slots needs it", 'write "slots": 4')


def _user(
    value: object, place: str, capacity: Mapping[str, Fraction], pools: Mapping[str, Node]
) -> User:
    table = Table(value, place, ("name", "demand", "weight", "tasks", "pool"))
    demand = table.need("demand", _of_resources(capacity, read_amount))
    if not any(demand.values()):
        table.fail("demand", "asks for nothing, so its tasks would never end", 'write {"cpu": 1}')
    return User(
        name=table.need("name", read_name),
        weights=_weights(table, capacity),
        demand=tuple(demand.get(name, Fraction(0)) for name in capacity),
        tasks=table.take("tasks", read_amount, None),
        pool=table.take("pool", name_of(pools, "pool"), None),
    )


def _pools(values: Mapping[str, Any], capacity: Mapping[str, Fraction]) -> dict[str, Node]:
    pools = {}
    for name, value in values.items():
        table = Table(value, f"pools.{shown(name)}", ("weight", "parent"))
        parent = table.take("parent", name_of(values, "pool"), None)
        pools[name] = Node(name=name, weights=_weights(table, capacity), pool=parent)
    for name in pools:
        above, at = 0, pools[name].pool
        while at is not None:
            above, at = above + 1, pools[at].pool
            if above > _DEEPEST:
                refuse(
                    f"pools.{shown(name)}.parent",
                    f"more than {_DEEPEST} pools are above it, or it is above itself",
                    "write null for a pool at the top",
                )
    return pools


def _weights(table: Table, capacity: Mapping[str, Fraction]) -> tuple[Fraction, ...]:
    weight = table.take("weight", _weight(capacity), Fraction(1))
    if isinstance(weight, Fraction):
        return (weight,) * len(capacity)
    return tuple(weight.get(name, Fraction(1)) for name in capacity)


def _amounts(value: object, place: str) -> dict[str, Fraction]:
    table = read_table(value, place)
    if not table:
        refuse(place, "names no resource", 'write {"cpu": 9, "mem": 18}')
    return {name: read_positive(each, f"{place}.{shown(name)}") for name, each in table.items()}


def _of_resources(
    capacity: Mapping[str, Fraction], read: Read[Fraction]
) -> Read[dict[str, Fraction]]:
    def read_all(value: object, place: str) -> dict[str, Fraction]:
        table = Table(value, place, tuple(capacity))
        return {name: table.need(name, read) for name in read_table(value, place)}

    return read_all


def _weight(
    capacity: Mapping[str, Fraction],
) -> Read[Fraction | dict[str, Fraction]]:
    def read(value: object, place: str) -> Fraction | dict[str, Fraction]:
        if isinstance(value, list):
            if len(value) != len(capacity):
                refuse(place, f"{shown(value)} is not one number for each resource", "write 2")
            value = dict(zip(capacity, value, strict=True))
        if isinstance(value, dict):
            return _of_resources(capacity, read_positive)(value, place)
        return read_positive(value, place)

    return read
