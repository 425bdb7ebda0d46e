"""Who is served before whom, for explanations: worked out only when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from drfd.core.fairshare import Standing
from drfd.core.tree import path_up

#: So many are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Ahead:
    #: The first of them, in the order in which they are served.
    names: tuple[str, ...] = ()
    count: int = 0


class Order(Sequence[str]):
    """Waiting leaves, the next one to be served first."""

    def __init__(self, work_out: Callable[[], list[str]]) -> None:
        self._work_out = work_out

    @cached_property
    def _items(self) -> list[str]:
        return self._work_out()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | Order) and self._items == list(other)

    __hash__ = None  # type: ignore[assignment]  # as lists

    def __repr__(self) -> str:
        return repr(self._items)


class Queueing:
    """Answers for the leaves of one pass; each is worked out once."""

    def __init__(self, order: Sequence[str], standing: Standing) -> None:
        self._order = order
        self._standing = standing
        self._levels: dict[str, Fraction] = {}
        self._known: dict[str, Ahead] = {}

    def ahead_of(self, leaf: str) -> Ahead:
        """The waiting leaves that are served before `leaf` because they, or a pool that they are
        in, have less of what they are entitled to, and not only because they asked first."""
        if leaf not in self._known:
            before = list(takewhile(lambda other: other != leaf, self._order))
            if len(before) == len(self._order):
                return Ahead()
            found = [other for other in before if self._is_further_below(other, leaf)]
            self._known[leaf] = Ahead(tuple(islice(found, _NAMED)), len(found))
        return self._known[leaf]

    def _is_further_below(self, other: str, leaf: str) -> bool:
        """At the level where the two part."""
        ours, theirs = path_up(leaf), path_up(other)
        while len(ours) > 1 and len(theirs) > 1 and ours[-1] == theirs[-1]:
            ours, theirs = ours[:-1], theirs[:-1]
        # A pool may be no better off than ours, and yet have somebody in it who is.
        return min(map(self._level, theirs)) < min(map(self._level, ours))

    def _level(self, path: str) -> Fraction:
        if path not in self._levels:
            self._levels[path] = self._standing.satisfaction_key(path)
        return self._levels[path]
