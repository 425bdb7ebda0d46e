"""drf demo fig9: figure 9 of the DRF paper with real processes and real shortage of memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd_cli import demo_daemon, demo_pressure, demo_scale, plot_file
from drfd_cli.demo_scale import Scale
from drfd_cli.demo_sharing import closing, opening
from drfd_cli.options import as_json

if TYPE_CHECKING:
    from drfd.sim.cluster import Way
    from drfd.sim.figures import Cell, Figure
    from drfd.sim.paper.macro import Kind

View = dict[str, Any]

#: Of the paper's 48, and users of each of its four.
_NODES = 2
_USERS = 2
_TASK_S = 3.0
#: How often a task goes through its memory.
_ROUNDS = 60
_FRAME_S = 0.1
#: With fewer of either kind under DRF, nothing can be said.
_LEAST_TASKS = 4
#: DRF, and those of the ways that the paper compares it with that show most.
_WAYS = ("DRF", "3 slots", "6 slots", "CPU-fair")


@dataclass(frozen=True, slots=True)
class Result:
    way: Way
    bound: demo_pressure.Bound
    #: Tasks completed, by kind, and tasks killed for want of memory.
    done: dict[str, int]
    killed: int
    #: (seconds, part of the memory of the nodes).
    held: list[tuple[float, float]]


@click.command("fig9")
@click.option(
    "--seconds",
    type=click.IntRange(8, 600),
    default=25,
    show_default=True,
    help="How long each of the four ways of sharing is tried.",
)
@plot_file.plot_option
@as_json
def command(seconds: int, plot_path: str | None, as_json: bool) -> int:
    """Figure 9 of the DRF paper with real processes: DRF, slots, and CPU-fair sharing on this
    machine, within a bound on memory of the demo's own.

    Slots and CPU-fair sharing let tasks together need more memory than there is: then they lose
    pages to each other and slow down, as on the paper's nodes that swapped. Where there are no
    cgroups, one of them is killed in place of that. Exits with 1 when DRF is not the better one.
    """
    from drfd.sim.paper.macro import NODE, SMALL, WAYS

    plot_file.check(plot_path)
    cpus, gb = (each * _NODES for each in NODE)
    scale = demo_scale.scale_for(cpus, gb, smallest_gb=float(SMALL.gb))
    results: list[Result] = []
    for way in (each for each in WAYS if each.name in _WAYS):
        with (
            demo_daemon.directory(on_disk=True) as place,
            demo_daemon.private_daemon(place, _config(place, scale, way)) as client,
        ):
            doctor = demo_daemon.controls_of(client)
            if not results and not as_json:
                opening(doctor, scale, f"{cpus} CPUs and {gb} GB: {_NODES} of its 48 nodes.")
            results.append(_play(client, place, scale, way, seconds))
        if not as_json:
            done = ", ".join(f"{count} {name}" for name, count in results[-1].done.items())
            click.echo(f"{way.name:<9} tasks done: {done}; killed: {results[-1].killed}")
    found, wrong = _figure(results, seconds)
    return closing(found, wrong, plot_path, as_json=as_json)


def _config(place: Path, scale: Scale, way: Way) -> str:
    """What a way of sharing does not look at never runs short, as far as the daemon knows."""
    from drfd.sim.paper.macro import LARGE, NODE

    slots = (way.slots or 0) * _NODES
    cpus, gb = float(NODE[0] * _NODES), float(NODE[1] * _NODES)
    scheduling = f'policy = "{way.policy}"'
    if way.policy == "slots":
        scheduling += f"\nslots = {slots}"
        cpus, gb = max(cpus, slots * float(LARGE.cpus)), max(gb, slots * float(LARGE.gb))
    elif way.policy == "cpu":
        gb = max(gb, cpus * float(LARGE.gb / LARGE.cpus))
    return demo_scale.config_for(
        place,
        [user for user, _ in _users()],
        cores_milli=int(cpus * scale.cpu_milli),
        memory_bytes=int(gb * scale.gb_bytes),
        scheduling=scheduling,
    )


def _users() -> list[tuple[str, Kind]]:
    from drfd.sim.paper.macro import LARGE, SMALL

    return [
        (f"{kind.name}{number}", kind) for kind in (LARGE, SMALL) for number in range(1, _USERS + 1)
    ]


def _play(client: Connection, place: Path, scale: Scale, way: Way, seconds: float) -> Result:
    from drfd.sim.paper.macro import LARGE, NODE, SMALL

    room_bytes = NODE[1] * _NODES * scale.gb_bytes
    bound = demo_pressure.bound(_probe(client, place, scale), place.name, room_bytes)
    # Or the first of them would have the machine for itself for a moment.
    client.request("drain", on=True)
    for user, kind in _users():
        demand = scale.demand(float(kind.cpus), float(kind.gb))
        argv = demo_scale.argv_for_rounds(
            demand, _TASK_S, rounds=_ROUNDS, cache=str(place) if bound.reclaims else None
        )
        # More than can run, so that everybody always has some that wait.
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
    return Result(way, bound, done, len(ended) - sum(done.values()), held)


def _probe(client: Connection, place: Path, scale: Scale) -> str | None:
    """The cgroup of a job that only shows where cgroups are."""
    user, _ = _users()[0]
    job_id = _submit(client, place, ["sleep", "60"], user, scale.demand(1, 0.25), name="probe")
    while True:
        (job,) = client.request("status", select={"ids": [job_id]})["jobs"]
        if job["state"] not in ("PENDING", "STARTING"):
            break
        time.sleep(0.05)
    client.request("cancel", select={"ids": [job_id]})
    cgroup: str | None = job["cgroup"]
    return cgroup


def _submit(
    client: Connection, place: Path, argv: list[str], pool: str, demand: View, **more: object
) -> int:
    job_id: int = client.request(
        "submit",
        argv=argv,
        cwd="/",
        pool=pool,
        demand=demand,
        time_limit_s=600,
        stdout="/dev/null",
        stderr="/dev/null",
        env={"PATH": "/usr/bin:/bin", demo_pressure.MARK: place.name},
        **more,
    )["id"]
    return job_id


def _figure(results: list[Result], seconds: int) -> tuple[Figure, list[str]]:
    """What came out, and what of it is not as the paper says."""
    from drfd.sim.figures import Column, Figure, Panel, Table
    from drfd.sim.paper.macro import PAPER_LARGE

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
