"""What the notes of starts say: which job of Slurm's an attempt was, and which was refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drfd.launcher.slurm.mapping import Name
from drfd.launcher.slurm.start_notes import StartNotes

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
    nowhere.forget_old(set())


def test_a_start_and_its_refusals_are_told_apart(notes: StartNotes) -> None:
    note(notes, str(FIRST), "7")
    note(notes, f"{FIRST}.8", "refused")
    assert notes.first_start(FIRST) == 7
    assert (notes.is_refused(FIRST, 7), notes.is_refused(FIRST, 8)) == (False, True)
    assert not notes.is_refused(RETRY, 8)


def test_an_id_that_was_another_attempts_is_known(notes: StartNotes) -> None:
    note(notes, str(FIRST), "7")
    assert not notes.is_anothers(FIRST, 7)
    assert notes.is_anothers(RETRY, 7)
    assert not notes.is_anothers(RETRY, 8)


def test_a_note_that_cannot_be_read_says_nothing(notes: StartNotes) -> None:
    note(notes, str(FIRST), "seven")
    assert notes.first_start(FIRST) is None


def test_old_notes_of_unknown_attempts_are_removed(notes: StartNotes) -> None:
    note(notes, str(FIRST), "7")
    note(notes, f"{FIRST}.8", "refused")
    note(notes, str(RETRY), "9")
    note(notes, f"{RETRY}.10", "refused")
    note(notes, f"{'b' * 32}.1.1", "11", at_s=DAY_S)
    notes.forget_old({RETRY}, now_s=1.5 * DAY_S)
    left = {path.name for path in notes.directory.iterdir()}
    assert left == {str(RETRY), f"{RETRY}.10", f"{'b' * 32}.1.1"}
