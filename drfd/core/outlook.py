"""What a pass must know of time, read off the books: who has waited, and who ends when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from math import isfinite

from drfd.core.backfill import Outlook
from drfd.core.ends import Ends
from drfd.core.estimate import RunTimes
from drfd.core.external import ExternalLoad
from drfd.core.ledger import Ledger
from drfd.core.queue import Entry
from drfd.core.reservation import InOrder, Patience, Reservation
from drfd.core.resources import Vector


def look_out(
    ledger: Ledger,
    *,
    patience: Patience,
    run_times: RunTimes,
    now_s: float,
    before: tuple[Reservation, ...],
    external: ExternalLoad | None = None,
    kept: Ends | None = None,
) -> Outlook:
    """`now_s` is Unix time; `before` the reservations of the pass before; `kept` what has been read
    for the passes before of jobs that hold resources."""

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

    ends = Ends(ledger, run_times) if kept is None else kept
    ends.settle()
    return Outlook(
        now_s=now_s,
        patience=patience,
        ends=_Ends(ends, now_s, _of_external(ledger, external)),
        since_s=since_s,
        length_s=length_s,
        entry=entry,
        before=before,
        suspended=ends.suspended,
        external=external,
    )


@dataclass(frozen=True, slots=True)
class _Ends(InOrder):
    """Read only by a pass that needs them: most have nobody to reserve for."""

    ends: Ends
    now_s: float
    others: tuple[tuple[float, Vector], ...]

    def __iter__(self) -> Iterator[tuple[float, Vector]]:
        return merge(self.others, self.ends.at(self.now_s))


def _of_external(ledger: Ledger, external: ExternalLoad | None) -> tuple[tuple[float, Vector], ...]:
    if external is None or not isfinite(external.until_s):
        return ()
    return ((external.until_s, ledger.axes.vector(external.kept)),)
