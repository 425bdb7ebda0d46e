"""Workloads: jobs with submission times and true run times, read from traces and histories.

Traces are tables, recognised by their header: our own, which `drf simulate generate` writes; the
output of `drf history --csv`; and published ones, cut down to the columns that are used here.

The Standard Workload Format of the Parallel Workloads Archive, version 2.2, has lines of 18
numbers, with -1 for unknown values; comments begin with a semicolon. Processors are cores. Memory
is given in kilobytes per processor: as requested, or else as used.

The history of this machine (`of_history`) is made of the jobs that a daemon returns for `history`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from io import BufferedReader, TextIOWrapper
from itertools import chain
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from drfd.common.errors import Refused
from drfd.common.units import AXES, parse_size
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.model.resources import NOTHING, Resources

#: Largest time in seconds, a thousand years, and largest amount; others are errors.
_MOST_S, _MOST = 3.2e10, float(1 << 60)


class NotAJob(Exception):
    """Raised for a line that is no job; the text says why in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    #: Unique in a workload, in the order of submission; 0 for a job that is not yet part of one.
    id: int = 0
    #: Its name in the trace.
    name: str
    submit_s: float
    #: The true run time, unknown to the scheduler.
    run_s: float
    demand: Resources
    #: The wall-time limit, or None if unknown. A job that ran longer is not cut.
    limit_s: float | None
    user: str
    #: Its group in the trace, or None.
    group: str | None = None
    #: The bytes of its input, of what it shuffles and of its output, or 0 if unknown.
    data_bytes: int = 0
    #: When it is withdrawn if it still waits; None for never.
    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    #: In the order of submission.
    jobs: Sequence[SimJob]
    #: The file or another origin, for people.
    source: str
    #: The recognised format.
    kind: str
    #: Lines that are no jobs, in order.
    bad: tuple[BadLine, ...] = ()
    #: Assumptions and synthetic data, which every output mentions.
    notes: tuple[str, ...] = ()
    #: The unit that the numbers of `bad` count.
    unit: str = "line"


def collect(
    found: Iterable[tuple[int, Callable[[], SimJob]]],
    *,
    source: str,
    kind: str,
    notes: tuple[str, ...] = (),
) -> Workload:
    """Make a workload of pairs (line number, function that parses the line). Raises Refused if no
    line is a job."""
    jobs: list[tuple[float, int, SimJob]] = []
    bad: list[BadLine] = []
    # Equal demands share one object, since a trace has hundreds of thousands of lines.
    demands: dict[Resources, Resources] = {}
    for number, read in found:
        try:
            each = read()
        except NotAJob as reason:
            bad.append(BadLine(number=number, why=str(reason)))
            continue
        jobs.append((each.submit_s, number, each))
    if not jobs:
        why = f": line {bad[0].number}: {bad[0].why}" if bad else ""
        raise Refused("bad-trace", f"there is no job in it{why}")
    jobs.sort(key=lambda entry: entry[:2])
    return Workload(
        jobs=[
            replace(each, id=id, demand=demands.setdefault(each.demand, each.demand))
            for id, (_, _, each) in enumerate(jobs, start=1)
        ],
        source=source,
        kind=kind,
        bad=tuple(bad),
        notes=notes,
    )


def number(text: str, what: str, most: float = _MOST) -> float:
    """Parse a finite number from 0 up. Raises NotAJob."""
    try:
        value = float(text)
    except ValueError:
        raise NotAJob(f"{what} is no number" if text else f"{what} is missing") from None
    if not isfinite(value) or value > most:
        raise NotAJob(f"{what} is out of all bounds")
    if value < 0:
        raise NotAJob(f"{what} is negative")
    return value


def seconds(text: str, what: str) -> float:
    return number(text, what, _MOST_S)


def name(text: str, what: str) -> str:
    """Check a name. Raises NotAJob if it is empty or too long."""
    if not text:
        raise NotAJob(f"{what} is missing")
    if len(text) > 200:
        raise NotAJob(f"{what} is too long")
    return text


