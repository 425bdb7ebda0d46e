"""drf wait: wait until jobs have ended, and tell how those ended that did not complete."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, cast

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref
from drfd.common.errors import DrfdError
from drfd.common.units import show_duration
from drfd_cli import output
from drfd_cli.options import DURATION, connect, group_option, in_group, job_ids, prints_result
from drfd_cli.output import NEVER_RAN, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drfd.protocol.replies import EndedArrayView, HelloReply, JobView, ShowReply, WaitReply


#: The exit code after --timeout: EX_TEMPFAIL (sysexits.h). Refusals and time limits have others.
_TIMED_OUT = 75
#: Jobs that are named when the time is over.
_NAMED = 10
#: Seconds until the state of the launcher is first requested, and between two requests.
_SILENT_S, _LOOK_S = 2.0, 5.0
#: Seconds that a launcher may take to start or restart before it is reported as away.
_WORTH_TELLING_S = 10.0


@click.command("wait")
@job_ids(required=True, only_read=True)
@click.option("--any", "any_one", is_flag=True, help="Wait until one of the jobs has ended.")
@group_option("Wait for your jobs of this group that have not ended; ended ones do not count.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    is_eager=True,
    help="Wait for all your jobs that have not ended.",
)
@click.option("--timeout", type=DURATION, help="Give up after this long (exit code 75).")
@prints_result()
def command(
    ids: tuple[Ref, ...],
    any_one: bool,
    group: str | None,
    everything: bool,
    timeout: int | None,
) -> Result:
    """Wait until jobs have ended.

    The exit code is that of the job. For several, or an array, it is 0 if all completed, else that
    of the first that did not, as given or by index. With --any, only jobs that have ended count. A
    job that can never start, because of how others ended, gives 125. ^C does not stop the jobs.
    """
    client = connect()
    if everything or group is not None:
        # A job that waits for all others does not wait for itself.
        own = {os.environ.get("DRF_JOB_ID"), os.environ.get("DRF_ARRAY_ID")}
        live = in_group(client, None if everything else group)
        live = [job for job in live if str(job["array_id"] or job["id"]) not in own]
        if not ids and not live:
            where = "" if everything else f" in the group {group}"
            nothing = f"no job of yours{where} waits or runs"
            return Result(partial(output.say, nothing), lambda: {"done": True, "jobs": []})
        ids = (*ids, *(job["array_id"] or job["id"] for job in live))
    wanted = list(dict.fromkeys(ids))
    reply = wait_for(client, wanted, any_one=any_one, timeout_s=timeout)
    never = {"never": reply["never"]} if reply.get("never") else {}
    told: list[bool] = []
    return Result(
        show=lambda: told.append(_show(reply)),
        view=lambda: {"done": reply["done"], "jobs": reply["ended"], **never},
        finish=lambda: _finish(client, wanted, reply, any_one=any_one, is_told=any(told)),
    )


def wait_for(
    client: Connection,
    ids: list[Ref],
    *,
    any_one: bool = False,
    timeout_s: float | None = None,
    is_quiet: bool = False,
) -> WaitReply:
    """Wait until the jobs have ended. Meanwhile print when the launcher is away, and on a terminal,
    unless `is_quiet`, show how far the jobs are."""
    progress = _WaitingLine(client, ids, is_quiet=is_quiet)
    try:
        return client.wait(ids, any_one=any_one, timeout_s=timeout_s, meanwhile=progress.look)
    finally:
        progress.clear()


def _show(reply: WaitReply) -> bool:
    """Print a line for each job that has ended. Returns whether who reads stderr reads it, too."""
    for job in reply["ended"]:
        kind = "array" if "array_tasks" in job else "job"
        output.tell(f"{kind} {output.label(job)} {output.clean(output.why_line(job), 1000)}")
    return output.are_together()


def wait_and_tell(client: Connection, ids: list[Ref], *, is_quiet: bool = False) -> int:
    """Wait until the jobs have ended, say how, and return the exit code."""
    reply = wait_for(client, ids, is_quiet=is_quiet)
    return _finish(client, ids, reply, any_one=False, is_told=False)


def _finish(
    client: Connection, wanted: list[Ref], reply: WaitReply, *, any_one: bool, is_told: bool
) -> int:
    tell_ends(client, reply["ended"], is_told=is_told)
    never = reply.get("never", [])
    for stuck in never:
        output.tell_never(stuck)
    if never:
        return NEVER_RAN
    if not reply["done"]:
        ended = {output.label(job) for job in reply["ended"]}
        left = output.listed([str(ref) for ref in wanted if str(ref) not in ended], _NAMED)
        output.say(f"timed out: {'none has ended' if any_one else f'not ended: {left}'}")
        return _TIMED_OUT
    return next((job["status"] for job in reply["ended"] if job["status"]), 0)


# -- how they ended ----------------------------------------------------------------------------


#: Lines shown of a job's error output, and bytes read for them from its end.
_LINES, _BYTES = 5, 1 << 15
#: Jobs whose error output is shown, if several have ended.
_JOBS = 3


def tell_ends(
    client: Connection, ended: Iterable[JobView | EndedArrayView], *, is_told: bool = False
) -> None:
    """Print, for each job or array that did not complete, one line and the end of its errors.

    The files are read with the caller's rights, and only those of the caller's own jobs. If
    `is_told`, the lines on how they ended have been printed, and only errors are shown. `client`
    is asked for the first task of an array that failed.
    """
    shown = 0
    for each in ended:
        code = "" if each["outcome"] is None else each["outcome"]["code"]
        if code == "COMPLETED":
            continue
        if not is_told:
            kind = "array" if "array_tasks" in each else "job"
            output.say(f"{kind} {output.label(each)} {output.why_line(each)}")
        if shown < _JOBS:
            shown += _tell_errors(client, each)


def _tell_errors(client: Connection, ended: JobView | EndedArrayView) -> bool:
    """Print the last lines of the error output. Returns whether there were any."""
    job: JobView | None
    job = _first_failed(client, cast("EndedArrayView", ended)) if "array_tasks" in ended else ended
    lines = [] if job is None else last_errors(job)
    if job is None or not lines:
        return False
    is_apart = job["stderr"] != job["stdout"]
    word, option = ("errors", "--err ") if is_apart else ("output", "")
    name = output.label(job)
    output.say(f"the last {word} of job {name} (drf log {option}{name} prints all):")
    for line in lines:
        click.echo(output.clean(f"  | {line}", 1000), err=True)
    return True


def last_errors(job: JobView) -> Sequence[str]:
    """Return the last lines of the error output of an ended job of the caller, made harmless for a
    terminal, without empty lines at the end; none if there is nothing to read."""
    from drfd_cli.commands.log import tail_of

    path = job["stderr"]
    # A job that never started has written nothing: what its path holds is from another one.
    if path is None or job["started_at"] is None or job["uid"] != os.getuid():
        return []
    lines = [output.clean(line).rstrip() for line in tail_of(path, job["uid"], _BYTES, _BYTES)[0]]
    return [line for line in lines if line][-_LINES:]


def _first_failed(client: Connection, array: EndedArrayView) -> JobView | None:
    """Return the first task of the array that did not complete, or None if it is not known."""
    indices = [
        int(each.partition(",")[0].partition("-")[0])
        for state, each in array.get("indices", {}).items()
        if state != "CANCELLED"
    ]
    if not indices:
        return None
    try:
        reply: ShowReply = client.request("show", id=f"{array['id']}_{min(indices)}")
    except DrfdError:
        return None
    return reply.get("job")


# -- how far they are --------------------------------------------------------------------------


#: Seconds between two requests, at least, and the multiple of the time that the last one took.
_PAUSE_S, _TIMES = 2.0, 20.0
#: Ends that must be seen before a remaining time is estimated.
_LEAST_ENDS = 3


def job_line(job: JobView, now_s: float) -> str:
    """Return the line of one job: its state, and its expected start with the reason of its wait, or
    its end at the latest; "" if it has ended."""
    name = f"job {output.label(job)} {job['state']}"
    if job["outcome"] is not None:
        return ""
    if job["state"] in output.WAITING:
        start_s = job["expected_start_at"]
        start = "" if start_s is None else f", starts about {output.show_when(start_s, now_s)}"
        return f"{name}{start}: {output.why_line(job)}"
    if job["started_at"] is None or job["state"] == "SUSPENDED":
        return name
    ran_s, limit_s = output.run_s(job, now_s), job["time_limit_s"]
    name += f" for {show_duration(ran_s)}"
    if limit_s is None or job["state"] != "RUNNING":
        return name if limit_s is not None else f"{name}, without a time limit"
    return f"{name}, ends {output.show_when(now_s + limit_s - ran_s, now_s)} at the latest"


class _WaitingLine:
    """What is told meanwhile: once that the launcher is away, so that no job starts or ends, and
    once that it is back; on a terminal how far the jobs are, in a line that is rewritten."""

    def __init__(self, client: Connection, ids: Sequence[Ref], *, is_quiet: bool) -> None:
        """`client` names the daemon; its connection is not used."""
        self._client, self._ids, self._status = client, ids, output.StatusLine()
        self._shows_line = self._status.is_live and not is_quiet
        self._next = 0.0 if self._shows_line else time.monotonic() + _SILENT_S
        self._is_away = False
        #: When jobs were counted first (monotonic seconds), and how many of them had ended.
        self._first: tuple[float, int] | None = None

    def look(self) -> None:
        """Ask the daemon if that was not done lately; call this about once a second."""
        began = time.monotonic()
        if began < self._next:
            return
        # The daemon may be restarted or busy, or a job have been removed: what is shown still
        # stands. The connection is closed at once, as hundreds of processes of a user may wait.
        with suppress(DrfdError, LookupError), closing(Connection(self._client.path)) as other:
            self._tell_launcher(other.request("hello"))
            if self._shows_line:
                self._status.show(self._line(other))
        now = time.monotonic()
        self._next = now + (max(_PAUSE_S, _TIMES * (now - began)) if self._shows_line else _LOOK_S)

    def clear(self) -> None:
        """Erase the line, because another message follows, or nothing."""
        self._status.show("")

    def _tell_launcher(self, reply: HelloReply) -> None:
        away = output.launcher_away(reply)
        is_away = away is not None
        if is_away == self._is_away or (
            is_away and (reply.get("launcher_away_s") or 0.0) < _WORTH_TELLING_S
        ):
            return
        self._is_away = is_away
        self.clear()
        output.say(away or "the launcher is back")

    def _line(self, client: Connection) -> str:
        if len(self._ids) > 1:
            return self._several(client)
        show = client.request("show", id=self._ids[0])
        if "array" not in show:
            return job_line(show["job"], time.time())
        array, counts = show["array"], show["array"]["counts"]
        line = self._tally(f"array {array['id']}", counts, array["tasks"])
        if line and counts.keys().isdisjoint(output.STARTED):
            # Nothing runs.
            reasons = (
                output.why_line(row) for row in self._rows(client) if row["reason"] is not None
            )
            line = ": ".join([line, *islice(reasons, 1)])
        return line

    def _rows(self, client: Connection) -> Iterator[JobView]:
        return client.jobs("status", select={"ids": list(self._ids)})

    def _several(self, client: Connection) -> str:
        wanted = set(map(str, self._ids))
        states: dict[str, str] = {}
        for row in self._rows(client):
            for name in {output.label(row), str(row["array_id"])} & wanted:
                # An array runs as long as any of its tasks does.
                if states.get(name) not in output.STARTED and row["outcome"] is None:
                    states[name] = row["state"]
                elif row["outcome"] is not None:
                    states.setdefault(name, row["state"])
        counts = Counter(states.get(name, "COMPLETED") for name in wanted)
        return self._tally(f"{len(wanted)} jobs", counts, len(wanted))

    def _tally(self, what: str, counts: Mapping[str, int], total: int) -> str:
        """Return how many of the awaited jobs or tasks are in which state, and the remaining time
        by the rate of their ends; "" if all have ended."""
        now_s = time.monotonic()
        running = sum(counts.get(state, 0) for state in output.STARTED)
        waiting = sum(counts.get(state, 0) for state in output.WAITING)
        ended = total - running - waiting
        first_s, first = self._first = self._first or (now_s, ended)
        if ended == total:
            return ""
        failed = ended - counts.get("COMPLETED", 0)
        words = [f"{ended} of {total} ended", *[f"{failed} failed"] * bool(failed)]
        words += [f"{running} running", f"{waiting} waiting"]
        if ended - first >= _LEAST_ENDS:
            left_s = (total - ended) * (now_s - first_s) / (ended - first)
            words.append(f"about {show_duration(left_s)} left")
        return f"{what}: {', '.join(words)}"
