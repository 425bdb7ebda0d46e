"""Used against declared: what adds up, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.explain.account import BY, UsageAccounts, account_of
from drfd.core.explain.ended_jobs import LAST
from drfd.core.model.account import Account
from drfd.core.model.job import Job, JobState, Outcome, Usage
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


def test_a_job_that_never_ran_is_in_no_account() -> None:
    assert account_of(replace(JOB, started_at=None)) is None
    books = UsageAccounts("user")
    books.take([replace(JOB, started_at=None)])
    assert (books.rows, books.total()) == ({}, Account())


@pytest.mark.parametrize(
    ("by", "row"),
    [("job", ("1", "train", "alice")), ("name", ("train", "alice")), ("user", ("alice",)),
     ("pool", ("root.alice",))],
)  # fmt: skip
def test_a_row_stands_for_what_is_asked(by: str, row: tuple[str, ...]) -> None:
    books = UsageAccounts(by)
    books.take([JOB])
    assert list(books.rows) == [row]


def test_evidence_is_the_last_jobs_that_teach_something() -> None:
    failed = replace(JOB, outcome=Outcome.FAILED)
    books = UsageAccounts("job")
    books.take([failed, *(replace(JOB, id=at) for at in range(20, 0, -1))])
    assert [job.id for job in books.similar(("7", "train", "alice"))] == list(
        range(20, 20 - LAST, -1)
    )
    assert UsageAccounts("user").similar(("alice",)) == []


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
