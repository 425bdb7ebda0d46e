"""The hierarchy: goldens of docs/fairness.md 2.2, and what min-satisfaction is for."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from core.passes import plan
from drfd.core.amounts.vectors import Vector, minus, plus
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.plan import Plan

Queues = dict[str, LeafQueue]


def weighted(axes: int, **weights: str) -> dict[str, NodeRule]:
    """Rules by path, "__" for dots: weighted(2, lab="3", lab__alice="0.5")."""
    return {
        f"root.{name.replace('__', '.')}": NodeRule(weights=(Fraction(weight),) * axes)
        for name, weight in weights.items()
    }


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


def test_e17_entitlements_of_three_levels() -> None:
    """30 % {20 %, 80 % {50, 50}}, 20 %, 50 % {30, 70}: leaves 6, 12, 12, 20, 15, 35 %."""
    shares = FairShare(
        (100,),
        weighted(
            1, a="30", a__x="20", a__y="80", a__y__p="50", a__y__q="50",
            b="20", c="50", c__u="30", c__v="70",
        ),
    )  # fmt: skip
    leaves = [f"root.{leaf}" for leaf in ("a.x", "a.y.p", "a.y.q", "b", "c.u", "c.v")]
    share_tree = shares.share_tree({}, leaves)
    found = [share_tree.entitlement(leaf) for leaf in leaves]
    assert found == [Fraction(part, 100) for part in (6, 12, 12, 20, 15, 35)]


def test_e17_whole_jobs_fill_the_machine_as_entitled() -> None:
    shares = FairShare(
        (100,), weighted(1, a="3", a__x="2", a__y="8", b="2", c="5", c__u="3", c__v="7")
    )
    queues = waiting(
        a__x=((1,), 100), a__y__p=((1,), 100), a__y__q=((1,), 100), b=((1,), 100),
        c__u=((1,), 100), c__v=((1,), 100),
    )  # fmt: skip
    assert tasks(shares, queues) == {
        "root.a.x": 6, "root.a.y.p": 12, "root.a.y.q": 12, "root.b": 20,
        "root.c.u": 15, "root.c.v": 35,
    }  # fmt: skip


def test_e18_the_fill_gives_each_what_its_pool_promises() -> None:
    """op1 (1, 0) against a pool of op2 (1, 0) and op3 (0, 1): 1/2, 1/2, 1."""
    shares = FairShare((12, 12))
    queues = waiting(op1=((1, 0), 99), pool__op2=((1, 0), 99), pool__op3=((0, 1), 99))
    assert tasks(shares, queues) == {"root.op1": 6, "root.pool.op2": 6, "root.pool.op3": 12}


def test_e18_a_sibling_that_is_rich_in_another_resource_does_not_starve_op2() -> None:
    """op2's tasks end one by one; each time the freed place is given out anew. Comparing op1 with
    the pool alone would end at (1, 0), (0, 0), (0, 1)."""
    shares = FairShare((12, 12))
    used: dict[str, Vector] = {
        "root.op1": (6, 0),
        "root.pool.op2": (6, 0),
        "root.pool.op3": (0, 12),
    }
    for _ in range(60):
        used["root.pool.op2"] = minus(used["root.pool.op2"], (1, 0))
        queues = waiting(op1=((1, 0), 50), pool__op2=((1, 0), 50), pool__op3=((0, 1), 50))
        for job_id in filled(shares, queues, used).admitted:
            leaf = leaf_of(queues, job_id)
            used[leaf] = plus(used[leaf], (1, 0))
    cores = {leaf: vector[0] for leaf, vector in used.items()}
    assert cores["root.pool.op2"] >= 3, "a quarter of the machine is its promise"
    assert cores["root.op1"] + cores["root.pool.op2"] == 12
    # Settles at two thirds and one third.
    assert cores["root.op1"] == pytest.approx(8, abs=1)


def test_e19_a_pool_with_members_of_three_resources_keeps_its_promise() -> None:
    """A pool of 30 % whose members each want another resource, against A (1, 1, 1) of 70 %."""
    shares = FairShare((100, 100, 100), weighted(3, a="7", pool="3"))
    queues = waiting(
        a=((1, 1, 1), 200),
        pool__x=((1, 0, 0), 200), pool__y=((0, 1, 0), 200), pool__z=((0, 0, 1), 200),
    )  # fmt: skip
    found = tasks(shares, queues)
    assert found["root.a"] == 70
    assert [found[f"root.pool.{name}"] for name in "xyz"] == [30, 30, 30]


def test_weights_may_differ_by_resource() -> None:
    """The lab is promised three quarters of the cores and a quarter of the memory."""
    rules = {"root.lab": NodeRule(weights=(Fraction(3), Fraction(1, 3)))}
    share_tree = FairShare((100, 100), rules).share_tree({}, {"root.lab.a", "root.b"})
    assert share_tree.entitled("root.lab.a") == (Fraction(3, 4), Fraction(1, 4))
    assert share_tree.entitled("root.b") == (Fraction(1, 4), Fraction(3, 4))


def test_a_limit_of_a_pool_bounds_its_users_together() -> None:
    shares = FairShare((10, 10), {"root.lab": NodeRule(limit=(4, None))})
    queues = waiting(lab__a=((1, 1), 10), lab__b=((1, 0), 10))
    done = filled(shares, queues)
    assert Counter(leaf_of(queues, job_id) for job_id in done.admitted) == {
        "root.lab.a": 2, "root.lab.b": 2,
    }  # fmt: skip
    assert done.free == (6, 8)


def test_a_guarantee_is_a_promise_whatever_the_weights() -> None:
    """Sixty per cent for one user among four equals: the first phase keeps it."""
    shares = FairShare((10,), {"root.a": NodeRule(guarantee=(6,))})
    queues = waiting(**dict.fromkeys("abcd", ((1,), 20)))
    found = tasks(shares, queues)
    assert found["root.a"] == 6
    assert sum(found.values()) == 10


def test_a_tie_goes_to_who_has_used_less_lately() -> None:
    queues = waiting(a=((4,), 1), b=((4,), 1))
    shares = FairShare((4,))
    first = plan(queues=queues, used={}, free=(4,), shares=shares)
    after = plan(queues=queues, used={}, free=(4,), shares=shares, past_usage={"root.a": 1.0})
    assert [leaf_of(queues, job_id) for job_id in first.admitted] == ["root.a"]
    assert [leaf_of(queues, job_id) for job_id in after.admitted] == ["root.b"]
