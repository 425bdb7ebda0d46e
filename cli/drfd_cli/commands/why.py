"""drf why: why a job waits, or how it ended."""

from __future__ import annotations

import click

from drfd_cli import output
from drfd_cli.options import as_json, connect, job_id


@click.command("why")
@job_id
@as_json
def command(job_id: int, as_json: bool) -> None:
    """Why a job waits, or how it ended, from the decision that was taken."""
    job = connect().request("why", id=job_id)["job"]
    if as_json:
        output.print_json(
            {key: job[key] for key in ("id", "state", "reason", "outcome", "expected_start_at")}
        )
        return
    line = output.why_line(job) or f"started {output.show_time(job['started_at'])}"
    verb = "waits" if job["reason"] else f"is {job['state']}"
    output.tell(f"job {job_id} {verb}: {output.clean(line, 1000)}")
    attempts = job.get("attempts", "")
    if attempts and attempts not in line:
        output.tell(attempts)
    if job["expected_start_at"] is not None:
        output.tell(
            f"it starts about {output.show_time(job['expected_start_at'])}, {output.ESTIMATE}"
        )
