"""What is due is done in turns of users, and tried again less and less often; signals are sent once
each. Time is the test's."""

import errno
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.common.owner import Owner
from drfd.launcher import attempt_files, server
from drfd.launcher import schedule as module
from drfd.launcher.attempt import AttemptState
from drfd.launcher.attempt_files import Key
from drfd.launcher.port import Policy
from drfd.launcher.protocol import Control, ControlOrder, Message, SignalOrder
from drfd.launcher.runner.runner import Runner
from drfd.launcher.runner.starter.program import Starter
from drfd.launcher.schedule import KILL_PAUSES_S, LocalAttempt, Schedule
from drfd.launcher.server import Launcher
from drfd.launcher.system import process
from fakes import Clock

A, B = (1, 1), (2, 1)


@pytest.fixture
def clock(clock, monkeypatch) -> Clock:
    monkeypatch.setattr(module, "time", clock)
    return clock


# -- turns --------------------------------------------------------------------------------


@pytest.fixture
def schedule(clock) -> Schedule:
    return Schedule()


def attempts(count: int, uid: int) -> list[LocalAttempt]:
    return [LocalAttempt((uid + number, 1), uid=uid) for number in range(count)]


def test_users_take_turns_and_one_whose_work_is_slow_waits(schedule, clock):
    """A user's thousands of signals kept the launches of all others waiting."""
    done: list[int | None] = []

    def slow(each: LocalAttempt) -> None:
        done.append(each.uid)
        clock.now_s += module.TURN_S if each.uid == 1001 else 0.0

    for each in (*attempts(9, 1001), *attempts(3, 2002)):
        each.runner = Runner()
        schedule.add(each)
    schedule.run_due(slow)
    assert done == [1001], "a turn is over"
    schedule.run_due(slow)
    assert done[1:] == [2002] * 3
    clock.now_s += 18 * module.TURN_S
    schedule.run_due(slow)
    assert len(done) == 4, "what takes long is followed by nineteen times as long for others"
    clock.now_s += 2 * module.TURN_S
    schedule.run_due(slow)
    assert done[4:] == [1001]


# -- as the launcher does it --------------------------------------------------------------


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


class Place:
    """Where jobs run, as the launcher acts on them."""

    kind = "none"

    def __init__(self) -> None:
        self.sent: list[tuple[Key, str]] = []
        self.stands_still = self.dies = True

    def signal(self, key: Key, attempt: object, *numbers: int) -> None:
        self.sent += [(key, signal.Signals(number).name) for number in numbers]

    def freeze(self, key: Key, attempt: object) -> bool:
        return self.stands_still

    def kill_pass(self, key: Key, attempt: object) -> bool:
        return self.dies

    def members(self, key: Key, attempt: object) -> list[int]:
        return []

    def clearing(self, key: Key) -> list[str]:
        return []


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def reports() -> list[Message]:
    return []


@pytest.fixture
def launcher(directory, place, reports, clock) -> Iterator[Launcher]:
    """With two jobs that run."""
    port: Any = SimpleNamespace(send=reports.append, is_connected=True)
    launcher = Launcher(place, Policy(min_uid=0, allowed_uids=frozenset()), directory, port,
                        starter=Starter(-1))  # fmt: skip
    for key, uid in ((A, 1001), (B, 1002)):
        launcher._attempts[key] = LocalAttempt(key, AttemptState.RUNNING, uid, runner=Runner())
    launcher._runners.find = lambda key, records: Runner()  # type: ignore[method-assign]
    yield launcher
    launcher._selector.close()


def ask(launcher: Launcher, command: Control, key: Key) -> None:
    launcher._handle(ControlOrder(do=command, id=key[0], attempt=key[1]), -1)


def signals(launcher: Launcher, key: Key, count: int, *numbers: int) -> None:
    asked = SignalOrder(id=key[0], attempt=key[1], count=count, signals=numbers)
    launcher._handle(asked, -1)


def run(launcher: Launcher) -> None:
    launcher._schedule.run_due(launcher._work)


def test_the_same_signal_is_sent_once_if_it_still_waits(launcher, place):
    for count in range(1, 9):
        signals(launcher, A, count, *[10] * count)
    run(launcher)
    assert place.sent == [(A, "SIGUSR1")]


def test_a_freeze_drops_the_signals_that_wait_for_their_turn(launcher, place, reports):
    """Each is sent to a frozen job and then thaws it: a suspended job ran on, in nobody's account.
    After a thaw the controller sends them again."""
    signals(launcher, A, 1, 10)
    ask(launcher, "freeze", A)
    run(launcher)
    assert (place.sent, [each["report"] for each in reports]) == ([], ["frozen"])
    signals(launcher, A, 1, 10)
    run(launcher)
    assert place.sent == [(A, "SIGUSR1")]


