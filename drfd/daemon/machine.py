"""Configuration and machine together: the rules the core works by, and the disks it limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        read_bps=disks[0].read_bps if len(disks) == 1 else 0,
        write_bps=disks[0].write_bps if len(disks) == 1 else 0,
        disks=tuple((disk.name, disk.read_bps, disk.write_bps) for disk in disks)
        if len(disks) > 1
        else (),
        gres=tuple((name, len(instances)) for name, instances in config.gres if instances),
    )
    rules = Rules(
        axes=Axes(
            gres=tuple(name for name, _ in config.gres),
            disks=tuple(disk.name for disk in disks),
            instances=config.gres,
        ),
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
        max_waiting_per_user=config.limits.waiting_jobs,
        max_letters_per_user=config.limits.kept_bytes,
        max_kept_bytes_per_user=config.limits.kept_bytes,
        beside=_beside(capacity, machine) if config.external_load else None,
    )
    defaults = replace(
        config.defaults,
        cores_milli=min(config.defaults.cores_milli, capacity.cores_milli),
        memory_bytes=min(config.defaults.memory_bytes, capacity.memory_bytes),
    )
    warnings = (
        *_overcommitted(capacity, machine, config),
        *_twice(disks),
    )
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


def _twice(disks: Sequence[Disk]) -> Iterator[str]:
    """Two names for one device promise it twice."""
    for at, disk in enumerate(disks):
        for other in disks[:at]:
            for device in sorted(set(disk.devices).intersection(other.devices)):
                yield (
                    f"disks {other.name} and {disk.name} are on one device ({device}): "
                    "what they promise adds up"
                )


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
