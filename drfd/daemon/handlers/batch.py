"""Verbs for several jobs (`cancel`, `hold`, `set`, …): one stimulus for each selected job.

A few jobs are decided in each turn of the user, so that other requests come in between. Pending
jobs come before running ones: the resources of a cancelled job must not start one that is
cancelled next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf

from drfd.common.errors import Refused
from drfd.common.indices import joined, read_group, show_spans
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.job_requests import may_touch, no_such
from drfd.core.model import events as ev
from drfd.core.model.job import DEPENDENCY_BYTES, Job, Outcome, Tasks, UserGroup
from drfd.core.model.options import Changes
from drfd.daemon.engine.engine import Engine
from drfd.daemon.handlers.submission import dependencies
from drfd.daemon.lookup.lookup import Lookup, Row, job_of, resolved
from drfd.daemon.lookup.views import error_view
from drfd.daemon.users.quotas import ID_BYTES, Quotas, quota_uid
from drfd.daemon.users.turns import InParts, UserTurns
from drfd.protocol import requests as msg
from drfd.protocol.replies import BatchReply, Failure
from drfd.protocol.requests import Selection

#: Jobs decided in one turn of the engine, and tasks of an array.
_AT_ONCE, _TASKS_AT_ONCE = 25, 100
#: Refusals of named jobs in a reply, at most: a request may name a hundred thousand that are over,
#: or never were.
_MOST_REFUSALS = 1000

#: Codes of the refusals for which a request about an array is fulfilled in part.
_BEYOND_BUDGET = ("too-long", "too-much-kept")

#: Makes a stimulus from the time, the id of the job or array, and the sender.
MakeStimulus = Callable[[st.Now, int, st.Actor], st.JobAsked]
#: The stimuli of verbs without further fields.
_PLAIN: dict[type[msg.BatchRequest], MakeStimulus] = {
    msg.CancelRequest: st.CancelAsked,
    msg.HoldRequest: st.HoldAsked,
    msg.ReleaseRequest: st.ReleaseAsked,
    msg.SuspendRequest: st.SuspendAsked,
    msg.ResumeRequest: st.ResumeAsked,
}


@dataclass(frozen=True, slots=True)
class _Target:
    #: The job, array, or row of tasks that was requested.
    label: str
    #: The id of the job, or of the array, or of one of its tasks.
    job_id: int
    #: These tasks of the array, or () for all.
    tasks: tuple[int, ...] = ()
    #: Whether they are a part of an array that was requested as a whole.
    is_part: bool = False


@dataclass
class _BatchResult:
    """Events and refusals so far, by label."""

    events: dict[str, list[ev.Event]] = field(default_factory=dict)
    #: The first refusal of each label, of the first `most` labels.
    refused: dict[str, Refused] = field(default_factory=dict)
    #: The first refusal of each label for what is stored already: parts of an array may have been
    #: done before.
    cut: dict[str, Refused] = field(default_factory=dict)
    #: The tasks that were refused, by label of their array.
    tasks: dict[str, list[int]] = field(default_factory=dict)
    #: The arrays that have a record of the request.
    recorded: set[int] = field(default_factory=set)
    #: The jobs and arrays that have been charged.
    charged: set[int] = field(default_factory=set)
    #: Whether the jobs are named by their ids: else those that are over are not meant.
    are_named: bool = True

    @property
    def most(self) -> float:
        return _MOST_REFUSALS if self.are_named else inf


@dataclass
class BatchActions:
    engine: Engine
    lookup: Lookup
    quotas: Quotas
    turns: UserTurns

    async def ask(self, actor: st.Actor, select: Selection, make: MakeStimulus) -> BatchReply:
        """Submit a stimulus for every selected job, some in each turn of the user; the refusal of
        one does not stop the others."""
        failed: list[Failure] = []
        result = _BatchResult(are_named=bool(select.ids))
        wanted: list[_Target] = []
        unnamed, turn = 0, partial(self.turns.next, quota_uid(actor))
        with self.quotas.keeping(quota_uid(actor)) as keep:
            async with turn():
                async for target in self._wanted(actor, select):
                    if isinstance(target, _Target):
                        wanted.append(target)
                    elif len(failed) < result.most:
                        ref, refusal = target
                        if isinstance(ref, int):
                            refusal = self._explain_refusal(ref, refusal)
                        failed.append({"id": ref, "error": error_view(refusal)})
                    else:
                        unnamed += 1
                targets = await self._in_parts(wanted)
            # Whoever waits for as many jobs as are allowed can still cancel some.
            if len(targets) > _AT_ONCE:
                keep(ID_BYTES * sum(max(1, len(each.tasks)) for each in targets))
            await self._ask_all(targets, actor, make, result)
            async with turn():
                return await self._reply(make, wanted, result, failed, unnamed)

    async def _reply(
        self, make: MakeStimulus, wanted: Sequence[_Target], result: _BatchResult,
        failed: list[Failure], unnamed: int,
    ) -> BatchReply:  # fmt: skip
        done: dict[str, int] = {}
        kept: dict[str, str] = {}
        has_labels = False
        async for each in InParts(wanted):
            if each.label not in result.events:
                if each.label not in result.refused or len(failed) >= result.most:
                    unnamed += 1
                    continue
                refusal = self._explain_refusal(each.job_id, result.refused[each.label])
                if result.are_named or refusal.code != "ended":
                    failed.append({"id": each.job_id, "error": error_view(refusal)})
                continue
            done[each.label] = each.job_id
            if each.label in result.cut and len(failed) < result.most:
                failed.append({"id": each.job_id, "error": error_view(result.cut[each.label])})
            has_labels |= each.label != str(each.job_id)
            array_state = self.engine.ledger.arrays.get(each.job_id)
            unchanged = result.tasks.get(each.label)
            if unchanged and array_state is not None:
                kept[each.label] = show_spans(array_state.array.spans_of(*joined(unchanged)))
        reply: BatchReply = {"done": list(done.values()), "failed": failed}
        if has_labels:
            reply["labels"] = list(done)
        if kept:
            reply["kept"] = kept
        if unnamed:
            reply["unnamed"] = unnamed
        most_s = self.engine.rules.max_suspended_s
        if make is st.SuspendAsked and most_s is not None:
            kept_s = [
                event.at_s
                for some in result.events.values()
                for event in some
                if isinstance(event, ev.SuspendRequested) and event.kept_mono_s is not None
            ]
            if kept_s:
                reply["ended_at"] = min(kept_s) + most_s
        return reply

    async def _wanted(
        self, actor: st.Actor, select: Selection
    ) -> AsyncIterator[_Target | tuple[msg.Ref, Refused]]:
        """Yield the selected jobs and arrays, and why there are not those that are named."""
        async for ref, job_id in resolved(self.lookup, select.ids):
            if isinstance(job_id, Refused):
                yield ref, job_id
            elif self.engine.ledger.lives(job_id):
                yield _Target(str(ref), job_id)
            else:
                # Nothing is kept of it beyond the refusals that are told.
                yield job_id, no_such(job_id)
        has_filter = select.user or select.name or select.group or select.states
        if not select.ids and (select.everything or has_filter):
            async for row in self.lookup.rows(select):
                if may_touch(actor, job_of(row).spec):
                    yield _target_of(row)

    async def _in_parts(self, wanted: Iterable[_Target]) -> list[_Target]:
        """Return the targets, arrays in parts and running jobs last."""
        waiting: list[_Target] = []
        started: list[_Target] = []
        ledger = self.engine.ledger
        # Rows that together have all tasks of an array that wait mean the array.
        selected, sizes = Counter[int](), dict[int, int]()
        async for each in InParts(wanted):
            selected[each.job_id] += len(each.tasks)
        async for each in InParts(wanted):
            array_state = ledger.arrays.get(each.job_id)
            if array_state is None:
                (started if self._has_started(each.job_id) else waiting).append(each)
                continue
            tasks = each.tasks or [job.id for job in ledger.tasks(array_state.array)]
            if each.tasks and each.job_id not in sizes:
                rows = ledger.rows(array_state)
                sizes[each.job_id] = sum(row.size for row in rows if isinstance(row, Tasks))
            is_whole = not each.tasks or selected[each.job_id] >= sizes[each.job_id]
            ids = list[int]()
            async for job_id in InParts(tasks):
                if self._has_started(job_id):
                    started.append(replace(each, job_id=job_id, tasks=()))
                else:
                    ids.append(job_id)
            for at in range(0, len(ids), _TASKS_AT_ONCE):
                part = tuple(ids[at : at + _TASKS_AT_ONCE])
                waiting.append(replace(each, tasks=part, is_part=is_whole))
        return [*waiting, *started]

    async def _ask_all(
        self, targets: Sequence[_Target], actor: st.Actor, make: MakeStimulus, result: _BatchResult
    ) -> None:
        if not targets:
            return
        stimulus = _stimulus(targets[0], self.engine.clock(), actor, make)
        # Each job's dependencies must be checked before the next may depend on it.
        most = 1 if isinstance(stimulus, st.ChangeAsked) and stimulus.change.after else _AT_ONCE
        at = 0
        while at < len(targets):
            # Parts of an array have turns of their own.
            part = targets[at : at + most]
            count = next((n for n, each in enumerate(part) if each.tasks), most) or 1
            async with self.turns.next(quota_uid(actor)):
                await self._ask_some(part[:count], actor, make, result)
            at += count

    async def _ask_some(
        self, targets: Sequence[_Target], actor: st.Actor, make: MakeStimulus, result: _BatchResult
    ) -> None:
        """Submit the stimuli for all targets in one turn."""
        now = self.engine.clock()
        targets = [
            replace(each, is_part=each.is_part and each.job_id not in result.recorded)
            for each in targets
        ]
        stimuli = [_stimulus(target, now, actor, make) for target in targets]
        outcomes = await asyncio.gather(
            *(self.engine.submit_and_wait(stimulus) for stimulus in stimuli), return_exceptions=True
        )
        is_cancel = isinstance(stimuli[0], st.CancelAsked)
        for target, stimulus, outcome in zip(targets, stimuli, outcomes, strict=True):
            if is_cancel and outcome == []:
                outcome = self._refuse_ended(target.job_id) or outcome
            if isinstance(stimulus, st.ChangeAsked):
                unchanged = self._refused_tasks(target, outcome)
                result.tasks.setdefault(target.label, []).extend(unchanged)
            if isinstance(outcome, Refused):
                if outcome.code in _BEYOND_BUDGET:
                    result.cut.setdefault(target.label, outcome)
                if len(result.refused) < result.most:
                    result.refused.setdefault(target.label, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                result.events.setdefault(target.label, []).extend(outcome)
                if target.tasks and target.is_part and outcome:
                    result.recorded.add(target.job_id)
        if not actor.is_admin and not is_cancel:
            # A cancellation is a job's last change, and is charged with its submission. An array is
            # charged as one job.
            events = chain.from_iterable(each for each in outcomes if isinstance(each, list))
            ids = {event.job_id for event in events if isinstance(event, ev.JobEvent)}
            arrays = {each: self.engine.ledger.arrays.of_task(each) for each in ids}
            owners = {each if array is None else array.id for each, array in arrays.items()}
            changed = owners - result.charged
            result.charged |= changed
            self.quotas.take(quota_uid(actor), len(changed), _size_of(stimuli[0]))

    def _has_started(self, job_id: int) -> bool:
        job = self.engine.ledger.jobs.get(job_id)
        return job is not None and job.is_allocated

    def _refused_tasks(
        self, target: _Target, outcome: list[ev.Event] | BaseException
    ) -> Iterable[int]:
        """Return which tasks have not been changed because they have started."""
        if isinstance(outcome, Refused) and outcome.code in _BEYOND_BUDGET:
            return ()
        if isinstance(outcome, BaseException):
            return target.tasks or [target.job_id]
        changed = {event.job_id for event in outcome if isinstance(event, ev.JobEvent)}
        return [each for each in target.tasks if each not in changed and self._has_started(each)]

    def _refuse_ended(self, job_id: int) -> Refused | None:
        """Return the refusal to cancel a job that has ended otherwise and is being removed."""
        job = self.engine.ledger.jobs.get(job_id)
        if job is None or job.outcome in (None, Outcome.CANCELLED) or not st.is_over(job):
            return None
        return _ended(job, job.outcome)

    def _explain_refusal(self, job_id: int, refusal: Refused) -> Refused:
        """Return a refusal that says how the job ended, or else `refusal` itself."""
        if refusal.code != "no-such-job":
            return refusal
        job = self.engine.journal.job(job_id)
        if job is not None:
            return _ended(job, job.shown_state)
        if self.lookup.any_array(job_id) is not None:
            return Refused("ended", f"all tasks of array {job_id} have already ended")
        return refusal


def _ended(job: Job, how: str) -> Refused:
    return Refused("ended", f"job {job.label} has already ended: {how}")


def _target_of(row: Row) -> _Target:
    if isinstance(row, Tasks):
        ids = chain.from_iterable(range(first, last + 1) for first, last in row.ids)
        return _Target(f"{row.array.id}_[{row.indices}]", row.array.id, tuple(ids))
    return _Target(row.label, row.id)


def _stimulus(target: _Target, now: st.Now, actor: st.Actor, make: MakeStimulus) -> st.JobAsked:
    stimulus = make(now, target.job_id, actor)
    if not target.tasks:
        return stimulus
    return replace(stimulus, tasks=target.tasks, is_part=target.is_part)


def _size_of(stimulus: st.JobAsked) -> int:
    """Estimate how many bytes the stimulus adds to the journal, beyond those of most changes."""
    after = stimulus.change.after if isinstance(stimulus, st.ChangeAsked) else None
    return DEPENDENCY_BYTES * len(after or ())


def stimulus_maker(request: msg.BatchRequest) -> MakeStimulus:
    """Return what makes the stimulus of this request for a job."""
    match request:
        case msg.SignalRequest():
            return partial(st.SignalAsked, signal=request.signal)
        case msg.RequeueRequest():
            return partial(st.RequeueAsked, held=request.held)
        case msg.SetRequest():
            return partial(st.ChangeAsked, change=_change(request))
        case _:
            return _PLAIN[type(request)]


def _change(request: msg.SetRequest) -> st.Change:
    group = request.group
    return st.Change(
        **{name: getattr(request, name) for name in Changes.__struct_fields__},
        after=None if request.after is None else dependencies(request.after),
        group=None if group is None else UserGroup(*read_group(group) if group else ("",)),
    )
