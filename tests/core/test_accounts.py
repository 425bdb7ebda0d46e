"""Accounts: what was declared and used, curves of use."""

from functools import reduce
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from drfd.core.explain.advice import LAST
from drfd.core.explain.ended_jobs import BY, UsageAccounts, account_of, largest_rows
from drfd.core.model.account import joined
from drfd.core.model.job import Job, JobState, Outcome, Usage
from drfd.core.usage import (
    FRESH,
    MEASURES,
    MOST,
    BeyondTally,
    Curve,
    Point,
    Series,
    merged,
    thinned,
)
from drfd.journal import records
from fakes import GIB, demand, replace, spec
from seeds import examples

# -- used against declared -------------------------------------------------------------------------


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


def test_countables_are_held_as_long_as_the_job_lasts_and_add_up_by_name():
    def of(**counts: int) -> Job:
        asks = replace(JOB.spec.demand, gres=tuple(sorted(counts.items())))
        usage = structs.replace(JOB.usage, gpu_mean_percent=150)
        return structs.replace(JOB, spec=spec(asks=asks), usage=usage)

    one = account_of(of(gpu=2))
    assert one is not None
    assert one["gres_ms.gpu"] == 20_000
    assert one["gpu.used"] == 15_000
    books = books_of([of(gpu=2), of(), of(fpga=1, gpu=1)], "user")
    total = books.total()
    assert (total["gres_ms.fpga"], total["gres_ms.gpu"]) == (10_000, 30_000)


def test_a_job_that_never_ran_is_in_no_account():
    assert account_of(structs.replace(JOB, started_at=None)) is None
    books = books_of([structs.replace(JOB, started_at=None)], "user")
    assert (books.rows, books.total()) == ({}, {})


def test_evidence_is_the_last_jobs_that_teach_something():
    failed = structs.replace(JOB, outcome=Outcome.FAILED)
    jobs = [failed, *(structs.replace(JOB, id=at) for at in range(20, 0, -1))]
    learned = list(range(20, 20 - LAST, -1))
    for limit in (3, 50):
        similar = books_of(jobs, "job", limit).similar(("20", "train", "alice"))
        assert [job.id for job in similar] == learned
    assert books_of(jobs, "user").similar(("alice",)) == []


def books_of(jobs: list[Job], by: str, limit: int = 10) -> UsageAccounts:
    declared = [
        records.decode_declared(records.without_spec(job), records.encode(job.spec)) for job in jobs
    ]
    books = UsageAccounts(by, largest_rows(declared, by, limit))
    books.take(jobs)
    return books


