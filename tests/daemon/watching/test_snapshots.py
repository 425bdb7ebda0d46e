"""Watchers: each sees all that everybody may see, as it is now; many cost little more than one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from daemon.desk import Desk
from drfd.core.model.stimuli import Actor
from drfd.daemon.lookup.lookup import Lookup, Row
from drfd.daemon.watching import snapshots as snapshots_module
from drfd.daemon.watching.snapshots import Overview, SnapshotFeed
from drfd.protocol.replies import CommonSnapshot
from fakes import attempt_started

ALICE = Actor("alice", 1001, False)
BOB = Actor("bob", 1002, False)


@dataclass
class Counting(Overview):
    """An overview that counts how often it is worked out."""

    looks: int = 0
    owns: list[str] = field(default_factory=list)

    def common_part(self) -> tuple[CommonSnapshot, frozenset[int]]:
        self.looks += 1
        return super().common_part()

    def own(self, user: str, shown: Container[int]) -> dict[int, Row]:
        self.owns.append(user)
        return super().own(user, shown)


@dataclass
class Clock:
    """Time as watchers see it, and what the daemon has spent: a test moves both."""

    now_s: float = 100.0
    spent_s: float = 0.0


@dataclass
class Stand:
    desk: Desk
    overview: Counting
    snapshots: SnapshotFeed
    clock: Clock

    async def look(self, actor: Actor = ALICE) -> dict[str, Any]:
        """What a watcher who comes just now sees first."""
        self.clock.now_s += 1
        eye = self.watch(actor)
        try:
            return await eye.see()
        finally:
            await eye.stream.aclose()

    def watch(self, actor: Actor, has_read: Callable[[], bool] = lambda: True) -> Eye:
        return Eye(self.snapshots.watch(actor, 1.0, has_read))


@dataclass
class Eye:
    stream: AsyncGenerator[tuple[bytes, bytes], None]

    async def see(self) -> dict[str, Any]:
        return line(await anext(self.stream))


def line(pieces: tuple[bytes, bytes]) -> dict[str, Any]:
    whole = b"".join(pieces)
    assert whole.endswith(b"\n") and whole.count(b"\n") == 1
    reply = json.loads(whole)
    assert reply.pop("ok") is True and list(reply) == ["snapshot"]
    return dict(reply["snapshot"])


@pytest.fixture
def stand(desk: Desk) -> Iterator[Stand]:
    engine, clock = desk.shell.engine, Clock()
    lookup = Lookup(engine, desk.requests.meter)
    overview = Counting(engine, lookup, desk.requests.curves)
    snapshots = SnapshotFeed(overview, lambda: clock.now_s, lambda: clock.spent_s)
    yield Stand(desk, overview, snapshots, clock)
    assert snapshots._watchers == 0, "somebody left and is still counted"


def labels(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["label"], row["state"]) for row in rows]


async def test_jobs_that_wait_for_their_group_are_in_the_order_in_which_they_start(
    stand: Stand,
) -> None:
    """By their priority, as the group lets them go, and not by their ids."""
    desk, group = stand.desk, "o%1"
    await desk.submit(ALICE, group=group)
    await desk.feed(attempt_started(1))
    await desk.submit(ALICE, after=[{"id": 1}])
    for priority in (0, 5, 9):
        await desk.submit(ALICE, group=group, priority=priority)
    await desk.submit(ALICE, array="1-3", group=group, priority=7)
    assert [row["label"] for row in (await stand.look())["pending"]] == [
        "5", "6_[1-3]", "4", "3", "2"
    ]  # fmt: skip
    assert list(stand.overview.own("alice", ())) == [5, 6, 4, 3, 2]
    assert (await stand.look())["running"][0]["group"] == "o"


async def test_nothing_in_it_is_only_for_its_owner(stand: Stand) -> None:
    words = {"argv": ["secret"], "cwd": "/secret", "stdout": "secret", "stderr": "secret"}
    words["name"] = "plain"
    asked = {"env": {"SECRET": "secret"}, "script": "#!/bin/sh\nsecret\n", **words}
    for more in ({}, {"held": True}, {"array": "1-3"}, {"cores": 9}):
        await stand.desk.submit(BOB, **asked, **more)
    await stand.desk.feed(attempt_started(1))
    await stand.desk.finish(1, exit_code=3)
    await stand.desk.submit(BOB, **asked)
    for actor in (ALICE, BOB):
        seen = await stand.look(actor)
        assert seen["running"] and seen["pending"] and seen["ended"]
        assert "secret" not in json.dumps(seen)
    assert (seen["ended"][0]["outcome"], seen["ended"][0]["exit_code"]) == ("FAILED", 3)


async def test_waiting_tasks_of_an_array_are_one_row_and_counted_singly(stand: Stand) -> None:
    await stand.desk.submit(ALICE, cores=4, array="0-99")
    seen = await stand.look()
    (row,) = seen["pending"]
    assert (row["id"], row["label"], row["tasks"]) == (1, "1_[2-99]", 98)
    assert (row["array_id"], row["array_index"]) == (1, None)
    assert [row["label"] for row in seen["running"]] == ["1_0", "1_1"]
    assert seen["counts"] == {"STARTING": 2, "PENDING": 98}
    assert seen["pending_more"] == 0
    await stand.desk.ask(ALICE, op="cancel", select={"ids": ["1_50"]})
    (row,) = (await stand.look())["pending"]
    assert (row["label"], row["tasks"]) == ("1_[2-49,51-99]", 97)
    await stand.desk.ask(ALICE, op="hold", select={"ids": [1]})
    (row,) = (await stand.look())["pending"]
    assert (row["state"], row["tasks"]) == ("HELD", 97)


async def test_tasks_that_wait_for_others_of_their_array_are_in_its_row(stand: Stand) -> None:
    await stand.desk.submit(ALICE, array="0-9%2", held=True)
    await stand.desk.ask(ALICE, op="release", select={"ids": ["1_3"]})
    await stand.desk.ask(ALICE, op="release", select={"ids": [1]})
    seen = await stand.look()
    assert sorted(row["label"] for row in seen["pending"]) == ["1_[1-2,4-9]"]
    assert seen["counts"] == {"STARTING": 2, "PENDING": 8}


async def test_each_sees_own_jobs_that_are_too_far_back_for_all(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "MOST_PENDING", 4)

    desk = stand.desk
    await desk.submit(ALICE, cores=9)
    for _ in range(6):
        await desk.submit(ALICE, cores=8)
    for _ in range(3):
        await desk.submit(BOB, cores=8)
    await desk.submit(BOB, held=True)
    await desk.submit(BOB, array="1-5", held=True)
    bobs, alices = await stand.look(BOB), await stand.look(ALICE)
    for seen in (bobs, alices):
        assert [row["label"] for row in seen["pending"]] == ["8", "9", "2", "10"]
        assert seen["pending_more"] == 7
    assert labels(bobs["mine"]) == [("12_[1-5]", "HELD"), ("11", "HELD")]
    assert [row["label"] for row in alices["mine"]] == ["3", "4", "5", "6"]
    assert (await stand.look(Actor("carol", 1003, False)))["mine"] == []


async def test_who_has_not_read_the_last_line_gets_no_other_and_then_the_newest(
    stand: Stand,
) -> None:
    asked = 0

    def has_read() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    slow, quick = stand.watch(ALICE, has_read), stand.watch(BOB)
    await slow.see()
    waiting = asyncio.ensure_future(slow.see())
    for number in range(3):
        stand.clock.now_s += 1
        await stand.desk.submit(ALICE, held=True)
        seen = await quick.see()
        assert seen["counts"] == {"HELD": number + 1}
        assert not waiting.done() or asked > 3
    stand.clock.now_s += 1
    await stand.desk.submit(ALICE, held=True)
    assert (await waiting)["counts"] == {"HELD": 4}
    for eye in (slow, quick):
        await eye.stream.aclose()


@dataclass
class Slow(Counting):
    """Takes so long for each look, and for each user."""

    clock: Clock = field(default_factory=Clock)
    takes_s: float = 0.2

    def common_part(self) -> tuple[CommonSnapshot, frozenset[int]]:
        self.clock.spent_s += self.takes_s
        return super().common_part()

    def own(self, user: str, shown: Container[int]) -> dict[int, Row]:
        self.clock.spent_s += 0.1
        return super().own(user, shown)


async def test_where_it_takes_long_it_is_worked_out_less_often(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon spends a fiftieth of a processor on it, and as much on what single users see."""
    monkeypatch.setattr(snapshots_module, "MOST_PENDING", 0)

    engine, requests = stand.desk.shell.engine, stand.desk.requests
    lookup = Lookup(engine, requests.meter)
    slow = Slow(engine, lookup, requests.curves, clock=stand.clock)
    stand.snapshots.overview = slow
    monkeypatch.setattr(snapshots_module, "MOST_PENDING", 2)
    for actor in (ALICE, BOB):
        await stand.desk.submit(actor, cores=9, held=True)
        await stand.desk.submit(actor, held=True)
        await stand.desk.submit(actor, held=True)
    users = [ALICE, BOB, Actor("carol", 1003, False), Actor("dora", 1004, False)]
    for _ in range(100):
        for user in users:
            line(stand.snapshots._line(user))
        stand.clock.now_s += 1
    # 0.2 s of work stand for 10 s of time.
    assert 9 <= slow.looks <= 11
    # A look every ten seconds pays for two users' rows, and nobody's are ever much older.
    assert 20 <= len(slow.owns) <= 44
    assert set(slow.owns) == {"alice", "bob", "carol", "dora"}


