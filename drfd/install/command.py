"""`drfd install` and `drfd uninstall`: inspect the system, plan the steps, perform or show them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drfd.common.errors import HostError, NotPermitted, Refused
from drfd.install import package, plan, probe
from drfd.install.steps import Note, RunProgram, Step, perform
from drfd.linux import service

_DEFAULT_PREFIX = "/usr/local"
_SYSTEM = Path("/")


@dataclass(frozen=True, slots=True)
class InstallTarget:
    """The system to change."""

    #: Its root directory. Any but "/" only has files put into it.
    root: Path
    #: Whether the steps are only printed.
    is_dry: bool

    @property
    def is_staged(self) -> bool:
        return self.root != _SYSTEM


def install(
    where: InstallTarget,
    *,
    prefix: str | None,
    grace_s: int,
    has_cgroups: bool = True,
    has_slurm: bool = False,
) -> None:
    """Install drfd. Without a prefix, that of the last installation is used.

    Raises NotPermitted, HostError, and Refused if something is in the way.
    """
    if probe.is_packaged(where.root):
        raise package.refuse_install()
    _need_root_and_systemd(where)
    if not where.is_staged:
        _need_safe_environment()
    before = probe.record(where.root)
    wanted = plan.wanted_installation(
        probe.environment(),
        prefix or (before.prefix if before else _DEFAULT_PREFIX),
        probe.shipped(),
        probe.generated(),
        grace_s=grace_s,
        has_cgroups=has_cgroups,
        has_slurm=has_slurm,
    )
    steps = plan.plan_install(wanted, probe.seen(where.root, wanted), is_staged=where.is_staged)
    is_as_before = all(isinstance(step, Note) for step in steps)
    if is_as_before:
        steps.append(Note("nothing has changed since the last installation"))
    _carry_out(steps, where)
    if not where.is_staged and not where.is_dry:
        for line in plan.closing_words(probe.standing(), is_as_before=is_as_before):
            print(line)


def uninstall(where: InstallTarget, *, kill_jobs: bool, purge: bool, grace_s: int) -> None:
    """Remove drfd. Running jobs have `grace_s` seconds to end. Raises Refused while jobs run."""
    if probe.is_packaged(where.root):
        raise package.refuse_uninstall()
    _need_root_and_systemd(where)
    seen = probe.seen(where.root, None)
    steps = plan.plan_uninstall(seen, probe.ASK, kill_jobs=kill_jobs, purge=purge, grace_s=grace_s)
    if where.is_staged:
        steps = [step for step in steps if not isinstance(step, RunProgram)]
    _carry_out(steps, where)


def set_up_package(
    where: InstallTarget, *, grace_s: int, has_cgroups: bool, has_slurm: bool
) -> None:
    """Set up Debian's package, whose files dpkg has put in place. Its scripts call this.

    Raises NotPermitted, HostError, and Refused in any other environment.
    """
    environment = probe.environment()
    if environment.bin != f"{package.ENVIRONMENT}/bin" or where.is_staged:
        raise Refused(
            "not-packaged",
            f"{environment.python} is not the environment of Debian's package",
            hint="drfd install without --package installs from this one",
        )
    _need_root_and_systemd(where)
    wanted = package.packaged_installation(
        environment, probe.shipped(), grace_s=grace_s, has_cgroups=has_cgroups
    )
    steps = package.plan_setup(wanted, probe.seen(where.root, wanted), has_slurm=has_slurm)
    _carry_out(steps, where)


def _need_root_and_systemd(where: InstallTarget) -> None:
    if where.is_staged:
        return
    if os.getuid() != 0:
        raise NotPermitted(
            "not-root",
            "only root can do that",
            hint="or name another --root, to have the files put there",
        )
    if not service.has_systemd():
        raise HostError(
            "no-systemd",
            "systemd does not run here",
            hint="as root, drfd serve runs the system's daemon without it",
        )


def _need_safe_environment() -> None:
    why_not = probe.distrust()
    if why_not is not None:
        raise HostError(
            "untrusted",
            f"this environment cannot run as a service: {why_not}",
            hint="as root, make one such as /opt/drfd: umask 022; python3 -m venv /opt/drfd",
        )


def _carry_out(steps: Sequence[Step], where: InstallTarget) -> None:
    # Every user must be able to read what is installed, whatever mask we were started with.
    os.umask(0o022)
    for step in steps:
        if where.is_dry:
            print(step.text)
        else:
            perform(step, where.root, print)
