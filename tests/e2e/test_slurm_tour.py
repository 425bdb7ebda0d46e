"""The README's tour on several machines: the daemon's own, and two of a real Slurm with cgroups."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from drfd.slurm.files import MORE_CONF, NAMES
from drfd.slurm.settings import SLURM_CONF
from instance import Instance, wait_for
from slurm_cluster import Cluster, missing
from tour import plain, take

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm"),
]

#: The larger job of the tour fits on the first node of Slurm's alone, and so does the other.
CONFIG = """
[capacity]
cores = 2
memory = "4G"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "200M"
write = "200M"
[enforcement]
grace = "1s"
[nodes.head]
engine = "local"
[nodes.{large}]
engine = "slurm"
cores = 8
memory = "6G"
[nodes.{small}]
engine = "slurm"
cores = 3
memory = "6G"
[slurm]
config = "{conf}"
user = "root"
"""
#: What `drf shares` prints of three machines, which have thirteen cores.
SHARES = """\
POOL OR USER  WEIGHT  ENTITLED  SHARE  DOMINANT  SATISFIED  CORES  MEM     IO R/W  RUN  WAIT ───
alice              1      100%    31%     cores        31%      4   1G          -    1     1
free                                                            9  15G  200M/200M
capacity                                                       13  16G  200M/200M
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(cores=8, memory_mb=8000)
    try:
        yield made
    finally:
        made.destroy()


@pytest.fixture
def instance(cluster: Cluster) -> Iterator[Instance]:
    """A daemon with the nodes of a Slurm that is configured as drfd prints it."""
    large, small = cluster.nodes
    instance = Instance(CONFIG.format(large=large, small=small, conf=cluster.conf))
    state = instance.state / "slurm-launcher"
    try:
        cluster.start(
            {
                MORE_CONF if name == SLURM_CONF else name: printed(cluster, name, state)
                for name in NAMES
            }
        )
        yield instance.start()
    finally:
        try:
            # While Slurm is there to end them.
            instance.drf("cancel", "--all", check=False)
            cluster.stop()
        finally:
            instance.destroy()


def printed(cluster: Cluster, name: str, state: object) -> str:
    """What `drfd slurm-conf` prints of a file."""
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-m", "drfd.daemon", "slurm-conf", name),
            *("--dir", str(cluster.directory), "--socket", f"{state}/events.sock"),
            *("--starts", f"{state}/started"),
        ],
        env=cluster.env, capture_output=True, text=True, timeout=60, cwd="/", check=True,
    )  # fmt: skip
    return done.stdout


def nodes_are_up(instance: Instance) -> bool:
    nodes = json.loads(instance.drf("nodes", "--json").stdout)["nodes"]
    return len(nodes) == 3 and all(node["state"] == "up" for node in nodes)


def test_the_tour_works_unchanged_on_several_machines(instance: Instance, cluster: Cluster) -> None:
    """Jobs of Slurm's nodes have a node and no measurements, and its words follow those of their
    own; all else is as on one machine."""
    wait_for("the nodes", lambda: nodes_are_up(instance))
    on_node = f"node       {cluster.nodes[0]}\nlimit  "
    ends = []
    for command, shown, said in take(instance):
        found = plain(said, instance.work)
        match command.split():
            case ["drf", "shares"]:
                expected = plain(SHARES, instance.work)
            case ["drf", "show", "1"]:
                assert shown.count("\nlimit  ") == 1
                expected = plain(shown.replace("limit  ", on_node), instance.work)
            case ["drf", "report"]:
                rows = [line.split()[:2] for line in said.splitlines()]
                assert [row for row in rows if row and row[0] in ("train", "fit")] == [
                    ["train", "1"],
                    ["fit", "4"],
                ]
                continue
            case ["drf", "submit", "-w", *_]:
                expected = plain(shown, instance.work)
                found = found[: len(expected)]
            case _:
                expected = plain(shown, instance.work)
        assert found == expected, command
        ends.append(command)
    # The last one printed the exit code of a job that has exceeded its memory.
    assert ends[-1] == "echo $?"
