"""Waiting for processes takes a bounded share of the launcher's time. Time is the test's."""

from __future__ import annotations

import pytest

from drfd.launcher.patience import Patience


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def wait(patience: Patience, clock: Clock, needs_s: float) -> float:
    """How long was waited for something that takes so long."""
    begin_s = clock.now_s
    with patience.wait() as until_mono_s:
        clock.now_s = min(until_mono_s, clock.now_s + needs_s)
    return clock.now_s - begin_s


def test_what_is_quick_is_always_waited_for() -> None:
    clock = Clock()
    patience = Patience(clock)
    assert [wait(patience, clock, 0.0005) for _ in range(1000)] == pytest.approx([0.0005] * 1000)


def test_one_that_is_slow_now_and_then_is_waited_for() -> None:
    clock = Clock()
    patience = Patience(clock)
    for _ in range(5):
        assert wait(patience, clock, 9.0) == pytest.approx(0.05)
        clock.now_s += 1.0


def test_many_that_never_stand_still_take_a_small_part_of_the_time() -> None:
    """Twenty of them, each looked at ten times a second."""
    clock = Clock()
    patience = Patience(clock)
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
    patience = Patience(clock)
    clock.now_s += 10_000.0
    assert wait(patience, clock, 9.0) == pytest.approx(0.05)
    assert wait(patience, clock, 9.0) == pytest.approx(0.0025, abs=0.002)
