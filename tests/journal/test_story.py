"""The story of one job is told in a bounded part, whatever was done to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Outcome, UserGroup
from drfd.journal.history import FIRST, LAST, PastFilter, read_ended, read_story
from drfd.journal.journal import Journal
from fakes import apply_and_append, happened, spec


def test_of_a_long_one_the_first_and_the_last_and_how_many_are_between(
    journal: Journal, path: Path
) -> None:
    ledger = Ledger(Axes())
    told: list[ev.Event] = [happened(ev.Submitted, 1, spec=spec())]
    told += [happened(ev.Altered, 1, priority=number) for number in range(1500)]
    for event in told:
        apply_and_append(journal, event, ledger)
    journal.commit()
    story = read_story(path, 1, None)
    assert story.events == [*told[:FIRST], *told[-LAST:]]
    assert len(story.events) + story.omitted + story.dropped == len(told)
    assert story.dropped > 0
    assert story.omitted > 0


def test_a_task_has_the_story_of_its_array_until_it_had_one_of_its_own(
    journal: Journal, path: Path
) -> None:
    ledger = Ledger(Axes())
    whole: list[ev.Event] = [
        ev.ArraySubmitted(array_id=1, at_s=1.0, spec=spec(), spans=((1, 9, 1),), at_once=None),
        *(happened(ev.Altered, 1, priority=number) for number in range(300)),
    ]
    own: list[ev.Event] = [happened(ev.Held, 2), happened(ev.Released, 2)]
    for event in (*whole, *own, happened(ev.Altered, 1, priority=7)):
        apply_and_append(journal, event, ledger)
    journal.commit()
    story = read_story(path, 2, 1)
    assert story.events == [*whole[:FIRST], *whole[2 - LAST :], *own]
    assert story.omitted == 301 + 2 - FIRST - LAST
    unmaterialized = read_story(path, 5, 1)
    assert unmaterialized.events[-1] == happened(ev.Altered, 1, priority=7)
    assert list(journal.events(2)) == [*whole, *own]


def ended(
    job_id: int, at_s: float, user: str, outcome: Outcome, name: str = "job", pool: str = "root.lab"
) -> Job:
    return Job(
        id=job_id,
        spec=replace(spec(name=name), user=user, pool=pool),
        state=JobState.ENDED,
        submitted_at=0.0,
        ended_at=at_s,
        outcome=outcome,
    )


JOBS = [
    ended(1, 10.0, "alice", Outcome.COMPLETED),
    ended(2, 30.0, "bob", Outcome.FAILED, name="train"),
    ended(3, 20.0, "alice", Outcome.LOST, pool="root.lab.night"),
    ended(4, 30.0, "alice", Outcome.COMPLETED, name="train", pool="root.labor"),
    ended(5, 40.0, "carol", Outcome.TIMEOUT, name='"; drop table jobs; --'),
]
for at, group in ((2, UserGroup("sweep")), (3, UserGroup("sweep", 2)), (1, UserGroup("other"))):
    JOBS[at] = replace(JOBS[at], spec=replace(JOBS[at].spec, group=group))


@pytest.fixture
def full(journal: Journal) -> Journal:
    for job in JOBS:
        journal.append(ev.Cleaned(job_id=job.id, at_s=1.0, attempt=1), job, None)
    live = Job(id=6, spec=spec(), submitted_at=0.0)
    journal.append(ev.Submitted(job_id=6, at_s=1.0, spec=spec()), live, None)
    journal.commit()
    return journal


def test_pages_join_without_a_gap_or_a_repetition(full: Journal) -> None:
    found: list[int] = []
    after = None
    while page := list(read_ended(full.path, PastFilter(after=after, limit=2))):
        found += [job.id for job in page]
        assert page[-1].ended_at is not None
        after = (page[-1].ended_at, page[-1].id)
    assert found == [5, 4, 2, 3, 1]


def test_a_journal_that_cannot_be_read_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot read the journal"):
        list(read_ended(tmp_path / "none.sqlite", PastFilter()))
