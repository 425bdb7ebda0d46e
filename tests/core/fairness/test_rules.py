"""Who pays for a job: the leaf of the fair-share tree."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.core.amounts.resources import Axes, Resources
from drfd.core.fairness.rules import Pool, Rules
from fakes import demand

RULES = Rules(
    capacity=demand(9, 18),
    pools={
        "lab": Pool(weight=Fraction(3), users=frozenset({"alice", "bob"})),
        "open": Pool(),
        "second": Pool(users=frozenset({"alice"})),
        "nobody": Pool(users=frozenset()),
    },
)


@pytest.mark.parametrize(
    ("user", "pool", "leaf"),
    [
        ("carol", None, "root.carol"),
        ("alice", None, "root.lab"),
        ("carol", "open", "root.open"),
        ("carol", "root.open", "root.open"),
        ("alice", "second", "root.second"),
        ("carol", "carol", "root.carol"),
        ("carol", "root.carol", "root.carol"),
    ],
)
def test_a_job_is_paid_for_by_the_pool_it_names_else_by_its_users(
    user: str, pool: str | None, leaf: str
) -> None:
    assert RULES.pool_for(user, pool) == leaf


@pytest.mark.parametrize(("user", "pool"), [("carol", "lab"), ("carol", "nobody")])
def test_a_pool_takes_no_jobs_of_those_who_are_not_in_it(user: str, pool: str) -> None:
    with pytest.raises(NotPermitted) as caught:
        RULES.pool_for(user, pool)
    assert caught.value.code == "not-in-pool"
    assert str(caught.value) == f"pool {pool} does not take jobs of {user}"


@pytest.mark.parametrize(
    ("user", "pool"),
    [("open", None), ("open", "open"), ("pi", None), ("night", None), ("nobody", None)],
)
def test_a_user_and_a_pool_of_several_cannot_share_a_name(user: str, pool: str | None) -> None:
    """The user's own node in the tree would be that of all of them."""
    clashing = Rules(
        capacity=demand(),
        pools={
            "open": Pool(),
            "pi": Pool(users=frozenset({"pi", "student"})),
            "lab": Pool(users=frozenset({"night"})),
            "lab.night": Pool(),
            "nobody": Pool(users=frozenset()),
            "alone": Pool(users=frozenset({"alone"})),
        },
    )
    with pytest.raises(Refused) as caught:
        clashing.pool_for(user, pool)
    assert caught.value.code == "name-clash"
    assert clashing.pool_for("student", None) == "root.pi"
    assert clashing.pool_for("alone", None) == "root.alone"


def test_rules_get_axes_for_disks_that_are_gone_and_no_capacity_on_them() -> None:
    plain = Rules(axes=Axes(disks=("a",)), capacity=demand(9, 18, read=10, write=20))
    assert plain.also_for([on("a")]) is plain
    lost = plain.also_for([on("a"), on("z"), on("b")])
    assert lost.axes == Axes(disks=("a",), lost=("b", "z"))
    assert lost.shares.capacity == (*plain.shares.capacity, 0, 0, 0, 0)


def test_rules_get_axes_for_countables_that_are_gone_and_no_capacity_on_them() -> None:
    axes = Axes(gres=("gpu",), instances=(("gpu", ("0",)),))
    plain = Rules(axes=axes, capacity=replace(demand(9, 18), gres=(("gpu", 1),)))
    asked = [replace(demand(), gres=((name, 1),)) for name in ("gpu", "tape", "fpga")]
    assert plain.also_for(asked[:1]) is plain
    lost = plain.also_for(asked)
    assert lost.axes.gres == ("gpu", "fpga", "tape")
    assert lost.shares.capacity == (*plain.shares.capacity, 0, 0)
    assert (lost.lost_gres, plain.lost_gres) == (("fpga", "tape"), ())


def on(disk: str) -> Resources:
    return Resources(disks=((disk, 1, 0),))
