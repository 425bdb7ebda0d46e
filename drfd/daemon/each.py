"""What is asked for many jobs at once: of each the engine decides by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.daemon.decided import SubmitWork, decided
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import Lookup
from drfd.daemon.wishes import Ask, Wish
from drfd.errors import Refused
from drfd.indices import joined, show_spans
from drfd.wire import views
from drfd.wire.parts import Selection
from drfd.wire.views import View


@dataclass
class Each:
    engine: Engine
    lookup: Lookup
    submit_work: SubmitWork

    async def ask(self, actor: st.Actor, select: Selection, ask: Ask) -> View:
        """Do it to every selected job; one that refuses does not stop the others."""
        now, failed = self.engine.clock(), []
        wishes: dict[str, Wish] = {}
        for ref in select.ids:
            try:
                wishes[str(ref)] = ask(now, self.lookup.id_of(ref), actor)
            except Refused as refusal:
                failed.append({"id": ref, "error": views.error_view(refusal)})
        if not select.ids and (select.everything or _has_filter(select)):
            for label, job_id, is_group in self.lookup.targets(actor, select):
                wishes[label] = replace(ask(now, job_id, actor), unborn_only=is_group)
        results = await asyncio.gather(
            *(decided(self.submit_work, wish) for wish in wishes.values()), return_exceptions=True
        )
        done: dict[str, int] = {}
        kept: dict[str, str] = {}
        for (label, wish), result in zip(wishes.items(), results, strict=True):
            if isinstance(result, Refused):
                error = views.error_view(self._better(wish.job_id, result))
                failed.append({"id": wish.job_id, "error": error})
            elif isinstance(result, BaseException):
                raise result
            else:
                done[label] = wish.job_id
                as_before = self._as_before(wish, result)
                if as_before:
                    kept[label] = as_before
        reply: View = {"done": list(done.values()), "failed": failed}
        if list(done) != [str(job_id) for job_id in done.values()]:
            # As people call them.
            reply["labels"] = list(done)
        if kept:
            # Of arrays: the indices of tasks that were not changed, since they run.
            reply["kept"] = kept
        return reply

    def _as_before(self, wish: Wish, events: Sequence[ev.Event]) -> str:
        """The indices of the tasks of an array that live and were not changed with the others."""
        roster = self.engine.ledger.arrays.get(wish.job_id)
        if roster is None or not isinstance(wish, st.ChangeAsked) or wish.unborn_only:
            return ""
        changed = {event.job_id: event.spec for event in events if isinstance(event, ev.Changed)}
        # Those that were changed together, without a record, may have started in the same turn.
        together = changed.get(wish.job_id)
        same = [
            job_id
            for job_id in roster.live
            if job_id not in changed and self.engine.ledger.jobs[job_id].spec != together
        ]
        return show_spans(roster.array.spans_of(*joined(same))) if changed else ""

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
