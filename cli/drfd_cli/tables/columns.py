"""What lists say of jobs: each column is declared once, for people, programs and Slurm's lists.

`drf status`, `drf history`, their --parsable and --csv, `-o`, `drf top` and squeue name its key. A
new column is the last row, so that no other one moves for programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from drfd.common.units import AXES, show_duration, show_size
from drfd_cli import output
from drfd_cli.output import Column, Columns, number
from drfd_cli.tables.layout import Painted

if TYPE_CHECKING:
    from drfd.protocol.replies import AllRunsView, CodeText, JobView, UsedView

#: Resources with headings other than their names.
HEADS = {"memory": "MEM"}
#: Columns to which names, and lists of indices, are cut, and the least that they keep before other
#: columns are left out.
_NAME, _LEAST_NAME = 24, 12
#: Columns of a screen on which there is room for whole dates.
_WIDE = 110


def percent(share: float) -> str:
    return f"{share:.0%}"


def _rate(amount: float) -> str:
    return f"{show_size(amount)}/s"


#: An object in a view, by its key or by a function.
Of = str | Callable[[Any], Any] | None


def at(name: str, of: Of = None) -> Callable[[Any], Any]:
    """Return the function that returns a field of a view, or of the object `of` in it; None for one
    that is not there."""

    def value(view: Any) -> Any:
        part = of(view) if callable(of) else view if of is None else view.get(of)
        return None if part is None else part.get(name)

    return value


def as_text(value: Callable[[Any], Any], show: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the function that returns a value of a view as people see it; None if there is
    none."""

    def shown(view: Any) -> object:
        found = value(view)
        return None if found is None or found == "" else show(found)

    return shown


def pair(*parts: Callable[[Any], object]) -> Callable[[Any], str]:
    """Return the function that returns two texts of a view beside each other: `2G/8G`."""
    return lambda view: "/".join(str(part(view) or "-") for part in parts)


def field(
    key: str,
    title: str = "",
    show: Callable[[Any], object] = str,
    *,
    name: str = "",
    of: Of = None,
    **more: Any,
) -> Column:
    """Return the column of a field of a view, or of the object `of` in it."""
    return column(key, title or key.replace("_", " ").upper(), at(name or key, of), show, **more)


def column(
    key: str,
    title: str,
    value: Callable[[Any], Any],
    show: Callable[[Any], object] = str,
    **more: Any,
) -> Column:
    """Return a column with a value for programs, which people see as `show` returns it."""
    return Column(title, as_text(value, show), key, value, **more)


def amounts(of: str, **more: Any) -> list[Column]:
    """Return the columns of the amounts in the object `of` of a view, one for each resource."""

    def cores(view: Any) -> str | None:
        amount = view.get(of)
        return output.show_cores_of(amount) if amount and "cores" in amount else None

    return [
        Column("CORES", cores, "cores", at("cores", of), is_right=True, **more),
        *(
            field(name, HEADS.get(name, ""), axis.show, of=of, is_right=True, **more)
            for name, axis in AXES.items()
            if name != "cores"
        ),
    ]


def by_key(*columns: Column) -> Columns:
    return {each.key: each for each in columns}


def counts(held: Mapping[str, int]) -> str:
    """Return counts as `gpu=2,tape=1`."""
    return ",".join(f"{name}={count}" for name, count in held.items())


def picked(columns: Columns, keys: Iterable[str], *, without: Iterable[str] = ()) -> list[Column]:
    """Return the columns of a table for people: those that -o names, else these, which may give way
    to others."""
    chosen = click.get_current_context().params.get("chosen")
    if chosen is None:
        return [columns[key] for key in keys if key not in {*without}]
    return [replace(columns[key], rank=0) for key in chosen]


# -- jobs ----------------------------------------------------------------------------------------

_right = partial(field, is_right=True)
_past = partial(field, is_right=True, is_past=True)
_for_people = partial(Column, is_past=True)
#: Styles of states. Others are those of failures.
_STATE_STYLES = {
    **dict.fromkeys(("RUNNING", "STARTING"), "good"),
    "PENDING": "warm",
    **dict.fromkeys(("HELD", "SUSPENDED", "STOPPING", "CLEANING"), "held"),
    **dict.fromkeys(("COMPLETED", "CANCELLED"), "dim"),
}


def _state(state: str) -> Painted:
    return Painted(state, _STATE_STYLES.get(state, "hot"))


def _label(job: JobView) -> str:
    if "array_tasks" not in job:
        return output.label(job)
    return f"{job['id']}_[{output.shorten(job['array_tasks'], _NAME)}]"


def _about(job: JobView) -> CodeText | None:
    return job["reason"] or job["outcome"]


def _instances(job: JobView) -> str:
    """Return allocated instances, such as `gpu=0,1;tape=left`."""
    held = job.get("gres_instances", {})
    return ";".join(f"{name}={','.join(each)}" for name, each in held.items())


def used(job: JobView) -> UsedView | AllRunsView:
    """Return what the job used in all its runs."""
    return job["all_runs"] if "all_runs" in job else job["used"]


