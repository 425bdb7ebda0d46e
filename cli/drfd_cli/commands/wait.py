"""drf wait: wait until jobs have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref
from drfd.common.errors import DrfdError
from drfd_cli import output
from drfd_cli.options import (
    DURATION,
    connect,
    group_option,
    in_group,
    job_ids,
    prints_result,
)
from drfd_cli.output import NEVER_RAN, Result
from drfd_cli.waiting.ends import tell_ends
from drfd_cli.waiting.progress import ProgressLine

if TYPE_CHECKING:
    from drfd.protocol.replies import WaitReply

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
@click.option("--any", "any_one", is_flag=True, help="Until one of them has ended.")
@group_option("Your live jobs of this group (submit --group).")
@click.option("--timeout", type=DURATION, help="Give up after this long (exit code 75).")
@prints_result()
def command(ids: tuple[Ref, ...], any_one: bool, group: str | None, timeout: int | None) -> Result:
    """Wait until jobs have ended.

    For one job, exit as it did. For several, or an array, with 0 if all completed, else as the
    first one, in the order given or by index, that did not. With --any, only those count that
    have ended by then. A job that can never start, because of how others ended, is not waited for:
    125. ^C leaves the jobs alone.
    """
    client = connect()
    if group is not None:
        live = in_group(client, group)
        if not ids and not live:
            nothing = f"no job of yours in the group {group} waits or runs"
            return Result(
                show=lambda: output.say(nothing), view=lambda: {"done": True, "jobs": []}
            )  # fmt: skip
        ids = (*ids, *(job["array_id"] or job["id"] for job in live))
    wanted = list(dict.fromkeys(ids))
    reply = wait_for(client, wanted, any_one=any_one, timeout_s=timeout)
    told: list[bool] = []
    return Result(
        show=lambda: told.append(_show(reply)),
        view=lambda: _view(reply),
        finish=lambda: _finish(client, wanted, reply, any_one=any_one, is_told=any(told)),
    )


def wait_for(
    client: Connection,
    ids: list[Ref],
    *,
    any_one: bool = False,
    timeout_s: float | None = None,
    is_quiet: bool = False,
    pace: float = 1.0,
) -> WaitReply:
    """Wait until the jobs have ended. Meanwhile print when the launcher is away, and on a terminal,
    unless `is_quiet`, show how far the jobs are. `pace` multiplies the intervals between looks."""
    progress = ProgressLine(client, ids, pace=pace)
    launcher = LauncherWatch(client, before=progress.clear, pace=pace)

    def look() -> None:
        launcher.look()
        if not is_quiet:
            progress.look()

    try:
        return client.wait(ids, any_one=any_one, timeout_s=timeout_s, meanwhile=look, every_s=pace)
    finally:
        progress.close()


def _view(reply: WaitReply) -> Mapping[str, object]:
    never = reply.get("never", [])
    told = {"done": reply["done"], "jobs": reply["ended"]}
    return {**told, **({"never": never} if never else {})}


def _show(reply: WaitReply) -> bool:
    """Print a line for each job that has ended. Returns whether who reads stderr reads it, too."""
    for job in reply["ended"]:
        kind = "array" if "array_tasks" in job else "job"
        output.tell(f"{kind} {output.label(job)} {output.clean(output.why_line(job), 1000)}")
    return output.are_together()


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
        left = [str(ref) for ref in wanted if str(ref) not in ended]
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        which = "none has ended" if any_one else f"not ended: {', '.join(left[:_NAMED])}{more}"
        output.say(f"timed out: {which}")
        return _TIMED_OUT
    return next((job["status"] for job in reply["ended"] if job["status"]), 0)


class LauncherWatch:
    """Prints one message when the launcher is away, so that no job starts or ends, and one when it
    is back."""

    def __init__(self, client: Connection, *, before: Callable[[], None], pace: float) -> None:
        """`client` gives the path of the daemon's socket; its connection is not used. `before` is
        called before each message. `pace` multiplies the intervals."""
        self._path = client.path
        self._before = before
        self._look_s = _LOOK_S * pace
        self._next = time.monotonic() + _SILENT_S * pace
        self._is_away = False

    def look(self) -> None:
        """Request the launcher's state if that was not done lately."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._look_s
        try:
            # It is closed at once, because hundreds of processes of a user may be waiting.
            with closing(Connection(self._path)) as other:
                reply = other.request("hello")
        except DrfdError:
            # The daemon is being restarted, or is busy.
            return
        away = output.launcher_away(reply)
        if away is not None and not self._is_away:
            if (reply.get("launcher_away_s") or 0.0) < _WORTH_TELLING_S:
                return
            self._before()
            output.say(away)
        elif away is None and self._is_away:
            self._before()
            output.say("the launcher is back")
        self._is_away = away is not None
