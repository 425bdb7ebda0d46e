"""What takes long to read is read beside the loop: others are served meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from daemon.desk import Desk
from drfd.core.model import events as ev
from drfd.daemon.lookup import lookup
from drfd.journal import records
from drfd.journal.history import FIRST, LAST
from fakes import ALICE, BOB, happened


@contextmanager
def statements(desk: Desk) -> Iterator[list[str]]:
    """What the loop's own connection is asked meanwhile."""
    seen: list[str] = []
    db = desk.shell.journal._db
    db.set_trace_callback(seen.append)
    try:
        yield seen
    finally:
        db.set_trace_callback(None)


def write_events(desk: Desk, job_id: int, count: int) -> None:
    event = happened(ev.Altered, job_id)
    row = (event.at_s, job_id, "Altered", records.encode(event))
    with closing(sqlite3.connect(desk.shell.journal.path)) as db:
        query = "insert into events (at_s, job_id, kind, data) values (?, ?, ?, ?)"
        db.executemany(query, [row] * count)
        db.commit()


async def longest_stall(ended: asyncio.Event) -> float:
    """For how many seconds of this process's work, in whatever thread, nothing else had a turn on
    the loop at a time."""
    longest, before = 0.0, time.process_time()
    while not ended.is_set():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    return longest


async def test_the_loop_reads_no_event_to_show_a_job(desk: Desk) -> None:
    """It read all of them, and everybody waited meanwhile: 0.4 s for 50,000 small ones."""

    job_id = await desk.submit(ALICE)
    write_events(desk, job_id, 50_000)
    with statements(desk) as seen:
        shown = await desk.ask(ALICE, op="show", id=job_id)
    assert not [each for each in seen if "from events" in each and "max(seq)" not in each]
    assert len(shown["events"]) == FIRST + LAST
    assert shown["events_omitted"] > 49_000
    assert shown["events_dropped"] == 0
    desk.shell.host.take()


async def test_others_have_their_turn_while_a_long_story_is_read(desk: Desk) -> None:
    """One look kept everybody waiting for as long as it took: seconds for long events."""

    job_id = await desk.submit(ALICE)
    write_events(desk, job_id, 50_000)
    ended = asyncio.Event()
    measured = asyncio.create_task(longest_stall(ended))
    for _ in range(10):
        await desk.ask(ALICE, op="show", id=job_id)
    ended.set()
    # Generous, because other tests run beside this one; all ten took four seconds.
    assert await measured < 1.0
    desk.shell.host.take()


async def test_the_loop_reads_no_row_of_what_has_ended_for_a_list(desk: Desk) -> None:
    """Ten thousand jobs of several states were looked for among all that ever ended."""

    for _ in range(5):
        await desk.submit(ALICE, held=True)
    await desk.ask(ALICE, op="cancel", select={"everything": True})
    array = (await desk.ask(ALICE, op="submit", argv=["true"], cwd="/", array="1-9", held=True))[
        "id"
    ]
    await desk.ask(ALICE, op="cancel", select={"ids": [array]})
    with statements(desk) as seen:
        many = await desk.ask(
            ALICE, op="status", ended=10_000, select={"states": ["CANCELLED", "FAILED"]}
        )
        tasks = await desk.ask(ALICE, op="status", ended=10_000, select={"ids": [array]})
        shown = await desk.ask(ALICE, op="show", id=array)
    assert not [each for each in seen if "from jobs" in each and "order by" in each]
    assert not [each for each in seen if "group by state" in each]
    assert [row["id"] for row in many["jobs"]] == [1, 2, 3, 4, 5, array]
    assert [row["tasks"] for row in tasks["jobs"]] == [9]
    assert shown["array"]["counts"] == {"CANCELLED": 9}


def slowed(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, threading.Event]:
    """Have a reading of the lookup's wait when it has read, until the second event is set."""
    read = getattr(lookup, name)
    is_read, may_go_on = threading.Event(), threading.Event()

    def slowly(*given: Any, **options: Any) -> Any:
        found = read(*given, **options)
        is_read.set()
        assert may_go_on.wait(10)
        return found

    monkeypatch.setattr(lookup, name, slowly)
    return is_read, may_go_on


async def test_what_ends_while_the_journal_is_read_for_a_list_is_in_it_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in neither half: not over when the journal was read, and not live afterwards."""

    ids = [await desk.submit(ALICE, held=True) for _ in range(3)]
    is_read, may_go_on = slowed(monkeypatch, "_last_ended")
    listed = asyncio.create_task(desk.ask(ALICE, op="status", ended=10))
    await asyncio.to_thread(is_read.wait, 10)
    ids.append(await desk.submit(ALICE, held=True))
    ids.append((await desk.ask(ALICE, **ARRAY))["id"])
    for job_id in (ids[1], *ids[3:]):
        await desk.ask(ALICE, op="cancel", select={"ids": [job_id]})
    may_go_on.set()
    rows = (await listed)["jobs"]
    assert [row["id"] for row in rows] == ids
    assert {row["state"] for row in rows if row["id"] in (ids[1], *ids[3:])} == {"CANCELLED"}
    monkeypatch.undo()
    rows = (await desk.ask(ALICE, op="status", ended=10))["jobs"]
    assert [row["id"] for row in rows] == ids


async def test_others_ends_meanwhile_hide_none_of_those_that_are_asked_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = [await desk.submit(BOB, held=True) for _ in range(5)]
    mine = await desk.submit(ALICE, held=True)
    is_read, may_go_on = slowed(monkeypatch, "_last_ended")
    wanted = {"ended": 2, "select": {"user": "alice"}}
    listed = asyncio.create_task(desk.ask(ALICE, op="status", **wanted))
    await asyncio.to_thread(is_read.wait, 10)
    await desk.ask(BOB, op="cancel", select={"ids": theirs})
    await desk.ask(ALICE, op="cancel", select={"ids": [mine]})
    may_go_on.set()
    assert [row["id"] for row in (await listed)["jobs"]] == [mine]


async def test_a_task_that_ends_while_its_arrays_are_read_is_told_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = [await desk.submit(BOB, held=True) for _ in range(10)]
    array = (await desk.ask(ALICE, **ARRAY))["id"]
    is_read, may_go_on = slowed(monkeypatch, "read_ended_tasks")
    wanted = {"ended": 10, "select": {"ids": [array]}}
    listed = asyncio.create_task(desk.ask(ALICE, op="status", **wanted))
    await asyncio.to_thread(is_read.wait, 10)
    await desk.ask(BOB, op="cancel", select={"ids": theirs})
    await desk.ask(ALICE, op="cancel", select={"ids": [f"{array}_2"]})
    may_go_on.set()
    rows = (await listed)["jobs"]
    told = [(row["state"], row.get("tasks")) for row in rows]
    assert told == [("HELD", 3), ("CANCELLED", None)]


#: Four tasks.
ARRAY = {"op": "submit", "argv": ["true"], "cwd": "/", "array": "1-4", "held": True}
