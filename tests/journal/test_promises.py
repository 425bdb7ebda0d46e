"""The account of promises beside a journal: who computes it and when, and what a check finds."""

from __future__ import annotations

import re
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
from drfd.core.model.resources import Node, Resources
from drfd.core.model.stimuli import Actor
from drfd.core.promises import EventFold, Parts, Starts
from drfd.journal.journal import Journal, digest
from drfd.journal.promises import account_file
from drfd.journal.promises.account_file import MARK_BYTES, NAME, AccountFile
from drfd.journal.promises.book import HOUR_MS, MOST_PAIRS, THE_REST, EventRow, Hour
from drfd.journal.promises.check import Checked, check
from fakes import BOB, apply_and_append, demand, happened, replace, rules, spec
from journal.book import OpenJournal
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
        self.journal.audit.put_rules(rules_text(self.rules))
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
        return [stored.hour() for stored in file.hours()]


def checked(path: Path) -> Checked:
    with AccountFile(path) as file:
        return check(file, again_s=0)


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
def test_whoever_catches_up_when_and_however_far_the_hours_are_the_same(
    open_journal: OpenJournal, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    often, once = tmp_path / "often" / "journal", tmp_path / "once" / "journal"
    often.parent.mkdir()
    once.parent.mkdir()
    journal = open_journal(often)
    by = walk_into(journal, seed, lambda: caught_up(often))
    with closing(sqlite3.connect(often)) as source, closing(sqlite3.connect(once)) as target:
        source.backup(target)
    known = hours_of(often)
    with monkeypatch.context() as changed:
        changed.setattr(account_file, "EVENTS", 1 << 30)
        assert hours_of(once) == known
    assert len(known) > 20
    assert [hour.number for hour in known] == [*range(1, len(known) + 1)]
    assert any(hour.steps_back for hour in known)
    assert not any(hour.doubtful for hour in known)
    # It is the account of the events, whole.
    fold = EventFold(1 << 80, lambda name: by)
    for _, event in journal.record():
        fold.take(event)
    with AccountFile(often) as file:
        hours = [*known, *file.catch_up().close_at(0)]
    sums: dict[str, Parts] = {}
    for hour in hours:
        for leaf, parts, _ in hour.rows:
            sums[leaf] = sums.get(leaf, Parts()).after(parts, 1)
            assert parts.promised == parts.kept + sum(parts[4:])
    assert sums == {leaf: parts for (_, leaf), parts in fold.account.counted.sums.items()}
    starts: dict[object, Starts] = {}
    for hour in hours:
        for why, counts in hour.starts:
            before = starts.get(why, Starts())
            starts[why] = Starts(*(a + b for a, b in zip(before, counts, strict=True)))
    assert starts == {why: counts for (_, why), counts in fold.account.counted.starts.items()}
    found = checked(often)
    assert (found.fault, found.computed, found.gone) == (None, len(known), 0)
    assert found.events == journal.mark()


def test_a_time_of_which_nothing_is_known_for_months_is_not_divided(journal: Journal) -> None:
    history = History(journal, rules())
    history.happen(ev.Submitted, 1, 0.5, spec=spec(asks=demand(9)))
    history.happen(ev.Admitted, 1, 0.5)
    history.happen(ev.Submitted, 2, 0.5, spec=spec(BOBS, actor=BOB))
    history.record(history.started(24 * 365 * 70))
    (hour,) = hours_of(journal.path)
    assert hour.end_ms - hour.begin_ms == 24 * 365 * 70 * HOUR_MS


@pytest.mark.slow
def test_the_size_of_an_hour_is_the_same_however_many_hold_too_much(journal: Journal) -> None:
    """Each of twenty others holds a core of twenty-one that are promised to all in equal parts of
    those who are there: the last one is promised a core, too, and waits."""
    count = MOST_PAIRS + 4
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
    assert len(hour.pairs) == MOST_PAIRS + 1
    assert sum(amount for *_, amount in hour.pairs) == parts.others


@pytest.mark.slow
def test_a_step_that_was_not_finished_is_repeated(
    open_journal: OpenJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    walk_into(open_journal(path), 3)
    whole = hours_of(path)
    for each in tmp_path.glob(f"{NAME}*"):
        each.unlink()
    monkeypatch.setattr(account_file, "EVENTS", 5)
    left = [5]
    put = AccountFile._put_state

    def put_or_die(self: AccountFile, *values: object, **named: bool) -> None:
        left[0] -= 1
        if not left[0]:
            left[0] = 5
            raise KeyboardInterrupt
        put(self, *values, **named)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(AccountFile, "_put_state", put_or_die)
    deaths = 0
    while True:
        try:
            found = hours_of(path)
            break
        except KeyboardInterrupt:
            deaths += 1
            assert deaths < 1000
    assert deaths > 3
    assert found == whole


def test_a_journal_with_a_past_that_is_gone_has_an_account_from_now_on(journal: Journal) -> None:
    history = History(journal, rules())
    history.run(1, 0, 2)
    history.happen(ev.Submitted, 2, 2, spec=spec(asks=demand(9)))
    history.happen(ev.Admitted, 2, 2.5)
    history.happen(ev.Submitted, 3, 2.75, spec=spec(BOBS, actor=BOB))
    while journal.remove_ended(at(3)) is not None:
        pass
    with AccountFile(journal.path) as file:
        assert file.catch_up().number == 1
    history.record(history.started(4))
    (first, second) = hours_of(journal.path)
    assert first.begin_ms == round(at(2.75) * 1000)
    assert first.rows[0][1].others == HOUR_MS // 4 * 10**9 // 2
    assert second.rows[0][1].waited == HOUR_MS
    assert checked(journal.path).fault is None


def test_jobs_of_others_on_other_nodes_stay_counted_by_whoever_goes_on(journal: Journal) -> None:
    """Also by an account that begins later than the load."""
    nodes = (Node(name="head", capacity=demand(3)), Node(name="n1", capacity=demand(6)))
    history = History(journal, replace(rules(), axes=replace(rules().axes, nodes=nodes)))
    history.run(1, 0, 2)
    others = (("n1", Resources(cores_milli=900)),)
    load = ev.ExternalLoadChanged(at_s=at(2), kept=Resources(), elsewhere=others)
    history.record(load)
    history.happen(ev.Submitted, 2, 2, spec=spec(asks=demand(9)))
    history.happen(ev.Admitted, 2, 2)
    history.happen(ev.Submitted, 3, 3, spec=spec(BOBS, actor=BOB))
    while journal.remove_ended(at(3)) is not None:
        pass
    caught_up(journal.path)
    history.happen(ev.Submitted, 4, 4.5, spec=spec(BOBS, actor=BOB))
    caught_up(journal.path)
    history.record(structs.replace(load, at_s=at(5), elsewhere=()))
    history.record(history.started(6))
    found = hours_of(journal.path)
    tenth = 10**9 // 10
    outside = [[parts.outside for _, parts, _ in hour.rows] for hour in found]
    assert outside == [[tenth * HOUR_MS], [tenth * HOUR_MS], [0]]
    assert checked(journal.path).fault is None


@pytest.mark.slow
def test_old_hours_go_and_the_next_ones_go_on_from_them(journal: Journal) -> None:
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
    assert whole[: -len(left)] or left[0].number > 1
    assert left[: len(whole) - left[0].number + 1] == whole[left[0].number - 1 :]
    while journal.remove_ended(at(80)) is not None:
        pass
    found = checked(journal.path)
    with AccountFile(journal.path) as file:
        assert file.states()[0] < left[0].first_seq
    assert (found.fault, found.hours) == (None, len(left))
    # The hour that the limit is in has lost some events.
    assert found.gone > 0
    assert 10 < found.computed < found.hours
    # All of it may be old.
    rest = hours_of(journal.path, forget_before_ms=1 << 60, now_ms=1 << 60)
    assert len(rest) == 1


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("delete from events where seq > 5", "restored from a copy"),
        ("update facts set value = 'x' where name = 'id'", "belongs to another journal"),
    ],
)
def test_an_account_of_another_journal_is_refused_with_the_cure(
    journal: Journal, statement: str, says: str
) -> None:
    history = History(journal, rules())
    history.run(1, 0, 2)
    history.run(2, 3, 5)
    hours_of(journal.path)
    with closing(sqlite3.connect(journal.path)) as db, db:
        db.execute(statement)
    with pytest.raises(HostError, match=says) as error:
        hours_of(journal.path)
    assert "moved away" in (error.value.hint or "")


