"""What is done to a system, from what it has: every step, in order, and not one too many; by drfd
install, and by the set-up of Debian's package, which adds to dpkg's files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import HostError, Refused
from drfd.daemon.main import main
from drfd.install import command, package, plan, probe
from drfd.install import probe as trust
from drfd.install.plan import (
    Environment,
    InstalledState,
    Wanted,
    closing_words,
    plan_install,
    plan_uninstall,
    read_record,
    wanted_installation,
)
from drfd.install.steps import (
    MakeDirectory,
    MakeLink,
    Note,
    RemoveEmpty,
    RemoveFile,
    RunProgram,
    Step,
    WriteFile,
    below,
    perform,
)
from drfd_cli.main import VERBS

ENVIRONMENT = Environment(python="/opt/drfd/bin/python", bin="/opt/drfd/bin", fingerprint="one")
SHIPPED = {name: f"{name}: @PYTHON@ @STOP_S@\n" for name in (*plan.UNITS, plan.SLURM_LAUNCHER)} | {
    "sysusers.conf": "u drfd\n",
    "drfd.toml": "# defaults\n",
}
GENERATED = {"share/man/man1/drf.1": ".TH\n"}
UNIT_FILES = {unit: f"/etc/systemd/system/{unit}" for unit in plan.UNITS}
SERVICES = ("drfd-jobs.service", "drfd-launcher.service", "drfd.service")
DRF = ("drf",)


def want(
    environment: Environment = ENVIRONMENT,
    prefix: str = "/usr/local",
    *,
    shipped: Mapping[str, str] = SHIPPED,
    generated: Mapping[str, str] = GENERATED,
    grace_s: int = 10,
    has_slurm: bool = False,
) -> Wanted:
    return wanted_installation(
        environment, prefix, shipped, generated, grace_s=grace_s, has_slurm=has_slurm
    )


NOTHING = InstalledState(
    files={},
    links={},
    directories=frozenset(),
    record=None,
    has_user=False,
    active=frozenset(),
    enabled=frozenset(),
)


def installed(goal: Wanted, **changes: Any) -> InstalledState:
    """A system on which exactly this has been installed, and runs."""
    usual: dict[str, Any] = {
        "files": {**goal.files, plan.CONFIG: goal.default_config, plan.RECORD: goal.record},
        "links": dict(goal.links),
        "directories": frozenset({plan.STATE, plan.RUN, "/etc/drfd"}),
        "record": read_record(goal.record),
        "has_user": True,
        "active": frozenset(SERVICES),
        "enabled": frozenset(SERVICES),
    }
    return InstalledState(**{**usual, **changes})


def install(goal: Wanted, seen: InstalledState) -> list[Step]:
    return plan_install(goal, seen, is_staged=False)


def uninstall(seen: InstalledState, *, kill_jobs: bool, purge: bool) -> list[Step]:
    return plan_uninstall(seen, DRF, kill_jobs=kill_jobs, purge=purge, grace_s=60)


def runs(steps: list[Step]) -> list[str]:
    return [" ".join(step.command) for step in steps if isinstance(step, RunProgram)]


# -- installing ------------------------------------------------------------------------------


def test_a_system_that_has_nothing_gets_everything_in_an_order_that_works() -> None:
    goal = want()
    steps = install(goal, NOTHING)
    assert steps[: len(goal.files)] == [WriteFile(path, goal.files[path]) for path in goal.files]
    assert steps[len(goal.files) :] == [
        MakeLink("/usr/local/bin/drf", "/opt/drfd/bin/drf"),
        MakeLink("/usr/local/bin/drfd", "/opt/drfd/bin/drfd"),
        WriteFile("/etc/drfd/drfd.toml", "# defaults\n"),
        RunProgram(("systemd-sysusers", "/etc/sysusers.d/drfd.conf")),
        RunProgram(("systemctl", "daemon-reload")),
        RunProgram(("systemctl", "enable", *SERVICES)),
        RunProgram(("systemctl", "start", "drfd-jobs.service")),
        RunProgram(("systemctl", "restart", "drfd-launcher.service")),
        RunProgram(("systemctl", "restart", "drfd.service")),
        MakeDirectory("/var/lib/drfd"),
        WriteFile("/var/lib/drfd/install.json", goal.record),
    ]


def test_an_upgrade_restarts_the_two_services_and_nothing_changed_none() -> None:
    assert install(want(), installed(want())) == []
    # Another code in the environment shows in no file but the record.
    goal = want(replace(ENVIRONMENT, fingerprint="two"))
    steps = install(goal, installed(want()))
    assert steps == [
        RunProgram(("systemctl", "restart", "drfd-launcher.service")),
        RunProgram(("systemctl", "restart", "drfd.service")),
        WriteFile(plan.RECORD, goal.record),
    ]


@pytest.mark.parametrize(
    ("unit", "restarted"),
    [
        ("drfd.slice", []),
        ("drfd-jobs.service", []),
        ("drfd-launcher.service", ["systemctl restart drfd-launcher.service"]),
        ("drfd.service", ["systemctl restart drfd.service"]),
    ],
)
def test_a_unit_that_has_changed_is_reloaded_and_its_service_restarted_but_never_the_jobs(
    unit: str, restarted: list[str]
) -> None:
    goal = want()
    files = {**installed(goal).files, UNIT_FILES[unit]: "old\n"}
    steps = install(goal, installed(goal, files=files))
    assert steps[0] == WriteFile(UNIT_FILES[unit], goal.files[UNIT_FILES[unit]])
    assert runs(steps) == ["systemctl daemon-reload", *restarted]


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        *(({"active": {*SERVICES} - {each}}, f"systemctl .*start {each}") for each in SERVICES),
        ({"enabled": {"drfd.service"}}, f"systemctl enable {SERVICES[0]} {SERVICES[1]}"),
        ({"has_user": False}, "systemd-sysusers /etc/sysusers.d/drfd.conf"),
    ],
)
def test_what_is_not_as_it_should_be_is_mended(changes: dict[str, Any], command: str) -> None:
    (step,) = runs(install(want(), installed(want(), **changes)))
    assert re.fullmatch(command, step)


def test_the_configuration_is_never_overwritten_and_new_defaults_are_pointed_out_once() -> None:
    goal = want(shipped={**SHIPPED, "drfd.toml": "# newer defaults\n"})
    mine = {**installed(want()).files, plan.CONFIG: "[capacity]\ncores = 4\n"}
    assert install(want(), installed(want(), files=mine)) == []
    assert install(goal, installed(want(), files=mine)) == [
        WriteFile("/usr/local/share/drfd/drfd.toml", "# newer defaults\n"),
        Note(
            "/etc/drfd/drfd.toml is left as it is; "
            "this version's default is /usr/local/share/drfd/drfd.toml"
        ),
    ]


def test_what_an_earlier_version_has_installed_and_this_one_does_not_is_removed() -> None:
    before = want(generated={**GENERATED, "share/man/man1/old.1": ".TH\n"})
    steps = install(want(), installed(before))
    assert RemoveFile("/usr/local/share/man/man1/old.1") in steps
    assert [step for step in steps if isinstance(step, RemoveFile)] == [
        RemoveFile("/usr/local/share/man/man1/old.1")
    ]


def test_another_prefix_takes_everything_along_and_another_environment_the_links() -> None:
    before = want(prefix="/opt/local")
    steps = install(want(), installed(before))
    assert [step.path for step in steps if isinstance(step, RemoveFile)] == [
        "/opt/local/bin/drf",
        "/opt/local/bin/drfd",
        "/opt/local/share/drfd/drfd.toml",
        "/opt/local/share/man/man1/drf.1",
    ]
    assert MakeLink("/usr/local/bin/drf", "/opt/drfd/bin/drf") in steps
    moved = Environment(python="/opt/new/bin/python", bin="/opt/new/bin", fingerprint="one")
    steps = install(want(moved), installed(want()))
    assert MakeLink("/usr/local/bin/drf", "/opt/new/bin/drf") in steps
    assert not any(isinstance(step, RemoveFile) for step in steps)


@pytest.mark.parametrize(
    "there",
    [
        {"files": {"/usr/local/bin/drf": "#!/bin/sh\n"}},
        {"links": {"/usr/local/bin/drf": "/somewhere/else"}},
    ],
    ids=["a program", "a link"],
)
def test_somebody_elses_program_is_not_replaced(there: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refusal:
        install(want(), replace(NOTHING, **there))
    assert refusal.value.code == "in-the-way"
    assert "/usr/local/bin/drf is there already" in refusal.value.text


def test_a_staged_installation_is_files_alone() -> None:
    """For a package, or an image: nothing is run."""
    steps = plan_install(want(), NOTHING, is_staged=True)
    assert runs(steps) == []
    full = install(want(), NOTHING)
    assert steps == [step for step in full if not isinstance(step, RunProgram)]


DRAINED = "note: the queue is still drained, as it was left: nothing starts until drf undrain"
DOCTOR = "drfd runs; try drf doctor"


@pytest.mark.parametrize(
    ("standing", "is_as_before", "words"),
    [
        ({"launcher": "connected", "draining": False}, False, [DOCTOR]),
        ({"launcher": "connected", "draining": False}, True, []),
        ({"launcher": "connected", "draining": True}, False, [DRAINED, DOCTOR]),
        ({"launcher": "connected", "draining": True}, True, [DRAINED]),
    ],
)
def test_the_last_words_say_that_it_runs_and_whether_it_is_drained(
    standing: dict[str, object], is_as_before: bool, words: list[str]
) -> None:
    """A journal that an earlier installation has left may still be drained, so nothing started, and
    nothing said so."""
    assert closing_words(standing, is_as_before=is_as_before) == words


@pytest.mark.parametrize(
    ("standing", "unit"), [(None, "drfd"), ({"launcher": "away"}, "drfd-launcher")]
)
def test_the_last_words_name_the_unit_that_does_not_run(
    standing: dict[str, object] | None, unit: str
) -> None:
    (said,) = closing_words(standing, is_as_before=False)
    assert said.endswith(f"systemctl status {unit} tells why")


def test_what_bounds_the_launcher_bounds_no_job() -> None:
    """Without cgroups the jobs live in the launcher's own. A percentage is no specifier."""
    shipped = SHIPPED | {"drfd-launcher.service": "@LAUNCHER_MEMORY@ @LAUNCHER_TASKS@\n"}
    texts = [
        wanted_installation(
            ENVIRONMENT, "/usr", shipped, GENERATED, grace_s=1, has_cgroups=has_cgroups
        ).files[UNIT_FILES["drfd-launcher.service"]]
        for has_cgroups in (True, False)
    ]
    assert texts == ["50% 50%\n", "infinity infinity\n"]


