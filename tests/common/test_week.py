"""Times of the week: what may be written, and when that is."""

from __future__ import annotations

import time

import pytest

from drfd.common.errors import Refused
from drfd.common.week import Weekly, parse_week_hours, parse_weekly
from local_clock import at

HOUR = 3600


pytestmark = pytest.mark.usefixtures("in_berlin")


#: 2026-11-23 is a Monday.
MONDAY = "2026-11-23 "


def in_week(text: str) -> list[tuple[str, str]]:
    """Begin and end of what begins in the week, as day and time."""
    spans = parse_week_hours(text).spans_s(at(MONDAY + "00:00"), at("2026-11-30 00:00"))
    named = [[time.strftime("%a %H:%M", time.localtime(at_s)) for at_s in span] for span in spans]
    return [(start, end) for start, end in named]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Wed 08:00-18:00", [("Wed 08:00", "Wed 18:00")]),
        ("wednesday 8:00 - 18:00", [("Wed 08:00", "Wed 18:00")]),
        ("Mon,Wed 08:00–18:00", [("Mon 08:00", "Mon 18:00"), ("Wed 08:00", "Wed 18:00")]),
        ("Mon", [("Mon 00:00", "Tue 00:00")]),
        ("Sat-Sun", [("Sat 00:00", "Sun 00:00"), ("Sun 00:00", "Mon 00:00")]),
        ("Fri , Sat", [("Fri 00:00", "Sat 00:00"), ("Sat 00:00", "Sun 00:00")]),
        ("Fri 22:00-06:00", [("Fri 22:00", "Sat 06:00")]),
        ("Fri 18:00-24:00", [("Fri 18:00", "Sat 00:00")]),
        ("Fri 18:00-00:00", [("Fri 18:00", "Sat 00:00")]),
        ("Fri 18:00-Sun 24:00", [("Fri 18:00", "Mon 00:00")]),
        ("Mon 00:00-24:00", [("Mon 00:00", "Tue 00:00")]),
    ],
)
def test_these_times_are_understood(text: str, spans: list[tuple[str, str]]) -> None:
    assert in_week(text) == spans


def test_days_may_go_over_the_end_of_the_week_and_none_stand_for_all() -> None:
    assert {start[:3] for start, _ in in_week("Sat-Mon 10:00-11:00")} == {"Sat", "Sun", "Mon"}
    assert [start for start, _ in in_week("22:00-06:00")] == [
        f"{day} 22:00" for day in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Sun")
    ], "those of the Sunday before last until Monday"


def test_what_is_open_at_the_begin_is_among_them_and_what_is_over_is_not() -> None:
    weekend = parse_week_hours("Fri 18:00-Mon 08:00")
    for now, count in (("07:59", 1), ("08:00", 0)):
        assert len([*weekend.spans_s(at(MONDAY + now), at("2026-11-27 18:00"))]) == count


def test_local_times_stay_when_the_clocks_change() -> None:
    spans = parse_week_hours("Sat 22:00-06:00").spans_s(at("2026-10-24 12:00"), at("2026-10-31"))
    assert [*spans] == [(at("2026-10-24 22:00"), at("2026-10-25 06:00"))]
    assert at("2026-10-25 06:00") - at("2026-10-24 22:00") == 9 * HOUR


@pytest.mark.parametrize(
    "value",
    [
        *("", "8-18", "Mon 8-18", "Mon 08:00", "Mon 24:00-06:00", "Mon 08:00-24:01"),
        *("Mon 08:60-09:00", "Mo 08:00-18:00", "Mon- 08:00-18:00", "Mon--Fri 08:00-18:00"),
        *("Mon-Wed-Fri 08:00-18:00", "Mon 08:00-18:00 Tue", "Mon-Fri08:00-18:00", ",", "-", 8),
        *(None, ["Mon"], "Mon 08:00-Tue", "Mon Tue 08:00-18:00", "1:00-2:00-3:00"),
    ],
)
def test_anything_else_is_refused_with_examples(value: object) -> None:
    with pytest.raises(Refused) as refusal:
        parse_week_hours(value)
    assert refusal.value.text == f"{value!r} is not a time of the week from begin to end"
    assert '"Mon-Fri 08:00-18:00"' in refusal.value.hint


@pytest.mark.parametrize("text", ["08:00-08:00", "Mon 00:00-00:00", "Fri 18:00-Fri 18:00"])
def test_times_that_end_when_they_begin_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="ends when it begins"):
        parse_week_hours(text)


def test_a_time_of_the_week_is_a_day_and_a_time() -> None:
    assert parse_weekly("Sunday 2:05") == Weekly(6, 2, 5)
    assert [parse_weekly(text) for text in ("Sun", "02:05", "Sun 24:00", "So 02:05")] == [None] * 4
