"""drf demo: half a minute of fair scheduling by a private drfd, with real processes.

Three pools stand in for users: the example of the DRF paper, a third pool for the disk, and a job
that exceeds its demand. On a terminal a live table is shown, elsewhere plain lines; a summary
follows.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd.common.units import show_size
from drfd_cli import output
from drfd_cli.commands.shares import POOLS
from drfd_cli.demo import private_daemon
from drfd_cli.output import Column
from drfd_cli.tables.layout import TextTable

if TYPE_CHECKING:
    from drfd.protocol.replies import DoctorReply, JobView, NodeView, SharesReply, SubmitReply

    Show = Callable[[SharesReply, list[JobView], float], None]

#: Seconds between two drawings.
_FRAME_S = 0.25
#: Seconds after which the demo ends, whatever its jobs do.
_LONGEST_S = 60.0
GIB = 1 << 30
MIB = 1 << 20

#: Seconds between the jobs of the first two pools and those of the third.
SECOND_WAVE_S = 3.0
_TASK_S = 5
#: What to do after the demo.
_NEXT = (
    "",
    "What next:",
    "  drf submit -c 1 -m 1G -- CMD   queues a job of yours",
    "  drf top                        shows the machine, live",
    "  drf doctor                     says what is enforced here, and what is not",
    "  drf --help                     lists the other commands",
)
#: Most bytes that all processes together touch; they also touch at most a quarter of free memory.
_TOUCH_BYTES = 1 * GIB
_DECLARED_BYTES = 14 * GIB
#: Most columns of a bar, and columns of the table beside it.
_BAR, _BESIDE = 24, 62


@click.command("demo")
def command() -> int:
    """Half a minute of fair scheduling: this machine simulates one of 9 cores and 18G, on which
    three pools stand in for users, with real processes, and one that lies and is stopped."""
    with (
        private_daemon.directory() as directory,
        private_daemon.private_daemon(directory) as client,
    ):
        return _play(client, directory)


def _play(client: Connection, directory: Path) -> int:
    doctor = private_daemon.controls_of(client, directory)
    scale = memory_scale()
    _tell(opening(doctor, scale))
    client.request("drain", on=True)
    names = {}
    for task in _FIRST_WAVE:
        names[_submit(client, task, directory, scale)] = task
    client.request("drain", on=False)
    with _screen() as show:
        started = time.monotonic()
        later = _SECOND_WAVE
        peak: dict[str, float] = {}
        while time.monotonic() - started < _LONGEST_S:
            if later and time.monotonic() - started > SECOND_WAVE_S:
                names |= {_submit(client, task, directory, scale): task for task in later}
                later = []
            shares = client.request("shares")
            jobs = client.request("status", ended=100)["jobs"]
            _remember_first(peak, shares)
            show(shares, jobs, time.monotonic() - started)
            if not later and all(job["ended_at"] for job in jobs):
                break
            time.sleep(_FRAME_S)
    jobs = client.request("status", ended=100)["jobs"]
    _tell(closing(jobs, peak))
    return 0 if went_as_planned(jobs, names) else 1


@contextmanager
def _screen() -> Iterator[Show]:
    """Yield a function that draws a table on a terminal, over the one before, or else prints what
    is new as lines."""
    if not output.is_terminal():
        yield _Lines().show
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        yield lambda *now: live.update(Text.from_ansi(_table(*now)), refresh=True)


def _tell(lines: list[str]) -> None:
    """Print lines, on a terminal wrapped at its width."""
    columns = output.width()
    for line in lines:
        pieces = [line]
        if output.is_terminal():
            indent = " " * (len(line) - len(line.lstrip()) + 4)
            pieces = textwrap.wrap(line, columns, subsequent_indent=indent) or [line]
        click.echo("\n".join(pieces))


def _remember_first(peak: dict[str, float], shares: SharesReply) -> None:
    """Update the highest dominant share of each pool, until the third one has jobs."""
    nodes = {node["path"].removeprefix("root."): node for node in pools(shares)}
    if nodes["C"]["running"] or nodes["C"]["pending"]:
        return
    for name, node in nodes.items():
        peak[name] = max(peak.get(name, 0.0), node["dominant_share"])


def _submit(client: Connection, task: DemoTask, directory: Path, scale: float) -> int:
    argv = argv_for(task, directory, scale)
    out = str(directory / "%x-%j.out")
    reply: SubmitReply = client.request(
        "submit", argv=argv, cwd="/", pool=task.pool, demand=task.demand, stdout=out, stderr=out,
        env={"PATH": "/usr/bin:/bin", private_daemon.MARK: directory.name}, time_limit_s=60,
        name=task.name,
    )  # fmt: skip
    return reply["id"]


@dataclass(frozen=True, slots=True)
class DemoTask:
    """A job of the demo: its demand, and whether it exceeds (`lies`) that."""

    name: str
    pool: str
    cores_milli: int
    memory_bytes: int
    write_bps: int = 0
    lies: bool = False

    @property
    def demand(self) -> dict[str, int]:
        return {
            "cores_milli": self.cores_milli,
            "memory_bytes": self.memory_bytes,
            "write_bps": self.write_bps,
        }


#: B submits first, so it starts first: B A A B A.
_FIRST_WAVE = [
    *[DemoTask("B-cpu", "B", 3000, GIB)] * 3,
    *[DemoTask("A-memory", "A", 1000, 4 * GIB)] * 4,
]
_SECOND_WAVE = [
    *[DemoTask("C-disk", "C", 500, 512 * MIB, write_bps=60 * MIB)] * 4,
    DemoTask("C-liar", "C", 500, 64 * MIB, lies=True),
]


def memory_scale() -> float:
    """Return the fraction of its declared memory that each process touches."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(1.0, min(_TOUCH_BYTES, free / 4) / _DECLARED_BYTES)