# -- removing --------------------------------------------------------------------------------


def test_a_removal_undoes_all_but_state_and_configuration() -> None:
    seen = installed(want())
    steps = uninstall(seen, kill_jobs=False, purge=False)
    assert runs(steps) == [
        "systemctl stop drfd.service drfd-launcher.service",
        "systemctl disable drfd-jobs.service drfd-launcher.service drfd.service",
        "systemctl daemon-reload",
        "systemctl stop drfd-jobs.service",
    ]
    assert [step.path for step in steps if isinstance(step, RemoveEmpty)] == [
        "/usr/local/share/man/man1",
        "/usr/local/share/drfd",
        "/etc/sysusers.d",
    ]
    removed = {step.path for step in steps if isinstance(step, RemoveFile)}
    assert removed == {*want().files, *want().links, plan.RECORD, plan.RUN}
    assert [step for step in steps if isinstance(step, Note)] == [
        Note("kept: /var/lib/drfd (--purge removes it)"),
        Note("kept: /etc/drfd (--purge removes it)"),
    ]


def test_the_jobs_unit_is_stopped_when_its_file_allows_it_and_the_slice_last() -> None:
    steps = uninstall(installed(want()), kill_jobs=False, purge=False)
    order = [
        steps.index(RemoveFile(UNIT_FILES["drfd-jobs.service"])),
        steps.index(RunProgram(("systemctl", "daemon-reload"))),
        [step.text for step in steps].index("run systemctl stop drfd-jobs.service"),
    ]
    assert order == sorted(order)
    # A private instance that root runs has a scope there.
    active = frozenset({*SERVICES, "drfd.slice"})
    seen = installed(want(), active=active)
    steps = runs(uninstall(seen, kill_jobs=False, purge=False))
    assert steps[-2:] == ["systemctl stop drfd-jobs.service", "systemctl stop drfd.slice"]
    shared = replace(seen, slice_is_shared=True)
    steps = runs(uninstall(shared, kill_jobs=False, purge=False))
    assert steps[-1] == "systemctl stop drfd-jobs.service"


