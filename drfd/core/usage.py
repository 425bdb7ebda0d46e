"""Resource use of a job over time: a series of few points, and its curve for clients.

A point is a sum, so merged points have exactly the sums of a longer time. The last `FRESH` readings
are stored as they are; older ones are merged into points of about equal length, which doubles when
there are too many.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import add
from typing import NamedTuple

from msgspec import Struct

#: Maximum number of points of a series, and the number of latest ones that are single readings.
MOST = 256
FRESH = 64


class Measure(NamedTuple):
    """A kind of use, of which a point has an amount and a divisor for a mean."""

    #: The name of the mean.
    name: str
    #: Of an amount that grows, the milliseconds of which the mean is; it is divided by the
    #: milliseconds in which it was counted. 0 for a sum of readings, which is divided by their
    #: number.
    per_ms: int

    def mean(self, amount: int, divisor: int) -> int | None:
        if not divisor:
            return None
        # A microsecond of CPU time per millisecond is a thousandth of a core.
        return round(amount / divisor) if self.per_ms == 1 else amount * self._per // divisor

    @property
    def _per(self) -> int:
        return max(1, self.per_ms)


#: Memory and utilisation of GPUs are those of all GPUs together, in per cent of one. Cores
#: beyond the lower end of a range are a part of all.
MEASURES = (
    Measure("cores_milli", 1),
    Measure("memory_bytes", 0),
    Measure("read_bps", 1000),
    Measure("write_bps", 1000),
    Measure("gpu_memory_bytes", 0),
    Measure("gpu_percent", 0),
    Measure("beyond_milli", 1),
)
_AT = {measure.name: at for at, measure in enumerate(MEASURES)}
_WIDTH = 2 + 2 * len(MEASURES)


class Point(NamedTuple):
    """Resource use in the `span_ms` milliseconds before `end_ms`."""

    end_ms: int
    span_ms: int
    #: In the order of `MEASURES`. A divisor of 0 means that the amount is not known.
    amounts: tuple[int, ...]
    divisors: tuple[int, ...]

    @classmethod
    def of(cls, end_ms: int, span_ms: int, **pairs: tuple[int, int]) -> Point:
        """Return a point with these amounts and divisors by name."""
        found = [pairs.get(measure.name, (0, 0)) for measure in MEASURES]
        return cls(end_ms, span_ms, *zip(*found, strict=True))

    def mean(self, name: str) -> int | None:
        at = _AT[name]
        return MEASURES[at].mean(self.amounts[at], self.divisors[at])


class Series:
    """A series of points in one block of machine words: 128 bytes each, 32 KiB at most."""

    __slots__ = ("_rows", "_step_ms")

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._rows = array("q")
        #: Length in milliseconds to which older points are merged.
        self._step_ms = 0
        for point in points:
            self._rows.extend(_row(point))
        if self._rows:
            self._step_ms = self._mean_ms(len(self))

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def __iter__(self) -> Iterator[Point]:
        return map(self._point, range(len(self)))

    @property
    def last(self) -> Point | None:
        return self._point(len(self) - 1) if self._rows else None

    def add(self, point: Point) -> None:
        """Append a point, which must be later than all others."""
        self._rows.extend(_row(point))
        if len(self) <= FRESH:
            return
        self._age(len(self) - FRESH - 1)
        if len(self) > MOST:
            self._thin()

    def _age(self, at: int) -> None:
        """Merge a point that is no longer fresh into the one before it, unless that is complete."""
        if at == 0:
            return
        before, point = self._point(at - 1), self._point(at)
        # Round to the nearest, because the intervals between readings vary.
        if 2 * before.span_ms + point.span_ms <= 2 * self._step_ms:
            row = array("q", _row(merged(before, point)))
            self._rows[(at - 1) * _WIDTH : (at + 1) * _WIDTH] = row

    def _thin(self) -> None:
        old = len(self) - FRESH
        self._step_ms = 2 * max(self._mean_ms(old), self._step_ms)
        pairs = array("q")
        for at in range(0, old - 1, 2):
            pairs.extend(_row(merged(self._point(at), self._point(at + 1))))
        kept = old - old % 2
        self._rows[: kept * _WIDTH] = pairs

    def _mean_ms(self, count: int) -> int:
        """Return the mean length of the oldest `count` points."""
        return sum(self._rows[1 : count * _WIDTH : _WIDTH]) // count

    def _point(self, at: int) -> Point:
        end_ms, span_ms, *sums = self._rows[at * _WIDTH : (at + 1) * _WIDTH]
        return Point(end_ms, span_ms, tuple(sums[: len(MEASURES)]), tuple(sums[len(MEASURES) :]))


def _row(point: Point) -> tuple[int, ...]:
    return point.end_ms, point.span_ms, *point.amounts, *point.divisors


def merged(before: Point, after: Point) -> Point:
    """Return both points as one, with their sums and the end of the later one."""
    return Point(
        after.end_ms,
        before.span_ms + after.span_ms,
        tuple(map(add, before.amounts, after.amounts)),
        tuple(map(add, before.divisors, after.divisors)),
    )


def thinned(points: Iterable[Point], most: int) -> list[Point]:
    """Merge the points into at most `most` points of about equal length."""
    found = list(points)
    if len(found) <= most:
        return found
    first_ms = found[0].end_ms - found[0].span_ms
    whole_ms = max(1, found[-1].end_ms - first_ms)
    kept: list[Point] = []
    place = -1
    for point in found:
        # The slot of the point's end; a first reading has no length.
        here = max(0, point.end_ms - first_ms - 1) * most // whole_ms
        if kept and here <= place:
            kept[-1] = merged(kept[-1], point)
        else:
            kept.append(point)
        place = max(place, here)
    return kept


def _higher(peak: int | None, reading: int | None) -> int | None:
    return peak if reading is None else max(peak or 0, reading)


@dataclass(frozen=True, slots=True)
class GpuTally:
    """What the readings of an attempt's use of GPUs have shown so far; nothing else counts it."""

    #: The highest readings, in bytes: of all GPUs together, and of a single one. None before the
    #: first that was known.
    memory_peak: int | None = None
    single_peak: int | None = None
    #: Sum of the readings of utilisation, in per cent of one GPU, and their number.
    percent_sum: int = 0
    percent_count: int = 0

    def plus(self, memory_bytes: int | None, percent: int | None) -> GpuTally:
        """Return the tally with another reading of all GPUs, of which None is not known."""
        return GpuTally(
            _higher(self.memory_peak, memory_bytes),
            self.single_peak,
            self.percent_sum + (percent or 0),
            self.percent_count + (percent is not None),
        )

    def plus_single(self, memory_bytes: int | None) -> GpuTally:
        """Return the tally with another reading of a single GPU."""
        return replace(self, single_peak=_higher(self.single_peak, memory_bytes))

    @property
    def mean_percent(self) -> int | None:
        return self.percent_sum // self.percent_count if self.percent_count else None


