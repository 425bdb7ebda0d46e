"""What is done to a system, from what it has: every step, in order, and not one too many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from drfd.errors import Refused
from drfd.install import layout
from drfd.install.layout import Environment, Wanted, read_record, wanted
from drfd.install.plan import Seen, plan_install, plan_uninstall
from drfd.install.steps import (
    MakeDirectory,
    MakeLink,
    Note,
    Remove,
    RemoveEmpty,
    Run,
    Step,
    WriteFile,
)

ENVIRONMENT = Environment(python="/opt/drfd/bin/python", bin="/opt/drfd/bin", fingerprint="one")
SHIPPED = {name: f"{name}: @PYTHON@ @STOP_S@\n" for name in layout.UNITS} | {
    "sysusers.conf": "u drfd\n",
    "drfd.toml": "# defaults\n",
}
GENERATED = {"share/man/man1/drf.1": ".TH\n"}
UNIT_FILES = {unit: f"/etc/systemd/system/{unit}" for unit in layout.UNITS}
SERVICES = ("drfd-jobs.service", "drfd-launcher.service", "drfd.service")
DRF = ("drf",)


def want(
    environment: Environment = ENVIRONMENT,
    prefix: str = "/usr/local",
    *,
    shipped: Mapping[str, str] = SHIPPED,
    generated: Mapping[str, str] = GENERATED,
    grace_s: int = 10,
) -> Wanted:
    return wanted(environment, prefix, shipped, generated, grace_s=grace_s)


NOTHING = Seen(
    files={},
    links={},
    directories=frozenset(),
    record=None,
    has_user=False,
    active=frozenset(),
    enabled=frozenset(),
)


def installed(goal: Wanted, **changes: Any) -> Seen:
    """A system on which exactly this has been installed, and runs."""
    usual: dict[str, Any] = {
        "files": {
            **goal.files,
            layout.CONFIG: goal.default_config,
            layout.RECORD: goal.record,
        },
        "links": dict(goal.links),
        "directories": frozenset({layout.STATE, layout.RUN, "/etc/drfd"}),
        "record": read_record(goal.record),
        "has_user": True,
        "active": frozenset(SERVICES),
        "enabled": frozenset(SERVICES),
    }
    return Seen(**{**usual, **changes})


def install(goal: Wanted, seen: Seen) -> list[Step]:
    return plan_install(goal, seen, is_staged=False)


def runs(steps: list[Step]) -> list[str]:
    return [" ".join(step.command) for step in steps if isinstance(step, Run)]


# -- installing ------------------------------------------------------------------------------


def test_a_system_that_has_nothing_gets_everything_in_an_order_that_works() -> None:
    goal = want()
    steps = install(goal, NOTHING)
    assert steps[: len(goal.files)] == [WriteFile(path, goal.files[path]) for path in goal.files]
    assert steps[len(goal.files) :] == [
        MakeLink("/usr/local/bin/drf", "/opt/drfd/bin/drf"),
        MakeLink("/usr/local/bin/drfd", "/opt/drfd/bin/drfd"),
        WriteFile("/etc/drfd/drfd.toml", "# defaults\n"),
        Run(("systemd-sysusers", "/etc/sysusers.d/drfd.conf")),
        Run(("systemctl", "daemon-reload")),
        Run(("systemctl", "enable", *SERVICES)),
        Run(("systemctl", "start", "drfd-jobs.service")),
        Run(("systemctl", "restart", "drfd-launcher.service")),
        Run(("systemctl", "restart", "drfd.service")),
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
        Run(("systemctl", "restart", "drfd-launcher.service")),
        Run(("systemctl", "restart", "drfd.service")),
        WriteFile(layout.RECORD, goal.record),
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
        Run(("systemctl", "daemon-reload")),
    ]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_does_not_run_is_started(service: str) -> None:
    active = frozenset(SERVICES) - {service}
    (step,) = install(want(), installed(want(), active=active))
    assert isinstance(step, Run)
    assert step.command[2] == service


def test_a_service_that_is_not_enabled_is_enabled() -> None:
    steps = install(want(), installed(want(), enabled=frozenset({"drfd.service"})))
    assert runs(steps) == ["systemctl enable drfd-jobs.service drfd-launcher.service"]


def test_a_user_that_is_gone_is_made_again() -> None:
    steps = install(want(), installed(want(), has_user=False))
    assert runs(steps) == ["systemd-sysusers /etc/sysusers.d/drfd.conf"]


def test_the_configuration_is_never_overwritten() -> None:
    goal = want()
    mine = {**installed(goal).files, layout.CONFIG: "[capacity]\ncores = 4\n"}
    assert install(goal, installed(goal, files=mine)) == []


def test_new_defaults_are_pointed_out_once() -> None:
    goal = want(shipped={**SHIPPED, "drfd.toml": "# newer defaults\n"})
    mine = {**installed(want()).files, layout.CONFIG: "[capacity]\ncores = 4\n"}
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
    assert Remove("/usr/local/share/man/man1/old.1") in steps
    assert [step for step in steps if isinstance(step, Remove)] == [
        Remove("/usr/local/share/man/man1/old.1")
    ]


def test_another_prefix_takes_everything_along() -> None:
    before = want(prefix="/opt/local")
    steps = install(want(), installed(before))
    assert [step.path for step in steps if isinstance(step, Remove)] == [
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
    assert not any(isinstance(step, Remove) for step in steps)


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
    assert steps == [step for step in full if not isinstance(step, Run)]


# -- removing --------------------------------------------------------------------------------


def test_a_removal_undoes_all_but_state_and_configuration() -> None:
    seen = installed(want())
    steps = plan_uninstall(seen, DRF, kill_jobs=False, purge=False)
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
    removed = {step.path for step in steps if isinstance(step, Remove)}
    assert removed == {*want().files, *want().links, layout.RECORD, layout.RUN}
    assert [step for step in steps if isinstance(step, Note)] == [
        Note("kept: /var/lib/drfd (--purge removes it)"),
        Note("kept: /etc/drfd (--purge removes it)"),
    ]


def test_the_jobs_unit_is_stopped_when_its_file_no_longer_forbids_that() -> None:
    steps = plan_uninstall(installed(want()), DRF, kill_jobs=False, purge=False)
    order = [
        steps.index(Remove(UNIT_FILES["drfd-jobs.service"])),
        steps.index(Run(("systemctl", "daemon-reload"))),
        steps.index(Run(("systemctl", "stop", "drfd-jobs.service"))),
    ]
    assert order == sorted(order)


def test_the_slice_is_stopped_last_and_only_if_nobody_else_has_jobs_in_it() -> None:
    """A private instance that root runs has a scope there."""
    active = frozenset({*SERVICES, "drfd.slice"})
    seen = installed(want(), active=active)
    steps = runs(plan_uninstall(seen, DRF, kill_jobs=False, purge=False))
    assert steps[-2:] == ["systemctl stop drfd-jobs.service", "systemctl stop drfd.slice"]
    shared = replace(seen, slice_is_shared=True)
    steps = runs(plan_uninstall(shared, DRF, kill_jobs=False, purge=False))
    assert steps[-1] == "systemctl stop drfd-jobs.service"


def test_a_purge_leaves_nothing() -> None:
    steps = plan_uninstall(installed(want()), DRF, kill_jobs=False, purge=True)
    assert steps[-3:] == [
        Remove("/var/lib/drfd"),
        Remove("/etc/drfd"),
        Run(("userdel", "drfd")),
    ]
    assert not any(isinstance(step, Note) for step in steps)


@pytest.mark.parametrize(("attempts", "said"), [(1, "1 job is"), (5, "5 jobs are")])
def test_jobs_that_run_are_in_the_way(attempts: int, said: str) -> None:
    seen = installed(want(), attempts=attempts)
    with pytest.raises(Refused) as refusal:
        plan_uninstall(seen, DRF, kill_jobs=False, purge=True)
    assert refusal.value.text.startswith(said)
    assert "--kill-jobs" in refusal.value.hint


def test_jobs_are_stopped_in_order_by_the_daemon_when_that_is_said() -> None:
    seen = installed(want(), attempts=2)
    steps = plan_uninstall(seen, DRF, kill_jobs=True, purge=False)
    assert steps[0] == Run(("drf", "shutdown", "--kill-jobs"))
    no_daemon = replace(seen, active=frozenset({"drfd-jobs.service"}))
    steps = plan_uninstall(no_daemon, DRF, kill_jobs=True, purge=False)
    assert "drf shutdown --kill-jobs" not in runs(steps), "the end of their unit ends them"


def test_links_that_somebody_has_changed_are_his() -> None:
    links = {"/usr/local/bin/drf": "/his/drf", "/usr/local/bin/drfd": "/opt/drfd/bin/drfd"}
    steps = plan_uninstall(installed(want(), links=links), DRF, kill_jobs=False, purge=False)
    assert Remove("/usr/local/bin/drf") not in steps
    assert Remove("/usr/local/bin/drfd") in steps


def test_where_nothing_is_installed_there_is_nothing_to_remove() -> None:
    assert plan_uninstall(NOTHING, DRF, kill_jobs=False, purge=True) == []


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
