"""drf why: why a job waits, or how it ended."""

from __future__ import annotations

import click

from drfd.client.words import Ref
from drfd_cli import output
from drfd_cli.options import as_json, connect, job_id, label


@click.command("why")
@job_id
@as_json
def command(job_id: Ref, as_json: bool) -> None:
    """Why a job waits, or how it ended, from the decision that was taken."""
    reply = connect().request("why", id=job_id)
    job, notes, advice = reply["job"], reply.get("notes", []), reply.get("advice")
    if as_json:
        shown = {key: job[key] for key in ("id", "state", "reason", "outcome", "expected_start_at")}
        output.print_json(shown | {"notes": notes, "advice": advice})
        return
    verb = f"is {job['state']}"
    if job["reason"] is not None:
        verb, line = "waits", output.why_line(job)
    elif job["outcome"] is not None:
        # Its state is the cause already.
        line = job["outcome"]["text"]
    else:
        line = "not started yet"
        if job["started_at"] is not None:
            line = f"started {output.show_when(job['started_at'])}"
    output.tell(f"job {label(job)} {verb}: {output.clean(line, 1000)}")
    attempts = job.get("attempts", "")
    if attempts and attempts not in line:
        output.tell(attempts)
    for note in notes:
        output.tell(output.clean(note, 1000))
    if job["expected_start_at"] is not None:
        output.tell(
            f"it starts about {output.show_when(job['expected_start_at'])}, {output.ESTIMATE}"
        )
    if advice is not None:
        output.tell(f"next time: {output.advice_line(advice)}")
