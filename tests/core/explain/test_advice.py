"""What to ask for next time: enough for all that was seen, and not far too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.resources import Resources
from drfd.core.explain.ended_jobs import (
    LAST,
    Advice,
    CoresReason,
    advise,
    is_as_asked,
    is_evidence,
    kind_of_job,
    ran_out,
)
from drfd.core.model.job import Job, JobState, Outcome, Usage, Words
from fakes import demand, spec
from seeds import examples

MIB, GIB = 1 << 20, 1 << 30


def job(
    outcome: Outcome = Outcome.COMPLETED, *, run_s: float = 100.0, cores: float = 4,
    memory_gib: float = 4, read: int = 0, write: int = 0, limit_s: int | None = 3600,
    frozen_s: float = 0.0, most: Resources | None = None, **used: Any,
) -> Job:  # fmt: skip
    usual = {"cpu_s": run_s, "memory_peak_bytes": 300 * MIB, "limit_hits": 0}
    return Job(
        id=1,
        spec=spec(asks=demand(cores, memory_gib, read, write), time_limit_s=limit_s, most=most),
        state=JobState.ENDED,
        attempt=1,
        submitted_at=0.0,
        started_at=1000.0,
        ended_at=1000.0 + run_s + frozen_s,
        suspended_s=frozen_s,
        outcome=outcome,
        usage=Usage(**(usual | used)),
    )


def one(*jobs: Job) -> Advice:
    advice = advise(jobs, least=1)
    assert advice is not None
    return advice


def asked(advice: Advice) -> tuple[int, int, int]:
    return advice.cores_milli, advice.memory_bytes, advice.time_limit_s


def on_gpus(
    outcome: Outcome = Outcome.COMPLETED, *, declared_gib: int | None = 20, **used: Any
) -> Job:
    plain = job(outcome, **used)
    memory = () if declared_gib is None else (("gpu", declared_gib * GIB),)
    asks = replace(plain.spec.demand, gres=(("gpu", 2),), gres_memory=memory)
    return replace(plain, spec=replace(plain.spec, demand=asks))


def test_a_job_stopped_for_its_memory_on_a_gpu_gets_more_of_that_alone() -> None:
    """Neither more memory of the machine nor other rates."""
    stopped = on_gpus(Outcome.LIMIT_EXCEEDED, gpu_memory_single_peak_bytes=22 * GIB, cpu_s=1.0)
    advice = advise([stopped])
    assert advice is not None
    assert (advice.gres, advice.gres_memory) == ((("gpu", 2),), (("gpu", 34 * GIB),))
    assert asked(advice) == (4000, 4 * GIB, 3600)
    assert (advice.read_bps, advice.write_bps, advice.short_jobs) == (0, 0, 1)
    assert not is_as_asked(advice, stopped)
    of_24 = advise([stopped], gpu_bytes=24 * GIB)
    assert of_24 is not None
    assert of_24.gres_memory == (("gpu", 24 * GIB),)
    # Of another limit, the end says nothing of what the job needs.
    written = on_gpus(Outcome.LIMIT_EXCEEDED, gpu_memory_single_peak_bytes=20 * GIB)
    assert advise([written]) is None


@pytest.mark.parametrize(
    ("peaks", "needed_gib"),
    [((5, 10, 4), 12), ((5, 19, 4), 24), ((5, None, 4), 20), ((None, None, None), 20), ((5,), 20)],
)
def test_the_memory_on_a_gpu_is_lowered_only_after_enough_jobs_that_were_measured(
    peaks: tuple[int | None, ...], needed_gib: int
) -> None:
    seen = [None if peak is None else peak * GIB for peak in peaks]
    jobs = [on_gpus(gpu_memory_single_peak_bytes=peak) for peak in seen]
    if len(jobs) == 1:
        jobs.append(job(Outcome.TIMEOUT))
    advice = advise(jobs)
    assert advice is not None
    assert advice.gres_memory == (("gpu", needed_gib * GIB),)


# -- jobs that had too little -----------------------------------------------------------------


def test_one_that_ran_out_raises_what_the_others_have_shown() -> None:
    killed = job(Outcome.OUT_OF_MEMORY, memory_gib=2, memory_peak_bytes=2 * GIB)
    assert one(job(), killed, job(), job()).memory_bytes == 3 * GIB


def test_one_that_hit_its_time_limit_gets_twice_as_long() -> None:
    late = job(Outcome.TIMEOUT, run_s=600.0, limit_s=600)
    advice = advise([late])
    assert advice is not None
    assert asked(advice) == (4000, 4 * GIB, 1200)
    assert one(job(), job(), job(), late).time_limit_s == 1200


# -- memory -----------------------------------------------------------------------------------


def test_page_cache_up_to_the_limit_does_not_drive_the_demand_up_for_ever() -> None:
    full = {"memory_gib": 1, "memory_peak_bytes": GIB, "limit_hits": 500}
    assert one(job(**full, memory_working_bytes=200 * MIB)).memory_bytes == 240 * MIB
    assert one(job(**full, memory_working_bytes=1000 * MIB)).memory_bytes == GIB
    # A process that was larger than any sample says more than the samples.
    lone = job(**full, memory_working_bytes=200 * MIB, largest_process_bytes=500 * MIB)
    assert one(lone).memory_bytes == 640 * MIB


# -- cores ------------------------------------------------------------------------------------


# -- ranges -----------------------------------------------------------------------------------

#: Up to eight cores.
MOST = Resources(cores_milli=8000)


def cores_of(*jobs: Job, lends: bool = True) -> tuple[int, int, CoresReason | None]:
    advice = advise(jobs, least=1, lends_cores=lends)
    assert advice is not None
    return advice.cores_milli, advice.most_cores_milli, advice.cores_reason


@pytest.mark.parametrize(
    ("mean", "lent_us", "floor", "is_raised"),
    [
        # All the time above its lower end, clearly or hardly; and a whole range of use.
        (5.2, 320_000_000, 5500, True), (2.5, 50_000_000, 2000, False),
        (8.4, 640_000_000, 8000, True),
        # Bursts alone.
        (0.9, 20_000_000, 1000, False),
        # Nothing was lent to it: its lower end is all that it could use.
        (2.0, 0, 2000, False), (2.0, None, 2000, False), (0.9, None, 1000, False),
    ],
)  # fmt: skip
def test_a_range_keeps_its_upper_end_and_its_lower_end_follows_the_mean(
    mean: float, lent_us: int | None, floor: int, *, is_raised: bool
) -> None:
    seen = job(cores=2, most=MOST, cpu_s=mean * 100, lent_us=lent_us, cores_peak_milli=8000)
    reason = CoresReason(is_above_floor=True, mean_milli=round(mean * 1000), declared_milli=2000)
    most = 8000 if floor < 8000 else 0
    assert cores_of(seen) == (floor, most, reason if is_raised else None)


def test_the_widest_range_of_similar_jobs_counts_and_is_nothing_new_if_it_was_asked_for() -> None:
    wide, plain = job(cores=2, most=MOST, cpu_s=180.0, lent_us=5), job(cores=3, cpu_s=250.0)
    assert cores_of(wide, plain)[:2] == cores_of(plain, wide)[:2] == (2500, 8000)
    asked = replace(wide, spec=replace(wide.spec, demand=demand(2, 0.375), time_limit_s=180))
    advice = one(wide)
    assert is_as_asked(advice, asked)
    assert not is_as_asked(advice, replace(asked, spec=replace(asked.spec, most=None)))


def test_a_range_of_rates_keeps_its_upper_end() -> None:
    ends = Resources(read_bps=400 * MIB)
    rates = {"read": 100 * MIB, "write": 50 * MIB, "written_bytes": 0}
    advice = one(job(**rates, most=ends, read_peak_bps=300 * MIB))
    assert (advice.read_bps, advice.most_read_bps) == (100 * MIB, 400 * MIB)
    assert (advice.write_bps, advice.most_write_bps) == (MIB, 0)


# -- disks ------------------------------------------------------------------------------------


def rates(advice: Advice) -> tuple[str, int, int]:
    return advice.disk, advice.read_bps, advice.write_bps


def test_a_rate_that_was_reached_is_not_lowered() -> None:
    assert one(job(read=10 * MIB, read_peak_bps=10 * MIB)).read_bps == 10 * MIB


# -- time -------------------------------------------------------------------------------------


# -- always -----------------------------------------------------------------------------------

AMOUNTS = some.integers(1, 1 << 40)
PAST = some.builds(
    job,
    some.sampled_from([Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT]),
    run_s=some.floats(0.001, 1e6),
    cores=some.sampled_from([0.1, 0.5, 1, 7.25, 64]),
    memory_gib=some.sampled_from([0.0625, 1, 100]),
    read=some.sampled_from([0, 1000, 100 * MIB]),
    cpu_s=some.floats(0, 1e6),
    memory_peak_bytes=AMOUNTS,
    limit_hits=some.sampled_from([None, 0, 7]),
    memory_working_bytes=some.none() | AMOUNTS,
    largest_process_bytes=some.none() | AMOUNTS,
    read_bytes=AMOUNTS,
    read_peak_bps=some.none() | AMOUNTS,
    quota_periods=some.none() | some.just(100),
    throttled_periods=some.none() | some.integers(0, 100),
    most=some.none() | some.just(Resources(cores_milli=100_000, read_bps=1 << 40)),
    cores_peak_milli=some.none() | some.integers(0, 100_000),
    lent_us=some.none() | AMOUNTS,
)


@given(some.lists(PAST, max_size=12), some.booleans())
def test_advice_may_be_asked_for_and_is_enough_for_every_job_that_it_rests_on(
    jobs: list[Job], lends: bool
) -> None:
    advice = advise(jobs, lends_cores=lends)
    if advice is None:
        return
    assert advice.most_cores_milli == 0 or advice.most_cores_milli > advice.cores_milli
    assert advice.most_read_bps == 0 or advice.most_read_bps > advice.read_bps > 0
    assert advice.cores_milli >= 10 and advice.memory_bytes >= MIB and advice.time_limit_s >= 1
    counted = [each for each in jobs if is_evidence(each)][:LAST]
    assert advice.jobs == len(counted)
    for each in counted:
        assert each.usage is not None
        if ran_out(each):
            assert advice.memory_bytes > each.spec.demand.memory_bytes
        elif each.outcome is Outcome.COMPLETED and each.usage.limit_hits == 0:
            assert advice.memory_bytes > each.usage.memory_peak_bytes
        if each.outcome is Outcome.TIMEOUT:
            assert advice.time_limit_s >= 2 * (each.spec.time_limit_s or 0)
        elif each.outcome is Outcome.COMPLETED:
            assert each.ended_at is not None and each.started_at is not None
            assert advice.time_limit_s >= (each.ended_at - each.started_at)


@given(some.lists(PAST, min_size=1, max_size=LAST))
def test_the_order_of_the_jobs_does_not_matter_when_there_are_enough(jobs: list[Job]) -> None:
    done = [each for each in jobs if each.outcome is Outcome.COMPLETED]
    if len(done) >= 3:
        assert advise(jobs, lends_cores=True) == advise(jobs[::-1], lends_cores=True)


@examples(100, quick=14)
@given(some.lists(PAST, min_size=3, max_size=LAST - 1), PAST)
def test_one_more_job_never_makes_the_advice_smaller(jobs: list[Job], more: Job) -> None:
    before = advise(jobs)
    if before is None or sum(each.outcome is Outcome.COMPLETED for each in jobs) < 3:
        return
    after = advise([*jobs, more])
    assert after is not None
    assert after.memory_bytes >= before.memory_bytes
    assert after.cores_milli >= before.cores_milli
    assert after.time_limit_s >= before.time_limit_s


def test_rates_are_for_the_disk_that_was_used_and_for_none_if_there_were_more() -> None:
    def on(*disks: tuple[str, int, int]) -> Job:
        was = job(read_bytes=500 * MIB, written_bytes=0)
        asks = replace(was.spec.demand, read_bps=0, write_bps=0, disks=disks)
        return replace(was, spec=replace(was.spec, demand=asks))

    data, both = ("data", 100 * MIB, 0), ("scratch", MIB, 0)
    assert rates(one(on(data, ("scratch", 0, 0)))) == ("data", 6 * MIB, 0)
    assert rates(one(on(data, both)))[1:] == (0, 0)
    assert rates(one(on(data), on(both)))[1:] == (0, 0)


# -- which jobs are alike --------------------------------------------------------------------------


def kind(name: str, *argv: str) -> tuple[str, ...]:
    return kind_of_job(replace(job(), spec=replace(spec(name=name), argv=Words.of(argv))))


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        # The name is the first word alone.
        (("sleep", "sleep", "60"), ("sleep", "sleep", "1"), False),
        (("sim", "./sim", "a"), ("sim", "./sim", "a"), True),
        # Interpreters and shells run something else each time, under whatever name.
        (("python3", "python3", "train.py"), ("python3", "python3", "plot.py"), False),
        (("python3", "python3", "train.py"), ("python3", "python3", "train.py"), True),
        (("day", "bash", "-c", "fit a"), ("day", "bash", "-c", "fit b"), False),
        (("day", "/usr/bin/python3.11", "a.py"), ("day", "/usr/bin/python3.11", "b.py"), False),
        # A name that somebody has chosen, for one program.
        (("train", "./fit", "a"), ("train", "./fit", "b"), True),
        (("train", "./fit", "a"), ("train", "./plot", "a"), False),
        (("train", "./fit", "a"), ("test", "./fit", "a"), False),
    ],
)
def test_jobs_are_alike_by_name_and_command(
    one: tuple[str, ...], other: tuple[str, ...], are_alike: bool
) -> None:
    assert (kind(*one) == kind(*other)) is are_alike
