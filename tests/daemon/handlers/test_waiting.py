"""Waiting jobs by filter: all of them are searched, and any part of the list can be seen."""

from __future__ import annotations

from typing import Any

import pytest

from daemon.desk import Desk
from drfd.core.model.stimuli import Actor
from drfd.daemon.handlers import waiting

ALICE = Actor("alice", 1001, False)
BOB = Actor("bob", 1002, False)


async def found(desk: Desk, **asked: Any) -> tuple[list[str], int, int]:
    """The labels of the page, the place of its first row, and the number of all rows."""
    reply = await desk.ask(ALICE, op="waiting", **asked)
    return [row["label"] for row in reply["rows"]], reply["first"], reply["total"]


async def queue(desk: Desk) -> None:
    """Job 1 runs; 2 to 7 wait, of which 6 is held; 8 is an array."""
    await desk.submit(ALICE, cores=9)
    for name in ("fit", "Fit-2", "plot"):
        await desk.submit(ALICE, cores=9, name=name)
    await desk.submit(BOB, cores=9, name="other")
    await desk.submit(BOB, held=True, name="kept")
    await desk.submit(ALICE, after=[{"id": 6}], name="later")
    await desk.submit(BOB, cores=9, name="sweep", array="0-99")


async def test_a_text_is_looked_for_in_all_that_a_row_shows(desk: Desk) -> None:
    await queue(desk)
    assert await found(desk, text="fit") == (["2", "3"], 0, 2)
    assert await found(desk, text="bob") == (["5", "8_[0-99]", "6"], 0, 3)
    assert await found(desk, text="held") == (["6"], 0, 1)
    assert await found(desk, text="depend") == (["7"], 0, 1)
    assert await found(desk, text="8_57") == (["8_[0-99]"], 0, 1)
    assert await found(desk, text="8_100") == ([], 0, 0)
    assert await found(desk, text="nothing_like_it") == ([], 0, 0)


async def test_jobs_of_a_group_are_found_by_its_name_in_the_order_of_their_start(
    desk: Desk,
) -> None:
    await desk.submit(ALICE, cores=9)
    for priority in (0, 3, 7):
        await desk.submit(ALICE, group="media%1", priority=priority)
    assert await found(desk, text="media") == (["4", "3", "2"], 0, 3)


async def test_rows_are_those_of_one_user_or_one_node(desk: Desk) -> None:
    await queue(desk)
    assert (await found(desk, user="bob"))[0] == ["5", "8_[0-99]", "6"]
    assert (await found(desk, below="root.alice"))[0] == ["2", "3", "4", "7"]
    assert (await found(desk, below="root.ali"))[0] == []


async def test_the_order_is_that_of_the_start_and_others_can_be_asked_for(desk: Desk) -> None:
    await queue(desk)
    by_turn, _, total = await found(desk)
    assert total == 7
    assert by_turn[0] == "5", "bob holds nothing"
    assert by_turn[-2:] == ["7", "6"], "what cannot start comes last"
    assert (await found(desk, order="submission"))[0] == ["2", "3", "4", "5", "6", "7", "8_[0-99]"]
    assert (await found(desk, order="user", reverse=True))[0][:3] == ["8_[0-99]", "6", "5"]


async def test_any_page_can_be_seen_also_the_last(desk: Desk) -> None:
    await queue(desk)
    asked = {"order": "submission", "limit": 3}
    assert await found(desk, **asked) == (["2", "3", "4"], 0, 7)
    assert await found(desk, skip=2, **asked) == (["4", "5", "6"], 2, 7)
    assert await found(desk, skip=None, **asked) == (["6", "7", "8_[0-99]"], 4, 7)
    assert await found(desk, skip=100, **asked) == ([], 7, 7)


async def test_what_starts_or_ends_meanwhile_is_left_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue(desk)

    class Changing:
        """Something happens in each pause."""

        async def maybe_yield(self) -> None:
            await desk.ask(ALICE, op="cancel", select={"ids": [3]})

    monkeypatch.setattr(waiting, "CooperativeYield", Changing)
    labels, _, _ = await found(desk, text="alice")
    assert labels == ["2", "4", "7"]


async def test_rows_behind_those_that_are_put_in_order_follow_by_id(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_MOST_ORDERED", 1)
    await queue(desk)
    assert (await found(desk))[0] == ["5", "2", "3", "4", "7", "8_[0-99]", "6"]
