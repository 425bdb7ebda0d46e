"""drf demo fig9: figure 9 of the DRF paper with real processes and real shortage of memory.

All tasks together have a limit on their memory, in the cgroup above those of the jobs: the kernel
reclaims pages of tasks that together use more, as on a machine that swaps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from drfd.client.connection import Connection
from drfd.common.errors import Refused
from drfd.linux.kernel_files import get, mounts
from drfd.sim.figures import Panel
from drfd_cli.demo import private_daemon
from drfd_cli.demo.private_daemon import Scale
from drfd_experiments.cluster import SharingScheme
from drfd_experiments.commands.fig8 import opening
from drfd_experiments.figures import Cell, Figure, Header, Table, live_figure
from drfd_experiments.macro import LARGE, NODE, PAPER_LARGE, SMALL, WAYS, TaskKind


def directory(controller: str, cgroup: str, name: str) -> Path | None:
    """Return the directory of the cgroup under a controller of cgroup v1, or under v2 if it has a
    file of this name there; None if there is neither."""
    for mount in mounts(get("/proc/self/mountinfo")):
        place = Path(mount.point, cgroup.lstrip("/"))
        if mount.filesystem == "cgroup" and controller in mount.options and place.is_dir():
            return place
        if mount.filesystem == "cgroup2" and (place / name).exists():
            return place
    return None


#: Number of nodes in the demo (48 in the paper), and number of users of each kind: with large
#: tasks, with small tasks.
_NODES = 2
_USERS = 2
#: How long a task takes in seconds if none of its memory is reclaimed, and how often it touches all
#: its memory.
_TASK_S = 3.0
_ROUNDS = 60
#: Seconds between two samples of the memory of all tasks.
_FRAME_S = 0.1
#: The number of tasks of each kind that must complete under DRF to allow a conclusion.
_LEAST_TASKS = 4
#: The ways of sharing that are compared; the paper has more.
_WAYS = ("DRF", "3 slots", "6 slots", "CPU-fair")


@dataclass(frozen=True, slots=True)
class Figure9Result:
    way: SharingScheme
    #: Completed tasks by kind, and tasks killed for lack of memory.
    done: dict[str, int]
    killed: int
    #: Memory held by all tasks over time: (seconds, part of the nodes' memory).
    held: list[tuple[float, float]]


@live_figure("fig9", 8, 25, 600, "How long each of the four ways of sharing is tried.")
def command(seconds: int, *, quiet: bool) -> tuple[Figure, list[str]]:
    """Figure 9 of the DRF paper with real processes: DRF, slots, and CPU-fair sharing on this
    machine, within a limit on memory of the demo's own.

    Under slots and CPU-fair sharing, the running tasks together may need more memory than there is:
    then they lose pages to each other and slow down, as on the paper's nodes that swapped. Needs
    cgroups. Exits with 1 if DRF does not come out best, or if too few tasks complete to tell.
    """
    cpus, gb = (each * _NODES for each in NODE)
    scale = private_daemon.scale_for(cpus, gb, smallest_gb=SMALL.gb)
    results: list[Figure9Result] = []
    for way in (each for each in WAYS if each.name in _WAYS):
        with (
            private_daemon.directory(on_disk=True) as place,
            private_daemon.private_daemon(place, _config(place, scale, way)) as client,
        ):
            doctor = private_daemon.controls_of(client)
            if not results and not quiet:
                opening(doctor, scale, f"{cpus} CPUs and {gb} GB: {_NODES} of its 48 nodes.")
            results.append(_play(client, place, scale, way, seconds))
        if not quiet:
            done = ", ".join(f"{count} {name}" for name, count in results[-1].done.items())
            click.echo(f"{way.name:<9} tasks done: {done}; killed: {results[-1].killed}")
    return _figure(results, seconds)


def _config(place: Path, scale: Scale, way: SharingScheme) -> str:
    """Return the configuration. The capacity of a resource that the sharing scheme ignores is so
    large that there is always enough."""
    slots = (way.slots or 0) * _NODES
    cpus, gb = float(NODE[0] * _NODES), float(NODE[1] * _NODES)
    scheduling = f'{private_daemon.SHORT_TASKS}\npolicy = "{way.policy}"'
    if way.policy == "slots":
        scheduling += f"\nslots = {slots}"
        cpus, gb = max(cpus, slots * LARGE.cpus), max(gb, slots * LARGE.gb)
    elif way.policy == "cpu":
        gb = max(gb, cpus * LARGE.gb / LARGE.cpus)
    return private_daemon.config_for(
        place,
        [user for user, _ in users_of_demo()],
        cores_milli=int(cpus * scale.cpu_milli),
        memory_bytes=int(gb * scale.gb_bytes),
        scheduling=scheduling,
    )


def users_of_demo() -> list[tuple[str, TaskKind]]:
    return [
        (f"{kind.name}{number}", kind) for kind in (LARGE, SMALL) for number in range(1, _USERS + 1)
    ]


def _play(
    client: Connection, place: Path, scale: Scale, way: SharingScheme, seconds: float
) -> Figure9Result:
    room_bytes = NODE[1] * _NODES * scale.gb_bytes
    held_file = bound_memory(_probe(client, place, scale), room_bytes)
    # If jobs started at once, the first user would have the machine alone for a moment.
    client.request("drain", on=True)
    for user, kind in users_of_demo():
        demand = scale.demand(kind.cpus, kind.gb)
        how = ("--rounds", str(_ROUNDS), "--cache", str(place))
        argv = private_daemon.argv_for(demand, _TASK_S, *how)
        # More tasks than can run, so that each user always has some pending.
        most = int(NODE[0] * _NODES * seconds)
        _submit(client, place, argv, user, demand, name=kind.name, array=f"1-{most}")
    client.request("drain", on=False)
    held = []
    started = time.monotonic()
    while (at_s := time.monotonic() - started) < seconds:
        held.append((round(at_s, 1), int(held_file.read_text()) / room_bytes))
        time.sleep(_FRAME_S)
    jobs = client.request("status", ended=10_000, tasks=True)["jobs"]
    ended = [job for job in jobs if job["ended_at"] and job["name"] != "probe"]
    done = {
        kind.name: sum(job["state"] == "COMPLETED" and job["name"] == kind.name for job in ended)
        for kind in (LARGE, SMALL)
    }
    return Figure9Result(way, done, len(ended) - sum(done.values()), held)


def _probe(client: Connection, place: Path, scale: Scale) -> str | None:
    """Start a job only to find out where the cgroups of jobs are; return its cgroup or None."""
    user, _ = users_of_demo()[0]
    job_id = _submit(client, place, ["sleep", "60"], user, scale.demand(1, 0.25), name="probe")
    while True:
        (job,) = client.request("status", select={"ids": [job_id]})["jobs"]
        if job["state"] not in ("PENDING", "STARTING"):
            break
        time.sleep(0.05)
    client.request("cancel", select={"ids": [job_id]})
    cgroup: str | None = job["cgroup"]
    return cgroup


#: Submits a task that may run for longer than the demo, and whose output is lost.
_submit = partial(private_daemon.submit, out="/dev/null", time_limit_s=600)


def _figure(results: list[Figure9Result], seconds: int) -> tuple[Figure, list[str]]:
    """Return the figure, and a sentence for each result that differs from the paper's."""
    by_name = {each.way.name: each for each in results}
    drf, six, three = by_name["DRF"], by_name["6 slots"], by_name["3 slots"]
    wrong = []
    if drf.killed:
        wrong.append(f"under DRF {drf.killed} tasks were killed")
    if six.done["large"] >= drf.done["large"]:
        wrong.append("6 slots did as many large tasks as DRF")
    if three.done["small"] >= drf.done["small"]:
        wrong.append("3 slots did as many small tasks as DRF")
    if min(drf.done.values()) < _LEAST_TASKS:
        wrong = [f"too few tasks have ended to tell; try --seconds {4 * seconds}"]
    most = {kind: max(1, count) for kind, count in drf.done.items()}
    rows: list[list[Cell]] = [
        [
            each.way.name, each.done["large"], each.done["large"] / most["large"],
            PAPER_LARGE[each.way.name] / PAPER_LARGE["DRF"], each.done["small"],
            each.done["small"] / most["small"], each.killed, max(part for _, part in each.held),
        ]
        for each in results
    ]  # fmt: skip
    columns = [
        Header("SHARED BY"), Header("LARGE"), Header("OF DRF'S", "%"), Header("PAPER", "%"),
        Header("SMALL"), Header("OF DRF'S", "%"), Header("KILLED"), Header("MOST MEMORY", "%"),
    ]  # fmt: skip
    found = Figure(
        name="fig9",
        title="Figure 9 with real processes",
        about=[
            f"{seconds} s each; {_USERS} users with large tasks (2 CPUs, 2 GB) and {_USERS} with "
            f"small ones (1 CPU, 0.5 GB), all with more than can run; {_TASK_S:g} s a task.",
            "The kernel keeps the limit on memory: from tasks that together want more, it takes "
            "pages away.",
        ],
        tables=[
            Table(title="Tasks completed and killed; the paper counts large jobs",
                  columns=columns, rows=rows)
        ],
        panels=[
            Panel(
                title="Tasks completed", x="", y="tasks", names=list(by_name),
                curves={
                    kind: [(float(at), float(each.done[kind])) for at, each in enumerate(results)]
                    for kind in most
                },
            ),
            Panel(
                title="Memory held by all tasks", x="seconds", y="part of the nodes' memory",
                curves={each.way.name: each.held for each in results},
            ),
        ],
        notes=[
            "Expected: DRF loses no task and does more small ones than 3 slots; 6 slots do fewer "
            "large ones. "
            + (f"Not so: {'; '.join(wrong)}." if wrong else "So it is."),
            "Under CPU-fair sharing these users' tasks need just the memory of all nodes together, "
            "and some more for their interpreters; the paper's nodes were overcommitted one by one."
        ],
    )  # fmt: skip
    return found, wrong


def bound_memory(cgroup: str | None, most_bytes: int) -> Path:
    """Limit the memory of all tasks together, and return the file that tells how much they hold.
    `cgroup` is that of any one job. Raises Refused where no such limit can be set."""
    try:
        if cgroup is not None:
            place = directory("memory", str(Path(cgroup).parent), "memory.max")
            if place is not None:
                return _limited(place, most_bytes)
    except OSError:
        # The cgroup is not ours, as in a scope of a user's own systemd.
        pass
    raise Refused(
        "no-limit",
        "there is no cgroup here in which the memory of all tasks together can be limited",
        hint="run it as root; drf simulate paper fig9 needs none",
    )


def _limited(place: Path, most_bytes: int) -> Path:
    if (place / "memory.max").exists():
        (place / "memory.max").write_text(str(most_bytes))
        return place / "memory.current"
    # Memory and swap together: with memory alone, the rest would be swapped out.
    for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
        if (place / name).exists():
            (place / name).write_text(str(most_bytes))
    return place / "memory.usage_in_bytes"
