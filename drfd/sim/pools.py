"""Weights, guarantees and limits of a simulation: from a file like the daemon's, or by the word.

Of a daemon's configuration, [pools], [users] and [scheduling] count here; what else stands in it
is about the machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from drfd.core.pool_config import Tree
from drfd.core.reservation import Patience
from drfd.core.rules import Claim, Pool, Rules
from drfd.errors import ConfigError, Refused
from drfd.sim.workload import SimJob
from drfd.toml_table import Table, read_count, read_duration_or_zero, read_flag
from drfd.units import parse_duration

#: In place of a file: a pool for each group of the trace.
FROM_TRACE = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Who is promised what, and how patient the scheduler is."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    members: Mapping[tuple[str, str], Claim] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    half_life_s: int = 7 * 86400
    min_hold_s: int = 10
    slots: int | None = None


def read_shape(path: Path, gres: Sequence[str] = ()) -> Shape:
    """Of a TOML file; `gres` may be named in limits. Raises ConfigError."""
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from None
    tables = ("pools", "users", "scheduling")
    top = Table({name: values[name] for name in tables if name in values}, str(path), "")
    tree = Tree((), gres)
    tree.read_pools(top.table("pools"))
    tree.read_users(top.table("users"))
    scheduling = top.table("scheduling")
    patience_s = scheduling.take("patience", read_duration_or_zero, 30)
    shape = Shape(
        pools=tree.pools,
        members=tree.members,
        patience=Patience(
            patience_s=patience_s,
            drain_after_s=scheduling.take("drain_after", parse_duration, 4 * patience_s + 86400),
            reserves=scheduling.take("reservation", read_flag, True),
            depth=scheduling.take("reservation_depth", read_count, 1),
        ),
        half_life_s=scheduling.take("half_life", parse_duration, 7 * 86400),
        min_hold_s=scheduling.take("min_hold", read_duration_or_zero, 10),
        slots=scheduling.take("slots", read_count, None),
    )
    for name in _ELSEWHERE:
        scheduling.take(name, _anything, None)
    top.done()
    return shape


#: What a daemon also finds in [scheduling].
_ELSEWHERE = (
    *("policy", "preemption", "preempt", "preempt_after", "preempt_rest", "external_load"),
)


def _anything(value: object) -> object:
    return value


def of_groups(jobs: Iterable[SimJob]) -> dict[str, Pool]:
    """A plain pool for each group of a trace, for whoever is in it."""
    return {group: Pool() for group in sorted({job.group for job in jobs if job.group})}


def weighted(shape: Shape, weights: Mapping[str, Fraction], users: Iterable[str]) -> Shape:
    """With other weights for these pools ("lab") and users ("alice", in every pool that they have
    jobs in, or "lab.alice" in one). Raises Refused for a name that nobody has."""
    pools, members = dict(shape.pools), dict(shape.members)
    known = set(users)
    for name, weight in weights.items():
        above, _, last = name.rpartition(".")
        if name in pools:
            pools[name] = replace(pools[name], weight=weight, weights={})
        elif above in pools and last in known:
            members[above, last] = _heavier(members.get((above, last)), weight)
        elif name in known:
            for pool in ("", *(each for each in pools if _takes(pools[each], name))):
                members[pool, name] = _heavier(members.get((pool, name)), weight)
        else:
            raise Refused("no-such-user", f"there is no pool or user {name!r} in the trace")
    return replace(shape, pools=pools, members=members)


def _takes(pool: Pool, user: str) -> bool:
    return pool.users is None or user in pool.users


def _heavier(claim: Claim | None, weight: Fraction) -> Claim:
    return replace(claim or Claim(), weight=weight, weights={})


def shaped(rules: Rules, shape: Shape) -> Rules:
    return replace(
        rules,
        pools=shape.pools,
        members=shape.members,
        patience=shape.patience,
        half_life_s=shape.half_life_s,
        min_hold_s=shape.min_hold_s,
        slots=shape.slots,
    )
