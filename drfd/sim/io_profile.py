"""Disk rates for traces that record none: drawn from measured tasks. SYNTHETIC, and labelled so.

Which task a job is taken for follows from a hash of its user, cores and memory, so equal jobs of a
user are the same task in every run; a task that was measured more often is drawn more often.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

from drfd.core.resources import Resources
from drfd.errors import Refused
from drfd.sim.rows import Bad, number
from drfd.sim.workload import SimJob, Workload

#: The columns that are used: how many tasks were measured, megabytes read and written by one, and
#: megabytes per second to and from the disk, both together, that nine of ten stay below.
COLUMNS = ("n", "disk_read_mb_p50", "disk_write_mb_p50", "disk_mb_s_p90")
_MB = 1_000_000

#: Weight, and bytes per second read and written.
Profile = tuple[int, int, int]


def read_profiles(path: Path) -> list[Profile]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(_profiles(csv.DictReader(file)))
    except Refused as error:
        raise Refused(error.code, f"{path}: {error.text}", hint=error.hint) from None
    except (UnicodeDecodeError, csv.Error):
        raise Refused("bad-profile", f"{path}: is not a table of text") from None
    except OSError as error:
        raise Refused("no-profile", f"{path}: cannot be read: {error.strerror}") from None


def overlaid(workload: Workload, profiles: list[Profile]) -> Workload:
    """With rates for the jobs that have none; the note says that they are synthetic."""
    bounds = list(accumulate(weight for weight, _, _ in profiles))
    drawn: dict[tuple[str, Resources], Resources] = {}
    jobs = []
    for job in workload.jobs:
        if not job.demand.read_bps and not job.demand.write_bps:
            key = job.user, job.demand
            if key not in drawn:
                drawn[key] = _drawn(job, profiles, bounds)
            job = replace(job, demand=drawn[key])
        jobs.append(job)
    note = "SYNTHETIC disk rates: drawn from measured tasks, not recorded for these jobs"
    return replace(workload, jobs=jobs, notes=(*workload.notes, note))


def _drawn(job: SimJob, profiles: list[Profile], bounds: list[int]) -> Resources:
    demand = job.demand
    text = f"{job.user} {demand.cores_milli} {demand.memory_bytes}"
    point = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % bounds[-1]
    _, read_bps, write_bps = profiles[bisect_right(bounds, point)]
    return replace(demand, read_bps=read_bps, write_bps=write_bps)


def _profiles(rows: csv.DictReader[str]) -> Iterator[Profile]:
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise Refused("bad-profile", f"line 1: there is no column {missing[0]!r}")
    found = 0
    for row in rows:
        try:
            weight, read_mb, write_mb, rate = _figures(row)
        except Bad as reason:
            raise Refused("bad-profile", f"line {rows.line_num}: {reason}") from None
        moved = read_mb + write_mb
        part = read_mb / moved if moved else 0.5
        found += 1
        yield round(weight), round(rate * part * _MB), round(rate * (1 - part) * _MB)
    if not found:
        raise Refused("bad-profile", "there is no task in it")


def _figures(row: dict[str, str]) -> Iterable[float]:
    figures = [number(row[name] or "", name) for name in COLUMNS]
    if figures[0] < 1:
        raise Bad("n is below 1")
    return figures
