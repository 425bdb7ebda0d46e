"""Installed from wheels, without a network: what an administrator and the users find."""

from __future__ import annotations

import os
import stat

import pytest

from vm.service.installed import BIN, USERS, Installed, ask, run, unit

SERVICES = ("drfd-jobs", "drfd-launcher", "drfd")


def test_the_three_services_run_and_will_after_a_boot(installed: Installed) -> None:
    for name in SERVICES:
        found = unit(name, "ActiveState", "UnitFileState", "NRestarts")
        assert found == {"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "0"}
    assert run("systemctl", "--failed", "--quiet", "--no-legend").stdout == ""


def test_installing_again_changes_nothing(installed: Installed) -> None:
    done = run(BIN / "drfd", "install")
    assert done.stdout == "note: nothing has changed since the last installation\n"
    assert done.stderr == ""


def test_units_and_state_are_as_closed_as_they_should_be(installed: Installed) -> None:
    modes = {
        "/var/lib/drfd/controller": 0o700,
        "/var/lib/drfd/launcher": 0o711,
        "/var/lib/drfd/launcher/attempts": 0o700,
        "/run/drfd": 0o755,
        "/run/drfd/drfd.sock": 0o666,
        "/etc/drfd/drfd.toml": 0o644,
    }
    assert {path: stat.S_IMODE(os.stat(path).st_mode) for path in modes} == modes


def test_doctor_finds_every_limit_enforced(installed: Installed) -> None:
    found = ask("doctor")
    assert (found["enforcement"], found["launcher"]) == ("cgroup-v2", "connected")
    controls = found["controls"]
    assert {controls[name] for name in ("cores", "memory", "read", "write")} == {"enforced"}
    (disk,) = found["disks"]
    assert (disk["filesystem"], disk["problem"]) == ("ext4", "")


@pytest.mark.parametrize("user", USERS)
def test_a_user_submits_and_reads_what_the_job_says(installed: Installed, user: str) -> None:
    """By the programs that were linked into everybody's path, from a log-in."""
    said = installed.login(user, "drf submit -w -m 32M -o said -- sh -c 'id -un; pwd'; cat said")
    job, *words = said.splitlines()
    assert job.startswith("submitted job ")
    assert words == [user, str(installed.work(user))]
    ended = installed.login(user, "drf submit -q -w -m 32M -- sh -c 'exit 3'", check=False)
    job_id, said = ended.splitlines()
    assert said == f"drf: job {job_id} FAILED: exit code 3"
    assert installed.show(int(job_id))["exit_code"] == 3


def test_a_job_attached_to_the_terminal_runs_as_the_user(installed: Installed) -> None:
    said = installed.login("carol", "echo question | drf run -m 32M -- sh -c 'cat; id -un'")
    assert said == "question\ncarol\n"


def test_the_manual_has_pages(installed: Installed) -> None:
    """Found by name and rendered, with every verb and every key in them."""
    drf = run("man", "drf", env={**os.environ, "MANWIDTH": "80"}).stdout
    assert "queue, watch and control batch jobs" in drf
    assert "drf submit" in drf and "drf shares" in drf
    assert "drfd install" in run("man", "8", "drfd").stdout
    assert "reserve_memory" in run("man", "drfd.toml").stdout


def test_bash_completes_verbs(installed: Installed) -> None:
    script = (
        "source /usr/local/share/bash-completion/completions/drf;"
        " COMP_WORDS=(drf sub); COMP_CWORD=1; _drf_completion drf; echo ${COMPREPLY[*]}"
    )
    assert installed.login("alice", script) == "submit\n"
