"""Jobs that sleep and wake up at random, beside one that never does, and count what they have had.

A sleeper spins for a fifth of a second after each moment at which it wanted to wake up, and then
writes what it has used since that moment, and what all jobs together have. So its wait for a
processor counts against its floor, and what others took from all of them does not.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel import Kernel

#: Seconds in which who wakes up must have its floor.
WINDOW_S = 0.2
#: What the kernel's turns may add or take, in seconds of processor time, and as a part of a floor.
_TURNS_S, _TURNS_PART = 0.006, 0.1

#: Arguments: the file for what it counts, a number for its random sleeps, its cores, and the CPUs.
_SLEEPER = f"""
import os, random, sys, time
out, seed, cores, *cpus = sys.argv[1:]
if cpus:
    os.sched_setaffinity(0, set(map(int, cpus)))
dice = random.Random(int(seed))
records = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
others = []
def used_s():
    "By all other jobs."
    total = 0.0
    for file in others:
        words = os.pread(file, 100, 0).split()
        total += int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6
    return total
while True:
    # Longer than two periods of a quota: what it used before is over then.
    sleep_s = dice.uniform(0.25, 1.5)
    if not others and os.path.exists("others-" + seed):
        names = open("others-" + seed).read().split()
        others = [os.open(name, os.O_RDONLY) for name in names]
    at_s = time.monotonic() + sleep_s
    time.sleep(sleep_s)
    mine, theirs = time.process_time(), used_s()
    end_s = at_s + {WINDOW_S}
    while time.monotonic() < end_s: pass
    mine, theirs = time.process_time() - mine, used_s() - theirs
    taken_s = time.monotonic() - at_s
    if others:
        os.write(records, b"%f %f %f %f %s\\n" % (at_s, taken_s, mine, theirs, cores.encode()))
    end_s += dice.choice([0, 0, 0.3, 1.5])
    while time.monotonic() < end_s: pass
"""
#: Spins with so many processes on these CPUs.
_NEIGHBOUR = """
import os, sys
count, *cpus = map(int, sys.argv[1:])
if cpus:
    os.sched_setaffinity(0, cpus)
for _ in range(count - 1):
    if not os.fork(): break
while True: pass
"""


@dataclass(frozen=True, slots=True)
class Wake:
    """What one sleeper had when it woke up. Seconds of processor time, but for the first two."""

    #: On the monotonic clock; how long after that it was counted.
    at_s: float
    taken_s: float
    own_s: float
    others_s: float
    floor: float

    def part(self, capacity: float) -> float:
        """What it had of its floor, of all that jobs had: 1 is what it was promised."""
        return self.own_s / (self.own_s + self.others_s) * capacity / self.floor

    def is_short(self, capacity: float) -> bool:
        """Whether it had less than its floor, and less than its part of what jobs had together:
        what the machine itself, or a program outside drfd, took from all of them is none's fault.
        `capacity` is the sum of all floors."""
        promised = self.floor * self.taken_s
        fair = self.floor / capacity * (self.own_s + self.others_s)
        return self.own_s < min(promised, fair) * (1 - _TURNS_PART) - _TURNS_S


def sleeper(out: Path, number: int, floor: float, cpus: Sequence[int] = ()) -> list[str]:
    words = (out, number, floor, *cpus)
    return [sys.executable, "-I", "-S", "-c", _SLEEPER, *map(str, words)]


def neighbour(count: int, cpus: Sequence[int] = ()) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _NEIGHBOUR, *map(str, (count, *cpus))]


def counter(job: Mapping[str, Any]) -> Path:
    """The file with the processor time of a running job."""
    kernel = Kernel()
    name = "cpuacct.usage" if kernel.v2 is None else "cpu.stat"
    return Path(kernel.v2 or kernel.v1["cpuacct"], job["cgroup"], name)


def lend_all(job: Mapping[str, Any], cores: int) -> None:
    """Set a job's ceiling as drfd could have left it: the most that it may be lent."""
    kernel = Kernel()
    quota = 100_000 * cores
    if kernel.v2 is None:
        Path(kernel.v1["cpu"], job["cgroup"], "cpu.cfs_quota_us").write_text(str(quota))
    else:
        Path(kernel.v2, job["cgroup"], "cpu.max").write_text(f"{quota} 100000")


def introduce(directory: Path, counters: Mapping[int, Path]) -> None:
    """Tell each sleeper by its number in whose files the processor time of the others stands."""
    for number in counters:
        names = [str(path) for other, path in counters.items() if other != number]
        written = directory / f"{number}.names"
        written.write_text("\n".join(names))
        written.rename(directory / f"others-{number}")


def wakes(out: Path) -> list[Wake]:
    """All that were counted so far. A line may be half there."""
    lines = out.read_text().split("\n")[:-1] if out.exists() else []
    return [Wake(*map(float, line.split())) for line in lines]
