"""Used and declared resources summed over ended jobs, as exact integers, so that rows add up.

A job counts for the time that its last attempt ran. While it was frozen it counts with its memory,
but not with the cores and rates that it had released. The declared resources of jobs whose use is
not known are summed separately, and do not count as wasted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from drfd.core.explain.ended_jobs import LAST, is_evidence, kind_of_job
from drfd.core.model.job import Job, Outcome


@dataclass(frozen=True, slots=True)
class AccountedAmount:
    """Amounts of one resource: `declared` and `used` by the jobs whose use is known, and `unknown`,
    which the other jobs declared."""

    declared: int = 0
    used: int = 0
    unknown: int = 0

    def __add__(self, other: AccountedAmount) -> AccountedAmount:
        return AccountedAmount(
            self.declared + other.declared, self.used + other.used, self.unknown + other.unknown
        )

    @property
    def wasted(self) -> int:
        """Declared minus used; below zero if more was used than declared."""
        return self.declared - self.used

    @property
    def efficiency(self) -> Fraction | None:
        """Used over declared, or None if nothing was declared by jobs whose use is known."""
        return Fraction(self.used, self.declared) if self.declared else None


NO_AMOUNT = AccountedAmount()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    jobs: int = 0
    #: Run time in milliseconds.
    run_ms: int = 0
    #: CPU time in core-microseconds.
    cores: AccountedAmount = NO_AMOUNT
    #: Peak memory times the duration of the job, in byte-milliseconds.
    memory: AccountedAmount = NO_AMOUNT
    #: Disk rate times run time, in bytes/s times milliseconds, of jobs that declared a rate.
    read: AccountedAmount = NO_AMOUNT
    write: AccountedAmount = NO_AMOUNT
    #: Bytes read and written by all jobs, whether they declared a rate or not.
    read_bytes: int = 0
    written_bytes: int = 0
    #: Largest declared memory, and largest peak, of a single job.
    memory_declared_bytes: int = 0
    memory_peak_bytes: int = 0
    #: Time throttled by CPU quotas, summed over CPUs, and the number of jobs for which it is not
    #: known.
    throttled_us: int = 0
    throttled_unknown_jobs: int = 0
    out_of_memory_jobs: int = 0
    timeout_jobs: int = 0
    #: Countable resources by name, in milliseconds of one instance. A job has them as long as it
    #: lasts, frozen or not, and their use is not measured.
    gres_ms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Account) -> Account:
        return Account(
            jobs=self.jobs + other.jobs,
            run_ms=self.run_ms + other.run_ms,
            cores=self.cores + other.cores,
            memory=self.memory + other.memory,
            read=self.read + other.read,
            write=self.write + other.write,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
            memory_declared_bytes=max(self.memory_declared_bytes, other.memory_declared_bytes),
            memory_peak_bytes=max(self.memory_peak_bytes, other.memory_peak_bytes),
            throttled_us=self.throttled_us + other.throttled_us,
            throttled_unknown_jobs=self.throttled_unknown_jobs + other.throttled_unknown_jobs,
            out_of_memory_jobs=self.out_of_memory_jobs + other.out_of_memory_jobs,
            timeout_jobs=self.timeout_jobs + other.timeout_jobs,
            gres_ms=_summed(self.gres_ms, other.gres_ms),
        )


def account_of(job: Job) -> Account | None:
    """Return the account of one job, or None if it never ran."""
    if job.started_at is None or job.ended_at is None:
        return None
    wall_ms = max(0, round((job.ended_at - job.started_at) * 1000))
    run_ms = max(0, wall_ms - round(job.frozen_s(job.ended_at) * 1000))
    demand, usage = job.spec.demand, job.usage
    read_bps, write_bps = demand.rate_sums
    seen = usage if usage is not None and usage.memory_peak_bytes else None
    return Account(
        jobs=1,
        run_ms=run_ms,
        cores=_amount(
            demand.cores_milli * run_ms, None if seen is None else round(seen.cpu_s * 1_000_000)
        ),
        memory=_amount(
            demand.memory_bytes * wall_ms,
            None if seen is None else seen.memory_peak_bytes * wall_ms,
        ),
        read=_rate(read_bps, run_ms, None if seen is None else seen.read_bytes),
        write=_rate(write_bps, run_ms, None if seen is None else seen.written_bytes),
        read_bytes=0 if seen is None else seen.read_bytes,
        written_bytes=0 if seen is None else seen.written_bytes,
        memory_declared_bytes=demand.memory_bytes,
        memory_peak_bytes=0 if seen is None else seen.memory_peak_bytes,
        throttled_us=0 if seen is None else seen.throttled_us or 0,
        throttled_unknown_jobs=int(seen is None or seen.throttled_us is None),
        out_of_memory_jobs=int(job.outcome is Outcome.OUT_OF_MEMORY),
        timeout_jobs=int(job.outcome is Outcome.TIMEOUT),
        gres_ms=tuple((name, count * wall_ms) for name, count in demand.gres),
    )


def _summed(
    left: tuple[tuple[str, int], ...], right: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    sums = Counter(dict(left))
    sums.update(dict(right))
    return tuple(sorted(sums.items()))


def _amount(declared: int, used: int | None) -> AccountedAmount:
    return AccountedAmount(unknown=declared) if used is None else AccountedAmount(declared, used)


def _rate(declared_bps: int, run_ms: int, moved_bytes: int | None) -> AccountedAmount:
    if not declared_bps:
        return NO_AMOUNT
    return _amount(declared_bps * run_ms, None if moved_bytes is None else moved_bytes * 1000)


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
    rows: dict[Row, Account] = field(default_factory=dict)
    evidence: dict[Row, list[Job]] = field(default_factory=dict)
    #: The kinds of jobs in each row (see `kind_of_job`).
    kinds: dict[Row, set[Row]] = field(default_factory=dict)
    #: The job of each row that ended last.
    latest: dict[Row, Job] = field(default_factory=dict)

    def take(self, jobs: Iterable[Job]) -> None:
        """Add ended jobs, which must come newest first."""
        for job in jobs:
            account = account_of(job)
            if account is None:
                continue
            row = BY[self.by](job)
            self.rows[row] = self.rows.get(row, Account()) + account
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
        return sum(self.rows.values(), Account())

    def largest(self, limit: int) -> tuple[list[tuple[Row, Account]], Account | None]:
        """Return the rows that declared most CPU time, and the sum of the rest, or None.

        Rows by job keep their order.
        """
        rows = list(self.rows.items())
        if self.by != "job":
            rows.sort(key=lambda row: (-_declared(row[1]), row[0]))
        others = [account for _, account in rows[limit:]]
        return rows[:limit], sum(others, Account()) if others else None


def _declared(account: Account) -> int:
    return account.cores.declared + account.cores.unknown
