"""What shares a turn, and what waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from drfd.core.stimuli import Tick
from drfd.daemon import inbox as inbox_module
from drfd.daemon.engine import Work
from drfd.daemon.inbox import Inbox
from fakes import now, runner_up

TICK, UP = Work(Tick(now())), Work(runner_up(1))
#: Of which a turn leaves something undone.
CUT = Work(Tick(now(1)))
Story = Callable[[Inbox, list[list[Work]]], Coroutine[Any, Any, None]]


def play(story: Story) -> None:
    async def run() -> None:
        turns: list[list[Work]] = []

        def turn(works: list[Work]) -> Work | None:
            turns.append(works)
            return TICK if CUT in works else None

        await story(Inbox(turn), turns)

    asyncio.run(run())


def test_what_arrives_together_shares_a_turn() -> None:
    async def story(inbox: Inbox, turns: list[list[Work]]) -> None:
        inbox.add(TICK)
        inbox.add(UP)
        inbox.add(TICK)
        assert turns == [], "nothing is done before others have had their say"
        await asyncio.sleep(0)
        assert turns == [[TICK, UP, TICK]]
        inbox.add(TICK)
        await asyncio.sleep(0)
        assert turns[1:] == [[TICK]]

    play(story)


def test_a_start_waits_for_other_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "PATIENCE_S", 3600)

    async def story(inbox: Inbox, turns: list[list[Work]]) -> None:
        inbox.add(UP)
        inbox.add(UP)
        await asyncio.sleep(0.01)
        assert turns == []
        inbox.add(TICK)
        await asyncio.sleep(0)
        assert turns == [[UP, UP, TICK]]

    play(story)


def test_a_start_waits_for_a_moment_only() -> None:
    async def story(inbox: Inbox, turns: list[list[Work]]) -> None:
        inbox.add(UP)
        async with asyncio.timeout(60):
            while not turns:
                await asyncio.sleep(0.001)
        assert turns == [[UP]]
        await asyncio.sleep(0)
        inbox.add(TICK)
        await asyncio.sleep(0)
        assert turns == [[UP], [TICK]]

    play(story)


def test_what_a_turn_leaves_undone_is_gone_on_with_without_any_news() -> None:
    """A pass over thousands of demand vectors is cut: nobody else would ask for the rest of it."""

    async def story(inbox: Inbox, turns: list[list[Work]]) -> None:
        inbox.add(CUT)
        await asyncio.sleep(0)
        assert turns == [[CUT]], "others have their turn first"
        await asyncio.sleep(0)
        assert turns == [[CUT], [TICK]]
        await asyncio.sleep(0.05)
        assert len(turns) == 2

    play(story)


def test_the_rest_of_a_turn_does_not_wait_alone() -> None:
    async def story(inbox: Inbox, turns: list[list[Work]]) -> None:
        inbox.add(CUT)
        asyncio.get_running_loop().call_soon(inbox.add, UP)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert turns == [[CUT], [TICK, UP]]

    play(story)
