"""The journal in the daemon: what is removed."""

import asyncio
from collections.abc import Iterator

import pytest
from msgspec import structs

from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.resources import Axes
from drfd.daemon.config import HistorySettings
from drfd.daemon.engine.journal_upkeep import Retention
from drfd.journal.journal import Journal
from fakes import BOB, apply_and_append, happened, spec

# -- history goes as configured ----------------------------------------------------------------


DAY_S = 86400.0


@pytest.fixture
def journal(tmp_path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def fill(journal: Journal, count: int) -> Ledger:
    """One job of alice's a day, each over at once."""
    ledger = Ledger(Axes())
    for job_id in range(1, count + 1):
        for event in (happened(ev.Submitted, job_id), happened(ev.Cancelled, job_id)):
            apply_and_append(journal, structs.replace(event, at_s=job_id * DAY_S), ledger)
    journal.commit()
    return ledger


def bobs(array_id: int, last: int) -> ev.ArraySubmitted:
    asked = spec("root.bob", actor=BOB)
    return ev.ArraySubmitted(
        array_id=array_id, at_s=200 * DAY_S, spec=asked, spans=((0, last, 1),), at_once=None
    )


def bobs_end(job_id: int) -> ev.Cancelled:
    return ev.Cancelled(job_id=job_id, at_s=200 * DAY_S, by="bob")


def keeping(
    journal: Journal, most: int, keep_s: float | None = None, now_s: float = 1e10
) -> Retention:
    history = HistorySettings(keep_s=keep_s and round(keep_s), max_jobs_per_user=most)
    return Retention(journal, lambda: history, lambda: now_s)


def there(journal: Journal, count: int) -> list[int]:
    return [each for each in range(1, count + 1) if journal.job(each)]


async def to_the_end(retention: Retention) -> int:
    steps = 0
    while await retention.step():
        steps += 1
        assert steps < 10_000
    return steps


def test_what_is_older_than_configured_goes_and_nothing_else(journal):
    fill(journal, 300)
    assert asyncio.run(to_the_end(keeping(journal, 0))) == 0
    assert there(journal, 300) == list(range(1, 301))
    old = keeping(journal, 0, 100 * DAY_S, 300.5 * DAY_S)
    assert asyncio.run(to_the_end(old)) > 1, "a little at a time"
    assert there(journal, 300) == list(range(201, 301))


def test_a_journal_of_live_jobs_alone_is_left_as_it_is(journal):
    ledger = Ledger(Axes())
    for job_id in range(1, 50):
        apply_and_append(journal, happened(ev.Submitted, job_id), ledger)
    journal.commit()
    assert asyncio.run(to_the_end(keeping(journal, 1, 1, 1e12))) == 0
    assert there(journal, 49) == list(range(1, 50))


def test_a_flood_of_arrays_removes_nothing_of_others(journal):
    ledger = fill(journal, 100)
    first = ledger.next_id
    for _ in range(200):
        array_id = ledger.next_id
        for event in (bobs(array_id, 0), bobs_end(array_id + 1)):
            apply_and_append(journal, event, ledger)
    journal.commit()
    asyncio.run(to_the_end(keeping(journal, 100)))
    assert there(journal, 100) == list(range(1, 101))
    assert len([each for each in range(first + 1, ledger.next_id, 2) if journal.job(each)]) <= 100


def test_too_many_go_also_where_all_ended_by_a_clock_that_was_ahead(journal):
    fill(journal, 300)
    asyncio.run(to_the_end(keeping(journal, 150, now_s=0.0)))
    left = there(journal, 300)
    assert 130 < len(left) <= 150
    assert left == list(range(301 - len(left), 301)), "the oldest went"
