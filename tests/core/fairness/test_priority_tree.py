"""The least of many keys, and who is served next."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from drfd.core.fairness.priority_tree import IndexedHeap, PriorityTree
from drfd.core.fairness.share_tree import FairShare, NodeRule


def test_the_least_is_known_whatever_has_changed() -> None:
    random = Random(1)
    rank: IndexedHeap[tuple[int, str]] = IndexedHeap()
    model: dict[str, tuple[int, str]] = {}
    assert rank.least() is None
    for _ in range(5000):
        name = random.choice("abcdefghij")
        if random.random() < 0.3:
            rank.drop(name)
            model.pop(name, None)
        else:
            key = (random.randrange(20), name)
            rank.put(key)
            model[name] = key
        assert rank.least() == min(model.values(), default=None)
        assert rank.keys == model


def test_changes_of_one_name_take_no_more_room_than_one() -> None:
    """Keys of the past are dropped, also while they do not come up."""
    rank: IndexedHeap[tuple[int, str]] = IndexedHeap()
    rank.put((0, "first"))
    for number in range(10_000):
        rank.put((number + 1, "other"))
    assert len(rank._heap) < 50


def test_the_least_satisfied_comes_first_at_every_level() -> None:
    """The lab as a whole has had its half, and alice in it has nothing."""
    shares = FairShare((12, 12), {"root.lab": NodeRule(weights=(Fraction(2),) * 2)})
    used = {"root.lab.bob": (8, 0), "root.carol": (1, 0)}
    share_tree = shares.share_tree(used, ["root.lab.alice"])
    priority_tree = PriorityTree(share_tree, {})
    order = []
    for head, leaf in enumerate(("root.carol", "root.lab.bob", "root.lab.alice")):
        priority_tree.put(leaf, head)
    while (leaf := priority_tree.next_leaf()) is not None:  # type: ignore[assignment]
        order.append(leaf)
        priority_tree.put(leaf, None)
    assert order == ["root.lab.alice", "root.carol", "root.lab.bob"]


def test_what_is_set_aside_is_passed_over_until_it_is_taken_back() -> None:
    share_tree = FairShare((9,)).share_tree({}, ["root.lab.a", "root.lab.b", "root.c"])
    priority_tree = PriorityTree(share_tree, {})
    for head, leaf in enumerate(("root.lab.a", "root.lab.b", "root.c")):
        priority_tree.put(leaf, head)
    priority_tree.set_aside("root.lab.a")
    assert priority_tree.next_leaf() == "root.lab.b"
    priority_tree.set_aside("root.lab")
    assert priority_tree.next_leaf() == "root.c"
    priority_tree.take_back()
    assert priority_tree.next_leaf() == "root.lab.a"


def test_a_node_at_its_limit_does_not_stand_in_a_ladder_for_that_demand() -> None:
    shares = FairShare((9, 9), {"root.lab": NodeRule(limit=(4, None))})
    share_tree = shares.share_tree({"root.lab.a": (3, 0)}, ["root.lab.b", "root.c"])
    two_cores, memory = PriorityTree(share_tree, {}, (2, 0)), PriorityTree(share_tree, {}, (0, 5))
    for priority_tree in (two_cores, memory):
        priority_tree.put("root.lab.b", 1)
        priority_tree.put("root.c", 2)
    assert two_cores.next_leaf() == "root.c"
    assert memory.next_leaf() == "root.lab.b"
    share_tree.hold("root.lab.a", (-1, 0))
    two_cores.lift("root.lab.a")
    assert two_cores.next_leaf() == "root.lab.b"