SOME_JOBS = some.builds(
    lambda user, name, cores, run_s, cpu_s, known, outcome: structs.replace(
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


@given(some.lists(SOME_JOBS, max_size=30), some.sampled_from(sorted(BY)), some.integers(0, 5))
def test_rows_and_others_add_up_to_the_total_exactly(jobs, by, limit):
    books, whole = books_of(jobs, by, limit), books_of(jobs, by, len(jobs))
    parts = ("cores.declared", "cores.unknown")
    sizes = {row: sum(each.get(part, 0) for part in parts) for row, each in whole.rows.items()}
    order = sizes if by == "job" else sorted(sizes, key=lambda row: (-sizes[row], row))
    assert list(books.rows.items()) == [(row, whole.rows[row]) for row in list(order)[:limit]]
    assert reduce(joined, books.rows.values(), books.rest) == books.total()
    one_by_one = [account for job in jobs if (account := account_of(job)) is not None]
    assert books.total() == reduce(joined, one_by_one, {})
    assert books.total().get("jobs", 0) == len(one_by_one)


# -- curves ----------------------------------------------------------------------------------------


STEADY = examples(40)
#: Milliseconds since the reading before.
steps = some.integers(1, 10_000)
amounts = some.none() | some.integers(0, 1 << 45)


@some.composite
def readings(draw: some.DrawFn) -> list[Point]:
    """Some are late, and some could not be read. Long runs are of a few repeated ones."""
    each = some.tuples(steps, amounts, amounts, amounts, amounts)
    kinds = draw(some.lists(each, min_size=1, max_size=40))
    count = draw(some.integers(1, 1500))
    found, end_ms = [], draw(some.integers(0, 1 << 41))
    for at in range(count):
        span_ms, cpu, memory, io, gpu = kinds[at % len(kinds)]
        end_ms += span_ms
        # Of the first of all, nothing is known but the memory.
        found.append(
            point(end_ms, span_ms, cpu, memory, io, gpu)
            if at
            else point(end_ms, 0, None, memory, None, gpu)
        )
    return found


def point(
    end_ms: int,
    span_ms: int,
    cpu: int | None,
    memory: int | None,
    io: int | None,
    gpu: int | None = None,
) -> Point:
    pairs: dict[str, tuple[int, int]] = {}
    if cpu is not None:
        pairs |= {"cores_milli": (cpu, span_ms), "beyond_milli": (cpu // 2, span_ms)}
    if memory is not None:
        pairs["memory_bytes"] = memory, 1
    if io is not None:
        pairs |= {"read_bps": (io, span_ms), "write_bps": (io, span_ms)}
    if gpu is not None:
        pairs |= {"gpu_memory_bytes": (gpu, 1), "gpu_percent": (gpu >> 20, 1)}
    return Point.of(end_ms, span_ms, **pairs)


def sums(points: list[Point]) -> tuple[int, ...]:
    rows = [(each.span_ms, *each.amounts, *each.divisors) for each in points]
    return tuple(map(sum, zip(*rows, strict=True)))


@STEADY
@given(readings())
def test_a_series_has_few_points_in_order_and_loses_nothing(given_):
    series = Series()
    for each in given_:
        series.add(each)
        assert len(series) <= MOST
    kept = list(series)
    assert [each.end_ms for each in kept] == sorted({each.end_ms for each in kept})
    assert sums(kept) == sums(given_)
    assert kept[-1].end_ms == given_[-1].end_ms
    # Where one ends, the next begins: nothing is told twice, or of another time.
    assert all(b.end_ms - b.span_ms == a.end_ms for a, b in pairwise(kept))


@STEADY
@given(readings())
def test_the_newest_readings_stay_as_they_were(given_):
    series = Series()
    for each in given_:
        series.add(each)
    assert list(series)[-FRESH:] == given_[-FRESH:]


@STEADY
@given(readings(), some.integers(1, 64))
def test_thinned_points_are_few_in_order_and_lose_nothing(given_, most):
    kept = thinned(given_, most)
    assert len(kept) <= most
    assert [each.end_ms for each in kept] == sorted({each.end_ms for each in kept})
    assert sums(kept) == sums(given_)
    assert kept[-1].end_ms == given_[-1].end_ms
    if len(given_) <= most:
        assert kept == given_


def steady(count: int, *, step_ms: int = 2000) -> list[Point]:
    return [point(at * step_ms, step_ms, at, at, at) for at in range(1, count + 1)]


def test_a_series_goes_on_from_points_that_were_kept():
    given_ = steady(5000)
    before = Series()
    for each in given_[:4000]:
        before.add(each)
    after = Series(thinned(before, 128))
    for each in given_[4000:]:
        after.add(each)
    assert len(after) <= MOST
    assert sums(list(after)) == sums(given_)
    old = list(after)[:-FRESH]
    assert max(each.span_ms for each in old) <= 4 * min(each.span_ms for each in old[:-1])


def test_means_are_of_what_is_known():
    known, unknown = point(2000, 2000, 3_000_000, 4096, 1000), point(4000, 2000, None, None, None)
    both = merged(known, unknown)
    assert (both.end_ms, both.span_ms) == (4000, 4000)
    names = "cores_milli", "memory_bytes", "read_bps", "write_bps"
    assert [*map(both.mean, names)] == [1500, 4096, 500, 500]
    assert {unknown.mean(measure.name) for measure in MEASURES} == {None}
    busy = Point.of(2000, 2000, gpu_memory_bytes=(9, 1), gpu_percent=(80, 1))
    both = merged(merged(busy, unknown), busy)
    assert (both.mean("gpu_memory_bytes"), both.mean("gpu_percent")) == (9, 80)


@STEADY
@given(readings())
def test_the_journal_has_the_same_points(given_):
    curve = Curve(1, tuple(given_))
    assert records.decode_curve(records.encode_curve(curve)) == curve


def test_each_use_beyond_the_floor_counts_and_none_below_it_makes_up_for_it():
    """A floor of half a core; readings after one second each."""
    tally, found = BeyondTally(1, 0, 1000), []
    for cpu_us, mono_ms in ((1_500_000, 2000), (1_500_000, 3000), (2_400_000, 4000)):
        tally = tally.plus(500, cpu_us, mono_ms)
        found.append(tally.beyond_us)
    assert found == [1_000_001, 1_000_001, 1_400_001]
    assert tally == BeyondTally(1_400_001, 2_400_000, 4000)
    assert tally.plus(500, 9_000_000, 4000) == tally, "not later"
    # Without a cgroup, ended processes no longer count.
    assert tally.plus(500, 100_000, 5000) == BeyondTally(1_400_001, 2_400_000, 5000)
