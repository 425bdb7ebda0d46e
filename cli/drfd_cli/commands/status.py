"""drf status: the queue now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from drfd.client.words import Ref
from drfd_cli import output
from drfd_cli.options import (
    colour_option,
    connect,
    filter_options,
    job_ids,
    prints_result,
    refuse_ids_with_filters,
    selection,
)
from drfd_cli.output import Result
from drfd_cli.tables.columns import JOBS, picked
from drfd_cli.tables.layout import TextTable, echo

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView, StatusReply

#: Ended jobs shown with --all.
_RECENT = 20
#: The columns for people.
_COLUMNS = (
    *("id", "name", "user", "pool", "group", "state", "cores", "memory", "io", "gres", "time"),
    "why",
)


@click.command("status")
@job_ids(required=False, only_read=True)
@filter_options(states=f"Jobs in this state; of ended ones, the last {_RECENT}.")
@click.option(
    "-a", "--all", "with_ended", is_flag=True, help=f"Also the last {_RECENT} ended jobs."
)
@click.option("-r", "--array-tasks", "tasks", is_flag=True, help="A row for each task of an array.")
@prints_result(columns=JOBS)
@colour_option
def command(ids: tuple[Ref, ...], with_ended: bool, tasks: bool, **chosen: Any) -> Result:
    """The queue now: what runs, what waits, and why."""
    chosen["ids"] = ids
    refuse_ids_with_filters(chosen)
    # Whoever names a state of ended jobs wants to see some.
    with_ended = with_ended or not set(chosen["states"]) <= {*output.LIVE}
    asked = {"select": selection(chosen), "ended": _RECENT if with_ended else 0}
    if tasks:
        asked["tasks"] = True
    pages = connect().pages("status", **asked)
    first = next(pages)
    pages = chain([first], pages)
    return Result(
        show=partial(_print_jobs, first, pages),
        view=partial(_view, first, pages),
        rows=lambda: (page["jobs"] for page in pages),
    )


def _view(first: StatusReply, pages: Iterable[StatusReply]) -> dict[str, object]:
    counts = Counter[str]()
    jobs = list(chain(*_counted(pages, counts)))
    rest = output.pick(first, ("draining", "drain", "gpus", "launcher_away_s", "notices"))
    return {"jobs": jobs, "counts": counts, **rest}


def _counted(pages: Iterable[StatusReply], counts: Counter[str]) -> Iterator[list[JobView]]:
    """Yield the jobs of each page, and count how many are in each state."""
    for page in pages:
        counts.update(page["counts"])
        yield page["jobs"]


def _print_jobs(first: StatusReply, pages: Iterable[StatusReply]) -> None:
    for line in output.notices(first):
        output.say(line)
    if not first["jobs"]:
        output.say("no jobs; drf history lists ended ones")
        return
    counts = Counter[str]()
    has_more = first.get("after") is not None
    without = () if first.get("gres") else ("gres",)
    table = TextTable(picked(JOBS, _COLUMNS, without=without), is_long=has_more)
    # Each page is printed before the next one is asked for.
    for jobs in _counted(pages, counts):
        echo(table.lines(jobs))
    click.echo()
    if sum(counts[state] for state in counts.keys() - {*output.LIVE}) >= _RECENT:
        told = (
            f"of the ended jobs only the last {_RECENT} are listed; drf history --last 0 lists all"
        )
        output.say(told)
    click.echo(" ".join(f"{count} {state}" for state, count in sorted(counts.items())))
