"""drf history: ended jobs, and what they used. drf report: sums of it, and what to ask for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from drfd.common.units import parse_duration, show_duration, show_size
from drfd_cli import charts, output
from drfd_cli.options import LINES, connect, past_options, past_selection, prints_result
from drfd_cli.output import Columns, Csv, Result, fields, size_or_dash
from drfd_cli.table import Column, print_items, right

if TYPE_CHECKING:
    from drfd.protocol.replies import (
        AccountView,
        AllRunsView,
        JobCurveView,
        JobView,
        ReportReply,
        UsedView,
    )


#: Jobs shown by default, and the most jobs of one reply.
_MANY, _PAGE = 20, 1000
#: Columns to which names are cut on screens of at least `_WIDE` columns, and names and users on
#: narrower ones.
_NAME, _WIDER_NAME, _SHORT_USER = 24, 32, 12
_WIDE = 110
#: Least width of the last column, the cause of the end, which is broken into lines.
_WHY = 16
#: Use of GPUs and of cores, and of these what was beyond a lower end.
_LATER = ("gpu_memory_peak", "gpu_utilisation_mean", "cores_peak", "beyond_cpu_seconds")
#: Sums over all runs; a job that was preempted or tried again has more than one.
_ALL_RUNS = ("wall_seconds", "suspended_seconds", "cpu_seconds")


@click.command("history")
@past_options
@click.option(
    "--last", "number", metavar="N", type=click.IntRange(0), default=_MANY, show_default=True,
    help="The last N jobs; 0 for all.",
)  # fmt: skip
@prints_result(csv="Print a line of values for each job.")
def command(number: int, **choice: Any) -> Result:
    """Ended jobs, the latest last: when and how they ended, and what they used and declared. Yours,
    unless ids, --user or --all say otherwise; administrators see everybody's."""
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
        csv=lambda: _csv(jobs),
    )


def _show(jobs: list[JobView], number: int, *, has_more: bool) -> None:
    if not jobs:
        output.say("no ended jobs")
        return
    print_table(jobs)
    if has_more:
        output.say(f"the last {number}; --last 0 shows all")


def _csv(jobs: list[JobView]) -> Csv:
    from drfd.protocol.replies import USED

    columns: Columns[Any] = {
        **fields("id", "name", "user", "pool", "state", "exit_code", "signal", "attempt"),
        **fields("submitted_at", "started_at", "ended_at", "time_limit_s"),
        **fields(*output.AMOUNTS, of="demand", prefix="declared_"),
        **fields(*(name for name in USED if name not in _LATER), of="used"),
        **fields("array_id", "array_index"),
        "runs": lambda job: (
            job["all_runs"]["runs"] if "all_runs" in job else int(job["started_at"] is not None)
        ),
        **{f"all_{name}": partial(_of_all_runs, name=name) for name in _ALL_RUNS},
        **fields(*_LATER[:2], of="used"),
        **fields("cores_max", of="demand", prefix="declared_"),
        **fields(*_LATER[2:], of="used"),
    }
    return columns, jobs


def _of_all_runs(job: JobView, *, name: str) -> object:
    used: Mapping[str, object] = _used(job)
    return used[name]


def print_table(jobs: list[JobView]) -> None:
    is_wide = output.width() >= _WIDE
    # What a narrow screen has no room for is cut from the names first.
    names = _NAME if is_wide else _WIDER_NAME
    has_users = is_wide or len({job["user"] for job in jobs}) > 1
    # The cause, or the state, has it.
    has_exits = not (is_wide or all(output.exit_words(job) in ("", "0") for job in jobs))
    columns = [
        right("ID", output.label, is_fixed=True),
        Column("NAME", lambda job: output.named(job, names, always=True)),
        Column("USER", lambda job: output.shorten(job["user"], _NAME if is_wide else _SHORT_USER),
               is_shown=has_users),
        Column("STATE", lambda job: job["state"], is_fixed=True),
        Column("EXIT", lambda job: output.exit_words(job) or "-", is_shown=has_exits),
        Column("ENDED", lambda job: _ended(job["ended_at"], is_wide=is_wide)),
        right("TIME", _elapsed),
        # Each pair is used/declared.
        right("CORES", lambda job: (
            f"{_mean_cores(_used(job))}/{output.show_cores_of(job['demand'])}"
        )),
        right("MEM", lambda job: (
            f"{size_or_dash(_used(job)['memory_peak'])}/{show_size(job['demand']['memory'])}"
        )),
        right("GPU MEM", lambda job: size_or_dash(_used(job).get("gpu_memory_peak")),
              is_shown=any(_used(job).get("gpu_memory_peak") for job in jobs)),
        right("IO R/W", lambda job: (
            f"{size_or_dash(_used(job)['read_bytes'])}/{size_or_dash(_used(job)['written_bytes'])}"
        ), is_shown=is_wide),
        Column("CAUSE", lambda job: "" if job["outcome"] is None else job["outcome"]["text"],
               is_shown=is_wide),
    ]  # fmt: skip
    print_items(columns, jobs, last_width=_WHY if is_wide else 0)


