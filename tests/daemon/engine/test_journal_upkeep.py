"""The daemon removes what is over as the configuration says, and lets others go first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.stimuli import Actor, Now
from drfd.daemon.config import HistorySettings
from drfd.daemon.engine.journal_upkeep import Retention, TrustedClock
from drfd.journal.journal import Journal
from fakes import ALICE, BOB, apply_and_append, happened, spec

NOW_S, YEAR_S = 1_700_000_000.0, 365 * 86400.0


@dataclass
class Machine:
    at_s: float = NOW_S
    mono_s: float = 1000.0
    kept: list[float] = field(default_factory=list)

    def now(self) -> Now:
        return Now(self.at_s, self.mono_s)

    def clock(self, believed_s: float | None = None) -> TrustedClock:
        return TrustedClock(self.now, believed_s, self.kept.append)

    def passes(self, seconds: float, clock: TrustedClock) -> float:
        """What the clock says after that time, looked at every minute."""
        said = clock()
        for _ in range(round(seconds / 60)):
            self.at_s += 60
            self.mono_s += 60
            said = clock()
        return said


def test_a_night_without_power_is_believed_after_a_tenth_of_it() -> None:
    machine = Machine()
    clock = machine.clock(NOW_S - 12 * 3600)
    assert clock() == NOW_S - 12 * 3600
    assert machine.passes(1.3 * 3600, clock) == machine.at_s


def test_a_journal_that_cannot_be_written_hinders_nothing() -> None:
    machine = Machine()

    def keep(at_s: float) -> None:
        raise HostError("journal", "the disk is full")

    clock = TrustedClock(machine.now, None, keep)
    assert clock() == NOW_S


DAY_S = 86400.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def fill(journal: Journal, whose: Callable[[int], Actor], count: int) -> None:
    """One job a day, each over at once."""
    ledger = Ledger(Axes())
    for job_id in range(1, count + 1):
        actor = whose(job_id)
        asked = spec(f"root.{actor.user}", actor=actor)
        for event in (
            ev.Submitted(job_id=job_id, at_s=job_id * DAY_S, spec=asked),
            ev.Cancelled(job_id=job_id, at_s=job_id * DAY_S, by=actor.user),
        ):
            apply_and_append(journal, event, ledger)
    journal.commit()


def there(journal: Journal, count: int) -> list[int]:
    return [each for each in range(1, count + 1) if journal.job(each)]


async def to_the_end(retention: Retention) -> int:
    steps = 0
    while await retention.step():
        steps += 1
        assert steps < 10_000
    return steps


def test_what_is_older_than_configured_goes_and_nothing_else(journal: Journal) -> None:
    fill(journal, lambda _: ALICE, 300)
    history = HistorySettings(keep_s=None, max_bytes=0)
    retention = Retention(journal, lambda: history, lambda: 300.5 * DAY_S)
    assert asyncio.run(to_the_end(retention)) == 0
    assert there(journal, 300) == list(range(1, 301))
    history = HistorySettings(keep_s=round(100 * DAY_S), max_bytes=0)
    assert asyncio.run(to_the_end(retention)) > 2, "a little at a time"
    assert there(journal, 300) == list(range(201, 301))


def test_a_journal_of_live_jobs_alone_is_left_as_it_is(journal: Journal) -> None:
    ledger = Ledger(Axes())
    for job_id in range(1, 50):
        apply_and_append(journal, happened(ev.Submitted, job_id, spec=spec()), ledger)
    journal.commit()
    retention = Retention(journal, lambda: HistorySettings(keep_s=1, max_bytes=1), lambda: 1e12)
    assert asyncio.run(to_the_end(retention)) == 0
    assert there(journal, 49) == list(range(1, 50))


def test_a_flood_of_arrays_removes_nothing_of_others(journal: Journal) -> None:
    """Arrays did not count as anybody's: all that others had done went before them."""
    fill(journal, lambda _: ALICE, 100)
    before = journal.used_bytes()
    ledger = journal.load(Axes())
    for _ in range(200):
        array_id = ledger.next_id
        asked = replace(spec("root.bob", actor=BOB), cwd="/" + "x" * 4000)
        at_s = 200 * DAY_S
        submitted = ev.ArraySubmitted(
            array_id=array_id, at_s=at_s, spec=asked, spans=((1, 1, 1),), at_once=None
        )
        for event in (submitted, ev.Cancelled(job_id=array_id, at_s=at_s, by="bob")):
            apply_and_append(journal, event, ledger)
    journal.commit()
    most = before + 400_000
    assert journal.used_bytes() > 2 * most
    retention = Retention(
        journal, lambda: HistorySettings(keep_s=None, max_bytes=most), lambda: 1e10
    )
    asyncio.run(to_the_end(retention))
    assert journal.used_bytes() <= most
    assert there(journal, 100) == list(range(1, 101))


