"""Asking the engine, and waiting until what came of it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.daemon.engine import Work
from drfd.errors import DrfdError
from drfd.journal.records import Payload

#: Hands it to the engine, for its next turn.
SubmitWork = Callable[[Work], None]


async def decided(
    submit_work: SubmitWork,
    stimulus: st.Stimulus,
    payload: Payload | None = None,
    key: str | None = None,
) -> list[ev.Event]:
    """The events that came of it, once they are durable. Raises what refused it."""
    future: asyncio.Future[list[ev.Event]] = asyncio.get_running_loop().create_future()

    def answer(result: list[ev.Event] | DrfdError) -> None:
        if future.done():
            return
        if isinstance(result, DrfdError):
            future.set_exception(result)
        else:
            future.set_result(result)

    submit_work(Work(stimulus, payload, answer, key))
    return await future
