"""Waiting for processes takes a bounded share of the launcher's time. Time is the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from drfd.launcher.confinement.processes import FreezeWaitBudget, end_tracers
from drfd.launcher.system import process


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def wait(patience: FreezeWaitBudget, clock: Clock, needs_s: float) -> float:
    """How long was waited for something that takes so long."""
    begin_s = clock.now_s
    with patience.wait() as until_mono_s:
        clock.now_s = min(until_mono_s, clock.now_s + needs_s)
    return clock.now_s - begin_s


def test_what_is_quick_is_always_waited_for() -> None:
    clock = Clock()
    patience = FreezeWaitBudget(clock)
    assert [wait(patience, clock, 0.0005) for _ in range(1000)] == pytest.approx([0.0005] * 1000)


def test_one_that_is_slow_now_and_then_is_waited_for() -> None:
    clock = Clock()
    patience = FreezeWaitBudget(clock)
    for _ in range(5):
        assert wait(patience, clock, 9.0) == pytest.approx(0.05)
        clock.now_s += 1.0


def test_many_that_never_stand_still_take_a_small_part_of_the_time() -> None:
    """Twenty of them, each looked at ten times a second."""
    clock = Clock()
    patience = FreezeWaitBudget(clock)
    begin_s, waited_s = clock.now_s, 0.0
    while clock.now_s < begin_s + 60:
        waited_s += sum(wait(patience, clock, 9.0) for _ in range(20))
        clock.now_s += 0.1
    # A millisecond each is theirs in any case.
    rounds = (60 - waited_s) / 0.1
    assert waited_s <= 0.05 + 0.05 * 60 + rounds * 20 * 0.001
    assert waited_s < 60 / 4


def test_a_pause_is_not_saved_up_for_ever() -> None:
    clock = Clock()
    patience = FreezeWaitBudget(clock)
    clock.now_s += 10_000.0
    assert wait(patience, clock, 9.0) == pytest.approx(0.05)
    assert wait(patience, clock, 9.0) == pytest.approx(0.0025, abs=0.002)


pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="not root: ends nobody's")

#: Nobody's account, in nobody's range of subordinate uids.
MINE, OTHERS = 64_321, 64_322
SEIZE = 0x4206
#: Becomes the uid of its first argument and traces the process of its second.
TRACE = """
import ctypes, os, sys, time
uid, pid = map(int, sys.argv[1:])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
assert ctypes.CDLL(None).ptrace(0x4206, pid, None, None) == 0
print("traced", flush=True)
time.sleep(600)
"""


@pytest.fixture
def victim() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], user=MINE, group=MINE, extra_groups=[]) as sleep:
        yield sleep.pid
        sleep.kill()


def traced_by(uid: int, pid: int) -> subprocess.Popen[bytes]:
    tracer = subprocess.Popen(
        [sys.executable, "-I", "-c", TRACE, str(uid), str(pid)], stdout=subprocess.PIPE
    )
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == b"traced\n"
    return tracer


def end(tracer: subprocess.Popen[bytes]) -> None:
    tracer.kill()
    tracer.communicate()


def test_the_users_own_is_ended(victim: int) -> None:
    tracer = traced_by(MINE, victim)
    assert process.tracers(victim) == {tracer.pid}
    assert end_tracers([victim], MINE) == [tracer.pid]
    assert tracer.wait(60) == -signal.SIGKILL
    end(tracer)
    assert end_tracers([victim], MINE) == []


@pytest.mark.parametrize(("of", "job_of"), [(0, MINE), (MINE, OTHERS), (MINE, 0), (MINE, None)])
def test_nobody_elses_is(victim: int, of: int, job_of: int | None) -> None:
    """An administrator's, above all."""
    tracer = traced_by(of, victim)
    assert end_tracers([victim], job_of) == []
    assert tracer.poll() is None
    end(tracer)


def test_processes_that_are_gone_or_not_traced_are_passed_over(victim: int) -> None:
    assert end_tracers([victim, 1 << 22], MINE) == []
