"""What lists of a snapshot say of jobs: the columns of the panels of `drf top` and of the page.

The user may choose each of them, and those of `drf status` that a snapshot knows, by its key.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from drfd.common.units import AXES, show_duration, show_size, utc_time
from drfd_cli.output import Column, Columns, amount_of, run_s
from drfd_cli.tables.columns import JOBS, as_text, at, by_key, column
from drfd_cli.tables.layout import Painted, right

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotRow

#: Fractions of the demand from which a job is near its limit, and at its limit.
_WARM, _HOT = 0.8, 0.95
#: The style of what is at its limit. That of memory ends the job, and is warned of before; cores
#: are there to be used; and other rates are throttled.
_AT_LIMIT = {"cores": "plain", "memory": "hot"}
_OUTCOMES = {"COMPLETED": "good", "CANCELLED": "dim"}
#: Columns of `drf status` that ask for what a snapshot does not have.
_UNKNOWN = ("command", "why")


class Gauge(Painted):
    """A cell about the use of a resource, before which a bar can be drawn, up to `part` of it; None
    if the job declares nothing."""

    part: float | None


def show_axis(axis: str, amount: float) -> str:
    """Return an amount in the units of replies, short enough for a column."""
    kind = axis.partition(":")[0]
    if kind in AXES and kind != "cores":
        return AXES[kind].show(round(amount)).removesuffix("/s")
    if kind == "gpu_memory":
        return show_size(amount)
    if kind == "gpu_utilisation":
        return f"{amount:g}%"
    if kind != "cores":
        return f"{amount:g}"
    decimals = 2 if 0.005 <= amount < 1 else 1 if amount < 100 else 0
    shown = f"{amount:.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if decimals else shown


def show_declared(axis: str, amount: float) -> str:
    """Return a declared amount, of which no digits are left out that were written."""
    return f"{amount:.4g}" if axis == "cores" and amount < 1000 else show_axis(axis, amount)


def part_of(amount: float, whole: float) -> float:
    """Return `amount` as a fraction of `whole`, from 0 to 1, or 0 if the whole is 0."""
    return min(1.0, max(0.0, amount / whole)) if whole > 0 else 0.0


def left_s(row: SnapshotRow, at_s: float) -> float | None:
    """Return the seconds until the time limit, or None if there is none."""
    limit_s = row["time_limit_s"]
    return None if limit_s is None or row["started_at"] is None else limit_s - run_s(row, at_s)


def _use(axis: str, row: SnapshotRow) -> Gauge | None:
    """Return "now/declared". Of a range of cores it is "5/2..8", and a part of all eight."""
    now, declared = amount_of(row["now"], axis), amount_of(row["demand"], axis) or 0
    if not declared and not now:
        return None
    most = row["demand"].get("cores_max") if axis == "cores" else None
    part = part_of(now or 0.0, declared if most is None else most)
    style = _AT_LIMIT.get(axis, "warm") if part >= _HOT else "plain"
    if axis == "memory" and _WARM <= part < _HOT:
        style = "warm"
    used = "?" if now is None else show_axis(axis, now)
    words = f"{used}/{show_declared(axis, declared) if declared else '-'}"
    cell = Gauge(words if most is None else f"{words}..{show_axis(axis, most)}", style)
    cell.part = part if declared else None
    return cell


def _gpu(row: SnapshotRow) -> str | None:
    """Return a job's memory on GPUs and its utilisation of them. Of one that declares its memory on
    each, it is the most on one, of so much alone: there is no room for more."""
    now = row["now"]
    if now is None:
        return None
    memory, busy = now.get("gpu_memory"), now.get("gpu_utilisation")
    words = [show_size(memory)] if isinstance(memory, int) and (memory or busy) else []
    single, limit = now.get("gpu_memory_single"), row["demand"].get("gres_memory", {}).get("gpu")
    if words and single is not None and limit is not None:
        return f"{show_size(single)}/{show_size(limit)}"
    words += [f"{busy}%"] if busy is not None and (memory or busy) else []
    return " ".join(words) or None


def _spent(at_s: float, row: SnapshotRow) -> Painted:
    """Return the run time and the time limit, or the state if that is not RUNNING."""
    if row["state"] != "RUNNING" or row["started_at"] is None:
        return Painted(row["state"].lower(), "held")
    limit_s, left, words = row["time_limit_s"], left_s(row, at_s), show_duration(run_s(row, at_s))
    if limit_s is None or left is None:
        return Painted(words, "plain")
    # Without a second unit of zero, such as "2h" or "1d".
    limit = show_duration(limit_s).removesuffix("00h").removesuffix("00m").removesuffix("00s")
    return Painted(f"{words}/{limit}", "hot" if left <= limit_s * (1 - _HOT) else "plain")


def _evidence(row: SnapshotRow) -> Mapping[str, Any]:
    return row["reason"]["evidence"] if row["reason"] else {}


def _amount(key: str, row: SnapshotRow) -> str | None:
    about = _evidence(row)
    return show_declared(about["resource"], about[key]) if key in about else None


def _code(row: SnapshotRow) -> str | None:
    return row["reason"]["code"] if row["reason"] else None


def _waits_for(row: SnapshotRow) -> Painted:
    words = _evidence(row).get("waits_for") or _code(row) or "-"
    return Painted(words, "held" if row["state"] == "HELD" else "plain")


def _start(at_s: float, expected_s: float) -> str:
    return show_duration(expected_s - at_s) if expected_s >= at_s + 1 else "now"


def _expected(row: SnapshotRow) -> str | None:
    """Return the time of the expected start, or why none is known."""
    if row["expected_start_at"] is None:
        why = row.get("expected_start_unknown")
        return f"unknown: {why}" if why else None
    near = "by" if row.get("expected_start_certainty") == "limits" else "about"
    return f"{near} {utc_time(row['expected_start_at'])}"


def _until(at_s: float, until_s: float) -> str:
    """Return a time within a day as "14:05", another one as "Nov 23"."""
    is_near = abs(until_s - at_s) < 86400
    return time.strftime("%H:%M" if is_near else "%b %d", time.localtime(until_s))


def _outcome(row: SnapshotRow) -> Painted:
    outcome = row["outcome"] or row["state"]
    return Painted(outcome, _OUTCOMES.get(outcome, "hot"))


def _ran(at_s: float, row: SnapshotRow) -> str | None:
    return show_duration(run_s(row, at_s)) if row["started_at"] else None


def _ago(at_s: float, ended_s: float) -> str:
    if at_s - ended_s < 86400:
        return f"{show_duration(at_s - ended_s)} ago"
    return time.strftime("%b %d %H:%M", time.localtime(ended_s))


def live_columns(at_s: float) -> Columns:
    own = (each for key, each in JOBS.items() if key not in _UNKNOWN)
    return by_key(
        *own,
        Column("", at("label"), "label", least=11),
        Column("NAME", as_text(at("name"), partial(Painted, style="title")), "name", least=10,
               most=40),
        replace(JOBS["pool"], least=14),
        right("CORES", as_text(at("cores", "demand"), partial(show_declared, "cores")), "cores",
              least=5),
        replace(JOBS["memory"], least=5, rank=0),
        replace(JOBS["io"], least=9),
        replace(JOBS["gres"], least=8, rank=6),
        replace(JOBS["exit"], least=8),
        column("code", "REASON", _code, partial(Painted, style="dim"), least=16, rank=7),
        *(
            right(name.upper(), partial(_use, name), f"{name}_now", least=14, most=18,
                  rank=3 * axis.is_of_disks)
            for name, axis in AXES.items()
        ),
        right("GPU", _gpu, "gpu_now", least=10, rank=2),
        right("TIME", partial(_spent, at_s), "spent", least=13),
        right("START", as_text(at("expected_start_at"), partial(_start, at_s)), "start", least=6),
        Column("EXPECTED START", _expected, "expected_start", least=16),
        Column("WAITS FOR", _waits_for, "waits_for", least=15, most=18),
        right("NEEDS", partial(_amount, "needed"), "needed", least=5, rank=2),
        right("FREE", partial(_amount, "free"), "free", least=5, rank=1),
        Column("BLOCKED BY", at("blocked_by", _evidence), "blocked_by", least=14, most=26, rank=3),
        right("UNTIL", as_text(at("until", _evidence), partial(_until, at_s)), "until", least=6,
              rank=4),
        Column("OUTCOME", _outcome, "outcome", least=14),
        right("RAN", partial(_ran, at_s), "ran", least=7),
        right("ENDED", as_text(at("ended_at"), partial(_ago, at_s)), "ended_ago", least=12),
    )  # fmt: skip