def test_what_was_asked_for_before_the_end_is_sent_before_it(launcher, place):
    signals(launcher, A, 1, 10)
    ask(launcher, "terminate", A)
    for _ in range(2):
        run(launcher)
    assert [name for _, name in place.sent] == ["SIGUSR1", "SIGTERM", "SIGCONT"]


def test_while_it_cannot_be_written_down_it_waits_and_is_sent_once(
    launcher, place, monkeypatch, clock
):
    note = attempt_files.note_signals

    def full(dir_fd: int, key: Key, count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(attempt_files, "note_signals", full)
    signals(launcher, A, 1, 10)
    run(launcher)
    clock.now_s += 1.0
    run(launcher)
    assert place.sent == []
    signals(launcher, A, 2, 10, 12)
    monkeypatch.setattr(attempt_files, "note_signals", note)
    clock.now_s += 1.0
    for _ in range(2):
        run(launcher)
        clock.now_s += 5.0
    assert place.sent == [(A, "SIGUSR1"), (A, "SIGUSR2")]


def test_after_ten_seconds_it_is_called_stuck_and_only_once(
    launcher, place, reports, clock, monkeypatch
):
    monkeypatch.setattr(launcher._background, "start", lambda *words: 0)
    place.dies = False
    ask(launcher, "kill", A)
    stuck = []
    for _ in range(60):
        run(launcher)
        stuck += [round(clock.now_s) for each in reports if each["report"] == "stuck"]
        reports.clear()
        clock.now_s += 0.5
    assert stuck == [1010]
    assert launcher._attempts[A].pause_s > KILL_PAUSES_S[1], "no longer each second"


def test_killed_processes_of_a_user_that_stay_are_looked_at_together_and_at_times(
    launcher, directory, place, clock, monkeypatch
):
    """For each of hundreds of jobs that waited for a file system a program was started again and
    again, without an end, and others' jobs took three times as long."""
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launcher._background, "start", lambda *given: started.append(given))
    monkeypatch.setattr(server, "time", clock)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(process, "children", lambda pid: [1000 + pid])
    monkeypatch.setattr(process, "signal_those", lambda *given: None)
    monkeypatch.setattr(Runner, "wake", lambda self: None)
    for number, key in enumerate((A, B), 1):
        launcher._attempts[key].runner = Runner(number)
    place.dies = False
    also = (4, 1)
    record = attempt_files.created_record(Owner(uid=1001), "this boot", None)
    os.close(attempt_files.create(directory, also, record))
    launcher._attempts[also] = LocalAttempt(also, AttemptState.RUNNING, 1001, runner=Runner(4))

    def looked_at(seconds: int) -> dict[str, set[str]]:
        """By uid, the processes that programs that begin in this time look at."""
        before = len(started)
        for _ in range(4 * seconds):
            run(launcher)
            clock.now_s += 0.25
        words = [command[command.index(server._TRACERS) + 2 :] for command, _ in started[before:]]
        assert len({uid for uid, *_ in words}) == len(words), "one of each user"
        return {uid: {*pids} for uid, _, *pids in words}

    for key in (A, B, also):
        ask(launcher, "kill", key)
    assert looked_at(3) == {}
    assert looked_at(15).keys() == {"1001", "1002"}
    for _, on_end in started:
        on_end(0)
    assert looked_at(2) == {}
    assert looked_at(15) == {"1001": {"1001", "1004"}, "1002": {"1002"}}


def test_one_that_has_not_begun_is_killed_without_a_look_at_its_cgroups(
    launcher, directory, place, monkeypatch
):
    """Its runner may wait in mkdir(2) for the removal of another of its user's cgroups, which takes
    seconds. The launcher waited for that, too, and all others' jobs for the launcher."""
    killed: list[object] = []
    monkeypatch.setattr(place, "kill_pass", lambda *given: pytest.fail("looked at"))
    monkeypatch.setattr(process, "children", lambda pid: [1000 + pid])
    monkeypatch.setattr(process, "signal_those", lambda pids, *given: killed.append(pids))
    starting = (4, 1)
    record = attempt_files.created_record(Owner(uid=1001), "this boot", None)
    os.close(attempt_files.create(directory, starting, record))
    launcher._attempts[starting] = LocalAttempt(
        starting, AttemptState.STARTING, 1001, runner=Runner(4), created=record
    )
    ask(launcher, "kill", starting)
    run(launcher)
    assert killed == [[1004]]


def test_one_that_is_being_killed_is_not_frozen(launcher, place, reports, clock):
    place.stands_still = place.dies = False
    ask(launcher, "kill", A)
    ask(launcher, "freeze", A)
    ask(launcher, "freeze", (3, 1))
    place.stands_still = True
    clock.now_s += 1.0
    run(launcher)
    assert [(each["report"], each["id"]) for each in reports] == [("missing", 3)]
