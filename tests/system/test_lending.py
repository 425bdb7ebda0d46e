"""What running jobs are lent, by what their processes can do.

Other programs may use the machine meanwhile, so measures are ratios, of jobs that come before those
programs, or repeated until a quiet moment.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from instance import ALONE, CONFIG, Instance, wait_for
from kernel import Kernel
from wakes import counter, introduce, lend_all, neighbour, sleeper, wakes

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.cpu_count() == 1, reason="one CPU is everybody's"),
]

CPUS = sorted(os.sched_getaffinity(0))


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
