"""The keys of the configuration that the launchers read by themselves.

`drfd serve` reads the same keys with these functions, and refuses a file with unknown ones.
"""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drfd.common.config_files import exists, read_files
from drfd.common.errors import ConfigError, Refused
from drfd.common.strict_table import (
    TomlTable,
    one_of,
    read_count,
    read_flag,
    read_name,
    read_names,
    read_path,
    wrong,
)
from drfd.devices.nodes import is_basic

#: The list of instances that stands for all GPUs of the machine.
AUTO = "auto"
#: Whether only GPUs in the list are hidden from jobs that do not have them, or all of the machine.
LISTED, ALL = "listed", "all"


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What the configuration says of devices. Not in orders: the launcher, which is root, does not
    take from the controller which device node an instance has."""

    #: Resource → paths of the nodes of each of its instances, which are numbered from 0.
    paths: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    #: Whether GPUs that are given out to no job are hidden, too.
    hides_all_gpus: bool = False
    #: Whether all GPUs are given out that are no part of the processor, also those that the
    #: controller has not seen yet.
    gives_all_gpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """How the launcher of Slurm's nodes reaches Slurm."""

    #: Slurm's partition, or None for its default.
    partition: str | None = None
    #: Path of slurm.conf, or None for where Slurm's commands look for it.
    conf: str | None = None
    #: Directory of Slurm's commands.
    programs: str = "/usr/bin"
    #: Slurm's own user (SlurmUser).
    user: str = "slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    use_cgroups: bool = True
    #: Whether each job has a /tmp and a /dev/shm of its own, and where these are stored on disk
    #: (None: in the launcher's own directory).
    private_tmp: bool = False
    private_tmp_dir: str | None = None
    #: Whether IPC that a user's jobs have left is removed after the last of them.
    remove_ipc: bool = True
    #: Whether set-uid programs, sudo among them, have no effect in jobs.
    no_new_privs: bool = False
    #: Maximum processes of all jobs together, and of one user including those outside drfd; None
    #: for the kernel's own limits.
    processes_total: int | None = None
    processes_per_user: int | None = None
    #: Users below uid 1000 who may submit jobs.
    system_users: frozenset[str] = frozenset()
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)


def load_settings(path: Path | None) -> LauncherSettings:
    """Return the settings in a configuration, or the default ones if there is no such file. Raises
    ConfigError."""
    if path is None or not exists(path):
        return LauncherSettings()
    return read_settings(TomlTable(read_files(path), str(path), ""))


def read_settings(top: TomlTable) -> LauncherSettings:
    """Raises ConfigError."""
    enforcement = top.table("enforcement")
    return LauncherSettings(
        use_cgroups=enforcement.take("cgroups", read_flag, True),
        private_tmp=enforcement.take("private_tmp", read_flag, False),
        private_tmp_dir=enforcement.take("private_tmp_dir", read_path, None),
        remove_ipc=enforcement.take("remove_ipc", read_flag, True),
        no_new_privs=enforcement.take("no_new_privs", read_flag, False),
        processes_total=enforcement.take("processes_total", read_count, None),
        processes_per_user=enforcement.take("processes_per_user", read_count, None),
        system_users=frozenset(top.table("daemon").take("system_users", read_names, [])),
        devices=_read_gres(top.table("gres")),
        slurm=_read_slurm(top.table("slurm")),
    )


def _read_gres(gres: TomlTable) -> DeviceSettings:
    tables = {name: gres.table(name) for name in gres.names() if gres.is_table(name)}
    paths = {name: table.take("devices", read_devices, ()) for name, table in tables.items()}
    instances = [table.take("instances", _as_it_is, None) for table in tables.values()]
    instances += [gres.take(name, _as_it_is, None) for name in gres.names() if name not in tables]
    return DeviceSettings(
        {name: nodes for name, nodes in sorted(paths.items()) if nodes},
        hides_all_gpus=ALL in [each.take("hide", read_hide, LISTED) for each in tables.values()],
        gives_all_gpus=AUTO in instances,
    )


def _as_it_is(value: object) -> object:
    return value


read_hide = one_of(LISTED, ALL)


def read_devices(value: object) -> tuple[tuple[str, ...], ...]:
    """Return the paths of each instance: an element is one, or a list of them. Raises Refused."""
    if not isinstance(value, list) or not value:
        raise wrong(value, "a list of device nodes", '["/dev/xdma0", "/dev/xdma1"]')
    return tuple(_read_nodes(each) for each in value)


def _read_nodes(value: object) -> tuple[str, ...]:
    paths = value if isinstance(value, list) else [value]
    if not paths:
        raise wrong(value, "a device node", '"/dev/xdma0"')
    return tuple(map(_read_node, paths))


def _read_node(value: object) -> str:
    path = read_path(value)
    if is_basic(path):
        raise Refused(
            "config",
            f"{path} is a device that every process needs: hidden from other jobs, it would keep "
            "them from starting",
            hint="list the device's own node",
        )
    return path


def _read_slurm(table: TomlTable) -> SlurmSettings:
    plain = SlurmSettings()
    return SlurmSettings(
        partition=table.take("partition", read_name, None),
        conf=table.take("config", read_path, None),
        programs=table.take("commands", read_path, plain.programs),
        user=table.take("user", read_name, plain.user),
    )


def account_of(name: str, key: str) -> pwd.struct_passwd:
    """Return the account of a user that `key` names. Raises ConfigError if there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError("config", f"{key}: there is no user {name}") from None


def system_uids(settings: LauncherSettings) -> list[int]:
    """Return the uids of `daemon.system_users`. Raises ConfigError for a name without account."""
    names: Sequence[str] = sorted(settings.system_users)
    return [account_of(name, "daemon.system_users").pw_uid for name in names]
