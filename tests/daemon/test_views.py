"""What clients see: the JSON of jobs, shares and events, streams of changes, and snapshots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from daemon.desk import Desk
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import (
    Actor,
    Dependency,
    Job,
    JobState,
    Outcome,
    RequiredOutcome,
    Retry,
    Tasks,
    Warn,
)
from drfd.core.model.resources import Axes
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.waits import HeldBy, Holder, ResourceShortage, Shortfall, TooLittleFree
from drfd.daemon.lookup import rows as rows_module
from drfd.daemon.lookup import snapshots as snapshots_module
from drfd.daemon.lookup import views as views_module
from drfd.daemon.lookup.follow import EventFeed
from drfd.daemon.lookup.lookup import Lookup, place_of
from drfd.daemon.lookup.snapshots import Overview, SnapshotFeed
from drfd.daemon.lookup.views import (
    conditions_view,
    demand_view,
    event_view,
    exit_status,
    reason_view,
    resources_view,
    shares_view,
    wait_view,
)
from drfd.daemon.users import turns
from drfd.daemon.users.quotas import quota_uid
from drfd.protocol import requests as msg
from drfd.protocol.replies import CommonSnapshot
from drfd.protocol.requests import Selection
from fakes import ALICE, BOB, GIB, demand, happened, launched, now, replace, rules, spec

# -- the JSON has these keys, and no others ----------------------------------------------------


@pytest.mark.parametrize(
    ("found", "evidence"),
    [
        (HeldBy("alice", "42"), {"waits_for": "release", "blocked_by": "alice"}),
        (
            TooLittleFree((Shortfall(
                ResourceShortage("cores", 1500, 0), (Holder("2", "bob", 9000, 3800.5),)
            ),)),
            {
                "waits_for": "cores", "blocked_by": "job 2 (bob)", "resource": "cores",
                "needed": 1.5, "free": 0, "until": 3800.5,
            },
        ),
        (
            TooLittleFree((Shortfall(ResourceShortage("memory", 2 * GIB, GIB)),)),
            {"waits_for": "memory", "resource": "memory", "needed": 2 * GIB, "free": GIB},
        ),
    ],
)  # fmt: skip
def test_evidence_has_only_keys_that_apply(found, evidence):
    reason = found
    told = reason_view(reason)
    assert told is not None
    assert wait_view(reason) == {**told, "evidence": evidence}
    assert wait_view(None) is None


def test_a_demand_has_the_upper_end_of_its_range():
    asks = demand(2, read=10)
    assert demand_view(spec(asks=asks)) == resources_view(asks)
    shown = {**resources_view(asks), "cores_max": 7.5}
    assert demand_view(spec(asks=asks, cores_max_milli=7500)) == shown
    asks = replace(demand(2), disks=(("data", 10, 20), ("root", 0, 5)))
    shown = resources_view(asks)
    assert (shown["read"], shown["write"]) == (10, 25)
    assert shown["disks"] == {"data": {"read": 10, "write": 20}, "root": {"read": 0, "write": 5}}


# -- shares ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "exit_code", "signal", "status"),
    [
        (Outcome.COMPLETED, 0, None, 0), (Outcome.FAILED, 1, None, 1),
        (Outcome.FAILED, 255, None, 255), (Outcome.FAILED, None, 11, 139),
        (Outcome.FAILED, None, 9, 137), (Outcome.CANCELLED, None, 15, 143),
        (Outcome.CANCELLED, None, 9, 137), (Outcome.CANCELLED, 7, None, 7),
        (Outcome.CANCELLED, None, None, 125), (Outcome.TIMEOUT, None, 15, 124),
        (Outcome.TIMEOUT, 0, None, 124), (Outcome.TIMEOUT, None, None, 124),
        (Outcome.OUT_OF_MEMORY, None, 9, 137), (Outcome.OUT_OF_MEMORY, 1, None, 137),
        (Outcome.LIMIT_EXCEEDED, None, 15, 143), (Outcome.LAUNCH_FAILED, None, None, 125),
        (Outcome.LOST, None, None, 125),
    ],
)  # fmt: skip
def test_exit_status(outcome, exit_code, signal, status):
    """docs/reference.md: its own code, 128+n, 124: timeout, 137: out of memory, 125: never ran."""
    job = Job(
        id=1, spec=spec(), submitted_at=0.0, state=JobState.ENDED, outcome=outcome,
        exit_code=exit_code, signal=signal,
    )  # fmt: skip
    assert exit_status(job) == status


AT_S = now().at_s
FAILED = ev.Settled(on=7, outcome=Outcome.FAILED, is_met=False)
EVENTS: list[tuple[ev.Event, str]] = [
    (happened(ev.Submitted), ""),
    (happened(ev.Held), "by alice"),
    (happened(ev.Released, by="root"), "by root"),
    (happened(ev.Cancelled), "by alice"),
    (happened(ev.Admitted, attempt=2), "attempt 2"),
    (happened(ev.Admitted, attempt=2, why=ev.StartReason.TURN), "attempt 2"),
    (happened(ev.Admitted, attempt=2, why=ev.StartReason.RESERVATION),
     "attempt 2, in the room reserved for it"),
    (happened(ev.Admitted, attempt=2, why=ev.StartReason.BACKFILL),
     "attempt 2, beside a reservation that it does not delay"),
    (ev.ArraySubmitted(array_id=1, at_s=AT_S, spec=spec(), at_once=None,
                       spans=((0, 9, 3), (10, 10, 1))), "5 tasks"),
    (happened(ev.Launched), ""),
    (happened(ev.LaunchFailed), "no such file"),
    (happened(ev.StopRequested, outcome=Outcome.TIMEOUT, text="ran for 1h"), "ran for 1h"),
    (happened(ev.PreemptRequested), "stopped for job 2"),
    (happened(ev.Escalated), ""),
    (happened(ev.Exited), "exit code 0"),
    (happened(ev.Cleaned), ""),
    (happened(ev.Cleaned, notice="told"), "notification told"),
    (happened(ev.Requeued), ""),
    (happened(ev.SuspendRequested), "suspended by alice"),
    (happened(ev.SuspendRequested, by=None, text="suspended for job 2"), "suspended for job 2"),
    (happened(ev.Suspended), ""),
    (happened(ev.ResumeRequested, by="root"), "by root"),
    (happened(ev.Resumed), ""),
    (happened(ev.DependencySettled, ends=(FAILED,)), "job 7 ended FAILED"),
    (happened(ev.DependencySettled, ends=(FAILED, *(
        ev.Settled(on=on, outcome=Outcome.COMPLETED, is_met=True) for on in range(8, 20)
    ))),
     ", ".join(["job 7 ended FAILED", *(f"job {on} ended COMPLETED" for on in range(8, 17))])
     + ", and 3 more have ended"),
    (happened(ev.BeginReached), ""),
    (happened(ev.Retried, attempt=2), "after attempt 2"),
    (happened(ev.LaunchPostponed), "the machine is short of processes"),
    (happened(ev.Warned), "the time limit is near: SIGUSR1 sent"),
    (happened(ev.SignalRequested, signal=40, by="bob"), "signal 40, by bob"),
    (happened(ev.Altered, by="bob", text="priority 3 → 4"), "priority 3 → 4, by bob"),
    (ev.Drained(at_s=AT_S, on=True, by="root"), "by root"),
    (ev.IdsRaised(at_s=AT_S, next_id=9), ""),
]  # fmt: skip


@pytest.mark.parametrize(("event", "text"), EVENTS, ids=lambda case: type(case).__name__)
def test_an_event_is_shown_as_time_kind_and_words(event, text):
    assert {type(event).__name__ for event, _ in EVENTS} == set(ev.KINDS)
    name = type(event).__name__.replace("Altered", "Changed")
    assert event_view(event) == {"at": AT_S, "event": name, "text": text}


def test_what_was_said_of_start_and_retries_is_shown():
    job = Job(
        id=1,
        spec=spec(
            after=(Dependency(3), Dependency(4, RequiredOutcome.ANY)), begin_s=7,
            retry=Retry(2, (Outcome.FAILED,)), warn=Warn(40, 60),
        ),
        submitted_at=0.0, attempt=1, retries=1, last_end="attempt 1 ended FAILED (exit code 3)",
    )  # fmt: skip
    assert conditions_view(job, lambda job_id: f"job {job_id}") == {
        "after": [
            {"id": 3, "label": "job 3", "want": "ok"}, {"id": 4, "label": "job 4", "want": "any"},
        ],
        "begin_at": 7, "retry": {"times": 2, "on": ["FAILED"], "done": 1},
        "warn": {"signal": "signal 40", "before_s": 60},
        "attempts": "attempt 2 of 3; attempt 1 ended FAILED (exit code 3)", "if_never": "keep",
    }  # fmt: skip


def test_shares_tell_of_load_from_outside_and_leave_it_less_free():
    load = ExternalLoad(used=demand(3, 6), kept=demand(2, 0), until_s=0.0)
    view = shares_view(Ledger(Axes()), rules(9, 18), load)
    assert view["free"]["cores"] == 7
    assert view["external"] == {
        "cores": 3, "memory": 6 << 30, "kept": {"cores": 2, "memory": 0}
    }  # fmt: skip
    assert view["capacity"]["cores"] == 9
    assert "external" not in shares_view(Ledger(Axes()), rules(9, 18))


# -- listeners: each hears the last state of every job that it is about ------------------------


@pytest.fixture
def feed(desk) -> Iterator[EventFeed]:
    feed = EventFeed(desk.shell.engine, desk.requests.meter)
    yield feed
    assert feed.listeners == {}, "somebody left and is still listened for"


class Ear:
    """A stream that is read as far as a test wants."""

    def __init__(
        self, feed: EventFeed, actor: Actor, *, after: int | None = None, **select: Any
    ) -> None:
        request = msg.EventsRequest(v=1, select=Selection(**select), after=after)
        self._stream = feed.stream(actor, request)
        #: Two come before the first change: at once, and when all has been told that there was.
        self.mark = -1
        self._marks = 0

    async def hear(self) -> list[Any]:
        """What is told until the next mark."""
        heard: list[Any] = []
        async for views in self._stream:
            for view in views:
                if "mark" in view:
                    self.mark = view["mark"]
                    self._marks += 1
                    if self._marks > 1:
                        return heard
                    continue
                heard.append(view["event"])
        raise EOFError(heard)

    async def leave(self) -> None:
        await self._stream.aclose()


def told(views: list[Any]) -> list[tuple[int, str]]:
    return [(view["id"], view["state"]) for view in views]


async def test_who_does_not_ask_hears_of_no_others(desk, feed):
    own, all_of_them, bobs = Ear(feed, ALICE), Ear(feed, ALICE, everything=True), Ear(feed, BOB)
    for ear in (own, all_of_them, bobs):
        assert await ear.hear() == []
    await desk.submit(BOB, held=True, stdout="secret")
    (public,) = await all_of_them.hear()
    (private,) = await bobs.hear()
    assert (public["argv"], public["cwd"], public["stdout"]) == (None, None, None)
    assert (private["argv"], private["cwd"]) == (["true"], "/home")
    await desk.submit(ALICE, held=True)
    assert told(await own.hear()) == [(2, "HELD")]
    for ear in (own, all_of_them, bobs):
        await ear.leave()


async def test_an_array_is_told_as_lists_show_it(desk, feed):
    whole, task = Ear(feed, ALICE), None
    await whole.hear()
    await desk.submit(ALICE, array="0-9", held=True)
    (row,) = await whole.hear()
    assert (row["id"], row["tasks"], row["state"]) == (1, 10, "HELD")
    task = Ear(feed, ALICE, ids=["1_3"])
    assert told(await task.hear()) == [(5, "HELD")]
    named = Ear(feed, ALICE, ids=[1, "1_3"])
    await named.hear()
    await desk.ask(ALICE, op="set", select={"ids": ["1_3"]}, name="x")
    await desk.ask(ALICE, op="set", select={"ids": [1]}, priority=3)
    for ear, ids in ((task, [5]), (named, range(2, 12)), (whole, range(2, 12))):
        assert sorted(row["id"] for row in await ear.hear()) == [*ids], "each is told once"
    await named.leave()
    await desk.ask(ALICE, op="cancel", select={"ids": [1]})
    assert told(await task.hear()) == [(5, "CANCELLED")]
    assert told(await whole.hear()) == [(each, "CANCELLED") for each in range(2, 12)]
    # And to who comes later, or comes back.
    back = Ear(feed, ALICE, ids=["1_3"], after=0)
    assert told(await back.hear()) == [(5, "CANCELLED")]
    for ear in (whole, task, back):
        await ear.leave()


async def test_what_does_not_exist_is_refused(desk, feed):
    for wrong in (7, "7_1"):
        with pytest.raises(Exception, match="there is no"):
            await Ear(feed, ALICE, ids=[wrong]).hear()


async def test_ends_come_in_their_order_though_the_stream_waits_for_its_turn(desk, feed):
    ear = Ear(feed, ALICE)
    await ear.hear()
    async with feed.turns.next(quota_uid(ALICE)):
        await desk.submit(ALICE)
        await desk.submit(ALICE)
        hearing = asyncio.ensure_future(ear.hear())
        for _ in range(10):
            await asyncio.sleep(0)
        # The stream knows that both have changed, and has not looked at them.
        await desk.finish(2)
        await desk.finish(1)
    assert told(await hearing) == [(2, "COMPLETED"), (1, "COMPLETED")]
    await ear.leave()


async def test_an_end_during_the_first_look_is_told_once(desk, feed):
    await desk.submit(ALICE, array="0-1")
    await desk.submit(ALICE)
    stream = feed.stream(ALICE, msg.EventsRequest(v=1, select=Selection(ids=[1, 3, 4])))
    await anext(stream)
    # The stream listens, and has not looked at the jobs yet.
    await desk.finish(2)
    await desk.finish(4)
    heard: list[Any] = []
    while len(heard) < 3:  # a look may take several parts
        heard += [view["event"] for view in await anext(stream) if "event" in view]
    await desk.finish(3)
    async for views in stream:
        heard += [view["event"] for view in views if "event" in view]
    assert sorted(told(heard)) == [
        (2, "COMPLETED"), (3, "COMPLETED"), (3, "STARTING"), (4, "COMPLETED"),
    ]  # fmt: skip


# -- watchers: each sees all that everybody may see, as it is now ------------------------------


@dataclass
class Counting(Overview):
    """An overview that counts how often it is worked out."""

    looks: int = 0
    owns: list[str] = field(default_factory=list)

    async def common_part(self) -> tuple[CommonSnapshot, frozenset[int]]:
        self.looks += 1
        return await super().common_part()

    async def ids(self, user: str | None = None, shown: Collection[int] = ()) -> list[int]:
        self.owns += [] if user is None else [user]
        return await super().ids(user, shown)


@dataclass
class Clock:
    """Time as watchers see it."""

    now_s: float = 100.0


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
def stand(desk) -> Stand:
    engine, clock = desk.shell.engine, Clock()
    lookup = Lookup(engine, desk.requests.meter)
    overview = Counting(engine, lookup, desk.requests.curves)
    snapshots = SnapshotFeed(overview, lambda: clock.now_s)
    return Stand(desk, overview, snapshots, clock)


def labels(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["label"], row["state"]) for row in rows]


async def test_nothing_in_it_is_only_for_its_owner(stand):
    words = {"argv": ["secret"], "cwd": "/secret", "stdout": "secret", "stderr": "secret"}
    words["name"] = "plain"
    asked = {"env": {"SECRET": "secret"}, "script": "#!/bin/sh\nsecret\n", **words}
    for more in ({}, {"held": True}, {"array": "1-3"}, {"cores": 9}):
        await stand.desk.submit(BOB, **asked, **more)
    await stand.desk.feed(launched(1))
    await stand.desk.finish(1, exit_code=3)
    await stand.desk.submit(BOB, **asked)
    for actor in (ALICE, BOB):
        seen = await stand.look(actor)
        assert seen["running"] and seen["pending"] and seen["ended"]
        assert "secret" not in json.dumps(seen)
    assert (seen["ended"][0]["outcome"], seen["ended"][0]["exit_code"]) == ("FAILED", 3)


async def test_waiting_tasks_of_an_array_are_one_row_and_counted_singly(stand):
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


async def test_each_sees_own_jobs_that_are_too_far_back_for_all(stand, monkeypatch):
    monkeypatch.setattr(rows_module, "MOST_PENDING", 4)
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
    assert labels(bobs["mine"]) == [("11", "HELD"), ("12_[1-5]", "HELD")]
    assert [row["label"] for row in alices["mine"]] == ["3", "4", "5", "6"]
    assert (await stand.look(Actor("carol", 1003, False)))["mine"] == []


async def test_an_overview_is_made_in_parts_and_once_for_all_who_wait_for_it(stand, monkeypatch):
    """One of 2,000 jobs of unlike demands was made in one step of ten seconds."""
    monkeypatch.setattr(turns, "PART_S", 0.0)
    for cores in range(10):
        await stand.desk.submit(ALICE, cores=8 + cores / 100)
    looks = [asyncio.ensure_future(stand.look(actor)) for actor in (ALICE, BOB)]
    rounds = 0
    while not all(each.done() for each in looks):
        await asyncio.sleep(0)
        rounds += 1
    assert rounds > 10
    assert [len((await each)["pending"]) for each in looks] == [9, 9]
    assert stand.overview.looks == 1
    await stand.look()
    assert stand.overview.looks == 2


async def test_what_happens_to_tasks_while_they_are_listed_hides_none(desk):
    lookup = Lookup(desk.shell.engine, desk.requests.meter)
    for _ in range(3):
        await desk.submit(ALICE, array="0-1", held=True)
    rows = lookup.rows(msg.Selection())
    assert place_of(await anext(rows)) == (2, True)
    await desk.ask(ALICE, op="release", select={"ids": [4]})
    await desk.ask(ALICE, op="cancel", select={"ids": [7]})
    assert [place_of(row) async for row in rows] == [(5, False), (6, False)]


async def test_pages_of_an_array_and_of_one_of_its_tasks_have_all_rows(desk, monkeypatch):
    monkeypatch.setattr(views_module, "FULL_BYTES", 40_000)
    await desk.submit(ALICE, array="0-29", held=True, stdout="o" * 4000, stderr="e" * 4000)
    for index in range(30):
        await desk.ask(ALICE, op="cancel", select={"ids": [f"1_{index}"]})
    found, after = list[int](), None
    while not found or after is not None:
        page = {} if after is None else {"after": after}
        reply = await desk.ask(ALICE, op="status", select={"ids": [1, "1_0"]}, limit=100, **page)
        found, after = found + [row["id"] for row in reply["jobs"]], reply["after"]
    assert found == [2, *range(12, 32)]


async def test_a_row_of_an_array_that_has_ended_since_has_no_reason(desk):
    """The list ended without an answer."""
    lookup = Lookup(desk.shell.engine, desk.requests.meter)
    await desk.submit(ALICE, array="0-1", cores=9)
    await desk.submit(ALICE, array="0-1%1", cores=9)
    waiting = [row async for row in lookup.rows(msg.Selection()) if isinstance(row, Tasks)]
    await desk.ask(ALICE, op="cancel", select={"ids": [4]})
    assert lookup.view(waiting[-1], ALICE)["reason"] is None


async def test_who_has_not_read_the_last_line_gets_no_other_and_then_the_newest(stand, monkeypatch):
    monkeypatch.setattr(snapshots_module, "POLL_S", 0.005)
    has_read = False
    slow, quick = stand.watch(ALICE, lambda: has_read), stand.watch(BOB)
    await slow.see()
    waiting = asyncio.ensure_future(slow.see())
    for number in range(3):
        stand.clock.now_s += 1
        await stand.desk.submit(ALICE, held=True)
        seen = await quick.see()
        assert seen["counts"] == {"HELD": number + 1}
        assert not waiting.done()
    stand.clock.now_s += 1
    await stand.desk.submit(ALICE, held=True)
    assert not waiting.done()
    has_read = True
    assert (await waiting)["counts"] == {"HELD": 4}
    for eye in (slow, quick):
        await eye.stream.aclose()
