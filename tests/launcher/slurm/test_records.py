"""When Slurm is asked for the list of its jobs, and what the notes of starts say."""

import os
import time

import pytest

from drfd.launcher.slurm.list_times import ListTimes
from drfd.launcher.slurm.mapping import Name
from drfd.launcher.slurm.start_notes import StartNotes
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
