"""Thinning: never more points than there may be, in order, and every sum stays what it was."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.usage import (
    FRESH,
    MOST,
    Curve,
    LentTally,
    Point,
    Series,
    merged,
    thinned,
)
from seeds import examples

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
    return Point(
        end_ms, span_ms,
        cpu or 0, 0 if cpu is None else span_ms,
        memory or 0, 0 if memory is None else 1,
        io or 0, 0 if io is None else span_ms,
        io or 0, 0 if io is None else span_ms,
        gpu or 0, 0 if gpu is None else 1,
        (gpu or 0) >> 20, 0 if gpu is None else 1,
        (cpu or 0) // 2, 0 if cpu is None else span_ms,
    )  # fmt: skip


def sums(points: list[Point]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(each[1:] for each in points), strict=True)))


@STEADY
@given(readings())
def test_a_series_has_few_points_in_order_and_loses_nothing(given_: list[Point]) -> None:
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
def test_the_newest_readings_stay_as_they_were(given_: list[Point]) -> None:
    series = Series()
    for each in given_:
        series.add(each)
    assert list(series)[-FRESH:] == given_[-FRESH:]


@STEADY
@given(readings(), some.integers(1, 64))
def test_thinned_points_are_few_in_order_and_lose_nothing(given_: list[Point], most: int) -> None:
    kept = thinned(given_, most)
    assert len(kept) <= most
    assert [each.end_ms for each in kept] == sorted({each.end_ms for each in kept})
    assert sums(kept) == sums(given_)
    assert kept[-1].end_ms == given_[-1].end_ms
    if len(given_) <= most:
        assert kept == given_


def steady(count: int, *, step_ms: int = 2000) -> list[Point]:
    return [point(at * step_ms, step_ms, at, at, at) for at in range(1, count + 1)]


def test_with_a_longest_point_the_oldest_are_dropped() -> None:
    series = Series(longest_ms=20_000)
    given_ = steady(8_000)
    for each in given_:
        series.add(each)
    kept = list(series)
    assert len(kept) == MOST
    assert max(each.span_ms for each in kept) <= 22_000
    assert kept[-1].end_ms == given_[-1].end_ms
    since_ms = kept[0].end_ms - kept[0].span_ms
    assert sums(kept) == sums([each for each in given_ if each.end_ms > since_ms])


def test_a_series_goes_on_from_points_that_were_kept() -> None:
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


def test_means_are_of_what_is_known() -> None:
    known, unknown = point(2000, 2000, 3_000_000, 4096, 1000), point(4000, 2000, None, None, None)
    both = merged(known, unknown)
    assert (both.end_ms, both.span_ms) == (4000, 4000)
    assert (both.cores_milli, both.memory_bytes) == (1500, 4096)
    assert (both.read_bps, both.write_bps) == (500, 500)
    nothing = (unknown.cores_milli, unknown.memory_bytes, unknown.read_bps, unknown.write_bps)
    assert nothing == (None, None, None, None)
    busy = known._replace(gpu_memory_sum=9, gpu_memory_count=1, gpu_percent_sum=80)
    busy = merged(merged(busy._replace(gpu_percent_count=1), unknown), busy)
    assert (busy.gpu_memory_bytes, busy.gpu_percent) == (9, 160)
    assert (unknown.gpu_memory_bytes, unknown.gpu_percent) == (None, None)


@STEADY
@given(readings())
def test_a_curve_says_what_the_points_said(given_: list[Point]) -> None:
    curve = Curve.of(1, given_)
    assert len(curve) == len(given_)
    for then, now in zip(given_, curve.points(), strict=True):
        assert now[:2] == then[:2]
        assert near(now.cores_milli, then.cores_milli, 1)
        assert near(now.memory_bytes, then.memory_bytes, 1024)
        assert near(now.read_bps, then.read_bps, 1026)
        assert near(now.write_bps, then.write_bps, 1026)
        assert near(now.gpu_memory_bytes, then.gpu_memory_bytes, 1024)
        assert now.gpu_percent == then.gpu_percent
        assert near(now.lent_milli, then.lent_milli, 1)
    again = Curve.of(1, curve.points())
    assert replace(again, read_kib_s=(), write_kib_s=()) == replace(
        curve, read_kib_s=(), write_kib_s=()
    )


def near(now: int | None, then: int | None, unit: int) -> bool:
    return then is now if then is None or now is None else abs(now - then) <= unit


def test_a_curve_of_nothing_is_empty() -> None:
    assert (len(Curve.of(3, [])), list(Curve.of(3, []).points())) == (0, [])


def test_a_loan_is_each_use_beyond_the_floor_and_never_taken_back() -> None:
    """A floor of half a core; readings after one second each."""
    tally, found = LentTally(1, 0, 1000), []
    for cpu_us, mono_ms in ((1_500_000, 2000), (1_500_000, 3000), (2_400_000, 4000)):
        tally = tally.plus(500, cpu_us, mono_ms)
        found.append(tally.lent_us)
    assert found == [1_000_001, 1_000_001, 1_400_001]
    assert tally == LentTally(1_400_001, 2_400_000, 4000)
    assert tally.plus(500, 9_000_000, 4000) == tally, "not later"
    # Without a cgroup, ended processes no longer count.
    assert tally.plus(500, 100_000, 5000) == LentTally(1_400_001, 2_400_000, 5000)
