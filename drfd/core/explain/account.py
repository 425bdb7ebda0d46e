"""Used and declared resources summed over ended jobs.

A job counts with all its runs: those that ended with a preemption, or after which it was tried
again, have held and used resources like its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from drfd.core.explain.advice import LAST, is_evidence, kind_of_job
from drfd.core.model.account import NO_ACCOUNT, Account, account_of_run
from drfd.core.model.job import Job, Outcome


def account_of(job: Job) -> Account | None:
    """Return the account of one ended job with all its runs, or None if it never ran."""
    last, earlier = account_of_run(job), job.earlier_runs
    if last is None and earlier is None:
        return None
    account = (earlier or NO_ACCOUNT) + (last or NO_ACCOUNT)
    return replace(
        account,
        jobs=1,
        throttled_unknown_jobs=min(1, account.throttled_unknown_jobs),
        out_of_memory_jobs=int(job.outcome is Outcome.OUT_OF_MEMORY),
        timeout_jobs=int(job.outcome is Outcome.TIMEOUT),
    )


#: Key of a row of a report.
Row = tuple[str, ...]
BY: dict[str, Callable[[Job], Row]] = {
    "job": lambda job: (str(job.id), job.spec.name, job.spec.user),
    "name": lambda job: (job.spec.name, job.spec.user),
    "user": lambda job: (job.spec.user,),
    "pool": lambda job: (job.spec.pool,),
}


@dataclass
class UsageAccounts:
    """Accounts by row, with the latest jobs of each kind from which advice is derived."""

    by: str
    #: The most rows by job, the latest; later ones are only summed up. None for all.
    most_jobs: int | None = None
    rows: dict[Row, Account] = field(default_factory=dict)
    evidence: dict[Row, list[Job]] = field(default_factory=dict)
    #: The kinds of jobs in each row (see `kind_of_job`).
    kinds: dict[Row, set[Row]] = field(default_factory=dict)
    #: The sum of the jobs without a row of their own.
    rest: Account = NO_ACCOUNT
    #: The job of each row that ended last.
    latest: dict[Row, Job] = field(default_factory=dict)

    def take(self, jobs: Iterable[Job]) -> None:
        """Add ended jobs, which must come newest first."""
        for job in jobs:
            account = account_of(job)
            if account is None:
                continue
            if self.by == "job" and len(self.rows) == self.most_jobs:
                self.rest += account
                # Older jobs of a kind that has a row teach what that needs.
                similar = self.evidence.get(kind_of_job(job), [])
                if 0 < len(similar) < LAST and is_evidence(job):
                    similar.append(job)
                continue
            row = BY[self.by](job)
            self.rows[row] = self.rows.get(row, NO_ACCOUNT) + account
            self.latest.setdefault(row, job)
            if is_evidence(job):
                self.kinds.setdefault(row, set()).add(kind_of_job(job))
                similar = self.evidence.setdefault(kind_of_job(job), [])
                if len(similar) < LAST:
                    similar.append(job)

    def similar(self, row: Row) -> list[Job]:
        """Return the evidence for a row, newest first. Rows by user or pool have none, and neither
        has a name under which different commands ran."""
        if self.by not in ("name", "job") or row not in self.latest:
            return []
        kind = kind_of_job(self.latest[row])
        return self.evidence.get(kind, []) if self.kinds.get(row, {kind}) == {kind} else []

    def total(self) -> Account:
        return sum(self.rows.values(), self.rest)

    def largest(self, limit: int) -> tuple[list[tuple[Row, Account]], Account | None]:
        """Return the rows that declared most CPU time, and the sum of the rest, or None.

        Rows by job keep their order.
        """
        rows = list(self.rows.items())
        if self.by != "job":
            rows.sort(key=lambda row: (-_declared(row[1]), row[0]))
        others = sum([account for _, account in rows[limit:]], self.rest)
        return rows[:limit], others if others.jobs else None


def _declared(account: Account) -> int:
    return account.cores.declared + account.cores.unknown