def _used(job: JobView) -> UsedView | AllRunsView:
    """Return what the job used in all its runs."""
    return job["all_runs"] if "all_runs" in job else job["used"]


def _elapsed(job: JobView) -> str:
    if "all_runs" not in job:
        return output.show_elapsed(job)
    all_runs = job["all_runs"]
    ran_s = all_runs["wall_seconds"] - all_runs["suspended_seconds"]
    return output.show_run_time(ran_s, has_ended=True)


def _mean_cores(used: UsedView | AllRunsView) -> str:
    """Return the mean number of busy cores while the job was not suspended."""
    if used["cpu_seconds"] is None or used["wall_seconds"] is None:
        return "-"
    ran_s = used["wall_seconds"] - (used["suspended_seconds"] or 0.0)
    return "-" if ran_s <= 0 else f"{used['cpu_seconds'] / ran_s:.1f}".removesuffix(".0")


def _ended(at_s: float | None, *, is_wide: bool) -> str:
    if is_wide:
        return output.show_time(at_s)
    return time.strftime("%m-%d %H:%M", time.localtime(at_s))


# -- drf report --------------------------------------------------------------------------------


_ROWS = 30
#: Columns to which names are cut on screens of at least `_BROAD` columns, and on narrower ones.
_KEY, _SHORT_KEY = 32, 18
#: From `_VERY_WIDE` columns on there is room for curves.
_BROAD, _VERY_WIDE = 100, 132
#: Curves of the last job of a row and their headings, and the width of each.
_CURVES: dict[charts.CurveKind, str] = {
    "cores": "USE OF CORES",
    "memory": "USE OF MEM",
    "gpu_utilisation": "USE OF GPU",
}
_BARS = 12
_DEFAULT_SINCE = "30d"
#: The columns that identify a row, by the value of --by.
_KEYS = {"job": ["id", "name", "user"], "name": ["name", "user"], "user": ["user"],
         "pool": ["pool"]}  # fmt: skip
_Amount = Literal["cores", "memory", "read", "write"]
_DISK: tuple[_Amount, ...] = ("read", "write")
_GPU: Final = "gpu"
_GPU_PEAK: Final = "gpu_memory_peak_max"
_GPU_SINGLE_PEAK: Final = "gpu_memory_single_peak_max"
_BEYOND: Final = "beyond_us"
_CORE_HOUR_US = 3.6e9
_PLAIN = (
    *("read_bytes", "written_bytes", "demand_max", "peak_max", "throttled_us"),
    *("throttled_unknown_jobs", "out_of_memory_jobs", "timeout_jobs"),
)


@click.command("report")
@past_options
@click.option(
    "--by", type=click.Choice(list(_KEYS)), default="name",
    help="One line for each of these (name: per user).",
)  # fmt: skip
@click.option(
    "--lines", "number", metavar="N", type=LINES, default=_ROWS,
    help=f"At most N lines ({_ROWS}); one more sums up the rest.",
)  # fmt: skip
@prints_result(csv="Print a line of values for each line.")
def report(by: str, number: int, **choice: Any) -> Result:
    """What ended jobs of the last 30 days (see --since) declared and used, and what to ask for next
    time. Yours, unless ids, --user or --all say otherwise; administrators see everybody's."""
    if choice["since"] is None and choice["until"] is None and not choice["ids"]:
        choice["since"] = time.time() - parse_duration(_DEFAULT_SINCE)
    client = connect()
    past = past_selection(client, **choice)
    reply = client.request("report", past=past, by=by, limit=number)
    return Result(
        show=lambda: (
            _print_table(reply) if reply["total"]["jobs"]
            else output.say("no job that ran has ended in that time")
        ),
        view=lambda: reply,
        csv=lambda: _report_csv(reply),
    )  # fmt: skip


def _report_csv(reply: ReportReply) -> Csv:
    columns: Columns[Any] = {
        **fields(*_KEYS[reply["by"]], "jobs", "run_ms"),
        **{name: show for each in output.AMOUNTS for name, show in _parts(each).items()},
        **fields(*_PLAIN),
        "advice": lambda row: " ".join(row["advice"]["options"]) if row.get("advice") else None,
        "gres_ms": lambda row: (
            ",".join(f"{name}={held_ms}" for name, held_ms in row["gres_ms"].items()) or None
        ),
        **_parts(_GPU),
        **fields(_GPU_PEAK, _GPU_SINGLE_PEAK, _BEYOND),
    }
    return columns, [*reply["rows"], *filter(None, [reply["others"]])]


def _parts(axis: str) -> Columns[Any]:
    return fields("declared", "used", "unknown", "wasted", "efficiency", of=axis, prefix=f"{axis}_")


