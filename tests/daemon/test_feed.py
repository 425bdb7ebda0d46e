"""Listeners: each hears the last state of every job that it is about, and none costs the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from drfd.core.job import Job
from drfd.core.stimuli import Actor
from drfd.daemon import feed as feed_module
from drfd.daemon.feed import Feed
from drfd.wire import messages as msg
from drfd.wire.parts import Selection
from drfd.wire.views import View

ALICE = Actor("alice", 1001, False)
BOB = Actor("bob", 1002, False)
ROOT = Actor("root", 0, True)

Story = Callable[[Any, Feed], Coroutine[Any, Any, None]]


@pytest.fixture
def play(make_desk: Callable[..., Any]) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def whole() -> None:
            desk = make_desk()
            feed = Feed(desk.shell.engine, desk.requests.meter)
            before = desk.shell.engine.on_change

            def job_changed(job: Any) -> None:
                before(job)
                feed.job_changed(job)

            desk.shell.engine.on_change = job_changed
            async with asyncio.timeout(60):
                await story(desk, feed)
            assert feed._listeners == {}, "somebody left and is still listened for"
            desk.shell.host.take()

        asyncio.run(whole())

    return run


class Ear:
    """A stream that is read as far as a test wants."""

    def __init__(
        self, feed: Feed, actor: Actor, *, after: int | None = None, **select: Any
    ) -> None:
        request = msg.Events(v=1, select=Selection(**select), after=after)
        self._stream = feed.tell(actor, request)
        #: Two come before the first change: at once, and when all has been told that there was.
        self.mark = -1
        self._marks = 0

    async def hear(self) -> list[View]:
        """What is told until the next mark."""
        heard: list[View] = []
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


def told(views: list[View]) -> list[tuple[int, str]]:
    return [(view["id"], view["state"]) for view in views]


def test_first_comes_what_there_is_and_then_what_changes(play: Any) -> None:
    async def story(desk: Any, feed: Feed) -> None:
        await desk.submit(ALICE, held=True)
        ear = Ear(feed, ALICE)
        assert told(await ear.hear()) == [(1, "HELD")]
        await desk.ask(ALICE, op="release", select={"ids": [1]})
        assert told(await ear.hear()) == [(1, "STARTING")]
        await desk.finish(1)
        # Four changes, and one who reads slowly: the last of them counts.
        assert told(await ear.hear()) == [(1, "COMPLETED")]
        await ear.leave()

    play(story)


def test_nobody_hears_of_others_unless_they_ask_and_then_only_what_all_may_know(play: Any) -> None:
    async def story(desk: Any, feed: Feed) -> None:
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

    play(story)


def test_a_stream_about_ids_ends_when_they_have_ended(play: Any) -> None:
    async def story(desk: Any, feed: Feed) -> None:
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

    play(story)


def test_a_stream_goes_on_from_a_mark_with_all_that_has_changed_since(play: Any) -> None:
    async def story(desk: Any, feed: Feed) -> None:
        for _ in range(3):
            await desk.submit(ALICE)
        ear = Ear(feed, ALICE)
        await ear.hear()
        await ear.leave()
        await desk.finish(2)
        await desk.submit(BOB)
        later = Ear(feed, ALICE, after=ear.mark)
        assert told(await later.hear()) == [(2, "COMPLETED")]
        await later.leave()
        # A mark of some other journal: all that lives.
        strange = Ear(feed, ALICE, after=10**9)
        assert told(await strange.hear()) == [(1, "STARTING"), (3, "STARTING")]
        await strange.leave()

    play(story)


def test_who_is_far_behind_reads_the_journal_page_by_page(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_MOST_CHANGED", 5)
    monkeypatch.setattr(feed_module, "_PAGE", 7)

    async def story(desk: Any, feed: Feed) -> None:
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

    play(story)


def test_an_array_is_told_as_lists_show_it(play: Any) -> None:
    async def story(desk: Any, feed: Feed) -> None:
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

    play(story)


def test_two_hundred_listeners_cost_little_and_those_of_others_nothing(play: Any) -> None:
    """A change is noted only where it concerns somebody, whoever else listens."""

    async def story(desk: Any, feed: Feed) -> None:
        job_id = await desk.submit(ALICE, held=True)
        job = desk.shell.engine.ledger.jobs[job_id]
        ears = [Ear(feed, Actor(f"user{n}", 2000 + n, False)) for n in range(200)]
        ears += [Ear(feed, ALICE) for _ in range(200)]
        for ear in ears:
            await ear.hear()
        begin = time.perf_counter()
        for _ in range(1000):
            feed.job_changed(job)
        took_s = time.perf_counter() - begin
        listeners = [each for some in feed._listeners.values() for each in some]
        assert sum(len(each.changed) for each in listeners) == 200
        # 200,000 notes; a look at a job for each of them would take ten times as long.
        assert took_s < 5
        for ear in ears:
            await ear.leave()

    play(story)


def test_who_finds_nothing_lets_others_have_their_turn_all_the_same(play: Any) -> None:
    """A whole journal that is looked through for what is not in it must not stop the daemon."""

    async def story(desk: Any, feed: Feed) -> None:
        for _ in range(30):
            await desk.submit(ALICE, held=True)
        await desk.ask(ALICE, op="cancel", select={"everything": True})
        looked = most = 0
        look = feed._lookup.any_job

        def counted(job_id: int) -> Job:
            nonlocal looked, most
            looked += 1
            most = max(most, looked)
            return look(job_id)

        async def others() -> None:
            nonlocal looked
            while True:
                looked = 0
                await asyncio.sleep(0)

        feed._lookup.any_job = counted  # type: ignore[method-assign]
        beside = asyncio.create_task(others())
        ear = Ear(feed, ALICE, user="nobody", after=0)
        assert await ear.hear() == []
        beside.cancel()
        await ear.leave()
        assert 0 < most <= 5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_module, "_AT_ONCE", 5)
        play(story)


def test_what_has_ended_of_many_is_not_looked_at_again_with_every_change(play: Any) -> None:
    """Hundreds of streams about as many jobs as can be named are open to everybody."""

    async def story(desk: Any, feed: Feed) -> None:
        await desk.submit(ALICE, array="0-499", held=True)
        await desk.ask(ALICE, op="cancel", select={"ids": [1]})
        last = await desk.submit(ALICE, held=True)
        ear = Ear(feed, ALICE, ids=[*range(2, 502), last], after=feed.engine.journal.mark())
        assert await ear.hear() == []
        looks = 0
        has_ended = feed._waiting.has_ended

        def counted(job_id: int) -> bool:
            nonlocal looks
            looks += 1
            return has_ended(job_id)

        feed._waiting.has_ended = counted  # type: ignore[method-assign]
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

    play(story)


def test_what_does_not_exist_is_refused(play: Any) -> None:
    async def story(desk: Any, feed: Feed) -> None:
        for wrong in (7, "7_1"):
            with pytest.raises(Exception, match="there is no"):
                await Ear(feed, ALICE, ids=[wrong]).hear()

    play(story)


def test_a_mark_comes_first_so_that_a_line_that_is_lost_at_once_loses_no_end(play: Any) -> None:
    async def story(desk: Any, feed: Feed) -> None:
        await desk.submit(ALICE)
        await desk.submit(ALICE, held=True)
        first = feed.tell(ALICE, msg.Events(v=1))
        ((mark,),) = [await anext(first)]
        await first.aclose()
        await desk.finish(1)
        again = feed.tell(ALICE, msg.Events(v=1, after=mark["mark"], standing=True))
        heard: list[View] = []
        while len(heard) < 2:
            heard += [view["event"] for view in await anext(again) if "event" in view]
        assert told(heard) == [(2, "HELD"), (1, "COMPLETED")]
        await again.aclose()

    play(story)
