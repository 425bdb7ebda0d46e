"""How fast jobs are taken, how many small ones run in a second, and how soon each starts."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from drfd.client.client import Client
from drfd.common.errors import DrfdError
from instance import BIN
from tests.bench.place import Chosen, Figure, Place, end_well, late

_DRF = str(BIN / "drf")
_BARE = [sys.executable, "-I", "-c", "pass"]
#: Milliseconds between the end of a job and the next submission.
_GAPS_MS = (50, 300, 1000, 2000)


def slots(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """An array of no-op jobs of a core each, as a user of a machine with two cores has it; once
    more with the output in the files that a user gets who does not say where it goes."""
    variants = {
        "2 slots, all there are": place.fields("/bin/true"),
        "2 slots, output in files": place.fields("/bin/true", stdout=None),
    }
    yield from _arrays(place, chosen, variants)


def private(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """The same where each job has a /tmp of its own."""
    # No job sees the usual directory, which is in /var/tmp.
    fields = place.fields("/bin/true") | {"cwd": "/"}
    yield from _arrays(place, chosen, {"2 slots, a /tmp each": fields})


def client(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """Submissions of a Python program over one connection, each on disk before it is answered: one
    after the other, and without waiting for the answer to one before the next is sent."""
    single = max(1, chosen.jobs // 4)
    singly, at_once, syncs = [], [], []
    job: dict[str, Any] = {"argv": ["true"], "cwd": place.instance.work}
    with place.drained(), Client(place.connect()) as user:
        for _ in range(chosen.runs):
            syncs.append(_syncs(200))
            begin_s = time.perf_counter()
            for _ in range(single):
                user.submit(**job)
            singly.append(single / (time.perf_counter() - begin_s))
            begin_s = time.perf_counter()
            for reply in user.submit_many(job for _ in range(chosen.jobs)):
                if isinstance(reply, DrfdError):
                    raise reply
            at_once.append(chosen.jobs / (time.perf_counter() - begin_s))
    sync = statistics.median(syncs)
    yield Figure(
        what=f"{single:,} submissions, one after the other", value=statistics.median(singly),
        unit="/s", baseline=sync, baseline_what="fsync of 4 KiB",
    )  # fmt: skip
    rate = statistics.median(at_once)
    yield Figure(
        what=f"{chosen.jobs:,} submissions at once", value=rate, unit="/s", baseline=sync,
        baseline_what="fsync of 4 KiB", aim="1,500 /s", is_met=rate >= 1500,
    )  # fmt: skip


def run(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """`drf run`: until it has ended, and until the first instruction of its job."""
    ends: list[float] = []
    begins: list[float] = []
    bare: list[float] = []

    def measure(command: list[str]) -> tuple[float, float | None]:
        """Milliseconds to the end, and to the time that the command writes."""
        begin_ns = time.monotonic_ns()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, **place.as_user(),
        )  # fmt: skip
        end_ms = (time.monotonic_ns() - begin_ns) / 1e6
        return end_ms, (int(done.stdout) - begin_ns) / 1e6 if done.stdout else None

    for _ in range(8 * chosen.runs):
        bare.append(measure(_BARE)[0])
        ends.append(measure([_DRF, "run", "--", "true"])[0])
        begin_ms = measure([_DRF, "run", "--", place.stamp])[1]
        assert begin_ms is not None
        begins.append(begin_ms)
    for what, found in ("drf run -- true", ends), ("… to the job's first instruction", begins):
        yield Figure(
            what=f"{what} (95 %: {late(found):.0f} ms)", value=statistics.median(found), unit="ms",
            baseline=statistics.median(bare), baseline_what="python -I -c pass",
        )  # fmt: skip


#: Seconds that a hundred jobs or calls take: an array of no-op jobs, one of Pythons without work,
#: a map, single calls, a map with ten calls in a task, and one of a function of the script's own.
_CALLS = """
import math, os, sys, time
import drfd.client
from drfd.futures import Executor

def timed(act):
    begin_s = time.perf_counter()
    act()
    return time.perf_counter() - begin_s

def own(number):
    return number