def test_a_file_that_is_no_account_is_refused(journal: Journal) -> None:
    History(journal, rules())
    journal.path.with_name(NAME).write_bytes(b"no database, but long enough to be one" * 100)
    with pytest.raises(HostError, match="cannot use the account of promises"):
        hours_of(journal.path)


def test_two_writers_do_not_mix(journal: Journal) -> None:
    history = History(journal, rules())
    history.run(1, 0, 2)
    with AccountFile(journal.path) as file:
        file.catch_up()
        late = file._book()
        history.run(2, 3, 5)
        whole = hours_of(journal.path)
        previous = late.last_seq
        with pytest.raises(HostError, match="another process"):
            file._store(late, previous, [], [])
    assert hours_of(journal.path) == whole


# -- whatever was changed afterwards, the check finds it ---------------------------------------


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
        caught_up(journal.path)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def fault(place: Path) -> tuple[int, str]:
    """What is wrong, and with which hour."""
    found = checked(place / "journal.sqlite").fault
    assert found is not None
    return found.number, found.text


def change(place: Path, name: str, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(place / name)) as db, db:
        assert db.execute(statement, values).rowcount == 1


@pytest.mark.parametrize(
    ("name", "statement", "number", "text"),
    [
        *(("journal.sqlite", *each) for each in (
            ("update events set at_s = at_s + 1 where seq = 8", 3,
             ".*event 8 .* of job 4.* was changed.*"),
            ("update events set kind = 'Held' where seq = 9", 3, r".*event 9 \(Held of job 4\).*"),
            ("update events set data = cast(replace(cast(data as text), 'bob', 'eve') as blob)"
             " where seq = 4", 1, ".*event 4 .*was changed.*"),
            ("delete from events where seq = 11", 4, ".*event 11 of job 5 is missing.*"),
            ("delete from events where seq = 1", 1, ".*event 1 is missing.*"),
            ("update events set job_id = 7 where seq = 8", 3, ".*event 8.*"),
            # In the hour that has not closed.
            ("update events set at_s = at_s + 1 where seq = 20", 9, ".*event 20.*"),
        )),
        *((NAME, *each) for each in (
            ("update marks set mark = x'0011223344556677' where seq = 8", 3,
             ".*digest of event 8.*"),
            ("delete from hours where number = 1", 1, "it is missing"),
            ("delete from hours where number = 3", 3, "it is missing"),
            ("delete from hours where number < 4", 1, "it is missing"),
            (f"delete from hours where number = {HOURS}", HOURS, "it is missing"),
            ("delete from hours", 1, "it is missing"),
            ("update hours set begin_ms = begin_ms + 1 where number = 6", 6,
             "its text is not that of its row"),
            # Times that nobody asks for.
            ("update hours set begin_ms = 1 << 62", 1, "its text is not that of its row"),
            ("update hours set end_ms = -1", 1, "its text is not that of its row"),
            ("delete from states where kept = 1", 1,
             "the account has no state from which hours could be computed again"),
            ("update states set seq = 99 where kept = 0", HOURS + 1,
             "the number of its last event was changed"),
        )),
    ],
)  # fmt: skip
def test_what_was_changed_or_taken_away_is_found(
    place: Path, name: str, statement: str, number: int, text: str
) -> None:
    with closing(sqlite3.connect(place / name)) as db, db:
        assert db.execute(statement).rowcount
    found, said = fault(place)
    assert found == number
    assert re.fullmatch(text, said), said


