"""What a person or a script waits for: `python -m tests.bench.cli [--queued N]`.

The start of `drf submit` and `drf status`, each as a multiple of a bare `python -I -c pass` of the
same interpreter: medians of runs that alternate, so that a busy machine slows all alike. Processor
time and the time on the wall are told apart, because most of a submission is spent by the daemon
and the disk. A private drfd is started for it and nothing is launched.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from drfd.client.connection import Connection
from instance import BIN, Instance

DRF = str(BIN / "drf")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cli", description=__doc__)
    parser.add_argument("--runs", type=int, default=25, help="of each command (25)")
    parser.add_argument("--queued", type=int, default=10_000, help="jobs for drf status (10,000)")
    chosen = parser.parse_args()
    instance = Instance().start()
    try:
        instance.drf("drain")
        os.environ["DRFD_SOCKET"] = str(instance.socket)
        measure(
            chosen.runs,
            {
                "drf submit -q -- true": [DRF, "submit", "-q", "--", "true"],
                "drf submit -c 1 -m 64M -- true": [
                    *(DRF, "submit", "-c", "1", "-m", "64M", "--", "true")
                ],
                "drf submit --dry-run -- true": [DRF, "submit", "--dry-run", "--", "true"],
            },
        )
        fill(instance, chosen.queued)
        measure(
            max(3, chosen.runs // 5),
            {
                f"drf status of {chosen.queued:,} jobs": [DRF, "status"],
                "… --json": [DRF, "status", "--json"],
            },
        )
    finally:
        instance.destroy()


def measure(runs: int, commands: dict[str, Sequence[str]]) -> None:
    bare = "python -I -c pass"
    spent: dict[str, list[tuple[float, float]]] = {bare: [], **{name: [] for name in commands}}
    for _ in range(runs):
        for name, command in {bare: [sys.executable, "-I", "-c", "pass"], **commands}.items():
            spent[name].append(run(command))
    print(f"{'':<34}{'CPU':>10}{'of bare':>9}{'wall':>10}{'of bare':>9}")
    cpu_bare, wall_bare = medians(spent[bare])
    for name, each in spent.items():
        cpu, wall = medians(each)
        print(
            f"{name:<34}{1000 * cpu:>7.1f} ms{cpu / cpu_bare:>9.2f}"
            f"{1000 * wall:>7.1f} ms{wall / wall_bare:>9.2f}"
        )


def run(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of processor time and on the wall."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after, end_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, end_s - begin_s


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(cpu for cpu, _ in pairs), statistics.median(wall for _, wall in pairs)


def fill(instance: Instance, count: int) -> None:
    """Queue so many jobs; those who ask at the same time share a sync of the disk."""

    def submit(share: range) -> None:
        client = Connection(instance.socket)
        for number in share:
            client.request("submit", argv=["true"], cwd="/", name=f"job-{number}")
        client.close()

    threads = [
        threading.Thread(target=submit, args=(range(start, count, 64),)) for start in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
