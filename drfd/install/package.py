"""Debian's package of drfd as an installation: what its set-up adds to the files that dpkg keeps.

Units, programs, man pages and the default configuration are files of the package, which
`packaging/debian/` builds, so dpkg puts them there and removes them. The set-up writes what depends
on the configuration, and starts or restarts the services in the same order as `drfd install`.
`deb-systemd-helper` enables them, and remembers what the administrator decided; only whether the
launcher of Slurm's nodes is enabled is the set-up's to say, because the configuration decides it.
"""

from __future__ import annotations

from collections.abc import Mapping

from drfd.common.errors import Refused
from drfd.install import plan
from drfd.install.plan import (
    CONTROLLER,
    JOBS,
    LAUNCHER,
    SLURM_LAUNCHER,
    Environment,
    InstalledState,
    Wanted,
)
from drfd.install.steps import MakeDirectory, RemoveEmpty, RemoveFile, RunProgram, Step, WriteFile

#: The package's Python environment.
ENVIRONMENT = "/usr/lib/drfd"
PYTHON = f"{ENVIRONMENT}/bin/python"
UNIT_DIRECTORY = "/usr/lib/systemd/system"
#: A file that is there where the package is installed, and not where it was only not purged.
MARK = f"{UNIT_DIRECTORY}/{CONTROLLER}"
#: The units of the package. That of Slurm's nodes is enabled only where there are some.
UNITS = (*plan.UNITS, SLURM_LAUNCHER)
#: The grace time that the package's units are written for: that of a configuration without one.
GRACE_S = 10

#: Unit → the file of what the configuration changes in it.
ADDITIONS = {unit: f"{plan.UNIT_DIRECTORY}/{unit}.d/drfd.conf" for unit in (JOBS, LAUNCHER)}
_ADDED = "# Written by Debian's package drfd, from drfd.toml: a change is lost.\n[Service]\n"


def packaged_installation(
    environment: Environment, shipped: Mapping[str, str], *, grace_s: int, has_cgroups: bool
) -> Wanted:
    """Return what the set-up of the package adds to its files, with its record."""
    files = {}
    usual = plan.unit_fills(PYTHON, grace_s=GRACE_S, has_cgroups=True)
    fills = plan.unit_fills(PYTHON, grace_s=grace_s, has_cgroups=has_cgroups)
    for unit, path in ADDITIONS.items():
        before = plan.filled(shipped[unit], usual).splitlines()
        after = plan.filled(shipped[unit], fills).splitlines()
        differing = [line for line, old in zip(after, before, strict=True) if line != old]
        if differing:
            files[path] = _ADDED + "\n".join(differing) + "\n"
    return Wanted(
        files=files,
        links={},
        default_config=shipped["drfd.toml"],
        shipped_config="",
        record=plan.record_text(environment.fingerprint, "/usr", files, {}),
    )


def plan_setup(wanted: Wanted, seen: InstalledState, *, has_slurm: bool = False) -> list[Step]:
    """Return the steps that follow when dpkg has put the package's files in place.

    A service that the administrator has disabled and stopped stays so, except the launcher of
    Slurm's nodes, which is enabled while the configuration has some.
    """
    before = seen.record
    changed = [path for path, content in wanted.files.items() if seen.files.get(path) != content]
    gone = sorted((before.files & set(seen.files)) - set(wanted.files)) if before else []
    is_same = seen.files.get(plan.RECORD) == wanted.record
    has_same_code = before is not None and before.fingerprint == plan.fingerprint_in(wanted.record)
    steps: list[Step] = [WriteFile(path, wanted.files[path]) for path in changed]
    for path in gone:
        steps += [RemoveFile(path), RemoveEmpty(path.rpartition("/")[0])]
    if changed or gone or not has_same_code:
        steps.append(RunProgram(("systemctl", "daemon-reload")))
    wanted_units = seen.enabled | seen.active
    # The controller looks for that launcher when it starts.
    is_other_set = has_slurm != (SLURM_LAUNCHER in wanted_units)
    if has_slurm and SLURM_LAUNCHER not in seen.enabled:
        steps.append(RunProgram(("systemctl", "enable", SLURM_LAUNCHER)))
        wanted_units |= {SLURM_LAUNCHER}
    if not has_slurm and SLURM_LAUNCHER in wanted_units:
        steps.append(RunProgram(("systemctl", "disable", "--now", SLURM_LAUNCHER)))
        wanted_units -= {SLURM_LAUNCHER}
    if JOBS in seen.enabled and JOBS not in seen.active:
        steps.append(_invoke("start", JOBS))
    for unit in (LAUNCHER, SLURM_LAUNCHER, CONTROLLER):
        # A new bound of the launcher comes with another way to start jobs, which it reads once.
        is_new = unit not in seen.active or ADDITIONS.get(unit) in (*changed, *gone)
        is_new |= unit == CONTROLLER and is_other_set
        if unit in wanted_units and (is_new or not has_same_code):
            steps.append(_invoke("restart", unit))
    if not is_same:
        if plan.STATE not in seen.directories:
            steps.append(MakeDirectory(plan.STATE))
        # Last, so that an interrupted set-up is done again.
        steps.append(WriteFile(plan.RECORD, wanted.record))
    return steps


def refuse_install() -> Refused:
    return Refused(
        "packaged",
        "drfd is installed here by Debian's package, which dpkg alone changes",
        hint="after a change of the configuration: dpkg-reconfigure drfd; "
        "to install from another environment: apt remove drfd first",
    )


def refuse_uninstall() -> Refused:
    return Refused(
        "packaged",
        "drfd is installed here by Debian's package, which dpkg alone removes",
        hint="apt remove drfd keeps configuration and state, apt purge drfd removes them too",
    )


def _invoke(verb: str, unit: str) -> RunProgram:
    """Return a step that acts on a unit as far as the policy of this machine allows it."""
    return RunProgram(("deb-systemd-invoke", verb, unit))
