"""Ended jobs are found by what is asked, newest first, through an index however many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.core import events as ev
from drfd.core.job import Job, JobState, Outcome
from drfd.errors import HostError
from drfd.journal.journal import Journal
from drfd.journal.past import Past, query, read_ended
from fakes import spec


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


@pytest.fixture
def full(journal: Journal) -> Journal:
    for job in JOBS:
        journal.append(ev.Cleaned(job_id=job.id, at_s=1.0, attempt=1), job)
    live = Job(id=6, spec=spec(), submitted_at=0.0)
    journal.append(ev.Submitted(job_id=6, at_s=1.0, spec=spec()), live)
    journal.commit()
    return journal


@pytest.mark.parametrize(
    ("past", "ids"),
    [
        (Past(), [5, 4, 2, 3, 1]),
        (Past(limit=2), [5, 4]),
        (Past(after=(30.0, 4)), [2, 3, 1]),
        (Past(after=(30.0, 2), limit=1), [3]),
        (Past(ids=(1, 4, 6, 9)), [4, 1]),
        (Past(user="alice"), [4, 3, 1]),
        (Past(states=("LOST",)), [3]),
        (Past(states=("LOST", "FAILED")), [2, 3]),
        (Past(states=("RUNNING",)), []),
        (Past(user="alice", states=("COMPLETED",)), [4, 1]),
        (Past(name="train"), [4, 2]),
        (Past(name='"; drop table jobs; --'), [5]),
        (Past(pool="root.lab"), [5, 2, 3, 1]),
        (Past(pool="root.lab.night"), [3]),
        (Past(since_s=20.0, until_s=30.0), [3]),
        (Past(since_s=30.0), [5, 4, 2]),
    ],
)
def test_jobs_are_found_by_what_is_asked(full: Journal, past: Past, ids: list[int]) -> None:
    assert [job.id for job in read_ended(full.path, past)] == ids


def test_a_job_is_read_whole(full: Journal) -> None:
    assert list(read_ended(full.path, Past(ids=(3,)))) == [JOBS[2]]


def test_pages_join_without_a_gap_or_a_repetition(full: Journal) -> None:
    found: list[int] = []
    after = None
    while page := list(read_ended(full.path, Past(after=after, limit=2))):
        found += [job.id for job in page]
        assert page[-1].ended_at is not None
        after = (page[-1].ended_at, page[-1].id)
    assert found == [5, 4, 2, 3, 1]


def test_what_is_not_committed_is_not_seen_and_nobody_waits(full: Journal) -> None:
    job = ended(7, 50.0, "alice", Outcome.COMPLETED)
    full.append(ev.Cleaned(job_id=7, at_s=1.0, attempt=1), job)
    assert [job.id for job in read_ended(full.path, Past(limit=1))] == [5]
    full.commit()
    assert [job.id for job in read_ended(full.path, Past(limit=1))] == [7]


@pytest.mark.parametrize(
    ("past", "index"),
    [
        (Past(limit=20), "jobs_by_end"),
        (Past(since_s=5.0), "jobs_by_end"),
        (Past(states=("LOST", "FAILED"), limit=20), "jobs_by_end"),
        (Past(user="alice", limit=20), "jobs_by_user_and_end"),
        (Past(user="alice", after=(5.0, 1), limit=20), "jobs_by_user_and_end"),
        (Past(user="alice", name="train", pool="root.lab"), "jobs_by_user_and_end"),
        (Past(states=("LOST",), limit=20), "jobs_by_state_and_end"),
    ],
)
def test_jobs_come_from_an_index_in_their_order(full: Journal, past: Past, index: str) -> None:
    """Not sorted: with a million jobs, the first page is there at once."""
    statement, values = query(past)
    with closing(sqlite3.connect(full.path)) as database:
        rows = database.execute(f"explain query plan {statement}", values).fetchall()
    steps = [row[3] for row in rows]
    assert f"INDEX {index}" in steps[0]
    assert not any("TEMP B-TREE" in step for step in steps)


def test_a_journal_that_cannot_be_read_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot read the journal"):
        list(read_ended(tmp_path / "none.sqlite", Past()))


def test_an_older_journal_gets_the_indexes(
    full: Journal, path: Path, open_journal: Callable[[], Journal]
) -> None:
    full.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("drop index jobs_by_user_and_end")
    open_journal()
    with closing(sqlite3.connect(path)) as database:
        names = {row[0] for row in database.execute("select name from sqlite_master")}
    assert {"jobs_by_user_and_end", "jobs_by_state_and_end"} <= names