def test_a_purge_leaves_nothing_and_nothing_is_no_work() -> None:
    steps = uninstall(installed(want()), kill_jobs=False, purge=True)
    assert steps[-3:] == [
        RemoveFile("/var/lib/drfd"),
        RemoveFile("/etc/drfd"),
        RunProgram(("userdel", "drfd")),
    ]
    assert not any(isinstance(step, Note) for step in steps)
    assert uninstall(NOTHING, kill_jobs=False, purge=True) == []


@pytest.mark.parametrize(("attempts", "said"), [(1, "1 job is"), (5, "5 jobs are")])
def test_jobs_that_run_are_in_the_way(attempts: int, said: str) -> None:
    seen = installed(want(), attempts=attempts)
    with pytest.raises(Refused) as refusal:
        uninstall(seen, kill_jobs=False, purge=True)
    assert refusal.value.text.startswith(said)
    assert "--kill-jobs" in refusal.value.hint


def test_jobs_are_stopped_in_order_when_that_is_said_by_a_launcher_that_is_started_for_it() -> None:
    seen = installed(want(), attempts=2)
    steps = uninstall(seen, kill_jobs=True, purge=False)
    assert runs(steps)[0] == "drf shutdown --kill-jobs"
    no_daemon = replace(seen, active=frozenset({"drfd-jobs.service"}))
    steps = uninstall(no_daemon, kill_jobs=True, purge=False)
    assert "drf shutdown --kill-jobs" not in runs(steps), "the end of their unit ends them"
    # Nobody else can: the removal waited for it for ever.
    active = frozenset({"drfd.service", "drfd-jobs.service"})
    steps = uninstall(installed(want(), attempts=1, active=active), kill_jobs=True, purge=True)
    assert runs(steps)[:3] == [
        "systemctl start drfd-launcher.service",
        "drf shutdown --kill-jobs",
        "systemctl stop drfd.service drfd-launcher.service",
    ]
    start, shutdown = steps[:2]
    assert isinstance(start, RunProgram) and "systemctl stop drfd" in start.hint
    assert isinstance(shutdown, RunProgram) and "drf status" in shutdown.hint


