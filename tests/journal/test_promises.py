"""The account of promises beside a journal: who computes it and when, and what a check finds."""

import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from core.test_walks import walked
from drfd.common.errors import HostError
from drfd.core.fairness.rules import Rules, rules_text
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import Actor
from drfd.core.promises import EventFold, Parts, Starts
from drfd.journal.journal import Journal, digest
from drfd.journal.promises import HOUR_MS, MAX_PAIRS, NAME, THE_REST, AccountFile, Checked, Hour
from fakes import BOB, apply_and_append, demand, happened, rules, spec
from journal.book import all_records
from seeds import seeds

#: The Unix time at which the tests' histories begin, at the full hour.
BEGIN_S = 1_700_002_800.0
BOBS = "root.bob"


class History:
    """A journal that events are entered into as the engine does."""

    def __init__(self, journal: Journal, by: Rules) -> None:
        self.journal = journal
        self.rules = by
        self.books = Ledger(by.axes)
        self.record(self.started())

    def started(self, hours: float = 0, away: float | None = None) -> ev.DaemonStarted:
        since_s = None if away is None else at(away)
        by = digest(rules_text(self.rules))
        return ev.DaemonStarted(at_s=at(hours), version="1", rules=by, away_since_s=since_s)

    def record(self, event: ev.AuditEvent) -> None:
        self.journal.put_rules(rules_text(self.rules))
        self.journal.append_audit(event)
        self.journal.commit()

    def enter(self, event: ev.Event) -> None:
        apply_and_append(self.journal, event, self.books)

    def happen(self, kind: type, job_id: int, hours: float, **changes: object) -> None:
        self.enter(structs.replace(happened(kind, job_id, **changes), at_s=at(hours)))
        self.journal.commit()

    def run(self, job_id: int, begin: float, end: float, actor: Actor = BOB) -> None:
        """A job that waits for an hour and runs until the end."""
        self.happen(ev.Submitted, job_id, begin, spec=spec(f"root.{actor.user}", actor=actor))
        self.happen(ev.Admitted, job_id, begin + 1)
        self.happen(ev.Exited, job_id, end)
        self.happen(ev.Cleaned, job_id, end)


def at(hours: float) -> float:
    return BEGIN_S + 3600 * hours


def caught_up(path: Path) -> None:
    with AccountFile(path) as file:
        file.catch_up()


def hours_of(path: Path, **fields: int) -> list[Hour]:
    """All hours that have closed, after catching up."""
    with AccountFile(path) as file:
        file.catch_up(**fields)
        return [*file.hours()]


def checked(path: Path) -> Checked:
    with AccountFile(path) as file:
        return file.check()


def walk_into(journal: Journal, seed: int, upto: Callable[[], None] = lambda: None) -> Rules:
    """Enter a random history of many hours, and call `upto` at times."""
    bench, random = walked(seed), Random(seed)
    history, at_s = History(journal, bench.rules), BEGIN_S
    for event in bench.events:
        at_s += random.choice([0, 1, 60, 1000, 4000])
        if random.random() < 0.05:
            at_s -= 5000
        history.enter(structs.replace(event, at_s=at_s))
        if random.random() < 0.05:
            journal.commit()
            upto()
    journal.commit()
    return bench.rules


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(4)))
def test_whoever_catches_up_when_the_hours_are_the_same(open_journal, tmp_path, seed):
    often, once = tmp_path / "often" / "journal", tmp_path / "once" / "journal"
    often.parent.mkdir()
    once.parent.mkdir()
    journal = open_journal(often)
    by = walk_into(journal, seed, lambda: caught_up(often))
    with closing(sqlite3.connect(often)) as source, closing(sqlite3.connect(once)) as target:
        source.backup(target)
    known = hours_of(often)
    assert hours_of(once) == known
    assert len(known) > 20
    assert any(hour.steps_back for hour in known)
    assert not any(hour.doubtful for hour in known)
    # It is the account of the events, whole.
    fold = EventFold(lambda name: by)
    for event in all_records(often):
        fold.take(event)
    with AccountFile(often) as file:
        hours = [*known, *file.catch_up().close_at(0)]
    sums: dict[str, Parts] = {}
    for hour in hours:
        for leaf, parts, _ in hour.rows:
            sums[leaf] = sums.get(leaf, Parts()).after(parts, 1)
            assert parts.promised == parts.kept + sum(parts[4:])
    assert sums == fold.account.counted.sums
    starts: dict[object, Starts] = {}
    for hour in hours:
        for why, counts in hour.starts:
            before = starts.get(why, Starts())
            starts[why] = Starts(*(a + b for a, b in zip(before, counts, strict=True)))
    assert starts == fold.account.counted.starts
    found = checked(often)
    assert (found.fault, found.compared, found.gone) == (None, found.hours, 0)
    assert found.events == journal.mark()


