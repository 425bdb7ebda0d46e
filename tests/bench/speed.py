"""How fast jobs are taken, started, and followed by others; each beside a baseline of the same run.

A figure is the median of several runs, and each run takes its baseline anew: what else the machine
does slows both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from drfd.client.connection import Connection
from drfd.common.errors import DrfdError
from instance import BIN
from tests.bench.place import CORES, Place

#: Jobs that wait beside those that are measured, in the last benchmark.
QUEUED = 100_000


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    #: The value as a multiple of this one, of the same run.
    baseline: float
    baseline_what: str
    #: What it is meant to be: a text, and whether it is.
    aim: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Chosen:
    runs: int
    jobs: int
    queued: int


def throughput(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """An array of no-op jobs, from its submission to the last recorded end."""
    rates, ratios, cpus = [], [], []
    spent: list[dict[str, float]] = []
    with closing(place.connect()) as client:
        for _ in range(chosen.runs):
            wall_s, cpu_s = place.run_baseline(chosen.jobs, workers=2)
            before, begin_s = place.cpu_s(), time.perf_counter()
            job = client.submit(**place.fields("/bin/true"), array=f"1-{chosen.jobs}")
            _end_well(client, job["id"])
            rates.append(chosen.jobs / (time.perf_counter() - begin_s))
            ratios.append(rates[-1] * wall_s)
            cpus.append(cpu_s * 1000)
            after = place.cpu_s()
            spent.append({name: after[name] - before[name] for name in before})
    ratio = statistics.median(ratios)
    yield Figure(
        what=f"{chosen.jobs:,} no-op jobs, one array", value=statistics.median(rates), unit="/s",
        baseline=statistics.median(rates) / ratio, baseline_what="B, two workers",
        aim="0.3 of B; 0.5 is the aim", is_met=ratio >= 0.3,
    )  # fmt: skip
    for part in spent[0]:
        cpu_ms = statistics.median(each[part] for each in spent) / chosen.jobs * 1000
        yield Figure(
            what=f"… processor time of {part}", value=cpu_ms, unit="ms/job",
            baseline=statistics.median(cpus), baseline_what="B",
        )  # fmt: skip


def shell(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """`drf submit -- true` again and again from a shell, as a script does it."""
    count = max(1, min(500, chosen.jobs // 4))
    env = {**os.environ, "DRFD_SOCKET": str(place.instance.socket)}

    def loop(command: str, times: int) -> float:
        script = f"i=0; while [ $i -lt {times} ]; do {command} || exit; i=$((i+1)); done"
        begin_s = time.perf_counter()
        subprocess.run(
            ["sh", "-c", script],
            env=env, cwd=place.instance.work, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return times / (time.perf_counter() - begin_s)

    rates, bare = [], []
    with _drained(place):
        for _ in range(chosen.runs):
            bare.append(loop(f"{sys.executable} -I -c pass", count // 5))
            rates.append(loop(f"{BIN}/drf submit -q -- true", count))
    rate = statistics.median(rates)
    yield Figure(
        what=f"{count} × drf submit -- true", value=rate, unit="/s",
        baseline=statistics.median(bare), baseline_what="python -I -c pass",
        aim="12 /s", is_met=rate >= 12,
    )  # fmt: skip


def client(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """Submissions of a Python program over one connection, each on disk before it is answered."""
    rates, syncs = [], []
    with _drained(place), closing(place.connect()) as connection:
        for _ in range(chosen.runs):
            syncs.append(_syncs(200))
            begin_s = time.perf_counter()
            _submit_many(connection, place.fields("true"), chosen.jobs)
            rates.append(chosen.jobs / (time.perf_counter() - begin_s))
    rate = statistics.median(rates)
    yield Figure(
        what=f"{chosen.jobs:,} submissions, one connection", value=rate, unit="/s",
        baseline=statistics.median(syncs), baseline_what="fsync of 4 KiB",
        aim="1,500 /s", is_met=rate >= 1500,
    )  # fmt: skip


def start(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """From the moment in which a submission is sent to the job's first instruction."""
    yield from _starts(place, chosen, times=1, what="start of a job")


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
            _end_well(connection, last)
            found += _gaps_ms(stamps, count + 1)
    yield _latency(place, "end → next by --after", found, 10, None)


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
        _submit_many(connection, fields, chosen.queued)
        print(f"({queued} in {time.perf_counter() - begin_s:.0f} s)", flush=True)
        try:
            yield from _starts(place, chosen, times=2, what=f"start, {queued}")
            yield _rooms(place, chosen, f"… for room, {queued}", 20, cores=1)
        finally:
            place.instance.drf("drain")
            connection.request("cancel", select={"ids": [running]})
            connection.wait([running], any_one=False, timeout_s=None)
            place.instance.stop()


