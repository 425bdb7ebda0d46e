"""Watchers: each sees all that everybody may see, as it is now; many cost little more than one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from daemon.desk import Desk
from drfd.core.amounts.resources import Resources
from drfd.core.model.stimuli import Actor
from drfd.daemon.lookup.lookup import Lookup, Row
from drfd.daemon.watching import snapshots as snapshots_module
from drfd.daemon.watching.snapshots import Overview, SnapshotFeed
from drfd.protocol.replies import CommonSnapshot
from fakes import attempt_started, now

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


async def test_a_snapshot_has_all_that_there_is_in_the_order_of_starts_and_held_ones_last(
    stand: Stand,
) -> None:
    desk = stand.desk
    await desk.submit(ALICE, held=True)
    await desk.submit(ALICE, cores=8)
    await desk.feed(attempt_started(2))
    await desk.submit(ALICE, cores=8)
    await desk.submit(ALICE, cores=8, priority=5)
    await desk.submit(BOB, cores=8)
    await desk.submit(BOB, after=[{"id": 5}])
    seen = await stand.look()
    assert labels(seen["running"]) == [("2", "RUNNING")]
    # Bob has less; a priority is among one's own; then who waits for others, and who is held.
    assert labels(seen["pending"]) == [
        ("5", "PENDING"), ("4", "PENDING"), ("3", "PENDING"), ("6", "PENDING"), ("1", "HELD")
    ]  # fmt: skip
    codes = {row["label"]: row["reason"]["code"] for row in seen["pending"]}
    assert codes == {
        "5": "RESOURCES", "4": "RESOURCES", "3": "RESOURCES", "6": "DEPENDENCY", "1": "HELD"
    }  # fmt: skip
    evidence = {row["label"]: row["reason"]["evidence"] for row in seen["pending"]}
    short = {"resource": "cores", "needed": 8, "free": 1}
    own = {"waits_for": "cores", "blocked_by": "job 2 (alice)", **short}
    assert {**evidence["3"], "until": None} == {**own, "until": None}
    assert evidence["6"] == {"waits_for": "job 5", "blocked_by": "bob"}
    assert seen["counts"] == {"HELD": 1, "RUNNING": 1, "PENDING": 4}
    assert (seen["user"], seen["mine"], seen["pending_more"]) == ("alice", [], 0)
    assert (seen["draining"], seen["ended"], seen["external"]) == (False, [], None)
    assert seen["capacity"]["cores"] == 9
    assert seen["free"]["cores"] == 1
    assert {node["path"]: node["running"] for node in seen["nodes"]} == {
        "root.alice": 1, "root.bob": 0
    }  # fmt: skip
    await desk.finish(2)
    seen = await stand.look()
    assert labels(seen["ended"]) == [("2", "COMPLETED")]
    assert labels(seen["running"]) == [("5", "STARTING")]


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


async def test_it_tells_whether_the_use_of_other_processes_counts(stand: Stand) -> None:
    engine = stand.desk.shell.engine
    for beside in (None, Resources(cores_milli=1000)):
        engine.rules = replace(engine.rules, beside=beside)
        assert (await stand.look())["external_off"] is (beside is None)


async def test_it_tells_who_may_change_the_jobs_of_others(stand: Stand) -> None:
    for admin in (False, True, False):
        seen = await stand.look(Actor("carol", 1003, admin))
        assert (seen["user"], seen["admin"]) == ("carol", admin)


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


async def test_many_watchers_have_it_worked_out_once_a_second(stand: Stand) -> None:
    eyes = [stand.watch(actor) for actor in (ALICE, BOB) for _ in range(50)]
    first = [await eye.see() for eye in eyes]
    assert (stand.overview.looks, stand.overview.owns) == (1, ["alice", "bob"])
    assert {each["at"] for each in first} == {now().at_s}
    stand.clock.now_s += 0.5
    late = stand.watch(ALICE)
    await late.see()
    assert stand.overview.looks == 1
    stand.clock.now_s += 0.5
    for eye in (*eyes, late):
        await eye.see()
    assert stand.overview.looks == 2
    for eye in (*eyes, late):
        await eye.stream.aclose()


async def test_nothing_is_kept_or_done_while_nobody_watches(stand: Stand) -> None:
    eye = stand.watch(ALICE)
    await stand.desk.submit(ALICE)
    assert labels((await eye.see())["ended"]) == []
    await eye.stream.aclose()
    assert (stand.snapshots._common, stand.snapshots._own) == (None, {})
    await stand.desk.finish(1)
    assert stand.overview.looks == 1
    # And yet who comes later misses nothing of it.
    later = stand.watch(ALICE)
    assert labels((await later.see())["ended"]) == [("1", "COMPLETED")]
    await later.stream.aclose()


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


async def test_nobody_is_shown_the_same_twice(stand: Stand) -> None:
    eye = stand.watch(ALICE)
    stand.snapshots.overview = Slow(
        stand.desk.shell.engine, stand.overview.lookup, stand.overview.curves,
        clock=stand.clock, takes_s=0.05,
    )  # fmt: skip
    await eye.see()
    # 0.05 s of work stand for 2.5 s of time.
    later = asyncio.ensure_future(eye.see())
    await asyncio.sleep(0)
    stand.clock.now_s += 1.0
    await asyncio.sleep(1.2)
    assert not later.done()
    stand.clock.now_s += 1.6
    await later
    assert stand.snapshots.overview.looks == 2
    await eye.stream.aclose()


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
