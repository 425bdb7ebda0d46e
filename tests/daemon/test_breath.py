"""Requests about very many jobs leave the loop to others all the while."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from drfd.core import events as ev
from drfd.core.job import JobState
from drfd.daemon.frames import encoded
from fakes import ALICE, BOB, rules, runner_up

#: Tasks of an array that is over, and jobs that wait.
TASKS, WAITING = 8000, 2500
MANY: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "wait": lambda array, first: {"op": "wait", "ids": [*range(array + 1, array + TASKS)]},
    "wait in vain": lambda array, first: {
        "op": "wait",
        "timeout_s": 0,
        "ids": [*range(array + 1, array + TASKS), first],
    },
    "status": lambda array, first: {
        "op": "status",
        "select": {"ids": [f"{array}_{index}" for index in range(TASKS)]},
    },
    "cancel": lambda array, first: {
        "op": "cancel",
        "select": {"ids": [*range(array + 1, array + TASKS)]},
    },
    "release": lambda array, first: {"op": "release", "select": {"everything": True}},
    "release array": lambda array, first: {"op": "release", "select": {"ids": [array]}},
    "hold": lambda array, first: {
        "op": "hold",
        "select": {"ids": [*range(first, first + WAITING)]},
    },
}


#: Each task of the array has a record of its own.
TASK_BY_TASK = {"release array"}


async def longest_s() -> float:
    """Of the processor's time, the most that passes between two turns of ours."""
    longest, last_s = 0.0, time.process_time()
    try:
        while True:
            await asyncio.sleep(0)
            now_s = time.process_time()
            longest, last_s = max(longest, now_s - last_s), now_s
    except asyncio.CancelledError:
        return longest


@pytest.fixture
def young() -> Iterator[None]:
    """No collection looks through all that the tests have imported and made before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("young")
@pytest.mark.parametrize("kind", MANY)
def test_a_request_about_very_many_jobs_lets_others_have_their_turn(
    make_desk: Callable[..., Any], kind: str
) -> None:
    desk = make_desk(by=rules(max_waiting_per_user=200_000))

    async def story() -> None:
        array = await desk.submit(ALICE, held=True, array=f"0-{TASKS - 1}")
        if kind in TASK_BY_TASK:
            every = [*range(array + 1, array + WAITING)]
            await desk.ask(ALICE, op="set", select={"ids": every}, priority=1)
        else:
            await desk.ask(ALICE, op="cancel", select={"ids": [array]})
        is_held = kind == "release"
        ids = await asyncio.gather(
            *(desk.submit(ALICE, held=is_held, cores=9) for _ in range(WAITING))
        )
        looking = asyncio.create_task(longest_s())
        await asyncio.sleep(0)
        begin_s = time.process_time()
        view = await desk.ask(ALICE, **MANY[kind](array, ids[0]))
        await encoded(view)
        took_s = time.process_time() - begin_s
        looking.cancel()
        # As a whole it would be all of it. A busy machine stretches each part.
        assert await looking < max(0.1, took_s / 2)
        desk.shell.host.take()

    asyncio.run(story())


def test_what_waits_is_cancelled_before_what_runs(desk: Any) -> None:
    """Or a job would start in the place of the first one, to be cancelled as well. That it is done
    in parts is seen by nobody: the answer is in the order in which it was asked for."""

    async def story() -> None:
        ids = [await desk.submit(ALICE, 9) for _ in range(120)]
        other = await desk.submit(BOB, 9)
        await desk.feed(runner_up(ids[0]))
        reply = await desk.ask(ALICE, op="cancel", select={"user": ALICE.user})
        assert reply == {"done": ids, "failed": []}
        asked = [
            event.job_id
            for event in desk.shell.journal.events()
            if isinstance(event, ev.Cancelled | ev.StopRequested)
        ]
        assert asked == [*ids[1:], ids[0]]
        assert [*desk.shell.engine.ledger.jobs] == [ids[0], other]

    asyncio.run(story())


def test_what_is_asked_of_many_is_done_to_the_end_if_the_asker_leaves(desk: Any) -> None:
    """Or a client that has waited for too long would have cancelled a part of it."""

    async def story() -> None:
        ids = [await desk.submit(ALICE, held=True) for _ in range(200)]
        asking = asyncio.create_task(desk.ask(ALICE, op="cancel", select={"ids": ids}))
        ledger = desk.shell.engine.ledger
        async with asyncio.timeout(60):
            while len(ledger.jobs) == len(ids):
                await asyncio.sleep(0)
            assert ledger.jobs, "it is done in parts"
            asking.cancel()
            while ledger.jobs:
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(story())


def test_one_refusal_among_many_stops_no_other_and_is_told_with_its_id(desk: Any) -> None:
    async def story() -> None:
        ids = [await desk.submit(ALICE, held=True) for _ in range(110)]
        theirs = await desk.submit(BOB, held=True)
        mixed = [*ids[:60], theirs, *ids[60:], 9999]
        reply = await desk.ask(ALICE, op="cancel", select={"ids": mixed})
        assert reply["done"] == ids
        assert [(each["id"], each["error"]["code"]) for each in reply["failed"]] == [
            (theirs, "not-yours"),
            (9999, "no-such-job"),
        ]

    asyncio.run(story())


def test_what_is_asked_of_a_long_array_is_answered_as_of_one(desk: Any) -> None:
    """However many of its tasks have a record: done if one of them was not refused."""

    async def story() -> None:
        array = await desk.submit(ALICE, held=True, array="0-199")
        tasks = [*range(array + 1, array + 121)]
        await desk.ask(ALICE, op="set", select={"ids": tasks}, priority=1)
        one = {"done": [array], "failed": []}
        assert await desk.ask(ALICE, op="release", select={"ids": [array]}) == one
        assert {job.state for job in desk.shell.engine.ledger.jobs.values()} == {
            JobState.PENDING,
            JobState.STARTING,
        }
        again = await desk.ask(ALICE, op="release", select={"ids": [array]})
        assert again["done"] == []
        assert [(each["id"], each["error"]["code"]) for each in again["failed"]] == [
            (array, "not-held")
        ]
        assert await desk.ask(ALICE, op="cancel", select={"ids": [array]}) == one
        left = desk.shell.engine.ledger.jobs.values()
        assert {job.state for job in left} == {JobState.STOPPING}
        assert not desk.shell.engine.ledger.arrays[array].unborn

    asyncio.run(story())
