"""drf status: the queue now.

With --watch the listing is drawn again and again on a screen of its own.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from drfd.client.words import Ref
from drfd.common.errors import Unavailable
from drfd.common.units import show_size
from drfd_cli import output
from drfd_cli.options import (
    asked_form,
    colour_option,
    connect,
    ids_or_filters,
    job_ids,
    prints_result,
    state_option,
)
from drfd_cli.output import JOB_COLUMNS, Result
from drfd_cli.relay.pty import write_all
from drfd_cli.terminal import ENTER_SCREEN, LEAVE_SCREEN, end_by_signal

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView, StatusReply

#: Least seconds between two drawings, and least ratio of that pause to the time that a request
#: takes, which bounds the load of the daemon.
_EVERY_S, _TIMES = 2.0, 10.0


class _Screen(io.StringIO):
    """Collects the listing, which is then written to the terminal at once."""

    def isatty(self) -> bool:
        return True


def again(title: str, show: Callable[[], None]) -> None:
    """Draw what `show` prints, repeatedly until ^C. If not all lines fit, the last one is shown."""
    ending = {
        number: signal.signal(number, end_by_signal) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        write_all(1, ENTER_SCREEN.encode())
        listing: list[str] = []
        while True:
            begin_s = time.monotonic()
            head = f"{title}  {time.strftime('%H:%M:%S')}, ^C ends"
            text = _Screen()
            try:
                with redirect_stdout(text):
                    show()
                listing = text.getvalue().splitlines()
            except Unavailable as error:
                # Keep the last listing on the screen.
                head = f"the daemon is away: {output.clean(error)}"
            _draw([head, *listing])
            time.sleep(max(_EVERY_S, _TIMES * (time.monotonic() - begin_s)))
    except KeyboardInterrupt:
        pass
    finally:
        write_all(1, LEAVE_SCREEN.encode())
        for number, handler in ending.items():
            signal.signal(number, handler)


def _draw(lines: list[str]) -> None:
    _, rows = os.get_terminal_size(1)
    if len(lines) > rows > 2:
        lines = [*lines[: rows - 2], "…", lines[-1]]
    text = "\x1b[H" + "\x1b[K\r\n".join(lines[: rows or 24]) + "\x1b[K\x1b[J"
    write_all(1, text.encode(sys.__stdout__.encoding if sys.__stdout__ else "utf-8", "replace"))


#: Ended jobs shown with --all.
_RECENT = 20
#: Columns to which names are cut on screens of at least `_WIDE` columns, and on narrower ones.
_NAME, _SHORT_NAME = 24, 12
_WIDE = 110
#: Columns to which groups are cut on screens of less than `_WIDE` columns.
_SHORT_GROUP = 8
#: On screens narrower than this there are no columns of demands, and names are cut further.
_NARROW, _NARROW_NAME = 72, 10
#: Columns to which a list of indices is cut.
_INDICES = 24
#: Least width of the last column, the reason, which is broken into lines.
_WHY = 16


@click.command("status")
@job_ids(required=False, only_read=True)
@click.option("-u", "--user", help="Only this user's jobs.")
@click.option("-n", "--name", help="Only jobs of this name, or like `train-*`.")
@click.option("-g", "--group", help="Only jobs of this group (submit --group).")
@state_option("Only jobs in this state; of ended ones the last.")
@click.option(
    "-a", "--all", "with_ended", is_flag=True, help=f"Also the last {_RECENT} ended jobs."
)
@click.option("-r", "--array-tasks", "tasks", is_flag=True, help="A row for each task of an array.")
@click.option("-w", "--watch", is_flag=True, help="Again and again, until ^C.")
@prints_result(columns=JOB_COLUMNS)
@colour_option
def command(
    ids: tuple[Ref, ...], with_ended: bool, tasks: bool, watch: bool, **chosen: Any
) -> Result | int:
    """The queue now: what runs, what waits, and why."""
    if watch and not asked_form().is_for_people:
        raise click.UsageError("--watch is for people; it goes with neither --json nor --parsable")
    ids_or_filters({"ids": ids, **chosen})
    select = {"ids": list(ids), "user": chosen["user"], "states": list(chosen["states"])}
    if chosen["name"] is not None:
        select["name"] = chosen["name"]
    if chosen["group"] is not None:
        select["group"] = chosen["group"]
    # Whoever names a state of ended jobs wants to see some.
    with_ended = with_ended or not set(chosen["states"]) <= {*output.LIVE}
    asked = {"select": select, "ended": _RECENT if with_ended else 0}
    if tasks:
        asked["tasks"] = True
    client = connect()
    pages = client.pages("status", **asked)
    # A refusal must be printed on the normal screen.
    reply = next(pages)
    if watch and output.is_terminal():
        again(
            "drf status",
            lambda: print_jobs(client.pages("status", **asked), click.echo, live_first=True),
        )
        return 0
    pages = chain([reply], pages)
    return Result(
        show=lambda: print_jobs(pages, output.say),
        view=lambda: _view(pages, reply),
        pages=lambda: (page["jobs"] for page in pages),
    )


def _view(pages: Iterator[StatusReply], first: StatusReply) -> Mapping[str, object]:
    counts: Counter[str] = Counter()
    jobs = [job for page in _counted(pages, counts) for job in page["jobs"]]
    view = {
        "jobs": jobs,
        "counts": counts,
        "draining": first["draining"],
        **output.pick(first, ("drain", "gpus")),
    }
    return {**view, **output.standing(first)}


def print_jobs(
    pages: Iterator[StatusReply], say: Callable[[str], None], *, live_first: bool = False
) -> None:
    """Print the table of jobs. `say` prints the notices, and that jobs are left out or that there
    are none. With `live_first` a list of one page begins with the jobs that run and ends with the
    oldest ended ones: its end may not fit."""
    counts: Counter[str] = Counter()
    pages = _counted(pages, counts)
    reply = next(pages)
    for line in output.notices(reply):
        say(line)
    if not reply["jobs"]:
        say("no jobs")
        return
    jobs = sorted(reply["jobs"], key=_place) if live_first else reply["jobs"]
    has_groups = any(job.get("group") is not None for job in jobs)
    cells = _cells(has_gres=bool(reply.get("gres")), has_groups=has_groups)
    columns, rows = list(cells), output.rows_of(cells, jobs)
    if reply.get("after") is None:
        output.print_explained_rows(columns, rows, fixed=("ID", "STATE"), last_width=_WHY)
    else:
        # The first page is printed before the others are requested.
        later = (output.rows_of(cells, page["jobs"]) for page in pages)
        output.print_pages(columns, chain([rows], later))
    if sum(counts[state] for state in counts.keys() - {*output.LIVE}) >= _RECENT:
        say(f"of the ended jobs only the last {_RECENT} are listed; drf history -n 0 lists all")
    click.echo(" ".join(f"{count} {state}" for state, count in sorted(counts.items())))


def _place(job: JobView) -> tuple[int, float]:
    """Return the place of a job in a list of which the end may not fit on the screen."""
    if job["outcome"] is None:
        return (0 if job["state"] in output.STARTED else 1), 0.0
    return 2, -(job["ended_at"] or 0.0)


def _counted(pages: Iterator[StatusReply], counts: Counter[str]) -> Iterator[StatusReply]:
    """Yield the pages unchanged, and add their counts by state to `counts`."""
    for page in pages:
        counts.update(page["counts"])
        yield page


def _id(job: JobView) -> str:
    if "array_tasks" not in job:
        return output.label(job)
    return f"{job['id']}_[{output.shorten(job['array_tasks'], _INDICES)}]"


def _cells(*, has_gres: bool, has_groups: bool) -> output.Cells[JobView]:
    """Return the columns for which the screen is wide enough."""
    is_wide, is_narrow = output.width() >= _WIDE, output.width() < _NARROW
    names = _NAME if is_wide else _NARROW_NAME if is_narrow else _SHORT_NAME
    cells: output.Cells[JobView] = {
        ("ID", "right"): _id,
        "NAME": lambda job: output.named(job, names),
        "USER": lambda job: output.shorten(job["user"], names),
        "POOL": lambda job: output.shorten(job["pool"], names),
        "GROUP": lambda job: output.shorten(
            job.get("group") or "-", names if is_wide else _SHORT_GROUP
        ),
        "STATE": lambda job: output.show_state(job["state"]),
        ("CORES", "right"): lambda job: output.show_cores_of(job["demand"]),
        ("MEM", "right"): lambda job: show_size(job["demand"]["memory"]),
        ("IO R/W", "right"): lambda job: output.show_io(job["demand"]),
        "GRES": lambda job: output.shorten(output.show_held(job), names),
        ("TIME", "right"): output.show_elapsed,
        "WHY": output.why_line,
    }
    hidden = [] if is_wide else ["POOL", "IO R/W"]
    hidden += [] if has_groups and not is_narrow else ["GROUP"]
    hidden += ["CORES", "MEM", "GRES"] if is_narrow else [] if has_gres else ["GRES"]
    return output.visible(cells, *hidden)
