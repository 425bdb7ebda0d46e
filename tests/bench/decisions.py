"""Decisions per second: `python -m tests.bench.decisions [--quick] [--nodes N]`, from the
repository's root.

A full machine, every user with jobs waiting. Each decision is what one ended job causes: its end
goes into the books, its user submits another job, and a pass launches what fits then. No journal
and no launcher: the core alone, as the engine drives it, in processor time.
With a reservation, half of the users' jobs would hurt it.

With --nodes, N alike nodes beside one machine that is as large as all of them, and 100,000 jobs:
the two are measured in turns, and their ratio is the median of the turns.
Figures of runs are in RESULTS.md.
"""

import argparse
import statistics
import time
from dataclasses import replace

from tests.bench.load import Load, Shape

USERS = (10, 100, 1_000, 10_000)
QUEUED = (1_000, 10_000, 100_000, 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decisions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 queued jobs at most")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each cell (1)")
    parser.add_argument("--nodes", type=int, help="compare so many with one machine of their size")
    parser.add_argument("--turns", type=int, default=5, help="with --nodes (5)")
    chosen = parser.parse_args()
    if chosen.nodes:
        compare(chosen.nodes, chosen.turns, chosen.seconds)
        return
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
    return show(decision_s(load, chosen.seconds))


def compare(nodes: int, turns: int, seconds: float) -> None:
    """Print what a decision costs on so many nodes, and on one machine of their size."""
    print(f"decisions per second (milliseconds each), {QUEUED[2]:,} queued, medians of {turns}")
    print(f"{'':<32}{'one machine':>20}{f'{nodes} nodes':>20}{'times':>10}")
    for reserved in (False, True):
        for users in USERS[:3]:
            one = Shape(
                users=users, queued=QUEUED[2], deep=False, reserved=reserved, machines=nodes
            )
            loads = [Load(one), Load(replace(one, has_nodes=True))]
            for load in loads:
                decision_s(load, seconds)
            found = [[decision_s(load, seconds) for load in loads] for _ in range(turns)]
            row = [show(statistics.median(column)) for column in zip(*found, strict=True)]
            times = statistics.median(split / whole for whole, split in found)
            title = f"{users:,} users{', one reservation' if reserved else ''}"
            print(f"{title:<32}{row[0]:>20}{row[1]:>20}{times:>10.2f}", flush=True)


def decision_s(load: Load, seconds: float) -> float:
    """Return what a decision costs, in seconds of processor time, on the mean of so many."""
    count = 0
    begin_s = time.process_time()
    while (spent_s := time.process_time() - begin_s) < seconds or count < 3:
        load.step()
        count += 1
    return spent_s / count


def show(each_s: float) -> str:
    return f"{1 / each_s:,.0f} ({1000 * each_s:.2f})"


if __name__ == "__main__":
    main()
