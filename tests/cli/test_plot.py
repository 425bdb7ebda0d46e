"""Curves and bars: in letters, and as pictures."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from drfd.sim.figures import Panel
from drfd_cli import plot, plot_file

CURVES = Panel(
    title="Shares", x="seconds", y="share", top=1.0, steps=True,
    curves={"ann": [(0.0, 1.0), (50.0, 0.5), (100.0, 0.5)], "bob": [(0.0, 0.0), (50.0, 0.5)]},
)  # fmt: skip
HOSTILE = ("$\\frac{1}$", "_apt", "<b>&amp;", "a\x1b[31mb\x07", "ü" * 90)


@pytest.fixture(autouse=True)
def narrow(plain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")


def test_curves_stand_where_their_values_are() -> None:
    assert plot.draw(CURVES).splitlines() == [
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


def test_bars_are_as_long_as_their_values() -> None:
    bars = Panel(
        title="Jobs", x="", y="jobs", names=["DRF", "slots"],
        curves={"done": [(0.0, 35.0), (1.0, 7.0)]},
    )  # fmt: skip
    assert plot.draw(bars).splitlines() == [
        "Jobs",
        "DRF   │" + "█" * 14 + " 35",
        "slots │" + "█" * 3 + " 7",
    ]


def test_powers_of_ten_have_the_same_width() -> None:
    waits = Panel(
        title="Waits", x="seconds", y="part of the jobs", top=1.0, steps=True, log_x=True,
        curves={"": [(1.0, 0.0), (100.0, 0.5), (10_000.0, 1.0)]},
    )  # fmt: skip
    lines = plot.draw(waits).splitlines()
    assert lines[6].index("o") == 6 + 12, "a hundred lies half-way to ten thousand"


def test_nothing_to_draw_is_no_reason_to_fail() -> None:
    assert plot.draw(Panel(title="x", x="s", y="part", curves={})).startswith("x\n")
    assert plot.draw(Panel(title="x", x="", y="jobs", curves={"a": [(0.0, 0.0)]}, names=["b"]))


def test_other_peoples_names_are_harmless(tmp_path: Path) -> None:
    panel = Panel(
        title=HOSTILE[3], x="s", y="share", curves={name: [(0.0, 1.0)] for name in HOSTILE}
    )
    text = plot.draw(panel)
    assert "\x1b" not in text
    assert "\x07" not in text
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.svg"
    plot_file.write(str(path), HOSTILE[3], [panel])
    root = ElementTree.fromstring(path.read_bytes())
    words = {"".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("}text")}
    assert {"$\\frac{1}$", "_apt", "<b>&amp;", "a?[31mb?"} <= words
