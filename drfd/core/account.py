"""Used against declared, summed over ended jobs: exact integers, so that rows add up to the total.

A job counts for the time that its last attempt ran. While it is frozen it declares no cores and no
rates, which it has given back, but keeps its memory. Where its use is not known, what it declared
is counted apart: nobody has wasted what nobody has measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from drfd.core.advice import LAST, is_evidence
from drfd.core.job import Job, Outcome


@dataclass(frozen=True, slots=True)
class Amount:
    """Of one resource: what was declared and used by the jobs whose use is known, and what was
    declared by the others."""

    declared: int = 0
    used: int = 0
    unknown: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.declared + other.declared, self.used + other.used, self.unknown + other.unknown
        )

    @property
    def wasted(self) -> int:
        """Below zero where more was used than declared, and nothing kept it from that."""
        return self.declared - self.used

    @property
    def efficiency(self) -> Fraction | None:
        """None: nothing was declared, or nothing is known."""
        return Fraction(self.used, self.declared) if self.declared else None


NO_AMOUNT = Amount()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    jobs: int = 0
    #: How long they ran, in milliseconds.
    run_ms: int = 0
    #: In core-microseconds.
    cores: Amount = NO_AMOUNT
    #: Peaks, for as long as the jobs lasted, in byte-milliseconds.
    memory: Amount = NO_AMOUNT
    #: In byte-milliseconds per second; of jobs that declared a rate.
    read: Amount = NO_AMOUNT
    write: Amount = NO_AMOUNT
    #: Moved, declared or not.
    read_bytes: int = 0
    written_bytes: int = 0
    #: The largest of one job.
    memory_declared_bytes: int = 0
    memory_peak_bytes: int = 0
    #: Held back by CPU quotas, summed over CPUs, and of how many jobs this is not known.
    throttled_us: int = 0
    throttled_unknown_jobs: int = 0
    out_of_memory_jobs: int = 0
    timeout_jobs: int = 0
    #: Countables in the order of their names, in milliseconds of one of them; a job has them as
    #: long as it lasts, frozen or not, and nobody measures what it does with them.
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
    """None: it never ran."""
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


def _amount(declared: int, used: int | None) -> Amount:
    return Amount(unknown=declared) if used is None else Amount(declared, used)


def _rate(declared_bps: int, run_ms: int, moved_bytes: int | None) -> Amount:
    if not declared_bps:
        return NO_AMOUNT
    return _amount(declared_bps * run_ms, None if moved_bytes is None else moved_bytes * 1000)


#: What the rows of a report stand for: how a job's row is found.
Row = tuple[str, ...]
BY: dict[str, Callable[[Job], Row]] = {
    "job": lambda job: (str(job.id), job.spec.name, job.spec.user),
    "name": lambda job: (job.spec.name, job.spec.user),
    "user": lambda job: (job.spec.user,),
    "pool": lambda job: (job.spec.pool,),
}


@dataclass
class Books:
    """Accounts by row, and of each user's jobs of one name the last that teach something."""

    by: str
    rows: dict[Row, Account] = field(default_factory=dict)
    evidence: dict[Row, list[Job]] = field(default_factory=dict)
    #: The one of each row that ended last.
    latest: dict[Row, Job] = field(default_factory=dict)

    def take(self, jobs: Iterable[Job]) -> None:
        """Newest first."""
        for job in jobs:
            account = account_of(job)
            if account is None:
                continue
            row = BY[self.by](job)
            self.rows[row] = self.rows.get(row, Account()) + account
            self.latest.setdefault(row, job)
            if is_evidence(job):
                similar = self.evidence.setdefault(BY["name"](job), [])
                if len(similar) < LAST:
                    similar.append(job)

    def similar(self, row: Row) -> list[Job]:
        """Newest first: jobs like those of the row; none where rows hold all kinds of jobs."""
        match self.by:
            case "name":
                return self.evidence.get(row, [])
            case "job":
                return self.evidence.get(row[1:], [])
            case _:
                return []

    def total(self) -> Account:
        return sum(self.rows.values(), Account())

    def largest(self, limit: int) -> tuple[list[tuple[Row, Account]], Account | None]:
        """The rows that have declared most, and the sum of all others; None: there are none. Jobs
        stay in their order."""
        rows = list(self.rows.items())
        if self.by != "job":
            rows.sort(key=lambda row: (-_declared(row[1]), row[0]))
        others = [account for _, account in rows[limit:]]
        return rows[:limit], sum(others, Account()) if others else None


def _declared(account: Account) -> int:
    return account.cores.declared + account.cores.unknown
