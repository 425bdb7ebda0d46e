"""Sums of what runs of jobs declared and used, as exact integers.

A run counts from its start to its end; while suspended only with its memory. The declared resources
of runs whose use is unknown are summed separately, and do not count as wasted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from drfd.common.units import AXES, DISK_AXES

if TYPE_CHECKING:
    from drfd.core.model.job import DeclaredJob, Job

#: The countable resource whose use is measured.
_GPU = "gpu"


class AccountedAmount(Struct, frozen=True, gc=False):
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


class Account(Struct, frozen=True, kw_only=True, gc=False):
    jobs: int = 0
    #: Number of runs: a job that was preempted or tried again has more than one.
    runs: int = 0
    #: Run time in milliseconds, without the time frozen, and that time.
    run_ms: int = 0
    frozen_ms: int = 0
    #: By axis, the amount times the run time in milliseconds; what is no rate, times the duration.
    #: Used are CPU time, peak memory, and of jobs that declared a rate, bytes times 1000. "gpu" has
    #: the time of jobs that declared GPUs; their utilisation times the duration is used.
    amounts: dict[str, AccountedAmount] = {}
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
    #: lasts, frozen or not.
    gres_ms: tuple[tuple[str, int], ...] = ()
    #: Highest memory of a single job on all its GPUs together, or None if that of none is known.
    gpu_memory_peak_bytes: int | None = None
    #: The same on a single one of the GPUs that the job was given.
    gpu_memory_single_peak_bytes: int | None = None
    #: CPU time of jobs with a range above its lower end, or None if that of none is known.
    beyond_us: int | None = None

    def amount(self, axis: str) -> AccountedAmount:
        return self.amounts.get(axis, NO_AMOUNT)

    def __add__(self, other: Account) -> Account:
        # A report of a hundred thousand jobs adds as many.
        if self is NO_ACCOUNT or other is NO_ACCOUNT:
            return other if self is NO_ACCOUNT else self
        sums = dict(zip(_PLAIN, map(add, _plain(self), _plain(other)), strict=True))
        for (name, join), one, more in zip(
            _JOINS.items(), _joined(self), _joined(other), strict=True
        ):
            # None stands for what is not known.
            known = one is not None and more is not None
            sums[name] = join(one, more) if known else one if more is None else more
        return Account(**sums)


NO_ACCOUNT = Account()


def account_of_run(job: Job) -> Account | None:
    """Return the account of the job's last run, as of no job, or None if that has not come as far
    as the job's program or is not over."""
    times = _times_ms(job)
    if times is None:
        return None
    wall_ms, run_ms = times
    demand, usage = job.spec.demand, job.usage
    seen = usage if usage is not None and usage.memory_peak_bytes else None
    used: dict[str, int] = {}
    if seen is not None:
        used |= {"cores": round(seen.cpu_s * 1_000_000), "memory": seen.memory_peak_bytes * wall_ms}
        used |= {axis: seen.moved(axis)[0] * 1000 for axis in DISK_AXES}
    amounts = {
        name: _amount(amount * (run_ms if AXES[name].is_rate else wall_ms), used.get(name))
        for name, amount in demand.sums.items()
        if amount or name not in DISK_AXES
    }
    gpus, percent = dict(demand.gres).get(_GPU), None if usage is None else usage.gpu_mean_percent
    if gpus:
        busy_ms = None if percent is None else percent * wall_ms // 100
        amounts[_GPU] = _amount(gpus * wall_ms, busy_ms)
    return Account(
        runs=1,
        run_ms=run_ms,
        frozen_ms=wall_ms - run_ms,
        amounts=amounts,
        read_bytes=0 if seen is None else seen.read_bytes,
        written_bytes=0 if seen is None else seen.written_bytes,
        memory_declared_bytes=demand.memory_bytes,
        memory_peak_bytes=0 if seen is None else seen.memory_peak_bytes,
        throttled_us=0 if seen is None else seen.throttled_us or 0,
        throttled_unknown_jobs=int(seen is None or seen.throttled_us is None),
        gres_ms=tuple((name, count * wall_ms) for name, count in demand.gres),
        gpu_memory_peak_bytes=None if usage is None else usage.gpu_memory_peak_bytes,
        gpu_memory_single_peak_bytes=(
            None if usage is None else usage.gpu_memory_single_peak_bytes
        ),
        beyond_us=None if seen is None else seen.beyond_us,
    )


def declared_core_ms(job: Job | DeclaredJob) -> int | None:
    """Return what all runs of the job declared of cores (in thousandths), times milliseconds; None
    if it never ran."""
    times, earlier = _times_ms(job), job.earlier_runs
    if times is None and earlier is None:
        return None
    last = 0 if times is None else job.spec.demand.cores_milli * times[1]
    cores = NO_AMOUNT if earlier is None else earlier.amount("cores")
    return last + cores.declared + cores.unknown


def _times_ms(job: Job | DeclaredJob) -> tuple[int, int] | None:
    """Return the time from start to end of the last run, and that without the time frozen."""
    if job.started_at is None or job.ended_at is None:
        return None
    wall_ms = max(0, round((job.ended_at - job.started_at) * 1000))
    return wall_ms, max(0, wall_ms - round(job.frozen_s(job.ended_at) * 1000))


def _with_amounts(
    one: dict[str, AccountedAmount], more: dict[str, AccountedAmount]
) -> dict[str, AccountedAmount]:
    return {**one, **{axis: one.get(axis, NO_AMOUNT) + each for axis, each in more.items()}}


def _with_gres(
    one: tuple[tuple[str, int], ...], more: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    if not one or not more:
        return one or more
    sums = Counter(dict(one))
    sums.update(dict(more))
    return tuple(sorted(sums.items()))


#: How the fields are joined that are not simply added; of some the highest figure of a job counts.
_JOINS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("memory_declared_bytes", "memory_peak_bytes"), max),
    **dict.fromkeys(("gpu_memory_peak_bytes", "gpu_memory_single_peak_bytes"), max),
    "amounts": _with_amounts,
    "gres_ms": _with_gres,
    "beyond_us": add,
}
_joined = attrgetter(*_JOINS)
_PLAIN = [name for name in Account.__struct_fields__ if name not in _JOINS]
_plain = attrgetter(*_PLAIN)


def _amount(declared: int, used: int | None) -> AccountedAmount:
    return AccountedAmount(unknown=declared) if used is None else AccountedAmount(declared, used)
