"""Decisions per second: `python -m tests.bench.decisions [--quick]`, from the repository's root.

A full machine, every user with jobs waiting. Each decision is what one ended job causes: its end
goes into the books, its user submits another job, and a pass launches what fits then. No journal
and no launcher: the core alone, as the engine drives it, in processor time.
With a reservation, half of the users' jobs would hurt it.
Figures of runs are in RESULTS.md.
"""

from __future__ import annotations

import argparse
import time

from tests.bench.load import Load, Shape

USERS = (10, 100, 1_000, 10_000)
QUEUED = (1_000, 10_000, 100_000, 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decisions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 queued jobs at most")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each cell (1)")
    chosen = parser.parse_args()
    queued = QUEUED[:3] if chosen.quick else QUEUED
    print("decisions per second (milliseconds each)")
    for deep in (False, True):
        for reserved in (False, True):
            title = f"{'three levels' if deep else 'flat'}{', one reservation' if reserved else ''}"
            print(f"\n{title:<32}" + "".join(f"{jobs:>20,}" for jobs in queued) + "  queued")
            for users in USERS:
                row = [
                    cell(Shape(users=users, queued=jobs, deep=deep, reserved=reserved), chosen)
                    for jobs in queued
                ]
                print(f"{users:>26,} users" + "".join(f"{each:>20}" for each in row), flush=True)


def cell(shape: Shape, chosen: argparse.Namespace) -> str:
    if shape.queued < shape.users:
        return ""
    load = Load(shape)
    for _ in range(10):
        load.step()
    count = 0
    begin_s = time.process_time()
    while (spent_s := time.process_time() - begin_s) < chosen.seconds or count < 3:
        load.step()
        count += 1
    return f"{count / spent_s:,.0f} ({1000 * spent_s / count:.2f})"


if __name__ == "__main__":
    main()