async def test_rows_that_are_shown_again_leave_out_what_does_not_wait_any_more(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "MOST_PENDING", 2)

    for _ in range(5):
        await stand.desk.submit(ALICE, held=True)
    eye = stand.watch(ALICE)
    assert [row["label"] for row in (await eye.see())["mine"]] == ["3", "4"]
    await stand.desk.ask(ALICE, op="cancel", select={"ids": [3]})
    stand.clock.now_s += 1
    common = stand.snapshots._compute_common(stand.clock.now_s)
    stand.snapshots._budget_s = -1.0
    _, rows = stand.snapshots._rows_of("alice", common, 0)
    assert [json.loads(row)["label"] for row in rows.values()] == ["4"]
    await eye.stream.aclose()
    assert stand.overview.owns == ["alice"]


async def test_a_shared_machine_is_seen_while_it_drains(stand: Stand) -> None:
    assert "drain" not in await stand.look()
    await stand.desk.ask(Actor("root", 0, True), op="drain", on=True, reason="disk swap")
    await stand.desk.submit(ALICE)
    await stand.desk.submit(BOB)
    seen = await stand.look()
    assert (seen["draining"], seen["drain"]["reason"]) == (True, "disk swap")
    assert [row["reason"]["code"] for row in seen["pending"]] == ["DRAINING"] * 2


