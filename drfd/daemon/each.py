"""What is asked for many jobs at once: of each the engine decides by itself.

A few at a time, so that nobody else waits for all of them; those that wait to start before those
that have: what these give back is not to start one that is about to be cancelled or held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.daemon.breath import Breath, Turns
from drfd.daemon.decided import SubmitWork, decided
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import Lookup
from drfd.daemon.wishes import Ask, Wish
from drfd.errors import Refused
from drfd.indices import joined, show_spans
from drfd.wire import views
from drfd.wire.parts import Selection
from drfd.wire.views import View

#: So many are decided in one turn.
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class _Target:
    #: What was asked for: a job or an array, as people call it.
    label: str
    #: That, or a task of it.
    job_id: int
    #: Only what waits of the array.
    is_group: bool


@dataclass
class _Told:
    """What has become of it so far, by label."""

    events: dict[str, list[ev.Event]] = field(default_factory=dict)
    #: The first refusal of each.
    refused: dict[str, Refused] = field(default_factory=dict)


@dataclass
class Each:
    engine: Engine
    lookup: Lookup
    submit_work: SubmitWork
    #: One part at a time for each user, however many he asks for.
    _turns: Turns = field(default_factory=Turns)
    _asking: set[asyncio.Future[View]] = field(default_factory=set)

    async def ask(self, actor: st.Actor, select: Selection, ask: Ask) -> View:
        """Do it to every selected job; one that refuses does not stop the others. What has begun is
        done to the end, also if the asker does not wait for it."""
        asking = asyncio.ensure_future(self._ask(actor, select, ask))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        return await asyncio.shield(asking)

    async def _ask(self, actor: st.Actor, select: Selection, ask: Ask) -> View:
        failed: list[View] = []
        wanted = [each async for each in self._wanted(actor, select, failed)]
        told, breath = _Told(), Breath()
        await self._ask_all(self._in_parts(wanted), actor, ask, told)
        done: dict[str, int] = {}
        kept: dict[str, str] = {}
        for each in wanted:
            await breath.take()
            if each.label not in told.events:
                error = views.error_view(self._better(each.job_id, told.refused[each.label]))
                failed.append({"id": each.job_id, "error": error})
                continue
            done[each.label] = each.job_id
            as_before = self._as_before(each, told.events[each.label])
            if as_before:
                kept[each.label] = as_before
        reply: View = {"done": list(done.values()), "failed": failed}
        if list(done) != [str(job_id) for job_id in done.values()]:
            # As people call them.
            reply["labels"] = list(done)
        if kept:
            # Of arrays: the indices of tasks that were not changed, since they run.
            reply["kept"] = kept
        return reply

    async def _wanted(
        self, actor: st.Actor, select: Selection, failed: list[View]
    ) -> AsyncIterator[_Target]:
        """What is asked for; what there is not goes to `failed`."""
        breath = Breath()
        for ref in dict.fromkeys(select.ids):
            try:
                yield _Target(str(ref), self.lookup.id_of(ref), False)
            except Refused as refusal:
                failed.append({"id": ref, "error": views.error_view(refusal)})
            await breath.take()
        if not select.ids and (select.everything or _has_filter(select)):
            for target in self.lookup.targets(actor, select):
                if target is not None:
                    yield _Target(*target)
                await breath.take()

    def _in_parts(self, wanted: Iterable[_Target]) -> list[_Target]:
        """The same with long arrays task by task, and what has started last."""
        targets: list[_Target] = []
        for each in wanted:
            roster = self.engine.ledger.arrays.get(each.job_id)
            if roster is None or each.is_group or len(roster.live) < _AT_ONCE:
                targets.append(each)
                continue
            if roster.unborn:
                targets.append(replace(each, is_group=True))
            targets += (_Target(each.label, job_id, False) for job_id in sorted(roster.live))
        return sorted(targets, key=lambda target: self._has_started(target.job_id))

    async def _ask_all(
        self, targets: Sequence[_Target], actor: st.Actor, ask: Ask, told: _Told
    ) -> None:
        if len(targets) == 1:
            # As one of many requests it shares a turn with the others.
            await self._ask_some(targets, actor, ask, told)
            return
        for at in range(0, len(targets), _AT_ONCE):
            async with self._turns[actor.uid]:
                await self._ask_some(targets[at : at + _AT_ONCE], actor, ask, told)

    async def _ask_some(
        self, targets: Sequence[_Target], actor: st.Actor, ask: Ask, told: _Told
    ) -> None:
        """All in one turn."""
        now = self.engine.clock()
        wishes = [_wish(target, now, actor, ask) for target in targets]
        results = await asyncio.gather(
            *(decided(self.submit_work, wish) for wish in wishes), return_exceptions=True
        )
        for target, result in zip(targets, results, strict=True):
            if isinstance(result, Refused):
                told.refused.setdefault(target.label, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                told.events.setdefault(target.label, []).extend(result)

    def _has_started(self, job_id: int) -> bool:
        job = self.engine.ledger.jobs.get(job_id)
        return job is not None and job.holds_resources

    def _as_before(self, target: _Target, events: Sequence[ev.Event]) -> str:
        """The indices of the tasks of an array that live and were not changed with the others."""
        roster = self.engine.ledger.arrays.get(target.job_id)
        changed = {event.job_id: event.spec for event in events if isinstance(event, ev.Changed)}
        if roster is None or target.is_group or not changed:
            return ""
        # Those that were changed together, without a record, may have started in the same turn.
        together = changed.get(target.job_id)
        same = [
            job_id
            for job_id in roster.live
            if job_id not in changed and self.engine.ledger.jobs[job_id].spec != together
        ]
        return show_spans(roster.array.spans_of(*joined(same)))

    def _better(self, job_id: int, refusal: Refused) -> Refused:
        """For a job that is over, say how it ended instead of that it does not exist."""
        if refusal.code != "no-such-job":
            return refusal
        job = self.engine.journal.job(job_id)
        if job is not None:
            return Refused("ended", f"job {job.label} has already ended: {job.shown_state}")
        if self.lookup.any_array(job_id) is not None:
            return Refused("ended", f"all tasks of array {job_id} have already ended")
        return refusal


def _has_filter(select: Selection) -> bool:
    return bool(select.user or select.name or select.states)


def _wish(target: _Target, now: st.Now, actor: st.Actor, ask: Ask) -> Wish:
    wish = ask(now, target.job_id, actor)
    return replace(wish, unborn_only=True) if target.is_group else wish
