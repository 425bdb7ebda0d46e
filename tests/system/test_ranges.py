"""What jobs with ranges of cores have, by what their processes can do.

Other programs may use the machine meanwhile, so measures are ratios, of jobs that come before those
programs, or repeated until a quiet moment.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from instance import ALONE, CONFIG, Instance, wait_for
from kernel import Kernel

CPUS = sorted(os.sched_getaffinity(0))[:2]
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(len(CPUS) < 2, reason="one CPU is everybody's"),
]
SETTINGS = (
    CONFIG.replace("cores = 9", "cores = 2")
    + ALONE
    + "[pools.C]\n[pools.light]\nweight = 1\n[pools.heavy]\nweight = 2\n"
)

#: Spins with so many processes on these CPUs.
_BUSY = """
import os, sys
count, *cpus = map(int, sys.argv[1:])
os.sched_setaffinity(0, cpus)
for _ in range(count - 1):
    if not os.fork(): break
while True: pass
"""


def busy(count: int = 2, cpus: Sequence[int] = CPUS) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _BUSY, *map(str, (count, *cpus))]


@pytest.fixture
def start(lend) -> Instance:
    return lend(SETTINGS)


def run(instance: Instance, cores: str, pool: str, command: Sequence[str]) -> dict[str, Any]:
    """A job that runs."""
    return instance.running("-c", cores, "-m", "100M", "-p", pool, "--", *command)


def used_s(jobs: Sequence[dict[str, Any]], span_s: float = 2.0) -> tuple[list[float], float]:
    """What each job uses of processors in about this time, and how long it was: never less than
    that of the use."""
    began_s, before = time.monotonic(), [Kernel().use(job)[0] for job in jobs]
    time.sleep(span_s)
    after = [Kernel().use(job)[0] for job in jobs]
    found = [(now - was) / 1e6 for was, now in zip(before, after, strict=True)]
    return found, time.monotonic() - began_s


def sooner_or_later(holds: Callable[[list[float], float], bool], jobs: Sequence[Any]) -> None:
    """It holds in some span: other programs only take away."""
    seen: list[tuple[list[float], float]] = []

    def does() -> bool:
        seen.append(used_s(jobs))
        return holds(*seen[-1])

    wait_for("these cores", does, seconds=120, show=lambda: str(seen[-10:]))


def test_a_job_alone_has_the_upper_end(start):
    job = run(start, "0.5..2", "A", busy())
    idle_s = 0.0

    def is_all(found: list[float], span_s: float) -> bool:
        return found[0] >= 0.95 * 2 * span_s

    for _ in range(20):
        found, span_s = used_s([job])
        if is_all(found, span_s):
            return
        idle_s = max(idle_s, found[0] / span_s)
    pytest.skip(
        f"other programs keep these two CPUs busy: at most {idle_s:.2f} cores of 2 were had"
    )


def test_two_of_weight_one_and_two_divide_two_cores(start):
    jobs = [run(start, "0.1..2", pool, busy()) for pool in ("light", "heavy")]
    sooner_or_later(lambda found, _: abs(found[1] / found[0] - 2) < 0.2, jobs)


def test_three_jobs_of_one_have_half_beside_one_of_another(start):
    jobs = [run(start, "0.1..2", pool, busy()) for pool in ("A", "A", "A", "B")]
    sooner_or_later(lambda found, _: abs(sum(found[:3]) / found[3] - 1) < 0.1, jobs)


def test_lower_ends_come_before_weights(start):
    """By weights alone the second would have twice as much as the first. What other programs take
    is taken from the second."""
    jobs = [
        run(start, cores, pool, busy()) for cores, pool in (("1", "light"), ("0.1..2", "heavy"))
    ]
    sooner_or_later(lambda found, _: found[1] / found[0] < 1.1, jobs)


# -- jobs that sleep and wake up -------------------------------------------------------------------

# A sleeper spins for a while after each moment at which it wanted to wake up, and then writes what
# it has used since that moment, and what its neighbour has. So its wait for a processor counts
# against its lower end, and what others took from both of them does not.

#: Seconds in which who wakes up must have its lower end.
WINDOW_S = 0.05
#: What the kernel's turns may add or take, in seconds of processor time.
_TURNS_S = 0.006
_SLEEPER = f"""
import os, sys, time
out, names, *cpus = sys.argv[1:]
os.sched_setaffinity(0, map(int, cpus))
records = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while not os.path.exists(names): time.sleep(0.05)
other = os.open(open(names).read(), os.O_RDONLY)
def other_s():
    words = os.pread(other, 100, 0).split()
    return int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6