def _print_table(reply: ReportReply) -> None:
    by = reply["by"]
    is_wide = output.width() >= _BROAD
    has_users = by == "user" or len({row.get("user") for row in reply["rows"]}) > 1
    total = reply["total"]
    curves = _curves_of(reply) if output.width() >= _VERY_WIDE else []
    names = _KEY if is_wide else _SHORT_KEY
    has_gpus = _GPU in total["gres_ms"] or bool(total[_GPU_PEAK])
    # Rows of all others and of the sum have no keys, and no curves.
    columns = [
        *(
            Column(key.upper(), partial(_key, key=key, most=names), is_right=key == "id",
                   is_fixed=key == "id", is_shown=key != "user" or has_users)
            for key in _KEYS[by]
        ),
        right("JOBS", lambda row: row["jobs"], is_shown=by != "job"),
        right("CORE-H",
              lambda row: _core_hours(row["cores"]["declared"] + row["cores"]["unknown"]),
              is_fixed=True),
        right("BEYOND", lambda row: _core_hours(row[_BEYOND]),
              is_shown=_core_hours(total[_BEYOND]) not in ("-", "0.00")),
        # Use beyond a lower end makes up for nothing that was booked and not used.
        right("WASTED", lambda row: _core_hours(row["cores"]["wasted"] + (row[_BEYOND] or 0))),
        right("CPU%", lambda row: _percent(row["cores"]["efficiency"])),
        right("MEM", lambda row: show_size(row["demand_max"]), is_fixed=True),
        right("PEAK", lambda row: show_size(row["peak_max"]) if row["peak_max"] else "-",
              is_fixed=True),
        right("MEM%", lambda row: _percent(row["memory"]["efficiency"])),
        *(
            right(f"{what.upper()}%", partial(_disk, what=what),
                  is_shown=bool(total[what]["declared"]))
            for what in _DISK
        ),
        *(right(f"{name.upper()}-H", partial(_gres_hours, name=name)) for name in total["gres_ms"]),
        right("GPU%", lambda row: _percent(row[_GPU]["efficiency"]), is_shown=has_gpus),
        right("GPU MEM", _gpu_memory, is_shown=has_gpus),
        right("THROTTLED", _throttled, is_shown=is_wide),
        *(Column(_CURVES[kind], partial(_bar, kind=kind), is_fixed=True) for kind in curves),
    ]  # fmt: skip
    sums = [("all others", reply["others"])] if reply["others"] is not None else []
    sums += [("in all", total)] if len(reply["rows"]) + len(sums) > 1 else []
    below = (
        {**{column.title: column.show(row) for column in columns if column.is_shown},
         columns[0].title: name}
        for name, row in sums
    )  # fmt: skip
    print_items(columns, reply["rows"], below=below)
    for row in reply["rows"]:
        if row["advice"] is not None and (by == "name" or len(reply["rows"]) == 1):
            whose = f"{output.clean(row['name'])} ({output.clean(row['user'])})"
            output.tell(f"{whose}: next time {output.advice_line(row['advice'])}")


def _key(row: Mapping[str, Any], *, key: str, most: int) -> str:
    return output.shorten(row[key], most) if row.get(key) is not None else ""


def _disk(row: AccountView, *, what: _Amount) -> str:
    return _percent(row[what]["efficiency"])


def _gres_hours(row: AccountView, *, name: str) -> str:
    return f"{row['gres_ms'].get(name, 0) / 3.6e6:.2f}"


def _throttled(row: AccountView) -> str:
    is_known = row["throttled_unknown_jobs"] != row["jobs"]
    return show_duration(row["throttled_us"] / 1e6) if is_known else "-"


def _gpu_memory(row: AccountView) -> str:
    """Return the highest memory of a job on one of its GPUs, or of jobs that were given none, on
    all that they used."""
    single = row[_GPU_SINGLE_PEAK]
    peak = row[_GPU_PEAK] if single is None else single
    return size_or_dash(peak)


def _curves_of(reply: ReportReply) -> list[charts.CurveKind]:
    """Return the curves that some row has, those of cores and memory together."""
    curves = [curve for row in reply["rows"] if (curve := row.get("curve"))]
    has_gpus = any(any(each.get("gpu_utilisation", ())) for each in curves)
    return [kind for kind in _CURVES if curves and (has_gpus or kind != "gpu_utilisation")]


def _bar(row: Mapping[str, Any], *, kind: charts.CurveKind) -> str:
    """Return a curve, scaled to the demand."""
    points: JobCurveView | None = row.get("curve")
    # Only a job with a GPU has a curve of it.
    if points is None or kind not in points:
        return ""
    most = charts.declared(points["demand"], kind)
    return charts.spark(points["at"], points[kind], most, _BARS)


def _core_hours(microseconds: int | None) -> str:
    if microseconds is None:
        return "-"
    # A little below zero is zero, without a sign.
    return f"{round(microseconds / _CORE_HOUR_US, 2) + 0.0:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
