"""The configuration: read strictly from its files, and applied to this machine.

Every error message names the place in the file and the way out. An unknown key is an error, so a
misspelt limit is never ignored. `survey` makes from configuration and machine the rules for the
core and the disks that are limited.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from drfd.common import units
from drfd.common.config_files import exists, read_files
from drfd.common.errors import ConfigError, Refused
from drfd.common.strict_table import (
    Toml,
    TomlTable,
    key,
    one_of,
    read_count,
    read_count_or_zero,
    read_disk_name,
    read_keys,
    read_name,
    read_path,
)
from drfd.core.fairness.rules import (
    BUT_CORES,
    NodeSettings,
    Pool,
    PoolTables,
    Rules,
    Scheduling,
    read_scheduling,
)
from drfd.core.model.resources import NOTHING, Axes, Resources, disk_axes
from drfd.daemon.calendar import WindowSettings, read_windows, window_warnings
from drfd.daemon.cluster import (
    Nodes,
    node_gres,
    read_nodes,
    refuse_useless,
    slurm_warnings,
    with_nodes,
)
from drfd.daemon.countable import (
    Countables,
    gpu_warnings,
    instances_of,
    places_of,
    read_gpus,
    read_gres,
    shared_memory,
)
from drfd.devices.gpus import Gpu
from drfd.host.disks import GUESS_READ_BPS, GUESS_WRITE_BPS, Disk, locate
from drfd.host.measurements import Machine, default_kept, default_reserve
from drfd.launcher.protocol import CORES_MODES, PIN, QUOTA
from drfd.launcher.settings import LauncherSettings, read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    name: str
    path: str
    #: Bytes per second, or None to guess.
    read_bps: int | None = None
    write_bps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The table [defaults]: the demand of a job that does not state its own."""

    cores_milli: int = key(
        "cores", units.parse_cores_range, 1000, 'or a range, such as "1..4"',
        shown="1", end="cores_max_milli",
    )  # fmt: skip
    #: The upper end of a range of cores, or 0 for none.
    cores_max_milli: units.Most = 0
    memory_bytes: int = key("memory", units.parse_memory, 2 << 30, shown='"2G"')
    time_limit_s: int | None = key(
        "time", units.read_time, 24 * 3600, 'or "unlimited"', shown='"24h"'
    )
    read_bps: int = key(
        "read", units.read_size_or_zero, 0,
        "a rate here is counted and enforced for every job", shown="0",
    )  # fmt: skip
    write_bps: int = key("write", units.read_size_or_zero, 0, shown="0")
    if_never: str = key(
        "if_never", one_of("keep", "cancel"), "keep",
        '"cancel": cancel a job that waits for one that has ended otherwise than required',
        shown='"keep"',
    )  # fmt: skip
    slurm_start_delay_s: int = key(
        "slurm_start_delay", units.read_duration_or_zero, 0,
        "a batch job for Slurm starts no earlier after its submission: for clients that note its "
        "number late, such as myqueue", shown="0",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class UserLimits:
    """The table [limits]: what one user may have or send, so that others are not affected."""

    waiting_jobs: int = key("waiting_jobs_per_user", read_count, 200_000, shown="200000")
    #: Specifications, events, and environments and scripts, of which each is counted once.
    kept_bytes: int = key(
        "stored_bytes_per_user", units.parse_size, 512 << 20,
        "storage for one user's unfinished jobs, in memory and in the journal", shown='"512M"',
    )  # fmt: skip
    kept_total_bytes: int | None = key(
        "stored_bytes_total", units.parse_size, None, "storage for all users' unfinished jobs",
        shown='"1G"', default="a sixteenth of the memory, 256M at least and 4G at most",
    )  # fmt: skip
    #: The number allowed in `BURST_S` may come at once, and further ones are delayed.
    changes_per_s: int = key(
        "changes_per_second", read_count, 300,
        "mean rate of one user's submissions and changes (hold, release, suspend, resume, signal, "
        "set), counted by jobs; after a burst of 30,000, they are delayed", shown="300",
    )  # fmt: skip
    #: None for no bound.
    suspended_s: int | None = key(
        "suspended", units.read_time, 24 * 3600,
        'a job that its user keeps suspended for so long is ended, or "unlimited": see Limits of '
        "users", shown='"24h"',
    )  # fmt: skip
    reserve_disk_bytes: int | None = key(
        "reserve_disk", units.read_size_or_zero, None,
        "disk space under the journal that users cannot use up", shown='"64M"',
        default="a twentieth, 64M at least and 1G at most, a quarter of a small disk",
    )  # fmt: skip
    reserve_memory_bytes: int | None = key(
        "reserve_memory", units.read_size_or_zero, None,
        "available memory below which users submit nothing", shown='"128M"',
        default="a 64th, 256M at most",
    )  # fmt: skip
    connections: int = key("connections_per_user", read_count, 256, shown="256")
    command_bytes: int = key(
        "command", units.parse_size, 512 << 10, "of one job, all arguments together", shown='"512K"'
    )
    environment_bytes: int = key("environment", units.parse_size, 256 << 10, shown='"256K"')
    script_bytes: int = key("script", units.parse_size, 512 << 10, shown='"512K"')


_DAY_S = 86400


def _read_keep(value: str | int) -> int | None:
    """Read a time. A bare number counts seconds, as elsewhere; one of less than a day was meant
    otherwise, and would empty the history."""
    if str(value).strip().isdecimal() and int(value) < _DAY_S:
        raise Refused(
            "config", f"{value!r} has no unit",
            hint=f'write keep = "{value}d" for days, or "{value}s" for seconds',
        )  # fmt: skip
    return units.read_time(value)


@dataclass(frozen=True, kw_only=True)
class HistorySettings:
    """The table [history]: the retention of ended jobs in the journal."""

    #: None for never.
    keep_s: int | None = key(
        "keep", _read_keep, 400 * _DAY_S,
        'time, with its unit, until an ended job is removed ("unlimited": never)', shown='"400d"',
    )  # fmt: skip
    max_jobs_per_user: int = key(
        "max_jobs_per_user", read_count_or_zero, 500_000,
        "ended jobs of one user in the journal; beyond it the oldest are removed (0: no bound)",
        shown="500000",
    )  # fmt: skip


_LAST_PORT = 65535


def _read_port(value: object) -> int:
    port = read_count(value)
    if port > _LAST_PORT:
        raise Refused("config", f"{port} is no port", hint=f"write one up to {_LAST_PORT}")
    return port


def _read_textfile(value: object) -> str:
    path = read_path(value)
    if not path.endswith(".prom"):
        # node_exporter reads no other files.
        raise Refused(
            "config", f"{path!r} does not end in .prom", hint='write "/run/drfd/drfd.prom"'
        )
    return path


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """The table [metrics]: where metrics for Prometheus are given."""

    port: int | None = key(
        "port",
        _read_port,
        None,
        "a port of 127.0.0.1, which answers GET /metrics",
        shown="9477",
        default="none",
    )
    textfile: str | None = key(
        "textfile", _read_textfile, None, "a file for node_exporter",
        shown='"/run/drfd/drfd.prom"', default="none",
    )  # fmt: skip
    interval_s: int = key(
        "textfile_interval",
        units.parse_duration,
        15,
        "time between two versions of it",
        shown='"15s"',
    )
    users: int = key(
        "users", read_count, 100,
        "users with figures of their own; the figures of all others are summed up", shown="100",
    )  # fmt: skip

    @property
    def is_on(self) -> bool:
        return self.port is not None or self.textfile is not None


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration. A field that is None is taken from the machine."""

    #: Without disks and countables. What is zero is taken from the machine.
    capacity: Resources = NOTHING
    reserve_memory_bytes: int | None = key(
        "reserve_memory", units.read_size_or_zero, None, "memory kept for the system", shown='"4G"',
        default="an eighth, 4G at most (0 when memory is given)", table="capacity",
    )  # fmt: skip
    #: None for the disk of the state directory with guessed rates.
    disks: tuple[DiskConfig, ...] | None = None
    #: Countable resources, sorted by name.
    countables: Countables = ()
    #: The machines, if there are several, the controller's own first.
    nodes: Nodes = ()
    defaults: Defaults = Defaults()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    #: Settings of single users, by (pool, user).
    members: Mapping[tuple[str, str], NodeSettings] = field(default_factory=dict)
    scheduling: Scheduling = field(default_factory=Scheduling)
    #: How cores are given to jobs: one of the launcher's CORES_MODES.
    cores_by: str = key(
        "cores", one_of(*CORES_MODES), QUOTA, 'or "weight", "pin": see CPU modes',
        shown='"quota"', table="enforcement",
    )  # fmt: skip
    grace_s: int = key(
        "grace", units.parse_duration, 10,
        "time between SIGTERM and SIGKILL; at a shutdown of the machine: 30 s, or TimeoutStopSec "
        "of drfd-jobs", shown='"10s"', table="enforcement",
    )  # fmt: skip
    max_pids: int = key(
        "processes", read_count, 4096, "of one job", shown="4096", table="enforcement"
    )
    #: What the launchers read by themselves, when they start.
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
    #: None: "drfd" if there is such a user.
    user: str | None = key(
        "user", read_name, None, "user of the controller, when root starts it without systemd",
        shown='"drfd"', default="drfd, if there is one", table="daemon",
    )  # fmt: skip
    limits: UserLimits = UserLimits()
    #: The maintenance windows, those that are over included.
    windows: tuple[WindowSettings, ...] = ()
    history: HistorySettings = HistorySettings()
    metrics: MetricsSettings = MetricsSettings()


def load(path: Path) -> Config:
    """Return the configuration in `path` and, if it is called drfd.toml, in drfd.d/*.toml beside
    it. Raises ConfigError, also when the file does not exist."""
    return parse(read_files(path, parse), str(path))


def load_if_there(path: Path) -> Config:
    """Return the configuration in a file, or the default one if there is no such file. Raises
    ConfigError as `load` does."""
    return load(path) if exists(path) else Config()


def parse(tree: Toml, source: str) -> Config:
    top = TomlTable(tree, source, "")
    capacity = top.table("capacity")
    disks = _disks(top)
    gres, node_tables = top.table("gres"), top.table("nodes")
    countables: Countables = gres.attempt(lambda: read_gres(gres), ())
    shared = shared_memory(countables)
    shared_name = None if shared is None else shared[0]
    nodes: Nodes = node_tables.attempt(lambda: read_nodes(node_tables, shared_name), ())
    counted = [each.name for each in countables if each.shared_bytes is None]
    counted += [name for name in node_gres(nodes) if name not in counted]
    pool_tables = PoolTables([disk.name for disk in disks or ()], counted, shared_name)
    # They may name disks and countable resources, so errors in these would lead to further ones.
    if not [each for each in ("pools", "users") if top.table(each).give_up_if_wrong()]:
        pool_tables.read(top)
    launcher = read_settings(top)
    if nodes or not node_tables.names():
        refuse_useless(top.table("slurm"), nodes)
    config = Config(
        **read_keys(Config, top),
        capacity=NOTHING.with_amounts(
            {name: capacity.take(name, axis.parse, 0) for name, axis in units.PLAIN_AXES.items()}
        ),
        disks=disks,
        countables=countables,
        defaults=Defaults(**read_keys(Defaults, top.table("defaults"))),
        nodes=nodes,
        launcher=launcher,
        pools=pool_tables.pools,
        members=pool_tables.members,
        scheduling=read_scheduling(top.table("scheduling")),
        limits=UserLimits(**read_keys(UserLimits, top.table("limits"))),
        windows=read_windows(top),
        history=HistorySettings(**read_keys(HistorySettings, top.table("history"))),
        metrics=MetricsSettings(**read_keys(MetricsSettings, top.table("metrics"))),
    )
    top.done()
    top.refuse_errors()
    return config


def _disks(top: TomlTable) -> tuple[DiskConfig, ...] | None:
    tables = top.tables("disk")
    if tables is None:
        return None
    found = [table.attempt(partial(_disk, table), None) for table in tables]
    disks = [disk for disk in found if disk is not None]
    for at, disk in enumerate(found):
        if disk is not None and disk.name in [each.name for each in found[:at] if each]:
            table = tables[at]
            table.error(table.at("name"), f"there are two disks {disk.name!r}")
    return tuple(disks)


def _disk(table: TomlTable) -> DiskConfig:
    disk = DiskConfig(
        name=table.take("name", read_disk_name, None) or table.fail("name", "is missing"),
        path=table.take("path", read_path, None) or table.fail("path", "is missing"),
        read_bps=table.take("read", units.parse_size, None),
        write_bps=table.take("write", units.parse_size, None),
    )
    table.done()
    return disk


@dataclass(frozen=True, slots=True)
class Site:
    """The resources that this daemon allocates."""

    rules: Rules
    disks: tuple[Disk, ...]
    #: The demand of a job that does not state its own: never more than there is.
    defaults: Defaults
    #: Sentences for the administrator about doubtful settings.
    warnings: tuple[str, ...]
    countables: Countables = ()
    #: GPUs of the machine, if GPUs are given out.
    gpus: tuple[Gpu, ...] = ()


def survey(config: Config, machine: Machine, state_dir: Path, *, is_for_one: bool = False) -> Site:
    """Apply the configuration to the machine. `state_dir` is the directory whose disk is managed if
    the configuration names none. `is_for_one` says that the daemon serves one user, who knows what
    else is to run."""
    disks = _located_disks(config, state_dir)
    reserve = config.reserve_memory_bytes
    if reserve is None:
        reserve = 0 if config.capacity.memory_bytes else default_reserve(machine.memory_bytes)
    gpus = read_gpus(config.countables)
    instances = instances_of(config.countables, gpus)
    amounts = {
        name: config.capacity.amount(name) or getattr(machine, axis.field, 0)
        for name, axis in units.PLAIN_AXES.items()
    }
    memory = amounts["memory"] - reserve
    if memory <= 0:
        raise ConfigError(
            "config",
            f"capacity: a reserve of {units.show_size(reserve)} leaves no memory for jobs",
            hint="lower capacity.reserve_memory",
        )
    names = disk_axes([disk.name if len(disks) > 1 else "" for disk in disks])
    rates = chain.from_iterable((disk.read_bps, disk.write_bps) for disk in disks)
    gres = tuple((name, len(each)) for name, each in instances if each)
    capacity = Resources(gres=gres).with_amounts(
        {**amounts, "memory": memory, **dict(zip(names, rates, strict=True))}
    )
    own_axes = Axes(
        gres=tuple(name for name, _ in instances),
        disks=tuple(disk.name for disk in disks),
        instances=instances,
        places=places_of(instances, gpus),
        shared=shared_memory(config.countables),
    )
    axes, whole = with_nodes(own_axes, capacity, config.nodes)
    scheduling = config.scheduling
    external_load = scheduling.external_load
    if external_load is None:
        external_load = BUT_CORES if is_for_one else True
    rules = Rules(
        axes=axes,
        capacity=whole,
        pools=config.pools,
        members=config.members,
        **vars(scheduling),
        grace_s=config.grace_s,
        max_waiting_per_user=config.limits.waiting_jobs,
        max_suspended_s=config.limits.suspended_s,
        max_kept_bytes_per_user=config.limits.kept_bytes,
        max_kept_bytes=config.limits.kept_total_bytes or default_kept(machine.memory_bytes),
        beside=_outside(capacity, machine) if external_load else None,
        waits_for_cores=external_load is True,
    )
    defaults = replace(
        config.defaults,
        cores_milli=min(config.defaults.cores_milli, capacity.cores_milli),
        memory_bytes=min(config.defaults.memory_bytes, capacity.memory_bytes),
    )
    warnings = (
        *_warn_of_overcommitment(capacity, machine, config),
        *_warn_of_shared_devices(disks),
        *slurm_warnings(config.nodes, config.launcher.slurm),
        *gpu_warnings(config.countables, gpus),
        *window_warnings(config.windows, time.time(), config.defaults.time_limit_s),
    )
    return Site(rules, disks, defaults, warnings, config.countables, gpus)


def _located_disks(config: Config, state_dir: Path) -> tuple[Disk, ...]:
    wanted = config.disks
    if wanted is None:
        wanted = (DiskConfig(name="state", path=str(state_dir)),)
    disks = []
    for each in wanted:
        location = locate(each.path)
        disks.append(
            Disk(
                name=each.name,
                path=each.path,
                read_bps=each.read_bps or GUESS_READ_BPS,
                write_bps=each.write_bps or GUESS_WRITE_BPS,
                devices=location.devices,
                filesystem=location.filesystem,
                is_guess=each.read_bps is None or each.write_bps is None,
                why_none=location.why_none,
            )
        )
    return tuple(disks)


def _warn_of_shared_devices(disks: Sequence[Disk]) -> Iterator[str]:
    """Yield a warning for each device that has two names: its rates are allocated twice."""
    for at, disk in enumerate(disks):
        for other in disks[:at]:
            for device in sorted(set(disk.devices).intersection(other.devices)):
                yield (
                    f"disks {other.name} and {disk.name} are on one device ({device}): "
                    "what they promise adds up"
                )


def _outside(capacity: Resources, machine: Machine) -> Resources:
    """Return the part of the machine that is not in the capacity, for processes outside drfd."""
    return Resources(
        cores_milli=max(0, machine.cores_milli - capacity.cores_milli),
        memory_bytes=max(0, machine.memory_bytes - capacity.memory_bytes),
    )


def _warn_of_overcommitment(capacity: Resources, machine: Machine, config: Config) -> list[str]:
    found = []
    if capacity.cores_milli > machine.cores_milli:
        found.append(
            f"capacity.cores is {units.show_cores(capacity.cores_milli)}, but the machine has "
            f"{units.show_cores(machine.cores_milli)}: jobs will not get the cores they declare"
            + (", nor CPUs of their own once those are given out" * (config.cores_by == PIN))
        )
    if capacity.memory_bytes > machine.memory_bytes:
        found.append(
            f"capacity.memory is {units.show_size(capacity.memory_bytes)}, but the machine has "
            f"{units.show_size(machine.memory_bytes)}: jobs within their limits may run it out"
        )
    return found
