"""What `drfd slurm-conf` prints, in a Slurm that runs: it is accepted, and it does what it says."""

import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.slurm.files import MORE_CONF, NAMES
from drfd.slurm.settings import SLURM_CONF
from instance import wait_for
from private_slurm import PrivateNode, PrivateSlurm, files_without_limits
from slurm_cluster import Cluster, missing, processes_of

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


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="drfd-slurm-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_it_has_the_nodes_it_is_told_and_leaves_no_process(place):
    nodes = [PrivateNode("small", 1, 500), PrivateNode("large", 16, 64000)]
    slurm = PrivateSlurm(place, nodes)
    files = files_without_limits(place, place / "events", place / "starts")
    (place / "starts").mkdir()
    try:
        slurm.start(files)
        words = "%N %c %m"
        assert sorted(slurm.ask("sinfo", "-h", "-N", "-o", words).splitlines()) == [
            "large 16 64000",
            "small 1 500",
        ]
        slurm.ask(
            *("sbatch", "--comment=a.1.1", f"--output={place}/out", "--export=ALL"),
            *("--nodelist=large", "--wrap=sleep 1000"),
        )
        assert processes_of(place) != []
    finally:
        slurm.stop()
    assert processes_of(place) == []


def test_no_process_of_a_job_outlives_it_where_slurmctld_has_died(place):
    slurm = PrivateSlurm(place, [PrivateNode("n1", 1, 500)])
    (place / "starts").mkdir()
    try:
        slurm.start(files_without_limits(place, place / "events", place / "starts"))
        slurm.ask(
            *("sbatch", "--comment=a.1.1", f"--output={place}/out", "--export=ALL"),
            "--wrap=trap '' TERM; sleep 1000 & wait",
        )
        wait_for("the job", lambda: any("sleep 1000" in each for each in processes_of(place)))
        slurm.kill("slurmctld")
    finally:
        slurm.stop()
    assert processes_of(place) == []


def test_why_it_does_not_start_is_told_in_one_line(place):
    slurm = PrivateSlurm(place, [PrivateNode("n1", 1, 500)])
    files = files_without_limits(place, place / "events", place / "starts")
    files[MORE_CONF] += "SelectType=select/nonsense\n"
    try:
        with pytest.raises(HostError) as caught:
            slurm.start(files)
    finally:
        slurm.stop()
    assert caught.value.text.startswith("a private Slurm does not start: ")
    assert "\n" not in caught.value.text
    assert processes_of(place) == []
