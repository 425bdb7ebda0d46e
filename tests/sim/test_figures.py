"""Runs of a trace as curves: each figure against one worked out by hand."""

from __future__ import annotations

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import Rules
from drfd.sim.driver import simulate
from drfd.sim.figures import Panel, panels_of
from drfd.sim.workload import SimJob

GB = 1 << 30
RULES = Rules(capacity=Resources(cores_milli=4000, memory_bytes=8 * GB))


def job(id: int, submit_s: float, run_s: float, cores: int, user: str = "ann") -> SimJob:
    return SimJob(
        id=id, name="", submit_s=submit_s, run_s=run_s, limit_s=None, user=user,
        demand=Resources(cores_milli=cores * 1000, memory_bytes=GB),
    )  # fmt: skip


#: Ann has the machine for 200 s, then Bob half of it for 100.
JOBS = [job(1, 0, 200, 4), job(2, 10, 100, 2, "bob")]


def panels() -> dict[str, Panel]:
    run = simulate(JOBS, RULES, policy="fifo")
    return {panel.title: panel for panel in panels_of({"fifo": run})}


def at(panel: Panel, curve: str, x: float) -> float:
    return [y for place, y in panel.curves[curve] if place <= x][-1]


def test_shares_are_dominant_ones_by_user() -> None:
    shares = panels()["Dominant shares by user, fifo"]
    assert list(shares.curves) == ["ann", "bob"], "who held most comes first"
    assert (at(shares, "ann", 100), at(shares, "bob", 100)) == pytest.approx((1, 0))
    assert (at(shares, "ann", 250), at(shares, "bob", 250)) == pytest.approx((0, 0.5))


def test_only_those_who_held_most_are_drawn_and_the_others_counted() -> None:
    jobs = [job(number, 0, 100 + number, 1, f"u{number}") for number in range(1, 13)]
    run = simulate(jobs, RULES, policy="drf")
    (title,) = [each.title for each in panels_of({"drf": run}) if "shares" in each.title]
    assert title == "Dominant shares by user, drf; 4 others held less"


def test_a_run_without_jobs_gives_nothing_to_draw() -> None:
    assert panels_of({"drf": simulate([], RULES)}) == []
