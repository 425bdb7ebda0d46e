"""How the use of a job went, as bars: against what it asked for, on any screen."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from drfd_cli import curve

Run = Callable[..., Any]


def points(cores: list[Any], memory: list[Any], *, step_s: float = 2.0) -> dict[str, Any]:
    at = [1_700_000_000.0 + step_s * each for each in range(len(cores))]
    nothing = [None] * len(cores)
    return {"at": at, "cores": cores, "memory": memory, "read": nothing, "write": nothing}


def bars(values: list[Any], *, top: float, columns: int = 80) -> str:
    shown = points(values, values)
    return curve.spark(shown["at"], shown["cores"], top, columns)


def test_a_bar_is_as_high_as_its_part_of_what_was_asked_for() -> None:
    assert bars([0.5, 1, 2, 3, 4], top=4) == "▁▂▄▆█"


def test_what_is_there_at_all_is_seen_and_nothing_is_blank() -> None:
    assert bars([None, 0.001, 0, 4, None], top=4) == " ▁ █"


def test_on_a_narrow_screen_a_bar_is_the_highest_of_its_time() -> None:
    assert bars([1, 1, 4, 1, 1, 1, 1, 1], top=4, columns=4) == "▂█▂▂"


def test_points_far_apart_stand_for_all_the_time_before_them() -> None:
    at = [0.0, 90.0, 92.0, 94.0, 96.0, 98.0, 100.0]
    assert curve.spark(at, [1, 2, 4, 4, 4, 4, 4], 4, 7) == "▂▄▄▄▄▄█"


def test_nothing_at_all_is_a_dash() -> None:
    assert bars([None, 0, None], top=4) == "-"
    assert bars([0, 0, 0], top=0) == "-"


def test_a_screen_without_such_signs_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert bars([0.5, 1, 2, 3, 4], top=4) == ".:=*%"


def test_a_job_is_shown_with_how_its_use_went(drf: Run, daemon: Any, job: Any) -> None:
    shown = points([None, 2.0, 8.0, 4.0], [None, 4 << 30, 16 << 30, 16 << 30], step_s=600)
    daemon.replies = {"show": {"job": job(), "events": [], "curve": shown}}
    lines = drf("show", 42).out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("over time"))
    assert lines[at : at + 2] == [
        "over time  cores   ▂█▄  most 8 of 8, over 30m00s",
        "           memory  ▂██  most 16G of 16G, over 30m00s",
    ]
    assert '"curve": {"at": [' in drf("show", 42, "--json").out


@pytest.mark.parametrize("shown", [None, points([None, 1.0], [1, 1])], ids=["none", "two points"])
def test_where_little_is_known_nothing_is_drawn(
    shown: Any, drf: Run, daemon: Any, job: Any
) -> None:
    daemon.replies = {"show": {"job": job(), "events": [], "curve": shown}}
    assert "over time" not in drf("show", 42).out


def test_a_narrow_screen_gets_no_line_that_breaks(
    drf: Run, daemon: Any, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = points([8.0] * 256, [1 << 30] * 256)
    daemon.replies = {"show": {"job": job(), "events": [], "curve": many}}
    for columns in (30, 60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = drf("show", 42).out.splitlines()
        drawn = [line for line in lines if "█" in line]
        assert len(drawn) == (0 if columns == 30 else 1)
        assert all(len(line) <= min(columns, 101) for line in drawn)
