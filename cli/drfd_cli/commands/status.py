"""drf status: the queue now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from drfd.client.words import Ref
from drfd.common.units import show_size
from drfd_cli import output
from drfd_cli.options import (
    colour_option,
    connect,
    ids_or_filters,
    job_ids,
    prints_result,
    state_option,
)
from drfd_cli.output import JOB_COLUMNS, Result
from drfd_cli.table import Column, Painted, Table, echo, right

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView, StatusReply

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
@prints_result(columns=JOB_COLUMNS)
@colour_option
def command(ids: tuple[Ref, ...], with_ended: bool, tasks: bool, **chosen: Any) -> Result:
    """The queue now: what runs, what waits, and why."""
    ids_or_filters({"ids": ids, **chosen})
    select = {"ids": list(ids), "user": chosen["user"], "states": list(chosen["states"])}
    select |= {key: chosen[key] for key in ("name", "group") if chosen[key] is not None}
    # Whoever names a state of ended jobs wants to see some.
    with_ended = with_ended or not set(chosen["states"]) <= {*output.LIVE}
    asked = {"select": select, "ended": _RECENT if with_ended else 0}
    if tasks:
        asked["tasks"] = True
    pages = connect().pages("status", **asked)
    first = next(pages)
    pages = chain([first], pages)
    return Result(
        show=lambda: _print_jobs(first, pages),
        view=lambda: _view(first, pages),
        pages=lambda: (page["jobs"] for page in pages),
    )


def _counted(pages: Iterable[StatusReply], counts: Counter[str]) -> Iterator[list[JobView]]:
    """Yield the jobs of each page, and count how many are in each state."""
    for page in pages:
        counts.update(page["counts"])
        yield page["jobs"]


def _view(first: StatusReply, pages: Iterable[StatusReply]) -> Mapping[str, object]:
    counts = Counter[str]()
    jobs = [*chain(*_counted(pages, counts))]
    told = ("draining", "drain", "gpus", "launcher_away_s", "notices")
    return {"jobs": jobs, "counts": counts, **output.pick(first, told)}


def _print_jobs(first: StatusReply, pages: Iterable[StatusReply]) -> None:
    for line in output.notices(first):
        output.say(line)
    if not first["jobs"]:
        output.say("no jobs; drf history lists ended ones")
        return
    counts = Counter[str]()
    has_more = first.get("after") is not None
    has_groups = has_more or any(job.get("group") is not None for job in first["jobs"])
    columns = _columns(has_gres=bool(first.get("gres")), has_groups=has_groups)
    table = Table(columns, last_width=_WHY, explains=True, is_long=has_more)
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


def _id(job: JobView) -> str:
    if "array_tasks" not in job:
        return output.label(job)
    return f"{job['id']}_[{output.shorten(job['array_tasks'], _INDICES)}]"


#: Styles of states. States that are not listed are red.
_STATE_STYLES = {
    "RUNNING": "green",
    "STARTING": "green",
    "PENDING": "yellow",
    **dict.fromkeys(("HELD", "SUSPENDED", "STOPPING", "CLEANING"), "magenta"),
    **dict.fromkeys(("COMPLETED", "CANCELLED"), "bright_black"),
}


def _show_state(state: str) -> Painted:
    return Painted(state, _STATE_STYLES.get(state, "red"))


def _columns(*, has_gres: bool, has_groups: bool) -> list[Column]:
    """Return the columns for which the screen is wide enough."""
    is_wide, is_narrow = output.width() >= _WIDE, output.width() < _NARROW
    names = _NAME if is_wide else _NARROW_NAME if is_narrow else _SHORT_NAME
    groups = names if is_wide else _SHORT_GROUP
    return [
        right("ID", _id, is_fixed=True),
        Column("NAME", lambda job: output.named(job, names)),
        Column("USER", lambda job: output.shorten(job["user"], names)),
        Column("POOL", lambda job: output.shorten(job["pool"], names), is_shown=is_wide),
        Column("GROUP", lambda job: output.shorten(job.get("group") or "-", groups),
               is_shown=has_groups and not is_narrow),
        Column("STATE", lambda job: _show_state(job["state"]), is_fixed=True),
        right("CORES", lambda job: output.show_cores_of(job["demand"]), is_shown=not is_narrow),
        right("MEM", lambda job: show_size(job["demand"]["memory"]), is_shown=not is_narrow),
        right("IO R/W", lambda job: output.show_io(job["demand"]), is_shown=is_wide),
        Column("GRES", lambda job: output.shorten(output.show_held(job), names),
               is_shown=has_gres and not is_narrow),
        right("TIME", output.show_elapsed),
        Column("WHY", output.why_line),
    ]  # fmt: skip
