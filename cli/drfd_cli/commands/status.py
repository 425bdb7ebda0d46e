"""drf status: the queue now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import click

from drfd.client.words import Ref
from drfd_cli import output, parsable
from drfd_cli.again import again
from drfd_cli.options import (
    as_json,
    colour_option,
    connect,
    job_ids,
    label,
    parsable_options,
    state_option,
)

_RECENT = 20
#: Names are cut to so many signs; from this width of screen on, the longer figure.
_NAME, _SHORT_NAME = 24, 12
_WIDE = 110
#: On a screen narrower than this, what was asked for gives way too.
_NARROW, _NARROW_NAME = 72, 10
#: A list of indices is cut to so many signs.
_INDICES = 24
#: The reason is broken into lines of at least this length.
_WHY = 16


@click.command("status")
@job_ids(required=False)
@click.option("-u", "--user", help="Only this user's jobs.")
@click.option("-n", "--name", help="Only jobs of this name, or like `train-*`.")
@state_option("Only jobs in this state.")
@click.option(
    "-a", "--all", "with_ended", is_flag=True, help=f"Also the last {_RECENT} ended jobs."
)
@click.option("-r", "--array-tasks", "tasks", is_flag=True, help="A row for each task of an array.")
@click.option("-w", "--watch", is_flag=True, help="Again and again, until ^C.")
@as_json
@parsable_options(parsable.JOB)
@colour_option
def command(
    ids: tuple[Ref, ...], user: str | None, name: str | None, states: tuple[str, ...],
    with_ended: bool, tasks: bool, watch: bool, as_json: bool, **shape: Any,
) -> None:  # fmt: skip
    """The queue now: what runs, what waits, and why."""
    if watch and (as_json or any(shape.values())):
        raise click.UsageError("--watch is for people; it goes with neither --json nor --parsable")
    select: dict[str, Any] = {"ids": list(ids), "user": user, "states": list(states)}
    if name is not None:
        select["name"] = name
    asked = {"select": select, "ended": _RECENT if with_ended else 0}
    if tasks:
        asked["tasks"] = True
    client = connect()
    pages = client.pages("status", **asked)
    # What is wrong with the question is said before a screen is taken.
    reply = next(pages)
    if watch and output.is_terminal():
        again("drf status", lambda: _print(client.pages("status", **asked), click.echo))
        return
    pages = chain([reply], pages)
    counts: Counter[str] = Counter()
    if as_json:
        jobs = [job for page in _counted(pages, counts) for job in page["jobs"]]
        output.print_json({"jobs": jobs, "counts": counts, "draining": reply["draining"]})
        return
    if parsable.print_lines(parsable.JOB, reply["jobs"], **shape):
        for page in islice(pages, 1, None):
            parsable.print_lines(parsable.JOB, page["jobs"], **shape | {"no_header": True})
        return
    _print(pages, output.say)


def _print(pages: Iterator[output.View], say: Callable[[str], None]) -> None:
    """The table; `say` tells what is no part of it."""
    counts: Counter[str] = Counter()
    pages = _counted(pages, counts)
    reply = next(pages)
    if reply["draining"]:
        say("draining: nothing is launched until drf undrain")
    if not reply["jobs"]:
        say("no jobs")
        return
    # On a narrow screen, what is least asked for gives way to the reason.
    is_wide, is_narrow = output.width() >= _WIDE, output.width() < _NARROW
    names = _NAME if is_wide else _NARROW_NAME if is_narrow else _SHORT_NAME
    has_gres = bool(reply.get("gres")) and not is_narrow
    columns: list[output.Column] = [
        ("ID", "right"), "NAME", "USER", *(["POOL"] if is_wide else []), "STATE",
        *([] if is_narrow else [("CORES", "right"), ("MEM", "right")]),
        *([("IO R/W", "right")] if is_wide else []), *(["GRES"] if has_gres else []),
        ("TIME", "right"), "WHY",
    ]  # fmt: skip
    shape: dict[str, Any] = {
        "names": names, "is_wide": is_wide, "is_narrow": is_narrow, "has_gres": has_gres,
    }  # fmt: skip
    rows = [_row(job, **shape) for job in reply["jobs"]]
    if reply.get("after") is None:
        output.print_rows(columns, rows, fixed=("ID", "STATE"), last_width=_WHY)
    else:
        # The first page is there at once, however long the list.
        later = ([_row(job, **shape) for job in page["jobs"]] for page in pages)
        output.print_pages(columns, chain([rows], later))
    click.echo(" ".join(f"{count} {state}" for state, count in sorted(counts.items())))


def _counted(pages: Iterator[output.View], counts: Counter[str]) -> Iterator[output.View]:
    """The pages, as they are; what each has of every state is added up."""
    for page in pages:
        counts.update(page["counts"])
        yield page


def _id(job: output.View) -> str:
    if "array_tasks" not in job:
        return label(job)
    return f"{job['id']}_[{output.shorten(job['array_tasks'], _INDICES)}]"


def _row(
    job: output.View, *, names: int, is_wide: bool, is_narrow: bool, has_gres: bool
) -> list[object]:
    cores, memory, io = output.show_demand(job["demand"])
    return [
        _id(job),
        output.shorten(job["name"], names),
        output.shorten(job["user"], names),
        *([output.shorten(job["pool"], names)] if is_wide else []),
        output.show_state(job["state"]),
        *([] if is_narrow else [cores, memory]),
        *([io] if is_wide else []),
        *([output.shorten(output.show_held(job), names)] if has_gres else []),
        output.show_elapsed(job),
        output.why_line(job),
    ]
