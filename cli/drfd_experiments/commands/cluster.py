"""drf demo cluster: figures 8 and 9 of the DRF paper over three nodes, live and simulated.

The nodes are all on this host: one is drfd's own machine, two are of a private Slurm. What the live
tasks are given is compared with what the simulator's nodes give to theirs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from drfd.client.connection import Connection
from drfd.common.errors import HostError, Refused
from drfd.common.units import exact_size, show_size
from drfd_cli.demo import private_daemon
from drfd_cli.demo.private_daemon import Scale
from drfd_experiments import macro, sharing
from drfd_experiments.cluster import Batch, Cluster, SharingScheme, run, vector
from drfd_experiments.commands import fig8
from drfd_experiments.commands.fig9 import users_of_demo
from drfd_experiments.figures import Cell, Figure, Header, Table, live_figure
from drfd_experiments.macro import LARGE, NODE, SMALL
from drfd_experiments.private_slurm import (
    PrivateNode,
    PrivateSlurm,
    files_without_limits,
    lacking_packages,
)
from drfd_experiments.sharing import JOBS, PHASES, Shares, panels, simulate, steady

#: Largest difference between a live and a simulated mean share, as a fraction of all nodes. A node
#: has room for few tasks, and which of them end together is chance.
_TOLERANCE = 0.12
#: Largest difference between the live and the simulated mean number of running tasks.
_TASK_TOLERANCE = 1.5
#: The parts of the time for figure 8, and for each way of sharing of figure 9.
_PARTS = (0.6, 0.13)
#: Runs of the simulator, whose mean is compared.
_SEEDS = range(8)


@live_figure(
    "cluster", 40, 100, 1200, "How long tasks run; the starts of drfd and Slurm come to that."
)
def command(seconds: int, *, quiet: bool) -> tuple[Figure, list[str]]:
    """Figures 8 and 9 of the DRF paper over three nodes, live beside the simulator, in two minutes:
    this machine stands for all three, two of which are of a private Slurm.

    Needs root, and the packages slurm-wlm and munge. No Slurm that runs here is touched. Exits with
    1 when live and simulated results differ by more than the tolerance that it prints, or a task
    fails.
    """
    _refuse_without_slurm()
    phase_s, way_s = (int(part * seconds) for part in (_PARTS[0] / 3, _PARTS[1]))
    scale = scale_of_nodes()
    tally = TaskTally()
    crowds = []
    with private_daemon.directory() as place, slurm(place):
        with daemon(place, figure8_config(place, scale)) as client:
            play = fig8.Scenario(
                client, place, scale, phase_s, nodes=len(NODES), idle_options=SPREAD_OPTIONS
            )
            if not quiet:
                click.echo(opening(scale))
            play.play(fig8.levels_every_two_seconds(quiet=quiet))
            tally.add(client)
        for way in ways():
            with daemon(place, figure9_config(place, scale, way)) as client:
                crowds.append(play_figure9(client, place, scale, way, way_s))
                tally.add(client)
            if not quiet:
                words = ", ".join(f"{mean:.1f} {kind}" for kind, mean in crowds[-1].tasks.items())
                click.echo(f"{way.name:<8} mean number of running tasks: {words}")
    shares = Sharing(play.shares, simulated_shares(phase_s, _SEEDS), phase_s)
    pairs = [
        (crowd, simulated_crowd(way, way_s, _SEEDS))
        for crowd, way in zip(crowds, ways(), strict=True)
    ]
    return figure(shares, pairs, tally)


def _refuse_without_slurm() -> None:
    if os.getuid() != 0:
        raise Refused(
            "not-root",
            "drf demo cluster needs root: Slurm's daemons start jobs as their users",
            hint="run it with sudo",
        )
    lacking = lacking_packages()
    if lacking:
        raise HostError(
            "no-slurm",
            "drf demo cluster starts a private Slurm, which is not installed",
            hint=f"install {' and '.join(lacking)}",
        )


@dataclass(frozen=True, slots=True)
class Sharing:
    """The shares of figure 8, live and in each run of the simulator."""

    live: Shares
    simulated: list[Shares]
    phase_s: int

    def dominant(self, job: str, phase: int) -> tuple[float, float]:
        """Return the mean dominant share in the second half of a phase, live and simulated."""
        means = [max(steady(each, job, phase, self.phase_s)) for each in self.simulated]
        return max(steady(self.live, job, phase, self.phase_s)), sum(means) / len(means)


def figure(
    sharing: Sharing, crowds: list[tuple[Crowd, Crowd]], tally: TaskTally
) -> tuple[Figure, list[str]]:
    """Return the figure, and a sentence for each result that is not as the simulator's.

    `crowds` are live and simulated ones, of the ways of `ways`.
    """
    shares_table, wrong = _shares(sharing)
    tasks_table, more = _tasks(crowds)
    wrong += more + tally.faults()
    found = Figure(
        name="cluster",
        title="Figures 8 and 9 over three nodes, live beside the simulator",
        about=[
            "The three nodes share this host's cores, so tasks hold the memory that they declare, "
            "and keep no core busy.",
        ],
        tables=[shares_table, tasks_table, _nodes(tally)],
        panels=panels(sharing.live)[-1:],
        notes=[
            f"Tolerance: {_TOLERANCE:.0%} of all nodes for a share, {_TASK_TOLERANCE:g} for a "
            "number of tasks. "
            + (f"Beyond it: {'; '.join(wrong)}." if wrong else "All differences are within it."),
            "TOO LITTLE MEMORY is the part of the nodes' time in which their tasks need more than "
            "they have: the paper's nodes swapped then, those of this host do not.",
        ],
    )
    return found, wrong


def _shares(sharing: Sharing) -> tuple[Table, list[str]]:
    rows: list[list[Cell]] = []
    wrong = []
    for number, phase in enumerate(PHASES):
        for job, (cpus, gb) in zip(JOBS, phase.demands, strict=True):
            live, simulated = sharing.dominant(job, number)
            said = phase.paper if job == JOBS[0] else ""
            rows.append([number + 1, job, f"{cpus} CPU, {gb} GB", live, simulated, said])
            if abs(live - simulated) > _TOLERANCE:
                text = f"phase {number + 1}: {job} had {live:.0%}, simulated {simulated:.0%}"
                wrong.append(text)
    columns = [
        Header("PHASE"), Header("JOB"), Header("TASK"), Header("LIVE", "%"),
        Header("SIMULATED", "%"), Header("THE PAPER"),
    ]  # fmt: skip
    title = "Figure 8: mean dominant shares in the second half of each phase"
    return Table(title=title, columns=columns, rows=rows), wrong


def _tasks(crowds: list[tuple[Crowd, Crowd]]) -> tuple[Table, list[str]]:
    rows: list[list[Cell]] = []
    wrong = []
    for way, (live, simulated) in zip(ways(), crowds, strict=True):
        cells: list[Cell] = []
        for kind, mean in live.tasks.items():
            cells += [round(mean, 1), round(simulated.tasks[kind], 1)]
            if abs(mean - simulated.tasks[kind]) > _TASK_TOLERANCE:
                wrong.append(
                    f"{way.name}: {mean:.1f} {kind} tasks, simulated {simulated.tasks[kind]:.1f}"
                )
        rows.append([way.name, *cells, live.crowded, simulated.crowded])
        if (live.crowded > 0) != (simulated.crowded > 0):
            wrong.append(
                f"{way.name}: nodes with too little memory for {live.crowded:.0%} of the time, "
                f"simulated {simulated.crowded:.0%}"
            )
    columns = [
        Header("SHARED BY"), Header("LARGE"), Header("SIMULATED"), Header("SMALL"),
        Header("SIMULATED"), Header("TOO LITTLE MEMORY", "%"), Header("SIMULATED", "%"),
    ]  # fmt: skip
    title = "Figure 9: mean numbers of running tasks"
    return Table(title=title, columns=columns, rows=rows), wrong


def _nodes(tally: TaskTally) -> Table:
    return Table(
        title="Live tasks that have ended on each node",
        columns=[Header("NODE"), Header("STARTED BY"), Header("COMPLETED"), Header("FAILED")],
        rows=[
            [name, "Slurm" if engine == "slurm" else "drfd", tally.done[name], tally.failed[name]]
            for name, engine in NODES.items()
        ],
    )


# -- the three nodes, and what runs on them -----------------------------------------------------

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


@contextmanager
def slurm(place: Path) -> Iterator[PrivateSlurm]:
    """Run a private Slurm in a directory below `place`, for the daemons of `daemon`."""
    directory, launcher = place / "slurm", place / "state" / "slurm-launcher"
    directory.mkdir(mode=0o755)
    nodes = [PrivateNode(name, _SLURM_CORES, _SLURM_MEMORY_MB) for name in _SLURMS]
    found = PrivateSlurm(directory, nodes)
    events, started = launcher / "events.sock", launcher / "started"
    files = files_without_limits(directory, events, started)
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


def scale_of_nodes() -> Scale:
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
class TaskTally:
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
