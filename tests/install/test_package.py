"""The set-up of Debian's package: what it adds to dpkg's files, and what the services do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import Refused
from drfd.install import command, package, plan, probe
from drfd.install.plan import Environment, InstalledState, Wanted, read_record
from drfd.install.steps import MakeDirectory, RemoveEmpty, RemoveFile, RunProgram, Step, WriteFile

ENVIRONMENT = Environment(package.PYTHON, f"{package.ENVIRONMENT}/bin", fingerprint="one")
SERVICES = ("drfd-jobs.service", "drfd-launcher.service", "drfd.service")
FRESH = InstalledState(
    files={},
    links={},
    directories=frozenset(),
    record=None,
    has_user=True,
    active=frozenset(),
    enabled=frozenset(SERVICES),
)


def want(fingerprint: str = "one", *, grace_s: int = 10, has_cgroups: bool = True) -> Wanted:
    return package.packaged_installation(
        replace(ENVIRONMENT, fingerprint=fingerprint),
        probe.shipped(),
        grace_s=grace_s,
        has_cgroups=has_cgroups,
    )


def running(goal: Wanted, **changes: Any) -> InstalledState:
    usual: dict[str, Any] = {
        "files": {**goal.files, plan.RECORD: goal.record},
        "directories": frozenset({plan.STATE}),
        "record": read_record(goal.record),
        "active": frozenset(SERVICES),
    }
    return replace(FRESH, **{**usual, **changes})


def commands(steps: list[Step]) -> list[str]:
    return [" ".join(step.command) for step in steps if isinstance(step, RunProgram)]


RESTARTS = [
    "systemctl daemon-reload",
    "deb-systemd-invoke restart drfd-launcher.service",
    "deb-systemd-invoke restart drfd.service",
]


def test_the_usual_configuration_adds_no_file() -> None:
    assert want().files == {}


def test_the_first_set_up_starts_all_in_order_and_leaves_its_record_last() -> None:
    reload, *restarts = RESTARTS
    steps = package.plan_setup(want(), FRESH)
    assert commands(steps) == [reload, "deb-systemd-invoke start drfd-jobs.service", *restarts]
    assert steps[-2:] == [MakeDirectory(plan.STATE), WriteFile(plan.RECORD, want().record)]


def test_where_nothing_has_changed_nothing_is_done() -> None:
    assert package.plan_setup(want(), running(want())) == []


def test_another_version_or_python_restarts_the_daemons_and_leaves_the_jobs_alone() -> None:
    steps = package.plan_setup(want("two"), running(want()))
    assert commands(steps) == RESTARTS
    assert steps[-1] == WriteFile(plan.RECORD, want("two").record)


def test_what_the_configuration_changes_in_a_unit_is_added_to_it() -> None:
    text = "# Written by Debian's package drfd, from drfd.toml: a change is lost.\n[Service]\n"
    assert want(grace_s=47).files == {
        "/etc/systemd/system/drfd-jobs.service.d/drfd.conf": text + "TimeoutStopSec=52\n"
    }
    assert want(has_cgroups=False).files == {
        "/etc/systemd/system/drfd-launcher.service.d/drfd.conf": text
        + "MemoryMax=infinity\nTasksMax=infinity\n"
    }


def test_a_longer_grace_time_is_taken_up_without_a_restart() -> None:
    steps = package.plan_setup(want(grace_s=47), running(want()))
    path = package.ADDITIONS["drfd-jobs.service"]
    assert steps == [
        WriteFile(path, want(grace_s=47).files[path]),
        RunProgram(("systemctl", "daemon-reload")),
        WriteFile(plan.RECORD, want(grace_s=47).record),
    ]


def test_other_bounds_of_the_launcher_restart_it() -> None:
    steps = package.plan_setup(want(has_cgroups=False), running(want()))
    assert commands(steps) == RESTARTS[:2]


def test_an_addition_goes_with_its_reason() -> None:
    steps = package.plan_setup(want(), running(want(grace_s=47)))
    path = package.ADDITIONS["drfd-jobs.service"]
    assert steps[:2] == [RemoveFile(path), RemoveEmpty(path.rpartition("/")[0])]
    assert commands(steps) == ["systemctl daemon-reload"]


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_that_does_not_run_is_started(unit: str) -> None:
    active = frozenset(SERVICES) - {unit}
    (said,) = commands(package.plan_setup(want(), running(want(), active=active)))
    assert said.split()[2] == unit


def test_what_the_administrator_has_disabled_and_stopped_stays_so() -> None:
    off = running(want(), active=frozenset(), enabled=frozenset())
    assert commands(package.plan_setup(want("two"), off)) == ["systemctl daemon-reload"]


SLURM = "drfd-slurm-launcher.service"


def test_the_first_nodes_of_slurms_have_their_launcher_enabled_and_started() -> None:
    steps = package.plan_setup(want(), running(want()), has_slurm=True)
    assert commands(steps) == [
        f"systemctl enable {SLURM}",
        f"deb-systemd-invoke restart {SLURM}",
        RESTARTS[-1],
    ]


def test_another_version_restarts_the_launcher_of_slurms_nodes_too() -> None:
    units = frozenset({*SERVICES, SLURM})
    before = running(want(), active=units, enabled=units)
    reload, first, last = RESTARTS
    steps = package.plan_setup(want("two"), before, has_slurm=True)
    assert commands(steps) == [reload, first, f"deb-systemd-invoke restart {SLURM}", last]
    assert package.plan_setup(want(), before, has_slurm=True) == []


def test_the_launcher_of_slurms_nodes_goes_with_them() -> None:
    units = frozenset({*SERVICES, SLURM})
    before = running(want(), active=units, enabled=units)
    assert commands(package.plan_setup(want(), before)) == [
        f"systemctl disable --now {SLURM}",
        RESTARTS[-1],
    ]


# -- whose the installation is -----------------------------------------------------------------


@pytest.fixture
def packaged(tmp_path: Path) -> command.InstallTarget:
    """A system on which dpkg has put the package's units."""
    unit = tmp_path / package.MARK[1:]
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    return command.InstallTarget(tmp_path, is_dry=False)


def files(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def test_where_dpkg_owns_the_installation_drfd_install_refuses(
    packaged: command.InstallTarget,
) -> None:
    with pytest.raises(Refused) as refusal:
        command.install(packaged, prefix=None, grace_s=10)
    assert refusal.value.code == "packaged"
    assert str(refusal.value) == (
        "drfd is installed here by Debian's package, which dpkg alone changes (after a change of "
        "the configuration: dpkg-reconfigure drfd; to install from another environment: "
        "apt remove drfd first)"
    )
    assert files(packaged.root) == [package.MARK[1:]]


def test_and_so_does_drfd_uninstall(packaged: command.InstallTarget) -> None:
    with pytest.raises(Refused) as refusal:
        command.uninstall(packaged, kill_jobs=True, purge=True, grace_s=10)
    assert refusal.value.code == "packaged"
    assert "apt purge drfd" in str(refusal.value)
    assert files(packaged.root) == [package.MARK[1:]]


def test_the_set_up_is_for_the_packages_own_environment(packaged: command.InstallTarget) -> None:
    with pytest.raises(Refused) as refusal:
        command.set_up_package(packaged, grace_s=10, has_cgroups=True, has_slurm=False)
    assert refusal.value.code == "not-packaged"
    assert files(packaged.root) == [package.MARK[1:]]
