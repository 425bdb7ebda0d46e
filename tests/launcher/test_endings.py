"""A cgroup may need several tries until it is gone: when they are due. Time is the test's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from drfd.launcher import signalling as module
from drfd.launcher.signalling import Ending, Endings
from launcher.rig import order

A, B = (1, 1), (2, 1)


@dataclass
class Clock:
    """In place of the module `time`; it has nothing but the monotonic clock."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def endings(clock: Clock) -> Endings:
    return Endings()


def due(endings: Endings) -> list[tuple[int, int]]:
    return [key for key, _ in endings.due()]


def ending_of(endings: Endings, key: tuple[int, int]) -> Ending:
    (found,) = (ending for other, ending in endings.due() if other == key)
    return found


def test_without_endings_there_is_nothing_to_wait_for(endings: Endings) -> None:
    assert endings.pause_s() is None
    assert due(endings) == []
    assert A not in endings


def test_an_ending_is_due_at_once(endings: Endings) -> None:
    endings.add(A, remove=False)
    assert A in endings
    assert endings.pause_s() == 0.0
    assert due(endings) == [A]
    assert not ending_of(endings, A).remove


def test_a_removal_outweighs_a_killing_whichever_came_first(endings: Endings) -> None:
    endings.add(A, remove=False)
    endings.add(A, remove=True)
    endings.add(B, remove=True)
    endings.add(B, remove=False)
    assert [ending.remove for _, ending in endings.due()] == [True, True]


def test_an_order_to_launch_again_is_kept(endings: Endings) -> None:
    again = order(cwd=Path("/"))
    endings.add(A, remove=True, relaunch=again)
    endings.add(A, remove=True)
    assert ending_of(endings, A).relaunch == again


def test_each_failed_try_doubles_the_pause_up_to_a_second(endings: Endings, clock: Clock) -> None:
    endings.add(A, remove=True)
    pauses = []
    for _ in range(12):
        endings.put_off(ending_of(endings, A))
        pause = endings.pause_s()
        assert pause is not None
        assert due(endings) == []
        pauses.append(pause)
        clock.now += pause + 1e-6
    assert pauses[:9] == pytest.approx([0.002 * 2**i for i in range(9)])
    assert pauses[9:] == pytest.approx([1.0] * 3)


def test_asked_again_it_is_tried_at_once(endings: Endings) -> None:
    endings.add(A, remove=True)
    endings.put_off(ending_of(endings, A))
    assert due(endings) == []
    endings.add(A, remove=True)
    assert due(endings) == [A]


def test_news_of_an_attempt_hurries_its_ending_and_no_other(endings: Endings) -> None:
    for key in (A, B):
        endings.add(key, remove=True)
        endings.put_off(ending_of(endings, key))
    endings.hurry(A)
    assert due(endings) == [A]


def test_news_of_an_attempt_that_is_not_ending_changes_nothing(endings: Endings) -> None:
    endings.hurry(A)
    assert A not in endings
    assert endings.pause_s() is None


def test_the_pause_is_that_of_the_first_one_due(endings: Endings, clock: Clock) -> None:
    endings.add(A, remove=True)
    endings.put_off(ending_of(endings, A))
    first = endings.pause_s()
    endings.add(B, remove=True)
    assert endings.pause_s() == 0.0
    endings.finish(B)
    assert endings.pause_s() == first


def test_a_moment_that_is_past_is_no_negative_pause(endings: Endings, clock: Clock) -> None:
    endings.add(A, remove=True)
    clock.now += 5
    assert endings.pause_s() == 0.0


def test_after_ten_seconds_it_is_called_stuck_and_only_once(endings: Endings, clock: Clock) -> None:
    endings.add(A, remove=True)
    (ending,) = (ending for _, ending in endings.due())
    told = []
    for _ in range(40):
        told.append((round(clock.now), endings.put_off(ending)))
        clock.now += 0.5
    assert [at for at, is_stuck in told if is_stuck] == [110]


def test_a_finished_ending_is_forgotten(endings: Endings, clock: Clock) -> None:
    endings.add(A, remove=True)
    clock.now += 60
    endings.finish(A)
    assert A not in endings
    endings.add(A, remove=False)
    ending = ending_of(endings, A)
    assert (ending.remove, ending.since_mono_s) == (False, clock.now)


def test_all_that_are_due_can_be_finished_while_they_are_walked(endings: Endings) -> None:
    for key in (A, B):
        endings.add(key, remove=True)
    for key, _ in endings.due():
        endings.finish(key)
    assert endings.pause_s() is None
