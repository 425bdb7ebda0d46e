"""The waiting jobs of one leaf, in its own order: priority first, then the order of submission.

Jobs of one demand vector form a group, so a pass looks at one head per group, not at every job.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from drfd.core.resources import Vector

#: (-priority, job id): ids grow with the time of submission.
Entry = tuple[int, int]


class LeafQueue:
    """Sorted entries by demand vector; empty groups are dropped."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[Vector, list[Entry]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def __bool__(self) -> bool:
        return bool(self.groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeafQueue) and self.groups == other.groups

    __hash__ = None  # type: ignore[assignment]  # mutable

    def add(self, demand: Vector, entry: Entry) -> None:
        group = self.groups.setdefault(demand, [])
        # New jobs come last: the common case costs one comparison.
        if not group or group[-1] < entry:
            group.append(entry)
        else:
            insort(group, entry)

    def remove(self, demand: Vector, entry: Entry) -> None:
        group = self.groups[demand]
        at = bisect_left(group, entry)
        if at == len(group) or group[at] != entry:
            raise KeyError(entry)
        del group[at]
        if not group:
            del self.groups[demand]
