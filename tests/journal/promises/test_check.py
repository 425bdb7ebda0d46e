"""Whatever was changed afterwards, the check finds it and names the first hour that differs."""

from __future__ import annotations

import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.core.model import events as ev
from drfd.journal.journal import Journal
from drfd.journal.promises.account_file import MARK_BYTES, NAME, AccountFile, next_chain
from drfd.journal.promises.book import EventRow
from drfd.journal.promises.check import Checked, check
from fakes import BOB, demand, rules, spec
from journal.promises.test_account_file import BOBS, History

#: So many hours close in the history.
HOURS = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of some hours with its account; not to be changed."""
    place = tmp_path_factory.mktemp("made")
    with closing(Journal(place / "journal.sqlite")) as journal:
        history = History(journal, rules())
        history.happen(ev.Submitted, 1, 0.25, spec=spec(asks=demand(9)))
        history.happen(ev.Admitted, 1, 0.5)
        for number in range(2, 2 + HOURS):
            hours = number - 1.5
            history.happen(ev.Submitted, number, hours, spec=spec(BOBS, actor=BOB))
            history.happen(ev.Cancelled, number, hours + 0.25)
        history.record(history.started(HOURS + 0.5))
        with AccountFile(journal.path) as file:
            file.catch_up()
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def checked(place: Path) -> Checked:
    with AccountFile(place / "journal.sqlite") as file:
        return check(file, again_s=0)


def change(place: Path, name: str, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(place / name)) as db, db:
        assert db.execute(statement, values).rowcount == 1


def test_what_was_not_changed_is_found_to_be_so(place: Path) -> None:
    found = checked(place)
    assert found.fault is None
    assert (found.hours, found.computed, found.gone) == (HOURS, HOURS, 0)
    with closing(sqlite3.connect(place / "journal.sqlite")) as db:
        assert found.events == db.execute("select count(*) from events").fetchone()[0]
    with AccountFile(place / "journal.sqlite") as file:
        assert found.chain == file.head() == [*file.hours()][-1].chain.hex()


@pytest.mark.parametrize(
    ("statement", "number", "text"),
    [
        ("update events set at_s = at_s + 1 where seq = 8", 3, "event 8 .* of job 4.* was changed"),
        ("update events set kind = 'Held' where seq = 9", 3, r"event 9 \(Held of job 4\)"),
        (
            "update events set data = cast(replace(cast(data as text), 'bob', 'eve') as blob)"
            " where seq = 4",
            1,
            "event 4 .*was changed",
        ),
        ("delete from events where seq = 11", 4, "event 11 of job 5 is missing"),
        ("delete from events where seq = 1", 1, "event 1 is missing"),
        ("update events set job_id = 7 where seq = 8", 3, "event 8"),
        # In the hour that has not closed.
        ("update events set at_s = at_s + 1 where seq = 20", 9, "event 20"),
    ],
)
def test_a_changed_row_of_the_journal_is_found(
    place: Path, statement: str, number: int, text: str
) -> None:
    change(place, "journal.sqlite", statement)
    fault = checked(place).fault
    assert fault is not None
    assert fault.number == number
    assert re.search(text, fault.text), fault.text


def test_an_added_row_is_found(place: Path) -> None:
    change(place, "journal.sqlite", "delete from events where seq = 12")
    change(place, NAME, "delete from marks where seq = 12")
    assert checked(place).fault is None, "it may have gone with its job"
    statement = "insert into events select 12, at_s, job_id, kind, data from events where seq = 11"
    change(place, "journal.sqlite", statement)
    fault = checked(place).fault
    assert fault is not None
    assert fault.number == 5 and "event 12 " in fault.text and "added" in fault.text


def test_a_changed_digest_is_told_from_a_changed_event(place: Path) -> None:
    change(place, NAME, "update marks set mark = x'0011223344556677' where seq = 8")
    fault = checked(place).fault
    assert fault is not None
    assert fault.number == 3 and "digest of event 8" in fault.text


def test_changed_rules_of_the_past_are_found(place: Path) -> None:
    change(place, "journal.sqlite", "update rules_in_force set text = text || ' '")
    with pytest.raises(HostError, match="another text of the rules"):
        checked(place)


def _other_text(place: Path, number: int, edit: Callable[[bytes], bytes]) -> bytes:
    with closing(sqlite3.connect(place / NAME)) as db:
        query = "select data from hours where number = ?"
        text = zlib.decompress(db.execute(query, (number,)).fetchone()[0])
    assert edit(text) != text
    return edit(text)


def less(text: bytes) -> bytes:
    """The same, with a smaller sum of what others held."""
    return text.replace(b"450000000000000", b"450000000000001")


@pytest.mark.parametrize("number", [1, 4, HOURS])
def test_a_changed_hour_is_found(place: Path, number: int) -> None:
    text = _other_text(place, number, less)
    change(place, NAME, "update hours set data = ? where number = ?", zlib.compress(text), number)
    fault = checked(place).fault
    assert fault is not None
    assert (fault.number, fault.text) == (number, "its text does not fit its chain")


def test_a_changed_hour_with_all_chains_after_it_is_found_by_its_events(place: Path) -> None:
    text = _other_text(place, 4, less)
    change(place, NAME, "update hours set data = ? where number = 4", zlib.compress(text))
    head = checked(place).chain
    with closing(sqlite3.connect(place / NAME)) as db, db:
        chain = db.execute("select previous from hours where number = 4").fetchone()[0]
        for number in range(4, HOURS + 1):
            query = "select data from hours where number = ?"
            data = db.execute(query, (number,)).fetchone()[0]
            previous, chain = chain, next_chain(chain, zlib.decompress(data))
            query = "update hours set previous = ?, chain = ? where number = ?"
            db.execute(query, (previous, chain, number))
    found = checked(place)
    assert found.fault is not None
    assert found.fault.number == 4
    assert found.fault.text == "its events give another account than it has"
    # And by the chain that was noted before.
    assert found.chain != head


def test_changed_columns_and_missing_hours_are_found(place: Path) -> None:
    change(place, NAME, "update hours set begin_ms = begin_ms + 1 where number = 6")
    fault = checked(place).fault
    assert fault is not None and fault.number == 6
    change(place, NAME, "delete from hours where number = 3")
    fault = checked(place).fault
    assert fault is not None
    assert (fault.number, fault.text) == (3, "it is missing")


@pytest.mark.parametrize(
    ("statement", "number", "text"),
    [
        ("delete from hours where number = 1", 1, "it is missing"),
        ("delete from hours where number < 4", 1, "it is missing"),
        (f"delete from hours where number = {HOURS}", HOURS, "it is missing"),
        ("delete from hours", 1, "it is missing"),
        # Times that nobody asks for.
        ("update hours set begin_ms = 1 << 62", 1, "its text is not that of its row"),
        ("update hours set end_ms = -1", 1, "its text is not that of its row"),
        (
            "delete from states where kept = 1",
            1,
            "the account has no state from which hours could be computed again",
        ),
        (
            "update states set seq = 99 where kept = 0",
            HOURS + 1,
            "the number of its last event was changed",
        ),
    ],
)
def test_hours_that_were_taken_away_are_found(
    place: Path, statement: str, number: int, text: str
) -> None:
    with closing(sqlite3.connect(place / NAME)) as db, db:
        assert db.execute(statement).rowcount
    fault = checked(place).fault
    assert fault is not None
    assert (fault.number, fault.text) == (number, text)


def test_hours_that_went_with_the_history_are_no_fault(place: Path) -> None:
    with AccountFile(place / "journal.sqlite") as file:
        hours = [stored.hour() for stored in file.hours()]
        file.catch_up(forget_before_ms=hours[3].begin_ms + 1, now_ms=hours[-1].end_ms)
    found = checked(place)
    assert (found.fault, found.hours) == (None, HOURS - 3)


def test_an_event_of_the_present_hour_with_its_digest_is_found(place: Path) -> None:
    """By the chain of all events, which the present state has."""
    with closing(sqlite3.connect(place / NAME)) as db, db:
        db.execute("delete from marks where seq = 20")
    with closing(sqlite3.connect(place / "journal.sqlite")) as db, db:
        db.execute("update events set at_s = at_s + 1 where seq = 20")
        query = "select seq, at_s, job_id, kind, data from events where seq = 20"
        row = EventRow(*db.execute(query).fetchone())
    with closing(sqlite3.connect(place / NAME)) as db, db:
        mark = row.digest()[:MARK_BYTES]
        db.execute("insert into marks values (20, ?, ?)", (row.job_id, mark))
    fault = checked(place).fault
    assert fault is not None
    assert (fault.number, fault.text) == (HOURS + 1, "its events do not fit their chain")


def test_an_hour_that_cannot_be_read_is_found(place: Path) -> None:
    change(place, NAME, "update hours set data = ? where number = 5", zlib.compress(b"{}"))
    fault = checked(place).fault
    assert fault is not None and fault.number == 5


def test_a_job_that_is_just_being_removed_is_no_fault(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events go before its own row; a moment later that is gone, too."""
    change(place, "journal.sqlite", "delete from events where seq = 8")

    def go_on(seconds: float) -> None:
        change(place, "journal.sqlite", "delete from events where seq = 9")
        change(place, "journal.sqlite", "delete from jobs where id = 4")

    monkeypatch.setattr("time.sleep", go_on)
    found = checked(place)
    assert found.fault is None
    assert (found.gone, found.computed) == (1, 1)
