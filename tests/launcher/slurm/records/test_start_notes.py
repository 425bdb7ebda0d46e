"""What the notes of starts say: which job of Slurm's an attempt was, and which was refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drfd.launcher.slurm.mapping import Name
from drfd.launcher.slurm.records.start_notes import StartNotes

FIRST, RETRY = Name("a" * 32, (12, 1)), Name("a" * 32, (12, 2))
DAY_S = 24 * 3600.0


@pytest.fixture
def notes(tmp_path: Path) -> StartNotes:
    notes = StartNotes(tmp_path / "started")
    notes.prepare(os.getuid())
    notes.prepare(os.getuid())
    return notes


def note(notes: StartNotes, name: str, target: str, at_s: float = 0.0) -> None:
    path = notes.directory / name
    path.symlink_to(target)
    os.utime(path, (at_s, at_s), follow_symlinks=False)


def test_nothing_is_known_of_an_attempt_without_a_note(notes: StartNotes) -> None:
    assert notes.first_start(FIRST) is None
    assert not notes.is_refused(FIRST, 7)
    assert not notes.is_anothers(FIRST, 7)


def test_nothing_is_known_without_the_directory(tmp_path: Path) -> None:
    nowhere = StartNotes(tmp_path / "nowhere")
    assert nowhere.first_start(FIRST) is None
    assert not nowhere.is_anothers(FIRST, 7)
    assert not nowhere.close(FIRST)
    nowhere.free_id(FIRST, 7)
    assert [*nowhere.forget_old(set())] == []


def test_a_start_and_its_refusals_are_told_apart(notes: StartNotes) -> None:
    note(notes, str(FIRST), "7")
    note(notes, f"{FIRST}.8", "refused")
    assert notes.first_start(FIRST) == 7
    assert (notes.is_refused(FIRST, 7), notes.is_refused(FIRST, 8)) == (False, True)
    assert not notes.is_refused(RETRY, 8)


def test_an_id_that_was_another_attempts_is_known_until_it_is_free(notes: StartNotes) -> None:
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


def test_only_an_attempt_that_has_not_started_can_be_kept_from_it(notes: StartNotes) -> None:
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


def test_how_an_attempt_has_ended(notes: StartNotes) -> None:
    note(notes, f"{FIRST}.ended", "FAILED:3:0")
    note(notes, f"{RETRY}.ended", "FAILED:0:9")
    assert notes.end(FIRST) == ("FAILED", 3 << 8)
    assert notes.end(RETRY) == ("FAILED", 9)
    other = Name("b" * 32, (12, 2))
    note(notes, f"{other}.ended", "FAILED:0:53")
    # No signal: a part of the number with which Slurm says that it could not start the job.
    assert notes.end(other) == ("FAILED", 4021)
    assert notes.end(Name("b" * 32, (12, 1))) is None


@pytest.mark.parametrize("said", ["FAILED", "FAILED:3", "FAILED:x:0", "failed:3:0", "FAILED:3:0:0"])
def test_a_note_of_an_end_that_cannot_be_read_says_nothing(notes: StartNotes, said: str) -> None:
    note(notes, f"{FIRST}.ended", said)
    assert notes.end(FIRST) is None


def test_a_note_that_cannot_be_read_says_nothing(notes: StartNotes) -> None:
    note(notes, str(FIRST), "seven")
    assert notes.first_start(FIRST) is None


def test_old_notes_of_unknown_attempts_are_removed(notes: StartNotes) -> None:
    note(notes, str(FIRST), "7")
    note(notes, "7", str(FIRST))
    note(notes, f"{FIRST}.8", "refused")
    note(notes, "9", str(RETRY))
    note(notes, str(RETRY), "9")
    note(notes, f"{FIRST}.ended", "FAILED:3:0")
    note(notes, f"{RETRY}.10", "refused")
    note(notes, f"{'b' * 32}.1.1", "11", at_s=DAY_S)
    assert [*notes.forget_old({RETRY}, now_s=1.5 * DAY_S)] == []
    left = {path.name for path in notes.directory.iterdir()}
    assert left == {"9", str(RETRY), f"{RETRY}.10", f"{'b' * 32}.1.1"}


def test_many_old_notes_are_removed_in_parts(notes: StartNotes) -> None:
    """The loop of the launcher goes on meanwhile."""
    for number in range(1, 2501):
        note(notes, f"{'b' * 32}.{number}.1", "7")
    parts = notes.forget_old(set(), now_s=2 * DAY_S)
    left = [len([*notes.directory.iterdir()]) for _ in parts]
    assert left == [1501, 501]
    assert [*notes.directory.iterdir()] == []
