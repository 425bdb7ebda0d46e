"""What is remembered of Slurm's jobs: when it is asked for their list, what is to be done with them
until what the controller wants is so, which count as forgotten, and what the notes of starts
say."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from drfd.launcher import protocol
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.desired import Desired
from drfd.launcher.slurm.list_times import ListTimes
from drfd.launcher.slurm.mapping import Name, SlurmJob
from drfd.launcher.slurm.records.missing import Missing
from drfd.launcher.slurm.records.start_notes import StartNotes
from fakes import Clock

# -- when the list is asked for -----------------------------------------------------------


@pytest.fixture
def clock(clock, monkeypatch) -> Clock:
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def asked(times: ListTimes, clock: Clock, *, seconds: float) -> list[float]:
    """Answer each list at once, and return when they were asked for, in seconds from now on."""
    began, found = clock.now_s, []
    while (pause_s := times.pause_s()) is not None and clock.now_s + pause_s <= began + seconds:
        clock.sleep(pause_s)
        assert times.begin() is not None
        times.end()
        found.append(round(clock.now_s - began, 6))
    clock.now_s = began + seconds
    return found


def test_a_list_is_asked_for_at_times_after_events_and_at_moments_of_its_own(clock):
    times = ListTimes(poll_s=30.0)
    assert asked(times, clock, seconds=100) == [0, 30, 60, 90]
    assert times.count == 4
    times = ListTimes(poll_s=30.0)
    asked(times, clock, seconds=1)
    times.schedule(7.0)
    assert asked(times, clock, seconds=20) == [0, 0.05, 0.2, 1, 3, 7]
    times = ListTimes(poll_s=30.0)
    asked(times, clock, seconds=1)
    times.add(clock.now_s + 5)
    assert asked(times, clock, seconds=20) == [5]


# -- what is done until what is wanted is so ----------------------------------------------


SLURM_JOB = SlurmJob(
    id=7, uid=1000, state="RUNNING", wait_status=0, ended_at_s=None, has_node=True,
    name=Name("j", (5, 1)),
)  # fmt: skip
CANCEL, KILL, TERM = ("end", 5, 7, 0), ("kill", 5, 7, 0), ("signal", 5, 7, 15)
SUSPEND, RESUME = ("suspend", 5, 7, 0), ("resume", 5, 7, 0)


class Recorder(Commands):
    """Takes requests, and sends none."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int, int, int]] = []

    def run(
        self,
        do: str,
        on_answer: Callable[[Answer], None],
        *,
        job: int = 0,
        slurm_id: int = 0,
        signal: int = 0,
        fds: Sequence[int] = (),
    ) -> None:
        self.ran.append((do, job, slurm_id, signal))


def pursue(desired: Desired, state: str) -> list[object]:
    """Return what is done with the job in this state, and "frozen" if that is reported."""
    recorder, reported = Recorder(), []
    desired.pursue(replace(SLURM_JOB, state=state), recorder, lambda: reported.append("frozen"))
    return [*recorder.ran, *reported]


def desired_by(*names: str) -> Desired:
    desired = Desired(0)
    for number, name in enumerate(names, 1):
        desired.add(name, number)
    assert desired.after_list == len(names)
    return desired


@pytest.mark.parametrize(
    ("name", "state", "done"),
    [
        (protocol.TERMINATE, "RUNNING", [TERM]),
        (protocol.TERMINATE, "PENDING", [CANCEL]),
        (protocol.KILL, "RUNNING", [KILL]),
        (protocol.KILL, "PENDING", [CANCEL]),
        (protocol.KILL, "SUSPENDED", [CANCEL]),
        (protocol.REMOVE, "RUNNING", [KILL]),
        (protocol.FREEZE, "RUNNING", [SUSPEND]),
        (protocol.FREEZE, "PENDING", []),
        (protocol.FREEZE, "SUSPENDED", ["frozen"]),
        (protocol.THAW, "SUSPENDED", [RESUME]),
        (protocol.THAW, "RUNNING", []),
        (protocol.KILL, "COMPLETING", []),
        (protocol.TERMINATE, "COMPLETING", []),
    ],
)
def test_each_order_has_its_command(clock, name, state, done):
    assert pursue(desired_by(name), state) == done


def test_a_kill_is_repeated_by_signal_and_by_cancelling_in_turn(clock):
    desired = desired_by(protocol.KILL)
    assert pursue(desired, "RUNNING") == [KILL]
    clock.sleep(1)
    assert pursue(desired, "RUNNING") == []
    clock.sleep(1)
    assert pursue(desired, "RUNNING") == [CANCEL]
    clock.sleep(2)
    assert pursue(desired, "RUNNING") == [KILL]
    assert not desired.is_reached


def test_the_last_of_freeze_and_thaw_counts_and_a_kill_comes_before_all(clock):
    assert pursue(desired_by(protocol.FREEZE, protocol.THAW), "SUSPENDED") == [RESUME]
    assert pursue(desired_by(protocol.THAW, protocol.FREEZE), "RUNNING") == [SUSPEND]
    # A job that is to end must be able to.
    assert desired_by(protocol.FREEZE, protocol.TERMINATE).frozen is None
    assert pursue(desired_by(protocol.FREEZE, protocol.TERMINATE, protocol.KILL), "RUNNING") == [
        KILL
    ]


