"""drf demo cluster: figures 8 and 9 of the DRF paper over three nodes, live and simulated.

The nodes are all on this host: one is drfd's own machine, two are of a private Slurm. What the live
tasks are given is compared with what the simulator's nodes give to theirs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import click

from drfd.common.errors import HostError, Refused
from drfd_cli import charts
from drfd_cli.demo import private_daemon
from drfd_cli.options import asked_form, prints_result
from drfd_cli.output import Result
from drfd_experiments.commands import fig8, three_nodes
from drfd_experiments.commands.fig8 import closing
from drfd_experiments.commands.three_nodes import NODES, Crowd, Tally
from drfd_experiments.figures import Cell, Column, Figure, Table, plot_option
from drfd_experiments.sharing import JOBS, PHASES, Shares, panels, steady

#: Largest difference between a live and a simulated mean share, as a fraction of all nodes. A node
#: has room for few tasks, and which of them end together is chance.
_TOLERANCE = 0.12
#: Largest difference between the live and the simulated mean number of running tasks.
_TASK_TOLERANCE = 1.5
#: The parts of the time for figure 8, and for each way of sharing of figure 9.
_PARTS = (0.6, 0.13)
#: Runs of the simulator, whose mean is compared.
_SEEDS = range(8)


@click.command("cluster")
@click.option(
    "--seconds",
    type=click.IntRange(40, 1200),
    default=100,
    show_default=True,
    help="How long tasks run; the starts of drfd and Slurm come to that.",
)
@plot_option
@prints_result()
def command(seconds: int, plot_path: str | None) -> Result:
    """Figures 8 and 9 of the DRF paper over three nodes, live beside the simulator, in two minutes:
    this machine stands for all three, two of which are of a private Slurm.

    Needs root, and the packages slurm-wlm and munge. No Slurm that runs here is touched. Exits with
    1 when live and simulated results differ by more than the tolerance that it prints, or a task
    fails.
    """
    _refuse_without_slurm()
    charts.check_plot(plot_path)
    quiet = not asked_form().is_for_people
    phase_s, way_s = (int(part * seconds) for part in (_PARTS[0] / 3, _PARTS[1]))
    scale = three_nodes.scale()
    tally = Tally()
    crowds = []
    with private_daemon.directory() as place, three_nodes.slurm(place):
        with three_nodes.daemon(place, three_nodes.figure8_config(place, scale)) as client:
            play = fig8.Scenario(
                client, place, scale, phase_s, nodes=len(NODES), is_busy=False,
                options=three_nodes.SPREAD_OPTIONS,
            )  # fmt: skip
            if not quiet:
                click.echo(three_nodes.opening(scale))
            with fig8.screen(quiet=quiet) as show:
                play.play(show)
            tally.add(client)
        for way in three_nodes.ways():
            with three_nodes.daemon(place, three_nodes.figure9_config(place, scale, way)) as client:
                crowds.append(three_nodes.play_figure9(client, place, scale, way, way_s))
                tally.add(client)
            if not quiet:
                words = ", ".join(f"{mean:.1f} {kind}" for kind, mean in crowds[-1].tasks.items())
                click.echo(f"{way.name:<8} mean number of running tasks: {words}")
    shares = Sharing(play.shares, three_nodes.simulated_shares(phase_s, _SEEDS), phase_s)
    pairs = [
        (crowd, three_nodes.simulated_crowd(way, way_s, _SEEDS))
        for crowd, way in zip(crowds, three_nodes.ways(), strict=True)
    ]
    found, wrong = figure(shares, pairs, tally)
    return closing(found, wrong, plot_path)


def _refuse_without_slurm() -> None:
    if os.getuid() != 0:
        raise Refused(
            "not-root",
            "drf demo cluster needs root: Slurm's daemons start jobs as their users",
            hint="run it with sudo",
        )
    lacking = three_nodes.lacking_packages()
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
    sharing: Sharing, crowds: list[tuple[Crowd, Crowd]], tally: Tally
) -> tuple[Figure, list[str]]:
    """Return the figure, and a sentence for each result that is not as the simulator's.

    `crowds` are live and simulated ones, of the ways of `three_nodes.ways`.
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
        Column("PHASE"), Column("JOB"), Column("TASK"), Column("LIVE", "%"),
        Column("SIMULATED", "%"), Column("THE PAPER"),
    ]  # fmt: skip
    title = "Figure 8: mean dominant shares in the second half of each phase"
    return Table(title=title, columns=columns, rows=rows), wrong


def _tasks(crowds: list[tuple[Crowd, Crowd]]) -> tuple[Table, list[str]]:
    rows: list[list[Cell]] = []
    wrong = []
    for way, (live, simulated) in zip(three_nodes.ways(), crowds, strict=True):
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
        Column("SHARED BY"), Column("LARGE"), Column("SIMULATED"), Column("SMALL"),
        Column("SIMULATED"), Column("TOO LITTLE MEMORY", "%"), Column("SIMULATED", "%"),
    ]  # fmt: skip
    title = "Figure 9: mean numbers of running tasks"
    return Table(title=title, columns=columns, rows=rows), wrong


def _nodes(tally: Tally) -> Table:
    return Table(
        title="Live tasks that have ended on each node",
        columns=[Column("NODE"), Column("STARTED BY"), Column("COMPLETED"), Column("FAILED")],
        rows=[
            [name, "Slurm" if engine == "slurm" else "drfd", tally.done[name], tally.failed[name]]
            for name, engine in NODES.items()
        ],
    )