def _mean_cores(job: JobView) -> str:
    """Return the mean number of busy cores while the job was not suspended, and those declared."""
    of, busy = used(job), "-"
    if of["cpu_seconds"] is not None and of["wall_seconds"] is not None:
        ran_s = of["wall_seconds"] - (of["suspended_seconds"] or 0.0)
        busy = "-" if ran_s <= 0 else f"{of['cpu_seconds'] / ran_s:.1f}".removesuffix(".0")
    return f"{busy}/{output.show_cores_of(job['demand'])}"


def _size(name: str, of: Of) -> Callable[[Any], object]:
    return as_text(at(name, of), show_size)


def _runs(job: JobView) -> int:
    return job["all_runs"]["runs"] if "all_runs" in job else int(job["started_at"] is not None)


def _ended(at_s: float) -> str:
    if output.width() >= _WIDE:
        return output.show_time(at_s)
    return time.strftime("%m-%d %H:%M", time.localtime(at_s))


def _ran(job: JobView) -> str:
    if "all_runs" not in job:
        return output.show_elapsed(job)
    all_runs = job["all_runs"]
    ran_s = all_runs["wall_seconds"] - all_runs["suspended_seconds"]
    return output.show_run_time(ran_s, has_ended=True)


#: What is known of the use of an ended job, and how it is shown.
_USED: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("wall_seconds", "suspended_seconds", "cpu_seconds"), show_duration),
    "late_cores": number,
    **dict.fromkeys(
        ("memory_peak", "memory_mean", "memory_working", "largest_process", "read_bytes",
         "written_bytes"), show_size,
    ),
    **dict.fromkeys(("read_peak", "write_peak"), _rate),
    **dict.fromkeys(("quota_periods", "throttled_periods"), str),
    "throttled_seconds": show_duration,
    **dict.fromkeys(("limit_hits", "oom_kills"), str),
    "io_stalled_seconds": show_duration,
    "processes_peak": str,
    "gpu_memory_peak": show_size,
    "gpu_utilisation_mean": "{}%".format,
    "cores_peak": number,
    "beyond_cpu_seconds": show_duration,
}  # fmt: skip
#: The columns of a job. Those that are past are of ended jobs alone.
PAST_JOBS = by_key(
    Column("ID", _label, "id", at("id"), is_right=True, is_fixed=True),
    Column("NAME", lambda job: output.named(job, _NAME), "name", at("name"), least=_LEAST_NAME,
           squeue="j NAME name stepname", sacct="JobName"),
    field("user", most=_NAME, least=8, squeue="u USER username", sacct="User 9"),
    field("pool", most=_NAME, rank=4, squeue="a ACCOUNT account", sacct="Account"),
    field("state", show=_state, is_fixed=True),
    field("code", of=_about),
    *amounts("demand", rank=1),
    _right("time_limit_s", "LIMIT", show_duration),
    _right("priority", squeue="p PRIORITY priority", sacct="Priority"),
    _right("attempt"),
    *(
        field(f"{name}_at", name.upper(), output.show_time)
        for name in ("submitted", "started", "ended")
    ),
    _right("exit_code"),
    _right("signal"),
    Column("WHY", output.why_line, "why", output.why_line, is_sentence=True),
    _right("array_id", "ARRAY"),
    _right("array_index", "INDEX"),
    field("array_tasks", "TASKS", most=_NAME),
    Column("GRES", output.show_held, "gres", lambda job: counts(job["demand"]["gres"]),
           most=_NAME, rank=2),
    column("gres_instances", "INSTANCES", _instances),
    field("group", most=_NAME, rank=2),
    column("gres_memory", "GRES MEM", lambda job: counts(job["demand"].get("gres_memory", {}))),
    _right("cores_max", "MOST CORES", number, of="demand"),
    # For people: several values, or how the time goes.
    Column("IO R/W", lambda job: output.show_io(job["demand"]), "io", is_right=True, rank=5),
    Column("TIME", output.show_elapsed, "time", is_right=True),
    Column("EXIT", as_text(output.exit_words, str), "exit"),
    Column("NAME", lambda job: output.named(job, _NAME, always=True), "command", least=_LEAST_NAME),
    *(_past(name, show=show, of="used") for name, show in _USED.items()),
    column("runs", "RUNS", _runs, is_right=True, is_past=True),
    *(
        _past(f"all_{name}", show=show_duration, name=name, of=used)
        for name in ("wall_seconds", "suspended_seconds", "cpu_seconds")
    ),
    # For people, use beside demand.
    _for_people("ENDED", as_text(at("ended_at"), _ended), "ended"),
    _for_people("TIME", _ran, "ran", is_right=True),
    _for_people("CORES", _mean_cores, "cores_used", is_right=True),
    _for_people("MEM", pair(_size("memory_peak", used), _size("memory", "demand")), "memory_used",
                is_right=True),
    _for_people("GPU MEM", _size("gpu_memory_peak", used), "gpu_memory", is_right=True, rank=-1),
    _for_people("IO R/W", pair(_size("read_bytes", used), _size("written_bytes", used)), "io_used",
                is_right=True, rank=5),
    _for_people("CAUSE", at("text", "outcome"), "cause", is_sentence=True, rank=6),
)  # fmt: skip
#: Those of a job in the queue.
JOBS = {key: each for key, each in PAST_JOBS.items() if not each.is_past}
