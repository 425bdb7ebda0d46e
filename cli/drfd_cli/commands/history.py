"""drf history: ended jobs, and what they used."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from drfd.common.units import show_size
from drfd_cli import output
from drfd_cli.options import connect, past_options, past_selection, prints_result
from drfd_cli.output import Csv, Result

if TYPE_CHECKING:
    from drfd.protocol.replies import AllRunsView, JobView, UsedView

#: Jobs shown by default, and the most jobs of one reply.
_MANY, _PAGE = 20, 1000
#: Columns to which names are cut on screens of at least `_WIDE` columns, and names and users on
#: narrower ones.
_NAME, _WIDER_NAME, _SHORT_USER = 24, 32, 12
_WIDE = 110
#: Least width of the last column, the cause of the end, which is broken into lines.
_WHY = 16
_CSV = (
    *("id", "name", "user", "pool", "state", "exit_code", "signal", "attempt"),
    *("submitted_at", "started_at", "ended_at"),
)
#: Of the use of GPUs.
_GPU = ("gpu_memory_peak", "gpu_utilisation_mean")
#: Of cores, and what was lent of them.
_CORES = ("cores_peak", "lent_cpu_seconds")
_TASK = ("array_id", "array_index")
#: Sums over all runs; a job that was preempted or tried again has more than one.
_ALL_RUNS = ("wall_seconds", "suspended_seconds", "cpu_seconds")


@click.command("history")
@past_options
@click.option(
    "-n", "--number", type=click.IntRange(0), default=_MANY, show_default=True,
    help="The last so many; 0 for all.",
)  # fmt: skip
@prints_result(csv="Print a line of values for each job.")
def command(number: int, **choice: Any) -> Result:
    """Jobs that have ended, the latest last: when, how, and what they used of what they declared.
    Yours, unless ids, --user or --all say otherwise; administrators see everybody's."""
    client = connect()
    asked = past_selection(client, **choice)
    jobs: list[JobView] = []
    after = None
    while number == 0 or len(jobs) < number:
        limit = _PAGE if number == 0 else min(_PAGE, number - len(jobs))
        page = client.request("history", past=asked, limit=limit, after=after)
        jobs += page["jobs"]
        after = page["after"]
        if after is None:
            break
    jobs.reverse()
    return Result(
        show=lambda: _show(jobs, number, has_more=after is not None),
        view=lambda: {"jobs": jobs},
        csv=lambda: _csv(jobs),
    )


def _show(jobs: list[JobView], number: int, *, has_more: bool) -> None:
    if not jobs:
        output.say("no ended jobs")
        return
    print_table(jobs)
    if has_more:
        output.say(f"the last {number}; -n 0 shows all")


def _csv(jobs: list[JobView]) -> Csv:
    from drfd.protocol.replies import USED

    demand = ("cores", "memory", "read", "write")
    used = [name for name in USED if name not in (*_GPU, *_CORES)]
    names = [*_CSV, "time_limit_s", *(f"declared_{name}" for name in demand), *used]
    # New columns come last, so that no other column moves.
    names += [*_TASK, "runs", *(f"all_{name}" for name in _ALL_RUNS)]
    names += [*_GPU, "declared_cores_max", *_CORES]
    return names, (
        [
            *_values(job, _CSV),
            job["time_limit_s"],
            *_values(job["demand"], demand),
            *_values(job["used"], used),
            *_values(job, _TASK),
            job["all_runs"]["runs"] if "all_runs" in job else int(job["started_at"] is not None),
            *_values(_used(job), _ALL_RUNS),
            # Sent for jobs that have them.
            *(job["used"].get(name) for name in _GPU),
            job["demand"].get("cores_max"),
            *(job["used"].get(name) for name in _CORES),
        ]
        for job in jobs
    )


def _values(view: Mapping[str, object], names: Iterable[str]) -> Iterator[object]:
    return (view[name] for name in names)


def print_table(jobs: list[JobView]) -> None:
    is_wide = output.width() >= _WIDE
    # What a narrow screen has no room for is cut from the names first.
    names = _NAME if is_wide else _WIDER_NAME
    cells: output.Cells[JobView] = {
        ("ID", "right"): output.label,
        "NAME": lambda job: output.named(job, names, always=True),
        "USER": lambda job: output.shorten(job["user"], _NAME if is_wide else _SHORT_USER),
        "STATE": lambda job: job["state"],
        "EXIT": _exit,
        "ENDED": lambda job: _ended(job["ended_at"], is_wide=is_wide),
        ("TIME", "right"): _elapsed,
        # Each pair is used/declared.
        ("CORES", "right"): lambda job: (
            f"{_mean_cores(_used(job))}/{output.show_cores_of(job['demand'])}"
        ),
        ("MEM", "right"): lambda job: (
            f"{_size(_used(job)['memory_peak'])}/{show_size(job['demand']['memory'])}"
        ),
        ("GPU MEM", "right"): lambda job: _size(_used(job).get("gpu_memory_peak")),
        ("IO R/W", "right"): lambda job: (
            f"{_size(_used(job)['read_bytes'])}/{_size(_used(job)['written_bytes'])}"
        ),
        "CAUSE": lambda job: "" if job["outcome"] is None else job["outcome"]["text"],
    }
    if not is_wide:
        has_users = len({job["user"] for job in jobs}) > 1
        cells = output.visible(cells, "IO R/W", "CAUSE", *([] if has_users else ["USER"]))
    if not any(_used(job).get("gpu_memory_peak") for job in jobs):
        cells = output.visible(cells, "GPU MEM")
    if is_wide or all(_exit(job) in ("-", "0") for job in jobs):
        # The cause, or the state, has it.
        cells = output.visible(cells, "EXIT")
    output.print_items(cells, jobs, fixed=("ID", "STATE"), last_width=_WHY if is_wide else 0)


def _exit(job: JobView) -> str:
    """Return the exit code, or the signal that ended the job."""
    if job["signal"] is not None:
        known = {each.value: each.name for each in signal.Signals}
        return known.get(job["signal"], f"signal {job['signal']}")
    return "-" if job["exit_code"] is None else str(job["exit_code"])


def _used(job: JobView) -> UsedView | AllRunsView:
    """Return what the job used in all its runs."""
    return job["all_runs"] if "all_runs" in job else job["used"]


def _elapsed(job: JobView) -> str:
    if "all_runs" not in job:
        return output.show_elapsed(job)
    all_runs = job["all_runs"]
    ran_s = all_runs["wall_seconds"] - all_runs["suspended_seconds"]
    return output.show_run_time(ran_s, has_ended=True)


def _size(amount: int | None) -> str:
    return "-" if amount is None else show_size(amount)


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
