"""What `drfd slurm-conf` prints, in a Slurm that runs: it is accepted, and it does what it says."""

import pwd
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.slurm.files import MORE_CONF, NAMES
from drfd.slurm.settings import SLURM_CONF
from instance import wait_for
from private_slurm import Cluster, missing

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm"),
]

NOBODY = pwd.getpwnam("nobody").pw_uid
#: Each file by its name as it is printed → its name here.
STORED = {name: MORE_CONF if name == SLURM_CONF else name for name in NAMES}
SENTENCE = "drfd decides what runs here: submit jobs with drf submit or drf run"


def slurm_conf(where: Path, name: str) -> str:
    command = [sys.executable, "-I", "-m", "drfd.daemon", "slurm-conf", name]
    places = ["--dir", str(where), "--socket", str(where / "events")]
    places += ["--starts", str(where / "starts")]
    return subprocess.run(
        [*command, *places], stdout=subprocess.PIPE, text=True, timeout=60, cwd="/", check=True
    ).stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Slurm with nothing but what is printed, and the lines that say where it is."""
    made = Cluster()
    try:
        made.start(printed(made))
        yield made
    finally:
        made.destroy()


def printed(cluster: Cluster) -> dict[str, str]:
    """What is printed, by the names of the files."""
    return {stored: slurm_conf(cluster.directory, name) for name, stored in STORED.items()}


@pytest.fixture
def events(cluster) -> Iterator[socket.socket]:
    place = cluster.directory / "events"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(place))
        listener.settimeout(30)
        yield listener
    place.unlink()


def next_event(listener: socket.socket) -> str:
    return listener.recv(4096).decode().partition(" drfd-slurm: ")[2]


def submit(cluster: Cluster, comment: str, script: str) -> str:
    """Submit a job of nobody's as drfd does, and return Slurm's id."""
    done = cluster.run(
        *("sbatch", "--parsable", f"--uid={NOBODY}", f"--gid={NOBODY}", f"--comment={comment}"),
        *(f"--nodelist={cluster.nodes[1]}", "--mem=100M", "--time=5", "--export=ALL"),
        f"--output={cluster.directory}/out/{comment}",
        stdin=f"#!/bin/sh\n{script}\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_slurm_accepts_the_files_and_has_their_settings(cluster):
    lines = (cluster.directory / "drfd.conf").read_text().splitlines()
    lines += (cluster.directory / "cgroup.conf").read_text().splitlines()
    wanted = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    del wanted["PartitionName"]
    shown: dict[str, str] = {}
    for line in cluster.run("scontrol", "show", "config").stdout.splitlines():
        name, _, value = line.partition("=")
        # Newer versions show several, as `Prolog[0]`; a plugin that does nothing as "(null)".
        value = re.sub(r" sec$", "", value.strip()).replace("(null)", "preempt/none")
        shown[name.partition("[")[0].strip()] = value
    found = {name: shown.get(name, "") for name in wanted}
    assert {name: value.lower() for name, value in found.items()} == {
        name: value.lower() for name, value in wanted.items()
    }
    complaint = re.compile(r"unrecognized|invalid|ignor|more than once|deprecated|lua", re.I)
    for name in ("slurmctld", *cluster.nodes):
        lines = [line for line in cluster.said(name).splitlines() if complaint.search(line)]
        assert lines == [], name


def test_a_user_cannot_submit_past_drfd(cluster):
    """Not with the comment of an attempt either."""
    for command in (
        ["sbatch", "--wrap=id"],
        ["sbatch", "--comment=moon.1.1", "--wrap=id"],
        ["sbatch", "--array=1-3", "--comment=moon.1.1", "--wrap=id"],
        ["srun", "--comment=moon.1.1", "id"],
        ["salloc", "--comment=moon.1.1", "id"],
    ):
        done = cluster.run(*command, uid=NOBODY)
        assert done.returncode != 0
        assert SENTENCE in done.stderr
    assert cluster.run("squeue", "-h", "-t", "all", "-o", "%u %k").stdout.count("nobody") == 0


def test_a_job_of_roots_without_an_attempt_is_refused_too(cluster):
    for comment in ([], ["--comment=important"]):
        done = cluster.run("sbatch", *comment, "--wrap=id")
        assert (done.returncode, done.stdout) == (1, "")
        assert SENTENCE in done.stderr


def test_drfds_job_runs_as_its_user_and_drfd_hears_of_it(cluster, events):
    number = submit(cluster, "moon.12.1", "id -u; cat /proc/self/cgroup; exit 7")
    node = cluster.nodes[1]
    assert next_event(events) == f"start {number} {node} moon.12.1"
    assert next_event(events) == f"end {number} 7:0 {node} FAILED"
    output = (cluster.directory / "out" / "moon.12.1").read_text()
    assert output.splitlines()[0] == str(NOBODY)
    # Slurm keeps the job to its resources by a cgroup of its own.
    assert re.search(rf":(cpuset|memory|):/.*{node}.*/job_{number}/", output)


def test_a_user_may_cancel_a_job_but_not_change_it(cluster, events):
    number = submit(cluster, "moon.13.1", "sleep 60")
    assert next_event(events).startswith("start ")
    for change in ("TimeLimit=1", "Comment=moon.99.1", "JobName=other"):
        done = cluster.run("scontrol", "update", f"JobId={number}", change, uid=NOBODY)
        assert (done.returncode, done.stderr) == (1, f"Access/permission denied for job {number}\n")
    # Slurm would start it a second time.
    assert cluster.run("scontrol", "requeue", number, uid=NOBODY).returncode != 0
    shown = cluster.run("squeue", "-h", "-j", number, "-o", "%k %l %T").stdout
    assert shown == "moon.13.1 5:00 RUNNING\n"
    assert cluster.run("scancel", number, uid=NOBODY).returncode == 0
    # The exit code is that of the shell, if it has one by then.
    end = rf"end {number} 0:\d+ {cluster.nodes[1]} CANCELLED"
    assert re.fullmatch(end, next_event(events))


def states_of(cluster: Cluster) -> list[str]:
    """The states of all jobs that have not ended, in the order of their submission."""
    shown = cluster.run("squeue", "-h", "--sort=i", "-o", "%T").stdout
    return shown.split()


def test_with_cpus_alone_as_many_jobs_run_as_there_are_cpus(cluster):
    wait_for("an empty list", lambda: states_of(cluster) == [])
    for number in range(21, 25):
        submit(cluster, f"moon.{number}.1", "sleep 1000")
    wait_for("all of them", lambda: states_of(cluster) == ["RUNNING"] * 4)
    cluster.run("scancel", "--full", "--user=nobody")
    wait_for("their end", lambda: states_of(cluster) == [])
