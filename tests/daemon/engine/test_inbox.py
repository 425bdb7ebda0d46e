"""What shares a turn, and what waits for it."""

from __future__ import annotations

import asyncio

import pytest

from drfd.core.model.stimuli import Tick
from drfd.daemon.engine.engine import Inbox, Work
from fakes import attempt_started, now

TICK, UP = Work(Tick(now())), Work(attempt_started(1))
#: Of which a turn leaves something undone.
CUT = Work(Tick(now(1)))


@pytest.fixture
def turns() -> list[list[Work]]:
    """The turns that the inbox has begun."""
    return []


@pytest.fixture
def inbox(turns: list[list[Work]]) -> Inbox:
    def turn(works: list[Work]) -> Work | None:
        turns.append(works)
        return TICK if CUT in works else None

    return Inbox(turn)


async def test_what_a_turn_leaves_undone_is_gone_on_with_without_any_news(
    inbox: Inbox, turns: list[list[Work]]
) -> None:
    """A pass over thousands of demand vectors is cut: nobody else would ask for the rest of it."""
    inbox.add(CUT)
    await asyncio.sleep(0)
    assert turns == [[CUT]], "others have their turn first"
    await asyncio.sleep(0)
    assert turns == [[CUT], [TICK]]
    await asyncio.sleep(0.05)
    assert len(turns) == 2


async def test_the_rest_of_a_turn_does_not_wait_alone(
    inbox: Inbox, turns: list[list[Work]]
) -> None:
    inbox.add(CUT)
    asyncio.get_running_loop().call_soon(inbox.add, UP)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns == [[CUT], [TICK, UP]]
