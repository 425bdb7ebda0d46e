"""Used against declared: what adds up, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.explain.account import BY, UsageAccounts, account_of
from drfd.core.explain.ended_jobs import LAST
from drfd.core.model.account import NO_AMOUNT, Account, AccountedAmount, account_of_run
from drfd.core.model.job import Job, JobState, Outcome, Usage, Words
from fakes import GIB, demand, spec

JOB = Job(
    id=1,
    spec=spec(asks=demand(2, 1, read=100), name="train"),
    state=JobState.ENDED,
    attempt=1,
    submitted_at=0.0,
    started_at=1000.0,
    ended_at=1010.0,
    suspended_s=2.0,
    outcome=Outcome.COMPLETED,
    usage=Usage(
        cpu_s=4.0, memory_peak_bytes=GIB // 4, read_bytes=80, written_bytes=7, throttled_us=500
    ),
)


def test_a_frozen_job_declares_its_memory_alone() -> None:
    assert account_of(JOB) == Account(
        jobs=1,
        runs=1,
        run_ms=8000,
        frozen_ms=2000,
        cores=AccountedAmount(16_000_000, 4_000_000),
        memory=AccountedAmount(GIB * 10_000, GIB * 2_500),
        read=AccountedAmount(800_000, 80_000),
        write=NO_AMOUNT,
        read_bytes=80,
        written_bytes=7,
        memory_declared_bytes=GIB,
        memory_peak_bytes=GIB // 4,
        throttled_us=500,
    )


def test_all_runs_of_a_job_count() -> None:
    """It was preempted after ten seconds, tried again after an hour, and then done at once."""
    later = replace(
        JOB,
        started_at=5000.0,
        ended_at=5000.0,
        suspended_s=0.0,
        earlier_runs=account_of_run(JOB),
        usage=Usage(cpu_s=0.25, memory_peak_bytes=GIB // 2, throttled_us=None),
    )
    account = account_of(later)
    assert account is not None
    assert (account.jobs, account.runs, account.run_ms, account.frozen_ms) == (1, 2, 8000, 2000)
    assert account.cores == AccountedAmount(16_000_000, 4_250_000)
    assert (account.memory_declared_bytes, account.memory_peak_bytes) == (GIB, GIB // 2)
    assert account.throttled_unknown_jobs == 1
    cancelled = replace(JOB, started_at=None, usage=None, earlier_runs=account_of_run(JOB))
    assert account_of(cancelled) == account_of(JOB)


def test_a_job_counts_once_as_out_of_memory_and_only_by_its_end() -> None:
    out = replace(JOB, outcome=Outcome.OUT_OF_MEMORY)
    done = account_of(replace(JOB, earlier_runs=account_of_run(out)))
    ended = account_of(replace(out, earlier_runs=account_of_run(out)))
    assert done is not None and ended is not None
    assert (done.out_of_memory_jobs, ended.out_of_memory_jobs) == (0, 1)


def test_what_nobody_has_measured_is_not_wasted() -> None:
    account = account_of(replace(JOB, usage=None, outcome=Outcome.LOST))
    assert account is not None
    assert account.cores == AccountedAmount(unknown=16_000_000)
    assert account.memory == AccountedAmount(unknown=GIB * 10_000)
    assert (account.cores.wasted, account.cores.efficiency) == (0, None)
    assert account.throttled_unknown_jobs == 1


def test_loans_add_up_over_all_runs_and_jobs_and_are_unknown_where_no_job_has_a_range() -> None:
    def of(lent_us: int | None) -> Job:
        return replace(JOB, usage=Usage(cpu_s=4.0, memory_peak_bytes=1, lent_us=lent_us))

    accounts = UsageAccounts("user")
    accounts.take([of(None)])
    assert accounts.total().lent_us is None
    accounts.take([of(5), of(0), replace(of(None), earlier_runs=account_of_run(of(7)))])
    assert accounts.total().lent_us == 12


def test_countables_are_held_as_long_as_the_job_lasts_and_add_up_by_name() -> None:
    def of(**counts: int) -> Job:
        asks = replace(JOB.spec.demand, gres=tuple(sorted(counts.items())))
        return replace(JOB, spec=spec(asks=asks))

    one = account_of(of(gpu=2))
    assert one is not None
    assert one.gres_ms == (("gpu", 20_000),)
    books = UsageAccounts("user")
    books.take([of(gpu=2), of(), of(fpga=1, gpu=1)])
    assert books.total().gres_ms == (("fpga", 10_000), ("gpu", 30_000))


ON_GPUS = replace(
    JOB,
    spec=spec(asks=replace(demand(2, 1), gres=(("gpu", 2),))),
    usage=Usage(
        cpu_s=4.0,
        memory_peak_bytes=1,
        gpu_mean_percent=150,
        gpu_memory_peak_bytes=7,
        gpu_memory_single_peak_bytes=5,
    ),
)


def test_the_time_of_gpus_counts_as_long_as_the_job_has_them() -> None:
    """Two of them for ten seconds, frozen or not, and one and a half of them busy."""
    account = account_of(ON_GPUS)
    assert account is not None
    assert account.gpus == AccountedAmount(20_000, 15_000)
    assert account.gres_ms == (("gpu", 20_000),)
    assert (account.gpu_memory_peak_bytes, account.gpu_memory_single_peak_bytes) == (7, 5)
    again = account_of(replace(ON_GPUS, earlier_runs=account_of_run(ON_GPUS)))
    assert again is not None and again.gpus == AccountedAmount(40_000, 30_000)


def test_gpus_whose_use_is_not_measured_are_not_wasted() -> None:
    unseen = replace(ON_GPUS, usage=Usage(memory_peak_bytes=1))
    for usage in (unseen.usage, None):
        account = account_of(replace(unseen, usage=usage))
        assert account is not None
        assert account.gpus == AccountedAmount(unknown=20_000)
        assert account.gpu_memory_peak_bytes is None
    books = UsageAccounts("user")
    books.take([ON_GPUS, unseen, JOB])
    total = books.total()
    assert total.gpus == AccountedAmount(20_000, 15_000, 20_000)
    assert (total.gpu_memory_peak_bytes, total.gpu_memory_single_peak_bytes) == (7, 5)


def test_a_job_on_a_gpu_that_it_did_not_ask_for_shows_its_memory_alone() -> None:
    account = account_of(replace(ON_GPUS, spec=JOB.spec))
    assert account is not None
    assert (account.gpus, account.gpu_memory_peak_bytes) == (NO_AMOUNT, 7)


def test_a_job_that_never_ran_is_in_no_account() -> None:
    assert account_of(replace(JOB, started_at=None)) is None
    books = UsageAccounts("user")
    books.take([replace(JOB, started_at=None)])
    assert (books.rows, books.total()) == ({}, Account())


def test_efficiency_is_exact() -> None:
    assert AccountedAmount(3, 1).efficiency == Fraction(1, 3)
    assert AccountedAmount(2, 3).wasted == -1
    assert AccountedAmount().efficiency is None


@pytest.mark.parametrize(
    ("by", "row"),
    [("job", ("1", "train", "alice")), ("name", ("train", "alice")), ("user", ("alice",)),
     ("pool", ("root.alice",))],
)  # fmt: skip
def test_a_row_stands_for_what_is_asked(by: str, row: tuple[str, ...]) -> None:
    books = UsageAccounts(by)
    books.take([JOB])
    assert list(books.rows) == [row]


def test_jobs_of_one_name_and_two_users_are_not_similar() -> None:
    theirs = replace(JOB, id=2, spec=replace(JOB.spec, user="bob"))
    books = UsageAccounts("name")
    books.take([JOB, theirs])
    assert books.similar(("train", "alice")) == [JOB]
    assert books.similar(("train", "bob")) == [theirs]
    assert books.similar(("other", "bob")) == []


def test_evidence_is_the_last_jobs_that_teach_something() -> None:
    failed = replace(JOB, outcome=Outcome.FAILED)
    books = UsageAccounts("job")
    books.take([failed, *(replace(JOB, id=at) for at in range(20, 0, -1))])
    assert [job.id for job in books.similar(("7", "train", "alice"))] == list(
        range(20, 20 - LAST, -1)
    )
    assert UsageAccounts("user").similar(("alice",)) == []


def test_the_largest_rows_come_first_and_the_others_are_one() -> None:
    books = UsageAccounts("user")
    for user, cores in (("a", 1), ("b", 5), ("c", 1), ("d", 2)):
        books.take([replace(JOB, spec=replace(JOB.spec, user=user, demand=demand(cores)))])
    rows, others = books.largest(2)
    assert [row for row, _ in rows] == [("b",), ("d",)]
    assert others == books.rows[("a",)] + books.rows[("c",)]
    assert books.largest(4)[1] is None


def test_single_jobs_stay_in_their_order() -> None:
    books = UsageAccounts("job")
    books.take([replace(JOB, id=2), replace(JOB, id=9, spec=spec(asks=demand(64)))])
    assert [row[0] for row, _ in books.largest(9)[0]] == ["2", "9"]


JOBS = some.builds(
    lambda user, name, cores, run_s, cpu_s, known, outcome: replace(
        JOB,
        spec=replace(spec(asks=demand(cores), name=name), user=user),
        ended_at=1000.0 + run_s,
        outcome=outcome,
        usage=Usage(cpu_s=cpu_s, memory_peak_bytes=7, throttled_us=None) if known else None,
    ),
    some.sampled_from("ab"),
    some.sampled_from("xyz"),
    some.sampled_from([0.1, 0.333, 4]),
    some.floats(0, 1e5),
    some.floats(0, 1e6),
    some.booleans(),
    some.sampled_from(list(Outcome)),
)


@given(some.lists(JOBS, max_size=30), some.sampled_from(sorted(BY)), some.integers(0, 5))
def test_rows_and_others_add_up_to_the_total_exactly(jobs: list[Job], by: str, limit: int) -> None:
    books = UsageAccounts(by)
    books.take(jobs)
    rows, others = books.largest(limit)
    summed = sum((account for _, account in rows), others or Account())
    assert summed == books.total()
    one_by_one = [account for job in jobs if (account := account_of(job)) is not None]
    assert books.total() == sum(one_by_one, Account())
    assert books.total().jobs == len(one_by_one)


def test_a_name_under_which_different_commands_ran_has_no_advice() -> None:
    books = UsageAccounts("name")
    other = replace(JOB, id=8, spec=replace(JOB.spec, argv=Words.of(("./other",))))
    books.take([JOB])
    assert books.similar(("train", "alice")) == [JOB]
    books.take([other])
    assert books.similar(("train", "alice")) == []
