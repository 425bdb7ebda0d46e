"""The times of maintenance windows: as the machine's clock shows them, across its changes too."""

from __future__ import annotations

import pytest

from drfd.common.week import parse_week_hours
from drfd.core.amounts.resources import Axes
from drfd.core.fairness.rules import HourlyLimit, NodeSettings
from drfd.core.ledger.windows import Window
from drfd.core.model.limit_hours import LimitHours
from drfd.daemon.calendar import (
    Weekly,
    WindowSettings,
    expand,
    expand_hours,
    window_warnings,
)
from local_clock import at

HOUR, WEEK = 3600, 7 * 86400


pytestmark = pytest.mark.usefixtures("in_berlin")


SATURDAYS = WindowSettings(name="backup", start=Weekly(5, 2, 0), length_s=4 * HOUR)


def test_a_window_of_each_week_keeps_its_local_time_when_the_clocks_change() -> None:
    found = expand([SATURDAYS], at("2026-10-19 12:00"))
    assert [each.start_s for each in found] == [
        at("2026-10-24 02:00"),
        at("2026-10-31 02:00"),
        at("2026-11-07 02:00"),
    ]
    assert found[1].start_s - found[0].start_s == WEEK + HOUR
    assert {each.end_s - each.start_s for each in found} == {4.0 * HOUR}
    assert all(each.is_weekly for each in found)


def test_windows_are_in_order_and_those_that_are_over_are_left_out() -> None:
    def once(name: str, start: str) -> WindowSettings:
        return WindowSettings(name=name, start=at(start), length_s=HOUR, reason="why")

    over, late = once("over", "2026-11-01 10:00"), once("late", "2027-06-01 10:00")
    settings = [late, SATURDAYS, over]
    found = expand(settings, at("2026-11-23 12:00"))
    assert [each.name for each in found] == ["backup"] * 3 + ["late"]
    start_s = at("2027-06-01 10:00")
    assert found[-1] == Window(name="late", start_s=start_s, end_s=start_s + HOUR, reason="why")


def test_a_window_that_is_over_and_jobs_that_never_start_are_warned_of() -> None:
    over = WindowSettings(name="old", start=at("2026-11-01 10:00"), length_s=HOUR)
    now_s = at("2026-11-23 12:00")
    assert list(window_warnings([over, SATURDAYS], now_s, 86400)) == [
        "the window old ended 2026-11-01 11:00: it can be removed from the configuration"
    ]
    (warning,) = window_warnings([SATURDAYS], now_s, None)
    assert "never start" in warning


# -- limits by hour --------------------------------------------------------------------------------


def node(*hours: tuple[str, int], own: int | None = None) -> NodeSettings:
    return NodeSettings(
        limit={} if own is None else {"cores": own},
        hours=tuple(
            HourlyLimit(when=parse_week_hours(when), limit={"cores": most}) for when, most in hours
        ),
    )


def cores(hours: LimitHours, text: str) -> int | None:
    return hours.steps["root.lab"].at(at(text)).get("cores")


def test_of_several_limits_the_tightest_counts_and_over_midnight_too() -> None:
    lab = node(("22:00-06:00", 6), ("Fri 18:00-Mon 08:00", 4), ("Sun", 5))
    hours = expand_hours([("root.lab", lab)], Axes(), at("2026-11-23 12:00"))
    times = ("24 12:00", "24 23:00", "25 05:59", "25 06:00", "27 23:00", "29 12:00", "30 08:00")
    assert [cores(hours, f"2026-11-{text}") for text in times] == [None, 6, 6, None, 4, 4, None]


def test_without_limits_by_hour_nothing_is_known_and_nothing_wakes() -> None:
    assert expand_hours([("root.lab", node(own=2))], Axes(), at("2026-11-23 12:00")) == LimitHours()
