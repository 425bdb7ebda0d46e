"""The three nodes of `drf demo cluster`: a private Slurm with two, a private drfd over all three,
the runs of the DRF paper's experiments on them, and the same in the simulator."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from drfd.client.connection import Connection
from drfd.common.errors import HostError
from drfd.common.units import exact_size, show_size
from drfd.slurm import private
from drfd.slurm.private import PrivateNode, PrivateSlurm
from drfd_cli.demo import private_daemon
from drfd_cli.demo.private_daemon import Scale
from drfd_experiments import macro, sharing
from drfd_experiments.cluster import Batch, Cluster, SharingScheme, run, vector
from drfd_experiments.commands import fig8
from drfd_experiments.commands.fig9 import users_of_demo
from drfd_experiments.macro import LARGE, NODE, SMALL
from drfd_experiments.sharing import JOBS, Shares, simulate

#: Name → engine.
NODES = {"head": "local", "n1": "slurm", "n2": "slurm"}
_SLURMS = [name for name, engine in NODES.items() if engine == "slurm"]
#: What each node has for Slurm: more than drfd gives out there in any experiment.
_SLURM_CORES, _SLURM_MEMORY_MB = 8, 4000
#: Seconds that the nodes may take to be up, once drfd has started.
_UP_S = 60.0
#: How long a task of figure 9 takes in seconds, and up to which part more or less.
_TASK_S, _SPREAD = 2.5, 0.2
SPREAD_OPTIONS = ("--spread", str(_SPREAD))
#: Seconds between two samples.
_FRAME_S = 0.2
#: States in which a task has resources of its node.
_HOLDING = ["STARTING", "RUNNING", "STOPPING", "CLEANING"]
#: States of tasks that have ended as they should, or were still running at the end.
_EXPECTED = {"COMPLETED", "CANCELLED", *_HOLDING, "PENDING"}

lacking_packages = private.lacking_packages


@contextmanager
def slurm(place: Path) -> Iterator[PrivateSlurm]:
    """Run a private Slurm in a directory below `place`, for the daemons of `daemon`."""
    directory, launcher = place / "slurm", place / "state" / "slurm-launcher"
    directory.mkdir(mode=0o755)
    nodes = [PrivateNode(name, _SLURM_CORES, _SLURM_MEMORY_MB) for name in _SLURMS]
    found = PrivateSlurm(directory, nodes)
    files = private.files_without_limits(directory, launcher / "events.sock", launcher / "started")
    try:
        found.start(files)
        yield found
    finally:
        with private_daemon.uninterrupted():
            found.stop()


@contextmanager
def daemon(place: Path, config: str) -> Iterator[Connection]:
    """Run a private drfd, and yield a connection once its nodes are up. Raises HostError."""
    with private_daemon.private_daemon(place, config) as client:
        deadline = time.monotonic() + _UP_S
        while down := [each for each in client.request("nodes")["nodes"] if each["state"] != "up"]:
            if time.monotonic() > deadline:
                first = down[0]
                text = f"node {first['name']} of the demo does not come up: {first['text']}"
                raise HostError("no-node", text)
            time.sleep(0.1)
        yield client
    # The next one has the same sockets, where Slurm's scripts look for them.
    for path in (place / "state").glob("*/launcher.lock"):
        with path.open() as lock:
            # Until this launcher, too, has ended.
            fcntl.flock(lock, fcntl.LOCK_EX)
    shutil.rmtree(place / "state")


def scale() -> Scale:
    """Return the scale of the paper's machines: a CPU is a core, which need not be there."""
    count = len(NODES)
    parts = [
        private_daemon.scale_for(count * sharing.NODE[0], count * sharing.NODE[1]),
        # With six slots, the tasks of a node may need twice what it has.
        private_daemon.scale_for(
            count * macro.NODE[0], 2 * count * macro.NODE[1], smallest_gb=macro.SMALL.gb
        ),
    ]
    return Scale(cpu_milli=1000, gb_bytes=max(part.gb_bytes for part in parts))


def opening(scale: Scale) -> str:
    return (
        "Three nodes of this host: head is drfd's own, n1 and n2 are of a private Slurm.\n"
        f"A CPU of the paper is a core that a node is said to have, a GB "
        f"{show_size(scale.gb_bytes)}."
    )


def figure8_config(place: Path, scale: Scale) -> str:
    pools = [job.replace(" ", "") for job in JOBS]
    cores, gb = sharing.NODE
    return _config(place, pools, cores, gb * scale.gb_bytes, private_daemon.SHORT_TASKS)


def figure9_config(place: Path, scale: Scale, way: SharingScheme) -> str:
    """Return the configuration. A node with slots has as many cores, of which each task declares
    one, and the memory that any tasks in them may need."""
    cores, gb, scheduling = NODE[0], NODE[1], private_daemon.SHORT_TASKS
    if way.slots is not None:
        cores, gb = way.slots, way.slots * int(LARGE.gb)
        scheduling += f'\npolicy = "slots"\nslots = {way.slots * len(NODES)}'
    pools = [user for user, _ in users_of_demo()]
    return _config(place, pools, cores, gb * scale.gb_bytes, scheduling)


def _config(place: Path, pools: list[str], cores: int, memory_bytes: int, scheduling: str) -> str:
    """Return the configuration of three nodes that have so much each."""
    config = private_daemon.config_for(
        place, pools, cores_milli=cores * 1000, memory_bytes=memory_bytes, scheduling=scheduling
    )
    for name, engine in NODES.items():
        config += f'[nodes.{name}]\nengine = "{engine}"\n'
        if engine == "slurm":
            config += f'cores = {cores}\nmemory = "{exact_size(memory_bytes)}"\n'
    return f'{config}[slurm]\nconfig = "{place}/slurm/slurm.conf"\nuser = "root"\n'


