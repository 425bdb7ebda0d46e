"""drf history: jobs that have ended."""

from __future__ import annotations

import time
from typing import Any

import click

from drfd.units import show_size
from drfd_cli import output
from drfd_cli.options import as_json, connect, label
from drfd_cli.past import chosen, past_options, print_csv

_MANY = 20
_PAGE = 1000
#: Names are cut to so many signs; from this width of screen on, the longer figure.
_NAME, _SHORT_NAME = 24, 12
_WIDE = 110
#: The cause of the end is broken into lines of at least this length.
_WHY = 16
_CSV = (
    *("id", "name", "user", "pool", "state", "exit_code", "signal", "attempt"),
    *("submitted_at", "started_at", "ended_at"),
)
_TASK = ("array_id", "array_index")


@click.command("history")
@past_options
@click.option(
    "-n", "--number", type=click.IntRange(0), default=_MANY, show_default=True,
    help="The last so many; 0 for all.",
)  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Print a line of values for each job.")
@as_json
def command(number: int, as_csv: bool, as_json: bool, **choice: Any) -> None:
    """Jobs that have ended, the latest last: when, how, and what they used of what they declared.
    Yours, unless ids, --user or --all say otherwise; administrators see everybody's."""
    client = connect()
    asked = chosen(client, **choice)
    jobs: list[output.View] = []
    after = None
    while number == 0 or len(jobs) < number:
        limit = _PAGE if number == 0 else min(_PAGE, number - len(jobs))
        page = client.request("history", past=asked, limit=limit, after=after)
        jobs += page["jobs"]
        after = page["after"]
        if after is None:
            break
    jobs.reverse()
    if as_json:
        output.print_json({"jobs": jobs})
    elif as_csv:
        _print_csv(jobs)
    elif not jobs:
        output.say("no ended jobs")
    else:
        _print_table(jobs)
        if after is not None:
            output.say(f"the last {number}; -n 0 shows all")


def _print_csv(jobs: list[output.View]) -> None:
    from drfd.wire.used import USED

    demand = ("cores", "memory", "read", "write")
    names = [*_CSV, "time_limit_s", *(f"declared_{name}" for name in demand), *USED]
    # Last, so that the others stay where programs have found them.
    names += _TASK
    print_csv(
        names,
        (
            [
                *(job[name] for name in _CSV),
                job["time_limit_s"],
                *(job["demand"][name] for name in demand),
                *(job["used"][name] for name in USED),
                *(job[name] for name in _TASK),
            ]
            for job in jobs
        ),
    )


def _print_table(jobs: list[output.View]) -> None:
    is_wide = output.width() >= _WIDE
    names = _NAME if is_wide else _SHORT_NAME
    users = _several(jobs)
    wide: list[output.Column] = [("IO R/W", "right"), "CAUSE"]
    columns: list[output.Column] = [
        ("ID", "right"), "NAME", *(["USER"] if is_wide or users else []), "STATE",
        "ENDED", ("TIME", "right"), ("CORES", "right"), ("MEM", "right"),
        *(wide if is_wide else []),
    ]  # fmt: skip
    rows = [_row(job, names=names, is_wide=is_wide, users=users) for job in jobs]
    output.print_rows(columns, rows, fixed=("ID", "STATE"), last_width=_WHY if is_wide else 0)


def _several(jobs: list[output.View]) -> bool:
    return len({job["user"] for job in jobs}) > 1


def _row(job: output.View, *, names: int, is_wide: bool, users: bool) -> list[object]:
    cores, memory, _ = output.show_demand(job["demand"])
    used = job["used"]
    peak = "-" if used["memory_peak"] is None else show_size(used["memory_peak"])
    # Each pair is what was used, of what was declared.
    cells: list[object] = [
        label(job),
        output.shorten(job["name"], names),
        *([output.shorten(job["user"], names)] if is_wide or users else []),
        job["state"],
        _ended(job["ended_at"], is_wide=is_wide),
        output.show_elapsed(job),
        f"{_mean_cores(used)}/{cores}",
        f"{peak}/{memory}",
    ]
    if is_wide:
        moved = (used["read_bytes"], used["written_bytes"])
        cells.append("/".join("-" if each is None else show_size(each) for each in moved))
        cells.append("" if job["outcome"] is None else job["outcome"]["text"])
    return cells


def _mean_cores(used: output.View) -> str:
    """Cores that it kept busy on average, while it was not frozen."""
    if used["cpu_seconds"] is None or used["wall_seconds"] is None:
        return "-"
    ran_s = used["wall_seconds"] - used["suspended_seconds"]
    return "-" if ran_s <= 0 else f"{used['cpu_seconds'] / ran_s:.1f}".removesuffix(".0")


def _ended(at_s: float, *, is_wide: bool) -> str:
    if is_wide:
        return output.show_time(at_s)
    return time.strftime("%m-%d %H:%M", time.localtime(at_s))
