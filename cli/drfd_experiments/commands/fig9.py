"""drf demo fig9: figure 9 of the DRF paper with real processes and real shortage of memory.

All tasks together have a bound on their memory. If the daemon has cgroups that we may write to, the
kernel enforces the bound: it reclaims pages of tasks that together use more, as on a machine that
swaps. Otherwise this process acts like an OOM daemon: it checks often, and kills the largest task.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from drfd.client.connection import Connection
from drfd.sim.figures import Panel
from drfd_cli.demo import private_daemon
from drfd_cli.demo.private_daemon import Scale
from drfd_experiments.cluster import SharingScheme
from drfd_experiments.commands.fig8 import opening
from drfd_experiments.figures import Cell, Column, Figure, Table, live_figure
from drfd_experiments.macro import LARGE, NODE, PAPER_LARGE, SMALL, WAYS, Kind


def directory(controller: str, cgroup: str, name: str) -> Path | None:
    """Return the directory of the cgroup under a controller of cgroup v1, or under v2 if it has a
    file of this name there; None if there is neither."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = Path(before.split(" ")[4], cgroup.lstrip("/"))
        if kind == "cgroup" and controller in options.split(",") and place.is_dir():
            return place
        if kind == "cgroup2" and (place / name).exists():
            return place
    return None