asked = {"cores": 1, "memory": "64M"}
with drfd.client.connect() as client, Executor(directory="calls", **asked) as executor:
    def array(*argv):
        client.wait(client.submit(argv, array=range(100), stdout="/dev/null", **asked))

    def single():
        for future in [executor.submit(math.sqrt, 4) for _ in range(100)]:
            future.result()

    print(
        timed(lambda: array("/bin/true")), timed(lambda: array(sys.executable, "-c", "pass")),
        timed(lambda: list(executor.map(math.sqrt, range(100)))), timed(single),
        timed(lambda: list(executor.map(math.sqrt, range(100), chunksize=10))),
        timed(lambda: list(executor.map(own, range(100)))),
    )
"""


def futures(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """A hundred calls of drfd.futures, to the last result, beside an array of as many no-op jobs in
    the same run."""
    found = []
    for _ in range(chosen.runs):
        done = subprocess.run(
            [sys.executable, "-c", _CALLS], stdout=subprocess.PIPE, check=True, **place.as_user()
        )
        found.append([float(word) for word in done.stdout.split()])
    bare_s = statistics.median(times[0] for times in found)
    names = (
        *("100 jobs python -c pass", "100 calls by map", "100 calls by submit"),
        *("… ten in a task", "… of a function of the script's own"),
    )
    for at, what in enumerate(names, 1):
        ratio = statistics.median(times[0] / times[at] for times in found)
        has_aim = at == 2
        yield Figure(
            what=what, value=ratio * 100 / bare_s, unit="/s", baseline=100 / bare_s,
            baseline_what="an array of /bin/true", aim="0.3 of the array" if has_aim else "",
            is_met=ratio >= 0.3 if has_aim else None,
        )  # fmt: skip


def _arrays(place: Place, chosen: Chosen, variants: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    """Arrays of no-op jobs, from the submission to the last recorded end. They take turns."""
    rates: dict[str, list[float]] = {name: [] for name in variants}
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    bare: list[tuple[float, float]] = []
    with closing(place.connect()) as connection:
        for _ in range(chosen.runs):
            bare.append(place.run_baseline(chosen.jobs, workers=2))
            for name, fields in variants.items():
                before, begin_s = place.cpu_s(), time.perf_counter()
                job = connection.submit(**fields, array=f"1-{chosen.jobs}")
                end_well(connection, job["id"])
                rates[name].append(chosen.jobs / (time.perf_counter() - begin_s))
                after = place.cpu_s()
                spent[name].append({part: after[part] - before[part] for part in before})
    cpu_ms = statistics.median(cpu_s for _, cpu_s in bare) * 1000
    for name in variants:
        ratio = statistics.median(
            rate * wall_s for rate, (wall_s, _) in zip(rates[name], bare, strict=True)
        )
        rate = statistics.median(rates[name])
        yield Figure(
            what=f"{chosen.jobs:,} no-op jobs, {name}", value=rate, unit="/s",
            baseline=rate / ratio, baseline_what="B, two workers",
        )  # fmt: skip
        for part in spent[name][0]:
            yield Figure(
                what=f"… processor time of {part}", unit="ms/job",
                value=statistics.median(each[part] for each in spent[name]) / chosen.jobs * 1000,
                baseline=cpu_ms, baseline_what="B",
            )  # fmt: skip


def _syncs(count: int) -> float:
    """A second, on the disk that the journal is on."""
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        begin_s = time.perf_counter()
        for number in range(count):
            os.pwrite(file.fileno(), bytes(4096), number * 4096)
            os.fsync(file.fileno())
        return count / (time.perf_counter() - begin_s)


def cold(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """From the moment in which a submission is sent to the job's first instruction, straight after
    the end of the last job and a while later: so it is for users who submit by hand."""
    for gap_ms, (found, bare) in _starts(place, chosen.runs, [0, *_GAPS_MS]).items():
        yield Figure(
            what=f"start {gap_ms / 1000:g} s after an end (95 %: {late(found):.1f} ms)", unit="ms",
            value=statistics.median(found), baseline=bare, baseline_what="B, one worker",
        )  # fmt: skip


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


class Benchmark(NamedTuple):
    measure: Callable[[Place, Chosen], Iterator[Figure]]
    make: Callable[[], Place] = Place


BENCHMARKS: dict[str, Benchmark] = {
    "cold": Benchmark(cold),
    "slots": Benchmark(slots, lambda: Place(2)),
    "private": Benchmark(private, lambda: Place(2, private_tmp=True)),
    "client": Benchmark(client),
    "run": Benchmark(run),
    "futures": Benchmark(futures),
}
