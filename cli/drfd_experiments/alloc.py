"""`drf simulate alloc`: its input, and the allocation of a small machine by any policy.

For teaching and for tests. Whole tasks go through the passes that schedule jobs, in integers;
divisible tasks go through the solvers of `theory`. The input is JSON, read strictly. Its
numbers may be written as numbers or as decimals in quotes; all numbers are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import lcm
from operator import itemgetter
from typing import NoReturn

import msgspec
from msgspec import Struct

from drfd.common.errors import Refused
from drfd.common.strict_table import suggestion
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue, Line
from drfd.core.model.job import ROOT
from drfd.core.model.machine import FreeResources, Vector
from drfd.core.scheduling import policies
from drfd.core.scheduling.policies import PassInput
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex
from drfd_experiments import theory
from drfd_experiments.theory import FlowDemand, Tasks

#: The policies of `drf simulate alloc`, the default first.
POLICIES = (
    *("drf", "hdrf", "hdrf-naive", "algorithm1"),
    *("asset", "ceei", "cpu", "slots", "fifo"),
)
MODES = ("discrete", "continuous")

#: Largest depth of pools inside pools.
_DEEPEST = 20
#: Most digits of a number, and the largest and smallest power of ten of the first one; others are
#: typing errors, and slow to compute.
_MOST_DIGITS, _LARGEST, _FINEST = 60, 18, -18


_Weight = Decimal | dict[str, Decimal] | None


class PoolSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    weight: _Weight = None
    #: The pool that contains it, or None at the top.
    parent: str | None = None


class User(Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    #: The amounts of one task.
    demand: dict[str, Decimal]
    weight: _Weight = None
    #: The number of tasks, or None if there is no end of them.
    tasks: Decimal | None = None
    pool: str | None = None


class Spec(Struct, forbid_unknown_fields=True, kw_only=True):
    """The input as it is written. Null is as good as nothing."""

    capacity: dict[str, Decimal]
    users: list[User]
    pools: dict[str, PoolSpec] | None = None
    policy: str | None = None
    mode: str | None = None
    slots: int | None = None

    def demand(self, user: User) -> tuple[Fraction, ...]:
        """Return the amounts of one task of the user, in the order of the capacity."""
        return tuple(Fraction(user.demand.get(name, 0)) for name in self.capacity)

    def weights(self, node: User | PoolSpec) -> tuple[Fraction, ...]:
        """Return a weight for each resource, in the order of the capacity."""
        if isinstance(node.weight, Decimal):
            return (Fraction(node.weight),) * len(self.capacity)
        by_name = node.weight or {}
        return tuple(Fraction(by_name.get(name, 1)) for name in self.capacity)


def read_spec(text: str) -> Spec:
    """Parse the input. Raises Refused, whose text begins with the place of the error."""
    try:
        spec = msgspec.json.decode(text.encode(errors="replace"), type=Spec)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$.")
        refuse(place.rstrip("`"), _short(words, 100), "see drf simulate alloc --help")
    except msgspec.DecodeError as error:
        refuse("", f"is not JSON: {error}")
    spec.policy = spec.policy or POLICIES[0]
    spec.mode = spec.mode or ("continuous" if spec.policy == "ceei" else "discrete")
    _check(spec)
    return spec


def _check(spec: Spec) -> None:
    """Raise Refused if a value is wrong, or does not go with another one."""
    _check_known(spec.policy, POLICIES, "policy")
    _check_known(spec.mode, MODES, "mode")
    if not spec.capacity:
        refuse("capacity", "names no resource", 'write {"cpu": 9, "mem": 18}')
    _check_numbers(spec, spec.capacity, "capacity")
    pools = spec.pools or {}
    for name, pool in pools.items():
        place = f"pools.{_short(name)}"
        _check_weight(spec, pool, f"{place}.weight")
        _check_known(pool.parent, pools, f"{place}.parent")
    for name, pool in pools.items():
        above, at = 0, pool.parent
        while at is not None:
            above, at = above + 1, pools[at].parent
            if above > _DEEPEST:
                refuse(
                    f"pools.{_short(name)}.parent",
                    f"more than {_DEEPEST} pools are above it, or it is above itself",
                    "write null for a pool at the top",
                )
    names: set[str] = set()
    for number, user in enumerate(spec.users):
        _check_user(spec, user, f"users[{number}]", names)
        names.add(user.name)
    if spec.policy == "ceei" and spec.mode == "discrete":
        refuse("mode", "the policy ceei is continuous only", 'write "mode": "continuous"')
    if spec.policy == "slots" and spec.slots is None:
        refuse("slots", "is missing; the policy slots needs it", 'write "slots": 4')
    if spec.slots is not None and spec.slots < 1:
        refuse("slots", f"{spec.slots} is not above zero", "write 4")


def _check_user(spec: Spec, user: User, place: str, names: Collection[str]) -> None:
    _check_numbers(spec, user.demand, f"{place}.demand", may_be_zero=True)
    if not user.name:
        refuse(f"{place}.name", "is empty", 'write "A"')
    if user.name in names:
        refuse(f"{place}.name", f"{_short(user.name)} stands twice", "give another name")
    demand = spec.demand(user)
    if not any(demand):
        refuse(
            f"{place}.demand", "asks for nothing, so its tasks would never end", 'write {"cpu": 1}'
        )
    _check_weight(spec, user, f"{place}.weight")
    if user.tasks is not None:
        _check_number(user.tasks, f"{place}.tasks", may_be_zero=True)
        if spec.mode == "discrete" and Fraction(user.tasks).denominator > 1:
            refuse(
                f"{place}.tasks",
                "must be a whole number in mode discrete",
                'round it, or ask for "mode": "continuous"',
            )
    elif spec.policy == "cpu" and not demand[0]:
        first = _short(next(iter(spec.capacity)))
        refuse(
            f"{place}.demand",
            f"asks for no {first}, so the policy cpu gives tasks without end",
            'limit them with "tasks"',
        )
    _check_known(user.pool, spec.pools or {}, f"{place}.pool")
    if spec.policy in ("ceei", "slots") and len(set(spec.weights(user))) > 1:
        refuse(f"{place}.weight", f"must be one number for the policy {spec.policy}", "write 2")
    if spec.policy == "ceei" and user.pool is not None:
        refuse(f"{place}.pool", "the policy ceei knows no pools", "leave it out")


def _check_weight(spec: Spec, node: User | PoolSpec, place: str) -> None:
    if isinstance(node.weight, Decimal):
        _check_number(node.weight, place)
    else:
        _check_numbers(spec, node.weight or {}, place)


def _check_numbers(
    spec: Spec, values: Mapping[str, Decimal], place: str, *, may_be_zero: bool = False
) -> None:
    for name, value in values.items():
        _check_known(name, spec.capacity, place)
        _check_number(value, f"{place}.{_short(name)}", may_be_zero=may_be_zero)


def _check_number(value: Decimal, place: str, *, may_be_zero: bool = False) -> None:
    is_sane = value.is_finite() and len(value.as_tuple().digits) <= _MOST_DIGITS
    # The place of the first digit; a comparison would round, and may overflow.
    if not is_sane or (value and not _FINEST <= value.adjusted() <= _LARGEST):
        refuse(place, f"{_short(value)} is beyond all measure", "use larger or smaller units")
    if value < 0 or not (value or may_be_zero):
        bound = "below" if may_be_zero else "not above"
        refuse(place, f"{_short(value)} is {bound} zero", "write 2 or 0.5")


def _check_known(word: str | None, words: Collection[str], place: str) -> None:
    if word is not None and word not in words:
        known = ", ".join(map(_short, words)) or "none"
        hint = suggestion(word, words, _short, others=f"known: {_short(known, 100)}")
        refuse(place, f"{_short(word)} is not known", hint)


def _short(word: object, most: int = 40) -> str:
    text = str(word)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def refuse(place: str, text: str, hint: str = "") -> NoReturn:
    raise Refused("bad-spec", f"{place}: {text}" if place else text, hint=hint)


_MOST_TASKS = 200_000
#: Largest amount for which the comparisons of a pass are exact.
_MOST_UNITS = 1 << 60

Solve = Callable[[FairShare, Mapping[str, FlowDemand]], Tasks]
#: Those that are not DRF on all or some of the resources.
_SOLVERS: Mapping[str, Solve] = {
    "algorithm1": theory.algorithm1,
    "asset": theory.asset,
    "fifo": theory.fifo,
}
#: Policy → that of a pass which does the same on what it looks at.
_PASSES = {"hdrf": "drf", "cpu": "hdrf-naive", "slots": "hdrf-naive"}


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
    if spec.policy != "fifo":
        # All users wait from the start, so this decides every tie. The sort is stable.
        in_turn = sorted(demands, key=lambda leaf: -shares.dominant_share(demands[leaf]))
        demands = {leaf: demands[leaf] for leaf in in_turn}
    shares, demands = _looked_at(spec, shares, demands)
    if spec.mode == "continuous":
        order, tasks = [], _cut(spec, shares, demands, leaves)
    else:
        order = _launched(spec, shares, demands, leaves)
        count = Counter(order)
        tasks = {leaf: Fraction(count[leaf]) for leaf in leaves}
    return Allocation(
        tasks={user.name: tasks[leaf] for leaf, user in leaves.items()},
        shares={
            user.name: {name: tasks[leaf] * part for name, part in parts_of_task(spec, user)}
            for leaf, user in leaves.items()
        },
        order=[leaves[leaf].name for leaf in order],
    )


def parts_of_task(spec: Spec, user: User) -> list[tuple[str, Fraction]]:
    """Return the resources, and the part of each that one task takes."""
    pairs = zip(spec.capacity.items(), spec.demand(user), strict=True)
    return [(name, each / Fraction(top)) for (name, top), each in pairs]


def dominant_resource(spec: Spec, user: User) -> str:
    """Return the resource of which one task takes the largest part, the first of equal ones."""
    return max(parts_of_task(spec, user), key=itemgetter(1))[0]


def _in_whole_units(spec: Spec) -> tuple[FairShare, Mapping[str, Vector]]:
    """Return the tree whose leaves are the users, and by leaf the amounts of one task."""
    rows = [tuple(map(Fraction, spec.capacity.values())), *map(spec.demand, spec.users)]
    units = [lcm(*(each.denominator for each in column)) for column in zip(*rows, strict=True)]
    whole = [tuple(int(each * unit) for each, unit in zip(row, units, strict=True)) for row in rows]
    # Users and pools may have any names, so the tree uses their numbers.
    pools = spec.pools or {}
    numbers = {name: at for at, name in enumerate(pools)}

    def path_of(pool: str | None) -> str:
        return ROOT if pool is None else f"{path_of(pools[pool].parent)}.p{numbers[pool]}"

    leaves = [f"{path_of(user.pool)}.u{at}" for at, user in enumerate(spec.users)]
    nodes: dict[str, User | PoolSpec] = dict(zip(leaves, spec.users, strict=True))
    nodes |= {path_of(name): pool for name, pool in pools.items()}
    rules = {path: NodeRule(weights=spec.weights(node)) for path, node in nodes.items()}
    return FairShare(whole[0], rules), dict(zip(leaves, whole[1:], strict=True))


def _looked_at(
    spec: Spec, shares: FairShare, demands: Mapping[str, Vector]
) -> tuple[FairShare, Mapping[str, Vector]]:
    """Return what the policy looks at: "cpu" at the first resource alone, and "slots" at a slot for
    each task."""
    if spec.policy not in ("cpu", "slots"):
        return shares, demands
    rules = {
        path: NodeRule(weights=(rule.weights or ())[:1]) for path, rule in shares.rules.items()
    }
    if spec.slots is not None and spec.policy == "slots":
        return FairShare((spec.slots,), rules), dict.fromkeys(demands, (1,))
    return FairShare(shares.capacity[:1], rules), {leaf: each[:1] for leaf, each in demands.items()}


def _cut(
    spec: Spec, shares: FairShare, demands: Mapping[str, Vector], leaves: Mapping[str, User]
) -> Tasks:
    wants = {
        leaf: FlowDemand(
            demand=tuple(map(Fraction, demands[leaf])),
            tasks=None if user.tasks is None else Fraction(user.tasks),
        )
        for leaf, user in leaves.items()
    }
    if spec.policy == "ceei":
        weights = {leaf: spec.weights(user)[0] for leaf, user in leaves.items()}
        return theory.ceei(shares.capacity, wants, weights)
    return _SOLVERS.get(spec.policy or "", theory.drf)(shares, wants)


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
    queues: dict[str, LeafQueue] = {}
    owners: list[str] = []
    for leaf, demand in demands.items():
        count = _count(leaves[leaf].tasks, demand, capacity)
        if len(owners) + count > _MOST_TASKS:
            raise Refused(
                "bad-spec",
                f"the machine has room for more than {_MOST_TASKS} tasks",
                hint='ask for larger tasks, or for "mode": "continuous"',
            )
        if count:
            queues[leaf] = {demand: Line()}
            for task in range(len(owners), len(owners) + count):
                queues[leaf][demand].add((0, task))
        owners += [leaf] * count
    given = PassInput(
        wait_index=WaitIndex(LeafTables(queues=queues, used={}, shares=shares)),
        free=FreeResources(capacity),
    )
    policy = spec.policy or POLICIES[0]
    done = policies.POLICIES[_PASSES.get(policy, policy)](given)
    return [owners[job_id] for job_id in done.admitted]


def _count(tasks: Decimal | None, demand: Vector, capacity: Vector) -> int:
    """Return how many tasks to queue: all that fit alone and one more, since some policies stop
    at the first task that does not fit."""
    rooms = [top // each for each, top in zip(demand, capacity, strict=True) if each]
    most = min(rooms) + 1 if rooms else _MOST_TASKS + 1
    return most if tasks is None else min(most, int(tasks))