def test_ended_tasks_of_an_array_that_goes_on_remove_nobodys_history(journal: Journal) -> None:
    """They cannot be removed before their array is over, and were taken for what can be: whoever
    had much of it, and held the last task, had the history of all others removed, to the last
    job."""
    fill(journal, lambda _: ALICE, 100)
    most = journal.used_bytes() + 100_000
    ledger = journal.load(Axes())
    asked = replace(spec("root.bob", actor=BOB), cwd="/" + "x" * 4000)
    array_id = ledger.next_id
    submitted = ev.ArraySubmitted(
        array_id=array_id, at_s=200 * DAY_S, spec=asked, spans=((0, 400, 1),), at_once=None
    )
    apply_and_append(journal, submitted, ledger)
    for job_id in range(array_id + 1, array_id + 400):
        apply_and_append(journal, ev.Cancelled(job_id=job_id, at_s=200 * DAY_S, by="bob"), ledger)
    journal.commit()
    assert journal.used_bytes() > 5 * most
    retention = Retention(
        journal, lambda: HistorySettings(keep_s=None, max_bytes=most), lambda: 1e10
    )
    assert asyncio.run(to_the_end(retention)) == 0
    assert there(journal, 100) == list(range(1, 101))
    # What has the last id, or the last event, stays also when it is over.
    apply_and_append(journal, ev.Cancelled(job_id=array_id, at_s=200 * DAY_S, by="bob"), ledger)
    journal.commit()
    asyncio.run(to_the_end(Retention(journal, retention.history, lambda: 1e10)))
    assert there(journal, 100) == list(range(1, 101))
    later = ledger.next_id
    apply_and_append(journal, happened(ev.Submitted, later, spec=spec()), ledger)
    journal.commit()
    asyncio.run(to_the_end(Retention(journal, retention.history, lambda: 1e10)))
    assert journal.used_bytes() <= most
    assert there(journal, 100) == list(range(1, 101))


def test_too_much_goes_also_where_all_ended_by_a_clock_that_was_ahead(journal: Journal) -> None:
    fill(journal, lambda _: ALICE, 300)
    most = journal.used_bytes() // 2
    retention = Retention(
        journal, lambda: HistorySettings(keep_s=None, max_bytes=most), lambda: 0.0
    )
    asyncio.run(to_the_end(retention))
    assert journal.used_bytes() <= most


def test_a_clock_that_is_ten_years_ahead_for_an_hour_removes_no_history(journal: Journal) -> None:
    """All that had ended before went within seconds, for ever."""
    fill(journal, lambda _: ALICE, 50)
    at_s, mono_s = 51 * DAY_S, 0.0
    clock = TrustedClock(
        lambda: Now(at_s, mono_s), journal.trusted_time_s(), journal.store_trusted_time
    )
    retention = Retention(journal, lambda: HistorySettings(keep_s=round(400 * DAY_S)), clock)
    for jump_s in (0.0, 3650 * DAY_S, 0.0):
        at_s = 51 * DAY_S + jump_s
        for _ in range(10):
            mono_s += 360.0
            at_s += 360.0
            asyncio.run(to_the_end(retention))
    assert there(journal, 50) == list(range(1, 51))
    # A daemon that starts meanwhile takes the last one's word, and not the clock's.
    assert journal.trusted_time_s() == pytest.approx(51 * DAY_S, abs=0.2 * DAY_S)
