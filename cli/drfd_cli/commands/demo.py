"""drf demo: a private drfd, three pools, real processes, half a minute."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from drfd.client.autostart import await_daemon, spawn_daemon
from drfd.client.connection import Connection
from drfd.errors import Unavailable
from drfd_cli import demo_plan, demo_view, output
from drfd_cli.demo_plan import Task

View = dict[str, Any]

_FRAME_S = 0.25
#: The demo gives up after this, whatever has become of its jobs.
_LONGEST_S = 60.0


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave the directory with outputs and logs behind.")
def command(keep: bool) -> int:
    """Half a minute of fair scheduling on this machine: three pools stand in for users, with real
    processes that use what they declare, and one that lies and is stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, frame: sys.exit(128 + caught))
    directory = Path(tempfile.mkdtemp(prefix="drf-demo-"))
    # Readable for the daemon when it gives up root's rights.
    directory.chmod(0o755)
    try:
        with _private_daemon(directory) as client:
            return _play(client, directory)
    finally:
        if keep:
            output.say(f"outputs and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _private_daemon(directory: Path) -> Iterator[Connection]:
    config, socket_path = directory / "drfd.toml", directory / "drfd.sock"
    config.write_text(demo_plan.config_for(directory))
    log_path = directory / "drfd.log"
    process = spawn_daemon(
        log_path, "--state", directory / "state", "--socket", socket_path, "--config", config
    )
    try:
        await_daemon(process, socket_path, log_path)
        yield Connection(socket_path)
    finally:
        _end_jobs(socket_path)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _end_jobs(socket_path: Path) -> None:
    """Jobs outlive a daemon; those of the demo shall not, however it ends."""
    client = Connection(socket_path)
    deadline = time.monotonic() + 15
    try:
        client.request("cancel", select={"everything": True})
        while client.request("status")["jobs"] and time.monotonic() < deadline:
            time.sleep(0.1)
    except Unavailable:
        # It never came up, and so has started nothing.
        return


def _play(client: Connection, directory: Path) -> int:
    doctor = client.request("doctor")
    while not doctor["controls"]:
        time.sleep(0.05)
        doctor = client.request("doctor")
    scale = demo_plan.memory_scale()
    click.echo(demo_view.opening(doctor, scale))
    client.request("drain", on=True)
    names = {}
    for task in demo_plan.first_wave():
        names[_submit(client, task, directory, scale)] = task
    client.request("drain", on=False)
    with demo_view.screen() as screen:
        started = time.monotonic()
        later = demo_plan.second_wave()
        peak: dict[str, float] = {}
        while time.monotonic() - started < _LONGEST_S:
            if later and time.monotonic() - started > demo_plan.SECOND_WAVE_S:
                names |= {_submit(client, task, directory, scale): task for task in later}
                later = []
            shares = client.request("shares")
            jobs = client.request("status", ended=100)["jobs"]
            _remember_first(peak, shares)
            screen.show(shares, jobs, time.monotonic() - started)
            if not later and all(job["ended_at"] for job in jobs):
                break
            time.sleep(_FRAME_S)
    jobs = client.request("status", ended=100)["jobs"]
    click.echo(demo_view.closing(jobs, peak))
    return 0 if demo_plan.went_as_planned(jobs, names) else 1


def _remember_first(peak: dict[str, float], shares: View) -> None:
    """The shares while the first wave runs: before the third pool comes."""
    nodes = {node["path"].removeprefix("root."): node for node in demo_view.pools(shares)}
    if nodes["C"]["running"] or nodes["C"]["pending"]:
        return
    for name, node in nodes.items():
        peak[name] = max(peak.get(name, 0.0), node["dominant_share"])


def _submit(client: Connection, task: Task, directory: Path, scale: float) -> int:
    out = str(directory / "%x-%j.out")
    job_id: int = client.request(
        "submit",
        argv=demo_plan.argv_for(task, directory, scale),
        cwd="/",
        name=task.name,
        pool=task.pool,
        demand=task.demand,
        time_limit_s=60,
        stdout=out,
        stderr=out,
        env={"PATH": "/usr/bin:/bin"},
    )["id"]
    return job_id
