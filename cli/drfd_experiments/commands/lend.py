"""drf demo lend: idle cores are lent to running jobs, in a minute, with real processes.

Three pools stand in for users. Each has one job of two processes that spin; it holds a quarter of a
core and could use a whole one. Only memory, which the first one holds most of, tells them apart.
The third job sleeps now and then. The same is run twice: with a quota of what is declared, and with
lending.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd.common.errors import Refused
from drfd.core.model.resources import Resources
from drfd.sim.driver import LendingSpeeds, work_s
from drfd.sim.figures import Panel
from drfd.sim.machine import rules_of
from drfd.sim.workload import SimJob
from drfd_cli.demo import private_daemon
from drfd_experiments.commands.fig9 import directory
from drfd_experiments.figures import Cell, Figure, Header, Table, live_figure

if TYPE_CHECKING:
    from drfd.protocol.replies import DoctorReply

MIB = 1 << 20
#: The one core that is given out, the floor of each job, and the most that it may be lent.
_CAPACITY_MILLI, _FLOOR_MILLI, _MOST_MILLI = 1000, 250, 1000
#: The memory that is given out, and what the job of each pool holds of it.
_MEMORY_BYTES = 640 * MIB
_HELD_BYTES = {"A": 384 * MIB, "B": 64 * MIB, "C": 64 * MIB}
#: The pool whose job sleeps now and then.
_SLEEPER = "C"
#: What the daemon does with cores (`enforcement.cores`), and its name here.
_WORDS = {"quota": "with quotas", "share": "lent"}
#: How often the sleeper is awake, and asleep, in each mode.
_TURNS = 2
#: Seconds between two samples.
_FRAME_S = 0.1
#: Seconds after a change that do not count: the daemon lends anew each second.
_SETTLE_S = 2.5
#: Seconds after it has woken up in which the sleeper must have its floor.
_WAKE_S = 0.5
#: Largest difference between a mean use and the theory, in cores, and the least part of its floor
#: that a job must have.
_TOLERANCE, _OF_FLOOR = 0.08, 0.8


@dataclass(frozen=True, slots=True)
class CpuSample:
    """Processor time since the start of the jobs, in seconds."""

    at_s: float
    #: By pool.
    used: dict[str, float]


@dataclass
class Recording:
    """What was measured in one mode."""

    mode: str
    samples: list[CpuSample] = field(default_factory=list)
    #: (from, until, whether the sleeper was asleep), in seconds, one after the other.
    turns: list[tuple[float, float, bool]] = field(default_factory=list)

    def mean(self, pool: str, *, asleep: bool) -> float:
        """Return the cores that the pool used on average, while the sleeper was asleep or not."""
        spans = [(start + _SETTLE_S, end) for start, end, slept in self.turns if slept == asleep]
        found = [self.used(pool, *span) for span in spans]
        return sum(found) / sum(end - start for start, end in spans)

    def after_waking(self) -> float:
        """Return the fewest cores that the sleeper had after it was woken up."""
        return min(
            self.used(_SLEEPER, start, start + _WAKE_S) / _WAKE_S
            for start, _, asleep in self.turns[1:]
            if not asleep
        )

    def rates(self, pool: str) -> list[tuple[float, float]]:
        """Return the cores used in each second: (middle of the second, cores)."""
        ends = range(1, int(self.samples[-1].at_s) + 1)
        return [(end - 0.5, self.used(pool, end - 1, end)) for end in ends]

    def used(self, pool: str, start_s: float, end_s: float) -> float:
        """Return the processor time between two moments, in core-seconds."""
        return self._until(pool, end_s) - self._until(pool, start_s)

    def _until(self, pool: str, at_s: float) -> float:
        """Return the processor time until a moment, on a straight line between two samples."""
        before = after = self.samples[0]
        for after in self.samples:
            if after.at_s >= at_s:
                break
            before = after
        span_s = after.at_s - before.at_s
        part = min(1.0, max(0.0, (at_s - before.at_s) / span_s)) if span_s else 0.0
        return before.used[pool] + part * (after.used[pool] - before.used[pool])


@live_figure("lend", 32, 56, 600, "How long it takes; half with quotas, half with lending.")
def command(seconds: int, *, quiet: bool) -> tuple[Figure, list[str]]:
    """Idle cores that are lent to running jobs, with real processes: who uses what of one core,
    without lending and with it, beside the theory.

    Exits with 1 when uses are not those that DRF promises.
    """
    found: list[Recording] = []
    for mode in _WORDS:
        with (
            private_daemon.directory() as place,
            private_daemon.private_daemon(place, _config(place, mode)) as client,
        ):
            check_lending(private_daemon.controls_of(client), mode)
            if not found and not quiet:
                _open()
            show = private_daemon.every(inf if quiet else 2.0, _print_uses)
            found.append(_play(client, place, mode, seconds / 2, show))
    return figure_of(found)


def _config(place: Path, mode: str) -> str:
    text = private_daemon.config_for(
        place, list(_HELD_BYTES), cores_milli=_CAPACITY_MILLI, memory_bytes=_MEMORY_BYTES
    )
    # The last table is that of enforcement.
    return f'{text}cores = "{mode}"\n'


def check_lending(doctor: DoctorReply, mode: str) -> None:
    """Raise Refused where nothing can be lent."""
    said = doctor["controls"]["cores"]
    if not said.startswith("enforced") or (mode == "share" and "lent" not in said):
        raise Refused(
            "not-lent",
            f"cores cannot be lent here ({said}): that needs cgroups in which drfd may limit them",
            hint="run it as root, or as a user with a systemd session of your own; "
            "see docs/enforcement.md",
        )


def _open() -> None:
    floor, most = _FLOOR_MILLI / 1000, _MOST_MILLI / 1000
    click.echo("Three pools stand in for users, and share one core of this machine. Each has a")
    click.echo(f"job that holds {floor:g} cores and could use {most:g} (-c {floor:g}..{most:g}):")
    for pool, size in _HELD_BYTES.items():
        sleeps = ", and sleeps now and then" if pool == _SLEEPER else ""
        click.echo(f"  {pool}  holds {size / _MEMORY_BYTES:.0%} of the memory{sleeps}")


def _play(client: Connection, place: Path, mode: str, seconds: float, show: Show) -> Recording:
    """Run the three jobs for so many seconds."""
    asleep = place / "asleep"
    cgroups = _start(client, place, asleep)
    found = Recording(mode)
    length_s = seconds / (2 * _TURNS)
    started = time.monotonic()
    first = {pool: _cpu_s(cgroup) for pool, cgroup in cgroups.items()}
    for turn in range(2 * _TURNS):
        begun_s, is_asleep = time.monotonic() - started, turn % 2 == 1
        if is_asleep:
            asleep.touch()
        else:
            asleep.unlink(missing_ok=True)
        while (at_s := time.monotonic() - started) < begun_s + length_s:
            used = {pool: _cpu_s(cgroup) - first[pool] for pool, cgroup in cgroups.items()}
            found.samples.append(CpuSample(at_s, used))
            show(found, is_asleep=is_asleep)
            time.sleep(_FRAME_S)
        found.turns.append((begun_s, at_s, is_asleep))
    return found


def _start(client: Connection, place: Path, asleep: Path) -> dict[str, str]:
    """Start a job in each pool, and return their cgroups when all run."""
    argv = (
        *(sys.executable, "-I", "-m", "drfd_cli.demo.workload"),
        # Two processes, of which one would be enough for the one core.
        *("--seconds", "3600", "--cores", "2"),
    )
    jobs = {}
    for pool, size in _HELD_BYTES.items():
        demand = {
            "cores_milli": _FLOOR_MILLI, "cores_max_milli": _MOST_MILLI, "memory_bytes": size,
        }  # fmt: skip
        sleeps = ("--asleep", str(asleep)) if pool == _SLEEPER else ()
        out = str(place / f"{pool}.out")
        jobs[pool] = private_daemon.submit(
            client, place, [*argv, *sleeps], pool, demand, out=out, time_limit_s=1200
        )
    return {pool: _cgroup(client, job_id) for pool, job_id in jobs.items()}


def _cgroup(client: Connection, job_id: int) -> str:
    """Wait until the job runs, and return its cgroup. Raises Refused if it does not."""
    while True:
        (job,) = client.request("status", select={"ids": [job_id]})["jobs"]
        if job["state"] == "RUNNING" and job["cgroup"] is not None:
            return str(job["cgroup"])
        if job["state"] not in ("PENDING", "STARTING", "RUNNING"):
            raise Refused("demo-failed", f"a job of the demo did not run: {job['state']}")
        time.sleep(0.05)


def _cpu_s(cgroup: str) -> float:
    """Return the processor time of a job. Raises Refused if it is gone."""
    place = directory("cpuacct", cgroup, "cpu.stat")
    try:
        if place is not None:
            if (place / "cpuacct.usage").exists():
                return int((place / "cpuacct.usage").read_text()) / 1e9
            words = (place / "cpu.stat").read_text().split()
            return int(words[words.index("usage_usec") + 1]) / 1e6
    except OSError:
        # It has gone meanwhile.
        pass
    raise Refused("demo-failed", "a job of the demo is gone, or its use cannot be read")


def theory(*, asleep: bool) -> dict[str, float]:
    """Return the cores that each pool uses under lending."""
    rules = rules_of(Resources(cores_milli=_CAPACITY_MILLI, memory_bytes=_MEMORY_BYTES))
    lender, used, jobs = LendingSpeeds(rules.shares), {}, []
    for number, (pool, held_bytes) in enumerate(_HELD_BYTES.items()):
        job = SimJob(
            id=number, name=pool, submit_s=0, run_s=1, limit_s=None, user=pool,
            demand=Resources(cores_milli=_FLOOR_MILLI, memory_bytes=held_bytes),
            most_cores_milli=_MOST_MILLI, cpu_s=0.0 if asleep and pool == _SLEEPER else None,
        )  # fmt: skip
        leaf = rules.pool_for(pool, None)
        used[leaf] = rules.axes.vector(job.demand)
        lender.start(job, leaf, "", 0)
        jobs.append(job)
    speeds = lender.changed(used, 0)
    return {job.user: speeds[job.id] * work_s(job) for job in jobs}


def figure_of(found: list[Recording]) -> tuple[Figure, list[str]]:
    """Return the figure, and a sentence for each result that contradicts a promise."""
    rows: list[list[Cell]] = []
    wrong = []

    def add(words: str, who: str, uses: list[float], goal: float) -> None:
        rows.append([words, who, *(round(use, 3) for use in (*uses, goal))])

    for asleep, words in ((False, "all are awake"), (True, f"{_SLEEPER} is asleep")):
        expected = theory(asleep=asleep)
        table = [[each.mean(pool, asleep=asleep) for each in found] for pool in expected]
        for (pool, goal), uses in zip(expected.items(), table, strict=True):
            add(words, pool, uses, goal)
            if abs(uses[-1] - goal) > _TOLERANCE:
                wrong.append(f"while {words}, {pool} used {uses[-1]:.2f}, not {goal:.2f}")
        sums = [sum(column) for column in zip(*table, strict=True)]
        add(words, "together", sums, sum(expected.values()))
    floor = _FLOOR_MILLI / 1000
    woken = [each.after_waking() for each in found]
    add(f"its first {_WAKE_S:g} s awake", _SLEEPER, woken, floor)
    if woken[-1] < _OF_FLOOR * floor:
        wrong.append(f"{_SLEEPER} had {woken[-1]:.2f} cores after it was woken up")
    notes = [
        f"Expected when lent: the theory, give or take {_TOLERANCE:g} cores, and for {_SLEEPER} at "
        f"least the floor of {floor:g} as soon as it wakes up: "
        + (f"{'; '.join(wrong)}." if wrong else "so it is."),
        "Theory: each uses its floor, if it can; the rest goes to the smallest dominant shares. "
        f"A's is {_HELD_BYTES['A'] / _MEMORY_BYTES:.0%}, of memory, so the others are lent cores "
        "until they use as large a part of them, and A what is left then.",
    ]
    columns = [
        Header("WHILE"), Header("POOL"), Header("WITH QUOTAS"), Header("LENT"), Header("THEORY"),
    ]  # fmt: skip
    figure = Figure(
        name="lend",
        title="Lending of idle cores with real processes",
        tables=[Table(title="Cores used, of one that is given out", columns=columns, rows=rows)],
        panels=[
            Panel(
                title=f"Cores used over time, {_WORDS[each.mode]}", x="seconds", y="cores",
                top=1.0, curves={pool: each.rates(pool) for pool in _HELD_BYTES},
            )
            for each in found
        ],
        notes=notes,
    )  # fmt: skip
    return figure, wrong


#: Shows what has been measured so far.
Show = Callable[..., None]


def _print_uses(found: Recording, *, is_asleep: bool) -> None:
    at_s = found.samples[-1].at_s
    # In the latest second.
    uses = "  ".join(f"{pool} {found.used(pool, at_s - 1, at_s):.2f}" for pool in _HELD_BYTES)
    note = f"  {_SLEEPER} is asleep" if is_asleep else ""
    click.echo(f"{_WORDS[found.mode]:<11} {at_s:4.0f} s  cores used: {uses}{note}")
