"""drf demo fig8: figure 8 of the DRF paper with real processes, in a minute.

Two jobs of many tasks share the machine. In each of three phases their tasks have other demands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd_cli import output
from drfd_cli.demo import private_daemon
from drfd_cli.demo.private_daemon import Scale
from drfd_experiments.figures import Figure, Header, Table, live_figure
from drfd_experiments.sharing import (
    JOBS,
    NODE,
    PHASES,
    Phase,
    expected,
    panels,
    phase_table,
    steady,
)

if TYPE_CHECKING:
    from drfd.protocol.replies import DoctorReply

#: Nodes of the demo; the paper has 48.
_NODES = 2
#: Largest difference between a mean share and the share of whole tasks on an empty machine, as a
#: fraction of the machine, and as a fraction of one task of the job. The larger one holds.
_TOLERANCE = 0.12
_TASK_TOLERANCE = 0.6
#: Largest ratio of use to declared demand; the kernel rounds its accounts.
_SLACK = 1.2
#: Seconds between two samples.
_FRAME_S = 0.2
#: Least seconds of a task, so that its start takes a small part of them.
_LEAST_TASK_S = 2.0


class Scenario:
    """The run of the two jobs: it submits their tasks and samples their allocations."""

    def __init__(self, client: Connection, place: Path, scale: Scale, phase_s: int) -> None:
        self._client, self._place, self._scale, self._phase_s = client, place, scale, phase_s
        self._task_s = max(_LEAST_TASK_S, phase_s / 6)
        self.doctor = private_daemon.controls_of(client)
        self._greedy = self.doctor["controls"]["cores"] == "enforced"
        self._pools = {job: job.replace(" ", "") for job in JOBS}
        self._tops = tuple(each * _NODES for each in NODE)
        self._phase = -1
        #: The parts of CPUs and memory allocated to each job, one pair each second.
        self.shares: dict[str, list[tuple[float, float]]] = {job: [] for job in JOBS}

    def play(self, show: Show) -> None:
        """Run all phases, and call `show` after each sample."""
        started = time.monotonic()
        while (at_s := time.monotonic() - started) < self._phase_s * len(PHASES):
            phase = int(at_s // self._phase_s)
            if phase != self._phase:
                self._phase = phase
                # Without the drain, the first job would have the machine alone for a moment.
                self._client.request("drain", on=True)
                self._client.request("cancel", select={"states": ["PENDING"], "everything": True})
                self._submit(PHASES[phase])
                self._client.request("drain", on=False)
            self._sample(int(at_s))
            show(self, at_s)
            time.sleep(_FRAME_S)

    def _submit(self, phase: Phase) -> None:
        """Submit an array for each job, of more tasks than can start in the phase."""
        most = int(2 * self._tops[0] * self._phase_s / self._task_s)
        for pool, (cpus, gb) in zip(self._pools.values(), phase.demands, strict=True):
            demand = self._scale.demand(cpus, gb)
            # Where cores are enforced, the tasks try to use a whole one.
            cores = 1.0 if self._greedy else demand["cores_milli"] / 1000
            argv = private_daemon.argv_for(demand, self._task_s, "--cores", f"{cores:.3f}")
            private_daemon.submit(
                self._client, self._place, argv, pool, demand, out=str(self._place / f"{pool}.out"),
                name=f"phase{self._phase + 1}", array=f"0-{most}",
            )  # fmt: skip

    def _sample(self, second: int) -> None:
        nodes = {each["path"]: each for each in self._client.request("shares")["nodes"]}
        cpus, gb = self._tops
        for job, pool in self._pools.items():
            node = nodes.get(f"root.{pool}")
            held = {"cores": 0.0, "memory": 0} if node is None else node["usage"]
            row = (
                held["cores"] * 1000 / (cpus * self._scale.cpu_milli),
                held["memory"] / (gb * self._scale.gb_bytes),
            )
            rows = self.shares[job]
            # On a slow machine, a second may pass without a sample.
            rows += [row] * (second + 1 - len(rows))

    def used(self) -> list[tuple[float, float]]:
        """Return the use of the completed tasks of each phase as fractions of their demand: the
        processor time of all, and the largest memory peak."""
        jobs = self._client.request("status", ended=10_000, tasks=True)["jobs"]
        found = []
        for number in range(len(PHASES)):
            done = [
                each for each in jobs
                if each["name"] == f"phase{number + 1}" and each["state"] == "COMPLETED"
            ]  # fmt: skip
            asked_s = sum(
                each["demand"]["cores"] * ((each["ended_at"] or 0.0) - (each["started_at"] or 0.0))
                for each in done
            )
            used_s = sum(each["usage"]["cpu_seconds"] for each in done)
            memory = max(
                (each["usage"]["memory_peak"] / each["demand"]["memory"] for each in done),
                default=0.0,
            )
            found.append((used_s / asked_s if asked_s else 0.0, memory))
        return found


@live_figure("fig8", 12, 60, 600, "How long it takes; three phases of the same length.")
def command(seconds: int, *, quiet: bool) -> tuple[Figure, list[str]]:
    """Figure 8 of the DRF paper with real processes: two jobs share this machine, and their tasks
    change twice.

    Exits with 1 when the shares of a phase are not those that DRF promises.
    """
    phase_s = seconds // 3
    cpus, gb = (each * _NODES for each in NODE)
    scale = private_daemon.scale_for(cpus, gb)
    with private_daemon.directory() as place:
        config = private_daemon.config_for(
            place,
            [job.replace(" ", "") for job in JOBS],
            cores_milli=cpus * scale.cpu_milli,
            memory_bytes=gb * scale.gb_bytes,
        )
        with private_daemon.private_daemon(place, config) as client:
            play = Scenario(client, place, scale, phase_s)
            if not quiet:
                opening(play.doctor, scale, f"{cpus} CPUs and {gb} GB: {_NODES} of its 48 nodes.")
            play.play(levels_every_two_seconds(quiet=quiet))
            return _figure(play, phase_s)


def opening(doctor: DoctorReply, scale: Scale, machine: str) -> None:
    click.echo(f"{machine} {scale.words}")
    output.tell(private_daemon.limits_line(doctor))
    for name in ("cores", "memory"):
        if doctor["controls"][name] != "enforced":
            output.tell(f"Of {name}, tasks keep to what they declare because they are honest.")


#: Shows the dominant shares at a time in seconds.
Show = Callable[["Scenario", float], None]


def _print_levels(play: Scenario, at_s: float) -> None:
    levels = ", ".join(f"{job} {max(rows[-1]):.0%}" for job, rows in play.shares.items())
    click.echo(f"{at_s:5.1f} s  dominant shares: {levels}")


def levels_every_two_seconds(*, quiet: bool) -> Show:
    """Return a function that prints the dominant shares, or nothing if `quiet`."""
    return private_daemon.every(inf if quiet else 2.0, _print_levels)


def _figure(play: Scenario, phase_s: int) -> tuple[Figure, list[str]]:
    """Return the figure, and a sentence for each result that contradicts a promise of DRF."""
    wrong = []
    used = play.used()
    for number, phase in enumerate(PHASES):
        rows = zip(JOBS, phase.demands, expected(phase, _NODES, "discrete"), strict=True)
        for job, demand, goal in rows:
            share = max(steady(play.shares, job, number, phase_s))
            task = max(part / (top * _NODES) for part, top in zip(demand, NODE, strict=True))
            if abs(share - goal) > max(_TOLERANCE, _TASK_TOLERANCE * task):
                wrong.append(f"phase {number + 1}: {job} had {share:.0%}, whole tasks {goal:.0%}")
        for name, part in zip(("cores", "memory"), used[number], strict=True):
            if part > _SLACK:
                wrong.append(f"phase {number + 1}: tasks used {part:.1f} times their {name}")
    found = Figure(
        name="fig8",
        title="Figure 8 with real processes",
        tables=[
            phase_table(play.shares, phase_s, _NODES),
            Table(
                title="What the tasks used of what they declared, as the kernel has counted",
                columns=[Header("PHASE"), Header("CPU TIME", "%"), Header("MOST MEMORY", "%")],
                rows=[[number + 1, *row] for number, row in enumerate(used)],
            ),
        ],
        panels=panels(play.shares),
        notes=[
            "IF CUT is the share of tasks that could be cut. Expected is the share of whole tasks, "
            f"give or take {_TOLERANCE:.0%} or {_TASK_TOLERANCE:.0%} of a task: "
            + (f"{'; '.join(wrong)}." if wrong else "so it is in every phase."),
            "Whole tasks end one by one: while a larger one waits for its room, some idles.",
        ],
    )
    return found, wrong
