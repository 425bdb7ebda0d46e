"""The waiting jobs of one leaf, in its own order: priority first, then the order of submission.

Jobs of one demand vector form a group, so a pass looks at one head per group, not at every job.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import inf

from drfd.core.resources import Vector

#: (-priority, job id): ids grow with the time of submission.
Entry = tuple[int, int]
#: Entries of one priority, by their first and last id; no other job has an id between.
Run = tuple[int, int, int]

#: A block of a line is split when it has grown to twice this.
_BLOCK = 512


class Line:
    """Sorted entries, in blocks: what enters or leaves anywhere moves a block, not the whole.

    The waiting tasks of an array are one run, whatever their number; a task that leaves from its
    middle splits it.
    """

    __slots__ = ("_blocks", "_length")

    def __init__(self) -> None:
        self._blocks: list[list[Run]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        for priority, first, last in self.runs():
            if first == last:
                yield priority, first
            else:
                for job_id in range(first, last + 1):
                    yield priority, job_id

    def __contains__(self, entry: Entry) -> bool:
        return self._find(entry) is not None

    def __getitem__(self, index: int) -> Entry:
        for priority, first, last in self.runs():
            if index <= last - first:
                return priority, first + index
            index -= last - first + 1
        raise IndexError(index)

    @property
    def first(self) -> Entry:
        return self._blocks[0][0][:2]

    @property
    def last(self) -> Entry:
        priority, _, last = self._blocks[-1][-1]
        return priority, last

    def runs(self) -> Iterator[Run]:
        for block in self._blocks:
            yield from block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Line({list(self.runs())!r})"

    def add(self, entry: Entry) -> None:
        self.add_run((*entry, entry[1]))

    def add_run(self, run: Run) -> None:
        self._length += run[2] - run[1] + 1
        self._insert(run)

    def remove(self, entry: Entry) -> None:
        self.remove_run((*entry, entry[1]))

    def remove_run(self, run: Run) -> None:
        """Raises KeyError, and changes nothing, unless all of it is there."""
        priority, first, last = run
        if not self._covers(run):
            raise KeyError(run)
        self._length -= last - first + 1
        while first <= last:
            place = self._find((priority, first))
            assert place is not None
            _, start, end = self._cut(*place)
            if start < first:
                self._insert((priority, start, first - 1))
            if last < end:
                self._insert((priority, last + 1, end))
            first = end + 1

    def take_first(self, most: int) -> Run:
        """Remove the first entries and give them: as many of one run, at most so many."""
        priority, first, last = self._blocks[0][0]
        run = priority, first, min(last, first + most - 1)
        self.remove_run(run)
        return run

    def take_last(self, most: int) -> Run:
        priority, first, last = self._blocks[-1][-1]
        run = priority, max(first, last - most + 1), last
        self.remove_run(run)
        return run

    def _insert(self, run: Run) -> None:
        # New jobs come last: the common case costs one comparison.
        if not self._blocks or self._blocks[-1][-1] < run:
            if not self._blocks or len(self._blocks[-1]) >= _BLOCK:
                self._blocks.append([])
            self._blocks[-1].append(run)
            return
        at = self._block_of(run[:2])
        block = self._blocks[at]
        block.insert(bisect_left(block, run), run)
        if len(block) >= 2 * _BLOCK:
            self._blocks[at : at + 1] = [block[:_BLOCK], block[_BLOCK:]]

    def _cut(self, at: int, place: int) -> Run:
        run = self._blocks[at].pop(place)
        if not self._blocks[at]:
            del self._blocks[at]
        return run

    def _covers(self, run: Run) -> bool:
        priority, first, last = run
        while first <= last:
            place = self._find((priority, first))
            if place is None:
                return False
            at, here = place
            first = self._blocks[at][here][2] + 1
        return True

    def _find(self, entry: Entry) -> tuple[int, int] | None:
        """Block and place of the run that the entry is in."""
        at = self._block_of(entry)
        if at == len(self._blocks):
            return None
        place = bisect_right(self._blocks[at], (*entry, inf)) - 1
        if place < 0:
            return None
        priority, _, last = self._blocks[at][place]
        return (at, place) if priority == entry[0] and last >= entry[1] else None

    def _block_of(self, entry: Entry) -> int:
        """The first block that ends with the entry or after it."""
        return bisect_left(self._blocks, entry, key=_end)


def _end(block: list[Run]) -> Entry:
    priority, _, last = block[-1]
    return priority, last


class LeafQueue:
    """Sorted entries by demand vector; empty groups are dropped."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[Vector, Line] = {}

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def __bool__(self) -> bool:
        return bool(self.groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeafQueue) and self.groups == other.groups

    __hash__ = None  # type: ignore[assignment]  # mutable

    def add(self, demand: Vector, entry: Entry) -> None:
        self.add_run(demand, (*entry, entry[1]))

    def add_run(self, demand: Vector, run: Run) -> None:
        self.groups.setdefault(demand, Line()).add_run(run)

    def remove(self, demand: Vector, entry: Entry) -> None:
        self.remove_run(demand, (*entry, entry[1]))

    def remove_run(self, demand: Vector, run: Run) -> None:
        group = self.groups[demand]
        group.remove_run(run)
        if not group:
            del self.groups[demand]
