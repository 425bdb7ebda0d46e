"""The hierarchy: goldens of docs/fairness.md 2.2, and what min-satisfaction is for."""

from __future__ import annotations

from collections import Counter

from core.passes import plan
from drfd.core.amounts.vectors import Vector, minus
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.plan import Plan

Queues = dict[str, LeafQueue]


def waiting(**demands: tuple[Vector, int]) -> Queues:
    """Leaf → (vector, how many jobs), submitted in turn."""
    queues: Queues = {}
    job_id = 0
    for at in range(max(count for _, count in demands.values())):
        for name, (vector, count) in demands.items():
            if at < count:
                job_id += 1
                path = f"root.{name.replace('__', '.')}"
                queues.setdefault(path, LeafQueue()).add(vector, (0, job_id))
    return queues


def leaf_of(queues: Queues, job_id: int) -> str:
    return next(
        leaf
        for leaf, queue in queues.items()
        for entries in queue.groups.values()
        if (0, job_id) in entries
    )


def filled(shares: FairShare, queues: Queues, used: dict[str, Vector] | None = None) -> Plan:
    used = used or {}
    free = shares.capacity
    for vector in used.values():
        free = minus(free, vector)
    return plan(queues=queues, used=used, free=free, shares=shares)


def tasks(shares: FairShare, queues: Queues) -> Counter[str]:
    return Counter(leaf_of(queues, job_id) for job_id in filled(shares, queues).admitted)


def test_a_guarantee_is_a_promise_whatever_the_weights() -> None:
    """Sixty per cent for one user among four equals: the first phase keeps it."""
    shares = FairShare((10,), {"root.a": NodeRule(guarantee=(6,))})
    queues = waiting(**dict.fromkeys("abcd", ((1,), 20)))
    found = tasks(shares, queues)
    assert found["root.a"] == 6
    assert sum(found.values()) == 10
