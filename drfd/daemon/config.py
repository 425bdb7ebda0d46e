"""The configuration: read strictly from its files, and applied to this machine.

Every error message names the place in the file and the way out. An unknown key is an error, so a
misspelt limit is never ignored. `survey` makes from configuration and machine the rules for the
core and the disks that are limited.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from drfd.common.config_files import exists, read_files
from drfd.common.errors import ConfigError, Refused
from drfd.common.strict_table import (
    Toml,
    TomlTable,
    one_of,
    read_count,
    read_disk_name,
    read_flag,
    read_name,
    read_path,
)
from drfd.common.units import (
    PLAIN_AXES,
    Most,
    Range,
    parse_cores_range,
    parse_duration,
    parse_memory,
    parse_size,
    parse_size_range,
    read_size_or_zero,
    read_time,
    show_cores,
    show_duration,
    show_size,
)
from drfd.common.week import WEEK_S
from drfd.core.fairness.rules import (
    NodeSettings,
    Pool,
    PoolTables,
    Preempting,
    ReservationSettings,
    Rules,
    read_scheduling,
)
from drfd.core.model.job import show_path
from drfd.core.model.resources import NOTHING, Axes, Resources, disk_axes
from drfd.core.scheduling.policies import CONFIGURABLE
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
from drfd.daemon.pool_warnings import bound_warnings
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The demand of a job that does not state its own."""

    cores_milli: int = 1000
    #: The upper end of a range of cores, or 0 for none.
    cores_max_milli: Most = 0
    memory_bytes: int = 2 << 30
    time_limit_s: int | None = 24 * 3600
    read_bps: int = 0
    write_bps: int = 0
    #: The upper ends of ranges of rates, or 0 for none.
    read_max_bps: Most = 0
    write_max_bps: Most = 0
    #: "keep" or "cancel", for a job whose dependency can never be met.
    if_never: str = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits on what one user may have or send, so that others are not affected."""

    waiting_jobs: int = 200_000
    #: Bytes that drfd keeps for live jobs, in memory and in the journal: specifications, events,
    #: and environments and scripts, of which each is counted once.
    kept_bytes: int = 512 << 20
    #: Bytes kept for the live jobs of all users, or None for a part of the machine's memory.
    kept_total_bytes: int | None = None
    #: Average rate of submissions. The number allowed in `BURST_S` may come at once, and further
    #: ones are delayed.
    submissions_per_s: int = 200
    #: Average rate of all other changes, counted by jobs.
    changes_per_s: int = 500
    #: Reserves of the journal's disk and of memory that users cannot fill; None for a part of each.
    reserve_disk_bytes: int | None = None
    reserve_memory_bytes: int | None = None
    connections: int = 256
    #: Sizes of one submission, at most.
    command_bytes: int = 512 << 10
    environment_bytes: int = 256 << 10
    script_bytes: int = 512 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """The retention of ended jobs in the journal."""

    #: Seconds after a job's end until it is removed, or None for never.
    keep_s: int | None = 400 * 86400
    #: Size from which on the oldest jobs are removed, or 0 for no limit.
    max_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where metrics for Prometheus are given. By default they are not."""

    #: Whether a socket beside the daemon's own answers.
    socket: bool = False
    #: Port of the loopback device, or None.
    port: int | None = None
    #: Path of a file for node_exporter, or None, and the seconds between two versions of it.
    textfile: str | None = None
    interval_s: int = 15
    #: Users with figures of their own; all others are summed up.
    users: int = 100

    @property
    def is_on(self) -> bool:
        return self.socket or self.port is not None or self.textfile is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration. A field that is None is taken from the machine."""

    #: Without disks and countables. What is zero is taken from the machine.
    capacity: Resources = NOTHING
    reserve_memory_bytes: int | None = None
    #: None for the disk of the state directory with guessed rates.
    disks: tuple[DiskConfig, ...] | None = None
    #: Countable resources, sorted by name.
    countables: Countables = ()
    #: The machines, if there are several, the controller's own first.
    nodes: Nodes = ()
    #: What the launchers read by themselves, when they start.
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
    defaults: Defaults = Defaults()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    #: Settings of single users, by (pool, user).
    members: Mapping[tuple[str, str], NodeSettings] = field(default_factory=dict)
    policy: str = "drf"
    #: None for as many as there are cores.
    slots: int | None = None
    half_life_s: int = 7 * 86400
    min_hold_s: int = 10
    #: Whether resources that processes outside drfd use are kept free.
    external_load: bool = True
    patience: ReservationSettings = field(default_factory=ReservationSettings)
    #: None if preemption is off.
    preempting: Preempting | None = None
    grace_s: int = 10
    max_pids: int = 4096
    #: How cores are given to jobs: one of the launcher's CORES_MODES.
    cores_by: str = QUOTA
    #: Run the controller as this user when started by root; None: as "drfd" if there is one.
    user: str | None = None
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
    enforcement = top.table("enforcement")
    daemon = top.table("daemon")
    scheduling = top.table("scheduling")
    disks = _disks(top)
    countables = read_gres(top.table("gres"))
    shared = shared_memory(countables)
    nodes = read_nodes(top.table("nodes"), None if shared is None else shared[0])
    counted = [each.name for each in countables if each.shared_bytes is None]
    counted += [name for name in node_gres(nodes) if name not in counted]
    pool_tables = PoolTables(
        [disk.name for disk in disks or ()], counted, None if shared is None else shared[0]
    )
    pool_tables.read_pools(top.table("pools"))
    pool_tables.read_users(top.table("users"))
    launcher = read_settings(top)
    refuse_useless(top.table("slurm"), nodes)
    policy = scheduling.take("policy", one_of(*CONFIGURABLE), "drf")
    config = Config(
        capacity=NOTHING.with_amounts(
            {name: capacity.take(name, axis.parse, 0) for name, axis in PLAIN_AXES.items()}
        ),
        reserve_memory_bytes=capacity.take("reserve_memory", read_size_or_zero, None),
        disks=disks,
        countables=countables,
        defaults=_defaults(top.table("defaults")),
        nodes=nodes,
        launcher=launcher,
        pools=pool_tables.pools,
        members=pool_tables.members,
        grace_s=enforcement.take("grace", parse_duration, 10),
        max_pids=enforcement.take("processes", read_count, 4096),
        cores_by=enforcement.take("cores", one_of(*CORES_MODES), QUOTA),
        user=daemon.take("user", read_name, None),
        policy=policy,
        **read_scheduling(scheduling),
        preempting=_preempting(scheduling, policy),
        external_load=scheduling.take("respect_external_load", read_flag, True),
        limits=_limits(top.table("limits")),
        windows=read_windows(top),
        history=_history(top.table("history")),
        metrics=_metrics(top.table("metrics")),
    )
    top.done()
    return config


def _disks(top: TomlTable) -> tuple[DiskConfig, ...] | None:
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


def _ends(amount: int | Range) -> tuple[int, Most]:
    return amount if isinstance(amount, Range) else (amount, 0)


def _defaults(table: TomlTable) -> Defaults:
    plain = Defaults()
    cores, most_cores = _ends(table.take("cores", parse_cores_range, plain.cores_milli))
    read_bps, most_read_bps = _ends(table.take("read", parse_size_range, plain.read_bps))
    write_bps, most_write_bps = _ends(table.take("write", parse_size_range, plain.write_bps))
    return Defaults(
        cores_milli=cores,
        cores_max_milli=most_cores,
        memory_bytes=table.take("memory", parse_memory, plain.memory_bytes),
        time_limit_s=table.take("time", read_time, plain.time_limit_s),
        read_bps=read_bps,
        write_bps=write_bps,
        read_max_bps=most_read_bps,
        write_max_bps=most_write_bps,
        if_never=table.take("if_never", one_of("keep", "cancel"), plain.if_never),
    )


def _limits(table: TomlTable) -> UserLimits:
    plain = UserLimits()
    return UserLimits(
        waiting_jobs=table.take("waiting_jobs_per_user", read_count, plain.waiting_jobs),
        kept_bytes=table.take("stored_bytes_per_user", parse_size, plain.kept_bytes),
        kept_total_bytes=table.take("stored_bytes_total", parse_size, None),
        submissions_per_s=table.take("submissions_per_second", read_count, plain.submissions_per_s),
        changes_per_s=table.take("changes_per_second", read_count, plain.changes_per_s),
        reserve_disk_bytes=table.take("reserve_disk", read_size_or_zero, None),
        reserve_memory_bytes=table.take("reserve_memory", read_size_or_zero, None),
        connections=table.take("connections_per_user", read_count, plain.connections),
        command_bytes=table.take("command", parse_size, plain.command_bytes),
        environment_bytes=table.take("environment", parse_size, plain.environment_bytes),
        script_bytes=table.take("script", parse_size, plain.script_bytes),
    )


def _history(table: TomlTable) -> HistorySettings:
    plain = HistorySettings()
    return HistorySettings(
        keep_s=table.take("keep", _read_keep, plain.keep_s),
        max_bytes=table.take("max_size", read_size_or_zero, plain.max_bytes),
    )


def _metrics(table: TomlTable) -> MetricsSettings:
    plain = MetricsSettings()
    return MetricsSettings(
        socket=table.take("socket", read_flag, plain.socket),
        port=table.take("port", _read_port, None),
        textfile=table.take("textfile", _read_textfile, None),
        interval_s=table.take("textfile_interval", parse_duration, plain.interval_s),
        users=table.take("users", read_count, plain.users),
    )


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


_LAST_PORT = 65535
_DAY_S = 86400


def _read_keep(value: str | int) -> int | None:
    """Read a time. A bare number counts seconds, as elsewhere; one of less than a day was meant
    otherwise, and would empty the history."""
    if str(value).strip().isdecimal() and int(value) < _DAY_S:
        raise Refused(
            "config", f"{value!r} has no unit",
            hint=f'write keep = "{value}d" for days, or "{value}s" for seconds',
        )  # fmt: skip
    return read_time(value)


def _preempting(table: TomlTable, policy: str) -> Preempting | None:
    is_on = table.take("preemption", read_flag, False)
    if is_on and policy != "drf":
        table.fail("preemption", f"is for the policy drf, not for {policy}")
    how = Preempting(
        suspends=table.take("preempt", one_of("requeue", "suspend"), "requeue") == "suspend",
        after_s=table.take("preempt_after", parse_duration, 300),
        rest_s=table.take("preempt_cooldown", parse_duration, 3600),
    )
    return how if is_on else None


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


def survey(
    config: Config,
    machine: Machine,
    state_dir: Path,
    gpu_numbers: Mapping[str, int] = MappingProxyType({}),
) -> Site:
    """Apply the configuration to the machine. `state_dir` is the directory whose disk is managed if
    the configuration names none, and `gpu_numbers` are those that GPUs have already, by address."""
    disks = _located_disks(config, state_dir)
    reserve = config.reserve_memory_bytes
    if reserve is None:
        reserve = 0 if config.capacity.memory_bytes else default_reserve(machine.memory_bytes)
    gpus = read_gpus(config.countables, gpu_numbers)
    instances = instances_of(config.countables, gpus)
    amounts = {
        name: config.capacity.amount(name) or getattr(machine, axis.field, 0)
        for name, axis in PLAIN_AXES.items()
    }
    memory = amounts["memory"] - reserve
    if memory <= 0:
        raise ConfigError(
            "config",
            f"capacity: a reserve of {show_size(reserve)} leaves no memory for jobs",
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
    rules = Rules(
        axes=axes,
        capacity=whole,
        pools=config.pools,
        members=config.members,
        policy=config.policy,
        slots=config.slots,
        half_life_s=config.half_life_s,
        min_hold_s=config.min_hold_s,
        patience=config.patience,
        preempting=config.preempting,
        grace_s=config.grace_s,
        max_waiting_per_user=config.limits.waiting_jobs,
        max_kept_bytes_per_user=config.limits.kept_bytes,
        max_kept_bytes=config.limits.kept_total_bytes or default_kept(machine.memory_bytes),
        beside=_outside(capacity, machine) if config.external_load else None,
        root_room_bytes=_root_room_bytes(capacity, machine),
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
        *bound_warnings(rules),
        *window_warnings(config.windows, time.time(), config.defaults.time_limit_s),
        *_warn_of_short_history(rules, config.history.keep_s),
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


def _warn_of_short_history(rules: Rules, keep_s: int | None) -> Iterator[str]:
    """Yield a warning if jobs are removed before the quotas of their week are restored."""
    quotas = [show_path(path) for path, node in rules.pools_and_users() if node.quota is not None]
    if quotas and keep_s is not None and keep_s < WEEK_S:
        yield (
            f"{', '.join(quotas)}: a quota counts the jobs of a week, and history.keep removes "
            f"them after {show_duration(keep_s)}: after a restart some do not count"
        )


def _outside(capacity: Resources, machine: Machine) -> Resources:
    """Return the part of the machine that is not in the capacity, for processes outside drfd."""
    return Resources(
        cores_milli=max(0, machine.cores_milli - capacity.cores_milli),
        memory_bytes=max(0, machine.memory_bytes - capacity.memory_bytes),
    )


def _root_room_bytes(capacity: Resources, machine: Machine) -> int | None:
    """Return half of the memory outside the capacity, as the other half is the system's; None if
    the capacity is more than the machine has."""
    outside = machine.memory_bytes - capacity.memory_bytes
    return None if outside < 0 else outside // 2


def _warn_of_overcommitment(capacity: Resources, machine: Machine, config: Config) -> list[str]:
    found = []
    if capacity.cores_milli > machine.cores_milli:
        found.append(
            f"capacity.cores is {show_cores(capacity.cores_milli)}, but the machine has "
            f"{show_cores(machine.cores_milli)}: jobs will not get the cores they declare"
            + (", nor CPUs of their own once those are given out" * (config.cores_by == PIN))
        )
    if capacity.memory_bytes > machine.memory_bytes:
        found.append(
            f"capacity.memory is {show_size(capacity.memory_bytes)}, but the machine has "
            f"{show_size(machine.memory_bytes)}: jobs within their limits may run it out"
        )
    return found
