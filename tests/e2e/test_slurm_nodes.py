"""The daemon's own machine and two nodes of a real Slurm, and one that limits disks."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drfd.slurm.files import MORE_CONF, Layout, files
from drfd.slurm.settings import SLURM_CONF
from instance import Instance, wait_for
from private_slurm import CONFIG, PlainCluster, PrivateNode, PrivateSlurm, a_slurm_of, missing

_CGROUPS = Path("/sys/fs/cgroup")
has_slurm = pytest.mark.skipif(bool(missing()), reason=missing())
limits_disks = pytest.mark.skipif(
    not (_CGROUPS / "cgroup.controllers").exists(),
    reason="cgroup v1: Slurm's jobs have no cgroup that limits disks",
)
pytestmark = [pytest.mark.skipif(os.getuid() != 0, reason="only root's daemon has Slurm's nodes")]

LITTLE = ("-c", "1", "-m", "64M")
#: Fits on a node of Slurm's, and not on the daemon's own machine.
BIG = ("-c", "3", "-m", "256M")
#: Says which node it is on: Slurm's steps have this variable.
WHERE = 'echo "on ${SLURMD_NODENAME:-head}"'


def nodes_of(instance: Instance) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in instance._ask("nodes")["nodes"]}


def why(instance: Instance, job_id: int) -> dict[str, Any]:
    return dict(instance._ask("why", id=job_id)["job"]["reason"])


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Instance, PlainCluster]]:
    """A daemon with a Slurm of its own, both of which all tests of the module have."""
    instance = Instance(CONFIG)
    with a_slurm_of(instance) as cluster:
        yield instance.start(), cluster


@pytest.fixture
def cluster(service) -> PlainCluster:
    return service[1]


@pytest.fixture
def instance(service) -> Iterator[Instance]:
    whole, _ = service
    wait_for("all nodes", lambda: all(node["state"] == "up" for node in nodes_of(whole).values()))
    yield whole
    whole.restart_if_dead()
    for node in ("n1", "n2"):
        whole.drf("undrain", "--node", node)
    whole.drf("cancel", "--all", check=False)
    wait_for("no jobs", lambda: not whole.status())
    for path in whole.work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def slurm(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.system(has_slurm(test))


@slurm
def test_jobs_run_on_the_nodes_that_have_room_and_all_lists_name_these(instance):
    asked = (*BIG, "-n", "where", "--", "sh", "-c", f"{WHERE}; sleep 1000")
    ids = [instance.submit(*asked) for _ in range(2)]
    jobs = [instance.wait_state(job_id, "RUNNING") for job_id in ids]
    assert sorted(job["node"] for job in jobs) == ["n1", "n2"]
    assert {job["id"]: job["node"] for job in instance.status()} == {
        job["id"]: job["node"] for job in jobs
    }
    for job in jobs:
        # Slurm says that a job runs before the node has opened its output.
        log = ("log", job["id"])
        wait_for("its output", lambda log=log: instance.drf(*log, check=False).stdout)
        assert instance.drf(*log).stdout == f"on {job['node']}\n"
        assert f"node       {job['node']}\n" in instance.drf("show", job["id"]).stdout
    found = nodes_of(instance)
    assert [*found] == ["head", "n1", "n2"]
    for name in ("n1", "n2"):
        assert (found[name]["running"], found[name]["allocated"]["cores"]) == (1, 3)
        assert (found[name]["state"], found[name]["engine"]) == ("up", "slurm")
    assert (found["head"]["running"], found["head"]["engine"]) == (0, "local")

    # The third finds no node with so many cores.
    third = instance.submit(*asked)
    assert why(instance, third)["code"] == "RESOURCES"
    instance.drf("cancel", ids[0])
    assert instance.wait_end(ids[0])["state"] == "CANCELLED"
    assert instance.wait_state(third, "RUNNING")["node"] == jobs[0]["node"]
    past = json.loads(instance.drf("history", "--json", "--last", "1").stdout)["jobs"]
    assert [(job["id"], job["node"], job["state"]) for job in past] == [
        (ids[0], jobs[0]["node"], "CANCELLED")
    ]


@slurm
def test_a_job_may_name_its_node_or_what_that_must_have(instance):
    script = ("--", "sh", "-c", f"{WHERE}; exit 3")
    asked = {
        instance.submit(*LITTLE, *words, *script): node
        for words, node in (
            (("--node", "n2"), "n2"),
            (("--node", "n1"), "n1"),
            (("--node", "head"), "head"),
            (("--constraint", "fast"), "n2"),
            (("--constraint", "big,fast"), "n2"),
        )
    }
    lines = "#!/bin/sh\n#SBATCH -w n1 -c 1 --mem=64M\n#SBATCH -C big\n"
    done = instance.drf("sbatch", "--parsable", input=f"{lines}{WHERE}\n")
    for job_id, node in asked.items():
        job = instance.wait_end(job_id)
        assert (job["node"], job["state"], job["exit_code"]) == (node, "FAILED", 3), job
        assert instance.output(job_id) == f"on {node}\n"
    job = instance.wait_end(int(done.stdout))
    assert (job["node"], job["only_node"], job["features"]) == ("n1", "n1", ["big"])
    assert instance.output(job["id"]) == "on n1\n"


@slurm
def test_what_no_node_has_is_refused_in_one_line(instance):
    for words, said in (
        (("--node", "n7"), "there is no node 'n7' (there are head, n1, n2)"),
        (
            ("--node", "n1", "-c", "0.5"),
            "node n1 gives whole cores to jobs, and the job asks for a part of one (not queued; "
            "write -c 1)",
        ),
        (
            ("--node", "n1", "--output-max", "1M"),
            "--output-max is for jobs on head alone, not on n1 (submit it without that, or leave "
            "out --node n1)",
        ),
    ):
        done = instance.drf("submit", *words, "--", "true", check=False)
        assert (done.returncode, done.stderr) == (1, f"drf: {said}\n")
    assert instance.status() == []


@slurm
def test_what_drfd_itself_keeps_of_a_job_stays_on_its_own_machine(instance):
    done = instance.drf("run", "-q", *LITTLE, "--", "sh", "-c", WHERE)
    assert done.stdout == "on head\n"
    # Slurm gives out whole cores: half of one is counted on the daemon's own machine alone.
    for words in (("-c", "0.5"), ("--output-max", "1M")):
        assert instance.ended("-m", "64M", *words, "--", "sh", "-c", WHERE)["node"] == "head"
    there = instance.running("--node", "n1", "-m", "64M", "--", "sleep", "1000")["id"]
    inside = instance.drf("exec", there, "--", "true", check=False)
    assert (inside.returncode, inside.stderr) == (
        1,
        f"drf: job {there} runs on node n1, and commands run inside jobs of the daemon's own "
        "machine alone\n",
    )
    instance.drf("cancel", there)
    instance.wait_end(there)


@slurm
def test_nothing_starts_on_a_node_that_is_drained_until_it_is_undrained(instance):
    runs = instance.running(*BIG, "--node", "n1", "--", "sleep", "1000")["id"]
    instance.drf("drain", "--node", "n1", "--reason", "new fan")
    node = nodes_of(instance)["n1"]
    assert (node["state"], node["text"], node["running"]) == ("drained", "new fan", 1)
    assert (node["drain"]["reason"], node["drain"]["since"]) == ("new fan", node["since"])
    assert "n1 is drained: new fan\n" in instance.drf("nodes").stdout
    waits = instance.submit(*LITTLE, "--node", "n1", "--", "true")
    reason = why(instance, waits)
    assert reason["code"] == "DRAINING"
    assert "node n1 was drained by root at" in reason["text"] and "new fan" in reason["text"]
    # The other nodes go on, and so does what runs.
    assert instance.ended(*BIG, "--", "true")["node"] == "n2"
    assert instance.show(runs)["state"] == "RUNNING"
    instance.drf("undrain", "--node", "n1")
    assert instance.wait_end(waits)["state"] == "COMPLETED"
    assert nodes_of(instance)["n1"]["state"] == "up"


@slurm
def test_a_suspended_job_leaves_the_cores_of_its_node_to_others(instance):
    first = instance.running(*BIG, "--node", "n1", "--", "sh", "-c", f"{WHERE}; sleep 1000")["id"]
    instance.drf("suspend", first)
    instance.wait_state(first, "SUSPENDED")
    assert instance.ended(*BIG, "--node", "n1", "--", "sh", "-c", WHERE)["state"] == "COMPLETED"
    instance.drf("resume", first)
    instance.wait_state(first, "RUNNING")
    instance.drf("cancel", first)
    assert instance.wait_end(first)["state"] == "CANCELLED"


@slurm
def test_a_node_that_slurm_has_drained_starts_nothing_and_all_screens_say_why(instance, cluster):
    cluster.ask("scontrol", "update", "nodename=n1", "state=drain", "reason=new fan")
    try:
        resume = "scontrol update NodeName=n1 State=RESUME ends that"
        said = f"Slurm says that it is drained: new fan ({resume})"
        wait_for("a word of it", lambda: nodes_of(instance)["n1"]["text"] == said)
        assert nodes_of(instance)["n1"]["state"] == "away"
        assert f"n1 is away: {said}\n" in instance.drf("nodes").stdout
        assert f"warning: no job starts on node n1: {said}\n" in instance.drf("doctor").stdout
        lines = instance.drf("top", "--once").stdout.splitlines()
        assert [line.split()[0] for line in lines if line.rstrip().endswith(" away")] == ["n1"]
        waits = instance.submit(*LITTLE, "--node", "n1", "--", "true")
        assert why(instance, waits)["code"] == "NODE_AWAY"
        beside = instance.submit(*BIG, "--", "true")
        assert instance.wait_end(beside)["node"] == "n2"
        assert instance.show(waits)["state"] == "PENDING"
    finally:
        cluster.ask("scontrol", "update", "nodename=n1", "state=resume")
    assert instance.wait_end(waits)["state"] == "COMPLETED"


@slurm
def test_a_job_whose_node_goes_down_is_lost_and_retried_on_another(instance, cluster):
    script = "echo $SLURMD_NODENAME >> ran; while ! [ -e gate ]; do sleep 0.1; done"
    asked = (*BIG, "--constraint", "big")
    retried = instance.submit(
        *asked, "--retry", "1", "--retry-on", "lost", "--", "sh", "-c", script
    )
    first = instance.wait_state(retried, "RUNNING")["node"]
    plain = instance.submit(*BIG, "--", "sleep", "1000")
    other = instance.wait_state(plain, "RUNNING")["node"]
    assert {first, other} == {"n1", "n2"}
    wait_for("its first line", (instance.work / "ran").exists)
    instance.drf("cancel", plain)
    instance.wait_end(plain)
    cluster.ask("scontrol", "update", f"nodename={first}", "state=down", "reason=test")
    job = wait_for("its retry", lambda: _second_attempt(instance, retried))
    # Slurm takes the node back as soon as its slurmd says that it is there.
    (instance.work / "gate").touch()
    job = instance.wait_end(retried)
    assert (job["state"], job["attempt"]) == ("COMPLETED", 2), job
    assert (instance.work / "ran").read_text().splitlines() == [first, job["node"]]
    wait_for("idle nodes", cluster.are_idle)


def _second_attempt(instance: Instance, job_id: int) -> dict[str, Any] | None:
    job = instance.show(job_id)
    return job if job["attempt"] == 2 and job["state"] in ("RUNNING", "COMPLETED") else None


@slurm
def test_a_job_that_its_user_ends_by_scancel_has_failed(instance, cluster):
    runs = instance.running(*BIG, "--node", "n1", "--", "sleep", "1000")["id"]
    (own,) = (name for name, state, _ in cluster.jobs() if state == "RUNNING")
    cluster.ask("scancel", own)
    job = instance.wait_end(runs)
    assert (job["state"], job["node"]) == ("FAILED", "n1"), job["outcome"]


@slurm
def test_while_slurmctld_is_dead_the_own_machine_goes_on_and_nothing_is_lost(instance, cluster):
    script = "echo x >> ran; while ! [ -e gate ]; do sleep 0.1; done; exit 5"
    runs = instance.running(*BIG, "--node", "n1", "--", "sh", "-c", script)["id"]
    wait_for("its first line", (instance.work / "ran").exists)
    cluster.kill("slurmctld")
    try:
        waits = instance.submit(*LITTLE, "--node", "n2", "--", "sh", "-c", WHERE)
        here = instance.submit(*LITTLE, "--node", "head", "--", "true")
        assert instance.wait_end(here)["state"] == "COMPLETED"
        wait_for("a word of it", lambda: nodes_of(instance)["n2"]["state"] == "away")
        assert nodes_of(instance)["n2"]["text"].startswith("slurmctld does not answer")
        assert nodes_of(instance)["head"]["state"] == "up"
        assert instance.show(runs)["state"] == "RUNNING"
    finally:
        cluster.start_controller()
    # Perhaps not as its first attempt: slurmctld may have given it the id of the one that runs.
    assert instance.wait_end(waits)["state"] == "COMPLETED"
    assert instance.output(waits) == "on n2\n"
    (instance.work / "gate").touch()
    job = instance.wait_end(runs)
    assert (instance.work / "ran").read_text() == "x\n"
    assert (job["state"], job["attempt"]) in (("FAILED", 1), ("LOST", 1)), job


@pytest.fixture
def without_slurm(make_instance) -> Instance:
    """A daemon that finds no Slurm where its configuration says."""
    return make_instance(f'{CONFIG}[slurm]\ncommands = "/nonexistent"\nuser = "root"\n').start()


def test_a_job_of_a_node_without_launcher_waits_and_the_reason_names_the_node(without_slurm):
    found = nodes_of(without_slurm)
    assert {name: node["state"] for name, node in found.items()} == {
        "head": "up", "n1": "away", "n2": "away",
    }  # fmt: skip
    assert found["n1"]["since"] is not None and found["head"]["since"] is None
    waits = without_slurm.submit(*LITTLE, "--node", "n1", "--", "true")
    reason = why(without_slurm, waits)
    assert reason["code"] == "NODE_AWAY"
    assert reason["text"].startswith("node n1 has been away since ")
    # The daemon's own machine goes on.
    here = without_slurm.submit(*LITTLE, "--", "true")
    assert without_slurm.wait_end(here)["node"] == "head"
    without_slurm.drf("cancel", waits)
    assert without_slurm.wait_end(waits)["state"] == "CANCELLED"


# -- a node that limits disks ------------------------------------------------------------------

NODE = "drfdtest1"
ON_NODE = ("--node", NODE, "-m", "128M")
MORE = """
[nodes.head]
engine = "local"
[nodes.{node}]
engine = "slurm"
cores = 1
memory = "256M"
read = "200M"
write = "200M"
[slurm]
config = "{directory}/slurm.conf"
user = "root"
"""
#: Writes 30 MiB and prints how many milliseconds that takes.
WRITE = """
begin=$(date +%s%N)
dd if=/dev/zero of="$1" bs=1M count=30 status=none {how}
echo $((($(date +%s%N) - begin) / 1000000))
"""
DIRECT, BUFFERED = "oflag=direct", "conv=fdatasync"
#: Seconds in which 30 MiB cannot be written at 4 MiB in a second.
LEAST_S = 6.0


@pytest.fixture(scope="module")
def limited() -> Iterator[Instance]:
    """One whose Slurm has the files that `drfd slurm-conf` prints, and limits disks."""
    made = Instance()
    directory = made.root / "cluster"
    directory.mkdir(mode=0o755)
    made.config.write_text(made.configured + MORE.format(node=NODE, directory=directory))
    state = made.state / "slurm-launcher"
    slurm = PrivateSlurm(directory, [PrivateNode(NODE, 1, 256)])
    printed = files(Layout(directory, state / "events.sock", state / "started"))
    printed[MORE_CONF] = printed.pop(SLURM_CONF)
    try:
        slurm.start(printed)
        made.start()
        wait_for("the node", lambda: nodes_of(made)[NODE]["state"] == "up")
        yield made
    finally:
        try:
            made.drf("cancel", "--all", check=False)
            slurm.stop()
            wait_for("no cgroup of Slurm's", lambda: scope() is None)
        finally:
            made.destroy()


def scope() -> Path | None:
    """Slurm's cgroup of all jobs of the node."""
    return next(iter(_CGROUPS.rglob(f"{NODE}_slurmstepd.scope")), None)


def seconds(instance: Instance, *words: str, how: str) -> float:
    """How long a job on the node takes to write 30 MiB."""
    script = WRITE.format(how=how)
    target = instance.work / "written"
    job = instance.ended(*words, *ON_NODE, "--", "sh", "-c", script, "sh", target)
    assert (job["state"], job["node"]) == ("COMPLETED", NODE), job
    return int(Path(job["stdout"]).read_text()) / 1000


@slurm
@limits_disks
def test_a_job_is_kept_to_its_rate_and_one_without_is_not(limited):
    slow_s = seconds(limited, "--io", "100M/4M", how=DIRECT)
    assert slow_s > LEAST_S
    assert seconds(limited, "--io", "100M/4M", how=BUFFERED) > LEAST_S
    # What others do with the disk only lengthens it.
    free_s = [seconds(limited, how=DIRECT)]
    while len(free_s) < 5 and free_s[-1] >= slow_s * 0.7:
        free_s.append(seconds(limited, how=DIRECT))
    assert free_s[-1] < slow_s * 0.7, (free_s, slow_s)
    wait_for("no cgroup of a job", lambda: (top := scope()) is None or not [*top.glob("job_*")])