def argv_for(task: DemoTask, directory: Path, scale: float) -> list[str]:
    argv = [sys.executable, "-I", "-m", "drfd_cli.demo.workload", "--seconds", str(_TASK_S)]
    if task.lies:
        return [*argv, "--memory", "200M"]
    # The interpreter needs 32 MiB of the declared memory.
    touched = int(task.memory_bytes * scale)
    argv += ["--memory", str(max(MIB, touched - 32 * MIB))]
    if task.write_bps:
        return [*argv, "--write", str(directory / f"data-{os.urandom(4).hex()}")]
    return [*argv, "--cores", str(task.cores_milli / 1000)]


def went_as_planned(jobs: list[JobView], tasks: dict[int, DemoTask]) -> bool:
    """Return whether all honest tasks completed and the liar was stopped."""
    states = {job["id"]: job["state"] for job in jobs}
    return all(
        states.get(job_id) == ("OUT_OF_MEMORY" if task.lies else "COMPLETED")
        for job_id, task in tasks.items()
    )


def pools(shares: SharesReply) -> list[NodeView]:
    """Return the nodes of the three pools, without the user below each."""
    return [node for node in shares["nodes"] if node["path"].count(".") == 1]


def opening(doctor: DoctorReply, scale: float) -> list[str]:
    return [
        "This machine simulates one of 9 cores and 18G, as in the DRF paper, and three pools "
        "stand in for users:",
        "  A  tasks of 1 core, 4G       its dominant resource is memory",
        "  B  tasks of 3 cores, 1G      its dominant resource is the CPU",
        "  C  tasks of 60M/s of disk    comes later, with one job that lies about its memory",
        f"Each process touches {scale:.0%} of the memory it declares, to do this machine no harm.",
        private_daemon.limits_line(doctor),
    ]


def _table(shares: SharesReply, jobs: list[JobView], at_s: float) -> str:
    wide = max(4, min(_BAR, output.width() - _BESIDE))

    def bar(node: NodeView) -> str:
        share = node["dominant_share"]
        return f"{share:4.0%} {('█' * round(share * wide)).ljust(wide, '·')}"

    columns = [
        *(POOLS[key] for key in ("path", "running", "pending", "cores", "memory", "io")),
        POOLS["dominant_resource"],
        Column("SHARE", bar, is_fixed=True),
    ]
    ended = [job for job in jobs if job["ended_at"]]
    caption = f"{at_s:.0f} s, {len(ended)} of {len(jobs)} jobs have ended"
    return "\n".join([*TextTable(columns).lines(pools(shares)), "", f" {caption}"])


class _Lines:
    """Prints a line whenever a job starts or ends."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def show(self, shares: SharesReply, jobs: list[JobView], at_s: float) -> None:
        started_or_ended = [job for job in jobs if job["state"] == "RUNNING" or job["ended_at"]]
        news = [job for job in started_or_ended if self._seen.get(job["id"]) != job["state"]]
        news.sort(key=lambda job: job["ended_at"] or job["started_at"] or 0)
        self._seen |= {job["id"]: job["state"] for job in news}
        levels = ", ".join(
            f"{node['path'].removeprefix('root.')} {node['dominant_share']:.0%}"
            for node in pools(shares)
        )
        words = ", ".join(f"{job['name']} {job['state']}" for job in news)
        if words:
            click.echo(f"{at_s:5.1f} s  shares {levels}  {words}")


def closing(jobs: list[JobView], first_shares: dict[str, float]) -> list[str]:
    """Return the lines of the summary. `first_shares` are the highest dominant shares before the
    third pool."""
    started = sorted(
        (job for job in jobs if job["started_at"]), key=lambda job: job["started_at"] or 0.0
    )
    order = " ".join(job["pool"].removeprefix("root.") for job in started[:5])
    levels = ", ".join(f"{name} {share:.0%}" for name, share in first_shares.items() if share)
    lines = [
        "",
        f"First launches: {order}   (the paper's Table 1: B A A B A)",
        f"Dominant shares then: {levels}   (the paper: 2/3 each)",
        "Outcomes:",
    ]
    for job in jobs:
        peak = show_size(job["usage"]["memory_peak"])
        cpu_s = job["usage"]["cpu_seconds"]
        lines.append(
            f"  job {job['id']:>2} {job['name']:<9} {output.show_elapsed(job):>4}, "
            f"{cpu_s:4.1f} s of CPU, {peak:>5} at most  {output.why_line(job)}"
        )
    return [*lines, *_NEXT]
