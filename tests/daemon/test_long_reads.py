"""What takes long to read is read beside the loop: others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from daemon.desk import Desk
from drfd.daemon.lookup import lookup
from fakes import ALICE, BOB


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
