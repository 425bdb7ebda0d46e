"""Usage that decays, without a clock."""

from __future__ import annotations

import pytest

from drfd.core.history import History

DAY = 86400.0


def spent(*jobs: tuple[str, float, float, float]) -> dict[str, float]:
    history = History(half_life_s=7 * DAY)
    for job in jobs:
        history.add(*job)
    return history.spent


def test_more_for_longer_is_more() -> None:
    found = spent(("root.a", 0.5, 0, 100), ("root.b", 0.5, 0, 200), ("root.c", 0.6, 0, 100))
    assert sorted(found, key=lambda path: found[path]) == ["root.a", "root.c", "root.b"]


def test_what_was_used_a_half_life_ago_counts_half() -> None:
    found = spent(("root.old", 1.0, 0, 10), ("root.new", 0.5, 7 * DAY, 7 * DAY + 10))
    assert found["root.old"] == pytest.approx(found["root.new"])


def test_pools_have_spent_what_is_spent_below_them() -> None:
    found = spent(("root.lab.a", 0.5, 0, 100), ("root.lab.b", 0.5, 0, 100), ("root.c", 1.0, 0, 100))
    assert found["root.lab"] == pytest.approx(found["root.c"])
    assert "root" not in found


def test_years_of_unix_time_do_not_overflow() -> None:
    found = spent(
        ("root.a", 1.0, 0, 1), ("root.a", 1.0, 4e9, 4e9 + 1), ("root.b", 1.0, 4e9, 4e9 + 1)
    )
    assert found["root.a"] == found["root.b"]


def test_a_job_that_held_nothing_or_no_time_has_spent_nothing() -> None:
    assert spent(("root.a", 0.0, 0, 100), ("root.b", 1.0, 5, 5)) == {}
