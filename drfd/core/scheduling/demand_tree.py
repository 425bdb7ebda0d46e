"""An index of the demand vectors of one leaf that finds the first job within bounds.

It is a tree over the vectors in Z-order (the bits of all amounts interleaved), so vectors near each
other share nodes. Each node has the least and the largest amount on every axis below it, and the
first job. A search skips nodes that are out of bounds, and reads only the first job of nodes that
are within bounds. Of n vectors on d axes a search reads about n^(1 - 1/d), whatever the amounts
are; a change reads as many nodes as the tree is deep.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from drfd.core.amounts.node_room import nodes_of
from drfd.core.amounts.vectors import Vector
from drfd.core.ledger.queue import Entry

#: A node with more parts than this is split.
_MOST_PARTS = 24
#: The bits of a key for the nodes to which a demand is bound.
_CHOICE_BITS = 32
#: A bound on the run time that every job meets.
ANY_LENGTH = 1 << 62
#: An entry that comes after every other.
_LAST: Entry = (1 << 200, 0)


class Item(NamedTuple):
    """The first job that waits for one vector."""

    entry: Entry
    demand: Vector
    #: The demand, and the least run time of the job in seconds: bounds are compared with this.
    point: Vector


class _TreeNode:
    """A node of the tree: items in the order of their keys, or nodes; never empty."""

    __slots__ = ("first", "high", "is_stale", "items", "keys", "low", "parts")

    def __init__(self, keys: list[int], items: list[Item], parts: list[_TreeNode]) -> None:
        #: The key of each item, or the least key in each part.
        self.keys = keys
        self.items, self.parts = items, parts
        self.low: Vector = ()
        self.high: Vector = ()
        self.first: Item
        self.sum_up()

    def sum_up(self) -> None:
        self.is_stale = False
        if self.parts:
            for part in self.parts:
                if part.is_stale:
                    part.sum_up()
            self.low = tuple(map(min, zip(*[part.low for part in self.parts], strict=True)))
            self.high = tuple(map(max, zip(*[part.high for part in self.parts], strict=True)))
            self.first = min([part.first for part in self.parts])
        else:
            columns = list(zip(*[item.point for item in self.items], strict=True))
            self.low, self.high = tuple(map(min, columns)), tuple(map(max, columns))
            self.first = min(self.items)

    def split(self) -> _TreeNode:
        """Cut off the second half, and return it as a new node."""
        half = len(self.keys) // 2
        other = _TreeNode(self.keys[half:], self.items[half:], self.parts[half:])
        del self.keys[half:], self.items[half:], self.parts[half:]
        self.is_stale = True
        return other


class Demands:
    """The demand vectors of one leaf, each with its first job."""

    def __init__(self, capacity: Vector) -> None:
        """`capacity` is the machine's, on each axis."""
        #: The bits by which each amount is shifted: equal shares of the capacity have equal bits.
        widths = [amount.bit_length() for amount in capacity]
        self._shifts = [max(widths, default=0) - width for width in widths]
        #: A number for each choice of nodes to which demands are bound; 0 for none.
        self._choices: dict[frozenset[str] | None, int] = {None: 0}
        self._root: _TreeNode | None = None
        #: How many items and nodes have been read in searches so far.
        self.examined = 0

    def put(self, demand: Vector, entry: Entry, least_s: int = 0) -> None:
        """Let `entry` be the first job of this demand; it runs for at least `least_s` seconds."""
        key, item = self._key(demand), Item(entry, demand, (*demand, least_s))
        if self._root is None:
            self._root = _TreeNode([key], [item], [])
            return
        other = self._put(self._root, key, item)
        if other is not None:
            parts = [self._root, other]
            self._root = _TreeNode([part.keys[0] for part in parts], [], parts)

    def drop(self, demand: Vector) -> None:
        """Remove a demand for which no job waits any more."""
        if self._root is not None and not self._drop(self._root, self._key(demand)):
            self._root = None

    def first(
        self,
        bounds: tuple[float, ...] | None = None,
        may: Callable[[Item], bool] | None = None,
        *,
        before: Item | None = None,
    ) -> Item | None:
        """Return the first job whose point is within the bounds on every axis (any, if `bounds`
        is None), for which `may` holds, and that comes before `before`; None if there is none."""
        root = self._root
        if root is None:
            return None
        if root.is_stale:
            root.sum_up()
        if bounds is None:
            bounds = root.high
        return self._first(root, bounds, may, _LAST if before is None else before.entry)

    def _first(
        self,
        node: _TreeNode,
        bounds: tuple[float, ...],
        may: Callable[[Item], bool] | None,
        before: Entry,
    ) -> Item | None:
        self.examined += 1
        if node.first.entry >= before or not _is_within(node.low, bounds):
            return None
        if may is None and _is_within(node.high, bounds):
            return node.first
        found = None
        if node.parts:
            for part in sorted(node.parts, key=lambda part: part.first.entry):
                better = self._first(part, bounds, may, before)
                if better is not None:
                    found, before = better, better.entry
            return found
        self.examined += len(node.items)
        for item in node.items:
            if item.entry < before and _is_within(item.point, bounds) and (not may or may(item)):
                found, before = item, item.entry
        return found

    def _put(self, node: _TreeNode, key: int, item: Item) -> _TreeNode | None:
        """Enter the item, and return the new node that follows `node` if that had to be split."""
        node.is_stale = True
        if node.parts:
            at = max(0, bisect_right(node.keys, key) - 1)
            other = self._put(node.parts[at], key, item)
            node.keys[at] = node.parts[at].keys[0]
            if other is not None:
                node.keys.insert(at + 1, other.keys[0])
                node.parts.insert(at + 1, other)
        else:
            at = bisect_left(node.keys, key)
            if at < len(node.keys) and node.keys[at] == key:
                node.items[at] = item
            else:
                node.keys.insert(at, key)
                node.items.insert(at, item)
        return node.split() if len(node.keys) > _MOST_PARTS else None

    def _drop(self, node: _TreeNode, key: int) -> bool:
        """Remove the item with this key. Returns whether anything is left in the node."""
        node.is_stale = True
        if node.parts:
            at = bisect_right(node.keys, key) - 1
            if at >= 0:
                if self._drop(node.parts[at], key):
                    node.keys[at] = node.parts[at].keys[0]
                else:
                    del node.keys[at], node.parts[at]
        else:
            at = bisect_left(node.keys, key)
            if at < len(node.keys) and node.keys[at] == key:
                del node.keys[at], node.items[at]
        return bool(node.keys)

    def _key(self, demand: Vector) -> int:
        """Return the interleaved bits of all amounts, the highest bits first, and then the number
        of the nodes to which the demand is bound."""
        raised = [amount << by for amount, by in zip(demand, self._shifts, strict=True)]
        width = max(amount.bit_length() for amount in raised)
        rows = [format(amount, f"0{width}b") for amount in raised] if width else []
        choice = self._choices.setdefault(nodes_of(demand), len(self._choices))
        return (
            int("".join(map("".join, zip(*rows, strict=True))) or "0", 2) << _CHOICE_BITS | choice
        )


def _is_within(point: Vector, bounds: tuple[float, ...]) -> bool:
    for amount, most in zip(point, bounds, strict=True):  # noqa: SIM110  # `all` takes thrice as long
        if amount > most:
            return False
    return True