def test_no_step_is_waited_for_for_ever_but_each_for_longer_than_it_may_take() -> None:
    """The end of all jobs takes their grace time."""
    seen = installed(want(), attempts=1)
    steps = [
        step for step in uninstall(seen, kill_jobs=True, purge=True) if isinstance(step, RunProgram)
    ]
    limits_s = {step.text: step.limit_s for step in steps}
    assert limits_s.pop("run drf shutdown --kill-jobs") == 360
    assert limits_s.pop("run systemctl stop drfd-jobs.service") == 360
    assert set(limits_s.values()) == {900}


def test_links_that_somebody_has_changed_are_his() -> None:
    links = {"/usr/local/bin/drf": "/his/drf", "/usr/local/bin/drfd": "/opt/drfd/bin/drfd"}
    steps = uninstall(installed(want(), links=links), kill_jobs=False, purge=False)
    assert RemoveFile("/usr/local/bin/drf") not in steps
    assert RemoveFile("/usr/local/bin/drfd") in steps


# -- the record ------------------------------------------------------------------------------


def test_the_record_is_read_as_it_was_written_and_units_get_the_paths_of_the_environment() -> None:
    goal = want()
    record = read_record(goal.record)
    assert record is not None
    assert (record.fingerprint, record.prefix) == ("one", "/usr/local")
    assert (record.files, record.links) == (frozenset(goal.files), goal.links)
    # In a unit, a percent sign begins a specifier.
    odd = Environment(python="/opt/100%/bin/python", bin="/opt/100%/bin", fingerprint="x")
    text = want(odd).files[UNIT_FILES["drfd.service"]]
    assert text == "drfd.service: /opt/100%%/bin/python 15\n"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"fingerprint": "x"}', "\0"])
def test_a_record_that_is_not_ours_is_none(text: str) -> None:
    assert read_record(text) is None


# -- nodes of Slurm's --------------------------------------------------------------------------

SLURM_FILE = f"/etc/systemd/system/{plan.SLURM_LAUNCHER}"
WITH_SLURM = frozenset((*SERVICES, plan.SLURM_LAUNCHER))


def commands(steps: list[Step]) -> list[tuple[str, ...]]:
    return [step.command for step in steps if isinstance(step, RunProgram)]


def test_the_launcher_of_slurms_nodes_is_installed_only_while_there_are_some() -> None:
    assert SLURM_FILE not in want().files
    goal = want(has_slurm=True)
    steps = plan_install(goal, installed(want()), is_staged=False)
    assert WriteFile(SLURM_FILE, goal.files[SLURM_FILE]) in steps
    assert commands(steps) == [
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", plan.SLURM_LAUNCHER),
        ("systemctl", "restart", "drfd-launcher.service"),
        ("systemctl", "restart", plan.SLURM_LAUNCHER),
        ("systemctl", "restart", "drfd.service"),
    ]
    there = installed(goal, active=WITH_SLURM, enabled=WITH_SLURM)
    assert plan_install(goal, there, is_staged=False) == []
    there = installed(want(has_slurm=True), active=WITH_SLURM, enabled=WITH_SLURM)
    steps = plan_install(want(), there, is_staged=False)
    assert steps[0] == RunProgram(("systemctl", "disable", "--now", plan.SLURM_LAUNCHER))
    assert RemoveFile(SLURM_FILE) in steps
    assert ("systemctl", "daemon-reload") in commands(steps)
    assert commands(plan_install(want(), there, is_staged=True)) == []


