"""`drf wait`: what is waited for, looked up, and told when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.core import stimuli as st
from drfd.core.job import Job
from drfd.daemon.breath import Breath, Turns
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import Lookup
from drfd.daemon.refs import ids_of
from drfd.daemon.waiting import Waiting
from drfd.wire import messages as msg
from drfd.wire import views
from drfd.wire.views import View


@dataclass
class Awaited:
    engine: Engine
    lookup: Lookup
    #: One list at a time for each user is looked up, or told.
    _turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self._waiting = Waiting(self.engine)
        self.job_changed: Callable[[Job], None] = self._waiting.job_changed

    async def wait(self, actor: st.Actor, request: msg.Wait) -> View:
        """What has ended when all have, or any one, or the time is over; and `never`: what is not
        over, and waited for in vain."""
        breath, turn = Breath(), self._turns[actor.uid]
        async with turn:
            ids = await ids_of(self.lookup, request.ids, breath)
            for job_id in ids:
                if self.lookup.own_array(actor, job_id) is None:
                    self.lookup.own_job(actor, job_id)
                await breath.take()
        found = await self._waiting.until_ended(
            ids, any_one=request.any, timeout_s=request.timeout_s
        )
        done = len(found) == len(ids) or (request.any and bool(found))
        ended: list[View] = []
        never: list[View] = []
        async with turn:
            for job_id in found:
                ended.append(self._ended_view(job_id, actor))
                await breath.take()
            for job_id in () if done else ids:
                stuck = self._waiting.stuck(job_id)
                if stuck is not None:
                    told = self._waiting.in_vain(stuck)
                    never.append(self.lookup.view(stuck, actor) | told)
                await breath.take()
        return {"done": done, "ended": ended, "never": never}

    def _ended_view(self, job_id: int, actor: st.Actor) -> View:
        array = self.lookup.any_array(job_id)
        if array is not None:
            return self.lookup.ended_array_view(array)
        job = self.lookup.any_job(job_id)
        return self.lookup.view(job, actor) | {"status": views.exit_status(job)}
