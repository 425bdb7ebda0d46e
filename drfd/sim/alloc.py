"""`drf simulate alloc`: its input, and the allocation of a small machine by any policy.

For teaching and for tests. Whole tasks go through the passes that schedule jobs, in integers;
divisible tasks go through the solvers of `sim.theory`. The input is JSON, read strictly. Its
numbers may be written as numbers or as decimals in quotes; all numbers are exact.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import Any, NoReturn, TypeVar

from drfd.common.errors import Refused
from drfd.common.strict_table import StrictTable, suggestion
from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.share_tree import TOP, FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling import scheduling_pass
from drfd.core.scheduling.plan import PassInput, PolicyOptions
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex
from drfd.sim import theory
from drfd.sim.theory import FlowDemand, Tasks

#: The policies of `drf simulate alloc`, the default first.
POLICIES = (
    *("drf", "hdrf", "hdrf-naive", "algorithm1"),
    *("asset", "ceei", "cpu", "slots", "fifo"),
)
MODES = ("discrete", "continuous")

#: Largest depth of pools inside pools.
_DEEPEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadNode:
    """A user or a pool."""

    name: str
    #: A weight for each resource, in the order of the capacity.
    weights: tuple[Fraction, ...]
    #: The pool that contains it, or None at the top.
    pool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class User(WorkloadNode):
    #: The amounts of one task, in the order of the capacity.
    demand: tuple[Fraction, ...]
    #: The number of tasks, or None if there is no end of them.
    tasks: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    policy: str
    mode: str
    capacity: Mapping[str, Fraction]
    users: Sequence[User]
    pools: Mapping[str, WorkloadNode] = field(default_factory=dict)
    slots: int | None = None


def read_spec(text: str) -> Spec:
    """Parse the input. Raises Refused, whose text begins with the place of the error."""
    top = JsonTable(decoded(text), "", ("capacity", "users", "pools", "policy", "mode", "slots"))
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
    """Check what the single values cannot show. Raises Refused."""
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
    value: object, place: str, capacity: Mapping[str, Fraction], pools: Mapping[str, WorkloadNode]
) -> User:
    table = JsonTable(value, place, ("name", "demand", "weight", "tasks", "pool"))
    demand = table.need("demand", _of_resources(capacity, read_amount))
    if not any(demand.values()):
        table.fail("demand", "asks for nothing, so its tasks would never end", 'write {"cpu": 1}')
    return User(
        name=table.need("name", read_name),
        weights=_weights(table, capacity),
        demand=tuple(demand.get(name, Fraction(0)) for name in capacity),
        tasks=table.take("tasks", read_amount, None),
        pool=table.take("pool", pool_of(pools), None),
    )


def _pools(
    values: Mapping[str, object], capacity: Mapping[str, Fraction]
) -> dict[str, WorkloadNode]:
    pools = {}
    for name, value in values.items():
        table = JsonTable(value, f"pools.{shown(name)}", ("weight", "parent"))
        parent = table.take("parent", pool_of(values), None)
        pools[name] = WorkloadNode(name=name, weights=_weights(table, capacity), pool=parent)
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


def _weights(table: JsonTable, capacity: Mapping[str, Fraction]) -> tuple[Fraction, ...]:
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
        table = JsonTable(value, place, tuple(capacity))
        return {name: table.need(name, read) for name in read_table(value, place)}

    return read_all


def _weight(capacity: Mapping[str, Fraction]) -> Read[Fraction | dict[str, Fraction]]:
    def read(value: object, place: str) -> Fraction | dict[str, Fraction]:
        if isinstance(value, list):
            if len(value) != len(capacity):
                refuse(place, f"{shown(value)} is not one number for each resource", "write 2")
            value = dict(zip(capacity, value, strict=True))
        if isinstance(value, dict):
            return _of_resources(capacity, read_positive)(value, place)
        return read_positive(value, place)

    return read


_MOST_TASKS = 200_000
#: Largest amount for which the comparisons of a pass are exact.
_MOST_UNITS = 1 << 60

Solve = Callable[[FairShare, Mapping[str, FlowDemand]], Tasks]
_SOLVERS: Mapping[str, Solve] = {
    "drf": theory.drf,
    "hdrf": theory.drf,
    "hdrf-naive": theory.drf,
    "algorithm1": theory.algorithm1,
    "asset": theory.asset,
    "cpu": theory.cpu,
    "fifo": theory.fifo,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The result. Users are in the order of the input."""

    tasks: dict[str, Fraction]
    #: User → resource → the part of the machine.
    shares: dict[str, dict[str, Fraction]]
    #: Users in the order in which their tasks start, or empty if tasks are divisible.
    order: list[str]

    def dominant_share(self, user: str) -> Fraction:
        return max(self.shares[user].values())