def test_a_removal_stops_it_too_and_starts_it_first_if_it_is_to_end_jobs() -> None:
    goal = want(has_slurm=True)
    there = installed(goal, active=WITH_SLURM, enabled=WITH_SLURM)
    steps = plan_uninstall(there, DRF, kill_jobs=False, purge=False, grace_s=10)
    units = ("drfd.service", plan.SLURM_LAUNCHER, "drfd-launcher.service")
    assert commands(steps)[0] == ("systemctl", "stop", *units)
    assert commands(steps)[1][:2] == ("systemctl", "disable")
    assert plan.SLURM_LAUNCHER in commands(steps)[1]
    assert RemoveFile(SLURM_FILE) in steps
    away = installed(goal, active=frozenset(SERVICES), enabled=WITH_SLURM, attempts=1)
    steps = plan_uninstall(away, DRF, kill_jobs=True, purge=False, grace_s=10)
    assert commands(steps)[0] == ("systemctl", "start", plan.SLURM_LAUNCHER)


# -- Debian's package ---------------------------------------------------------------------


PACKAGED = Environment(package.PYTHON, f"{package.ENVIRONMENT}/bin", fingerprint="one")
UNITS = ("drfd-jobs.service", "drfd-launcher.service", "drfd.service")
FRESH = InstalledState(
    files={},
    links={},
    directories=frozenset(),
    record=None,
    has_user=True,
    active=frozenset(),
    enabled=frozenset(UNITS),
)


def want_package(
    fingerprint: str = "one", *, grace_s: int = 10, has_cgroups: bool = True
) -> Wanted:
    return package.packaged_installation(
        replace(PACKAGED, fingerprint=fingerprint),
        probe.shipped(),
        grace_s=grace_s,
        has_cgroups=has_cgroups,
    )


def running_package(goal: Wanted, **changes: Any) -> InstalledState:
    usual: dict[str, Any] = {
        "files": {**goal.files, plan.RECORD: goal.record},
        "directories": frozenset({plan.STATE}),
        "record": read_record(goal.record),
        "active": frozenset(UNITS),
    }
    return replace(FRESH, **{**usual, **changes})


def run_by(steps: list[Step]) -> list[str]:
    return [" ".join(step.command) for step in steps if isinstance(step, RunProgram)]


RESTARTS = [
    "systemctl daemon-reload",
    "deb-systemd-invoke restart drfd-launcher.service",
    "deb-systemd-invoke restart drfd.service",
]


def test_the_first_set_up_starts_all_in_order_and_leaves_its_record_last() -> None:
    reload, *restarts = RESTARTS
    steps = package.plan_setup(want_package(), FRESH)
    assert run_by(steps) == [reload, "deb-systemd-invoke start drfd-jobs.service", *restarts]
    assert steps[-2:] == [MakeDirectory(plan.STATE), WriteFile(plan.RECORD, want_package().record)]


def test_another_version_or_python_restarts_the_daemons_and_leaves_the_jobs_alone() -> None:
    assert package.plan_setup(want_package(), running_package(want_package())) == []
    steps = package.plan_setup(want_package("two"), running_package(want_package()))
    assert run_by(steps) == RESTARTS
    assert steps[-1] == WriteFile(plan.RECORD, want_package("two").record)
    # What the administrator has disabled and stopped stays so.
    off = running_package(want_package(), active=frozenset(), enabled=frozenset())
    assert run_by(package.plan_setup(want_package("two"), off)) == ["systemctl daemon-reload"]