while True:
    at_s = time.monotonic() + 0.4
    time.sleep(0.4)
    mine, theirs = time.process_time(), other_s()
    while time.monotonic() < at_s + {WINDOW_S}: pass
    mine, theirs = time.process_time() - mine, other_s() - theirs
    os.write(records, b"%f %f %f\\n" % (time.monotonic() - at_s, mine, theirs))
"""


@dataclass(frozen=True, slots=True)
class Wake:
    """What a sleeper and its neighbour had in so long a time after it wanted to wake up."""

    taken_s: float
    own_s: float
    other_s: float

    def is_short(self, floor: float) -> bool:
        """Whether it had less than its lower end, and less than its part of what both had together:
        what a program outside drfd took from both is none's fault."""
        fair = floor * min(self.taken_s, (self.own_s + self.other_s) / len(CPUS))
        return self.own_s < 0.9 * fair - _TURNS_S


def wakes(out: Path) -> list[Wake]:
    """All that were counted so far. A line may be half there."""
    lines = out.read_text().split("\n")[:-1] if out.exists() else []
    return [Wake(*map(float, line.split())) for line in lines]


@pytest.mark.parametrize(("floor", "most"), [(0.9, ""), (0.4, "..2")])
def test_who_wakes_up_has_the_lower_end_at_once_with_drfd_and_without(start, floor, most):
    """A single process, beside a job of a weightier pool that is busy on all CPUs."""
    out, names = start.work / "wakes", start.work / "names"
    words = map(str, (out, names, *CPUS))
    sleeper = [sys.executable, "-I", "-S", "-c", _SLEEPER, *words]
    run(start, f"{floor}{most}", "light", sleeper)
    other = run(start, "0.1..2", "heavy", busy())
    kernel = Kernel()
    name = "cpuacct.usage" if kernel.v2 is None else "cpu.stat"
    (start.work / "new").write_text(
        str(Path(kernel.v2 or kernel.v1["cpuacct"], other["cgroup"], name))
    )
    (start.work / "new").rename(names)
    wait_for("wake-ups", lambda: len(wakes(out)) >= 20)
    os.kill(start.launcher_pid(), signal.SIGKILL)
    start.kill()
    seen = len(wakes(out))
    wait_for("wake-ups without drfd", lambda: len(wakes(out)) >= seen + 20)
    found = wakes(out)
    start.start()
    short = [wake for wake in found if wake.is_short(floor)]
    # A processor that is taken from the machine itself is charged to whoever had it, and programs
    # outside drfd take the processor of one of them. Without its weight it is short each time.
    assert len(short) <= len(found) // 4, short


# -- what it costs ---------------------------------------------------------------------------------


def switches(pid: int) -> int:
    """How often the process has waited for something and gone on."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def test_in_a_minute_without_starts_and_ends_nothing_is_ordered(start):
    """The launcher is not woken up for it, so the controller has sent nothing."""
    for pool in ("A", "B"):
        run(start, "0.1..2", pool, busy())
    pid, quiet_s = start.launcher_pid(), 60.0

    def is_quiet() -> bool:
        before = switches(pid)
        time.sleep(quiet_s)
        return switches(pid) == before

    wait_for("a launcher that sleeps", is_quiet, seconds=180)
