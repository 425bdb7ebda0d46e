"""How soon a job starts: after its submission, after the end of another, beside many that wait."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path

from drfd.common.errors import DrfdError
from tests.bench.figures import Chosen, Figure, end_well, late
from tests.bench.place import CORES, Place

#: Milliseconds between the end of a job and the next submission. About 30 ms after the last one, a
#: migration to a cgroup waits for a grace period of RCU again (`cgroup_threadgroup_rwsem`).
_GAPS_MS = (50, 300, 1000, 2000)


def start(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """From the moment in which a submission is sent to the job's first instruction; each submission
    is sent when the last job has ended."""
    found, bare = _starts(place, chosen.runs, [0])[0]
    yield _latency("start of a job, back to back", found, bare, 8, 20)


def cold(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """The same when nothing has happened for a while: so it is for users who submit by hand."""
    print(f"({_favours()})", flush=True)
    for who, what in ("pid", "pid to cgroup.procs"), ("self", "0 to tasks by the process"):
        hot = place.migrations_ms(20 * chosen.runs, pause_ms=0, who=who)
        found = place.migrations_ms(6 * chosen.runs, pause_ms=300, who=who)
        if found:
            yield Figure(
                what=f"{what}, cold (95 %: {late(found):.1f} ms)", value=statistics.median(found),
                unit="ms", baseline=statistics.median(hot), baseline_what="the same, hot",
            )  # fmt: skip
    for gap_ms, (found, bare) in _starts(place, chosen.runs, [0, *_GAPS_MS]).items():
        yield _latency(f"start {gap_ms / 1000:g} s after an end", found, bare, None, None)


def after(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """From the last instruction of a job to the first of the one that waits for its end."""
    found: list[float] = []
    count = 50
    with closing(place.connect()) as connection, place.stamps() as (path, stamps):
        for _ in range(chosen.runs):
            fields = place.fields(place.stamp, stdout=path)
            first = last = connection.submit(**fields, held=True)["id"]
            for _ in range(count):
                last = connection.submit(**fields, after=[{"id": last, "want": "ok"}])["id"]
            connection.request("release", select={"ids": [first]})
            end_well(connection, last)
            found += _gaps_ms(stamps, count + 1)
    yield _latency("end → next by --after", found, _bare(place), 10, None)


def room(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """From the last instruction of a job to the first of the one that waits for its room."""
    yield _rooms(place, chosen, "end → next for room", 10, cores=CORES)


def deep(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """The same with very many queued jobs: each asks for all that one of them leaves to others."""
    queued = f"{chosen.queued:,} queued"
    most = CORES - 1
    with closing(place.connect()) as connection:
        fields = place.fields("sleep", "3600", cores=most)
        running = connection.submit(**fields)["id"]
        begin_s = time.perf_counter()
        for reply in connection.submit_all(fields for _ in range(chosen.queued)):
            if isinstance(reply, DrfdError):
                raise reply
        print(f"({queued} in {time.perf_counter() - begin_s:.0f} s)", flush=True)
        try:
            found, bare = _starts(place, chosen.runs, [0])[0]
            yield _latency(f"start, {queued}", found, bare, 16, 40)
            yield _rooms(place, chosen, f"… for room, {queued}", 20, cores=1)
        finally:
            place.instance.drf("drain")
            connection.request("cancel", select={"ids": [running]})
            connection.wait([running], any_one=False, timeout_s=None)
            place.instance.stop()


def _starts(
    place: Place, runs: int, gaps_ms: Iterable[int]
) -> dict[int, tuple[list[float], float]]:
    """For each gap between an end and the next submission: milliseconds to the first instruction,
    and those of B with the same gap. The gaps take turns."""
    found: dict[int, list[float]] = {gap_ms: [] for gap_ms in gaps_ms}
    bare: dict[int, list[float]] = {gap_ms: [] for gap_ms in found}
    with closing(place.connect()) as connection, place.stamps() as (path, stamps):
        fields = place.fields(place.stamp, stdout=path) | {"time_limit_s": 60}

        def run(gap_ms: int) -> float:
            time.sleep(gap_ms / 1000)
            begin_ns = time.monotonic_ns()
            job = connection.submit(**fields)
            took_ms = (next(stamps) - begin_ns) / 1e6
            end_well(connection, job["id"])
            return took_ms

        for _ in range(runs):
            for gap_ms in found:
                bare[gap_ms].append(place.baseline_ms(2 if gap_ms else 40, pause_ms=gap_ms))
                found[gap_ms] += [run(gap_ms) for _ in range(6 if gap_ms else 40)]
    return {gap_ms: (found[gap_ms], statistics.median(bare[gap_ms])) for gap_ms in found}


def _rooms(place: Place, chosen: Chosen, what: str, aim_ms: float, *, cores: int) -> Figure:
    """One job after the other, of which each needs all that is free."""
    found: list[float] = []
    count = 50
    with closing(place.connect()) as connection, place.stamps() as (path, stamps):
        for _ in range(chosen.runs):
            fields = place.fields(place.stamp, cores=cores, stdout=path)
            fields |= {"time_limit_s": 60, "pool": "A"}
            job = connection.submit(**fields, array=f"0-{count}")
            end_well(connection, job["id"])
            found += _gaps_ms(stamps, count + 1)
    return _latency(what, found, _bare(place), aim_ms, None)


def _bare(place: Place) -> float:
    return place.baseline_ms(200, pause_ms=0)


def _gaps_ms(stamps: Iterator[int], count: int) -> list[float]:
    return [(b - a) / 1e6 for a, b in pairwise(islice(stamps, count))]


def _latency(
    what: str, found_ms: list[float], bare_ms: float, aim_ms: float | None, late_ms: float | None
) -> Figure:
    """`late_ms`: what 95 of 100 are to stay below."""
    median, most = statistics.median(found_ms), late(found_ms)
    aim, is_met = "", None
    if aim_ms is not None:
        aim = f"{aim_ms:g} ms" + ("" if late_ms is None else f", 95 % ≤ {late_ms:g} ms")
        is_met = median <= aim_ms and (late_ms is None or most <= late_ms)
    return Figure(
        what=f"{what} (95 %: {most:.1f} ms)", value=median, unit="ms", baseline=bare_ms,
        baseline_what="B, one worker", aim=aim, is_met=is_met,
    )  # fmt: skip


def _favours() -> str:
    """Whether the kernel was told to have migrations wait for nothing (Linux 6.0). A kernel may go
    on with it when the file system that was mounted with it is gone; the figures tell."""
    mounts = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if re.search(r" - cgroup2? ", line)
    ]  # fmt: skip
    given = sum("favordynmods" in line.rpartition(" - ")[2] for line in mounts)
    return f"favordynmods: an option of {given} of {len(mounts)} cgroup mounts here"
