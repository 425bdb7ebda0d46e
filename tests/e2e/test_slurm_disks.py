"""A node of Slurm's with cgroup v2 keeps jobs to their disk rates, with what `drfd slurm-conf`
prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.slurm.files import MORE_CONF, Layout, files
from drfd.slurm.private import PrivateNode, PrivateSlurm
from drfd.slurm.settings import SLURM_CONF
from instance import CONFIG, Instance, wait_for
from slurm_cluster import missing

_CGROUPS = Path("/sys/fs/cgroup")
IS_V2 = (_CGROUPS / "cgroup.controllers").exists()
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        bool(missing()) or not IS_V2,
        reason=missing() or "cgroup v1: Slurm's jobs have no cgroup that limits disks",
    ),
]

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
def instance() -> Iterator[Instance]:
    whole = Instance(CONFIG)
    directory = whole.root / "cluster"
    directory.mkdir(mode=0o755)
    whole.config.write_text(CONFIG + MORE.format(node=NODE, directory=directory))
    state = whole.state / "slurm-launcher"
    slurm = PrivateSlurm(directory, [PrivateNode(NODE, 1, 256)])
    printed = files(Layout(directory, state / "events.sock", state / "started"))
    printed[MORE_CONF] = printed.pop(SLURM_CONF)
    try:
        slurm.start(printed)
        whole.start()
        wait_for("the node", lambda: node(whole)["state"] == "up")
        yield whole
    finally:
        try:
            whole.drf("cancel", "--all", check=False)
            slurm.stop()
            wait_for("no cgroup of Slurm's", lambda: scope() is None)
        finally:
            whole.destroy()


def node(instance: Instance) -> dict[str, object]:
    found = json.loads(instance.drf("nodes", "--json").stdout)["nodes"]
    return next(dict(each) for each in found if each["name"] == NODE)


def scope() -> Path | None:
    """Slurm's cgroup of all jobs of the node."""
    return next(iter(_CGROUPS.rglob(f"{NODE}_slurmstepd.scope")), None)


def seconds(instance: Instance, *words: str, how: str) -> float:
    """How long a job on the node takes to write 30 MiB."""
    script = WRITE.format(how=how)
    target = instance.work / "written"
    job_id = instance.submit(*words, *ON_NODE, "--", "sh", "-c", script, "sh", str(target))
    job = instance.wait_end(job_id, seconds=120)
    assert (job["state"], job["node"]) == ("COMPLETED", NODE), job
    return int(Path(job["stdout"]).read_text()) / 1000


def test_a_job_is_kept_to_its_rate_and_one_without_is_not(instance: Instance) -> None:
    slow_s = seconds(instance, "--io", "100M/4M", how=DIRECT)
    assert slow_s > LEAST_S
    assert seconds(instance, "--io", "100M/4M", how=BUFFERED) > LEAST_S
    # What others do with the disk only lengthens it.
    free_s = [seconds(instance, how=DIRECT)]
    while len(free_s) < 5 and free_s[-1] >= slow_s * 0.7:
        free_s.append(seconds(instance, how=DIRECT))
    assert free_s[-1] < slow_s * 0.7, (free_s, slow_s)
    wait_for("no cgroup of a job", lambda: (top := scope()) is None or not [*top.glob("job_*")])


def test_doctor_tells_that_rates_are_kept_there(instance: Instance) -> None:
    done = instance.drf("doctor", "--nodes", cwd=instance.work)
    assert f"node {NODE}: jobs are kept to their disk rates" in done.stdout.splitlines()