def ways() -> list[SharingScheme]:
    """Return the ways of sharing of figure 9 that are compared. drfd, unlike Mesos, keeps room for
    a task that does not fit yet."""
    slots = [SharingScheme(name=f"{each} slots", policy="slots", slots=each) for each in (3, 6)]
    return [SharingScheme(name="DRF", policy="drf", reserves=True), *slots]


@dataclass(frozen=True, slots=True)
class Crowd:
    """The tasks of figure 9 under one way of sharing, once the first ones have ended."""

    #: The mean number of running tasks by kind.
    tasks: dict[str, float]
    #: The part of the nodes' time in which their tasks need more memory than they have.
    crowded: float


@dataclass(frozen=True, slots=True)
class Tally:
    """The live tasks that have ended, by node."""

    done: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: A sentence for each task that has failed.
    failures: list[str] = field(default_factory=list)

    def add(self, client: Connection) -> None:
        """Add the tasks of a daemon."""
        for job in client.request("status", ended=10_000)["jobs"]:
            if job["state"] == "COMPLETED":
                self.done[job["node"]] += 1
            elif job["state"] not in _EXPECTED:
                node = job.get("node", "no node")
                self.failed[node] += 1
                self.failures.append(f"a task on {node} ended as {job['state']}")

    def faults(self) -> list[str]:
        """Return the failures, and a sentence for each node on which no task has ended."""
        idle = [f"no task completed on {name}" for name in NODES if not self.done[name]]
        return [*dict.fromkeys(self.failures), *idle]


def play_figure9(
    client: Connection, place: Path, scale: Scale, way: SharingScheme, seconds: int
) -> Crowd:
    # If jobs started at once, the first user would have the nodes alone for a moment.
    client.request("drain", on=True)
    for user, kind in users_of_demo():
        needed = scale.demand(kind.cpus, kind.gb)
        slot = scale.demand(1, LARGE.gb)
        # More tasks than can run, so that each user always has some pending.
        most = int(NODE[0] * len(NODES) * seconds / _TASK_S)
        private_daemon.submit(
            client, place, private_daemon.argv_for(needed, _TASK_S, *SPREAD_OPTIONS), user,
            needed if way.slots is None else slot, out=str(place / f"{user}.out"),
            name=kind.name, array=f"1-{most}",
        )  # fmt: skip
    client.request("drain", on=False)
    samples = []
    started = time.monotonic()
    while (at_s := time.monotonic() - started) < seconds:
        if at_s > settled_s():
            samples.append(_sample(client))
        time.sleep(_FRAME_S)
    return crowd_of(samples, {kind.name: kind.gb for kind in (LARGE, SMALL)}, NODE[1])


def settled_s() -> float:
    """Return the seconds after which the first tasks of figure 9 have ended."""
    return _TASK_S * (1 + _SPREAD)


#: The number of tasks by node and kind.
Sample = Counter[tuple[str, str]]


def _sample(client: Connection) -> Sample:
    jobs = client.request("status", select={"states": _HOLDING})["jobs"]
    return Counter((job["node"], job["name"]) for job in jobs)


def crowd_of(samples: Sequence[Sample], needs: dict[str, float], node_gb: int) -> Crowd:
    """Return the means of samples. `needs` are the GB of a task by kind, `node_gb` those of a
    node."""
    count = len(samples) or 1
    tasks = {
        kind: sum(each[node, kind] for each in samples for node in NODES) / count for kind in needs
    }
    crowded = sum(
        sum(each[node, kind] * gb for kind, gb in needs.items()) > node_gb
        for each in samples
        for node in NODES
    )
    return Crowd(tasks, crowded / (count * len(NODES)))


def simulated_shares(phase_s: int, seeds: Sequence[int]) -> list[Shares]:
    """Return the shares of figure 8 over three nodes of the simulator, for each seed."""
    task_s = fig8.task_s(phase_s)
    return [simulate(seed, nodes=len(NODES), phase_s=phase_s, task_s=task_s) for seed in seeds]


def simulated_crowd(way: SharingScheme, seconds: int, seeds: Sequence[int]) -> Crowd:
    """Return the mean of figure 9 over three nodes of the simulator. Nothing swaps there. Each seed
    also has another user first, who gets the slot that cannot be divided."""
    cluster = Cluster(nodes=len(NODES), node=vector(*NODE), swap_cost=0)
    users = users_of_demo()
    batches = [
        Batch(
            user=user, tasks=int(NODE[0] * len(NODES) * seconds / _TASK_S),
            demand=vector(kind.cpus, kind.gb), task_s=_TASK_S,
        )
        for user, kind in users
    ]  # fmt: skip
    runs = []
    for seed in seeds:
        first = seed % len(users)
        turned = [*batches[first:], *batches[:first]]
        runs.append(run(turned, cluster, way, step_s=_FRAME_S, seed=seed, end_s=seconds))
    skipped = int(settled_s() / _FRAME_S)
    tasks = dict.fromkeys((LARGE.name, SMALL.name), 0.0)
    for found in runs:
        for user, kind in users:
            rows = found.held[user][skipped:]
            mean = sum(cores for cores, _ in rows) / (len(rows) * int(kind.cpus * 1000))
            tasks[kind.name] += mean / len(runs)
    return Crowd(tasks, sum(found.overcommitted for found in runs) / len(runs))
