"""From a job back to the fields of the submit request that would make it again.

Environment and script are for the job's user alone, not even for administrators. Who submits again
signs again: the client first compares the signature of the first submission, so that it signs
nothing that its user has not submitted.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable

from drfd.common.errors import NotPermitted, Refused
from drfd.common.indices import MAX_INDEX, Span, show_spans
from drfd.core.decisions.dependencies import is_cancelled_by_rule, is_met
from drfd.core.decisions.job_requests import owns
from drfd.core.model.job import (
    Actor,
    Array,
    Dependency,
    Job,
    JobSpec,
    JobState,
    Outcome,
    after_word,
)
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup
from drfd.daemon.lookup.views import option_fields
from drfd.daemon.users.turns import InParts
from drfd.payload.pack import carried
from drfd.payload.scripts import VARIABLE, text_of
from drfd.payload.unpack import LaunchPayload
from drfd.protocol.replies import AwaitedView, RepeatView, SubmissionReply
from drfd.protocol.requests import Ref

#: The most repeats of a job that a reply names, the latest ones.
_MOST_REPEATS = 100
_CANCELLED = Outcome.CANCELLED.value


async def find_submission(
    engine: Engine, lookup: Lookup, actor: Actor, ref: Ref
) -> SubmissionReply:
    """Return the submission of a job, of an array, or of one task as an array of its own. Raises
    NotPermitted for another user's job, and Refused if its environment is not kept any more."""
    job_id = lookup.id_of(ref)
    array = lookup.any_array(job_id)
    job = array.common if array is not None else lookup.any_job(job_id)
    spec = job.spec
    label = str(job_id) if array is not None else job.label
    if not owns(actor, spec):
        raise NotPermitted(
            "not-yours", f"job {label} belongs to {spec.user}, who alone may submit it again"
        )
    payload = engine.journal.submissions.get(job_id if job.array_id is None else job.array_id)
    if payload is None or payload.shared is None:
        raise Refused(
            "not-kept",
            f"the environment and the script of job {label} are not kept any more",
            hint=f"drf show {label} has its command: submit it anew",
        )
    fields = submission_fields(spec, payload.content())
    if array is not None:
        fields["array"] = array.indices
    elif job.array_index is not None:
        fields["array"] = str(job.array_index)
    if array is not None:
        is_live = array.id in engine.ledger.arrays
        state = "not over" if is_live else "over"
    else:
        is_live, state = job.state is not JobState.ENDED, job.shown_state
    reply: SubmissionReply = {
        "label": label, "state": state, "live": is_live, "submission": fields,
        "proof": payload.proof,
    }  # fmt: skip
    parent = array or (None if job.array_id is None else lookup.any_array(job.array_id))
    reply["again"] = {"of": job_id if parent is None else parent.id}
    if parent is not None:
        reply["again"]["indices"] = list(parent.told_indices)
    reply["repeats"] = await _repeats(engine, lookup, job, parent)
    if spec.after:
        name_of = await lookup.names_of(spec.after)
        reply["waited_for"] = []
        async for each in InParts(spec.after):
            reply["waited_for"].append(await _awaited(engine, lookup, each, name_of))
    cancelled = None if array is None else engine.journal.arrays.first_bad(array, (_CANCELLED,))
    if job.outcome is Outcome.CANCELLED or array is not None:
        reply["cancelled_by_hand"] = not is_cancelled_by_rule(cancelled or job)
    if is_live or spec.after:
        reply["conditions"] = {
            "after": [{"id": each.job_id, "want": each.want.value} for each in spec.after],
            "begin_s": spec.begin_s or 0,
            "held": job.state is JobState.HELD,
        }
    if job.state is JobState.HELD and job.held_by not in (None, spec.user):
        reply["held_by"] = job.held_by
    if is_live:
        reply["awaited"] = bool(engine.ledger.dependents.get(job_id))
    return reply


def refuse_others_job(engine: Engine, lookup: Lookup, actor: Actor, of: int) -> None:
    """Raise Refused for a submission that says it repeats another user's job, or one that is still
    to come: that job's user would be told of it as a retry, and made to wait for it. A job that is
    not known any more is nobody's."""
    array = lookup.any_array(of)
    found = lookup.known(of) if array is None else array
    if found is None and of >= engine.ledger.next_id:
        raise Refused("no-such-job", f"there is no job {of} to submit again")
    if found is not None and not owns(actor, found.spec):
        raise NotPermitted(
            "not-yours", f"job {of} belongs to {found.spec.user}, who alone may submit it again"
        )


async def _repeats(
    engine: Engine, lookup: Lookup, job: Job, parent: Array | None
) -> list[RepeatView]:
    """Return what repeats a job, a task of `parent`, or the whole of it, the latest first."""
    job_id = job.id if parent is None else parent.id
    found = []
    async for repeat_id in InParts(engine.journal.repeats_of(job_id, limit=_MOST_REPEATS)):
        view = _repeat(engine, lookup, repeat_id, job.array_index)
        if view is not None:
            found.append(view)
    return found


