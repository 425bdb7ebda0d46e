"""Looking at all that runs, again and again: samples, breaches, curves, what runs beside drfd."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from drfd.core.job import JobState
from drfd.core.stimuli import Breached, Now, Tick
from drfd.daemon.curves import Curves
from drfd.daemon.engine import Engine, Work
from drfd.daemon.meter import PERIOD_S, Meter
from drfd.daemon.neighbours import Neighbours
from drfd.errors import HostError
from drfd.host.capacity import read_machine_use

log = logging.getLogger("drfd")


class Rounds:
    def __init__(
        self,
        engine: Engine,
        meter: Meter,
        curves: Curves,
        clock: Callable[[], Now],
        submit: Callable[[Work], None],
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._curves = curves
        self._clock = clock
        self._submit = submit
        self._neighbours = Neighbours(meter)

    async def run(self) -> None:
        is_blind = False
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self._look()
                is_blind = False
            except (OSError, MemoryError) as error:
                # Short of descriptors or memory, perhaps. What the kernel enforces holds all the
                # same.
                if not is_blind:
                    log.error("event=not-measured error=%s", str(error) or "out of memory")
                is_blind = True

    async def _look(self) -> None:
        first = await asyncio.to_thread(read_machine_use)
        for job in list(self._engine.ledger.holders()):
            breach = await asyncio.to_thread(self._meter.sample, job)
            if job.id in self._engine.ledger.jobs:
                self._curves.note(job)
            if breach is not None and job.state is JobState.RUNNING:
                self._submit(Work(Breached(self._clock(), job.id, job.attempt, *breach)))
        self._curves.note_users(self._engine.ledger.holders())
        self.save_curves(all_of_them=False)
        last = await asyncio.to_thread(read_machine_use)
        use = self._neighbours.look(first, last)
        if use is not None and self._engine.see_external(use):
            self._submit(Work(Tick(self._clock())))

    def save_curves(self, *, all_of_them: bool) -> None:
        try:
            self._curves.save(all_of_them=all_of_them)
        except HostError as error:
            # Pictures of the past: nothing that anybody waits for.
            self._engine.journal.rollback()
            log.warning("event=curves-not-saved error=%s", error)
