"""The simulated machine: its capacity, and the pools and weights of its users.

The capacity is checked against the demands of a workload. Weights, guarantees and limits come from
a file like the daemon's, of which only [pools], [users] and [scheduling] are read, or from options.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from drfd.common.errors import ConfigError, Refused
from drfd.common.strict_table import TomlTable
from drfd.common.units import AXES, exact_size, read_duration_or_zero, show_amount
from drfd.core.fairness.rules import NodeSettings, Pool, PoolTables, Rules, read_scheduling
from drfd.core.model.machine import Vector
from drfd.core.model.resources import Axes, Resources, kind_of
from drfd.sim.workload import SimJob

_EXAMPLE = "write cores=900,memory=6T, and read=, write= and countable things like gpu=4 if needed"
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
#: Largest number of a countable resource.
_MOST_COUNT = 100_000


def parse_capacity(text: str) -> Resources:
    """Parse "cores=900,memory=6T,read=2G,write=1G,gpu=4"; resources without a name are zero."""
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, sign, amount = (each.strip() for each in part.partition("="))
        if not sign or not _NAME.fullmatch(name):
            raise Refused("bad-value", f"capacity: {part!r} is not NAME=AMOUNT", hint=_EXAMPLE)
        if name in amounts:
            raise Refused("bad-value", f"capacity: {name} is given twice", hint=_EXAMPLE)
        amounts[name] = _amount(name, amount)
    gres = {name: count for name, count in amounts.items() if name not in AXES}
    return Resources(gres=tuple(sorted(gres.items()))).with_amounts(amounts)


def _amount(name: str, amount: str) -> int:
    what = f"capacity: {name}"
    if name in AXES:
        return AXES[name].parse(amount, what=what)
    if not amount.isdecimal() or not 0 < int(amount) <= _MOST_COUNT:
        raise Refused("bad-value", f"{what}: {amount!r} is not a count", hint=_EXAMPLE)
    return int(amount)


def rules_of(capacity: Resources) -> Rules:
    """Return rules for this machine by which all users are equal."""
    instances = tuple((name, tuple(map(str, range(count)))) for name, count in capacity.gres)
    axes = Axes(gres=tuple(name for name, _ in capacity.gres), instances=instances)
    return Rules(axes=axes, capacity=capacity)


def check(jobs: Sequence[SimJob], capacity: Resources) -> None:
    """Raise Refused if the machine lacks a resource that jobs ask for. Such a capacity was
    mistyped; a single job that is too large is only refused itself."""
    asked, most = _asked(jobs)
    there = dict(zip(asked.names, asked.vector(capacity), strict=True))
    for name, amount in zip(asked.names, most, strict=True):
        if amount and not there[name]:
            mean = show_amount(name, round(_held(jobs, asked, name)))
            raise Refused(
                "bad-value",
                f"capacity: jobs of this trace ask for {name}, up to "
                f"{show_amount(name, amount)} each, and none is given",
                hint=f"add {name}=… to --capacity; on average {mean} is in use",
            )


def suggestion(jobs: Sequence[SimJob]) -> str:
    """Return a --capacity of which the trace would use three quarters on average."""
    axes, most = _asked(jobs)
    words = []
    for name, largest in zip(axes.names, most, strict=True):
        if largest:
            amount = max(largest, round(_held(jobs, axes, name) / 0.75))
            words.append(f"{name}={_round(name, amount)}")
    return ",".join(words)


def _round(name: str, amount: int) -> str:
    """Return an amount as it is typed, rounded up to two digits."""
    kind = kind_of(name)
    if kind == "cores":
        return str(_two_digits(-(-amount // 1000)))
    if kind not in AXES:
        return str(_two_digits(amount))
    for unit in (1 << 40, 1 << 30, 1 << 20):
        if amount >= unit:
            return exact_size(_two_digits(-(-amount // unit)) * unit)
    return "1M"


def _two_digits(number: int) -> int:
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit


def _asked(jobs: Sequence[SimJob]) -> tuple[Axes, Vector]:
    """Return the axes of all demands, and the most that one job asks for on each."""
    demands = {job.demand for job in jobs}
    axes = Axes(gres=tuple(sorted({name for demand in demands for name, _ in demand.gres})))
    vectors = [axes.vector(demand) for demand in demands]
    return axes, tuple(max(column) for column in zip(*vectors, strict=True))


def _held(jobs: Sequence[SimJob], axes: Axes, name: str) -> float:
    """Return the mean amount that jobs would hold if none had to wait."""
    at = axes.names.index(name)
    span_s = max(1.0, max(job.submit_s + job.run_s for job in jobs) - jobs[0].submit_s)
    return sum(axes.vector(job.demand)[at] * job.run_s for job in jobs) / span_s


#: The word that is given in place of a file to have a pool for each group of the trace.
FROM_TRACE = "trace"


def configured(rules: Rules, path: Path) -> Rules:
    """Return `rules` with the pools, users and scheduling of a TOML file. Raises ConfigError."""
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from None
    tables = ("pools", "users", "scheduling")
    top = TomlTable({name: values[name] for name in tables if name in values}, str(path), "")
    tree = PoolTables((), rules.axes.gres)
    tree.read(top)
    readers = {"reservation_delay": read_duration_or_zero, "preemption": lambda _: False}
    found = read_scheduling(top.table("scheduling"), readers)
    top.done()
    top.refuse_errors()
    # A workload has no hours of the day: the ordinary limits count all the time.
    scheduling = vars(found) | {"policy": rules.policy, "preempting": None}
    return replace(rules, pools=tree.pools, members=tree.members, **scheduling)


def of_groups(jobs: Iterable[SimJob]) -> dict[str, Pool]:
    return {group: Pool() for group in sorted({job.group for job in jobs if job.group})}


def weighted(rules: Rules, weights: Mapping[str, Fraction], users: Iterable[str]) -> Rules:
    """Return `rules` with other weights for pools and users. A key is a pool ("lab"), a user in
    every pool that accepts them ("alice"), or a user in one pool ("lab.alice"). Raises Refused for
    an unknown name."""
    pools, members, known = dict(rules.pools), dict(rules.members), set(users)
    for name, weight in weights.items():
        above, _, last = name.rpartition(".")
        if name in pools:
            pools[name] = replace(pools[name], weight=weight, weights={})
        elif above in pools and last in known:
            members[above, last] = _heavier(members.get((above, last)), weight)
        elif name in known:
            takers = [at for at, pool in pools.items() if pool.users is None or name in pool.users]
            for at in ("", *takers):
                members[at, name] = _heavier(members.get((at, name)), weight)
        else:
            raise Refused("no-such-user", f"there is no pool or user {name!r} in the trace")
    return replace(rules, pools=pools, members=members)


def _heavier(claim: NodeSettings | None, weight: Fraction) -> NodeSettings:
    return replace(claim or NodeSettings(), weight=weight, weights={})