def allocate(spec: Spec) -> Allocation:
    """Divide the machine. Raises Refused for too many tasks, or too fine units."""
    shares, demands = _in_whole_units(spec)
    leaves = dict(zip(demands, spec.users, strict=True))
    if spec.mode == "continuous":
        order, tasks = [], _cut(spec, shares, demands, leaves)
    else:
        order = _launched(spec, shares, demands, leaves)
        count = Counter(order)
        tasks = {leaf: Fraction(count[leaf]) for leaf in leaves}
    return Allocation(
        tasks={user.name: tasks[leaf] for leaf, user in leaves.items()},
        shares={
            user.name: {
                name: tasks[leaf] * each / top
                for (name, top), each in zip(spec.capacity.items(), user.demand, strict=True)
            }
            for leaf, user in leaves.items()
        },
        order=[leaves[leaf].name for leaf in order],
    )


def dominant_resource(spec: Spec, user: User) -> str:
    """Return the resource of which one task takes the largest part, the first of equal ones."""
    pairs = zip(spec.capacity.items(), user.demand, strict=True)
    parts = {name: each / top for (name, top), each in pairs}
    return max(parts, key=lambda name: parts[name])


def _in_whole_units(spec: Spec) -> tuple[FairShare, dict[str, Vector]]:
    """Return the tree whose leaves are the users, and by leaf the amounts of one task."""
    rows = [tuple(spec.capacity.values()), *(user.demand for user in spec.users)]
    units = [lcm(*(each.denominator for each in column)) for column in zip(*rows, strict=True)]
    whole = [tuple(int(each * unit) for each, unit in zip(row, units, strict=True)) for row in rows]
    # Users and pools may have any names, so the tree uses their numbers.
    paths: dict[str | None, str] = {None: TOP}
    numbers = {name: at for at, name in enumerate(spec.pools)}

    def path_of(pool: str | None) -> str:
        if pool not in paths:
            assert pool is not None
            paths[pool] = f"{path_of(spec.pools[pool].pool)}.p{numbers[pool]}"
        return paths[pool]

    leaves = [f"{path_of(user.pool)}.u{at}" for at, user in enumerate(spec.users)]
    nodes: dict[str, WorkloadNode] = dict(zip(leaves, spec.users, strict=True))
    nodes |= {path_of(name): pool for name, pool in spec.pools.items()}
    rules = {path: NodeRule(weights=node.weights) for path, node in nodes.items()}
    return FairShare(whole[0], rules), dict(zip(leaves, whole[1:], strict=True))


def _cut(
    spec: Spec, shares: FairShare, demands: Mapping[str, Vector], leaves: Mapping[str, User]
) -> Tasks:
    wants = {
        leaf: FlowDemand(demand=tuple(map(Fraction, demands[leaf])), tasks=user.tasks)
        for leaf, user in leaves.items()
    }
    if spec.policy == "ceei":
        weights = {leaf: user.weights[0] for leaf, user in leaves.items()}
        return theory.ceei(shares.capacity, wants, weights)
    if spec.policy == "slots":
        assert spec.slots is not None
        return theory.slots(shares, wants, spec.slots)
    return _SOLVERS[spec.policy](shares, wants)


def _launched(
    spec: Spec, shares: FairShare, demands: Mapping[str, Vector], leaves: Mapping[str, User]
) -> list[str]:
    """Return the leaves of the tasks that start, in order. Raises Refused."""
    capacity = shares.capacity
    if max([*capacity, *(max(demand) for demand in demands.values())]) > _MOST_UNITS:
        raise Refused(
            "bad-spec",
            "capacity: counted in the finest digit of any demand, it is more than 2^60",
            hint='round the numbers, or ask for "mode": "continuous"',
        )
    in_turn = list(leaves)
    if spec.policy != "fifo":
        # All users wait from the start, so this decides every tie. The sort is stable.
        in_turn.sort(key=lambda leaf: -shares.dominant_share(demands[leaf]))
    queues: dict[str, LeafQueue] = {}
    owners: list[str] = []
    for leaf in in_turn:
        count = _count(spec, leaves[leaf].tasks, demands[leaf], capacity)
        if len(owners) + count > _MOST_TASKS:
            raise Refused(
                "bad-spec",
                f"the machine has room for more than {_MOST_TASKS} tasks",
                hint='ask for larger tasks, or for "mode": "continuous"',
            )
        for _ in range(count):
            queues.setdefault(leaf, LeafQueue()).add(demands[leaf], (0, len(owners)))
            owners.append(leaf)
    given = PassInput(
        wait_index=WaitIndex(LeafTables(queues=queues, used={}, shares=shares)),
        free=capacity,
        options=PolicyOptions(slots=spec.slots, overcommit=True),
    )
    done = scheduling_pass.POLICIES["drf" if spec.policy == "hdrf" else spec.policy](given)
    return [owners[job_id] for job_id in done.admitted]


