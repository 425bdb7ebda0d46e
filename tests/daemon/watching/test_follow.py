"""Listeners: each hears the last state of every job that it is about, and none costs the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from daemon.desk import Desk
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.stimuli import Actor
from drfd.daemon.watching import follow as follow_module
from drfd.daemon.watching.follow import EventFeed
from drfd.protocol import requests as msg
from drfd.protocol.requests import Selection

ALICE = Actor("alice", 1001, False)
BOB = Actor("bob", 1002, False)


@pytest.fixture
def feed(desk: Desk) -> Iterator[EventFeed]:
    feed = EventFeed(desk.shell.engine, desk.requests.meter)
    yield feed
    assert feed._listeners == {}, "somebody left and is still listened for"


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


async def test_nobody_hears_of_others_unless_they_ask_and_then_only_what_all_may_know(
    desk: Desk, feed: EventFeed
) -> None:
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


async def test_a_stream_about_ids_ends_when_they_have_ended(desk: Desk, feed: EventFeed) -> None:
    await desk.submit(ALICE)
    await desk.submit(ALICE, held=True)
    ear = Ear(feed, ALICE, ids=[1, 2])
    assert told(await ear.hear()) == [(1, "STARTING"), (2, "HELD")]
    await desk.finish(1)
    assert told(await ear.hear()) == [(1, "COMPLETED")]
    await desk.ask(ALICE, op="cancel", select={"ids": [2]})
    assert told(await ear.hear()) == [(2, "CANCELLED")]
    with pytest.raises(EOFError):
        await ear.hear()


async def test_who_is_far_behind_reads_the_journal_page_by_page(
    desk: Desk, feed: EventFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_MOST_CHANGED", 5)
    monkeypatch.setattr(follow_module, "_PAGE", 7)

    ear = Ear(feed, ALICE)
    await ear.hear()
    for _ in range(20):
        await desk.submit(ALICE, held=True)
    await desk.ask(ALICE, op="cancel", select={"everything": True})
    (listener,) = feed._listeners["alice"]
    assert len(listener.changed) <= 5
    heard: dict[int, str] = {}
    while len([state for state in heard.values() if state == "CANCELLED"]) < 20:
        heard |= dict(told(await ear.hear()))
    assert heard == dict.fromkeys(range(1, 21), "CANCELLED")
    await ear.leave()


async def test_an_array_is_told_as_lists_show_it(desk: Desk, feed: EventFeed) -> None:
    whole, task = Ear(feed, ALICE), None
    await whole.hear()
    await desk.submit(ALICE, array="0-9", held=True)
    (row,) = await whole.hear()
    assert (row["id"], row["tasks"], row["state"]) == (1, 10, "HELD")
    task = Ear(feed, ALICE, ids=["1_3"])
    assert told(await task.hear()) == [(5, "HELD")]
    await desk.ask(ALICE, op="cancel", select={"ids": [1]})
    assert told(await task.hear()) == [(5, "CANCELLED")]
    (row,) = await whole.hear()
    assert (row["tasks"], row["state"]) == (10, "CANCELLED")
    # And to who comes later, or comes back.
    back = Ear(feed, ALICE, ids=["1_3"], after=0)
    assert told(await back.hear()) == [(5, "CANCELLED")]
    for ear in (whole, task, back):
        await ear.leave()


async def test_a_change_is_noted_once_for_each_whom_it_concerns_and_for_nobody_else(
    desk: Desk, feed: EventFeed
) -> None:
    """However often it happens before they are told, and whoever else listens."""
    job_id = await desk.submit(ALICE, held=True)
    job = desk.shell.engine.ledger.jobs[job_id]
    ears = [Ear(feed, Actor(f"user{n}", 2000 + n, False)) for n in range(200)]
    ears += [Ear(feed, ALICE) for _ in range(200)]
    for ear in ears:
        await ear.hear()
    for _ in range(10):
        feed.job_changed(job)
    listeners = [each for some in feed._listeners.values() for each in some]
    assert sum(len(each.changed) for each in listeners) == 200
    for ear in ears:
        await ear.leave()


async def test_what_has_ended_of_many_is_not_looked_at_again_with_every_change(
    desk: Desk, feed: EventFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of streams about as many jobs as can be named are open to everybody."""
    await desk.submit(ALICE, array="0-499", held=True)
    await desk.ask(ALICE, op="cancel", select={"ids": [1]})
    last = await desk.submit(ALICE, held=True)
    ear = Ear(feed, ALICE, ids=[*range(2, 502), last], after=feed.engine.journal.mark())
    assert await ear.hear() == []
    looks = 0
    has_ended = follow_module.has_ended

    def counted(job_id: int, ledger: Ledger) -> bool:
        nonlocal looks
        looks += 1
        return has_ended(job_id, ledger)

    monkeypatch.setattr(follow_module, "has_ended", counted)
    for priority in range(1, 11):
        hearing = asyncio.create_task(ear.hear())
        # It has told all there is, and waits.
        await asyncio.sleep(0.01)
        await desk.ask(ALICE, op="set", select={"ids": [last]}, priority=priority)
        assert told(await hearing) == [(last, "HELD")]
    assert looks <= 501 + 10
    await desk.ask(ALICE, op="cancel", select={"ids": [last]})
    assert told(await ear.hear()) == [(last, "CANCELLED")]
    with pytest.raises(EOFError):
        await ear.hear()


async def test_what_does_not_exist_is_refused(desk: Desk, feed: EventFeed) -> None:
    for wrong in (7, "7_1"):
        with pytest.raises(Exception, match="there is no"):
            await Ear(feed, ALICE, ids=[wrong]).hear()


async def test_an_end_during_the_first_look_is_told_once(desk: Desk, feed: EventFeed) -> None:
    await desk.submit(ALICE, array="0-1")
    await desk.submit(ALICE)
    stream = feed.stream(ALICE, msg.EventsRequest(v=1, select=Selection(ids=[1, 4])))
    await anext(stream)
    # The stream listens, and has not looked at the jobs yet.
    await desk.finish(2)
    await desk.finish(4)
    heard = [view["event"] for view in await anext(stream) if "event" in view]
    await desk.finish(3)
    async for views in stream:
        heard += [view["event"] for view in views if "event" in view]
    assert sorted(told(heard)) == [
        (2, "COMPLETED"),
        (3, "COMPLETED"),
        (3, "STARTING"),
        (4, "COMPLETED"),
    ]


class NeverWalked(dict[Any, Any]):
    """What may be very long, and is only to be looked up in."""

    def __iter__(self) -> Any:
        raise AssertionError("all of them were looked at")

    keys = values = items = __iter__  # type: ignore[assignment]


async def test_a_change_of_an_array_costs_nothing_for_those_who_listen_for_others(
    desk: Desk, feed: EventFeed
) -> None:
    """All ids that anybody listened for were looked at, up to 200,000 of each user, for each change
    of any array: a tenth of a second, in which nobody else was heard."""
    feed._listeners = NeverWalked()
    first = await desk.submit(ALICE, array="0-9", held=True)
    other = await desk.submit(ALICE, array="0-9", held=True)
    ear = Ear(feed, ALICE, ids=[first + 3, first + 5, other + 2])
    assert len(await ear.hear()) == 3
    await desk.ask(ALICE, op="set", select={"ids": [other]}, priority=3)
    assert told(await ear.hear()) == [(other + 2, "HELD")]
    await desk.ask(ALICE, op="set", select={"ids": [first]}, priority=7)
    assert sorted(told(await ear.hear())) == [(first + 3, "HELD"), (first + 5, "HELD")]
    await ear.leave()
