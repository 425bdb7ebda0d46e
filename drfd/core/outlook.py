"""What a pass must know of time, read off the books: who has waited, and who ends when."""

from __future__ import annotations

from drfd.core.admission import Outlook
from drfd.core.estimate import RunTimes
from drfd.core.job import JobState
from drfd.core.ledger import Ledger
from drfd.core.queue import Entry
from drfd.core.reservation import Patience, Reservation


def look_out(
    ledger: Ledger,
    *,
    patience: Patience,
    run_times: RunTimes,
    now_s: float,
    before: Reservation | None,
) -> Outlook:
    """`now_s` is Unix time; `before` the reservation of the pass before."""

    def waited_s(job_id: int) -> float:
        job = ledger.jobs[job_id]
        return now_s - (job.submitted_at if job.eligible_at is None else job.eligible_at)

    def entry(job_id: int) -> Entry | None:
        job = ledger.jobs.get(job_id)
        if job is None or job.state is not JobState.PENDING:
            return None
        return -job.spec.priority, job_id

    return Outlook(
        now_s=now_s,
        patience=patience,
        ends=[(run_times.end_s(job, now_s), ledger.demand(job)) for job in ledger.holders()],
        waited_s=waited_s,
        length_s=lambda job_id: run_times.length_s(ledger.jobs[job_id].spec),
        entry=entry,
        before=before,
    )
