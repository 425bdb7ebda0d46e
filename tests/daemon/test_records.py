"""What is asked of jobs that are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from drfd.errors import Refused
from fakes import ADMIN, ALICE, BOB


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())


async def history(desk: Any, actor: Any, **fields: Any) -> list[int]:
    return [job["id"] for job in (await desk.ask(actor, op="history", **fields))["jobs"]]


def test_ended_jobs_are_told_to_anyone_newest_first_and_private_words_to_their_owner(
    desk: Any,
) -> None:
    async def story() -> None:
        for at, actor in enumerate((ALICE, BOB, ALICE), 1):
            await desk.finish(await desk.submit(actor), at_s=1_700_000_000.0 + at)
        await desk.submit(ALICE, held=True)
        jobs = (await desk.ask(BOB, op="history"))["jobs"]
        assert [(job["id"], job["argv"]) for job in jobs] == [(3, None), (2, ["true"]), (1, None)]
        assert all(job["used"]["memory_peak"] is None for job in jobs)
        theirs = (await desk.ask(ADMIN, op="history"))["jobs"]
        assert [job["argv"] for job in theirs] == [["true"]] * 3

    play(story)


def test_a_page_says_where_the_next_one_begins(desk: Any) -> None:
    async def story() -> None:
        for _ in range(5):
            await desk.finish(await desk.submit(ALICE))
        found, after = [], None
        for _ in range(3):
            page = await desk.ask(ALICE, op="history", limit=2, after=after)
            found.append([job["id"] for job in page["jobs"]])
            after = page["after"]
        assert (found, after) == ([[5, 4], [3, 2], [1]], None)

    play(story)


def test_what_is_asked_for_is_what_comes(desk: Any) -> None:
    async def story() -> None:
        await desk.finish(await desk.submit(ALICE, name="train"))
        await desk.finish(await desk.submit(BOB), exit_code=1)
        assert await history(desk, ALICE, past={"user": "alice"}) == [1]
        assert await history(desk, ALICE, past={"name": "train"}) == [1]
        assert await history(desk, ALICE, past={"states": ["FAILED"]}) == [2]
        assert await history(desk, ALICE, past={"ids": [2, 9]}) == [2]
        # With or without the root's name.
        assert await history(desk, ALICE, past={"pool": "bob"}) == [2]
        assert await history(desk, ALICE, past={"pool": "root.bob"}) == [2]
        assert await history(desk, ALICE, past={"since_s": 1e11}) == []

    play(story)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 1001}, {"past": {"uid": 3}}])
def test_what_cannot_be_asked_is_refused(desk: Any, wrong: dict[str, Any]) -> None:
    async def story() -> None:
        with pytest.raises(Refused):
            await desk.ask(ALICE, op="history", **wrong)

    play(story)
