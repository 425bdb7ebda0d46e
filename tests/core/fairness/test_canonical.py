"""The text of the rules: the same for the same rules, another one for any other promise."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from drfd.common.week import parse_week_hours
from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import (
    HourlyLimit,
    NodeSettings,
    Pool,
    Preempting,
    ReservationSettings,
    Rules,
    rules_text,
)
from fakes import rules

NIGHTS = parse_week_hours("22:00-06:00")
LAB = Pool(weight=Fraction(3, 2), users=frozenset({"bob", "alice"}), limit={"cores": 4000})


def test_the_order_in_which_pools_users_and_limits_were_written_does_not_matter() -> None:
    one = Pool(users=frozenset({"alice", "bob"}), limit={"cores": 1000, "memory": 2})
    other = Pool(users=frozenset({"bob", "alice"}), limit={"memory": 2, "cores": 1000})
    pools = [{"a": one, "b": LAB}, {"b": LAB, "a": other}]
    assert len({rules_text(replace(rules(), pools=each)) for each in pools}) == 1


@pytest.mark.parametrize(
    "change",
    [
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
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_promise_is_in_the_text(change: dict[str, object]) -> None:
    usual: Rules = rules()
    assert rules_text(replace(usual, **change)) != rules_text(usual)  # type: ignore[arg-type]


def test_the_text_can_be_read_by_other_programs() -> None:
    told = json.loads(rules_text(replace(rules(), pools={"lab": LAB})))
    assert told["pools"]["lab"] == {
        "guarantee": {},
        "hours": [],
        "limit": {"cores": 4000},
        "quota": None,
        "users": ["alice", "bob"],
        "weight": "3/2",
        "weights": {},
    }
    assert told["capacity"]["cores_milli"] == 9000
