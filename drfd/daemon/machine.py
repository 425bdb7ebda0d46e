"""Configuration and machine together: the rules the core works by, and the disks it limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from drfd.core.resources import Axes, Resources
from drfd.core.rules import Rules
from drfd.daemon.config import Config, Defaults, DiskConfig
from drfd.errors import ConfigError
from drfd.host.capacity import Machine, default_reserve
from drfd.host.disks import GUESS_READ_BPS, GUESS_WRITE_BPS, Disk, locate
from drfd.launcher.protocol import PIN
from drfd.units import show_cores, show_size


@dataclass(frozen=True, slots=True)
class Site:
    """What this daemon has to give."""

    rules: Rules
    disks: tuple[Disk, ...]
    #: What a job gets that does not say: never more than there is.
    defaults: Defaults
    #: What an administrator should know about the configuration.
    warnings: tuple[str, ...]


def survey(config: Config, machine: Machine, state_dir: Path) -> Site:
    disks = _disks(config, state_dir)
    reserve = config.reserve_memory_bytes
    if reserve is None:
        reserve = 0 if config.memory_bytes else default_reserve(machine.memory_bytes)
    memory = (config.memory_bytes or machine.memory_bytes) - reserve
    if memory <= 0:
        raise ConfigError(
            "config",
            f"capacity: a reserve of {show_size(reserve)} leaves no memory for jobs",
            hint="lower capacity.reserve_memory",
        )
    capacity = Resources(
        cores_milli=config.cores_milli or machine.cores_milli,
        memory_bytes=memory,
        # A declared rate holds on every managed disk, so the slowest one bounds their sum.
        read_bps=min((disk.read_bps for disk in disks), default=0),
        write_bps=min((disk.write_bps for disk in disks), default=0),
    )
    rules = Rules(
        axes=Axes(),
        capacity=capacity,
        pools=config.pools,
        members=config.members,
        policy=config.policy,
        slots=config.slots,
        half_life_s=config.half_life_s,
        min_hold_s=config.min_hold_s,
        patience=config.patience,
        preempting=config.preempting,
        grace_s=config.grace_s,
        max_waiting_per_user=config.max_waiting_per_user,
        beside=_beside(capacity, machine) if config.external_load else None,
    )
    defaults = replace(
        config.defaults,
        cores_milli=min(config.defaults.cores_milli, capacity.cores_milli),
        memory_bytes=min(config.defaults.memory_bytes, capacity.memory_bytes),
        read_bps=min(config.defaults.read_bps, capacity.read_bps),
        write_bps=min(config.defaults.write_bps, capacity.write_bps),
    )
    warnings = (*config.warnings, *_overcommitted(capacity, machine, config))
    return Site(rules, disks, defaults, warnings)


def _disks(config: Config, state_dir: Path) -> tuple[Disk, ...]:
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


def _beside(capacity: Resources, machine: Machine) -> Resources:
    """What the machine has besides: it is there for processes outside drfd."""
    return Resources(
        cores_milli=max(0, machine.cores_milli - capacity.cores_milli),
        memory_bytes=max(0, machine.memory_bytes - capacity.memory_bytes),
    )


def _overcommitted(capacity: Resources, machine: Machine, config: Config) -> list[str]:
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
