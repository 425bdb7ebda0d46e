"""What the service manager hears of the running daemon: that it is ready, alive, and how busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from drfd.core.job import JobState
from drfd.core.ledger import Ledger
from drfd.core.stimuli import Now, Tick
from drfd.daemon.engine import Engine, Work
from drfd.service import Service

#: Seconds between two words about how busy we are.
_STATUS_S = 5.0
#: So often within the time after which silence is taken for a hang.
_BEATS = 4


class Pulse:
    def __init__(
        self,
        manager: Service,
        engine: Engine,
        clock: Callable[[], Now],
        submit: Callable[[Work], None],
    ) -> None:
        self._manager = manager
        self._engine = engine
        self._clock = clock
        self._submit = submit

    def ready(self) -> None:
        """Also after a reload."""
        self._manager.say("READY=1", f"STATUS={status(self._engine.ledger)}")

    def reloading(self) -> None:
        mono_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._manager.say("RELOADING=1", f"MONOTONIC_USEC={mono_us}")

    def stopping(self) -> None:
        self._manager.say("STOPPING=1", "STATUS=stopping; jobs run on")

    async def beat(self) -> None:
        """Feed the watchdog, each time through a whole turn of the engine: if that hangs, so does
        this."""
        if self._manager.watchdog_s is None:
            await asyncio.Event().wait()
            return
        while True:
            self._submit(Work(Tick(self._clock()), answer=self._alive))
            await asyncio.sleep(self._manager.watchdog_s / _BEATS)

    async def tell(self) -> None:
        """Say how busy we are, whenever that has changed."""
        said = ""
        while True:
            await asyncio.sleep(_STATUS_S)
            text = status(self._engine.ledger)
            if self._manager.is_heard and text != said:
                self._manager.say(f"STATUS={text}")
                said = text

    def _alive(self, result: object) -> None:
        # An error of the journal is an answer, too.
        self._manager.say("WATCHDOG=1")


def status(ledger: Ledger) -> str:
    """One line for `systemctl status`."""
    running = sum(job.state is not JobState.SUSPENDED for job in ledger.holders())
    suspended = sum(1 for job in ledger.holders()) - running
    parts = [f"{running} running", f"{sum(ledger.census.waiting.values())} waiting"]
    if suspended:
        parts.append(f"{suspended} suspended")
    if ledger.draining:
        parts.append("draining")
    return ", ".join(parts)
