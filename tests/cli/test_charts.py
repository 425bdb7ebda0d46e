"""Charts: the use of a job over time, and figures of experiments, on any screen and as pictures."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from canned import CannedDaemon, MakeJob
from cli.drf import Drf
from drfd.sim.figures import Panel
from drfd_cli import charts


def points(cores: list[Any], memory: list[Any], *, step_s: float = 2.0) -> dict[str, Any]:
    at = [1_700_000_000.0 + step_s * each for each in range(len(cores))]
    nothing = [None] * len(cores)
    return {"at": at, "cores": cores, "memory": memory, "read": nothing, "write": nothing}


def bars(values: list[Any], *, top: float, columns: int = 80) -> str:
    shown = points(values, values)
    return charts.spark(shown["at"], shown["cores"], top, columns)


def test_a_bar_is_as_high_as_its_part_of_what_was_asked_for() -> None:
    assert bars([0.5, 1, 2, 3, 4], top=4) == "▁▂▄▆█"


def test_what_is_there_at_all_is_seen_and_nothing_is_blank() -> None:
    assert bars([None, 0.001, 0, 4, None], top=4) == " ▁ █"


def test_on_a_narrow_screen_a_bar_is_the_highest_of_its_time() -> None:
    assert bars([1, 1, 4, 1, 1, 1, 1, 1], top=4, columns=4) == "▂█▂▂"


def test_points_far_apart_stand_for_all_the_time_before_them() -> None:
    at = [0.0, 90.0, 92.0, 94.0, 96.0, 98.0, 100.0]
    assert charts.spark(at, [1, 2, 4, 4, 4, 4, 4], 4, 7) == "▂▄▄▄▄▄█"


def test_a_point_covers_the_time_before_it_and_of_many_the_highest_is_seen() -> None:
    assert charts.highest([0, 60, 100], [1, None, 3], 5) == [1, None, None, None, 3]
    assert charts.highest([0, 1, 2, 100], [1, 9, 2, 4], 2) == [9, 4]
    assert charts.highest([7], [5], 3) == [5, None, None]


def test_nothing_at_all_is_a_dash() -> None:
    assert bars([None, 0, None], top=4) == "-"
    assert bars([0, 0, 0], top=0) == "-"


def test_a_screen_without_such_signs_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert bars([0.5, 1, 2, 3, 4], top=4) == ".:=*%"


def test_a_job_is_shown_with_how_its_use_went(drf: Drf, daemon: CannedDaemon, job: MakeJob) -> None:
    shown = points([None, 2.0, 8.0, 4.0], [None, 4 << 30, 16 << 30, 16 << 30], step_s=600)
    daemon.replies = {"show": {"job": job(), "events": [], "curve": shown}}
    lines = drf("show", 42).out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("over time"))
    assert lines[at : at + 2] == [
        "over time  cores   ▂█▄  most 8 of 8, over 30m00s",
        "           memory  ▂██  most 16G of 16G, over 30m00s",
    ]
    assert '"curve": {"at": [' in drf("show", 42, "--json").out


def test_of_a_job_with_gpus_their_use_is_drawn_too(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    gpus = {"gpu_memory": [None, 1 << 30, 4 << 30, 4 << 30], "gpu_utilisation": [0, 50, 150, 200]}
    shown = points([None, 2.0, 4.0, 8.0], [None] * 4, step_s=600) | gpus
    asks = job()["demand"] | {"gres": {"gpu": 2}}
    daemon.replies = {"show": {"job": job(demand=asks), "events": [], "curve": shown}}
    lines = drf("show", 42).out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("over time"))
    assert lines[at : at + 3] == [
        "over time  cores    ▂▄█  most 8 of 8, over 30m00s",
        "           GPU      ▂▆█  most 200% of 200%, over 30m00s",
        "           GPU mem  ▂██  most 4G, over 30m00s",
    ]
    asks["gres_memory"] = {"gpu": 4 << 30}
    assert "GPU mem  ▁▄▄  most 4G of 8G, over 30m00s" in drf("show", 42).out


def test_of_a_job_that_was_lent_cores_these_are_drawn_too(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    """A job that holds two cores and has had up to eight."""
    lent = {"cores_lent": [None, 0.0, 3.0, 6.0]}
    shown = points([None, 1.0, 5.0, 8.0], [None] * 4, step_s=600) | lent
    asks = job()["demand"] | {"cores": 2.0, "cores_max": 8.0}
    usage = job()["usage"] | {"lent_cpu_seconds": 61.25}
    shown_job = job(demand=asks, usage=usage)
    daemon.replies = {"show": {"job": shown_job, "events": [], "curve": shown}}
    lines = drf("show", 42).out.splitlines()
    assert "lent       61.2 s of CPU, beyond what it holds" in lines
    at = next(at for at, line in enumerate(lines) if line.startswith("over time"))
    assert lines[at : at + 2] == [
        "over time  cores   ▁▅█  most 8 of 2..8, over 30m00s",
        "           lent     ▄█  most 6 of 6, over 30m00s",
    ]
    shown["cores_lent"], shown_job["usage"] = [None, 0.0, 0.0, 0.0], usage | {"lent_cpu_seconds": 0}
    assert "lent" not in drf("show", 42).out


@pytest.mark.parametrize("shown", [None, points([None, 1.0], [1, 1])], ids=["none", "two points"])
def test_where_little_is_known_nothing_is_drawn(
    shown: dict[str, Any] | None, drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    daemon.replies = {"show": {"job": job(), "events": [], "curve": shown}}
    assert "over time" not in drf("show", 42).out


def test_a_narrow_screen_gets_no_line_that_breaks(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = points([8.0] * 256, [1 << 30] * 256)
    daemon.replies = {"show": {"job": job(), "events": [], "curve": many}}
    for columns in (30, 60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = drf("show", 42).out.splitlines()
        drawn = [line for line in lines if "█" in line]
        assert len(drawn) == (0 if columns == 30 else 1)
        assert all(len(line) <= min(columns, 101) for line in drawn)


CURVES = Panel(
    title="Shares", x="seconds", y="share", top=1.0, steps=True,
    curves={"ann": [(0.0, 1.0), (50.0, 0.5), (100.0, 0.5)], "bob": [(0.0, 0.0), (50.0, 0.5)]},
)  # fmt: skip
HOSTILE = ("$\\frac{1}$", "_apt", "<b>&amp;", "a\x1b[31mb\x07", "ü" * 90)


@pytest.fixture
def narrow(plain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")


def test_curves_stand_where_their_values_are(narrow: None) -> None:
    assert charts.draw(CURVES).splitlines() == [
        "Shares",
        "100% │oooooooooooo",
        *["     │"] * 4,
        " 50% │            =ooooooooooo",
        *["     │"] * 4,
        "  0% │++++++++++++",
        "     └────────────────────────",
        "      0            100 seconds",
        "      o ann   + bob   = several",
    ]


def test_bars_are_as_long_as_their_values(narrow: None) -> None:
    bars = Panel(
        title="Jobs", x="", y="jobs", names=["DRF", "slots"],
        curves={"done": [(0.0, 35.0), (1.0, 7.0)]},
    )  # fmt: skip
    assert charts.draw(bars).splitlines() == [
        "Jobs",
        "DRF   │" + "█" * 14 + " 35",
        "slots │" + "█" * 3 + " 7",
    ]


def test_powers_of_ten_have_the_same_width(narrow: None) -> None:
    waits = Panel(
        title="Waits", x="seconds", y="part of the jobs", top=1.0, steps=True, log_x=True,
        curves={"": [(1.0, 0.0), (100.0, 0.5), (10_000.0, 1.0)]},
    )  # fmt: skip
    lines = charts.draw(waits).splitlines()
    assert lines[6].index("o") == 6 + 12, "a hundred lies half-way to ten thousand"


def test_nothing_to_draw_is_no_reason_to_fail(narrow: None) -> None:
    assert charts.draw(Panel(title="x", x="s", y="part", curves={})).startswith("x\n")
    assert charts.draw(Panel(title="x", x="", y="jobs", curves={"a": [(0.0, 0.0)]}, names=["b"]))


def test_other_peoples_names_are_harmless(narrow: None, tmp_path: Path) -> None:
    panel = Panel(
        title=HOSTILE[3], x="s", y="share", curves={name: [(0.0, 1.0)] for name in HOSTILE}
    )
    text = charts.draw(panel)
    assert "\x1b" not in text
    assert "\x07" not in text
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.svg"
    charts.write_plot(str(path), HOSTILE[3], [panel])
    root = ElementTree.fromstring(path.read_bytes())
    words = {"".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("}text")}
    assert {"$\\frac{1}$", "_apt", "<b>&amp;", "a?[31mb?"} <= words
