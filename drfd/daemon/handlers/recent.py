"""The latest jobs of a user, and the words that command lines may contain, in one short reply.

`drf` finds jobs by it that are named `train` or `@-1`, and completes command lines with it.
"""

from __future__ import annotations

import asyncio

from drfd.core.decisions.job_requests import owns
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, JobState
from drfd.daemon.engine.engine import Engine
from drfd.daemon.users.loop_time import CooperativeYield
from drfd.journal.history import PastFilter, read_ended
from drfd.protocol.replies import RecentJobView, RecentReply, RecentWords
from drfd.protocol.requests import RecentRequest

#: Ended jobs that are read for each that is wanted, because tasks of one array are one row, and the
#: most that are read.
_READ_FOR_EACH, _MOST_READ = 5, 1000
#: The most users that a reply names.
_MOST_USERS = 1000
#: States of an array's tasks, of which the first that some task has is the array's.
_FIRST = (JobState.RUNNING, JobState.STARTING, JobState.SUSPENDED, JobState.PENDING)


async def find_recent(engine: Engine, actor: st.Actor, request: RecentRequest) -> RecentReply:
    """Return the jobs and arrays that the user has submitted last, newest first."""
    most = min(_MOST_READ, request.limit * _READ_FOR_EACH)
    past = PastFilter(user=actor.user, name=request.name, limit=most)
    # The ended ones first, so that a job that ends meanwhile is not missing from both.
    ended = await asyncio.to_thread(
        lambda: list(read_ended(engine.journal.path, past, commands=False))
    )
    found: dict[int, RecentJobView] = {}
    for job in ended:
        job_id = job.array_id or job.id
        found[job_id] = {"id": job_id, "name": job.spec.name, "state": job.shown_state,
                         "live": False}  # fmt: skip
        if job.array_id is not None:
            # Its tasks may have ended differently.
            found[job_id]["state"] = "array"
    await _add_live(found, engine.ledger, actor, request)
    return {
        "recent": [found[job_id] for job_id in sorted(found, reverse=True)[: request.limit]],
        **_words(engine.rules, engine.ledger),
    }


async def _add_live(
    found: dict[int, RecentJobView], ledger: Ledger, actor: st.Actor, request: RecentRequest
) -> None:
    """Add the newest live jobs and arrays, which replace ended tasks of the same array."""
    yielding = CooperativeYield()
    count = 0
    for array_id in sorted(ledger.arrays, reverse=True):
        await yielding.maybe_yield()
        array_state = ledger.arrays.get(array_id)
        if array_state is None or not _is_meant(array_state.array.spec, actor, request):
            continue
        states = {ledger.jobs[job_id].state for job_id in array_state.live}
        if array_state.unmaterialized:
            states.add(array_state.array.common.state)
        state = next((each for each in _FIRST if each in states), min(states))
        name = array_state.array.spec.name
        found[array_id] = {"id": array_id, "name": name, "state": state.value, "live": True}
        count += 1
        if count == request.limit:
            break
    count = 0
    for job_id in sorted(ledger.jobs, reverse=True):
        await yielding.maybe_yield()
        job = ledger.jobs.get(job_id)
        if job is None or job.array_id is not None or not _is_meant(job.spec, actor, request):
            continue
        found[job_id] = {"id": job_id, "name": job.spec.name, "state": job.shown_state,
                         "live": True}  # fmt: skip
        count += 1
        if count == request.limit:
            break


def _is_meant(spec: JobSpec, actor: st.Actor, request: RecentRequest) -> bool:
    return owns(actor, spec) and request.name in (None, spec.name)


def _words(rules: Rules, ledger: Ledger) -> RecentWords:
    users = sorted(ledger.job_counts.records)[:_MOST_USERS]
    return {
        "pools": sorted(rules.pools),
        "users": users,
        "gres": [name for name, _ in rules.capacity.gres],
    }