BENCHMARKS: dict[str, Callable[[Place, Chosen], Iterator[Figure]]] = {
    each.__name__: each for each in (throughput, shell, client, start, after, room, deep)
}


def _starts(place: Place, chosen: Chosen, *, times: int, what: str) -> Iterator[Figure]:
    found: list[float] = []
    with closing(place.connect()) as connection, place.stamps() as (path, stamps):
        fields = place.fields(place.stamp, stdout=path) | {"time_limit_s": 60}
        for _ in range(40 * chosen.runs):
            begin_ns = time.monotonic_ns()
            job = connection.submit(**fields)
            found.append((next(stamps) - begin_ns) / 1e6)
            _end_well(connection, job["id"])
    yield _latency(place, what, found, 8 * times, 20 * times)


def _rooms(place: Place, chosen: Chosen, what: str, aim_ms: float, *, cores: int) -> Figure:
    """One job after the other, of which each needs all that is free."""
    found: list[float] = []
    count = 50
    with closing(place.connect()) as connection, place.stamps() as (path, stamps):
        for _ in range(chosen.runs):
            fields = place.fields(place.stamp, cores=cores, stdout=path)
            fields |= {"time_limit_s": 60, "pool": "A"}
            job = connection.submit(**fields, array=f"0-{count}")
            _end_well(connection, job["id"])
            found += _gaps_ms(stamps, count + 1)
    return _latency(place, what, found, aim_ms, None)


def _submit_many(client: Connection, fields: dict[str, Any], count: int) -> None:
    """As `Client.submit_many` does it."""
    for reply in client.submit_all(fields for _ in range(count)):
        if isinstance(reply, DrfdError):
            raise reply


def _end_well(client: Connection, job_id: int) -> None:
    """Wait for it. A job or array that has failed was not what is measured."""
    reply = client.wait([job_id], any_one=False, timeout_s=None)
    if reply["ended"][0]["state"] != "COMPLETED":
        raise SystemExit(f"job {job_id} has failed: {reply['ended'][0]}")


def _gaps_ms(stamps: Iterator[int], count: int) -> list[float]:
    return [(b - a) / 1e6 for a, b in pairwise(islice(stamps, count))]


def _latency(
    place: Place, what: str, found_ms: list[float], aim_ms: float, late_ms: float | None
) -> Figure:
    """`late_ms`: what 95 of 100 are to stay below."""
    median, late = statistics.median(found_ms), statistics.quantiles(found_ms, n=20)[-1]
    aim = f"{aim_ms:g} ms" + ("" if late_ms is None else f", 95 % ≤ {late_ms:g} ms")
    jobs = 200
    return Figure(
        what=f"{what} (95 %: {late:.1f} ms)", value=median, unit="ms",
        baseline=place.run_baseline(jobs, workers=1)[0] * 1000, baseline_what="B, one worker",
        aim=aim, is_met=median <= aim_ms and (late_ms is None or late <= late_ms),
    )  # fmt: skip


@contextmanager
def _drained(place: Place) -> Iterator[None]:
    """Nothing is launched meanwhile, and nothing is left."""
    place.instance.drf("drain")
    try:
        yield
    finally:
        place.instance.drf("cancel", "--all", "--yes")
        place.instance.drf("undrain")


def _syncs(count: int) -> float:
    """A second, on the disk that the journal is on."""
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        begin_s = time.perf_counter()
        for number in range(count):
            os.pwrite(file.fileno(), bytes(4096), number * 4096)
            os.fsync(file.fileno())
        return count / (time.perf_counter() - begin_s)