def test_what_the_configuration_changes_in_a_unit_is_added_to_it_and_goes_with_its_reason() -> None:
    assert want_package().files == {}
    text = "# Written by Debian's package drfd, from drfd.toml: a change is lost.\n[Service]\n"
    assert want_package(grace_s=47).files == {
        "/etc/systemd/system/drfd-jobs.service.d/drfd.conf": text + "TimeoutStopSec=52\n"
    }
    assert want_package(has_cgroups=False).files == {
        "/etc/systemd/system/drfd-launcher.service.d/drfd.conf": text
        + "MemoryMax=infinity\nTasksMax=infinity\n"
    }
    steps = package.plan_setup(want_package(grace_s=47), running_package(want_package()))
    path = package.ADDITIONS["drfd-jobs.service"]
    assert steps == [
        WriteFile(path, want_package(grace_s=47).files[path]),
        RunProgram(("systemctl", "daemon-reload")),
        WriteFile(plan.RECORD, want_package(grace_s=47).record),
    ]
    # Other bounds of the launcher restart it.
    steps = package.plan_setup(want_package(has_cgroups=False), running_package(want_package()))
    assert run_by(steps) == RESTARTS[:2]
    steps = package.plan_setup(want_package(), running_package(want_package(grace_s=47)))
    path = package.ADDITIONS["drfd-jobs.service"]
    assert steps[:2] == [RemoveFile(path), RemoveEmpty(path.rpartition("/")[0])]
    assert run_by(steps) == ["systemctl daemon-reload"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_service_of_the_package_that_does_not_run_is_started(unit: str) -> None:
    active = frozenset(UNITS) - {unit}
    (said,) = run_by(
        package.plan_setup(want_package(), running_package(want_package(), active=active))
    )
    assert said.split()[2] == unit


SLURM = "drfd-slurm-launcher.service"


def test_the_launcher_of_slurms_nodes_comes_with_them_restarts_and_goes_with_them() -> None:
    steps = package.plan_setup(want_package(), running_package(want_package()), has_slurm=True)
    reload, first, last = RESTARTS
    restart = f"deb-systemd-invoke restart {SLURM}"
    assert run_by(steps) == [f"systemctl enable {SLURM}", restart, last]
    units = frozenset({*UNITS, SLURM})
    before = running_package(want_package(), active=units, enabled=units)
    steps = package.plan_setup(want_package("two"), before, has_slurm=True)
    assert run_by(steps) == [reload, first, restart, last]
    assert package.plan_setup(want_package(), before, has_slurm=True) == []
    gone = [f"systemctl disable --now {SLURM}", last]
    assert run_by(package.plan_setup(want_package(), before)) == gone


# -- whose the installation is -----------------------------------------------------------------


@pytest.fixture
def packaged(tmp_path: Path) -> command.InstallTarget:
    """A system on which dpkg has put the package's units."""
    unit = tmp_path / package.MARK[1:]
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    return command.InstallTarget(tmp_path, is_dry=False)


def files_below(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def test_where_dpkg_owns_the_installation_drfd_install_and_uninstall_refuse(
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
    with pytest.raises(Refused, match="apt purge drfd") as refusal:
        command.uninstall(packaged, kill_jobs=True, purge=True, grace_s=10)
    assert refusal.value.code == "packaged"
    # The set-up is for the package's own environment.
    with pytest.raises(Refused) as refusal:
        command.set_up_package(packaged, grace_s=10, has_cgroups=True, has_slurm=False)
    assert refusal.value.code == "not-packaged"
    assert files_below(packaged.root) == [package.MARK[1:]]


# -- each step, done in a directory of the test's own -------------------------------------


def do(step: Step, root: Path) -> list[str]:
    """Twice: a step may be repeated. What was said the first time."""
    said: list[str] = []
    perform(step, root, said.append)
    perform(step, root, lambda text: None)
    return said


def test_a_file_is_whole_readable_by_all_and_its_directories_are_made(tmp_path: Path) -> None:
    assert do(WriteFile("/etc/a/b.conf", "für alle\n"), tmp_path) == ["write /etc/a/b.conf"]
    path = tmp_path / "etc/a/b.conf"
    assert path.read_text() == "für alle\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["b.conf"]


def test_a_file_takes_the_place_of_the_one_before_and_of_what_a_crash_has_left(
    tmp_path: Path,
) -> None:
    """Of a link too, and not of what it leads to."""
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / ".link.new").write_text("half")
    perform(WriteFile("/link", "new"), tmp_path, str)
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]


def test_what_is_to_be_made_is_written_run_or_only_said(tmp_path: Path) -> None:
    """A link leads where the running system has it, also below another root."""
    said = do(MakeLink("/usr/local/bin/drf", "/opt/drfd/bin/drf"), tmp_path)
    assert said == ["link /usr/local/bin/drf to /opt/drfd/bin/drf"]
    assert os.readlink(tmp_path / "usr/local/bin/drf") == "/opt/drfd/bin/drf"
    assert do(MakeDirectory("/var/lib/drfd"), tmp_path) == ["make the directory /var/lib/drfd"]
    assert (tmp_path / "var/lib/drfd").is_dir()
    assert below(Path("/"), "/etc/x") == Path("/etc/x")
    write = f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'ran').touch()"
    (said,) = do(RunProgram((sys.executable, "-c", write)), Path("/"))
    assert said.startswith(f"run {sys.executable} -c ")
    assert (tmp_path / "ran").exists()


def test_files_links_and_whole_directories_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("tree", "file", "link"):
        assert do(RemoveFile(f"/{name}"), tmp_path) == [f"remove /{name}"]
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"], "a link is removed, not where it leads"


