"""drf demo fig8: figure 8 of the DRF paper with real processes, in a minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd_cli import demo_daemon, demo_pressure, demo_scale, figure_view, output, plot, plot_file
from drfd_cli.demo_scale import Scale
from drfd_cli.options import as_json

if TYPE_CHECKING:
    from drfd.sim.figures import Figure, Panel
    from drfd.sim.paper.sharing import Phase

View = dict[str, Any]

#: Of the paper's 48.
_NODES = 2
#: The mean share may be so far from that of whole tasks on an empty machine: in itself, or as part
#: of one task of the job.
_TOLERANCE = 0.12
_TASK_TOLERANCE = 0.6
#: What a task may use above what it declared, by rounding of the kernel's accounts.
_SLACK = 1.2
_FRAME_S = 0.2
#: A task lasts a sixth of a phase, but takes a while to start.
_LEAST_TASK_S = 2.0


class Play:
    """The two jobs: what they submit, and what they held."""

    def __init__(self, client: Connection, place: Path, scale: Scale, phase_s: int) -> None:
        from drfd.sim.paper.sharing import JOBS, NODE, PHASES

        self._client, self._place, self._scale, self._phase_s = client, place, scale, phase_s
        self._phases = PHASES
        self._task_s = max(_LEAST_TASK_S, phase_s / 6)
        self.doctor = demo_daemon.controls_of(client)
        self._greedy = self.doctor["controls"]["cores"] == "enforced"
        self._pools = {job: job.replace(" ", "") for job in JOBS}
        self._tops = tuple(each * _NODES for each in NODE)
        self._phase = -1
        #: Second by second, what each job held of CPUs and memory.
        self.shares: dict[str, list[tuple[float, float]]] = {job: [] for job in JOBS}

    def play(self, screen: Screen) -> None:
        started = time.monotonic()
        while (at_s := time.monotonic() - started) < self._phase_s * len(self._phases):
            phase = int(at_s // self._phase_s)
            if phase != self._phase:
                self._phase = phase
                # Or the first of the two jobs would have the machine for itself for a moment.
                self._client.request("drain", on=True)
                self._client.request("cancel", select={"states": ["PENDING"], "everything": True})
                self._submit(self._phases[phase])
                self._client.request("drain", on=False)
            self._sample(int(at_s))
            screen.show(self, at_s)
            time.sleep(_FRAME_S)

    def _submit(self, phase: Phase) -> None:
        """An array for each job, of more tasks than can start in the phase."""
        most = int(2 * self._tops[0] * self._phase_s / self._task_s)
        for pool, (cpus, gb) in zip(self._pools.values(), phase.demands, strict=True):
            demand = self._scale.demand(cpus, gb)
            self._client.request(
                "submit",
                argv=demo_scale.argv_for(demand, self._task_s, greedy=self._greedy),
                cwd="/",
                name=f"phase{self._phase + 1}",
                pool=pool,
                demand=demand,
                array=f"0-{most}",
                time_limit_s=60,
                stdout=str(self._place / f"{pool}.out"),
                stderr=str(self._place / f"{pool}.out"),
                env={"PATH": "/usr/bin:/bin", demo_pressure.MARK: self._place.name},
            )

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
            # On a machine that is slow, a second may pass without a look.
            rows += [row] * (second + 1 - len(rows))

    def used(self) -> list[tuple[float, float]]:
        """Of each phase's tasks that have ended: the processor time that they took, and the most
        memory that one had, as parts of what they declared."""
        jobs = self._client.request("status", ended=10_000, tasks=True)["jobs"]
        found = []
        for number in range(len(self._phases)):
            done = [
                each for each in jobs
                if each["name"] == f"phase{number + 1}" and each["state"] == "COMPLETED"
            ]  # fmt: skip
            asked_s = sum(
                each["demand"]["cores"] * (each["ended_at"] - each["started_at"]) for each in done
            )
            used_s = sum(each["usage"]["cpu_seconds"] for each in done)
            memory = max(
                (each["usage"]["memory_peak"] / each["demand"]["memory"] for each in done),
                default=0.0,
            )
            found.append((used_s / asked_s if asked_s else 0.0, memory))
        return found


def filled(phase: Phase) -> list[float]:
    """The dominant share of each job when the empty machine is filled with whole tasks."""
    from drfd.sim.paper.sharing import JOBS, NODE
    from drfd.sim.paper.worked import divide

    machine = tuple(zip(("CPU", "memory"), (each * _NODES for each in NODE), strict=True))
    users = tuple(zip(JOBS, phase.demands, strict=True))
    found = divide(machine, users, mode="discrete")
    return [float(found.dominant_share(job)) for job in JOBS]


@click.command("fig8")
@click.option(
    "--seconds",
    type=click.IntRange(12, 600),
    default=60,
    show_default=True,
    help="How long it takes; three phases of the same length.",
)
@plot_file.plot_option
@as_json
def command(seconds: int, plot_path: str | None, as_json: bool) -> int:
    """Figure 8 of the DRF paper with real processes: two jobs share this machine, and their tasks
    change twice.

    Exits with 1 when the shares of a phase are not those that DRF promises.
    """
    from drfd.sim.paper.sharing import JOBS, NODE

    plot_file.check(plot_path)
    phase_s = seconds // 3
    cpus, gb = (each * _NODES for each in NODE)
    scale = demo_scale.scale_for(cpus, gb)
    with demo_daemon.directory() as place:
        config = demo_scale.config_for(
            place,
            [job.replace(" ", "") for job in JOBS],
            cores_milli=cpus * scale.cpu_milli,
            memory_bytes=gb * scale.gb_bytes,
        )
        with demo_daemon.private_daemon(place, config) as client:
            play = Play(client, place, scale, phase_s)
            if not as_json:
                opening(play.doctor, scale, f"{cpus} CPUs and {gb} GB: {_NODES} of its 48 nodes.")
            with _screen(quiet=as_json) as screen:
                play.play(screen)
            found, wrong = _figure(play, phase_s)
    return closing(found, wrong, plot_path, as_json=as_json)


def closing(found: Figure, wrong: list[str], plot_path: str | None, *, as_json: bool) -> int:
    """The figure, where it was asked for; the exit status: 1 if anything is `wrong` with it."""
    if plot_path is not None:
        plot_file.write(plot_path, found.title, found.panels)
    if as_json:
        output.print_json(found.view() | {"as_expected": not wrong})
    else:
        click.echo()
        figure_view.show([found])
    return 1 if wrong else 0


def opening(doctor: View, scale: Scale, machine: str) -> None:
    click.echo(f"{machine} {scale.words}")
    controls = doctor["controls"].items()
    words = ", ".join(f"{name} {text.split(':')[0]}" for name, text in controls)
    output.tell(f"Limits here: {words}")
    for name in ("cores", "memory"):
        if doctor["controls"][name] != "enforced":
            output.tell(f"Of {name}, tasks keep to what they declare because they are honest.")


class Screen:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def show(self, play: Play, at_s: float) -> None:
        if at_s >= self._next_s:
            self._next_s = at_s + 2
            levels = ", ".join(f"{job} {max(rows[-1]):.0%}" for job, rows in play.shares.items())
            click.echo(f"{at_s:5.1f} s  dominant shares: {levels}")


class _Silent(Screen):
    def show(self, play: Play, at_s: float) -> None:
        pass


class _Chart(Screen):
    """The dominant shares so far, drawn anew every second."""

    def __init__(self, live: Any) -> None:
        super().__init__()
        self._live = live

    def show(self, play: Play, at_s: float) -> None:
        from rich.text import Text

        if at_s >= self._next_s:
            self._next_s = at_s + 1
            self._live.update(Text(plot.draw(_panels(play)[-1])), refresh=True)


@contextmanager
def _screen(*, quiet: bool) -> Iterator[Screen]:
    if quiet or not output.is_terminal():
        yield _Silent() if quiet else Screen()
        return
    from rich.live import Live

    with Live(auto_refresh=False, transient=True) as live:
        yield _Chart(live)


def _panels(play: Play) -> list[Panel]:
    from drfd.sim.paper.sharing import panels

    return panels(play.shares)


def _figure(play: Play, phase_s: int) -> tuple[Figure, list[str]]:
    """What came out, and what of it is not as DRF promises."""
    from drfd.sim.figures import Column, Figure, Table
    from drfd.sim.paper.sharing import JOBS, NODE, PHASES, phase_table, steady

    wrong = []
    used = play.used()
    for number, phase in enumerate(PHASES):
        rows = zip(JOBS, phase.demands, filled(phase), strict=True)
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
                columns=[Column("PHASE"), Column("CPU TIME", "%"), Column("MOST MEMORY", "%")],
                rows=[[number + 1, *row] for number, row in enumerate(used)],
            ),
        ],
        panels=_panels(play),
        notes=[
            "IF CUT is the share of tasks that could be cut. Expected is the share of whole tasks, "
            f"give or take {_TOLERANCE:.0%} or {_TASK_TOLERANCE:.0%} of a task: "
            + (f"{'; '.join(wrong)}." if wrong else "so it is in every phase."),
            "Whole tasks end one by one: while a larger one waits for its room, some idles.",
        ],
    )
    return found, wrong
