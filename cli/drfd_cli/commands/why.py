"""drf why: the reason why a job waits, or how it ended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from drfd.client.words import Ref
from drfd.common.units import exact_size, show_size
from drfd_cli import output
from drfd_cli.commands.retry import retry_line
from drfd_cli.options import connect, job_ids, prints_result
from drfd_cli.output import Result, of_each, pick

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView, TasksView, WhyReply

#: A disk is full if less than one part in so many is free.
_FULL = 100
#: Columns to which a list of indices is cut.
_INDICES = 60


@click.command("why")
@job_ids(required=True, only_read=True)
@prints_result()
def command(ids: tuple[Ref, ...]) -> Result:
    """Why jobs wait, or how they ended, from the decision that was taken."""
    client = connect()
    return of_each(ids, lambda job_id: client.request("why", id=job_id), _show, _view)


def _view(reply: WhyReply) -> Mapping[str, object]:
    shown = pick(reply["job"], ("id", "state", "reason", "outcome", "expected_start_at"))
    shown |= pick(reply["job"], ("expected_start_certainty", "expected_start_unknown"))
    shown |= {"notes": reply.get("notes", []), "advice": reply.get("advice")}
    again = _retry(reply)
    if again is not None:
        shown["retry"] = again
    if "no_estimate" in reply:
        shown["no_estimate"] = reply["no_estimate"]
    if "array" in reply:
        shown["array"] = reply["array"]
    return shown


def _show(reply: WhyReply) -> None:
    job, notes, advice = reply["job"], reply.get("notes", []), reply.get("advice")
    if "array" in reply:
        output.tell(_tasks(reply["array"]))
    verb = f"is {job['state']}"
    if job["reason"] is not None:
        verb, line = "waits", output.why_line(job)
    elif job["outcome"] is not None:
        # The state already names the cause.
        line = job["outcome"]["text"]
    else:
        line = "not started yet"
        if job["started_at"] is not None:
            line = f"started {output.show_when(job['started_at'])}"
    # How another user's job ended is told by its state alone.
    output.tell(f"job {output.label(job)} {verb}{': ' * bool(line)}{output.clean(line, 1000)}")
    attempts = job.get("attempts", "")
    if attempts and attempts not in line:
        output.tell(attempts)
    start = output.start_line(
        job["expected_start_at"],
        job.get("expected_start_certainty"),
        unknown=job.get("expected_start_unknown"),
    )
    if start is not None:
        output.tell(start)
    if "no_estimate" in reply:
        output.tell(f"nobody can say when it starts: {output.clean(reply['no_estimate']['text'])}")
    # What to do about it comes last.
    for note in [*notes, *_full_disk(job)]:
        output.tell(output.clean(note, 1000))
    if advice is not None:
        output.tell(f"next time: {output.advice_line(advice)}")
    again = _retry(reply)
    if again is not None:
        output.tell(f"again: {again}")


def _tasks(array: TasksView) -> str:
    """Return how many tasks of an array are in each state, and which of them did not complete."""
    parts = []
    for state, count in sorted(array["counts"].items()):
        which = array["indices"].get(state, "")
        parts.append(f"{count} {state}{f' ({output.shorten(which, _INDICES)})' * bool(which)}")
    return f"array {array['id']} of {array['tasks']} tasks: {', '.join(parts)}"


def _enough(most_bytes: int, job: JobView) -> int:
    """Return a limit for the output of a job that was stopped at `most_bytes`: twice that, or as
    often twice as it takes to be well above the size that its files have now."""
    written_bytes = 0
    for path in {job["stdout"], job["stderr"]}:
        with suppress(OSError):
            written_bytes += 0 if path is None else os.stat(path).st_size
    wanted_bytes = 2 * most_bytes
    while wanted_bytes < written_bytes * 5 // 4:
        wanted_bytes *= 2
    return wanted_bytes


def _full_disk(job: JobView) -> Iterator[str]:
    """Yield a note if the disk of the output of the caller's failed job is full now: the job can
    hardly have written that there was no more room."""
    path, outcome = job["stdout"], job["outcome"]
    if outcome is None or outcome["code"] != "FAILED" or path is None or job["uid"] != os.getuid():
        return
    try:
        disk = os.statvfs(path)
    except OSError:
        return
    free_bytes, disk_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    if free_bytes * _FULL < disk_bytes:
        yield (
            f"the disk of its output {path} is full now ({show_size(free_bytes)} of "
            f"{show_size(disk_bytes)} free)"
        )


def _retry(reply: WhyReply) -> str | None:
    """Return the command that submits the caller's job again if it did not complete."""
    job, advice = reply["job"], reply.get("advice")
    outcome = job["outcome"]
    if outcome is None or outcome["code"] == "COMPLETED" or job["uid"] != os.getuid():
        return None
    options: list[str] = []
    if advice is not None:
        words = advice["options"]
        advised = dict(zip(words[::2], words[1::2], strict=False))
        demand = job["demand"]
        for option, wish, before in (
            (
                "-c",
                (advice.get("cores"), advice.get("cores_max")),
                (demand["cores"], demand.get("cores_max")),
            ),
            ("-m", advice.get("memory"), demand["memory"]),
            ("-t", advice.get("time_limit_s"), job["time_limit_s"]),
        ):
            if wish != before and option in advised:
                options += [option, advised[option]]
    most = job.get("output_max_bytes")
    if most is not None and outcome["code"] == "LIMIT_EXCEEDED":
        options += ["--output-max", exact_size(_enough(most, job))]
    if "array" in reply:
        counts, bad = reply["array"]["counts"], reply["array"]["indices"]
        if sum(counts.get(state, 0) for state in bad if state != "CANCELLED") > 1:
            return retry_line(f"{reply['array']['id']} --failed", options)
    return retry_line(output.label(job), options)
