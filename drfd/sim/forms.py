"""The tables that traces come as, each recognised by its header.

Our own, which `drf simulate generate` writes; what `drf history --csv` prints; and those that
others have published, cut down to the columns that are used here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from drfd.core.resources import Resources
from drfd.errors import Refused
from drfd.sim.rows import Bad, Found, name, number, seconds
from drfd.units import parse_size

#: A line, by column.
Row = Mapping[str, str]

#: Our own columns: times in seconds; sizes and rates per second as bytes or like "16G".
OWN_NEEDED = ("user", "submit_s", "run_s", "cores", "memory")
OWN = ("name", "user", "group", "submit_s", "run_s", "limit_s", "cores", "memory", "read", "write")

#: How fast a task of a SWIM trace reads and writes, and how much each of them reads.
SWIM_TASK_BPS, SWIM_TASK_BYTES = 50_000_000, 64 << 20

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Form:
    kind: str
    #: The columns by which it is recognised: all of them must be there.
    marks: frozenset[str]
    read: Callable[[Row], Found]
    notes: tuple[str, ...] = ()
    #: All that there may be; None: others are passed over.
    columns: tuple[str, ...] | None = None


def recognise(header: list[str], rates: tuple[int, int]) -> Form:
    """`rates`: what the simulated machine reads and writes per second, which decides how fast the
    jobs of a trace without run times are."""
    there = frozenset(header)
    for form in (*_FORMS, _swim(rates)):
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


def _own(row: Row) -> Found:
    return Found(
        name=row.get("name") or "-",
        submit_s=seconds(row["submit_s"], "submit_s"),
        run_s=seconds(row["run_s"], "run_s"),
        demand=Resources(
            cores_milli=round(number(row["cores"], "cores", 1e9) * 1000),
            memory_bytes=_size(row["memory"], "memory"),
            read_bps=_size(row.get("read") or "0", "read"),
            write_bps=_size(row.get("write") or "0", "write"),
        ),
        limit_s=_limit(row.get("limit_s", ""), "limit_s"),
        user=name(row["user"], "user"),
        group=row.get("group") or None,
    )


def _size(text: str, what: str) -> int:
    if text.strip() in ("0", "0.0"):
        return 0
    try:
        return parse_size(text, what=what)
    except Refused as error:
        raise Bad(error.text) from None


def _limit(text: str, what: str) -> float | None:
    """Of traces, in which no limit at all is written as nothing, 0 or -1."""
    if not text or text.startswith("-"):
        return None
    return seconds(text, what) or None


def _history(row: Row) -> Found:
    if not row["started_at"]:
        raise Bad("it never started")
    started_s, ended_s = seconds(row["started_at"], "start"), seconds(row["ended_at"], "end")
    frozen_s = seconds(row.get("suspended_seconds") or "0", "suspended_seconds")
    return Found(
        name=row["id"],
        submit_s=seconds(row["submitted_at"], "submission"),
        run_s=max(0.0, ended_s - started_s - frozen_s),
        demand=Resources(
            cores_milli=round(number(row["declared_cores"], "cores", 1e9) * 1000),
            memory_bytes=round(number(row["declared_memory"], "memory")),
            read_bps=round(number(row["declared_read"], "read")),
            write_bps=round(number(row["declared_write"], "write")),
        ),
        limit_s=_limit(row["time_limit_s"], "time_limit_s"),
        user=name(row["user"], "user"),
        group=pool_name(row["pool"], row["user"]),
    )


def pool_name(path: str, user: str) -> str | None:
    """Of a daemon's "root.lab"; a user who is in no pool has one of his own name."""
    short = path.removeprefix("root.")
    return None if short in ("", "root", user) else short


def _cluster(group: str) -> Callable[[Row], Found]:
    def read(row: Row) -> Found:
        return Found(
            name=row["job"],
            submit_s=seconds(row["submit_s"], "submit_s"),
            run_s=seconds(row["run_s"], "run_s"),
            demand=Resources(
                cores_milli=round(number(row["cores"], "cores", 1e9) * 1000),
                memory_bytes=round(number(row["mem_mb"], "mem_mb") * _MIB),
            ),
            limit_s=_limit(row["limit_s"], "limit_s"),
            user=name(row["user"], "user"),
            group=row[group] or None,
        )

    return read


def _pods(row: Row) -> Found:
    if not row["scheduled_s"]:
        raise Bad("it never started")
    started_s = seconds(row["scheduled_s"], "scheduled_s")
    ended_s = seconds(row["deletion_s"], "deletion_s")
    if ended_s < started_s:
        raise Bad("it ended before it started")
    gpus = round(number(row["num_gpu"], "num_gpu"))
    return Found(
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
        group=None,
    )


def _swim(rates: tuple[int, int]) -> Form:
    """Run times and rates follow from the bytes that a job moves: it has a task for so many bytes
    of input, each as fast as said above, all together at most what the machine does."""

    def read(row: Row) -> Found:
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
        return Found(
            name=row["job"],
            submit_s=seconds(row["submit_s"], "submit_s"),
            run_s=run_s,
            demand=Resources(read_bps=ceil(reads / run_s), write_bps=ceil(writes / run_s)),
            limit_s=None,
            user="all",
            group=None,
        )

    return Form(
        "SWIM",
        frozenset(("job", "submit_s", "input_bytes", "shuffle_bytes", "output_bytes")),
        read,
        (
            "run times and rates are not in the trace: a task for each 64M of input at 50 MB/s, "
            "all of a job at most as fast as the machine, at least 1 s",
            "no users, cores or memory are in the trace",
        ),
    )


_FORMS = (
    Form("a table of jobs", frozenset(OWN_NEEDED), _own, columns=OWN),
    Form("drf history", frozenset(("submitted_at", "declared_cores", "ended_at")), _history),
    Form(
        "CERIT-SC",
        frozenset(("job", "submit_s", "run_s", "cores", "mem_mb", "limit_s", "user", "queue")),
        _cluster("queue"),
    ),
    Form(
        "RICC",
        frozenset(("job", "submit_s", "run_s", "cores", "mem_mb", "limit_s", "user", "group")),
        _cluster("group"),
    ),
    Form(
        "Alibaba OpenB",
        frozenset(("pod", "creation_s", "scheduled_s", "deletion_s", "cpu_milli", "qos")),
        _pods,
        (
            "no users are in the trace: its classes of service stand for them",
            "a part of a GPU counts as a whole one",
        ),
    ),
)