#: Milliseconds of use of the floor by which a use between two readings may seem to be above it: the
#: kernel counts quotas in periods of 100 ms, which readings do not meet.
_JITTER_MS = 150


@dataclass(frozen=True, slots=True)
class BeyondTally:
    """Processor time that an attempt has used beyond its floor until a reading, in each interval
    between two readings. Use below the floor makes up for none of it."""

    beyond_us: int = 0
    #: All that the attempt had used at the latest reading, and when that was, on the monotonic
    #: clock: readings go on from there after a restart.
    cpu_us: int = 0
    mono_ms: int = 0

    def plus(self, floor_milli: int, cpu_us: int, mono_ms: int) -> BeyondTally:
        """Return the tally with another reading; one that is not later changes nothing."""
        span_ms = mono_ms - self.mono_ms
        if span_ms <= 0:
            return self
        # A thousandth of a core is a microsecond per millisecond.
        beyond_us = cpu_us - self.cpu_us - floor_milli * span_ms
        beyond_us = beyond_us if beyond_us > floor_milli * _JITTER_MS else 0
        return BeyondTally(self.beyond_us + beyond_us, max(self.cpu_us, cpu_us), mono_ms)


class Curve(Struct, frozen=True, omit_defaults=True):
    """Points, the oldest first, whose ends are Unix times."""

    #: The job's attempt.
    attempt: int
    points: tuple[Point, ...] = ()
    #: Stored with the curve of a running job, so that a restart goes on with them.
    gpu_tally: GpuTally | None = None
    beyond_tally: BeyondTally | None = None
