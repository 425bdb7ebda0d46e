"""What is asked of the account of promises, and who is told what of it."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from daemon.desk import Desk, MakeDesk
from drfd.common.errors import HostError, NotPermitted, Unavailable
from drfd.core.model.stimuli import Actor, Now
from drfd.daemon.accounting import accountant
from drfd.daemon.accounting.messages import Task
from drfd.daemon.accounting.worker import answer_to
from drfd.daemon.config import Config, HistorySettings
from drfd.journal.promises.account_file import NAME
from fakes import ADMIN, ALICE, BOB, now, rules

EVE = Actor("eve", 3000, False)
#: The Unix time of the tests at a full hour, and an hour in billionths of the machine.
BEGIN_S = 1_700_002_800.0
HOUR = 3_600_000 * 10**9


#: Starts a daemon with so many cores.
Start = Callable[..., Desk]


class Clock:
    """A clock that is set by hand, in hours."""

    hours = 0.0

    def __call__(self) -> Now:
        return now(BEGIN_S - now().at_s + 3600 * self.hours)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(make_desk: MakeDesk, clock: Clock) -> Iterator[Start]:
    """Start a daemon whose rules are on record."""
    started: list[Desk] = []

    def make(cores: int = 9, config: Config | None = None) -> Desk:
        desk = make_desk(by=rules(cores), config=config, clock=clock)
        desk.shell.engine.started(clock().at_s)
        started.append(desk)
        return desk

    yield make
    for desk in started:
        desk.requests.accountant.close()
        desk.shell.host.take()


async def busy(start: Start, clock: Clock) -> Desk:
    """Alice holds all nine cores, bob waits from the first quarter of an hour on, eve does not."""
    desk = start()
    await desk.submit(ALICE, cores=9)
    clock.hours = 0.25
    await desk.submit(BOB)
    clock.hours = 1.5
    return desk


@pytest.mark.slow
async def test_what_one_is_short_of_because_of_another_is_for_the_two_of_them(
    start: Start, clock: Clock
) -> None:
    desk = await busy(start, clock)
    pair = {
        "user": "bob", "pool": None, "by": {"user": "alice", "pool": None},
        "amount": HOUR * 5 // 8,
    }  # fmt: skip
    for actor, pairs in ((ALICE, [pair]), (BOB, [pair]), (EVE, []), (ADMIN, [pair])):
        assert (await desk.ask(actor, op="ledger"))["pairs"] == pairs
    with pytest.raises(NotPermitted, match="what was promised to another user is for that user"):
        await desk.ask(EVE, op="ledger", user="bob")
    assert (await desk.ask(BOB, op="ledger", user="bob"))["pairs"] == [pair]


@pytest.mark.slow
async def test_only_hours_of_the_asked_time_count(start: Start, clock: Clock) -> None:
    desk = await busy(start, clock)

    async def hours(**asked: float) -> tuple[float | None, float | None, int]:
        reply = await desk.ask(BOB, op="ledger", **asked)
        return reply["since"], reply["until"], reply["total"]["waited_ms"]

    first, last = BEGIN_S, BEGIN_S + 3600
    assert await hours() == (first, last + 1800, 4_500_000)
    assert await hours(since_s=last) == (last, last + 1800, 1_800_000)
    assert await hours(until_s=last) == (first, last, 2_700_000)
    assert await hours(since_s=last + 1800) == (None, None, 0)
    clock.hours = 3
    assert await hours(since_s=last + 1800) == (last, last + 7200, 7_200_000)


@pytest.mark.slow
async def test_an_administrator_checks_the_account_and_is_told_the_first_hour_that_differs(
    start: Start, clock: Clock
) -> None:
    desk = await busy(start, clock)
    clock.hours = 2.5
    await desk.submit(EVE)
    found = await desk.ask(ADMIN, op="ledger_check")
    chain = found.pop("chain")
    assert found == {"hours": 2, "computed": 2, "events": 5, "gone": 0, "fault": None}
    assert chain == (await desk.ask(BOB, op="ledger"))["chain"]
    path = desk.shell.journal.path
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("update events set at_s = at_s + 1 where seq = 2")
    fault = (await desk.ask(ADMIN, op="ledger_check"))["fault"]
    assert fault == {
        "hour": 1, "begin": BEGIN_S, "text": "event 2 (Submitted of job 1) was changed",
    }  # fmt: skip
    with pytest.raises(NotPermitted, match="only an administrator"):
        await desk.ask(ALICE, op="ledger_check")


@pytest.mark.slow
async def test_a_file_that_cannot_be_read_is_an_error_with_its_cure(
    start: Start, clock: Clock
) -> None:
    desk = await busy(start, clock)
    path = desk.shell.journal.path.with_name(NAME)
    await desk.submit(EVE)
    await desk.ask(BOB, op="ledger")
    with closing(sqlite3.connect(path)) as db, db:
        text = zlib.compress(b"no text of an hour")
        assert db.execute("update hours set data = ?", (text,)).rowcount
    with pytest.raises(HostError, match="cannot use the account of promises") as error:
        await desk.ask(BOB, op="ledger")
    assert "moved away" in error.value.hint
    for each in path.parent.glob(f"{NAME}*"):
        each.unlink()
    path.write_bytes(b"no database at all, but long" * 100)
    with pytest.raises(HostError, match="cannot use the account of promises") as error:
        await desk.ask(BOB, op="ledger")
    assert "moved away" in error.value.hint


@pytest.mark.slow
async def test_who_asks_while_the_account_has_much_to_do_is_told_so_and_it_goes_on(
    start: Start, clock: Clock
) -> None:
    desk = await busy(start, clock)
    keeper = desk.requests.accountant
    keeper._patience_s = 0.0
    with pytest.raises(Unavailable, match="still being brought up to date"):
        await desk.ask(BOB, op="ledger")
    # The worker that was begun ends in its own time.
    keeper._patience_s = 60.0
    assert (await desk.ask(BOB, op="ledger"))["rows"]


@pytest.mark.slow
async def test_a_check_that_takes_long_goes_on_and_is_asked_for_again(
    start: Start, clock: Clock
) -> None:
    desk = await busy(start, clock)
    keeper = desk.requests.accountant
    keeper._patience_s = 0.0
    assert [*await desk.ask(ADMIN, op="ledger_check")] == ["running_s"]
    keeper._patience_s = 60.0
    assert (await desk.ask(ADMIN, op="ledger_check"))["fault"] is None


@pytest.mark.slow
async def test_a_check_and_a_worker_that_writes_are_in_nobodys_way(
    start: Start, clock: Clock
) -> None:
    desk = await busy(start, clock)
    await desk.submit(EVE)
    await desk.ask(BOB, op="ledger")
    journal = desk.shell.journal.path
    with closing(sqlite3.connect(journal.with_name(NAME), isolation_level=None)) as db:
        db.execute("begin immediate")
        task = Task(journal=str(journal), now_ms=0, checks=True)
        found = await asyncio.to_thread(answer_to, task)
    assert (found["hours"], found["fault"]) == (1, None)


@pytest.mark.slow
async def test_a_worker_that_is_killed_is_an_error_and_the_next_one_goes_on(
    start: Start, clock: Clock
) -> None:
    desk = await busy(start, clock)
    keeper = desk.requests.accountant
    asked = asyncio.create_task(desk.ask(BOB, op="ledger"))
    while not keeper._processes:
        await asyncio.sleep(0.001)
    for process in [*keeper._processes]:
        process.kill()
    with pytest.raises(HostError, match="drfd's log says how"):
        await asked
    assert (await desk.ask(BOB, op="ledger"))["rows"]


@pytest.mark.slow
async def test_the_chain_is_logged_once_a_month(
    start: Start, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    desk = await busy(start, clock)
    caplog.set_level("INFO", "drfd")
    keeper = desk.requests.accountant
    for hours in (2, 3, 24 * 30, 24 * 30 + 1):
        clock.hours = hours
        await desk.submit(EVE)
        await keeper.keep_up()
    lines = [each.getMessage() for each in caplog.records if "promises-chain" in each.getMessage()]
    assert len(lines) == 2
    assert lines[1].endswith(f"chain={(await desk.ask(EVE, op='ledger'))['chain']}") is False
    events = [int(line.partition("events=")[2].partition(" ")[0]) for line in lines]
    assert events == [5, 7]


@pytest.mark.slow
async def test_hours_go_with_the_history(start: Start, clock: Clock) -> None:
    config = Config(history=HistorySettings(keep_s=3600 * 10))
    desk = start(config=config)
    await desk.submit(ALICE, cores=9)
    for hours in range(1, 30):
        clock.hours = hours
        await desk.submit(BOB)
    reply = await desk.ask(ADMIN, op="ledger")
    assert reply["begin"] == BEGIN_S + 3600 * 18
    assert (await desk.ask(ADMIN, op="ledger_check"))["fault"] is None


async def test_once_the_daemon_ends_no_worker_is_started(start: Start, clock: Clock) -> None:
    desk = await busy(start, clock)
    desk.requests.accountant.close()
    with pytest.raises(Unavailable, match="the daemon ends"):
        await desk.ask(BOB, op="ledger")


def test_requests_wait_less_than_clients_do() -> None:
    from drfd.client.connection import _ANSWER_S

    assert 2 * accountant.PATIENCE_S < _ANSWER_S
