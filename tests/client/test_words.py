"""Moments and ids as people write them, moments in the time zone of whoever types them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.client.words import Gres, parse_after, parse_begin, parse_gres
from drfd.common.errors import Refused
from drfd.common.units import show_gres_word
from seeds import examples


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def local(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


#: A Friday in November, in the afternoon.
NOON = "2026-11-20 14:30:10"


@pytest.mark.parametrize(
    ("word", "moment"),
    [
        ("18:00", "2026-11-20 18:00:00"),
        ("14:30:11", "2026-11-20 14:30:11"),
        ("14:30", "2026-11-21 14:30:00"),
        ("9:05", "2026-11-21 09:05:00"),
        ("00:00", "2026-11-21 00:00:00"),
        ("today 23:59", "2026-11-20 23:59:00"),
        ("tomorrow", "2026-11-21 00:00:00"),
        ("tomorrow 08:00", "2026-11-21 08:00:00"),
        ("2026-11-21", "2026-11-21 00:00:00"),
        ("2026-11-21T08:00", "2026-11-21 08:00:00"),
        ("2026-11-21 08:00:30", "2026-11-21 08:00:30"),
        ("2028-02-29", "2028-02-29 00:00:00"),
        ("now+2h", "2026-11-20 16:30:10"),
        ("now+90", "2026-11-20 14:31:40"),
        ("now + 1 minute", "2026-11-20 14:31:10"),
        ("+10s", "2026-11-20 14:30:20"),
        ("10s", "2026-11-20 14:30:20"),
        ("10 min", "2026-11-20 14:40:10"),
        ("1h30m", "2026-11-20 16:00:10"),
        ("3pm", "2026-11-20 15:00:00"),
        ("12:05 am", "2026-11-21 00:05:00"),
        ("tomorrow 3:30 PM", "2026-11-21 15:30:00"),
        ("2026-11-21 8 a.m.", "2026-11-21 08:00:00"),
    ],
)
def test_a_moment_is_what_the_clock_on_the_wall_says(zone: str, word: str, moment: str) -> None:
    assert parse_begin(word, local(NOON)) == local(moment)


def test_the_days_before_and_after_the_last_of_a_month_follow_each_other(zone: str) -> None:
    assert parse_begin("tomorrow", local("2026-12-31 12:00:00")) == local("2027-01-01 00:00:00")
    assert parse_begin("08:00", local("2028-02-28 12:00:00")) == local("2028-02-29 08:00:00")


def test_a_day_may_have_another_length(zone: str) -> None:
    """Summer time ends at night: the next 8 o'clock is still 8 o'clock."""
    for eve in ("2026-10-24", "2026-10-31", "2026-03-28", "2026-03-07"):
        moment = parse_begin("08:00", local(f"{eve} 12:00:00"))
        assert time.localtime(moment)[3:5] == (8, 0)


def test_now_is_at_once() -> None:
    assert parse_begin("now", 1e9) == 0


@pytest.mark.parametrize(
    "word",
    [
        "", " ", "soon", "25:00", "12:60", "12:00:60", "8", "2026-02-30", "2026-13-01",
        "2026-11-20T", "T08:00", "today", "2026-11-20", "2020-01-01", "now+", "now-1h", "now+0",
        "tomorrow08:00", "18:00 tomorrow", "١٨:٠٠", "13pm", "0am", "3 foo", "pm",
        "+", "+10x", "9999999-01-01",
    ],
)  # fmt: skip
def test_what_is_no_moment_to_come_is_refused_in_one_line(zone: str, word: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_begin(word, local(NOON))
    assert str(refused.value).count("\n") == 0
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5-7", [(5, "ok"), (6, "ok"), (7, "ok")]),
        ("5-5:any", [(5, "any")]),
        ("1_2:fail, 8-9:any", [("1_2", "fail"), (8, "any"), (9, "any")]),
    ],
)
def test_a_job_may_wait_for_a_range_of_ids(text: str, wanted: list[tuple[Any, str]]) -> None:
    assert parse_after(text) == wanted


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("7-5", "not a range of job ids (write the lower id first: 5-9)"),
        ("1_2-5", "not a range of job ids"),
        ("5-", "not ID or ID:HOW (write 5, 5-9, 5:any or 5:fail)"),
        ("0-3", "not ID or ID:HOW"),
        ("1-10001", "more than 10000 jobs (wait for an array"),
    ],
)
def test_a_range_that_cannot_be_is_refused_with_the_cure(text: str, complaint: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_after(text)
    assert complaint in str(refusal.value)


@examples(100)
@given(
    some.lists(
        some.tuples(
            some.sampled_from(["gpu", "license", "memory_key", "a-b"]),
            some.integers(0, 1 << 20),
            some.none() | some.integers(1 << 20, 1 << 60),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_lists_of_countables_are_read_as_they_are_written(
    asked: list[tuple[str, int, int | None]],
) -> None:
    parts = [(name, count, memory if name == "gpu" else None) for name, count, memory in asked]
    words = [show_gres_word(*part) for part in parts]
    assert parse_gres(",".join(words)) == tuple(Gres(*part) for part in parts)
    assert parse_gres(" , ".join(words)) == tuple(Gres(*part) for part in parts)


@examples(200)
@given(some.text("gpumeoryG=,1.0 -", max_size=30))
def test_no_list_of_countables_is_read_by_chance(text: str) -> None:
    """It is refused with what to write, or its resources have names and amounts that can be."""
    try:
        found = parse_gres(text)
    except Refused as refusal:
        assert refusal.code == "bad-value" and refusal.hint
        return
    assert found and all(each.name not in ("", "memory") for each in found)
    assert all(each.memory_bytes is None or each.name == "gpu" for each in found)
