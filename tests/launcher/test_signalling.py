"""Signals are sent once each, freezing and endings are tried again less and less often.
Time is the test's."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.common.owner import Owner
from drfd.launcher import attempt_files
from drfd.launcher import signalling as module
from drfd.launcher.server import Launcher
from drfd.launcher.signalling import Ending, Endings, Freezing, Pace, Signalling
from fakes import Clock
from launcher.rig import order

# -- a cgroup may need several tries until it is gone -------------------------------------


A, B = (1, 1), (2, 1)


@pytest.fixture
def clock(clock, monkeypatch) -> Clock:
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def endings(clock) -> Endings:
    return Endings()


def due(endings: Endings) -> list[tuple[int, int]]:
    return [key for key, _ in endings.due()]


def ending_of(endings: Endings, key: tuple[int, int]) -> Ending:
    (found,) = (ending for other, ending in endings.due() if other == key)
    return found


def test_a_removal_outweighs_a_killing_and_an_order_to_launch_is_kept(endings):
    endings.add(A, remove=False)
    endings.add(A, remove=True)
    endings.add(B, remove=True)
    endings.add(B, remove=False)
    assert [ending.remove for _, ending in endings.due()] == [True, True]
    again = order(cwd=Path("/"))
    endings.add(A, remove=True, relaunch=again)
    endings.add(A, remove=True)
    assert ending_of(endings, A).relaunch == again


def test_asked_again_or_hurried_by_news_it_is_tried_at_once_and_no_other(endings):
    for key in (A, B):
        endings.add(key, remove=True)
        endings.put_off(ending_of(endings, key))
    assert due(endings) == []
    endings.hurry(A)
    endings.hurry((3, 1))
    assert (due(endings), (3, 1) in endings) == ([A], False)
    endings.add(B, remove=True)
    assert due(endings) == [A, B]


def test_after_ten_seconds_it_is_called_stuck_and_only_once(endings, clock):
    endings.add(A, remove=True)
    (ending,) = (ending for _, ending in endings.due())
    told = []
    for _ in range(40):
        told.append((round(clock.now_s), endings.put_off(ending)))
        clock.now_s += 0.5
    assert [at for at, is_stuck in told if is_stuck] == [1010]
    assert ending.pause_s == 10, "no longer each second"


def test_all_that_are_due_can_be_finished_while_they_are_walked(endings):
    for key in (A, B):
        endings.add(key, remove=True)
    for key, _ in endings.due():
        endings.finish(key)
    assert endings.pause_s() is None


# -- signals; while they cannot be written down, later ------------------------------------


@pytest.fixture
def directory(tmp_path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for key, uid in ((A, 1001), (B, 1002)):
        file = attempt_files.create(
            fd, key, attempt_files.created_record(Owner(uid=uid), "this boot", None)
        )
        attempt_files.append(file, "launched", {"pid": 1, "start_ticks": 1})
        os.close(file)
    yield fd
    os.close(fd)


Sent = list[tuple[attempt_files.Key, str]]


@pytest.fixture
def sent() -> Sent:
    return []


@pytest.fixture
def signals(directory, sent, clock) -> Signalling:
    place: Any = SimpleNamespace(
        signal=lambda key, attempt, *numbers: sent.extend(
            (key, signal.Signals(number).name) for number in numbers
        )
    )
    return Signalling(place, directory, Pace())


def test_a_freeze_drops_the_signals_that_wait_for_their_turn(signals, sent):
    """Each is sent to a frozen job and then thaws it: a suspended job ran on, in nobody's account.
    After a thaw the controller sends them again."""
    froze: list[attempt_files.Key] = []
    launcher: Any = SimpleNamespace(
        _known={A}, _signalling=signals, _freezing=SimpleNamespace(freeze=froze.append)
    )
    signals.add(A, 1, (10,))
    Launcher._freeze(launcher, A)
    signals.run_due()
    assert (sent, froze) == ([], [A])
    signals.add(A, 1, (10,))
    signals.run_due()
    assert sent == [(A, "SIGUSR1")]


def test_signals_that_wait_are_sent_in_turns_and_the_same_one_once(
    signals, sent, monkeypatch, clock
):
    """A user's thousands of signals kept the launches of all others waiting."""
    signal_slowly = signals.confinement.signal

    def slow(key: attempt_files.Key, attempt: attempt_files.Attempt | None, number: int) -> None:
        clock.now_s += module.TURN_S
        signal_slowly(key, attempt, number)

    monkeypatch.setattr(signals.confinement, "signal", slow)
    for count in range(1, 9):
        signals.add(A, count, (10,) * count)
        signals.add(B, count, (10,) * count)
    assert (sent, signals.pause_s()) == ([], 0.0)
    signals.run_due()
    assert (sent, signals.pause_s()) == ([(A, "SIGUSR1")], 0.0)
    signals.add(A, 9, (10,) * 9)
    signals.run_due()
    assert sent[1:] == [(B, "SIGUSR1")], "A has had its turn"
    signals.run_due()
    assert len(sent) == 2, "what takes long is followed by three times as long for others"
    clock.now_s += 2 * module.TURN_S
    signals.run_due()
    assert (sent[2:], signals.pause_s()) == ([(A, "SIGUSR1")], None)


