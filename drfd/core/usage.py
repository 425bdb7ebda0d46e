"""Resource use of a job or user over time: a series of few points, and its curve for clients.

A point is a sum, so merged points have exactly the sums of a longer time. The last `FRESH` readings
are kept as they are; older ones are merged into points of about equal length, which doubles when
there are too many. So a series covers a job's whole life evenly.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

#: Maximum number of points of a series, and the number of latest ones that are single readings.
MOST = 256
FRESH = 64


class Point(NamedTuple):
    """Resource use in the `span_ms` milliseconds before `end_ms`.

    Beside each amount stands its divisor for a mean: milliseconds, or for memory and GPUs the
    number of readings. A divisor of 0 means that the amount is not known.
    """

    end_ms: int
    span_ms: int
    cpu_us: int = 0
    cpu_ms: int = 0
    #: Sum of readings, in bytes.
    memory_sum: int = 0
    memory_count: int = 0
    read_bytes: int = 0
    read_ms: int = 0
    written_bytes: int = 0
    written_ms: int = 0
    #: Sums of readings of all GPUs together: bytes, and per cent of one GPU.
    gpu_memory_sum: int = 0
    gpu_memory_count: int = 0
    gpu_percent_sum: int = 0
    gpu_percent_count: int = 0
    #: The part of the processor time that was lent.
    lent_us: int = 0
    lent_ms: int = 0

    @property
    def cores_milli(self) -> int | None:
        # A microsecond of CPU time per millisecond is a thousandth of a core.
        return round(self.cpu_us / self.cpu_ms) if self.cpu_ms else None

    @property
    def lent_milli(self) -> int | None:
        return round(self.lent_us / self.lent_ms) if self.lent_ms else None

    @property
    def memory_bytes(self) -> int | None:
        return self.memory_sum // self.memory_count if self.memory_count else None

    @property
    def read_bps(self) -> int | None:
        return self.read_bytes * 1000 // self.read_ms if self.read_ms else None

    @property
    def write_bps(self) -> int | None:
        return self.written_bytes * 1000 // self.written_ms if self.written_ms else None

    @property
    def gpu_memory_bytes(self) -> int | None:
        return self.gpu_memory_sum // self.gpu_memory_count if self.gpu_memory_count else None

    @property
    def gpu_percent(self) -> int | None:
        return self.gpu_percent_sum // self.gpu_percent_count if self.gpu_percent_count else None


_WIDTH = len(Point._fields)


class Series:
    """A series of points in one block of machine words: 128 bytes each, 32 KiB at most."""

    __slots__ = ("_longest_ms", "_rows", "_step_ms")

    def __init__(self, points: Iterable[Point] = (), *, longest_ms: int | None = None) -> None:
        """Start with these points; beyond points of `longest_ms`, the oldest are dropped."""
        self._rows = array("q")
        #: Length in milliseconds to which older points are merged.
        self._step_ms = 0
        self._longest_ms = longest_ms
        for point in points:
            self._rows.extend(point)
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
        self._rows.extend(point)
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
            self._rows[(at - 1) * _WIDTH : (at + 1) * _WIDTH] = array("q", merged(before, point))

    def _thin(self) -> None:
        old = len(self) - FRESH
        step_ms = 2 * max(self._mean_ms(old), self._step_ms)
        if self._longest_ms is not None and step_ms > self._longest_ms:
            del self._rows[:_WIDTH]
            return
        self._step_ms = step_ms
        pairs = array("q")
        for at in range(0, old - 1, 2):
            pairs.extend(merged(self._point(at), self._point(at + 1)))
        kept = old - old % 2
        self._rows[: kept * _WIDTH] = pairs

    def _mean_ms(self, count: int) -> int:
        """Return the mean length of the oldest `count` points."""
        return sum(self._rows[1 : count * _WIDTH : _WIDTH]) // count

    def _point(self, at: int) -> Point:
        return Point._make(self._rows[at * _WIDTH : (at + 1) * _WIDTH])


def merged(before: Point, after: Point) -> Point:
    """Return both points as one, with their sums and the end of the later one."""
    return Point(after.end_ms, *(map(sum, zip(before[1:], after[1:], strict=True))))


def total(points: Iterable[Point], end_ms: int) -> Point:
    """Return the use of several jobs at one time, from points that end at about that time.

    Each is the sum of the amounts that are known, of cores and rates scaled to the longest span.
    """
    found = list(points)
    return Point(
        end_ms,
        max((each.span_ms for each in found), default=0),
        *_scaled_sum([(each.cpu_us, each.cpu_ms) for each in found]),
        *_known_sum([each.memory_bytes for each in found]),
        *_scaled_sum([(each.read_bytes, each.read_ms) for each in found]),
        *_scaled_sum([(each.written_bytes, each.written_ms) for each in found]),
        *_known_sum([each.gpu_memory_bytes for each in found]),
        *_known_sum([each.gpu_percent for each in found]),
        *_scaled_sum([(each.lent_us, each.lent_ms) for each in found]),
    )


def _known_sum(amounts: list[int | None]) -> tuple[int, int]:
    """Return the sum of the amounts that are known, as one reading, or as none if no amount is."""
    known = [each for each in amounts if each is not None]
    return sum(known), 1 if known else 0


def _scaled_sum(amounts: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the sum of amounts, each scaled from its milliseconds to the most, and the most."""
    longest_ms = max((ms for _, ms in amounts), default=0)
    return sum(amount * longest_ms // ms for amount, ms in amounts if ms), longest_ms


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


#: Assumed interval between memory readings when a curve is turned into points again.
_READING_MS = 2000

Column = tuple[int | None, ...]


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


#: Milliseconds of use of the floor by which a use between two readings may be above it although
#: nothing is lent: the kernel counts quotas in periods of 100 ms, which readings do not meet.
_JITTER_MS = 150


@dataclass(frozen=True, slots=True)
class LentTally:
    """Processor time that an attempt has been lent until a reading: what it has used beyond its
    floor, in each interval between two readings. Use below the floor makes up for none of it."""

    lent_us: int = 0
    #: All that the attempt had used at the latest reading, and when that was, on the monotonic
    #: clock: readings go on from there after a restart.
    cpu_us: int = 0
    mono_ms: int = 0

    def plus(self, floor_milli: int, cpu_us: int, mono_ms: int) -> LentTally:
        """Return the tally with another reading; one that is not later changes nothing."""
        span_ms = mono_ms - self.mono_ms
        if span_ms <= 0:
            return self
        # A thousandth of a core is a microsecond per millisecond.
        beyond_us = cpu_us - self.cpu_us - floor_milli * span_ms
        lent_us = beyond_us if beyond_us > floor_milli * _JITTER_MS else 0
        return LentTally(self.lent_us + lent_us, max(self.cpu_us, cpu_us), mono_ms)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in columns, the oldest first: end, length, and the means of that time.

    A value that is not known is None; a column without any known value is empty.
    """

    #: The job's attempt, or 0 for the curve of a user.
    attempt: int
    #: Unix time of the first end, and the time from each end to the next; the first is 0.
    start_ms: int = 0
    ends_ms: tuple[int, ...] = ()
    spans_ms: tuple[int, ...] = ()
    cores_milli: Column = ()
    memory_kib: Column = ()
    read_kib_s: Column = ()
    write_kib_s: Column = ()
    gpu_memory_kib: Column = ()
    gpu_percent: Column = ()
    #: Stored with the curve of a running job, so that a restart goes on with it.
    gpu_tally: GpuTally | None = None
    #: The part of `cores_milli` that was lent.
    lent_milli: Column = ()
    #: As `gpu_tally`.
    lent_tally: LentTally | None = None

    @classmethod
    def of(cls, attempt: int, points: Iterable[Point]) -> Curve:
        """Return the curve of points whose ends are Unix times in milliseconds."""
        found = list(points)
        if not found:
            return cls(attempt)
        starts = [found[0].end_ms, *(each.end_ms for each in found[:-1])]
        return cls(
            attempt,
            found[0].end_ms,
            tuple([each.end_ms - start for each, start in zip(found, starts, strict=True)]),
            tuple([each.span_ms for each in found]),
            _known([each.cores_milli for each in found]),
            _known([_kib(each.memory_bytes) for each in found]),
            _known([_kib(each.read_bps) for each in found]),
            _known([_kib(each.write_bps) for each in found]),
            _known([_kib(each.gpu_memory_bytes) for each in found]),
            _known([each.gpu_percent for each in found]),
            lent_milli=_known([each.lent_milli for each in found]),
        )

    def __len__(self) -> int:
        return len(self.ends_ms)

    def points(self) -> Iterator[Point]:
        """Yield the points of this curve; their values are rounded."""
        end_ms = self.start_ms
        rows = zip(
            self.ends_ms,
            self.spans_ms,
            self.cores_milli or repeat(None),
            self.memory_kib or repeat(None),
            self.read_kib_s or repeat(None),
            self.write_kib_s or repeat(None),
            self.gpu_memory_kib or repeat(None),
            self.gpu_percent or repeat(None),
            self.lent_milli or repeat(None),
            strict=False,
        )
        for later_ms, span_ms, cores, memory, read, written, gpu_memory, gpu_percent, lent in rows:
            end_ms += later_ms
            readings = max(1, span_ms // _READING_MS)
            yield Point(
                end_ms,
                span_ms,
                *_sum_and_divisor(cores, span_ms),
                *_sum_and_divisor(_bytes(memory), readings),
                *_moved(_bytes(read), span_ms),
                *_moved(_bytes(written), span_ms),
                *_sum_and_divisor(_bytes(gpu_memory), readings),
                *_sum_and_divisor(gpu_percent, readings),
                *_sum_and_divisor(lent, span_ms),
            )


def _sum_and_divisor(mean: int | None, divisor: int) -> tuple[int, int]:
    return (0, 0) if mean is None else (mean * divisor, divisor)


def _moved(bytes_per_s: int | None, span_ms: int) -> tuple[int, int]:
    return (0, 0) if bytes_per_s is None else (bytes_per_s * span_ms // 1000, span_ms)


def _bytes(kib: int | None) -> int | None:
    return None if kib is None else kib << 10


def _known(column: list[int | None]) -> Column:
    return tuple(column) if any(each is not None for each in column) else ()


def _kib(amount: int | None) -> int | None:
    return None if amount is None else amount >> 10
