"""`drfd install` and `drfd uninstall`: look, plan, and do it, or only say it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drfd import service
from drfd.errors import HostError, NotPermitted
from drfd.install import layout, look, plan
from drfd.install.steps import Note, Run, Step, perform

_DEFAULT_PREFIX = "/usr/local"
_SYSTEM = Path("/")


@dataclass(frozen=True, slots=True)
class Where:
    """`root`: the system to change; any but the running one only has files put into it."""

    root: Path
    is_dry: bool

    @property
    def is_staged(self) -> bool:
        return self.root != _SYSTEM


def install(where: Where, *, prefix: str | None, grace_s: int) -> None:
    """`prefix` None: as last time."""
    _need_a_system(where)
    if not where.is_staged:
        _need_trust()
    before = look.record(where.root)
    wanted = layout.wanted(
        look.environment(),
        prefix or (before.prefix if before else _DEFAULT_PREFIX),
        look.shipped(),
        look.generated(),
        grace_s=grace_s,
    )
    steps = plan.plan_install(wanted, look.seen(where.root, wanted), is_staged=where.is_staged)
    if all(isinstance(step, Note) for step in steps):
        steps.append(Note("nothing has changed since the last installation"))
    _carry_out(steps, where)


def uninstall(where: Where, *, kill_jobs: bool, purge: bool) -> None:
    _need_a_system(where)
    seen = look.seen(where.root, None)
    steps = plan.plan_uninstall(seen, look.DRF, kill_jobs=kill_jobs, purge=purge)
    if where.is_staged:
        steps = [step for step in steps if not isinstance(step, Run)]
    _carry_out(steps, where)


def _need_a_system(where: Where) -> None:
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


def _need_trust() -> None:
    why_not = look.distrust()
    if why_not is not None:
        raise HostError(
            "untrusted",
            f"this environment cannot run as a service: {why_not}",
            hint="as root, make one such as /opt/drfd: umask 022; python3 -m venv /opt/drfd",
        )


def _carry_out(steps: Sequence[Step], where: Where) -> None:
    # Whatever mask we were started with: what is installed is for everybody.
    os.umask(0o022)
    for step in steps:
        if where.is_dry:
            print(step.text)
        else:
            perform(step, where.root, print)
