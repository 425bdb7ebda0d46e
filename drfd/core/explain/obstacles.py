"""Obstacles: the jobs that must go on before another one can, and the reason of the last of them.

A job may wait for one that waits for a third: why nobody knows when the first one starts is then
the reason of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from drfd.core.explain import reasons as why
from drfd.core.explain.holders import ReservedFirst, ServedFirst
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import Job, JobState

#: The longest chain that is followed.
_MOST = 32


class Obstacle(NamedTuple):
    """A reason, and the label of the job that waits for it, or None for the job itself."""

    reason: why.WaitReason
    of: str | None


def last_obstacle(
    reason: why.WaitReason, ledger: Ledger, reason_of: Callable[[Job], why.WaitReason | None]
) -> Obstacle:
    """Return the reason at the end of the chain that begins with a job's own. `reason_of` returns
    the reason of a live job."""
    found = Obstacle(reason, None)
    seen = set[str]()
    while len(seen) < _MOST:
        label, job = next(_before(found.reason.evidence, ledger), (None, None))
        further = None if job is None else reason_of(job)
        if label is None or further is None or label in seen:
            break
        seen.add(label)
        found = Obstacle(further, label)
    return found


def _before(evidence: why.Evidence, ledger: Ledger) -> Iterator[tuple[str, Job]]:
    """Yield the jobs that wait themselves and that the evidence names as those before a job."""
    labels: list[str] = []
    match evidence:
        case why.WaitsFor():
            labels = [evidence.awaited.label]
        case ReservedFirst() | why.KeptFor() | why.MayNotPass() | why.BehindInFifo():
            labels = [evidence.job]
        case _:
            pass
    for label in labels:
        job = _find(label, ledger)
        if job is not None:
            yield label, job
    match evidence:
        case (
            why.TooLittleFree()
            | ServedFirst()
            | ReservedFirst()
            | why.HasReservation()
            | why.OutOfQuota()
        ):
            holders = [each for one in evidence.shortfalls for each in one.holders]
        case _:
            return
    for holder in holders:
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
