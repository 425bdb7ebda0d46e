"""drf history: ended jobs, and what they used. drf report: sums of it, and what to ask for."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from drfd.common.units import AXES, DISK_AXES, parse_duration, show_duration, show_size
from drfd_cli import charts, output
from drfd_cli.options import LINES, connect, past_options, past_selection, prints_result
from drfd_cli.output import Column, Result
from drfd_cli.tables.columns import (
    PAST_JOBS,
    as_text,
    at,
    by_key,
    column,
    counts,
    field,
    percent,
    picked,
)
from drfd_cli.tables.layout import print_items, right

if TYPE_CHECKING:
    from drfd.protocol.replies import AccountView, JobCurveView, JobView, ReportReply, ReportRow


#: Jobs shown by default, and the most jobs of one reply.
_MANY, _PAGE = 20, 1000
#: On narrower screens, the column of users is left out where they are all the same.
_WIDE = 110
#: The columns for people, which show use beside demand.
_SHOWN = (
    *("id", "command", "user", "state", "exit", "ended", "ran", "cores_used", "memory_used"),
    *("gpu_memory", "io_used", "cause"),
)


@click.command("history")
@past_options
@click.option(
    "--last",
    "number",
    metavar="N",
    type=click.IntRange(0),
    default=_MANY,
    show_default=True,
    help="The last N jobs; 0 for all.",
)
@prints_result(columns=PAST_JOBS)
def command(number: int, **choice: Any) -> Result:
    """Ended jobs, the latest last: how they ended, what they used and declared. Without ids,
    --user or --all: your jobs; for administrators, all jobs."""
    client = connect()
    asked = past_selection(client, **choice)
    # One more shows whether there are more.
    most = number + 1 if number else None
    limit = min(most or _PAGE, _PAGE)
    found = list(islice(client.jobs("history", past=asked, limit=limit), most))
    jobs = found[: number or None][::-1]
    return Result(
        show=lambda: _show(jobs, number, has_more=len(found) > len(jobs)),
        view=lambda: {"jobs": jobs},
        rows=lambda: [jobs],
    )


def _show(jobs: list[JobView], number: int, *, has_more: bool) -> None:
    if not jobs:
        output.say("no ended jobs")
        return
    print_table(jobs)
    if has_more:
        output.say(f"the last {number}; --last 0 shows all")


def print_table(jobs: list[JobView]) -> None:
    without = set()
    if output.width() < _WIDE and len({job["user"] for job in jobs}) == 1:
        without.add("user")
    if all(output.exit_words(job) in ("", "0") for job in jobs):
        without.add("exit")
    print_items(picked(PAST_JOBS, _SHOWN, without=without), jobs)


# -- drf report --------------------------------------------------------------------------------


_ROWS = 30
#: Columns to which names are cut, and the least that they keep before other columns are left out.
_KEY, _SHORT_KEY = 32, 18
#: From so many columns on there is room for curves.
_VERY_WIDE = 132
#: Curves of the last job of a row and their headings, and the width of each.
_CURVES = {
    "cores": "USE OF CORES",
    "memory": "USE OF MEM",
    "gpu_utilisation": "USE OF GPU",
}
_BARS = 12
_DEFAULT_SINCE = "30d"
#: The columns that identify a row, by the value of --by.
_KEYS = {
    "job": ["id", "name", "user"],
    "name": ["name", "user"],
    "user": ["user"],
    "pool": ["pool"],
}
_GPU: Final = "gpu"
_GPU_PEAK: Final = "gpu_memory_peak_max"
_GPU_SINGLE_PEAK: Final = "gpu_memory_single_peak_max"
_BEYOND: Final = "beyond_us"
_CORE_HOUR_US = 3.6e9


def _bar(kind: str, row: ReportRow) -> str:
    """Return a curve, scaled to the demand."""
    points: JobCurveView | None = row.get("curve")
    # Only a job with a GPU has a curve of it.
    values = () if points is None else charts.points_of(points, kind)
    if points is None or not values:
        return ""
    return charts.spark(points["at"], values, charts.declared(points["demand"], kind), _BARS)


def _core_hours(microseconds: int) -> str:
    # A little below zero is zero, without a sign.
    return f"{round(microseconds / _CORE_HOUR_US, 2) + 0.0:.2f}"


def _peak(row: AccountView) -> int | None:
    return row["peak_max"] or None


def _booked_us(row: AccountView) -> int:
    return row["cores"]["declared"] + row["cores"]["unknown"]


def _wasted_us(row: AccountView) -> int:
    # Use beyond a lower end makes up for nothing that was booked and not used.
    return row["cores"]["wasted"] + (row[_BEYOND] or 0)


def _gpu_peak(row: AccountView) -> int | None:
    """Return the most memory of a job on one of its GPUs, or of jobs that were given none, on all
    they used."""
    return row[_GPU_PEAK] if row[_GPU_SINGLE_PEAK] is None else row[_GPU_SINGLE_PEAK]


def _throttled(row: AccountView) -> str | None:
    if row["throttled_unknown_jobs"] == row["jobs"]:
        return None
    return show_duration(row["throttled_us"] / 1e6)


def _gres_hours(name: str, row: AccountView) -> str:
    return f"{row['gres_ms'].get(name, 0) / 3.6e6:.2f}"


def _advice(row: ReportRow) -> str | None:
    advice = row.get("advice")
    return " ".join(advice["options"]) if advice else None


def _efficiency(title: str, axis: str, key: str) -> Column:
    return right(title, as_text(at("efficiency", axis), percent), f"{key}_percent")


def _parts(axis: str) -> list[Column]:
    return [
        field(f"{axis}_{name}", name=name, of=axis)
        for name in ("declared", "used", "unknown", "wasted", "efficiency")
    ]


REPORT = by_key(
    field("id", is_right=True, is_fixed=True),
    *(field(key, most=_KEY, least=_SHORT_KEY) for key in ("name", "user", "pool")),
    field("jobs", is_right=True),
    field("run_ms"),
    *(each for axis in AXES for each in _parts(axis)),
    *map(field, ("read_bytes", "written_bytes", "demand_max", "peak_max", "throttled_us")),
    *map(field, ("throttled_unknown_jobs", "out_of_memory_jobs", "timeout_jobs")),
    column("advice", "ADVICE", _advice),
    column("gres_ms", "GRES MS", lambda row: counts(row["gres_ms"])),
    *_parts(_GPU),
    *map(field, (_GPU_PEAK, _GPU_SINGLE_PEAK, _BEYOND)),
    # For people.
    right("CORE-H", as_text(_booked_us, _core_hours), "core_hours", is_fixed=True),
    right("BEYOND", as_text(at(_BEYOND), _core_hours), "beyond"),
    right("WASTED", as_text(_wasted_us, _core_hours), "wasted"),
    _efficiency("CPU%", "cores", "cpu"),
    right("MEM", as_text(at("demand_max"), show_size), "memory", is_fixed=True),
    right("PEAK", as_text(_peak, show_size), "peak", is_fixed=True),
    _efficiency("MEM%", "memory", "memory"),
    *(_efficiency(f"{what.upper()}%", what, what) for what in (*DISK_AXES, _GPU)),
    right("GPU MEM", as_text(_gpu_peak, show_size), "gpu_memory"),
    right("THROTTLED", _throttled, "throttled", rank=1),
    *(
        Column(head, partial(_bar, kind), f"curve_{kind}", is_fixed=True, rank=2)
        for kind, head in _CURVES.items()
    ),
)


@click.command("report")
@past_options
@click.option(
    "--by",
    type=click.Choice(list(_KEYS)),
    default="name",
    help="One row for each of these; names by user.",
)
@click.option(
    "--lines",
    "number",
    metavar="N",
    type=LINES,
    default=_ROWS,
    help=f"At most N rows ({_ROWS}), and one for the rest.",
)
@prints_result(columns=REPORT)
def report(by: str, number: int, **choice: Any) -> Result:
    """What ended jobs declared and used in 30 days, and what to ask for next time. Without ids,
    --user or --all: your jobs; for administrators, all jobs."""
    if choice["since"] is None and choice["until"] is None and not choice["ids"]:
        choice["since"] = time.time() - parse_duration(_DEFAULT_SINCE)
    client = connect()
    past = past_selection(client, **choice)
    reply = client.request("report", past=past, by=by, limit=number)
    others = {key for keys in _KEYS.values() for key in keys} - {*_KEYS[by]}
    return Result(
        show=partial(_print_table, reply),
        view=lambda: reply,
        rows=lambda: [[*reply["rows"], *filter(None, [reply["others"]])]],
        columns={key: each for key, each in REPORT.items() if key not in others},
    )


def _print_table(reply: ReportReply) -> None:
    by, total = reply["by"], reply["total"]
    if not total["jobs"]:
        output.say("no job that ran has ended in that time")
        return
    has_users = by == "user" or len({row.get("user") for row in reply["rows"]}) > 1
    has_gpus = _GPU in total["gres_ms"] or bool(total[_GPU_PEAK])
    keys = [
        *(key for key in _KEYS[by] if key != "user" or has_users),
        *(["jobs"] if by != "job" else []),
        "core_hours",
        *(["beyond"] if _core_hours(total[_BEYOND] or 0) != "0.00" else []),
        *("wasted", "cpu_percent", "memory", "peak", "memory_percent"),
        *(f"{what}_percent" for what in DISK_AXES if at("declared", what)(total)),
        *(f"{name}-h" for name in total["gres_ms"]),
        *(["gpu_percent", "gpu_memory"] if has_gpus else []),
        "throttled",
        *(f"curve_{kind}" for kind in _CURVES if output.width() >= _VERY_WIDE),
    ]
    hours = {
        f"{name}-h": right(f"{name.upper()}-H", partial(_gres_hours, name))
        for name in total["gres_ms"]
    }
    columns = picked({**REPORT, **hours}, keys)
    sums: list[tuple[str, AccountView]] = []
    sums += [("all others", reply["others"])] if reply["others"] is not None else []
    sums += [("in all", total)] if len(reply["rows"]) + len(sums) > 1 else []
    # Sums have no keys of their own.
    naming = columns[0].key if columns[0].key in _KEYS[by] else ""
    print_items(columns, reply["rows"], sums, naming=naming)
    for row in reply["rows"]:
        if row["advice"] is not None and (by == "name" or len(reply["rows"]) == 1):
            whose = f"{output.clean(row['name'])} ({output.clean(row['user'])})"
            output.tell(f"{whose}: next time {output.advice_line(row['advice'])}")