def test_a_directory_is_removed_only_when_nothing_is_in_it(tmp_path: Path) -> None:
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/file").write_text("")
    for name in ("/empty", "/full", "/gone"):
        perform(RemoveEmpty(name), tmp_path, lambda text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert (tmp_path / "full/file").exists()


def test_a_program_that_fails_is_one_line_with_its_first_word() -> None:
    fail = "import sys; sys.exit('Job for drfd.service failed.\\nSee journalctl.')"
    with pytest.raises(HostError) as error:
        perform(RunProgram((sys.executable, "-c", fail)), Path("/"), str)
    assert error.value.text.endswith("failed: Job for drfd.service failed.")
    with pytest.raises(HostError, match="failed: status 3"):
        perform(RunProgram((sys.executable, "-c", "raise SystemExit(3)")), Path("/"), str)


def test_what_cannot_be_run_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot run /no/such/program: No such file"):
        perform(RunProgram(("/no/such/program",)), Path("/"), str)
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="cannot write /file/x: "):
        perform(WriteFile("/file/x", ""), tmp_path, str)


def test_a_note_does_nothing(tmp_path: Path) -> None:
    assert do(Note("all is well"), tmp_path) == ["note: all is well"]
    assert os.listdir(tmp_path) == []


def test_a_program_that_does_not_end_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    step = RunProgram(("sleep", "1000"), limit_s=0.1, hint="the way out")
    with pytest.raises(HostError, match="sleep 1000 is not over after 0 s") as error:
        perform(step, tmp_path, str)
    assert error.value.hint == "the way out"
    with pytest.raises(HostError, match="false failed: status 1") as error:
        perform(RunProgram(("false",), hint="the way out"), tmp_path, str)
    assert error.value.hint == "the way out"


# -- the conditions for an environment to be trusted with root, and run by all ------------


ME = frozenset({0, os.getuid()})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """bin/python → base/python3, lib/module.py; all as they should be."""
    top = tmp_path / "top"
    for name in ("env/bin", "env/lib", "base"):
        (top / name).mkdir(parents=True)
    for name in ("base/python3", "env/lib/module.py"):
        (top / name).write_text("")
        (top / name).chmod(0o755)
    (top / "env/bin/python").symlink_to("../../base/python3")
    for path in (top, *top.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    return top


def look(tree: Path, owners: frozenset[int] = ME) -> str | None:
    env = tree / "env"
    return trust.fault_of_files([str(env / "lib")], [str(env / "bin/python")], owners, str(tree))


def test_what_belongs_to_somebody_else_or_leads_nowhere_is_not_fine(tree: Path) -> None:
    assert look(tree) is None
    found = look(tree, frozenset({os.getuid() + 1}))
    assert found == f"{tree} belongs to uid {os.getuid()}, who could change it"
    (tree / "base/python3").unlink()
    assert look(tree) == f"{tree}/base/python3: No such file or directory"
    (tree / "env/bin/python").unlink()
    (tree / "env/bin/python").symlink_to("python")
    assert look(tree) is None


@pytest.mark.parametrize(
    "name", ["env/lib/module.py", "env/lib", "env/bin", "env", ".", "base", "base/python3"]
)
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777], ids=oct)
def test_what_others_can_write_is_not_on_whatever_way_it_is_reached(
    tree: Path, name: str, mode: int
) -> None:
    """The interpreter behind the link counts, and so does every directory above. A sticky one, too:
    it is no place for a service."""
    (tree / name).chmod(mode)
    found = look(tree)
    assert found is not None
    assert f"can be written by others than root (mode {mode:o})" in found
    assert os.path.normpath(tree / name) == os.path.normpath(found.split(" can be")[0])


def test_compiled_modules_need_not_be_readable_but_nobody_else_may_write_them(tree: Path) -> None:
    """Root's umask may be 077, and Python leaves them when `drfd install` itself is run."""
    cache = tree / "env/lib/__pycache__"
    cache.mkdir(mode=0o700)
    compiled = cache / "module.cpython-311.pyc"
    compiled.write_text("")
    compiled.chmod(0o600)
    assert look(tree) is None
    compiled.chmod(0o620)
    assert "can be written by others" in (look(tree) or "")


@pytest.mark.parametrize(
    ("name", "mode"), [("env/lib/module.py", 0o700), ("env", 0o700), ("base", 0o750)]
)
def test_what_users_cannot_read_is_not(tree: Path, name: str, mode: int) -> None:
    """`sudo pip` into root's home, or with a umask of 077."""
    (tree / name).chmod(mode)
    assert look(tree) == f"{tree / name} cannot be read by all users (mode {mode:o})"


# -- the commands themselves, on the files of a system that does not run ------------------


BIN = Path(sys.executable).parent