# -- attempts that lists lack -------------------------------------------------------------


KEY = (1, 1)
GOOD, BAD = Answer(0, "", ""), Answer(1, "", "refused")


class Rig:
    """The missing attempts of a launcher, whose orders to the nodes are collected."""

    def __init__(self) -> None:
        self.orders: list[Callable[[Answer], None]] = []
        self.times = ListTimes(poll_s=30.0)
        self.missing = Missing(self.times, self.orders.append)

    def next_list(self) -> None:
        self.times.schedule()
        self.times.begin()
        self.times.end()


@pytest.fixture
def rig(clock) -> Rig:
    return Rig()


def test_one_that_was_found_again_has_all_its_time_when_it_is_missing_again(rig, clock):
    rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    clock.sleep(9)
    rig.missing.forget(KEY)
    rig.next_list()
    assert not rig.missing.is_gone(KEY)
    rig.orders.pop()(GOOD)
    clock.sleep(9)
    assert not rig.missing.is_gone(KEY)
    clock.sleep(1)
    assert rig.missing.is_gone(KEY)


def test_an_order_that_slurm_refuses_does_not_count(rig, clock):
    rig.missing.is_gone(KEY)
    rig.orders.pop()(BAD)
    clock.sleep(10)
    rig.next_list()
    assert not rig.missing.is_gone(KEY)
    assert len(rig.orders) == 1, "they are asked again"


# -- notes of starts ----------------------------------------------------------------------


FIRST, RETRY = Name("a" * 32, (12, 1)), Name("a" * 32, (12, 2))
DAY_S = 24 * 3600.0


@pytest.fixture
def notes(tmp_path) -> StartNotes:
    notes = StartNotes(tmp_path / "started")
    notes.directory.mkdir()
    return notes


def note(notes: StartNotes, name: str, target: str, at_s: float = 0.0) -> None:
    path = notes.directory / name
    path.symlink_to(target)
    os.utime(path, (at_s, at_s), follow_symlinks=False)


def test_nothing_is_known_of_an_attempt_without_a_note_or_without_the_directory(notes, tmp_path):
    assert notes.first_start(FIRST) is None
    assert not notes.is_refused(FIRST, 7)
    assert not notes.is_anothers(FIRST, 7)
    nowhere = StartNotes(tmp_path / "nowhere")
    assert nowhere.first_start(FIRST) is None
    assert not nowhere.is_anothers(FIRST, 7)
    assert not nowhere.close(FIRST)
    nowhere.free_id(FIRST, 7)
    nowhere.forget_old(set())


def test_an_id_that_was_another_attempts_is_known_until_it_is_free(notes):
    note(notes, str(FIRST), "7")
    note(notes, "7", str(FIRST))
    assert not notes.is_anothers(FIRST, 7)
    assert notes.is_anothers(RETRY, 7)
    assert not notes.is_anothers(RETRY, 8)
    notes.free_id(RETRY, 7)
    assert notes.is_anothers(RETRY, 7)
    notes.free_id(FIRST, 7)
    notes.free_id(FIRST, 7)
    assert not notes.is_anothers(RETRY, 7)
    assert notes.first_start(FIRST) == 7


def test_only_an_attempt_that_has_not_started_can_be_kept_from_it(notes):
    # Nothing says that Slurm runs the script.
    assert not notes.close(RETRY)
    note(notes, str(FIRST), "7")
    note(notes, "7", str(FIRST))
    assert not notes.close(FIRST)
    assert notes.close(RETRY)
    assert notes.close(RETRY)
    assert notes.first_start(RETRY) is None
    assert (notes.directory / str(RETRY)).is_symlink()
    # Of those that have ended and gone, there is no id any more.
    notes.free_id(FIRST, 7)
    assert not notes.close(Name("b" * 32, (1, 1)))
    note(notes, f"{FIRST}.ended", "FAILED:3:0")
    assert notes.close(Name("b" * 32, (1, 1)))


@pytest.mark.parametrize("said", ["FAILED", "FAILED:3", "FAILED:x:0", "failed:3:0", "FAILED:3:0:0"])
def test_a_note_of_an_end_that_cannot_be_read_says_nothing(notes, said):
    note(notes, f"{FIRST}.ended", said)
    assert notes.end(FIRST) is None


def test_old_notes_of_unknown_attempts_are_removed(notes):
    note(notes, str(FIRST), "7")
    note(notes, "7", str(FIRST))
    note(notes, f"{FIRST}.8", "refused")
    note(notes, "9", str(RETRY))
    note(notes, str(RETRY), "9")
    note(notes, f"{FIRST}.ended", "FAILED:3:0")
    note(notes, f"{RETRY}.10", "refused")
    note(notes, f"{'b' * 32}.1.1", "11", at_s=DAY_S)
    notes.forget_old({RETRY}, now_s=1.5 * DAY_S)
    left = {path.name for path in notes.directory.iterdir()}
    assert left == {"9", str(RETRY), f"{RETRY}.10", f"{'b' * 32}.1.1"}
