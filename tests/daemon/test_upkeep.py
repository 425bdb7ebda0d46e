"""The journal in the daemon: what is removed, and `drfd compact`."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.resources import Axes
from drfd.daemon import spawn
from drfd.daemon.config import HistorySettings
from drfd.daemon.engine.journal_upkeep import Retention
from drfd.daemon.main import main
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


# -- `drfd compact`: the journal of a daemon that does not run, written anew -------------------


def compact(state: Path) -> int:
    try:
        main(["compact", "--state", str(state)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def state(tmp_path) -> Path:
    """One whose journal is mostly room that was used once."""
    (tmp_path / "controller").mkdir()
    journal = Journal(tmp_path / "controller" / "journal.sqlite")
    apply_and_append(journal, happened(ev.Submitted, 1, spec=spec()), Ledger(Axes()))
    journal.commit()
    journal.close()
    with closing(sqlite3.connect(journal.path)) as db:
        db.execute("create table ballast (data blob)")
        db.execute("insert into ballast values (zeroblob(20000000))")
        db.execute("drop table ballast")
        db.commit()
    return tmp_path


def test_it_is_as_short_as_it_can_be_and_holds_what_it_did(state, capsys):
    path = state / "controller" / "journal.sqlite"
    before = path.stat().st_size / (1 << 20)
    assert before > 19
    assert compact(state) == 0
    now = path.stat().st_size >> 10
    assert capsys.readouterr().out == f"{path}: {before:.1f}M before, {now}K now\n"
    assert path.stat().st_size < 300_000
    assert not (state / "launcher").exists()
    journal = Journal(path)
    assert list(journal.load(Axes()).jobs) == [1]
    journal.close()


def test_not_while_a_daemon_runs(state, capsys):
    lock = spawn.prepare(spawn.Places(state))
    before = (state / "controller" / "journal.sqlite").stat().st_size
    assert compact(state) != 0
    assert "another drfd is running" in capsys.readouterr().err
    assert (state / "controller" / "journal.sqlite").stat().st_size == before
    os.close(lock)


def test_not_where_there_is_none(tmp_path, capsys):
    assert compact(tmp_path / "none") != 0
    assert capsys.readouterr().err.startswith("drfd: there is no journal ")
    assert not (tmp_path / "none").exists()
