"""What the journal keeps for live jobs: counted as it comes, and anew from the file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.model import events as ev
from drfd.core.model.job import Words
from drfd.core.model.stimuli import Actor, Kept
from drfd.journal.journal import Journal
from fakes import ALICE, BOB, apply_and_append, happened, spec


class Book:
    """A journal, and the ledger beside it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ledger = journal.load(Axes())

    def submit(self, job_id: int, *, actor: Actor = ALICE) -> None:
        asked = spec(f"root.{actor.user}", actor=actor)
        self.enter(happened(ev.Submitted, job_id, spec=asked))

    def enter(self, *events: ev.Event) -> None:
        for event in events:
            apply_and_append(self.journal, event, self.ledger)


@pytest.fixture
def book(journal: Journal) -> Book:
    return Book(journal)


def test_a_new_long_command_line_is_in_the_sum_and_one_that_is_there_is_not(book: Book) -> None:
    """Each of 100,000 arguments counted as much as it had letters, an empty one nothing."""
    some = replace(spec(), argv=Words.of([""] * 1000))
    assert book.journal.kept(ALICE.uid, some) == Kept(1000, 1000)
    book.enter(happened(ev.Submitted, 1, spec=some))
    assert book.journal.kept(ALICE.uid, some) == book.journal.kept(ALICE.uid)
    assert book.journal.kept(BOB.uid, some).own_bytes == 1000
