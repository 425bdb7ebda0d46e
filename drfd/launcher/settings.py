"""The keys of the configuration that the launchers read by themselves.

`drfd serve` reads the same keys with these functions, and refuses a file with unknown ones.
"""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drfd.common.config_files import exists, read_files
from drfd.common.errors import ConfigError
from drfd.common.strict_table import (
    TomlTable,
    key,
    read_count,
    read_flag,
    read_keys,
    read_name,
    read_names,
    read_path,
)
from drfd.launcher.system.accounts import ask_once


def _read_users(value: object) -> frozenset[str]:
    return frozenset(read_names(value))


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """The table [slurm]: how the launcher of Slurm's nodes reaches Slurm."""

    partition: str | None = key(
        "partition", read_name, None, shown='"drfd"', default="Slurm's own default"
    )
    #: Path of slurm.conf.
    conf: str | None = key(
        "config", read_path, None, shown='"/etc/slurm/slurm.conf"',
        default="where Slurm's commands look for it",
    )  # fmt: skip
    programs: str = key(
        "commands", read_path, "/usr/bin",
        "directory of sbatch, squeue, scancel and scontrol", shown='"/usr/bin"',
    )  # fmt: skip
    user: str = key("user", read_name, "slurm", "SlurmUser", shown='"slurm"')


@dataclass(frozen=True, kw_only=True)
class LauncherSettings:
    """Keys of [enforcement], [daemon] and [slurm]."""

    #: None for the kernel's own limits.
    processes_total: int | None = key(
        "processes_total", read_count, None, "of all jobs", shown="28000",
        default="the kernel's bound (pid_max, threads-max, pids.max) less an eighth",
        table="enforcement",
    )  # fmt: skip
    processes_per_user: int | None = key(
        "processes_per_user", read_count, None, "of a user, processes outside drfd included",
        shown="14000", default="half of processes_total", table="enforcement",
    )  # fmt: skip
    use_cgroups: bool = key(
        "cgroups", read_flag, True,
        "false: only measure; under systemd see Configuration changes in administration.md",
        shown="true", table="enforcement",
    )  # fmt: skip
    private_tmp: bool = key(
        "private_tmp", read_flag, False,
        "true: a private /tmp, /var/tmp and /dev/shm for each job: see Temporary files",
        shown="false", table="enforcement",
    )  # fmt: skip
    #: None for a directory in the launcher's own.
    private_tmp_dir: str | None = key(
        "private_tmp_dir", read_path, None,
        "place of these on disk; created if missing, in a directory that only root can change",
        shown='"/var/lib/drfd/launcher/private"', default="this directory", table="enforcement",
    )  # fmt: skip
    remove_ipc: bool = key(
        "remove_ipc", read_flag, True,
        "remove a user's System V IPC, and files in /dev/shm, after the last job",
        shown="true", table="enforcement",
    )  # fmt: skip
    no_new_privs: bool = key(
        "no_new_privs", read_flag, False,
        "true: set-uid programs such as sudo have no effect in jobs",
        shown="false", table="enforcement",
    )  # fmt: skip
    system_users: frozenset[str] = key(
        "system_users", _read_users, frozenset(), "users below uid 1000 who may submit jobs",
        shown="[]", table="daemon",
    )  # fmt: skip
    slurm: SlurmSettings = SlurmSettings()


def load_settings(path: Path | None) -> LauncherSettings:
    """Return the settings in a configuration, or the default ones if there is no such file. Raises
    ConfigError."""
    if path is None or not exists(path):
        return LauncherSettings()
    top = TomlTable(read_files(path), str(path), "")
    settings = read_settings(top)
    top.refuse_errors()
    return settings


def read_settings(top: TomlTable) -> LauncherSettings:
    return LauncherSettings(
        **read_keys(LauncherSettings, top),
        slurm=SlurmSettings(**read_keys(SlurmSettings, top.table("slurm"))),
    )


def account_of(name: str, key: str) -> pwd.struct_passwd:
    """Return the account of a user that `key` names. Raises ConfigError if there is none."""
    entry = ask_once("entry", name)
    if not isinstance(entry, list):
        raise ConfigError("config", f"{key}: there is no user {name}")
    return pwd.struct_passwd(entry)


def system_uids(settings: LauncherSettings) -> list[int]:
    """Return the uids of `daemon.system_users`. Raises ConfigError for a name without account."""
    names: Sequence[str] = sorted(settings.system_users)
    return [account_of(name, "daemon.system_users").pw_uid for name in names]