def cpu_s(cgroup: str) -> float | None:
    """Return the processor time that a cgroup has used, in seconds, or None if it is gone."""
    place = directory("cpuacct", cgroup, "cpu.stat")
    try:
        if place is None:
            return None
        if (place / "cpuacct.usage").exists():
            return int((place / "cpuacct.usage").read_text()) / 1e9
        lines = (place / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec "))
    except OSError:
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
    bound: MemoryBound
    #: Completed tasks by kind, and tasks killed for lack of memory.
    done: dict[str, int]
    killed: int
    #: Memory held by all tasks over time: (seconds, part of the nodes' memory).
    held: list[tuple[float, float]]


@live_figure("fig9", 8, 25, 600, "How long each of the four ways of sharing is tried.")
def command(seconds: int, *, quiet: bool) -> tuple[Figure, list[str]]:
    """Figure 9 of the DRF paper with real processes: DRF, slots, and CPU-fair sharing on this
    machine, within a bound on memory of the demo's own.

    Under slots and CPU-fair sharing, the running tasks together may need more memory than there is:
    then they lose pages to each other and slow down, as on the paper's nodes that swapped. Where
    there are no cgroups, the largest task is killed instead. Exits with 1 if DRF does not come out
    best, or if too few tasks complete to tell.
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


def users_of_demo() -> list[tuple[str, Kind]]:
    return [
        (f"{kind.name}{number}", kind) for kind in (LARGE, SMALL) for number in range(1, _USERS + 1)
    ]


def _play(
    client: Connection, place: Path, scale: Scale, way: SharingScheme, seconds: float
) -> Figure9Result:
    room_bytes = NODE[1] * _NODES * scale.gb_bytes
    bound = memory_bound(_probe(client, place, scale), place.name, room_bytes)
    # If jobs started at once, the first user would have the machine alone for a moment.
    client.request("drain", on=True)
    for user, kind in users_of_demo():
        demand = scale.demand(kind.cpus, kind.gb)
        cache = ("--cache", str(place)) if bound.reclaims else ()
        argv = private_daemon.argv_for(demand, _TASK_S, "--rounds", str(_ROUNDS), *cache)
        # More tasks than can run, so that each user always has some pending.
        most = int(NODE[0] * _NODES * seconds)
        _submit(client, place, argv, user, demand, name=kind.name, array=f"1-{most}")
    client.request("drain", on=False)
    held = []
    started = time.monotonic()
    while (at_s := time.monotonic() - started) < seconds:
        held.append((round(at_s, 1), bound.held_bytes() / room_bytes))
        time.sleep(_FRAME_S)
    jobs = client.request("status", ended=10_000, tasks=True)["jobs"]
    ended = [job for job in jobs if job["ended_at"] and job["name"] != "probe"]
    done = {
        kind.name: sum(job["state"] == "COMPLETED" and job["name"] == kind.name for job in ended)
        for kind in (LARGE, SMALL)
    }
    return Figure9Result(way, bound, done, len(ended) - sum(done.values()), held)


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
    if drf.bound.reclaims:
        if six.done["large"] >= drf.done["large"]:
            wrong.append("6 slots did as many large tasks as DRF")
    elif not six.killed:
        wrong.append("with 6 slots no task was killed")
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
        Column("SHARED BY"), Column("LARGE"), Column("OF DRF'S", "%"), Column("PAPER", "%"),
        Column("SMALL"), Column("OF DRF'S", "%"), Column("KILLED"), Column("MOST MEMORY", "%"),
    ]  # fmt: skip
    found = Figure(
        name="fig9",
        title="Figure 9 with real processes",
        about=[
            f"{seconds} s each; {_USERS} users with large tasks (2 CPUs, 2 GB) and {_USERS} with "
            f"small ones (1 CPU, 0.5 GB), all with more than can run; {_TASK_S:g} s a task.",
            f"The bound on memory is kept by {drf.bound.keeper}.",
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
            "Expected: DRF loses no task and does more small ones than 3 slots; 6 slots "
            + ("do fewer large ones. " if drf.bound.reclaims else "lose some. ")
            + (f"Not so: {'; '.join(wrong)}." if wrong else "So it is."),
            "Under CPU-fair sharing these users' tasks need just the memory of all nodes together, "
            "and some more for their interpreters; the paper's nodes were overcommitted one by one."
        ],
    )  # fmt: skip
    return found, wrong


def memory_bound(cgroup: str | None, mark: str, most_bytes: int) -> MemoryBound:
    """Return a bound for all tasks. `cgroup` is the cgroup of any one job, if jobs have cgroups;
    `mark` is the value of the variable `private_daemon.MARK` in the environment of all tasks."""
    if cgroup is not None:
        place = directory("memory", str(Path(cgroup).parent), "memory.max")
        if place is not None:
            try:
                return _ByKernel(place, most_bytes)
            except OSError:
                # We may not write to it, as in a scope of a user's own systemd.
                pass
    return _ByHand(mark, most_bytes)


class _ByKernel:
    #: The text that says what enforces the bound.
    keeper = "the kernel: from tasks that together want more, it takes pages away"
    #: Whether tasks beyond the bound are slowed down, not killed.
    reclaims = True

    def __init__(self, place: Path, most_bytes: int) -> None:
        """Set the limits. Raises OSError."""
        if (place / "memory.max").exists():
            limits, self._held = ["memory.max"], place / "memory.current"
        else:
            # Memory and swap together: with memory alone, the rest would be swapped out.
            limits = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            self._held = place / "memory.usage_in_bytes"
        for name in limits:
            if (place / name).exists():
                (place / name).write_text(str(most_bytes))

    def held_bytes(self) -> int:
        """Return the memory of all tasks in bytes."""
        return int(self._held.read_text())


class _ByHand:
    keeper = "this program, which kills the largest task: there is no cgroup to bound them all"
    reclaims = False

    def __init__(self, mark: str, most_bytes: int) -> None:
        self._mark, self._most_bytes = f"{private_daemon.MARK}={mark}".encode(), most_bytes

    def held_bytes(self) -> int:
        """Return the memory of all tasks in bytes, and kill the largest ones above the bound."""
        sizes = {pid: size for pid in self._tasks() if (size := _size(pid)) is not None}
        held = sum(sizes.values())
        while sum(sizes.values()) > self._most_bytes:
            largest = max(sizes, key=lambda pid: sizes[pid])
            self._kill(largest)
            del sizes[largest]
        return held

    def _tasks(self) -> Iterator[int]:
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and self._is_ours(int(entry.name)):
                yield int(entry.name)

    def _is_ours(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            # The process is gone, or another user's.
            return False

    def _kill(self, pid: int) -> None:
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return
        try:
            # The pid may have been reused before the pidfd was opened.
            if self._is_ours(pid):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)


#: A bound on the memory of all tasks together.
MemoryBound = _ByKernel | _ByHand


def _size(pid: int) -> int | None:
    """Return the proportional memory of a process in bytes, or None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")), None
    )