def test_an_added_row_is_found(place: Path) -> None:
    change(place, "journal.sqlite", "delete from events where seq = 12")
    change(place, NAME, "delete from marks where seq = 12")
    assert checked(place / "journal.sqlite").fault is None, "it may have gone with its job"
    statement = "insert into events select 12, at_s, job_id, kind, data from events where seq = 11"
    change(place, "journal.sqlite", statement)
    number, said = fault(place)
    assert number == 5 and "event 12 " in said and "added" in said


def test_changed_rules_of_the_past_are_found(place: Path) -> None:
    change(place, "journal.sqlite", "update rules_in_force set text = text || ' '")
    with pytest.raises(HostError, match="another text of the rules"):
        checked(place / "journal.sqlite")


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
    assert fault(place) == (number, "its text does not fit its chain")


def test_hours_that_went_with_the_history_are_no_fault(place: Path) -> None:
    with AccountFile(place / "journal.sqlite") as file:
        hours = [stored.hour() for stored in file.hours()]
        file.catch_up(forget_before_ms=hours[3].begin_ms + 1, now_ms=hours[-1].end_ms)
    found = checked(place / "journal.sqlite")
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
    assert fault(place) == (HOURS + 1, "its events do not fit their chain")


def test_an_hour_that_cannot_be_read_is_found(place: Path) -> None:
    change(place, NAME, "update hours set data = ? where number = 5", zlib.compress(b"{}"))
    assert fault(place)[0] == 5


def test_a_job_just_being_removed_is_no_fault(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events go before its own row; a moment later that is gone, too."""
    change(place, "journal.sqlite", "delete from events where seq = 8")

    def go_on(seconds: float) -> None:
        change(place, "journal.sqlite", "delete from events where seq = 9")
        change(place, "journal.sqlite", "delete from jobs where id = 4")

    monkeypatch.setattr("time.sleep", go_on)
    found = checked(place / "journal.sqlite")
    assert found.fault is None
    assert (found.gone, found.computed) == (1, 1)
