"""The rules that the configuration sets for the core: capacity, pools, weights, bounds.

`PoolTables` reads pools and users from the tables [pools.…] and [users.…] of a configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from drfd.common.errors import NotPermitted, Refused
from drfd.common.strict_table import (
    FlagOr,
    Toml,
    TomlTable,
    key,
    one_of,
    read_count,
    read_count_or_zero,
    read_flag,
    read_keys,
    read_names,
    read_weight,
    wrong,
)
from drfd.common.units import AXES, MAIN, parse_duration, read_duration_or_zero
from drfd.common.week import WeekHours, parse_week_hours
from drfd.core.fairness.share_tree import FairShare, NodeRule, path_up
from drfd.core.model.calendar import Calendar, Limit
from drfd.core.model.job import ROOT, leaf_path
from drfd.core.model.machine import FreeResources, Vector
from drfd.core.model.resources import Axes, Resources, disk_axes, kind_of, memory_axis

T = TypeVar("T")
N = TypeVar("N", bound="NodeSettings")


_TENTH = Fraction(1, 10)


def _read_part(value: object) -> Fraction:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise wrong(value, "a number from 0 to 1", "0.1 or 0")
    return Fraction(str(value))


@dataclass(frozen=True, kw_only=True)
class ReservationSettings:
    """The times after which jobs that do not fit get a reservation, and a reservation becomes a
    drain; see `core.scheduling.backfill`."""

    #: Whether there are reservations at all. Without them big jobs may starve.
    reserves: bool = key(
        "reservation", read_flag, True,
        "reserve resources for a big job that has waited long enough", shown="true",
    )  # fmt: skip
    delay_s: float = key(
        "reservation_delay", parse_duration, 30.0,
        "waiting time before a job can get a reservation", shown='"30s"',
    )  # fmt: skip
    #: The number of reservations at a time.
    depth: int = key(
        "reservation_depth", read_count, 1, "maximum number of reservations at a time", shown="1"
    )
    passes: Fraction = key(  # noqa: RUF009  # a Fraction is immutable
        "reservation_passes", _read_part, _TENTH,
        "jobs that need at most this part of what the reserved job needs pass it; 0: none",
        shown="0.1",
    )  # fmt: skip
    allowance_s: int = key(
        "reservation_allowance", read_duration_or_zero, 7 * 86400,
        "the time of one's share that reservations may keep idle before the next one waits",
        shown='"7d"',
    )  # fmt: skip
    drain_after_s: float = key(
        "reservation_drain_after", parse_duration, 4 * 30.0 + 86400, "see Reservations",
        shown='"24h2m"', default="4 times reservation_delay and a day",
    )  # fmt: skip


def _read_suspends(value: object) -> bool:
    return one_of("requeue", "suspend")(value) == "suspend"


@dataclass(frozen=True, kw_only=True)
class Preempting:
    """The settings of preemption, with times in seconds; see `core.scheduling.preemption`."""

    #: Whether victims are frozen, or stopped and queued again.
    suspends: bool = key(
        "preempt", _read_suspends, False,
        'or "suspend": freeze the jobs, which keep their memory', shown='"requeue"',
    )  # fmt: skip
    #: How long a node must starve; half as long if it has a guarantee.
    after_s: float = key(
        "preempt_after", parse_duration, 300.0,
        "time below nine tenths of the entitlement before preemption (half this time with a "
        "guarantee)", shown='"5m"',
    )  # fmt: skip
    #: A node starves below this satisfaction.
    below: Fraction = Fraction(9, 10)
    #: For how long a job runs before it may be a victim. Each preemption doubles it for the job.
    exempt_s: int = key(
        "preempt_exempt", read_duration_or_zero, 3600,
        "running time in which a job is not stopped; each stop doubles it for the job",
        shown='"1h"',
    )  # fmt: skip


#: The policies of `core.scheduling.policies` that the daemon can be configured to use; the others
#: are for simulations.
CONFIGURABLE = ("drf", "fifo", "asset", "cpu", "slots")


#: For respect_external_load: jobs wait for memory and GPUs that others use, but not for cores.
BUT_CORES = "memory"


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """The table [scheduling]."""

    policy: str = key(
        "policy", one_of(*CONFIGURABLE), "drf",
        'or "' + '", "'.join(CONFIGURABLE[1:]) + '", for comparison', shown='"drf"',
    )  # fmt: skip
    #: None for as many as there are cores.
    slots: int | None = key(
        "slots", read_count, None, 'under "slots": number of jobs at once',
        shown="16", default="the number of whole cores",
    )  # fmt: skip
    half_life_s: int = key(
        "half_life", parse_duration, 7 * 86400,
        "half-life of past usage, which decides between users of equal share", shown='"7d"',
    )  # fmt: skip
    #: None if it is not configured.
    external_load: bool | str | None = key(
        "respect_external_load", FlagOr((BUT_CORES,)), None,
        f'leave resources to other processes that really use them ("{BUT_CORES}": not cores); '
        "running jobs are not affected", shown="true",
        default=f'true; "{BUT_CORES}" for the daemon of one user',
    )  # fmt: skip
    min_charge_s: int = key(
        "min_charge_time", read_duration_or_zero, 10,
        "a job counts in shares for at least this long from its start; 0: only while it runs",
        shown='"10s"',
    )  # fmt: skip
    reserving: ReservationSettings = ReservationSettings()
    preempts: bool = key(
        "preemption", read_flag, True,
        '(with policy "drf") stop jobs submitted with --preemptible for users and pools below '
        "their entitlement; others are never stopped", shown="true",
    )  # fmt: skip
    #: None if preemption is off.
    preempting: Preempting | None = Preempting()


def read_scheduling(
    table: TomlTable, readers: Mapping[str, Callable[..., Any]] | None = None
) -> Scheduling:
    """Read [scheduling]; `readers` are those of `read_keys`."""
    values = read_keys(Scheduling, table, readers)
    if values["preempts"] and values["policy"] != Scheduling.policy:
        if "preemption" in table.names():
            where, policy = table.at("preemption"), values["policy"]
            table.error(where, f"is for the policy drf, not for {policy}")
        values["preempts"] = False
    reserving = ReservationSettings(**read_keys(ReservationSettings, table, readers))
    if "reservation_drain_after" not in table.names():
        reserving = replace(reserving, drain_after_s=4 * reserving.delay_s + 86400)
    preempting = Preempting(**read_keys(Preempting, table, readers))
    return Scheduling(
        **values, reserving=reserving, preempting=preempting if values["preempts"] else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyLimit:
    """A limit that a node has at times of each week. Resources that it does not name keep the
    node's own limit."""

    when: WeekHours
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The configuration of one node, by the names of axes. What is left out has its default."""

    weight: Fraction = Fraction(1)
    #: Weights of single resources, in place of `weight`.
    weights: Mapping[str, Fraction] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    guarantee: Mapping[str, int] = field(default_factory=dict)
    #: The limits at certain hours; see `Rules.limits_now`.
    hours: tuple[HourlyLimit, ...] = ()

    def rule_within(self, limit: Limit, axes: Axes) -> NodeRule:
        """Return the rule with this limit in place of the node's own. The guarantee counts up to
        it."""
        rule = replace(self, limit=limit).rule(axes)
        if rule.limit is None or rule.guarantee is None:
            return rule
        pairs = zip(rule.guarantee, rule.limit, strict=True)
        guarantee = tuple(least if most is None else min(least, most) for least, most in pairs)
        return replace(rule, guarantee=guarantee)

    def rule(self, axes: Axes) -> NodeRule:
        # A setting of "read" holds for each disk that has none of its own.
        names = [(name, kind_of(name)) for name in axes.names]
        weights, limit, guarantee = self.weights, self.limit, self.guarantee
        return NodeRule(
            weights=tuple(
                weights.get(name, weights.get(kind, self.weight)) for name, kind in names
            ),
            limit=tuple(limit.get(name, limit.get(kind)) for name, kind in names)
            if limit
            else None,
            guarantee=tuple(guarantee.get(name, guarantee.get(kind, 0)) for name, kind in names)
            if guarantee
            else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(NodeSettings):
    #: The users whose jobs the pool takes, or None if it takes those of anyone who names it.
    users: frozenset[str] | None = None


def pools_and_users(
    pools: Mapping[str, Pool], members: Mapping[tuple[str, str], NodeSettings]
) -> Iterator[tuple[str, NodeSettings]]:
    """Yield pools and members, named as in `Rules`, each with its path."""
    for name, pool in pools.items():
        yield f"{ROOT}.{name}", pool
    for (name, user), member in members.items():
        yield leaf_path(f"{ROOT}.{name or user}", user), member


@dataclass(frozen=True, kw_only=True)
class Rules(Scheduling):
    """What decides: the table [scheduling], where the machine's facts have completed it, and what
    else is configured."""

    axes: Axes = field(default_factory=Axes)
    capacity: Resources
    #: By dotted name below the root: "lab", "lab.night".
    pools: Mapping[str, Pool] = field(default_factory=dict)
    #: The settings of single users by (pool, user); the pool is "" for users in none.
    members: Mapping[tuple[str, str], NodeSettings] = field(default_factory=dict)
    #: The limits that nodes have now in place of their own, by path: see `Calendar.at`.
    limits_now: Mapping[str, Limit] = field(default_factory=dict)
    #: The time between SIGTERM and SIGKILL, in seconds.
    grace_s: int = 10
    max_waiting_per_user: int = 200_000
    #: For how many seconds at most a user keeps a job suspended, or None for no bound.
    max_suspended_s: int | None = None
    #: What drfd may keep, in memory and in the journal, for the live jobs of one user, and for
    #: those of all users together; see `daemon.engine.engine`.
    max_kept_bytes_per_user: int = 512 << 20
    max_kept_bytes: int = 4 << 30
    preempting: Preempting | None = None
    #: Cores and memory that the machine has besides its capacity, for processes outside drfd; None
    #: if their use is not considered.
    beside: Resources | None = None
    #: Whether jobs wait for cores that processes outside drfd use; if not, only for all else.
    waits_for_cores: bool = True

    @property
    def unheeded_outside(self) -> list[str]:
        """The axes on which use outside drfd counts for nothing."""
        if self.beside is None:
            return ["cores", "memory"]
        return [] if self.waits_for_cores else ["cores"]

    @cached_property
    def shares(self) -> FairShare:
        rules = {
            path: node.rule_within(self.limits_now[path], self.axes)
            if path in self.limits_now
            else node.rule(self.axes)
            for path, node in self.pools_and_users()
        }
        return FairShare(self.axes.amounts(self.capacity), rules)

    @cached_property
    def free(self) -> FreeResources:
        """What is free while no job runs."""
        return self.axes.free(self.axes.amounts(self.capacity))

    def pools_and_users(self) -> Iterator[tuple[str, NodeSettings]]:
        """Yield the configured pools and users, each with its path."""
        return pools_and_users(self.pools, self.members)

    def also_for(self, demands: Iterable[Resources]) -> Rules:
        """Return the rules with axes also for disks and countables that jobs ask for and that
        the machine no longer has: these jobs must not start without them."""
        disks, gres = set[str](), set[str]()
        for demand in demands:
            disks.update(demand.used_disks)
            gres.update(name for name, _ in demand.gres)
        lost = tuple(sorted(disks.difference(self.axes.disks)))
        no_more = tuple(sorted(gres.difference(self.axes.gres)))
        if not lost and not no_more:
            return self
        return replace(self, axes=replace(self.axes, lost=lost, gres=(*self.axes.gres, *no_more)))

    @property
    def own_capacity(self) -> Resources:
        """Return the capacity of the controller's own machine: all of it if there is one alone."""
        return self.axes.nodes[0].capacity if self.axes.nodes else self.capacity

    @property
    def lost_gres(self) -> tuple[str, ...]:
        """Return the countables that the machine no longer has and jobs still name."""
        there = {name for name, _ in self.axes.instances}
        return tuple(name for name in self.axes.gres if name not in there)

    @property
    def slot_count(self) -> int:
        return self.slots or max(1, self.capacity.cores_milli // 1000)

    def pool_for(self, user: str, pool: str | None) -> str:
        """Return the path of the pool that is charged for a job of `user`, who may have named
        one. Raises Refused if there is no such pool or it does not take the job."""
        found = self._pool_for(user, pool)
        clash = leaf_path(found, user).removeprefix(f"{ROOT}.")
        if clash in self.pools and not self._is_alone(user, clash):
            raise Refused(
                "name-clash",
                f"the pool {clash} has your name: your jobs could not be told from those of others",
                hint="the administrator can rename it, or you can name another with -p",
            )
        return found

    def _is_alone(self, user: str, name: str) -> bool:
        """Return whether the pool takes only this user's jobs."""
        below = any(other.startswith(f"{name}.") for other in self.pools)
        return self.pools[name].users == frozenset({user}) and not below

    def _pool_for(self, user: str, pool: str | None) -> str:
        if pool is None:
            mine = (name for name, each in self.pools.items() if user in (each.users or ()))
            return f"{ROOT}.{next(mine, user)}"
        name = pool.removeprefix(f"{ROOT}.")
        if name not in self.pools:
            # Slurm's lists show the last part of a path, and another name for no pool.
            ends = [each for each in self.pools if each.rpartition(".")[2] == name]
            name = ends[0] if len(ends) == 1 else name
            if name == MAIN:
                return self._pool_for(user, None)
        if name not in self.pools:
            # Outside their pool, its members have no leaf of their own.
            if name == user and not any(user in (each.users or ()) for each in self.pools.values()):
                return f"{ROOT}.{user}"
            near = get_close_matches(name, self.pools, 1)
            known = ", ".join(sorted(self.pools)) or "none"
            hint = f"did you mean {near[0]}?" if near else f"configured pools: {known}"
            raise Refused("no-such-pool", f"there is no pool {name!r}", hint=hint)
        users = self.pools[name].users
        if users is not None and user not in users:
            raise NotPermitted("not-in-pool", f"pool {name} does not take jobs of {user}")
        return f"{ROOT}.{name}"


class LimitEver(NamedTuple):
    """A limit below a demand, at all hours."""

    path: str
    axis: str
    needed: int
    limit: int


def limit_ever(
    rules: Rules, calendar: Calendar, leaf: str, demand: Vector, from_s: float
) -> LimitEver | None:
    """Return a limit of the leaf, or of a pool above it, that is below the demand at all hours from
    `from_s` on, or None if there is none."""
    for path in path_up(leaf):
        steps = calendar.steps.get(path)
        plain = rules.shares.rule(path).limit or ()
        most = None if steps is None else steps.most(from_s)
        for axis, (name, needed) in enumerate(zip(rules.axes.names, demand, strict=True)):
            limit = most.get(name) if most is not None else plain[axis] if plain else None
            if limit is not None and needed > limit:
                return LimitEver(path, name, needed, limit)
    return None


def rules_text(rules: Rules) -> str:
    """Return every field that can be configured as JSON, by which the daemon notices after a
    restart that the rules are others. The text is canonical: keys and sets are sorted."""
    members = {"/".join(key): each for key, each in rules.members.items()}
    plain = msgspec.to_builtins(replace(rules, members={}), order="sorted", enc_hook=str)
    plain["members"] = members
    return msgspec.json.encode(plain, order="sorted", enc_hook=str).decode()


#: A pool's name, one part of a path such as "root.lab".
_NAME = re.compile(r"[\w-]+", re.ASCII)

_AMOUNTS: Mapping[str, Callable[..., int]] = {name: axis.parse for name, axis in AXES.items()}


def _or_zero(read: Callable[..., int]) -> Callable[..., int]:
    """Return a reader of amounts that takes 0, too."""
    return lambda value: 0 if str(value) in ("0", "0.0") else read(value)


_LIMITS = {name: _or_zero(read) for name, read in _AMOUNTS.items()}


@dataclass
class PoolTables:
    #: The names of the configured disks: "read:data" is an amount of one of them.
    disks: Sequence[str] = ()
    #: The names of the configured countables, without the one that is shared by its memory.
    gres: Sequence[str] = ()
    #: The name of that one.
    shared: str | None = None
    #: By dotted name below the root.
    pools: dict[str, Pool] = field(default_factory=dict)
    #: By (pool, user); the pool "" for users in none.
    members: dict[tuple[str, str], NodeSettings] = field(default_factory=dict)
    _owner: dict[str, str] = field(default_factory=dict)

    def read(self, top: TomlTable) -> None:
        pools, users = top.table("pools"), top.table("users")
        pools.attempt(lambda: self._read_pools(pools), None)
        users.attempt(lambda: self._read_users(users), None)

    def _read_pools(self, table: TomlTable, above: str = "") -> None:
        for name in table.names():
            if not _NAME.fullmatch(name):
                table.fail(repr(name), "is not a pool name", hint="use letters, digits, - and _")
            below = table.table(name)
            below.attempt(partial(self._read_pool, below, f"{above}{name}"), None)

    def _read_users(self, table: TomlTable) -> None:
        for name in table.names():
            self.members["", name] = self._settings(table.table(name), NodeSettings)

    def _read_pool(self, table: TomlTable, path: str) -> None:
        users = self._members(table, path)
        self.pools[path] = self._settings(table, partial(Pool, users=users))
        self._read_pools(table.table("pools"), f"{path}.")

    def _members(self, table: TomlTable, path: str) -> frozenset[str] | None:
        """Read the key `users`: a list of names, or a table with a table for each."""
        names = table.take("users", _names_or_table, None)
        if names is None:
            return None
        for name in names:
            if name in self._owner:
                table.error(table.at("users"), f"{name} is already in pool {self._owner[name]}")
            self._owner[name] = path
        if isinstance(names, dict):
            each = table.table("users")
            for name in names:
                self.members[path, name] = self._settings(each.table(name), NodeSettings)
        return frozenset(names)

    def _settings(self, table: TomlTable, make: Callable[..., N]) -> N:
        readers, limits = self._readers(_AMOUNTS), self._readers(_LIMITS)
        weight = table.take("weight", _weight_or_table, Fraction(1))
        weights: dict[str, Fraction] = {}
        if isinstance(weight, dict):
            weight = Fraction(1)
            weights = _by_axis(table, "weight", dict.fromkeys(readers, read_weight))
        return make(
            weight=weight,
            weights=weights,
            limit=_by_axis(table, "limit", limits),
            guarantee=_by_axis(table, "guarantee", readers),
            hours=tuple(_hourly_limit(each, limits) for each in table.tables("hours") or ()),
        )

    def _readers(self, amounts: Mapping[str, Callable[..., int]]) -> dict[str, Callable[..., int]]:
        readers = dict(amounts) | dict.fromkeys(self.gres, read_count_or_zero)
        if self.shared is not None:
            readers[memory_axis(self.shared)] = amounts["memory"]
        if len(self.disks) > 1:
            readers |= {axis: amounts[kind_of(axis)] for axis in disk_axes(self.disks)}
        return readers


def _hourly_limit(table: TomlTable, readers: Mapping[str, Callable[..., int]]) -> HourlyLimit:
    """Read one table [[pools.lab.hours]]."""
    when = table.take("when", parse_week_hours, None)
    limit = _by_axis(table, "limit", readers)
    table.done()
    if when is None:
        table.fail("when", "is missing", hint='write when = "Mon-Fri 08:00-18:00"')
    if not limit:
        hint = "write limit = {cores = 2}, or 0 for none at all"
        table.fail("limit", "is missing", hint=hint)
    return HourlyLimit(when=when, limit=limit)


def _by_axis(table: TomlTable, key: str, readers: Mapping[str, Callable[..., T]]) -> dict[str, T]:
    """Read a table such as {cores = 4, memory = "8G", "read:data" = "1G", gpu = 1}."""
    amounts = table.table(key)
    found = {name: amounts.take(name, read, None) for name, read in readers.items()}
    return {name: amount for name, amount in found.items() if amount is not None}


def _weight_or_table(value: object) -> Fraction | Toml:
    return value if isinstance(value, dict) else read_weight(value)


def _names_or_table(value: object) -> list[str] | Toml:
    if isinstance(value, dict):
        if not all(isinstance(each, dict) for each in value.values()):
            raise wrong(value, "a table of users", "[pools.lab.users.alice]")
        return value
    return read_names(value)
