"""drf why: the evidence, and what would change it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from drfd.core.job import Usage
from drfd.daemon import whys
from drfd.errors import NotPermitted
from fakes import ALICE, BOB, runner_up


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())


def test_of_a_waiting_job_it_is_told_what_would_start_now(desk: Any) -> None:
    async def story() -> None:
        await desk.feed(runner_up(await desk.submit(BOB, 4)))
        waiting = await desk.submit(ALICE, 8)
        reply = await desk.ask(ALICE, op="why", id=waiting)
        assert reply["job"]["reason"]["code"] == "RESOURCES"
        assert reply["notes"] == ["submitted with -c 5 it would start now"]
        assert reply["advice"] is None

    play(story)


def test_in_a_very_long_queue_nothing_is_tried(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whys, "MOST_JOBS", 1)

    async def story() -> None:
        await desk.feed(runner_up(await desk.submit(BOB, 4)))
        waiting = await desk.submit(ALICE, 8)
        assert (await desk.ask(ALICE, op="why", id=waiting))["notes"] == []

    play(story)


def test_a_held_or_running_job_has_no_notes(desk: Any) -> None:
    async def story() -> None:
        await desk.feed(runner_up(await desk.submit(ALICE)))
        await desk.submit(ALICE, held=True)
        for job_id in (1, 2):
            assert (await desk.ask(ALICE, op="why", id=job_id))["notes"] == []

    play(story)


def test_of_an_ended_job_it_is_told_what_it_used_and_what_to_ask_for(desk: Any) -> None:
    usage = Usage(cpu_s=4.0, memory_peak_bytes=100 << 20, limit_hits=0)

    async def story() -> None:
        for _ in range(3):
            await desk.finish(await desk.submit(ALICE, 2, name="train"), usage=usage, at_s=8.0)
        await desk.finish(await desk.submit(BOB, name="train"), usage=usage, at_s=800.0)
        reply = await desk.ask(ALICE, op="why", id=2)
        assert reply["notes"] == [
            "it ran for 8.0s and used 4.0s of CPU time (0.5 of 2 cores on average) "
            "and 100M of 1G of memory"
        ]
        assert reply["advice"]["options"] == ["-c", "0.5", "-m", "128M", "-t", "1m"]
        assert reply["advice"]["jobs"] == 3, "the other's job of this name is not alike"
        assert (await desk.ask(BOB, op="why", id=4))["advice"] is None, "one job proves nothing"

    play(story)


def test_why_is_for_who_may_see_it(desk: Any) -> None:
    async def story() -> None:
        await desk.finish(await desk.submit(ALICE))
        with pytest.raises(NotPermitted):
            await desk.ask(BOB, op="why", id=1)

    play(story)
