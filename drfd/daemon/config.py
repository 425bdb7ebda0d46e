"""The configuration file: strict, with the place and the cure in every complaint.

A key that nobody asks for is an error, so a misspelt limit can never be ignored silently.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from drfd.core.policies import CONFIGURABLE
from drfd.core.pool_config import Tree
from drfd.core.preemption import Preempting
from drfd.core.reservation import Patience
from drfd.core.resources import Instances
from drfd.core.rules import Claim, Pool
from drfd.daemon.gres_config import read_gres
from drfd.errors import ConfigError
from drfd.launcher.protocol import CORES_MODES, QUOTA
from drfd.toml_table import (
    Table,
    Toml,
    one_of,
    read_count,
    read_disk_name,
    read_duration_or_zero,
    read_flag,
    read_name,
    read_names,
    read_path,
    read_size_or_zero,
    read_time,
)
from drfd.units import parse_cores, parse_duration, parse_memory, parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    name: str
    path: str
    #: Bytes per second; None: a guess.
    read_bps: int | None = None
    write_bps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a job gets that does not say."""

    cores_milli: int = 1000
    memory_bytes: int = 2 << 30
    time_limit_s: int | None = 24 * 3600
    read_bps: int = 0
    write_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one user may have, or send, so that nobody else is in need because of it."""

    waiting_jobs: int = 200_000
    #: Of what drfd keeps for jobs that are not over: as much for their commands, names and paths,
    #: and as much for their environments and scripts, of which each is counted once.
    kept_bytes: int = 256 << 20
    #: On average; so many for `BURST_S` come in at once. More wait a moment.
    submissions_per_s: int = 200
    connections: int = 256
    #: Of one submission.
    command_bytes: int = 512 << 10
    environment_bytes: int = 256 << 10
    script_bytes: int = 512 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """None: what the machine has."""

    cores_milli: int | None = None
    memory_bytes: int | None = None
    reserve_memory_bytes: int | None = None
    #: None: the disk of the state directory, at a guess.
    disks: tuple[DiskConfig, ...] | None = None
    #: Countable things that are given out, by name.
    gres: Instances = ()
    defaults: Defaults = Defaults()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    #: What single users are given, by (pool, user).
    members: Mapping[tuple[str, str], Claim] = field(default_factory=dict)
    policy: str = "drf"
    #: None: as many as there are cores.
    slots: int | None = None
    half_life_s: int = 7 * 86400
    min_hold_s: int = 10
    #: Whether what processes outside drfd use is kept free.
    external_load: bool = True
    patience: Patience = field(default_factory=Patience)
    #: None: off.
    preempting: Preempting | None = None
    grace_s: int = 10
    max_pids: int = 4096
    use_cgroups: bool = True
    #: How cores are given to jobs: one of the launcher's CORES_MODES.
    cores_by: str = QUOTA
    #: Run the controller as this user when started by root; None: as "drfd" if there is one.
    user: str | None = None
    #: Users below uid 1000 whose jobs are taken all the same.
    system_users: frozenset[str] = frozenset()
    limits: Limits = Limits()


def load(path: Path) -> Config:
    """The configuration in `path` and, if it is called drfd.toml, in drfd.d/*.toml beside it.

    Raises ConfigError, also when the file does not exist.
    """
    tree = _read(path)
    if path.name == "drfd.toml":
        parse(tree, str(path))
        for extra_path in sorted(path.parent.joinpath("drfd.d").glob("*.toml")):
            extra = _read(extra_path)
            # Alone first, so that a complaint names the file that is to blame.
            # A pool's limit may name a disk or a countable of the main file.
            alone: Toml = deepcopy({key: tree[key] for key in ("disk", "gres") if key in tree})
            _merge(alone, extra)
            parse(alone, str(extra_path))
            _merge(tree, extra)
    return parse(tree, str(path))


def parse(tree: Toml, source: str) -> Config:
    top = Table(tree, source, "")
    capacity = top.table("capacity")
    enforcement = top.table("enforcement")
    daemon = top.table("daemon")
    scheduling = top.table("scheduling")
    disks = _disks(top)
    gres = read_gres(top.table("gres"))
    nodes = Tree([disk.name for disk in disks or ()], [name for name, _ in gres])
    nodes.read_pools(top.table("pools"))
    nodes.read_users(top.table("users"))
    policy = scheduling.take("policy", one_of(*CONFIGURABLE), "drf")
    config = Config(
        cores_milli=capacity.take("cores", parse_cores, None),
        memory_bytes=capacity.take("memory", parse_size, None),
        reserve_memory_bytes=capacity.take("reserve_memory", read_size_or_zero, None),
        disks=disks,
        gres=gres,
        defaults=_defaults(top.table("defaults")),
        pools=nodes.pools,
        members=nodes.members,
        grace_s=enforcement.take("grace", parse_duration, 10),
        max_pids=enforcement.take("processes", read_count, 4096),
        use_cgroups=enforcement.take("cgroups", read_flag, True),
        cores_by=enforcement.take("cores", one_of(*CORES_MODES), QUOTA),
        user=daemon.take("user", read_name, None),
        system_users=frozenset(daemon.take("system_users", read_names, [])),
        policy=policy,
        slots=scheduling.take("slots", read_count, None),
        patience=_patience(scheduling),
        preempting=_preempting(scheduling, policy),
        half_life_s=scheduling.take("half_life", parse_duration, 7 * 86400),
        min_hold_s=scheduling.take("min_hold", read_duration_or_zero, 10),
        external_load=scheduling.take("external_load", read_flag, True),
        limits=_limits(top.table("limits")),
    )
    top.done()
    return config


def _disks(top: Table) -> tuple[DiskConfig, ...] | None:
    tables = top.tables("disk")
    if tables is None:
        return None
    disks = []
    for table in tables:
        disks.append(
            DiskConfig(
                name=table.take("name", read_disk_name, None) or table.fail("name", "is missing"),
                path=table.take("path", read_path, None) or table.fail("path", "is missing"),
                read_bps=table.take("read", parse_size, None),
                write_bps=table.take("write", parse_size, None),
            )
        )
        if disks[-1].name in [disk.name for disk in disks[:-1]]:
            table.fail("name", f"there are two disks {disks[-1].name!r}")
        table.done()
    return tuple(disks)


def _defaults(table: Table) -> Defaults:
    plain = Defaults()
    return Defaults(
        cores_milli=table.take("cores", parse_cores, plain.cores_milli),
        memory_bytes=table.take("memory", parse_memory, plain.memory_bytes),
        time_limit_s=table.take("time", read_time, plain.time_limit_s),
        read_bps=table.take("read", read_size_or_zero, plain.read_bps),
        write_bps=table.take("write", read_size_or_zero, plain.write_bps),
    )


def _limits(table: Table) -> Limits:
    plain = Limits()
    return Limits(
        waiting_jobs=table.take("waiting_jobs_per_user", read_count, plain.waiting_jobs),
        kept_bytes=table.take("kept_per_user", parse_size, plain.kept_bytes),
        submissions_per_s=table.take("submissions_per_second", read_count, plain.submissions_per_s),
        connections=table.take("connections_per_user", read_count, plain.connections),
        command_bytes=table.take("command", parse_size, plain.command_bytes),
        environment_bytes=table.take("environment", parse_size, plain.environment_bytes),
        script_bytes=table.take("script", parse_size, plain.script_bytes),
    )


def _patience(table: Table) -> Patience:
    patience_s = table.take("patience", parse_duration, 30)
    drain_after_s = table.take("drain_after", parse_duration, 4 * patience_s + 86400)
    return Patience(
        patience_s=patience_s,
        drain_after_s=drain_after_s,
        reserves=table.take("reservation", read_flag, True),
        depth=table.take("reservation_depth", read_count, 1),
    )


def _preempting(table: Table, policy: str) -> Preempting | None:
    is_on = table.take("preemption", read_flag, False)
    if is_on and policy != "drf":
        table.fail("preemption", f"is for the policy drf, not for {policy}")
    how = Preempting(
        suspends=table.take("preempt", one_of("requeue", "suspend"), "requeue") == "suspend",
        after_s=table.take("preempt_after", parse_duration, 300),
        rest_s=table.take("preempt_rest", parse_duration, 3600),
    )
    return how if is_on else None


def _read(path: Path) -> Toml:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError("config", f"there is no configuration file {path}") from None
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from None


def _merge(into: Toml, extra: Toml) -> None:
    """Tables are merged; anything else in a later file replaces what an earlier one said."""
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
