"""drf shutdown: end the daemon."""

from __future__ import annotations

import click

from drfd_cli import output
from drfd_cli.options import connect


@click.command("shutdown")
@click.option(
    "--kill-jobs",
    is_flag=True,
    help="First stop launching, then stop all running jobs (TERM, grace time, KILL).",
)
def command(kill_jobs: bool) -> None:
    """End the daemon. Running jobs go on and the next daemon takes them over; queued ones wait for
    it. For administrators."""
    client = connect(may_start=False)
    running = client.request("shutdown", kill_jobs=kill_jobs)["running"]
    jobs = f"{len(running)} running {'job' if len(running) == 1 else 'jobs'}"
    if kill_jobs:
        output.tell(f"stopping {jobs}")
    client.await_end()
    if kill_jobs:
        output.tell(
            "drfd has ended; when it is started again, nothing is launched until drf undrain"
        )
    else:
        output.tell(f"drfd has ended; {jobs} left to the next one")