def test_what_was_asked_for_before_the_end_is_sent_before_it(signals, sent, directory):
    signals.add(A, 1, (10,))
    attempt = attempt_files.read(directory, A)
    assert attempt is not None
    signals.terminate(A, attempt)
    signals.run_due()
    assert [name for _, name in sent] == ["SIGUSR1", "SIGTERM", "SIGCONT"]
    signals.run_due()
    assert len(sent) == 3


def test_while_it_cannot_be_written_down_it_waits_and_is_sent_once(
    signals, sent, monkeypatch, clock
):
    note = attempt_files.note_signals

    def full(dir_fd: int, key: attempt_files.Key, count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(attempt_files, "note_signals", full)
    signals.add(A, 1, (10,))
    signals.run_due()
    signals.add(A, 2, (10, 12))
    signals.add(B, 1, (15,))
    signals.run_due()
    assert (sent, signals.pause_s()) == ([], pytest.approx(1.0))
    clock.now_s += 0.5
    signals.run_due()
    assert (sent, signals.pause_s()) == ([], pytest.approx(0.5))
    clock.now_s += 0.5
    signals.run_due()
    assert (sent, signals.pause_s()) == ([], pytest.approx(1.0)), "it is still full"
    monkeypatch.setattr(attempt_files, "note_signals", note)
    clock.now_s += 1.0
    signals.run_due()
    assert sent == [(B, "SIGTERM"), (A, "SIGUSR1"), (A, "SIGUSR2")]
    clock.now_s += 5.0
    signals.run_due()
    assert (len(sent), signals.pause_s()) == (3, None)


# -- what is slow to freeze ---------------------------------------------------------------


def freezing_of(directory: int, stands: Any, is_ending: Any) -> tuple[Freezing, list[Any]]:
    """And the reports that it makes."""
    told: list[Any] = []
    place: Any = SimpleNamespace(freeze=lambda key, attempt: stands(key))
    pace = Pace()
    return Freezing(place, directory, lambda *report: told.append(report), is_ending, pace), told


def test_pauses_double_up_to_a_second_until_all_stands_still(directory, clock):
    still: set[Any] = set()
    freezing, told = freezing_of(directory, still.__contains__, lambda key: False)
    assert freezing.pause_s() is None
    freezing.freeze(A)
    pauses = []
    for _ in range(8):
        pause_s = freezing.pause_s()
        assert pause_s is not None
        pauses.append(round(pause_s, 6))
        clock.now_s += pause_s / 2
        freezing.run_due()
        assert freezing.pause_s() == pytest.approx(pause_s / 2), "not before it is due"
        clock.now_s += pause_s
        freezing.run_due()
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    freezing.freeze(B)
    freezing.forget(B)
    still.update((A, B))
    clock.now_s += 1.0
    freezing.run_due()
    assert told == [("frozen", A)]
    assert freezing.pause_s() is None


def test_an_attempt_that_is_gone_or_being_killed_is_not_waited_for(directory):
    freezing, told = freezing_of(directory, lambda key: False, A.__eq__)
    freezing.freeze(A)
    freezing.freeze((3, 1))
    assert told == [("missing", (3, 1))]
    assert freezing.pause_s() is None
