"""What a pass must know of time, read off the books: who has waited, and who ends when."""

from __future__ import annotations

from math import isfinite

from drfd.core.backfill import Outlook
from drfd.core.estimate import RunTimes
from drfd.core.external import ExternalLoad
from drfd.core.job import JobState
from drfd.core.ledger import Ledger
from drfd.core.queue import Entry
from drfd.core.reservation import Patience, Reservation
from drfd.core.resources import Vector


def look_out(
    ledger: Ledger,
    *,
    patience: Patience,
    run_times: RunTimes,
    now_s: float,
    before: tuple[Reservation, ...],
    external: ExternalLoad | None = None,
) -> Outlook:
    """`now_s` is Unix time; `before` the reservations of the pass before."""

    def since_s(job_id: int) -> float:
        job = ledger.job(job_id)
        if job.suspended_at is not None:
            return job.suspended_at
        return job.submitted_at if job.eligible_at is None else job.eligible_at

    def length_s(job_id: int) -> float:
        job = ledger.job(job_id)
        if job.suspended_at is not None:
            # What is left of it: exactly what `ends` says, or it would be in its own way.
            return run_times.end_s(job, now_s) - now_s
        return run_times.length_s(job.spec)

    def entry(job_id: int) -> Entry | None:
        job = ledger.find(job_id)
        if job is None or ledger.wanted(job) is None or ledger.queues.is_shut_out(job):
            return None
        return -job.spec.priority, job_id

    ends = [
        (run_times.end_s(job, now_s), ledger.held(job))
        for job in ledger.holders()
        # Nobody knows when what somebody keeps suspended will go on.
        if job.state is not JobState.SUSPENDED or ledger.wanted(job) is not None
    ]
    if external is not None and isfinite(external.until_s):
        ends.append((external.until_s, ledger.axes.vector(external.kept)))
    return Outlook(
        now_s=now_s,
        patience=patience,
        ends=ends,
        since_s=since_s,
        length_s=length_s,
        entry=entry,
        before=before,
        suspended=_suspended(ledger),
        external=external,
    )


def _suspended(ledger: Ledger) -> dict[int, tuple[str, Vector]]:
    found = {}
    for job in ledger.holders():
        wanted = ledger.wanted(job)
        if wanted is not None:
            found[job.id] = job.spec.leaf, wanted
    return found