def test_a_time_of_which_nothing_is_known_for_months_is_not_divided(journal):
    history = History(journal, rules())
    history.happen(ev.Submitted, 1, 0.5, spec=spec(asks=demand(9)))
    history.happen(ev.Admitted, 1, 0.5)
    history.happen(ev.Submitted, 2, 0.5, spec=spec(BOBS, actor=BOB))
    history.record(history.started(24 * 365 * 70))
    (hour,) = hours_of(journal.path)
    assert hour.end_ms - hour.begin_ms == 24 * 365 * 70 * HOUR_MS


@pytest.mark.slow
def test_the_size_of_an_hour_is_the_same_however_many_hold_too_much(journal):
    """Each of twenty others holds a core of twenty-one that are promised to all in equal parts of
    those who are there: the last one is promised a core, too, and waits."""
    count = MAX_PAIRS + 4
    history = History(journal, rules(2 * count))
    for at_, user in enumerate([f"u{number:02}" for number in range(count)], 1):
        actor = Actor(user, 2000 + at_, False)
        history.happen(
            ev.Submitted, at_, 0.1, spec=spec(f"root.{user}", actor=actor, asks=demand(2))
        )
        history.happen(ev.Admitted, at_, 0.1)
    history.happen(ev.Submitted, 99, 0.5, spec=spec(BOBS, actor=BOB))
    history.record(history.started(1))
    (hour,) = hours_of(journal.path)
    ((leaf, parts, _),) = hour.rows
    assert leaf == BOBS and parts.others > 0
    assert [other for _, other, _ in hour.pairs[-1:]] == [THE_REST]
    assert len(hour.pairs) == MAX_PAIRS + 1
    assert sum(amount for *_, amount in hour.pairs) == parts.others


def test_the_account_begins_with_the_events_that_are_left(journal):
    history = History(journal, rules())
    history.run(1, 0, 2)
    history.happen(ev.Submitted, 2, 2, spec=spec(asks=demand(9)))
    history.happen(ev.Admitted, 2, 2.5)
    history.happen(ev.Submitted, 3, 2.75, spec=spec(BOBS, actor=BOB))
    while journal.remove_ended(at(3)) is not None:
        pass
    history.record(history.started(4))
    *_, before, last = hours_of(journal.path)
    assert before.rows[-1][1].others == HOUR_MS // 4 * 10**9 // 2
    assert last.rows[0][1].waited == HOUR_MS
    found = checked(journal.path)
    assert (found.fault, found.gone) == (None, 4)
    assert found.compared > 0


def test_a_job_removed_before_its_end_was_seen_is_not_counted_for_ever(journal):
    history = History(journal, rules())
    history.happen(ev.Submitted, 1, 0, spec=spec(BOBS, actor=BOB))
    caught_up(journal.path)
    history.happen(ev.Cancelled, 1, 0.5)
    history.happen(ev.Submitted, 2, 0.75)
    while journal.remove_ended(at(3)) is not None:
        pass
    history.record(history.started(4))
    assert not any(leaf == BOBS for hour in hours_of(journal.path) for leaf, *_ in hour.rows)


@pytest.mark.parametrize(
    ("name", "value"), [("program", "another"), ("book", b"none"), ("book", zlib.compress(b"c\n"))]
)
def test_without_a_book_to_go_on_from_all_is_computed_again(place, name, value):
    path = place / "journal.sqlite"
    whole = hours_of(path)
    change(place, NAME, "update facts set value = ? where name = ?", value, name)
    assert checked(path).compared == HOURS
    assert hours_of(path) == whole
    assert checked(path).compared == HOURS + 1


@pytest.mark.slow
def test_old_hours_go_and_the_next_ones_go_on_from_them(journal):
    history = History(journal, rules())
    for number in range(1, 60):
        history.run(number, 2 * number, 2 * number + 1.5)
    whole = hours_of(journal.path)
    # As of a clock that was wrong.
    history.record(history.started(24 * 365 * 70, away=120))
    history.record(history.started(121))
    history.record(history.started(123))
    limit_ms = round(at(80) * 1000)
    left = hours_of(journal.path, forget_before_ms=limit_ms, now_ms=round(at(123) * 1000))
    assert left[0].end_ms >= limit_ms
    assert 0 < len(whole) - whole.index(left[0]) < len(whole)
    assert left[: len(whole) - whole.index(left[0])] == whole[whole.index(left[0]) :]
    while journal.remove_ended(at(80)) is not None:
        pass
    found = checked(journal.path)
    assert (found.fault, found.hours) == (None, len(left) + 1)
    # The hour that the limit is in has lost some events.
    assert found.gone > 0
    assert 10 < found.compared < found.hours
    # All of it may be old.
    assert hours_of(journal.path, forget_before_ms=1 << 60, now_ms=1 << 60) == []


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("delete from events where seq > 5", "restored from a copy"),
        ("update facts set value = 'x' where name = 'id'", "belongs to another journal"),
    ],
)
def test_an_account_of_another_journal_is_refused_with_the_cure(journal, statement, says):
    history = History(journal, rules())
    history.run(1, 0, 2)
    history.run(2, 3, 5)
    hours_of(journal.path)
    with closing(sqlite3.connect(journal.path)) as db, db:
        db.execute(statement)
    with pytest.raises(HostError, match=says) as error:
        hours_of(journal.path)
    assert "moved away" in (error.value.hint or "")