def drfd(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "drfd.daemon", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


INSTALLED = [
    "etc/drfd/drfd.toml",
    "etc/systemd/system/drfd-jobs.service",
    "etc/systemd/system/drfd-launcher.service",
    "etc/systemd/system/drfd.service",
    "etc/systemd/system/drfd.slice",
    "etc/sysusers.d/drfd.conf",
    "usr/local/bin/drf",
    "usr/local/bin/drfd",
    "usr/local/share/bash-completion/completions/drf",
    "usr/local/share/drfd/drfd.toml",
    "usr/local/share/fish/vendor_completions.d/drf.fish",
    *sorted(f"usr/local/share/man/man1/drf-{verb}.1" for verb in VERBS),
    "usr/local/share/man/man1/drf.1",
    "usr/local/share/man/man5/drfd.toml.5",
    "usr/local/share/man/man8/drfd.8",
    "usr/local/share/zsh/site-functions/_drf",
    "var/lib/drfd/install.json",
]


@pytest.mark.slow
def test_install_say_it_do_it_do_nothing_and_undo_it(tmp_path: Path) -> None:
    """One after the other, since each start of Python takes its time."""
    root = tmp_path / "image"
    dry = drfd("install", "--root", root, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert not root.exists(), "--dry-run has done something"

    done = drfd("install", "--root", root, umask=0o077)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == dry.stdout
    assert files_of(root) == INSTALLED
    plain = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    modes = {path.stat().st_mode & 0o777 for path in plain}
    assert modes == {0o644}, "whatever the umask"
    assert os.readlink(root / "usr/local/bin/drf") == str(BIN / "drf")
    unit = (root / "etc/systemd/system/drfd.service").read_text()
    assert f"ExecStart={sys.executable} -I -m drfd.daemon serve" in unit

    config = root / "etc/drfd/drfd.toml"
    config.write_text('[enforcement]\ngrace = "2m"\n')
    again = drfd("install", "--root", root)
    assert again.stdout == "write /etc/systemd/system/drfd-jobs.service\n"
    assert config.read_text() == '[enforcement]\ngrace = "2m"\n'
    jobs_unit = (root / "etc/systemd/system/drfd-jobs.service").read_text()
    assert "\nTimeoutStopSec=125\n" in jobs_unit
    third = drfd("install", "--root", root)
    assert third.stdout == "note: nothing has changed since the last installation\n"

    config.write_text("[nonsense]\n")
    refused = drfd("install", "--root", root)
    assert (refused.returncode, refused.stderr.count("\n")) == (78, 1)
    assert "nonsense" in refused.stderr

    removed = drfd("uninstall", "--root", root)
    assert (removed.returncode, removed.stderr) == (0, "")
    assert files_of(root) == ["etc/drfd/drfd.toml"]
    purged = drfd("uninstall", "--root", root, "--purge")
    assert purged.stdout.splitlines() == ["remove /var/lib/drfd", "remove /etc/drfd"]
    assert files_of(root) == []
    share = sorted(str(path.relative_to(root)) for path in (root / "usr/local/share").rglob("*"))
    assert share == ["usr/local/share/man"], "as a system has it without us"


@pytest.mark.slow
def test_a_prefix_is_remembered(tmp_path: Path) -> None:
    drfd("install", "--root", tmp_path, "--prefix", "/opt/local")
    assert (tmp_path / "opt/local/bin/drf").is_symlink()
    again = drfd("install", "--root", tmp_path)
    assert again.stdout == "note: nothing has changed since the last installation\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_the_running_system_is_for_root_with_systemd(command: str) -> None:
    if os.path.isdir("/run/systemd/system") and os.getuid() == 0:
        pytest.skip("this would be the real thing: see tests/vm")
    done = drfd(command, "--dry-run")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    if os.getuid() == 0:
        assert (done.returncode, "systemd does not run here" in done.stderr) == (1, True)
    else:
        assert (done.returncode, "only root can do that" in done.stderr) == (77, True)


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_an_interrupt_is_one_line_and_no_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed fifteen frames of Python."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"drfd.install.command.{command}", interrupted)
    with pytest.raises(SystemExit) as ended:
        main([command, "--root", "/nonexistent"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == (
        "drfd: interrupted: what is printed above is done, and the same command does the rest\n"
    )


@pytest.mark.slow
def test_an_interrupt_reaches_a_program_that_a_step_waits_for(tmp_path: Path) -> None:
    """By a real signal, to a real process."""
    program = (
        "from pathlib import Path; from drfd.install import command, steps; "
        "command.install = lambda *_, **__: steps.perform("
        "steps.RunProgram(('sleep', '1000')), Path('/'), lambda text: print(text, flush=True)); "
        f"from drfd.daemon.main import main; main(['install', '--root', {str(tmp_path)!r}])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "run sleep 1000\n"
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.count("\n")) == (130, 1)
    assert said.startswith("drfd: interrupted")
