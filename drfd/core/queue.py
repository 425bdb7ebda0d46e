"""The waiting jobs of one leaf, in its own order: priority first, then the order of submission.

Jobs of one demand vector form a group, so a pass looks at one head per group, not at every job.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain

from drfd.core.resources import Vector

#: (-priority, job id): ids grow with the time of submission.
Entry = tuple[int, int]

#: A block of a line is split when it has grown to twice this.
_BLOCK = 512


class Line:
    """Sorted entries, in blocks: what enters or leaves anywhere moves a block, not the whole."""

    __slots__ = ("_blocks", "_length")

    def __init__(self) -> None:
        self._blocks: list[list[Entry]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._blocks)

    def __getitem__(self, index: int) -> Entry:
        for block in self._blocks:
            if index < len(block):
                return block[index]
            index -= len(block)
        raise IndexError(index)

    @property
    def first(self) -> Entry:
        return self._blocks[0][0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Line({list(self)!r})"

    def add(self, entry: Entry) -> None:
        self._length += 1
        # New jobs come last: the common case costs one comparison.
        if not self._blocks or self._blocks[-1][-1] < entry:
            if not self._blocks or len(self._blocks[-1]) >= _BLOCK:
                self._blocks.append([])
            self._blocks[-1].append(entry)
            return
        at = self._block_of(entry)
        block = self._blocks[at]
        insort(block, entry)
        if len(block) >= 2 * _BLOCK:
            self._blocks[at : at + 1] = [block[:_BLOCK], block[_BLOCK:]]

    def remove(self, entry: Entry) -> None:
        at = self._block_of(entry)
        block = self._blocks[at] if at < len(self._blocks) else []
        place = bisect_left(block, entry)
        if place == len(block) or block[place] != entry:
            raise KeyError(entry)
        self._length -= 1
        del block[place]
        if not block:
            del self._blocks[at]

    def _block_of(self, entry: Entry) -> int:
        """The first block that ends with the entry or after it."""
        return bisect_left(self._blocks, entry, key=lambda block: block[-1])


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
        self.groups.setdefault(demand, Line()).add(entry)

    def remove(self, demand: Vector, entry: Entry) -> None:
        group = self.groups[demand]
        group.remove(entry)
        if not group:
            del self.groups[demand]
