"""drf demo: a private drfd, three pools, real processes, half a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from drfd.client.connection import Connection
from drfd_cli import demo_daemon, demo_macro, demo_plan, demo_sharing, demo_view
from drfd_cli.demo_plan import Task

View = dict[str, Any]

_FRAME_S = 0.25
#: The demo gives up after this, whatever has become of its jobs.
_LONGEST_S = 60.0


@click.group("demo", invoke_without_command=True)
@click.option("--keep", is_flag=True, help="Leave the directory with outputs and logs behind.")
@click.pass_context
def command(context: click.Context, keep: bool) -> int:
    """Half a minute of fair scheduling on this machine: three pools stand in for users, with real
    processes that use what they declare, and one that lies and is stopped.

    "drf demo fig8" and "drf demo fig9" repeat experiments of the DRF paper.
    """
    if context.invoked_subcommand is not None:
        if keep:
            raise click.UsageError(f"--keep goes without {context.invoked_subcommand}")
        return 0
    with (
        demo_daemon.directory(keep=keep) as directory,
        demo_daemon.private_daemon(directory, demo_plan.config_for(directory)) as client,
    ):
        return _play(client, directory)


command.add_command(demo_sharing.command)
command.add_command(demo_macro.command)


def _play(client: Connection, directory: Path) -> int:
    doctor = demo_daemon.controls_of(client)
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
