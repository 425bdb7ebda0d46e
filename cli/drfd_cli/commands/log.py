"""drf log: the output of jobs, read with the caller's own rights."""

from __future__ import annotations

import os

import click

from drfd.client.connection import Connection
from drfd.client.watch import Watch
from drfd.client.words import Ref
from drfd.errors import Refused
from drfd_cli import output
from drfd_cli.options import colour_option, connect, job_ids, label
from drfd_cli.tail import Prefixed, Tail, Unreadable, plain

_POLL_S = 0.2


@click.command("log")
@job_ids(required=True)
@click.option("-f", "--follow", is_flag=True, help="Go on until the jobs have ended.")
@click.option("--err", is_flag=True, help="Their errors instead of their output.")
@click.option(
    "-n", "--lines", metavar="LINES", type=click.IntRange(0), help="Begin with the last LINES only."
)
@colour_option
def command(ids: tuple[Ref, ...], follow: bool, err: bool, lines: int | None) -> int:
    """The output of a job; of several, with the job's id before each line.

    While it is followed, an output may begin late, grow, be emptied or replaced; the job may be
    queued again.
    """
    client = connect()
    jobs = [_job(client, job_id) for job_id in dict.fromkeys(ids)]
    tails = {
        job["id"]: Tail(
            job["stderr" if err else "stdout"],
            lines,
            plain if len(jobs) == 1 else Prefixed(label(job), is_coloured=output.has_colour()),
        )
        for job in jobs
    }
    if follow:
        return _follow(client, jobs, tails)
    status = 0
    for job in jobs:
        try:
            _print(job, tails[job["id"]])
        except Refused as error:
            if len(jobs) == 1:
                raise
            output.say(str(error))
            status = error.exit_code
    return status


def _job(client: Connection, job_id: Ref) -> output.View:
    reply = client.request("show", id=job_id)
    if "array" in reply:
        first = reply["array"]["array_tasks"].partition("-")[0].partition(",")[0]
        raise Refused(
            "no-output", f"{job_id} is an array; each task has an output of its own",
            hint=f"drf log {job_id}_{first}",
        )  # fmt: skip
    job: output.View = reply["job"]
    return job


def _print(job: output.View, tail: Tail) -> None:
    if os.path.exists(tail.path):
        _copy(tail)
        tail.finish()
    elif job["started_at"] is None:
        raise Refused("no-output", f"job {label(job)} has not started: {output.why_line(job)}")
    else:
        raise Refused("no-output", f"the output file {tail.path} is not there any more")


def _follow(client: Connection, jobs: list[output.View], tails: dict[int, Tail]) -> int:
    """Copy what is there and what comes, until the jobs have ended; the exit code."""
    for job in jobs:
        if job["started_at"] is None and job["outcome"] is None:
            output.say(f"job {label(job)} has not started: {output.why_line(job)}")
    status = 0
    watch = Watch(client, *tails)
    while True:
        for job_id, tail in list(tails.items()):
            try:
                _copy(tail)
            except Refused as error:
                if len(jobs) == 1:
                    raise
                output.say(str(error))
                status = error.exit_code
                del tails[job_id]
        if not tails:
            return status
        reply, _ = watch.poll(_POLL_S)
        if reply is not None:
            over = {job["id"] for job in reply["ended"]} or set(tails)
            for job_id in over & set(tails):
                # Once more after the end: it may have written until the last moment.
                tail = tails.pop(job_id)
                _copy(tail)
                tail.finish()
            if not tails:
                return status
            watch = Watch(client, *tails)


def _copy(tail: Tail) -> None:
    try:
        tail.copy()
    except Unreadable as error:
        raise Refused("no-output", str(error)) from None
