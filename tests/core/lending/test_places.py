"""The places of users and pools from which lending begins."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from drfd.core.fairness.rules import Pool
from drfd.core.lending.places import places_of
from fakes import ALICE, BOB, Bench, demand, rules, spec


def test_only_what_jobs_hold_beside_the_resource_counts() -> None:
    """The machine has nine cores and 18 GiB."""
    pool = Pool(users=frozenset({"alice"}), weight=Fraction(2))
    bench = Bench(replace(rules(), pools={"lab": pool}))
    bench.start(spec("root.lab", asks=demand(8, 6), actor=ALICE))
    bench.start(spec("root.bob", asks=demand(1, 3), actor=BOB))
    found = places_of(bench.rules.shares, bench.ledger.used, axis=0, unit=1000)
    assert found.keys() == {"root.lab", "root.lab.alice", "root.bob"}
    assert found["root.bob"].entitled == pytest.approx(3)
    assert found["root.bob"].held == pytest.approx(0.5)
    assert found["root.lab"] == found["root.lab.alice"]
    assert found["root.lab"].entitled == pytest.approx(6)
    assert found["root.lab"].held == pytest.approx(0.5)


def test_nobody_has_a_place_where_nothing_runs() -> None:
    bench = Bench()
    bench.submit(spec())
    assert places_of(bench.rules.shares, bench.ledger.used, axis=0, unit=1000) == {}
