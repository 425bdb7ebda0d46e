"""The scripts that Slurm runs at the start and the end of a job: one limits disk rates, one sends a
datagram and notes starts; neither fails. That the kernel keeps jobs to their rates is proved by
tests/e2e/test_slurm_nodes.py."""

import itertools
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from drfd.daemon.main import main
from drfd.slurm.files import disks_script, event_script

STARTED = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_COMMENT": "moon.12.1"}
ENDED = {"JOBID": "7", "JOBSTATE": "OUT_OF_MEMORY", "EXITCODE": "0:125", "NODES": "n1"}


def run(place: Path, env: dict[str, str], code: int = 0) -> None:
    """Run the script, which notes starts in the directory `its starts` if there is one."""
    script = place.parent / "drfd-event"
    script.write_text(event_script(place, place.parent / "its starts"))
    done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.skipif(not shutil.which("logger"), reason="no logger (bsdutils)")
def test_it_does_not_fail_where_nobody_listens(tmp_path):
    run(tmp_path / "nobody", STARTED)


@pytest.mark.skipif(not shutil.which("logger"), reason="no logger (bsdutils)")
@pytest.mark.slow
def test_it_does_not_wait_long_for_a_listener_that_does_not_read(tmp_path):
    place = tmp_path / "socket"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        listener.bind(str(place))
        # One sender may reach the limit of its own buffer before that of the listener's queue.
        while fill(place, stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))):
            pass
        began = time.monotonic()
        run(place, ENDED)
        assert 1 < time.monotonic() - began < 20


def fill(place: Path, sender: socket.socket) -> int:
    """Send datagrams until no more are taken from this sender, and return how many were."""
    sender.setblocking(False)
    for sent in itertools.count():
        try:
            sender.sendto(b"x", str(place))
        except BlockingIOError:
            return sent
    raise AssertionError


@pytest.fixture
def place(tmp_path) -> Path:
    """Of the socket, where nobody listens; notes of starts are beside it."""
    if not shutil.which("logger"):
        pytest.skip("no logger (bsdutils)")
    (tmp_path / "its starts").mkdir()
    return tmp_path / "nobody"


def noted(place: Path) -> dict[str, str]:
    return {link.name: str(link.readlink()) for link in (place.parent / "its starts").iterdir()}


@pytest.mark.slow
def test_it_fails_at_the_second_start_of_an_attempt_alone(place):
    run(place, STARTED)
    assert noted(place) == {"moon.12.1": "7", "7": "moon.12.1"}
    run(place, {**ENDED, "JOBSTATE": "NODE_FAIL"})
    run(place, STARTED, code=1)
    run(place, {**STARTED, "SLURM_JOB_ID": "8"}, code=1)
    run(place, {**STARTED, "SLURM_JOB_ID": "9", "SLURM_JOB_COMMENT": "moon.12.2"})
    assert noted(place) == {
        "7": "moon.12.1",
        "9": "moon.12.2",
        "moon.12.1": "7",
        "moon.12.1.7": "refused",
        "moon.12.1.8": "refused",
        "moon.12.2": "9",
    }


def test_it_fails_at_the_start_of_another_under_the_id_of_a_started_one(place):
    run(place, STARTED)
    second = {**STARTED, "SLURM_JOB_COMMENT": "moon.13.1"}
    run(place, second, code=1)
    # The other has not started, and does under an id of its own.
    run(place, {**second, "SLURM_JOB_ID": "8"})
    assert noted(place) == {
        "7": "moon.12.1",
        "8": "moon.13.1",
        "moon.12.1": "7",
        "moon.13.1": "8",
        "moon.13.1.7": "reused",
    }


def test_it_notes_the_end_of_an_attempt_that_has_started(place):
    run(place, ENDED)
    assert noted(place) == {}
    run(place, STARTED)
    run(place, {**ENDED, "JOBSTATE": "CANCELLED"})
    assert noted(place) == {"moon.12.1": "7", "7": "moon.12.1"}
    run(place, {**ENDED, "JOBSTATE": "FAILED", "EXITCODE": "3:0"})
    assert noted(place)["moon.12.1.ended"] == "FAILED:3:0"


def test_an_attempt_may_start_whose_id_was_noted_before_a_kill(place):
    (place.parent / "its starts" / "7").symlink_to("moon.12.1")
    run(place, STARTED)
    assert noted(place) == {"7": "moon.12.1", "moon.12.1": "7"}


