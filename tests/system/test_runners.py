"""The process of root's that waits for a job: what it can still do, and that it does it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drfd.launcher.runner import privileges
from instance import CONFIG, Accounts, Instance, wait_for

pytestmark = pytest.mark.system


if privileges.program() is None or privileges.why_no_filter() is not None:
    pytest.skip("no filter of system calls can be had here", allow_module_level=True)


@pytest.fixture
def home(instance: Instance, users: Accounts) -> Path:
    return home_for(instance, users)


def home_for(instance: Instance, users: Accounts) -> Path:
    found = instance.root / "home"
    found.mkdir()
    os.chown(found, users[0].pw_uid, users[0].pw_gid)
    return found


def restricted_runner(instance: Instance, job_id: int, home: Path) -> int:
    """The runner of a job that writes the pid of its parent into `runner`, once it has dropped its
    privileges."""
    pid = int(wait_for("the runner's pid", lambda: (home / "runner").exists()
                       and (home / "runner").read_text()))  # fmt: skip
    wait_for("a runner without privileges", lambda: status_of(pid)["Seccomp"] == "2")
    return pid


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_runner_of_a_job_that_runs_can_do_little_but_kill(
    instance: Instance, users: Accounts, home: Path
) -> None:
    """It had all of root's rights and all system calls for the whole life of its job. The job gets
    none of that: set-user-id programs work there, by its whole bounding set."""
    script = (
        "grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/self/status; echo $PPID > runner; sleep 600"
    )
    job_id = instance.submit("--", "sh", "-c", script, user=users[0].pw_uid, cwd=home)
    instance.wait_state(job_id, "RUNNING")
    status = status_of(restricted_runner(instance, job_id, home))
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert {status["CapEff"], status["CapPrm"]} == {f"{1 << privileges.KILL:016x}"}
    theirs = dict(line.split(":\t") for line in instance.output(job_id).splitlines())
    mine = status_of(os.getpid())
    assert theirs == {name: mine[name] for name in ("NoNewPrivs", "Seccomp", "CapBnd")}


def test_a_runner_without_privileges_sweeps_after_a_cancel_and_keeps_the_record(
    lend: Callable[[str], Instance], users: Accounts
) -> None:
    """With so long a grace time that its trap is run also where it is kept waiting."""
    instance = lend(CONFIG.replace('grace = "1s"', 'grace = "30s"'))
    home = home_for(instance, users)
    script = "trap 'exit 5' TERM; (setsid sleep 600 & echo $! > left); echo $PPID > runner; "
    script += "while :; do sleep 0.1; done"
    job_id = instance.submit("--", "sh", "-c", script, user=users[0].pw_uid, cwd=home)
    instance.wait_state(job_id, "RUNNING")
    restricted_runner(instance, job_id, home)
    instance.drf("cancel", job_id, user=users[0].pw_uid)
    job = instance.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("CANCELLED", 5)
    left = int((home / "left").read_text())
    wait_for("the end of all", lambda: not Path(f"/proc/{left}").exists())
    wait_for("an empty place", lambda: instance.cgroups() == [])


#: Waits until it may, and then takes more memory than the job has.
GREEDY = """
import os, subprocess, sys, time
open("runner", "w").write(f"{os.getppid()}\\n")
subprocess.Popen(["sleep", "600"], start_new_session=True)
while not os.path.exists("go"):
    time.sleep(0.05)
subprocess.run([sys.executable, "-c", "x = bytearray(300 << 20); import time; time.sleep(60)"])
time.sleep(600)
"""


def test_a_runner_without_privileges_ends_a_job_that_is_out_of_memory(
    instance: Instance, users: Accounts, home: Path
) -> None:
    """The kernel kills one process; the runner takes the rest, and tells why."""
    if not instance.has_cgroups():
        pytest.skip("memory is only measured here")
    (home / "greedy.py").write_text(GREEDY)
    job_id = instance.submit(
        "--mem", "100M", "--", sys.executable, "greedy.py", user=users[0].pw_uid, cwd=home
    )
    instance.wait_state(job_id, "RUNNING")
    restricted_runner(instance, job_id, home)
    (home / "go").touch()
    assert instance.wait_end(job_id)["state"] == "OUT_OF_MEMORY"


def test_jobs_go_on_one_after_the_other_when_each_takes_its_runner_along(
    instance: Instance, users: Accounts, home: Path
) -> None:
    for number in range(3):
        job_id = instance.submit(
            "--", "sh", "-c", f"sleep 1.5; exit {number}", user=users[0].pw_uid, cwd=home
        )
        job = instance.wait_end(job_id)
        assert job["exit_code"] == number
