"""The private daemon of a demo, which is started and ended with it and leaves nothing behind; and
how the machines of the DRF paper are scaled to this one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from drfd.client.autostart import await_daemon, spawn_daemon
from drfd.client.connection import Connection
from drfd.common.errors import Refused, Unavailable
from drfd.common.units import exact_size, show_size

if TYPE_CHECKING:
    from drfd.protocol.replies import DoctorReply, SubmitReply


P = ParamSpec("P")
#: The environment variable by which the tasks of a demo are found.
MARK = "DRF_DEMO"
#: Seconds that the start of the daemon may take, longer than a client waits.
_START_S = 240.0


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
def directory(*, on_disk: bool = False) -> Iterator[Path]:
    """Yield a temporary directory, which is removed at the end, also after a signal. With `on_disk`
    it is not in /tmp, which may be in memory."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, frame: sys.exit(128 + caught))
    above = "/var/tmp" if on_disk else None  # noqa: S108  # mkdtemp makes a private directory in it
    place = Path(tempfile.mkdtemp(prefix="drf-demo-", dir=above))
    # The daemon must read it after it has dropped root's rights.
    place.chmod(0o755)
    try:
        yield place
    finally:
        with uninterrupted():
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def private_daemon(place: Path, config_text: str) -> Iterator[Connection]:
    config, socket_path = place / "drfd.toml", place / "drfd.sock"
    config.write_text(config_text)
    log_path = place / "drfd.log"
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


def controls_of(client: Connection) -> DoctorReply:
    """Return the reply to `doctor`, once the launcher has reported what it can enforce."""
    doctor: DoctorReply = client.request("doctor")
    while not doctor["controls"]:
        time.sleep(0.05)
        doctor = client.request("doctor")
    return doctor


def limits_line(doctor: DoctorReply) -> str:
    controls = doctor["controls"].items()
    return "Limits here: " + ", ".join(f"{name} {text.split(':')[0]}" for name, text in controls)


def submit(
    client: Connection, place: Path, argv: list[str], pool: str, demand: dict[str, int], *,
    out: str, time_limit_s: int = 60, **more: object,
) -> int:  # fmt: skip
    """Submit a task of a demo, whose output and errors go to the file `out`, and return its id."""
    reply: SubmitReply = client.request(
        "submit", argv=argv, cwd="/", pool=pool, demand=demand, stdout=out, stderr=out,
        env={"PATH": "/usr/bin:/bin", MARK: place.name}, time_limit_s=time_limit_s, **more,
    )  # fmt: skip
    return reply["id"]


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


# -- what goes on, as it goes on ---------------------------------------------------------------


def every(period_s: float, show: Callable[P, None]) -> Callable[P, None]:
    """Return a function that does the same, at most once in so many seconds; with `inf`, never."""
    next_s = inf if period_s == inf else 0.0

    def show_now(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + period_s
            show(*args, **kwargs)

    return show_now


# -- the machines of the DRF paper, scaled to this one -----------------------------------------


MIB = 1 << 20
#: Bytes that the interpreter of a task needs; the task touches the rest of its memory.
_INTERPRETER_BYTES = 16 * MIB
#: Least memory of a task in bytes, its interpreter included.
_LEAST_TASK_BYTES = 24 * MIB
#: Most bytes that stand for a GB of the paper.
_MOST_GB_BYTES = 64 * MIB
#: Keys of [scheduling] for tasks that are as short as here.
SHORT_TASKS = 'min_charge_time = 0\nreservation_delay = "1s"'


@dataclass(frozen=True, slots=True)
class Scale:
    cpu_milli: int
    gb_bytes: int

    def demand(self, cpus: float, gb: float) -> dict[str, int]:
        return {"cores_milli": int(cpus * self.cpu_milli), "memory_bytes": int(gb * self.gb_bytes)}

    @property
    def words(self) -> str:
        return (
            f"A CPU of the paper is {self.cpu_milli / 1000:g} cores here, a GB "
            f"{show_size(self.gb_bytes)}."
        )


def scale_for(cpus: int, gb: int, *, smallest_gb: float = 1) -> Scale:
    """Return the scale of a machine with these CPUs and GB. They become four fifths of the cores
    here, and a quarter of the free memory, or up to a half if the smallest task, of `smallest_gb`,
    needs it. Raises Refused if this machine is too small."""
    cores = len(os.sched_getaffinity(0))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fair = free // 4 // gb // MIB * MIB
    least = int(_LEAST_TASK_BYTES / smallest_gb)
    if 2 * fair < least:
        needed = show_size(2 * gb * least)
        raise Refused("too-small", f"the demo needs {needed} of free memory")
    return Scale(
        cpu_milli=max(50, cores * 800 // cpus), gb_bytes=min(_MOST_GB_BYTES, max(least, fair))
    )


def config_for(
    place: Path, pools: list[str], *, cores_milli: int, memory_bytes: int, disk: str = "1G",
    scheduling: str = SHORT_TASKS,
) -> str:  # fmt: skip
    """Return the configuration of a machine with this capacity. `disk` is the rate of its disk."""
    # Root's daemon would else become the user drfd, if there is one, and take signed jobs alone.
    user = 'user = "root"' if os.getuid() == 0 else ""
    tables = "\n".join(f"[pools.{name}]" for name in pools)
    return f"""
[capacity]
cores = {cores_milli / 1000}
memory = "{exact_size(memory_bytes)}"
reserve_memory = 0
[[disk]]
name = "demo"
path = "{place}"
read = "{disk}"
write = "{disk}"
{tables}
[scheduling]
respect_external_load = false
{scheduling}
[daemon]
{user}
[enforcement]
grace = "2s"
"""


def argv_for(demand: dict[str, int], seconds: float, *options: str) -> list[str]:
    """Return the command of a task that uses the demanded memory, with `options` of
    `demo.workload`."""
    touched = max(MIB, demand["memory_bytes"] - _INTERPRETER_BYTES)
    return [
        *(sys.executable, "-I", "-m", "drfd_cli.demo.workload"),
        *("--seconds", f"{seconds:.1f}", "--memory", str(touched), *options),
    ]
