"""drf demo: half a minute of fair scheduling by a private drfd, with real processes.

Three pools stand in for users: the example of the DRF paper, a third pool for the disk, and a job
that exceeds its demand. On a terminal a live table is shown, elsewhere plain lines; a summary
follows.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drfd.client.autostart import await_daemon, spawn_daemon
from drfd.client.connection import Connection
from drfd.common.errors import Unavailable
from drfd.common.units import show_size
from drfd_cli import output
from drfd_cli.commands.shares import POOLS
from drfd_cli.output import Column
from drfd_cli.tables.layout import TextTable

if TYPE_CHECKING:
    from drfd.protocol.replies import DoctorReply, JobView, NodeView, SharesReply, SubmitReply

    Show = Callable[[SharesReply, list[JobView], float], None]

#: The environment variable by which the tasks of a demo are found.
_MARK = "DRF_DEMO"
#: Seconds that the start of the daemon may take, longer than a client waits.
_START_S = 240.0
#: Seconds after which a daemon without a launcher gets none any more, and the name of its log.
_LAUNCHER_S, _LOG = 30.0, "drfd.log"
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
    """Show half a minute of fair scheduling with real processes: this machine simulates one of 9
    cores and 18G, which three pools share as if they were users. One job uses more memory than it
    declared, and is stopped."""
    with (
        _directory() as directory,
        _private_daemon(directory) as client,
    ):
        return _play(client, directory)


def _play(client: Connection, directory: Path) -> int:
    doctor = _controls_of(client, directory)
    # The fraction of its declared memory that each process touches.
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    scale = min(1.0, min(_TOUCH_BYTES, free / 4) / _DECLARED_BYTES)
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
            # The highest dominant share of each pool, until the third one has jobs.
            nodes = pools(shares)
            if not any(
                node["path"] == "root.C" and node["running"] + node["pending"] for node in nodes
            ):
                for node in nodes:
                    name, share = node["path"].removeprefix("root."), node["dominant_share"]
                    peak[name] = max(peak.get(name, 0.0), share)
            show(shares, jobs, time.monotonic() - started)
            if not later and all(job["ended_at"] for job in jobs):
                break
            time.sleep(_FRAME_S)
    jobs = client.request("status", ended=100)["jobs"]
    _tell(closing(jobs, peak))
    # All honest tasks complete, and the liar is stopped.
    states = {job["id"]: job["state"] for job in jobs}
    planned = {each: "OUT_OF_MEMORY" if task.lies else "COMPLETED" for each, task in names.items()}
    return 0 if {each: states.get(each) for each in planned} == planned else 1


@contextmanager
def _screen() -> Iterator[Show]:
    """Yield a function that draws a table on a terminal, over the one before, or else prints what
    is new as lines."""
    if not output.is_terminal():
        yield partial(_print_news, {})
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


def _submit(client: Connection, task: DemoTask, directory: Path, scale: float) -> int:
    argv = argv_for(task, directory, scale)
    out = str(directory / "%x-%j.out")
    reply: SubmitReply = client.request(
        "submit", argv=argv, cwd="/", pool=task.pool, demand=task.demand, stdout=out, stderr=out,
        env={"PATH": "/usr/bin:/bin", _MARK: directory.name}, time_limit_s=60,
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


def argv_for(task: DemoTask, directory: Path, scale: float) -> list[str]:
    argv = [sys.executable, "-I", "-m", "drfd_cli.demo_workload", "--seconds", str(_TASK_S)]
    if task.lies:
        return [*argv, "--memory", "200M"]
    # The interpreter needs 32 MiB of the declared memory.
    touched = int(task.memory_bytes * scale)
    argv += ["--memory", str(max(MIB, touched - 32 * MIB))]
    if task.write_bps:
        return [*argv, "--write", str(directory / f"data-{os.urandom(4).hex()}")]
    return [*argv, "--cores", str(task.cores_milli / 1000)]


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
        "Limits here: "
        + ", ".join(f"{name} {text.split(':')[0]}" for name, text in doctor["controls"].items()),
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


def _print_news(
    seen: dict[int, str], shares: SharesReply, jobs: list[JobView], at_s: float
) -> None:
    """Print a line if jobs have started or ended since the last call; `seen` is their states."""
    begun = (job for job in jobs if job["state"] == "RUNNING" or job["ended_at"])
    news = [job for job in begun if seen.get(job["id"]) != job["state"]]
    news.sort(key=lambda job: job["ended_at"] or job["started_at"] or 0)
    seen |= {job["id"]: job["state"] for job in news}
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


# -- the private daemon, which leaves nothing behind --------------------------------------------


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off what ends a demo from outside until the end of the block, which cleans up."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda each, frame: caught.append(each))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if caught:
            signal.raise_signal(caught[0])


@contextmanager
def _directory() -> Iterator[Path]:
    """Yield a temporary directory, which is removed at the end, also after a signal."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, frame: sys.exit(128 + caught))
    place = Path(tempfile.mkdtemp(prefix="drf-demo-"))
    # The daemon must read it after it has dropped root's rights.
    place.chmod(0o755)
    try:
        yield place
    finally:
        with uninterrupted():
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _private_daemon(place: Path) -> Iterator[Connection]:
    config, socket_path = place / "drfd.toml", place / "drfd.sock"
    config.write_text(config_for(place))
    log_path = place / _LOG
    process = spawn_daemon(
        log_path, "--state", place / "state", "--socket", socket_path, "--config", config
    )
    try:
        await_daemon(process, socket_path, log_path, within_s=_START_S)
        yield Connection(socket_path)
    finally:
        with uninterrupted():
            _end_jobs(socket_path)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def config_for(place: Path) -> str:
    """Return the configuration of section 4.1 of the DRF paper: 9 CPUs and 18 GB."""
    # Root's daemon would else become the user drfd, if there is one, and take signed jobs alone.
    user = 'user = "root"' if os.getuid() == 0 else ""
    return f"""
[capacity]
cores = 9
memory = "18G"
reserve_memory = 0
[[disk]]
name = "demo"
path = "{place}"
read = "200M"
write = "200M"
[pools.A]
[pools.B]
[pools.C]
[scheduling]
respect_external_load = false
[daemon]
{user}
[enforcement]
grace = "2s"
"""


def _controls_of(client: Connection, place: Path) -> DoctorReply:
    """Return the reply to `doctor`, once the launcher has reported what it can enforce. Raises
    Unavailable, with the last reason in the daemon's log, if there is no launcher."""
    doctor: DoctorReply = client.request("doctor")
    while not doctor["controls"]:
        if (doctor["launcher_away_s"] or 0) > _LAUNCHER_S:
            log = (place / _LOG).read_text(errors="replace").splitlines()
            said = [line for line in log if line.startswith("drfd-launcher: ")]
            reasons = [line for line in said if " event=" not in line] or said
            raise Unavailable("no-launcher", (reasons or ["drfd-launcher: it did not start"])[-1])
        time.sleep(0.05)
        doctor = client.request("doctor")
    return doctor


def _end_jobs(socket_path: Path) -> None:
    """Cancel all jobs, which would outlive their daemon."""
    client = Connection(socket_path)
    deadline = time.monotonic() + 15
    try:
        client.request("cancel", select={"everything": True})
        while client.request("status")["jobs"] and time.monotonic() < deadline:
            time.sleep(0.1)
    except Unavailable:
        # The daemon never answered, so it has started nothing.
        return
