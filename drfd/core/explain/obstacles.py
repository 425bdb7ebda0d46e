"""Why nobody knows when a job starts: the reason at the end of the chain of the jobs that must go
on before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from drfd.core.explain.waits import TooLittleFree, Wait
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import Job, JobState

#: The longest chain that is followed.
_MOST = 32


def unknown_start(
    reason: Wait, ledger: Ledger, reason_of: Callable[[Job], Wait | None]
) -> str | None:
    """Return why nobody can say when a job starts that waits for this reason, if it is not for the
    end of jobs before it. `reason_of` returns the reason of a live job."""
    name, seen = "it", set[str]()
    while len(seen) < _MOST:
        label, job = next(_before(reason, ledger), (None, None))
        further = None if job is None else reason_of(job)
        if label is None or further is None or label in seen:
            break
        seen.add(label)
        reason, name = further, f"job {label}"
    return reason.unknown(name)


def _before(reason: Wait, ledger: Ledger) -> Iterator[tuple[str, Job]]:
    """Yield the jobs that wait themselves and that the reason names as those before a job."""
    label = reason.ahead.format(reason)
    job = _find(label, ledger) if label else None
    if job is not None:
        yield label, job
    shortfalls = reason.shortfalls if isinstance(reason, TooLittleFree) else ()
    for holder in [each for one in shortfalls for each in one.holders]:
        job = _find(holder.job, ledger)
        # Only this one gives nothing back until somebody acts.
        if job is not None and job.state is JobState.SUSPENDED and job.held_by is not None:
            yield holder.job, job


def _find(label: str, ledger: Ledger) -> Job | None:
    """Return the live job or task with this label, or for an array one of its tasks."""
    first, _, index = label.partition("_")
    array_state = ledger.arrays.get(int(first))
    if array_state is None:
        return ledger.find(int(first))
    if index:
        job_id = array_state.array.id_of(int(index))
    elif array_state.unmaterialized:
        job_id = array_state.unmaterialized.first[1]
    else:
        job_id = min(array_state.live)
    return None if job_id is None else ledger.find(job_id)