def test_a_file_that_is_no_account_is_refused(journal):
    History(journal, rules())
    journal.path.with_name(NAME).write_bytes(b"no database, but long enough to be one" * 100)
    with pytest.raises(HostError, match="cannot use the account of promises"):
        hours_of(journal.path)


# -- whatever was changed afterwards, the check finds it ---------------------------------------


#: So many hours close in the history.
HOURS = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
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
        caught_up(journal.path)
    return place


@pytest.fixture
def place(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def fault(place: Path) -> tuple[float, str]:
    """When the first wrong hour begins, and what is wrong with it."""
    found = checked(place / "journal.sqlite").fault
    assert found is not None
    return (found.begin_ms / 1000 - BEGIN_S) / 3600, found.text


def change(place: Path, name: str, statement: str, *values: object, rows: int = 1) -> None:
    with closing(sqlite3.connect(place / name)) as db, db:
        assert db.execute(statement, values).rowcount == rows


OTHER, MISSING = "its events give another account than is stored", "it is missing"
EVENT = "update events set data = cast({} as blob) where seq = {}"
LATER = "json_set(cast(data as text), '$.at_s', at_s + 1)"
EVES = "replace(cast(data as text), 'root.bob', 'root.eve')"


@pytest.mark.parametrize(
    ("name", "statement", "hour", "text"),
    [
        ("journal.sqlite", EVENT.format(LATER, 8), 2.0, OTHER),
        ("journal.sqlite", EVENT.format(EVES, 8), 2.0, OTHER),
        # In the hour that has not closed.
        ("journal.sqlite", EVENT.format(LATER, 20), 8.0, OTHER),
        (NAME, "delete from hours where last_seq = 7", 1.0, MISSING),
        (NAME, "delete from hours where last_seq <= 7", 0.0, MISSING),
        (NAME, "delete from hours", 0.0, MISSING),
    ],
)
def test_what_was_changed_or_taken_away_is_found(place, name, statement, hour, text):
    with closing(sqlite3.connect(place / name)) as db, db:
        assert db.execute(statement).rowcount
    assert fault(place) == (hour, text)


@pytest.mark.parametrize("step", ["stored_book", "last_seq"])
def test_an_account_that_is_brought_up_to_date_meanwhile_is_no_fault(place, monkeypatch, step):
    path, then = place / "journal.sqlite", getattr(AccountFile, step)

    def later(file: AccountFile) -> object:
        monkeypatch.undo()
        with closing(Journal(path)) as journal:
            history = History(journal, rules())
            history.record(history.started(HOURS + 2.5))
            caught_up(path)
        return then(file)

    monkeypatch.setattr(AccountFile, step, later)
    assert checked(path).fault is None


@pytest.mark.parametrize("at_", [0, 3, HOURS - 1])
def test_a_changed_hour_is_found(place, at_):
    """A smaller sum of what others held."""
    query = "select last_seq, data from hours order by last_seq limit 1 offset ?"
    with closing(sqlite3.connect(place / NAME)) as db:
        seq, data = db.execute(query, (at_,)).fetchone()
    text = zlib.decompress(data)
    other = text.replace(b"450000000000000", b"450000000000001")
    assert other != text
    change(place, NAME, "update hours set data = ? where last_seq = ?", zlib.compress(other), seq)
    assert fault(place)[1] == OTHER


def test_changed_rules_of_the_past_are_found(place):
    change(place, "journal.sqlite", "update rules_in_force set text = text || ' '")
    with pytest.raises(HostError, match="another text of the rules"):
        checked(place / "journal.sqlite")


def test_hours_that_went_with_the_history_are_no_fault(place):
    with AccountFile(place / "journal.sqlite") as file:
        hours = [*file.hours()]
        file.catch_up(forget_before_ms=hours[3].begin_ms + 1, now_ms=hours[-1].end_ms)
    found = checked(place / "journal.sqlite")
    assert (found.fault, found.hours) == (None, HOURS - 3 + 1)
    assert found.compared > 0


def test_hours_whose_events_are_gone_are_not_compared(place):
    change(place, "journal.sqlite", "delete from events where job_id = 4", rows=2)
    found = checked(place / "journal.sqlite")
    assert (found.fault, found.gone, found.hours) == (None, 2, HOURS + 1)
    assert 0 < found.compared < HOURS
