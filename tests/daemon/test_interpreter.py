"""The thread pool does not delay the end of the daemon; full garbage collections are spaced out."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from drfd.daemon import controller

#: Each test starts an interpreter.
pytestmark = pytest.mark.slow


class Thing:
    """May refer to itself."""

    me: Thing


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture
def full_searches() -> Iterator[list[int]]:
    """One entry for each."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append(1)

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def survivors(count: int) -> list[Any]:
    return [[each] for each in range(count)]


def test_a_crowd_of_new_jobs_is_no_reason_to_look_through_all_of_them(
    full_searches: list[int],
) -> None:
    """It was, each time that there were a quarter more: 0.2 s for a hundred thousand jobs."""
    controller.defer_full_collections()
    full_searches.clear()
    kept = survivors(300_000)
    assert full_searches == []
    # By itself Python does it.
    gc.set_threshold(700, 10, 10)
    kept += survivors(300_000)
    assert full_searches != []


def test_young_objects_that_refer_to_each_other_are_still_found() -> None:
    controller.defer_full_collections()
    thing = Thing()
    thing.me = thing
    is_there = weakref.ref(thing)
    del thing
    kept = survivors(20_000)
    assert is_there() is None
    assert kept


def test_old_ones_are_found_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    controller.defer_full_collections()
    thing = Thing()
    gc.collect(1)
    thing.me = thing
    is_there = weakref.ref(thing)
    del thing
    kept = survivors(20_000)
    assert is_there() is not None, "else this proves nothing"
    monkeypatch.setattr(controller, "_PAUSE_S", 0.01)

    async def until_found() -> None:
        searching = asyncio.create_task(controller.collect_garbage())
        while is_there() is not None:
            await asyncio.sleep(0.01)
        searching.cancel()

    asyncio.run(asyncio.wait_for(until_found(), 60))
    assert kept


_PROGRAM = """
import asyncio, time
from drfd.daemon.controller import make_thread_pool
from drfd.daemon.main import leave

async def work():
    asyncio.get_running_loop().set_default_executor(make_thread_pool())
    for _ in range(50):
        asyncio.ensure_future(asyncio.to_thread(time.sleep, 100))
    await asyncio.sleep(0.1)

asyncio.run(work())
print("the loop has ended")
leave(7)
"""


def test_a_daemon_that_ends_does_not_wait_for_what_its_threads_compute() -> None:
    """While a hundred forecasts were computed, a daemon that was told to end, or whose supervisor
    had died, stayed for two minutes, and those who connected meanwhile were not answered."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "the loop has ended\n", "")
    assert time.monotonic() - begun < 60