@pytest.mark.parametrize(
    "comment", ["../x.1.1", "a/b.1.1", "$(id).1.1", ".1.1", "a..1", "a.1.", ""]
)
def test_a_comment_that_names_no_attempt_is_no_path(place, comment):
    for _ in range(2):
        run(place, {**STARTED, "SLURM_JOB_COMMENT": comment})
    assert noted(place) == {}
    assert sorted(path.name for path in place.parent.iterdir()) == ["drfd-event", "its starts"]


# -- disk rates ---------------------------------------------------------------------------


RATED_JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
RATED = {**RATED_JOB, "SLURM_JOB_COMMENT": "moon.12.1.5000.0"}


@pytest.fixture
def scope(tmp_path) -> Path:
    """Slurm's cgroup of all jobs, on a node with a disk and a loop device without a file."""
    for name, number, sectors in (("sda", "8:0", "2048"), ("loop0", "7:0", "0")):
        device = tmp_path / "block" / name
        device.mkdir(parents=True)
        (device / "dev").write_text(f"{number}\n")
        (device / "size").write_text(f"{sectors}\n")
    cgroups = tmp_path / "fs" / "cgroup"
    made = cgroups / "system.slice" / "slurmstepd.scope"
    made.mkdir(parents=True)
    (cgroups / "cgroup.controllers").write_text("cpu io memory\n")
    return made


def run_disks(sys: Path, env: dict[str, str]) -> None:
    """Run the script, which never fails."""
    script = sys / "drfd-disks"
    script.write_text(disks_script(sys))
    done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("rates", "limits"),
    [("5000.0", "rbps=5000 wbps=max"), ("0.3000", "rbps=max wbps=3000"), ("1.2", "rbps=1 wbps=2")],
)
def test_each_disk_gets_the_rates_of_the_comment(tmp_path, scope, rates, limits):
    run_disks(tmp_path, {**RATED_JOB, "SLURM_JOB_COMMENT": f"moon.12.1.{rates}"})
    assert (scope / "job_7" / "io.max").read_text() == f"8:0 {limits}\n"
    assert (scope / "cgroup.subtree_control").read_text() == "+io\n"


def test_what_another_job_with_this_id_has_left_does_not_hold(tmp_path, scope):
    run_disks(tmp_path, RATED)
    run_disks(tmp_path, {**RATED_JOB, "SLURM_JOB_COMMENT": "moon.13.1"})
    assert (scope / "job_7" / "io.max").read_text() == "8:0 rbps=max wbps=max\n"


def test_the_cgroup_of_this_node_comes_before_one_for_all(tmp_path, scope):
    """As Slurm names it where several slurmd may be on one machine."""
    own = scope.with_name("n1_slurmstepd.scope")
    own.mkdir()
    run_disks(tmp_path, RATED)
    assert ([*scope.iterdir()], (own / "job_7" / "io.max").exists()) == ([], True)


def test_at_the_end_an_empty_cgroup_is_removed_and_no_other(tmp_path, scope):
    ended = {**RATED, "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}
    run_disks(tmp_path, ended)
    (scope / "job_7").mkdir()
    (scope / "job_7" / "step_batch").mkdir()
    run_disks(tmp_path, ended)
    assert (scope / "job_7").exists()
    (scope / "job_7" / "step_batch").rmdir()
    run_disks(tmp_path, ended)
    assert not (scope / "job_7").exists()


def test_it_does_nothing_without_cgroup_v2_or_slurms_cgroup(tmp_path, scope):
    cgroups = scope.parents[1]
    (cgroups / "cgroup.controllers").unlink()
    run_disks(tmp_path, RATED)
    assert [*scope.iterdir()] == []
    (cgroups / "cgroup.controllers").touch()
    scope.rmdir()
    run_disks(tmp_path, RATED)
    run_disks(tmp_path, {})
    assert [*scope.parent.iterdir()] == []


# -- drfd slurm-conf ----------------------------------------------------------------------


def test_lines_name_the_scripts_in_the_directory(capsys):
    main(["slurm-conf", "slurm.conf", "--dir", "/opt/slurm/etc"])
    lines = capsys.readouterr().out.splitlines()
    assert {"PrologSlurmctld=/opt/slurm/etc/drfd-event", "Epilog=/opt/slurm/etc/drfd-disks"} < {
        *lines
    }
