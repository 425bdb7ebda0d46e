"""drf wait: until jobs have ended."""

from __future__ import annotations

import click

from drfd.client.words import Ref
from drfd_cli import output
from drfd_cli.options import DURATION, as_json, connect, job_ids, label
from drfd_cli.output import NEVER_RAN

#: EX_TEMPFAIL of sysexits.h: neither a refusal nor the time-out (124) of a job.
_TIMED_OUT = 75


@click.command("wait")
@job_ids(required=True)
@click.option("--any", "any_one", is_flag=True, help="Until one of them has ended.")
@click.option("--timeout", type=DURATION, help="Give up after this long (exit code 75).")
@as_json
def command(ids: tuple[Ref, ...], any_one: bool, timeout: int | None, as_json: bool) -> int:
    """Wait until jobs have ended.

    For one job, exit as it did. For several, or an array, with 0 if all completed, else as the
    first one, in the order given or by index, that did not. With --any, only those count that
    have ended by then. A job that can never start, because of how others ended, is not waited for:
    125. ^C leaves the jobs alone.
    """
    reply = connect().wait(list(dict.fromkeys(ids)), any_one=any_one, timeout_s=timeout)
    never = reply.get("never", [])
    if as_json:
        told = {"done": reply["done"], "jobs": reply["ended"]}
        output.print_json(told | ({"never": never} if never else {}))
    else:
        for job in reply["ended"]:
            kind = "array" if "array_tasks" in job else "job"
            output.tell(f"{kind} {label(job)} {output.clean(output.why_line(job), 1000)}")
    for job in never:
        output.tell_never(job)
    if never:
        return NEVER_RAN
    if not reply["done"]:
        output.say(f"timed out: {'none has' if any_one else 'not all have'} ended")
        return _TIMED_OUT
    return next((job["status"] for job in reply["ended"] if job["status"]), 0)