def _repeat(engine: Engine, lookup: Lookup, repeat_id: int, index: int | None) -> RepeatView | None:
    """Return a repeat, or its task with the index; None if there is none, or no more."""
    array = lookup.any_array(repeat_id)
    if array is not None and index is None:
        is_live = array.id in engine.ledger.arrays
        return {
            "label": str(array.id),
            "state": "not over" if is_live else "over",
            "live": is_live,
            "array": show_spans(array.spans),
        }
    task_id = repeat_id if array is None else array.id_of(index or 0)
    job = None if task_id is None else lookup.known(task_id)
    if job is None:
        return None
    return {"label": job.label, "state": job.shown_state, "live": job.state is not JobState.ENDED}


async def _awaited(
    engine: Engine, lookup: Lookup, dependency: Dependency, name_of: Callable[[int], str]
) -> AwaitedView:
    """Return how a job that another waited for has ended, or what repeats it."""
    job_id = dependency.job_id
    is_live = engine.ledger.lives(job_id)
    outcome = None if is_live else engine.journal.outcome(job_id)
    view: AwaitedView = {
        "label": name_of(job_id), "want": dependency.want.value,
        "state": outcome or "", "live": is_live,
        "met": None if is_live else outcome is None or is_met(dependency.want, outcome),
    }  # fmt: skip
    last = None if view["met"] else await last_repeat(engine, lookup, job_id)
    if last is not None:
        outcome = engine.journal.outcome(last)
        view["met"] = None if outcome is None else is_met(dependency.want, outcome)
        view["repeat"] = {
            "label": lookup.name_of(last), "state": outcome or "", "live": outcome is None
        }  # fmt: skip
    return view


async def repeat_note(engine: Engine, lookup: Lookup, job: Job) -> list[str]:
    """Return how a job that can never start is made to wait for what repeats the job that it waited
    for; nothing if nothing repeats it."""
    assert job.broken is not None
    on = job.broken.job_id
    last = await last_repeat(engine, lookup, on)
    if last is None:
        return []
    words = []
    for each in job.spec.after:
        if each.job_id == on or each in job.awaits:
            label = lookup.name_of(last if each.job_id == on else each.job_id)
            words.append(after_word(label, each.want))
    mine = job.id if job.array_id is None else job.array_id
    return [
        f"job {lookup.name_of(on)} has been retried as job {lookup.name_of(last)}: "
        f"drf set --after {','.join(words)} {mine} waits for that"
    ]


async def last_repeat(engine: Engine, lookup: Lookup, job_id: int) -> int | None:
    """Return what has been submitted last in place of a job, a task or an array, and in place of
    that in turn; None if nothing has. Of an array it repeats every task that did not complete.
    Other requests come between the arrays that are read."""
    last = None
    for _ in range(_MOST_REPEATS):
        following = await _next_repeat(engine, lookup, job_id if last is None else last)
        if following is None:
            break
        last = following
    return last


async def _next_repeat(engine: Engine, lookup: Lookup, job_id: int) -> int | None:
    await asyncio.sleep(0)
    journal, array = engine.journal, lookup.any_array(job_id)
    job = lookup.known(job_id) if array is None else None
    if job is not None and job.array_id is not None:
        for each in journal.repeats_of(job.array_id, limit=_MOST_REPEATS):
            await asyncio.sleep(0)
            repeat = lookup.any_array(each)
            task_id = None if repeat is None else repeat.id_of(job.array_index or 0)
            if task_id is not None:
                return task_id
        return None
    following = next(iter(journal.repeats_of(job_id, limit=1)), None)
    if array is None or following is None:
        return following
    await asyncio.sleep(0)
    repeat = lookup.any_array(following)
    left = [ids for some in journal.arrays.roll(array).bad.values() for ids in some]
    is_whole = repeat is not None and has_all(repeat, array.spans_of(*left))
    return following if is_whole else None


def has_all(array: Array, spans: Iterable[Span]) -> bool:
    """Return whether an array has a task for each of these indices."""
    for first, last, step in spans:
        while first <= last:
            at = bisect_right(array.spans, (first, MAX_INDEX, MAX_INDEX)) - 1
            begin, end, every = array.spans[at] if at >= 0 else (0, -1, 1)
            if first > end or (first - begin) % every:
                return False
            # The spans of an array do not overlap, so the next one has nothing up to `end`.
            count = (min(last, end) - first) // step
            if count and step % every:
                return False
            first += (count + 1) * step
    return True


def submission_fields(spec: JobSpec, signed: LaunchPayload) -> dict[str, object]:
    """Return the fields of a submit request, without those about conditions of the start: the jobs
    that it waited for have ended, and its begin time has come."""
    env = {carried(name): carried(value) for name, value in signed.env.items()}
    script = None if signed.script is None else carried(signed.script)
    given = {
        "argv": list(map(carried, signed.argv)), "cwd": spec.cwd,
        **option_fields(spec, signed.notify), "env": env,
        "script": None if script is None else text_of(script, env.get(VARIABLE)),
        "attach": spec.attach,
    }  # fmt: skip
    return {key: value for key, value in given.items() if value is not None}