# -- traces ----------------------------------------------------------------------------------------

#: Column → cell of a line.
Row = Mapping[str, str]

#: The columns of our own tables. Times are in seconds; sizes, and rates per second, in bytes or
#: with a unit as in "16G".
OWN_NEEDED = ("user", "submit_s", "run_s", "cores", "memory")
OWN = ("name", "user", "group", "submit_s", "run_s", "limit_s", *AXES)

#: The columns of SWIM's own files, which are separated by tabs and have no header.
_SWIM_COLUMNS = ("job", "submit_s", "gap_s", "input_bytes", "shuffle_bytes", "output_bytes")
SWIM = "SWIM"
#: Bytes per second that a task of a SWIM trace reads and writes, and bytes of input of a task.
SWIM_TASK_BPS, SWIM_TASK_BYTES = 50_000_000, 64 << 20

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A kind of table, with the function that parses its lines."""

    kind: str
    #: The columns by which it is recognised; all of them must be there.
    marks: frozenset[str]
    read: Callable[[Row], SimJob]
    notes: tuple[str, ...] = ()
    #: All permitted columns, or None if others are ignored.
    columns: tuple[str, ...] | None = None


def _recognised(header: list[str], forms: Iterable[TraceFormat]) -> TraceFormat:
    there = frozenset(header)
    for form in forms:
        if form.marks <= there:
            unknown = sorted(there.difference(form.columns or there))
            if unknown:
                known = f"known are {', '.join(form.columns or ())}"
                raise Refused("bad-trace", f"line 1: unknown column {unknown[0]!r}", hint=known)
            return form
    raise Refused(
        "bad-trace",
        "line 1: this is the header of no trace that is known",
        hint=f"a table of your own has the columns {', '.join(OWN_NEEDED)}, "
        f"and may have {', '.join(each for each in OWN if each not in OWN_NEEDED)}",
    )


def _own(row: Row) -> SimJob:
    return SimJob(
        name=row.get("name") or "-",
        submit_s=seconds(row["submit_s"], "submit_s"),
        run_s=seconds(row["run_s"], "run_s"),
        demand=NOTHING.with_amounts(
            {axis: _size(row.get(axis) or "0", axis) for axis in AXES.keys() - OWN_NEEDED}
            | {"cores": _milli(row["cores"]), "memory": _size(row["memory"], "memory")}
        ),
        limit_s=_limit(row.get("limit_s", ""), "limit_s"),
        user=name(row["user"], "user"),
        group=row.get("group") or None,
    )


def _milli(text: str) -> int:
    return round(number(text, "cores", 1e9) * 1000)


def _size(text: str, what: str) -> int:
    if text.strip() in ("0", "0.0"):
        return 0
    try:
        return parse_size(text, what=what)
    except Refused as error:
        raise NotAJob(error.text) from None


def _limit(text: str, what: str) -> float | None:
    """Parse a limit. Traces write no limit as nothing, 0 or -1."""
    if not text or text.startswith("-"):
        return None
    return seconds(text, what) or None


def _history(row: Row) -> SimJob:
    if not row["started_at"]:
        raise NotAJob("it never started")
    started_s, ended_s = seconds(row["started_at"], "start"), seconds(row["ended_at"], "end")
    frozen_s = seconds(row.get("suspended_seconds") or "0", "suspended_seconds")
    return SimJob(
        name=row["id"],
        submit_s=seconds(row["submitted_at"], "submission"),
        run_s=max(0.0, ended_s - started_s - frozen_s),
        demand=NOTHING.with_amounts(
            {name: round(number(row.get(name, "0"), name)) for name in AXES}
            | {"cores": _milli(row["cores"])}
        ),
        limit_s=_limit(row["time_limit_s"], "time_limit_s"),
        user=name(row["user"], "user"),
        group=pool_name(row["pool"], row["user"]),
    )


def pool_name(path: str, user: str) -> str | None:
    """Return "lab" for "root.lab", or None for the path of a user without a pool."""
    short = path.removeprefix("root.")
    return None if short in ("", "root", user) else short


def _cluster(row: Row) -> SimJob:
    return SimJob(
        name=row["job"],
        submit_s=seconds(row["submit_s"], "submit_s"),
        run_s=seconds(row["run_s"], "run_s"),
        demand=Resources(
            cores_milli=_milli(row["cores"]),
            memory_bytes=round(number(row["mem_mb"], "mem_mb") * _MIB),
        ),
        limit_s=_limit(row["limit_s"], "limit_s"),
        user=name(row["user"], "user"),
        group=row["queue" if "queue" in row else "group"] or None,
    )


def _pods(row: Row) -> SimJob:
    if not row["scheduled_s"]:
        raise NotAJob("it never started")
    started_s = seconds(row["scheduled_s"], "scheduled_s")
    ended_s = seconds(row["deletion_s"], "deletion_s")
    if ended_s < started_s:
        raise NotAJob("it ended before it started")
    gpus = round(number(row["num_gpu"], "num_gpu"))
    return SimJob(
        name=row["pod"],
        submit_s=seconds(row["creation_s"], "creation_s"),
        run_s=ended_s - started_s,
        demand=Resources(
            cores_milli=round(number(row["cpu_milli"], "cpu_milli", 1e12)),
            memory_bytes=round(number(row["memory_mib"], "memory_mib") * _MIB),
            gres=(("gpu", gpus),) if gpus else (),
        ),
        limit_s=None,
        user=name(row["qos"], "qos"),
    )


def _swim(rates: tuple[int, int]) -> TraceFormat:
    """Return the format of SWIM traces, which have neither run times nor rates. They follow from
    the bytes that a job moves: it has a task for each SWIM_TASK_BYTES of input, each task moves
    SWIM_TASK_BPS, and all together at most what the machine does."""

    def read(row: Row) -> SimJob:
        names = ("input_bytes", "shuffle_bytes", "output_bytes")
        given, shuffled, written = (number(row[each], each) for each in names)
        reads, writes = given + shuffled, shuffled + written
        moved = reads + writes
        tasks = max(1, ceil(given / SWIM_TASK_BYTES))
        run_s = moved / (tasks * SWIM_TASK_BPS)
        for amount, most in zip((reads, writes), rates, strict=True):
            if amount:
                run_s = max(run_s, amount / most) if most else run_s
        run_s = max(1.0, float(ceil(run_s)))
        return SimJob(
            name=row["job"],
            submit_s=seconds(row["submit_s"], "submit_s"),
            run_s=run_s,
            demand=Resources(read_bps=ceil(reads / run_s), write_bps=ceil(writes / run_s)),
            limit_s=None,
            user="all",
            data_bytes=int(given + shuffled + written),
        )

    return TraceFormat(
        SWIM,
        frozenset(_SWIM_COLUMNS).difference(("gap_s",)),
        read,
        (
            "run times and rates are not in the trace: a task for each 64M of input at 50 MB/s, "
            "all of a job at most as fast as the machine, at least 1 s",
            "no users, cores or memory are in the trace",
        ),
    )


_FORMS = (
    TraceFormat("a table of jobs", frozenset(OWN_NEEDED), _own, columns=OWN),
    TraceFormat("drf history", frozenset(("submitted_at", "cores", "ended_at")), _history),
    *(
        TraceFormat(
            kind,
            frozenset(("job", "submit_s", "run_s", "cores", "mem_mb", "limit_s", "user", group)),
            _cluster,
        )
        for kind, group in (("CERIT-SC", "queue"), ("RICC", "group"))
    ),
    TraceFormat(
        "Alibaba OpenB",
        frozenset(("pod", "creation_s", "scheduled_s", "deletion_s", "cpu_milli", "qos")),
        _pods,
        (
            "no users are in the trace: its classes of service stand for them",
            "a part of a GPU counts as a whole one",
        ),
    ),
)


#: The fields of the Standard Workload Format that are used; it has a few more.
_SWF_COLUMNS = (
    *("job", "submit", "wait", "run", "allocated", "cpu", "used", "asked", "limit", "memory"),
    *("status", "user", "group", *map(str, range(5))),
)
#: The status of a job that was cancelled.
_CANCELLED = "5"


#: What is noted of how many of its jobs.
_NO_MEMORY = "jobs say nothing of memory, and ask for none here"
_MEMORY_BY_USE = "jobs ask for the memory that they used: no other is recorded"


def _swf(noted: Counter[str]) -> TraceFormat:
    """Return the Standard Workload Format. What is noted of jobs is counted."""

    def read(row: Row) -> SimJob:
        if row["run"].startswith("-") and row["status"] == _CANCELLED:
            raise NotAJob("it was cancelled before it started")
        processors = number(
            row["allocated" if _is_unknown(row["asked"]) else "asked"], "processors"
        )
        if not processors:
            raise NotAJob("it has no processors")
        memory = next((row[each] for each in ("memory", "used") if not _is_unknown(row[each])), "0")
        each_kb = number(memory, "the memory")
        job = SimJob(
            name=row["job"],
            submit_s=seconds(row["submit"], "the submission"),
            run_s=seconds(row["run"], "the run time"),
            demand=Resources(
                cores_milli=round(processors * 1000), memory_bytes=round(each_kb * processors) << 10
            ),
            limit_s=None if _is_unknown(row["limit"]) else seconds(row["limit"], "the limit"),
            user="unknown" if _is_unknown(row["user"]) else f"u{row['user']}",
            group=None if _is_unknown(row["group"]) else f"g{row['group']}",
        )
        noted[_NO_MEMORY] += not each_kb
        noted[_MEMORY_BY_USE] += bool(each_kb) and _is_unknown(row["memory"])
        return job

    return TraceFormat("Standard Workload Format", frozenset(_SWF_COLUMNS), read)


def _is_unknown(field: str) -> bool:
    """Return whether a field is -1, or 0 where 0 means unknown."""
    return field.startswith("-") or field in ("0", "0.0")


_GZIP = b"\x1f\x8b"
#: Longest line in characters; real ones have a few hundred at most.
_LONGEST = 100_000


def read_trace(path: Path, *, rates: tuple[int, int] = (0, 0)) -> Workload:
    """Read a trace, plain or gzip. `rates` as in `recognise`. Raises Refused if it cannot be read
    as a trace at all."""
    try:
        with path.open("rb") as file:
            return read_binary(file, source=str(path), rates=rates)
    except OSError as error:
        raise Refused("no-trace", f"{path}: cannot be read: {error.strerror}") from None


def read_binary(file: BufferedReader, *, source: str, rates: tuple[int, int] = (0, 0)) -> Workload:
    """Read a trace from an open file, which results will call `source`. Raises Refused."""
    try:
        return read_lines(_decoded(file), source=source, rates=rates)
    except Refused as error:
        raise Refused(error.code, f"{source}: {error.text}", hint=error.hint) from None
    except UnicodeDecodeError:
        raise Refused("bad-trace", f"{source}: is not UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise Refused("bad-trace", f"{source}: the gzip file is damaged or cut short") from None


def read_lines(lines: Iterable[str], *, source: str, rates: tuple[int, int] = (0, 0)) -> Workload:
    """Read a trace from its lines, which results will call `source`. Raises Refused."""
    rest = iter(lines)
    first = next(rest, "").removeprefix("\ufeff")
    words, at = first.split(), 1
    noted = Counter[str]()
    split: Callable[[str], list[str]] = str.split
    if first.startswith(";") or _are_numbers(words, len(_SWF_COLUMNS)):
        form, header = _swf(noted), list(_SWF_COLUMNS)
        rest = (line.partition(";")[0] for line in chain([first], rest))
    elif _are_numbers(words[1:], len(_SWIM_COLUMNS) - 1):
        form, header, rest = _swim(rates), list(_SWIM_COLUMNS), chain([first], rest)
    else:
        # Each line is parsed by itself, so that a stray quote spoils one job, not all after it.
        header, split, at = next(csv.reader([first]), []), _cells, 2
        doubled = [each for at, each in enumerate(header) if each in header[:at]]
        if doubled:
            raise Refused("bad-trace", f"line 1: there are two columns {doubled[0]!r}")
        form = _recognised(header, (*_FORMS, _swim(rates)))
    found = (
        (number, partial(_parsed, form, header, split, line))
        for number, line in enumerate(rest, at)
        if line.strip()
    )
    work = collect(found, source=source, kind=form.kind, notes=form.notes)
    notes = [f"{count} {text}" for text, count in noted.items() if count]
    return replace(work, notes=(*work.notes, *notes))


def _are_numbers(words: list[str], count: int) -> bool:
    are = all(word.lstrip("-").replace(".", "", 1).isdigit() for word in words)
    return len(words) == count and are


def _decoded(file: BufferedReader) -> Iterator[str]:
    raw = BufferedReader(gzip.GzipFile(fileobj=file)) if file.peek(2)[:2] == _GZIP else file
    with TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
        while line := text.readline(_LONGEST):
            yield line


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        raise NotAJob("its quotes do not match") from None


def _parsed(
    form: TraceFormat, header: list[str], split: Callable[[str], list[str]], line: str
) -> SimJob:
    cells = split(line)
    if len(cells) != len(header):
        raise NotAJob(f"it has {len(cells)} fields, not {len(header)}")
    return form.read(dict(zip(header, cells, strict=True)))


#: One object of the daemon's JSON.
View = Mapping[str, Any]

_SEVERAL_DISKS = "the disks of this machine count as one here, with the sums of their rates"
_PREEMPTED = "jobs that were tried again count once, with the run time of their last attempt"


def of_history(jobs: Iterable[View]) -> Workload:
    """Return a workload of jobs in any order; those that never started are listed as bad."""
    seen = list(jobs)
    notes = []
    if any("disks" in job["demand"] for job in seen):
        notes.append(_SEVERAL_DISKS)
    if any(job["attempt"] > 1 for job in seen):
        notes.append(_PREEMPTED)
    seen.sort(key=lambda job: int(job["id"]))
    found = ((job["id"], partial(_past, job)) for job in seen)
    work = collect(found, source="the history of this machine", kind="drf history")
    return replace(work, notes=tuple(notes), unit="job")


def amount_of(view: View) -> Resources:
    gres = tuple(sorted((name, count) for name, count in view["gres"].items() if count))
    return Resources(gres=gres).with_amounts(
        {name: round(view.get(name, 0) * axis.scale) for name, axis in AXES.items()}
    )


def with_weights(rules: Rules, nodes: Iterable[View], workload: Workload) -> Rules:
    """Return the rules with the daemon's present weights; pools and users without a node have 1.
    The daemon does not return limits and guarantees."""
    weights = {node["path"].removeprefix("root."): node["weight"] for node in nodes}
    pools = {
        group: Pool(**_weight(weights.get(group, 1)))
        for group in {job.group for job in workload.jobs if job.group}
    }
    members = {}
    for job in workload.jobs:
        name = job.user if job.group is None else f"{job.group}.{job.user}"
        if name in weights and weights[name] != 1:
            members[job.group or "", job.user] = NodeSettings(**_weight(weights[name]))
    return replace(rules, pools=pools, members=members)


def _weight(weight: float | Mapping[str, float]) -> dict[str, Any]:
    if isinstance(weight, Mapping):
        return {"weights": {name: Fraction(str(each)) for name, each in weight.items()}}
    return {"weight": Fraction(str(weight))}


def _past(job: View) -> SimJob:
    """Parse a job as its line in `drf history --csv` would be, with its countable resources."""
    demand, used = job["demand"], job.get("used") or {}
    cells = {**job, "suspended_seconds": used.get("suspended_seconds")}
    for each in AXES:
        cells[each] = demand.get(each)
    row = {column: "" if cell is None else str(cell) for column, cell in cells.items()}
    return replace(_history(row), demand=amount_of(demand))
