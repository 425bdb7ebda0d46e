"""Payloads of ended jobs: kept for their user, at nobody's charge, and not without end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.model import events as ev
from drfd.core.model.stimuli import Actor
from drfd.journal import past
from drfd.journal.journal import Journal
from drfd.journal.pruning import read_shares
from drfd.journal.records import Payload
from fakes import ALICE, BOB, apply_and_append, happened, spec

PAYLOAD = Payload(env={"LANG": "C", "X": "ü" * 1000}, script="#!/bin/sh\necho ü\n", proof="ab")


class Book:
    """A journal, and the ledger beside it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ledger = journal.load(Axes())

    def live(self, job_id: int, payload: Payload = PAYLOAD, *, actor: Actor = ALICE) -> None:
        asked = spec(f"root.{actor.user}", actor=actor)
        apply_and_append(self.journal, happened(ev.Submitted, job_id, spec=asked), self.ledger)
        self.journal.put_payload(job_id, payload)

    def end(self, job_id: int) -> None:
        apply_and_append(self.journal, happened(ev.Cancelled, job_id), self.ledger)

    def had(self, job_id: int, payload: Payload = PAYLOAD, *, actor: Actor = ALICE) -> None:
        self.live(job_id, payload, actor=actor)
        self.end(job_id)


@pytest.fixture
def book(journal: Journal) -> Iterator[Book]:
    yield Book(journal)
    counted = dict(journal.payloads.past.bytes)
    journal.payloads.past.count()
    assert dict(journal.payloads.past.bytes) == counted, "as counted from the tables"


def test_it_is_in_the_sums_by_which_ended_jobs_are_removed(book: Book, path: Path) -> None:
    book.had(1, Payload())
    book.journal.commit()
    before = read_shares(path).ended[ALICE.user]
    book.had(2)
    book.journal.commit()
    assert read_shares(path).ended[ALICE.user] > before + 2000


def test_the_oldest_of_a_user_go_first(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "MOST_OF_USER_BYTES", 3000)
    for job_id in range(1, 5):
        book.had(
            job_id, Payload(env={"X": f"{job_id}" * 1000}), actor=BOB if job_id == 1 else ALICE
        )
    kept = [job_id for job_id in range(1, 5) if book.journal.payload_again(job_id) is not None]
    assert kept == [1, 3, 4]


def test_for_all_together_the_one_who_has_most_gives_way(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "MOST_BYTES", 4000)
    book.had(1, Payload(env={"X": "1" * 1000}), actor=BOB)
    for job_id in (2, 3, 4):
        book.had(job_id, Payload(env={"X": f"{job_id}" * 1000}))
    kept = [job_id for job_id in range(1, 5) if book.journal.payload_again(job_id) is not None]
    assert kept == [1, 3, 4]
