"""The turns of a tree's leaves where siblings are compared by a key of their own.

At every level the child with the least key is served, whatever is below it: how schedulers without
min-satisfaction do it. Ties go to who has used less lately, then to the job submitted first, then
to the name, as in `core.admission`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

from drfd.core.ladder import NEVER
from drfd.core.tally import Tally
from drfd.core.tree import TOP, parent_of, path_up

#: Of a node, from what it holds now. Keys of siblings can be compared, and order them totally.
Key = Callable[[str], Any]


class _Turn(NamedTuple):
    key: Any
    spent: float
    #: The job whose turn it would be.
    job_id: int
    path: str


class Turns:
    """Heaps of the children of each node; stale turns are dropped when they come up."""

    def __init__(self, tally: Tally, key: Key, spent: Mapping[str, float]) -> None:
        self._tally, self._key, self._spent = tally, key, spent
        self._line_up()

    def least(self) -> str | None:
        """The leaf that is served next; None: nobody waits any more."""
        path = TOP
        while path not in self._tally.queues:
            turn = self._top(path)
            if turn is None:
                return None
            path = turn.path
        return path

    def drop(self, leaf: str) -> None:
        """It is not served any more."""
        self._set(leaf, None)
        self._lift(leaf)

    def refresh(self, leaf: str) -> None:
        """It holds more now, and has another first job."""
        head = self._tally.head(leaf)
        self._set(leaf, None if head is None else head[0][1])
        self._lift(leaf)

    def order(self) -> list[str]:
        """The leaves that still wait, as they would be served if room came up now; none is left."""
        self._line_up()
        found = []
        while leaf := self.least():
            found.append(leaf)
            self.drop(leaf)
        return found

    def _line_up(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._heaps: dict[str, list[_Turn]] = {}
        for leaf in self._tally.queues:
            self.refresh(leaf)

    def _lift(self, leaf: str) -> None:
        for path in path_up(leaf)[1:]:
            least = self._top(path)
            self._set(path, None if least is None else least.job_id)

    def _set(self, path: str, job_id: int | None) -> None:
        if job_id is None:
            self._turns.pop(path, None)
            return
        turn = _Turn(self._key(path), self._spent.get(path, NEVER), job_id, path)
        if self._turns.get(path) != turn:
            self._turns[path] = turn
            heappush(self._heaps.setdefault(parent_of(path), []), turn)

    def _top(self, path: str) -> _Turn | None:
        heap = self._heaps.get(path, [])
        while heap and self._turns.get(heap[0].path) != heap[0]:
            heappop(heap)
        return heap[0] if heap else None