def _count(spec: Spec, tasks: Fraction | None, demand: Vector, capacity: Vector) -> int:
    """Return how many tasks to queue: all that fit alone and one more, since some policies stop
    at the first task that does not fit."""
    pairs = list(zip(demand, capacity, strict=True))
    rooms = [top // each for each, top in (pairs[:1] if spec.policy == "cpu" else pairs) if each]
    if spec.policy == "slots":
        rooms = [spec.slots or 0]
    most = min(rooms) + 1 if rooms else _MOST_TASKS + 1
    return most if tasks is None else min(most, int(tasks))


T = TypeVar("T")
#: Converts a value at a place, or raises Refused.
Read = Callable[[object, str], T]

_DECIMAL = re.compile(r"[+-]?(\d{1,60}(\.\d{0,60})?|\.\d{1,60})([eE][+-]?\d{1,9})?", re.ASCII)
#: Largest and smallest power of ten of a number; others are typing errors, and slow to compute.
_LARGEST, _FINEST = 18, -18


class JsonTable(StrictTable):
    """An object of the text. A key that is not among `keys` is refused at once."""

    def __init__(self, value: object, place: str, keys: Sequence[str]) -> None:
        super().__init__(read_table(value, place), place)
        self.refuse_unknown(keys, shown, others=f"known keys: {', '.join(keys)}")

    def need(self, key: str, read: Read[T]) -> T:
        """Return the value of a key. Raises Refused if it is missing."""
        if key not in self._values:
            self.fail(key, "is missing")
        return read(self._values[key], self.at(key))

    def take(self, key: str, read: Read[T], default: Any) -> Any:
        """Return the value of a key, or the default if it is missing or null."""
        value = self._values.get(key)
        return default if value is None else read(value, self.at(key))

    def error(self, place: str, text: str, hint: str = "") -> Refused:
        return _error(place, text, hint)


def refuse(place: str, text: str, hint: str = "") -> NoReturn:
    raise _error(place, text, hint)


def _error(place: str, text: str, hint: str) -> Refused:
    return Refused("bad-spec", f"{place}: {text}" if place else text, hint=hint)


def decoded(text: str) -> object:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            refuse("", f"the key {shown(twice)} stands twice in one object", "leave one out")
        return table

    try:
        found: object = json.loads(text, parse_float=Decimal, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        refuse("", f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}")
    except (ValueError, ArithmeticError, RecursionError):
        refuse("", "is JSON with numbers or nesting beyond all measure")
    return found


def shown(value: object) -> str:
    """Return a value as it was written, cut to 40 characters."""
    is_plain = value != "" and isinstance(value, str | Decimal)
    word = str(value) if is_plain else json.dumps(value, default=str)
    return word if len(word) <= 40 else f"{word[:37]}..."


def read_table(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        refuse(place, f"{shown(value)} is not an object", 'write {"key": value}')
    return value


def read_list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        refuse(place, f"{shown(value)} is not a list", "write [ … ]")
    return value


def read_name(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        refuse(place, f"{shown(value)} is not a name", 'write "A"')
    return value


def one_of(words: Sequence[str]) -> Read[str]:
    return _among(words, "{} is not known", f"one of {', '.join(words)}")


def pool_of(names: Mapping[str, object]) -> Read[str]:
    known = ", ".join(map(shown, names)) or "none"
    return _among(names, "there is no pool {}", f"there are: {known}")


def _among(words: Collection[str], text: str, others: str) -> Read[str]:
    """Return a reader that refuses other words, with `others` as the hint if none is similar."""

    def read(value: object, place: str) -> str:
        if not isinstance(value, str) or value not in words:
            hint = suggestion(str(value), words, shown, others=others)
            refuse(place, text.format(shown(value)), hint)
        return value

    return read


def read_number(value: object, place: str) -> Fraction:
    is_number = isinstance(value, int | str | Decimal) and not isinstance(value, bool)
    if not is_number or not _DECIMAL.fullmatch(str(value)):
        refuse(place, f"{shown(value)} is not a number", 'write 2, 0.5 or "0.5"')
    exact = Decimal(str(value))
    # The place of the first digit; a comparison would round, and may overflow.
    if exact and not _FINEST <= exact.adjusted() <= _LARGEST:
        refuse(place, f"{shown(value)} is beyond all measure", "use larger or smaller units")
    return Fraction(exact) if exact else Fraction(0)


def read_amount(value: object, place: str) -> Fraction:
    number = read_number(value, place)
    if number < 0:
        refuse(place, f"{shown(value)} is below zero", "write 0 or more")
    return number


def read_positive(value: object, place: str) -> Fraction:
    number = read_number(value, place)
    if number <= 0:
        refuse(place, f"{shown(value)} is not above zero", "write 2 or 0.5")
    return number


def read_count(value: object, place: str) -> int:
    number = read_positive(value, place)
    if number.denominator != 1:
        refuse(place, f"{shown(value)} is not a whole number", "write 4")
    return int(number)
