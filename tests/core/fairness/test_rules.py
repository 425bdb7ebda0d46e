"""Who pays for a job: the leaf of the fair-share tree."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.core.amounts.resources import Axes, Resources
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
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


def test_a_misspelt_pool_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(Refused) as caught:
        RULES.pool_for("carol", "opne")
    assert caught.value.code == "no-such-pool"
    assert str(caught.value) == "there is no pool 'opne' (did you mean open?)"


def test_an_unknown_pool_is_answered_with_those_there_are() -> None:
    with pytest.raises(Refused) as caught:
        RULES.pool_for("carol", "xyz")
    assert str(caught.value) == (
        "there is no pool 'xyz' (configured pools: lab, nobody, open, second)"
    )
    with pytest.raises(Refused) as caught:
        Rules(capacity=demand()).pool_for("carol", "xyz")
    assert str(caught.value) == "there is no pool 'xyz' (configured pools: none)"


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


def test_another_users_name_is_not_a_pool() -> None:
    """Nobody can let somebody else pay."""
    with pytest.raises(Refused, match="no pool 'dave'"):
        RULES.pool_for("carol", "dave")


def test_the_weights_of_the_pools_are_those_of_their_nodes() -> None:
    assert RULES.shares.rule("root.lab").weights == (3, 3, 3, 3)
    assert RULES.shares.rule("root.open").weights == (1, 1, 1, 1)
    assert RULES.shares.capacity == (9000, 18 << 30, 0, 0)


def test_what_is_not_configured_has_its_documented_default() -> None:
    bare = Rules(capacity=demand())
    assert (bare.grace_s, bare.pools, bare.axes.gres) == (10, {}, ())
    assert Pool() == Pool(weight=Fraction(1), users=None)


def test_there_are_as_many_slots_as_whole_cores_where_nobody_says() -> None:
    assert Rules(capacity=demand(3.5)).slot_count == 3
    assert Rules(capacity=demand(0.5)).slot_count == 1
    assert Rules(capacity=demand(9), slots=20).slot_count == 20


def test_rules_are_equal_by_what_was_configured() -> None:
    assert Rules(capacity=demand(1, 2)) == Rules(capacity=demand(1, 2))
    assert Rules(capacity=demand(1, 2)) != Rules(capacity=demand(1, 3))


def test_what_is_said_of_reads_holds_for_each_disk_of_which_nothing_is_said() -> None:
    claim = NodeSettings(
        weights={"read": Fraction(2), "read:b": Fraction(3)},
        limit={"write": 5, "write:a": 6},
        guarantee={"read:b": 7},
    )
    rule = claim.rule(Axes(disks=("a", "b")))
    assert rule.weights == (1, 1, 2, 1, 3, 1)
    assert rule.limit == (None, None, None, 6, None, 5)
    assert rule.guarantee == (0, 0, 0, 0, 7, 0)


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


def test_whoever_fills_one_of_several_disks_has_a_full_dominant_share() -> None:
    """Summed up, two halves of different disks would look like half of one."""
    axes = Axes(disks=("a", "b"))
    capacity = replace(demand(9, 18), disks=(("a", 100, 100), ("b", 900, 900)))
    shares = Rules(axes=axes, capacity=capacity).shares
    held = axes.vector(replace(demand(1, 1), disks=(("a", 100, 0), ("b", 90, 0))))
    assert shares.dominant_share(held) == 1
    assert axes.names[shares.dominant_axis(held) or 0] == "read:a"
