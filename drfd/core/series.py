"""How something was used over time, in few points: the newest as they came, older ones together.

A point is a sum, so points put together say exactly what they said before, of a longer time. The
last `FRESH` readings stay as they are; what is older is kept in points of about one length each,
which doubles when there are too many of them. So the whole of a long life is there, evenly.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Points at most; so many of them are single readings.
MOST = 256
FRESH = 64


class Point(NamedTuple):
    """What was used until `end_ms`, in `span_ms`. Each amount has what it is to be divided by for
    a mean: milliseconds, or readings for the memory; 0: not known."""

    end_ms: int
    span_ms: int
    cpu_us: int = 0
    cpu_ms: int = 0
    #: A sum of readings, in bytes.
    memory_sum: int = 0
    memory_count: int = 0
    read_bytes: int = 0
    read_ms: int = 0
    written_bytes: int = 0
    written_ms: int = 0

    @property
    def cores_milli(self) -> int | None:
        # Microseconds in a millisecond are thousandths of a core.
        return round(self.cpu_us / self.cpu_ms) if self.cpu_ms else None

    @property
    def memory_bytes(self) -> int | None:
        return self.memory_sum // self.memory_count if self.memory_count else None

    @property
    def read_bps(self) -> int | None:
        return self.read_bytes * 1000 // self.read_ms if self.read_ms else None

    @property
    def write_bps(self) -> int | None:
        return self.written_bytes * 1000 // self.written_ms if self.written_ms else None


_WIDTH = len(Point._fields)


class Series:
    """In one block of machine words: 80 bytes a point, 20 KiB at most."""

    __slots__ = ("_longest_ms", "_rows", "_step_ms")

    def __init__(self, points: Iterable[Point] = (), *, longest_ms: int | None = None) -> None:
        """`longest_ms`: older points grow no longer than this; the oldest are dropped instead."""
        self._rows = array("q")
        #: A point behind the fresh ones is complete at this length.
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
        """Later than all that are there."""
        self._rows.extend(point)
        if len(self) <= FRESH:
            return
        self._age(len(self) - FRESH - 1)
        if len(self) > MOST:
            self._thin()

    def _age(self, at: int) -> None:
        """The point is not fresh any more: it completes the one before it, or begins another."""
        if at == 0:
            return
        before, point = self._point(at - 1), self._point(at)
        # To the nearest, because readings are never quite the same time apart.
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
        """The mean length of so many points, the oldest ones."""
        return sum(self._rows[1 : count * _WIDTH : _WIDTH]) // count

    def _point(self, at: int) -> Point:
        return Point._make(self._rows[at * _WIDTH : (at + 1) * _WIDTH])


def merged(before: Point, after: Point) -> Point:
    """Both as one: their sums, and the end of the later one."""
    return Point(after.end_ms, *(map(sum, zip(before[1:], after[1:], strict=True))))


def total(points: Iterable[Point], end_ms: int) -> Point:
    """What several use at one time, each measured over a span that ends about then: of the cores
    and rates the sum of all that are known, over the longest span of them."""
    found = list(points)
    cpu = [each for each in found if each.cpu_ms]
    read = [each for each in found if each.read_ms]
    written = [each for each in found if each.written_ms]
    memory = [each.memory_bytes or 0 for each in found if each.memory_count]
    cpu_ms = max((each.cpu_ms for each in cpu), default=0)
    read_ms = max((each.read_ms for each in read), default=0)
    written_ms = max((each.written_ms for each in written), default=0)
    return Point(
        end_ms,
        max((each.span_ms for each in found), default=0),
        sum(each.cpu_us * cpu_ms // each.cpu_ms for each in cpu),
        cpu_ms,
        sum(memory),
        1 if memory else 0,
        sum(each.read_bytes * read_ms // each.read_ms for each in read),
        read_ms,
        sum(each.written_bytes * written_ms // each.written_ms for each in written),
        written_ms,
    )


def thinned(points: Iterable[Point], most: int) -> list[Point]:
    """The same in `most` points at most, each of about as long a time."""
    found = list(points)
    if len(found) <= most:
        return found
    first_ms = found[0].end_ms - found[0].span_ms
    whole_ms = max(1, found[-1].end_ms - first_ms)
    kept: list[Point] = []
    place = -1
    for point in found:
        # Where its end lies; a first reading has no length.
        here = max(0, point.end_ms - first_ms - 1) * most // whole_ms
        if kept and here <= place:
            kept[-1] = merged(kept[-1], point)
        else:
            kept.append(point)
        place = max(place, here)
    return kept
