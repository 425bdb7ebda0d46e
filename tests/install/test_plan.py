"""What is done to a system, from what it has: every step, in order, and not one too many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from drfd.common.errors import Refused
from drfd.install import plan
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
)

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
        "files": {
            **goal.files,
            plan.CONFIG: goal.default_config,
            plan.RECORD: goal.record,
        },
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


def test_where_nothing_has_changed_nothing_is_done() -> None:
    assert install(want(), installed(want())) == []


def test_an_upgrade_restarts_the_two_services_and_leaves_the_jobs_alone() -> None:
    """Another code in the environment shows in no file but the record."""
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


def test_a_longer_grace_time_reaches_the_jobs_unit_without_a_restart() -> None:
    shipped = {name: text.replace(" @STOP_S@", "") for name, text in SHIPPED.items()}
    shipped["drfd-jobs.service"] = "TimeoutStopSec=@STOP_S@\n"
    steps = install(want(shipped=shipped, grace_s=300), installed(want(shipped=shipped)))
    assert steps == [
        WriteFile(UNIT_FILES["drfd-jobs.service"], "TimeoutStopSec=305\n"),
        RunProgram(("systemctl", "daemon-reload")),
    ]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_does_not_run_is_started(service: str) -> None:
    active = frozenset(SERVICES) - {service}
    (step,) = install(want(), installed(want(), active=active))
    assert isinstance(step, RunProgram)
    assert step.command[2] == service


def test_a_service_that_is_not_enabled_is_enabled() -> None:
    steps = install(want(), installed(want(), enabled=frozenset({"drfd.service"})))
    assert runs(steps) == ["systemctl enable drfd-jobs.service drfd-launcher.service"]


def test_a_user_that_is_gone_is_made_again() -> None:
    steps = install(want(), installed(want(), has_user=False))
    assert runs(steps) == ["systemd-sysusers /etc/sysusers.d/drfd.conf"]


def test_the_configuration_is_never_overwritten() -> None:
    goal = want()
    mine = {**installed(goal).files, plan.CONFIG: "[capacity]\ncores = 4\n"}
    assert install(goal, installed(goal, files=mine)) == []


def test_new_defaults_are_pointed_out_once() -> None:
    goal = want(shipped={**SHIPPED, "drfd.toml": "# newer defaults\n"})
    mine = {**installed(want()).files, plan.CONFIG: "[capacity]\ncores = 4\n"}
    steps = install(goal, installed(want(), files=mine))
    assert steps == [
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


def test_another_prefix_takes_everything_along() -> None:
    before = want(prefix="/opt/local")
    steps = install(want(), installed(before))
    assert [step.path for step in steps if isinstance(step, RemoveFile)] == [
        "/opt/local/bin/drf",
        "/opt/local/bin/drfd",
        "/opt/local/share/drfd/drfd.toml",
        "/opt/local/share/man/man1/drf.1",
    ]
    assert MakeLink("/usr/local/bin/drf", "/opt/drfd/bin/drf") in steps


def test_another_environment_takes_over_the_links_of_the_first() -> None:
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


def test_the_jobs_unit_is_stopped_when_its_file_no_longer_forbids_that() -> None:
    steps = uninstall(installed(want()), kill_jobs=False, purge=False)
    order = [
        steps.index(RemoveFile(UNIT_FILES["drfd-jobs.service"])),
        steps.index(RunProgram(("systemctl", "daemon-reload"))),
        [step.text for step in steps].index("run systemctl stop drfd-jobs.service"),
    ]
    assert order == sorted(order)


def test_the_slice_is_stopped_last_and_only_if_nobody_else_has_jobs_in_it() -> None:
    """A private instance that root runs has a scope there."""
    active = frozenset({*SERVICES, "drfd.slice"})
    seen = installed(want(), active=active)
    steps = runs(uninstall(seen, kill_jobs=False, purge=False))
    assert steps[-2:] == ["systemctl stop drfd-jobs.service", "systemctl stop drfd.slice"]
    shared = replace(seen, slice_is_shared=True)
    steps = runs(uninstall(shared, kill_jobs=False, purge=False))
    assert steps[-1] == "systemctl stop drfd-jobs.service"


def test_a_purge_leaves_nothing() -> None:
    steps = uninstall(installed(want()), kill_jobs=False, purge=True)
    assert steps[-3:] == [
        RemoveFile("/var/lib/drfd"),
        RemoveFile("/etc/drfd"),
        RunProgram(("userdel", "drfd")),
    ]
    assert not any(isinstance(step, Note) for step in steps)


@pytest.mark.parametrize(("attempts", "said"), [(1, "1 job is"), (5, "5 jobs are")])
def test_jobs_that_run_are_in_the_way(attempts: int, said: str) -> None:
    seen = installed(want(), attempts=attempts)
    with pytest.raises(Refused) as refusal:
        uninstall(seen, kill_jobs=False, purge=True)
    assert refusal.value.text.startswith(said)
    assert "--kill-jobs" in refusal.value.hint


def test_jobs_are_stopped_in_order_by_the_daemon_when_that_is_said() -> None:
    seen = installed(want(), attempts=2)
    steps = uninstall(seen, kill_jobs=True, purge=False)
    assert runs(steps)[0] == "drf shutdown --kill-jobs"
    no_daemon = replace(seen, active=frozenset({"drfd-jobs.service"}))
    steps = uninstall(no_daemon, kill_jobs=True, purge=False)
    assert "drf shutdown --kill-jobs" not in runs(steps), "the end of their unit ends them"


def test_a_launcher_that_is_stopped_is_started_to_stop_the_jobs() -> None:
    """Nobody else can: the removal waited for it for ever."""
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


def test_where_nothing_is_installed_there_is_nothing_to_remove() -> None:
    assert uninstall(NOTHING, kill_jobs=False, purge=True) == []


# -- the record ------------------------------------------------------------------------------


def test_the_record_is_read_as_it_was_written() -> None:
    goal = want()
    record = read_record(goal.record)
    assert record is not None
    assert (record.fingerprint, record.prefix) == ("one", "/usr/local")
    assert (record.files, record.links) == (frozenset(goal.files), goal.links)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"fingerprint": "x"}', "\0"])
def test_a_record_that_is_not_ours_is_none(text: str) -> None:
    assert read_record(text) is None


def test_units_get_the_paths_of_the_environment() -> None:
    """In a unit, a percent sign begins a specifier."""
    odd = Environment(python="/opt/100%/bin/python", bin="/opt/100%/bin", fingerprint="x")
    text = want(odd).files[UNIT_FILES["drfd.service"]]
    assert text == "drfd.service: /opt/100%%/bin/python 15\n"


# -- nodes of Slurm's --------------------------------------------------------------------------

SLURM_FILE = f"/etc/systemd/system/{plan.SLURM_LAUNCHER}"
WITH_SLURM = frozenset((*SERVICES, plan.SLURM_LAUNCHER))


def commands(steps: list[Step]) -> list[tuple[str, ...]]:
    return [step.command for step in steps if isinstance(step, RunProgram)]


def test_the_launcher_of_slurms_nodes_is_installed_only_where_there_are_some() -> None:
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


def test_it_is_stopped_and_removed_when_no_node_is_slurms_any_more() -> None:
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
