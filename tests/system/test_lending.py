"""What running jobs are lent, by what their processes can do.

Other programs may use the machine meanwhile, so measures are ratios, of jobs that come before those
programs, or repeated until a quiet moment.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from instance import ALONE, CONFIG, Instance, wait_for
from kernel import Kernel

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.cpu_count() == 1, reason="one CPU is everybody's"),
]

CPUS = sorted(os.sched_getaffinity(0))


# -- jobs that sleep and wake up at random ---------------------------------------------------------

# A sleeper spins for a fifth of a second after each moment at which it wanted to wake up, and then
# writes what it has used since that moment, and what all jobs together have. So its wait for a
# processor counts against its floor, and what others took from all of them does not.

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


# -- what they have --------------------------------------------------------------------------------


def ceiling(job: dict[str, Any]) -> float:
    """Cores that it may use."""
    return float(Kernel().limits(job)["cores"]) / 1000


def comes_to(jobs: list[dict[str, Any]], parts: Sequence[float]) -> None:
    """They use these cores for two seconds, none more than its ceiling (and a period's quota)."""
    #: Of quiet moments: nothing kept who spins from its ceiling.
    seen: list[list[float]] = []
    busy_s = time.monotonic() + 300

    def does() -> str:
        began_s, before = time.monotonic(), [Kernel().use(job)[0] for job in jobs]
        most = [ceiling(job) for job in jobs]
        while time.monotonic() < began_s + 2:
            time.sleep(0.1)
            most = [max(was, ceiling(job)) for was, job in zip(most, jobs, strict=True)]
        after = [Kernel().use(job)[0] for job in jobs]
        # Never shorter than the time of the use.
        span_us = (time.monotonic() - began_s) * 1e6
        used = [(now - was) / span_us for was, now in zip(before, after, strict=True)]
        over = [each for each, top in zip(used, most, strict=True) if each > top * 1.125]
        assert over == [], (used, most)
        if any(used[at] < 0.9 * most[at] for at, part in enumerate(parts) if part):
            return "" if seen or time.monotonic() < busy_s else "busy"
        seen.append([round(each, 3) for each in used])
        off = [
            abs(each - part) - max(0.06, part / 10) for each, part in zip(used, parts, strict=True)
        ]
        return "so" if max(off) < 0 else ""

    # A machine that is busy with other things may have few quiet moments.
    what = f"a use of {parts} cores"
    if wait_for(what, does, seconds=600, show=lambda: str(seen[-10:])) == "busy":
        pytest.skip("this machine is too busy to tell")


#: Two processes that spin while there is a file.
SPIN_WHILE = """
import os, sys, time
os.fork()
while True:
    if not os.path.exists(sys.argv[1]): time.sleep(0.05)
"""


def config(cores: int, *, mode: str = "share", scheduling: str = ALONE) -> str:
    text = CONFIG.replace("cores = 9", f"cores = {cores}") + "[pools.C]\n"
    return text.replace("[enforcement]", f'[enforcement]\ncores = "{mode}"') + scheduling


def run(instance: Instance, cores: str, command: Sequence[str], *words: str) -> dict[str, Any]:
    """A job that runs."""
    return instance.running("-c", cores, *(words or ("-m", "100M")), "--", *command)


def test_who_wakes_up_has_the_floor_at_once_with_drfd_and_without(lend):
    """Three sleepers and a busy job on one full CPU, also after a kill -9 with all lent to all."""
    instance, cpu, most = lend(config(len(CPUS))), CPUS[-1:], f"..{len(CPUS)}"
    floors, out = (0.15, 0.2, 0.3), instance.work / "wakes"
    jobs = {0: run(instance, f"0.35{most}", neighbour(3, cpu))}
    for number, floor in enumerate(floors, 1):
        jobs[number] = run(instance, f"{floor}{most}", sleeper(out, number, floor, cpu))
    introduce(instance.work, {number: counter(job) for number, job in jobs.items()})
    wait_for("wake-ups", lambda: len(wakes(out)) >= 12)
    os.kill(instance.launcher_pid(), signal.SIGKILL)
    instance.kill()
    # The worst that drfd could have left.
    for job in jobs.values():
        lend_all(job, len(CPUS))
    died_s = time.monotonic()
    wait_for(
        "wake-ups of each",
        lambda: all(
            len([wake for wake in wakes(out) if wake.at_s > died_s and wake.floor == floor]) >= 6
            for floor in floors
        ),
    )
    found = wakes(out)
    assert {ceiling(job) for job in jobs.values()} == {len(CPUS)}, "nobody takes back what is lent"
    instance.start()
    short = [wake for wake in found if wake.is_short(1.0)]
    # A processor that is taken from the machine itself is charged to whoever had it.
    assert len(short) <= len(found) // 20, short


def test_what_is_idle_goes_to_who_holds_least_and_nobody_has_more_than_the_ceiling(lend):
    """One core for three pools, of which A holds most memory: DRF gives the parts."""
    instance = lend(config(1))
    (instance.work / "busy").touch()
    spin = [sys.executable, "-I", "-S", "-c", SPIN_WHILE]
    jobs = [
        run(instance, "0.25..1", [*spin, file], "-p", pool, "-m", memory)
        for pool, memory, file in (
            ("A", "10800M", str(instance.work)),
            ("B", "1800M", str(instance.work)),
            ("C", "1800M", "busy"),
        )
    ]
    comes_to(jobs, (0.25, 0.375, 0.375))
    (instance.work / "busy").unlink()
    comes_to(jobs, (0.40, 0.60, 0.0))
    (instance.work / "busy").touch()
    comes_to(jobs, (0.25, 0.375, 0.375))


def test_a_program_outside_has_as_much_beside_what_is_lent_as_without(lend):
    most = len(CPUS)
    texts = [
        config(most, mode=mode, scheduling="[scheduling]\nrespect_external_load = true\n")
        for mode in ("quota", "share")
    ]
    instance = lend(texts[1])
    job = run(instance, f"0.5..{most}", neighbour(2 * most))
    wait_for("a loan", lambda: ceiling(job) > 0.5)
    spin = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    with subprocess.Popen(spin) as outside:
        try:
            found: list[list[float]] = [[], []]

            def is_as_much() -> bool:
                for text, used in zip(texts, found, strict=True):
                    instance.config.write_text(text)
                    instance.drf("reload")
                    time.sleep(3)
                    began_ns, before = time.monotonic_ns(), cpu_ns(outside.pid)
                    time.sleep(3)
                    took_ns = time.monotonic_ns() - began_ns
                    used.append((cpu_ns(outside.pid) - before) / took_ns)
                quota, share = map(sum, found)
                return len(found[0]) >= 3 and share >= 0.93 * quota

            wait_for("as much as before", is_as_much, seconds=600, show=lambda: str(found))
        finally:
            outside.kill()


def cpu_ns(pid: int) -> int:
    """Processor time of a process with one thread."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])