async def test_what_was_cancelled_of_arrays_is_read_once(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a job ended while somebody watched, the records of up to fifty arrays were read,
    each of a megabyte if its cancelled tasks stood in very many ranges: for most of a second nobody
    else was heard."""
    read: list[int] = []
    original = Lookup.cancelled_of

    def counted(lookup: Lookup, array_id: int) -> Any:
        read.append(array_id)
        return original(lookup, array_id)

    monkeypatch.setattr(Lookup, "cancelled_of", counted)

    desk = stand.desk
    for array_id in (1, 12):
        assert await desk.submit(ALICE, array="0-9", held=True) == array_id
        await desk.ask(ALICE, op="cancel", select={"ids": [array_id + 3]})
        await desk.ask(ALICE, op="cancel", select={"ids": [array_id]})
    seen = await stand.look(BOB)
    groups = ["12_[0-1,3-9]", "1_[0-1,3-9]"]
    assert [each["label"] for each in seen["ended"] if each["tasks"] > 1] == groups
    assert sorted(read) == [1, 12]
    for _ in range(3):
        job_id = await desk.submit(ALICE, held=True)
        await desk.ask(ALICE, op="cancel", select={"ids": [job_id]})
        seen = await stand.look(BOB)
        assert job_id in [each["id"] for each in seen["ended"]]
    assert [each["label"] for each in seen["ended"] if each["tasks"] > 1] == groups
    assert sorted(read) == [1, 12]
