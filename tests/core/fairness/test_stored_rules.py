"""The text of the rules: the same for the same rules, another one for any other promise."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from drfd.common.week import parse_week_hours
from drfd.core.amounts.resources import Axes, Node, Resources
from drfd.core.fairness.rules import (
    HourlyLimit,
    NodeSettings,
    Pool,
    Preempting,
    ReservationSettings,
    Rules,
)
from drfd.core.fairness.share_tree import WeekQuota
from drfd.core.fairness.stored_rules import read_rules, rules_text
from fakes import rules

NIGHTS = parse_week_hours("22:00-06:00")
LAB = Pool(weight=Fraction(3, 2), users=frozenset({"bob", "alice"}), limit={"cores": 4000})


CHANGES: list[dict[str, object]] = [
    {"pools": {"lab": LAB}},
    {"members": {("lab", "alice"): NodeSettings(guarantee={"cores": 2000})}},
    {"limits_now": {"root.lab": {"cores": 2000}}},
    {"pools": {"lab": Pool(hours=(HourlyLimit(when=NIGHTS, limit={"cores": 1000}),))}},
    {"capacity": Resources(cores_milli=1, memory_bytes=1)},
    {"policy": "fifo"},
    {"patience": ReservationSettings(patience_s=31)},
    {"preempting": Preempting()},
    {"half_life_s": 1},
    {"beside": Resources(cores_milli=500)},
]
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))


@each_change
def test_the_text_can_be_read_again(change: dict[str, object]) -> None:
    changed: Rules = replace(rules(), **change)  # type: ignore[arg-type]
    found = read_rules(rules_text(changed))
    assert found == changed
    assert (found.shares, found.room) == (changed.shares, changed.room)


def test_the_text_of_a_machine_with_everything_can_be_read_again() -> None:
    many = Axes(
        gres=("gpu",), disks=("data", "scratch"), lost=("old",), instances=(("gpu", ("0", "1")),),
        shared=("gpu", 16 << 30),
        nodes=(
            Node(name="n1", capacity=Resources(cores_milli=4000), features=frozenset({"b", "a"})),
            Node(name="n2", capacity=Resources(disks=(("data", 1, 2),))),
        ),
    )  # fmt: skip
    whole = Rules(
        axes=many,
        capacity=Resources(cores_milli=8000, memory_bytes=1 << 40, gres=(("gpu", 2),)),
        pools={"lab": replace(LAB, quota=WeekQuota(share_hours=Fraction(7, 3), waits=True))},
        members={("lab", "bob"): NodeSettings(weights={"cores": Fraction(1, 3)})},
        slots=3,
    )
    text = rules_text(whole)
    assert read_rules(text) == whole
    assert rules_text(read_rules(text)) == text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"capacity": 7}', "null"])
def test_anything_else_is_no_text_of_rules(text: str) -> None:
    with pytest.raises(ValueError):
        read_rules(text)
