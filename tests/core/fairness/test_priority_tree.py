"""The least of many keys, and who is served next."""

from __future__ import annotations

from drfd.core.fairness.priority_tree import IndexedHeap


def test_changes_of_one_name_take_no_more_room_than_one() -> None:
    """Keys of the past are dropped, also while they do not come up."""
    rank: IndexedHeap[tuple[int, str]] = IndexedHeap()
    rank.put((0, "first"))
    for number in range(10_000):
        rank.put((number + 1, "other"))
    assert len(rank._heap) < 50
