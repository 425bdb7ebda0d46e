"""The history: what was allocated, used and shared since the view began, drawn in free lines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from canned_snapshots import AT_S, GIB, many, node, resources, snapshot, three_jobs
from drfd_cli.top.history import _MOST, History, height_of, history_lines
from drfd_cli.top.paint import Line, Theme
from drfd_cli.top.screen import plain_signs
from drfd_cli.top.state import Hit, State, TopPanel, WhenShown, press, shown
from drfd_cli.top.view import Scene, Size, hit_at, screen

PLAIN = Theme(has_colour=False)


def busy(at_s: float, cores: float, used: float = 0.0, share: float = 0.5) -> dict[str, Any]:
    """A machine of 16 cores on which alice holds some."""
    mine = node(
        "root.alice", usage=resources(cores, 12 * GIB, gpu=0), running=1, dominant_share=share,
        used={"cores": used, "memory": 6 * GIB, "read": 0, "write": 0},
    )  # fmt: skip
    return snapshot(at=at_s, nodes=[mine])


def grown(*cores: float) -> History:
    """A snapshot each second, of which each second core is used."""
    history = History()
    for at, each in enumerate(cores):
        history.add(busy(AT_S + at, each, each / 2))
    return history


def text(lines: list[Line]) -> list[str]:
    return ["".join(piece.text for piece in line) for line in lines]


def test_curves_go_up_to_the_whole_machine_and_end_with_the_figures_of_now() -> None:
    history = grown(*[0.0] * 10, *[8.0] * 10, *[16.0] * 10)
    last = busy(AT_S + 29, 16.0, 8.0)
    drawn = text(history_lines(history, last, PLAIN, 63, 9))
    assert drawn[0].startswith(" ALLOCATED, the last 29s")
    assert drawn[1] == (" cores          ▄▄▄▄▄█████ 100%                ▂▂▂▂▂▄▄▄▄▄  50% ").ljust(63)
    assert [line[:12].strip() for line in drawn[2:]] == [
        "memory", "read", "write", "gpu", "SHARES, the", "alice", "",
    ]  # fmt: skip


def test_a_peak_outlives_that_moments_are_put_together() -> None:
    history = History()
    for at in range(3 * _MOST):
        history.add(busy(AT_S + at, 16.0 if at == 100 else 1.0))
    assert len(history.moments) < _MOST
    assert max(each.held["cores"] for each in history.moments) == 1.0
    assert history.moments[-1].at_s == AT_S + 3 * _MOST - 1
    assert history.moments[0].at_s <= AT_S + 4


def test_a_snapshot_counts_once_and_one_that_is_away_leaves_a_gap() -> None:
    history = grown(1.0, 1.0)
    history.add(busy(AT_S + 1, 9.0))
    assert len(history.moments) == 2
    history.add(busy(AT_S + 61, 16.0))
    drawn = text(history_lines(history, busy(AT_S + 61, 16.0), PLAIN, 80, 8))
    assert drawn[1].split("cores")[1].strip().startswith("▁")
    assert "    " in drawn[1].split("▁")[1]


def test_it_is_drawn_only_in_lines_that_the_panels_leave_free() -> None:
    history = grown(2.0, 4.0)
    three = three_jobs()

    def seen(size: Size, **changes: Any) -> str:
        scene = Scene(three, State(**changes), AT_S, history=history)
        return "\n".join(text(screen(scene, size, PLAIN)))

    roomy, small = Size(120, 40), Size(80, 24)
    assert "ALLOCATED" in seen(roomy)
    assert "ALLOCATED" not in seen(roomy, history=WhenShown.NEVER)
    assert "ALLOCATED" not in seen(small)
    assert "ALLOCATED" in seen(small, history=WhenShown.ALWAYS)
    # Without it, the other lines stand where they stood.
    without = "\n".join(text(screen(Scene(three, State(), AT_S), roomy, PLAIN))).splitlines()
    begin = next(at for at, line in enumerate(seen(roomy).splitlines()) if "ALLOCATED" in line)
    assert seen(roomy).splitlines()[:begin] == without[:begin]


def test_with_few_lines_shares_go_before_resources_that_nobody_has() -> None:
    drawn = text(history_lines(grown(1.0, 2.0), busy(AT_S + 1, 2.0), PLAIN, 80, 5))
    assert [line[:12].strip() for line in drawn] == [
        "ALLOCATED,", "cores", "memory", "SHARES, the", "alice",
    ]  # fmt: skip


def test_a_click_on_a_curve_selects_nothing() -> None:
    scene = Scene(three_jobs(), State(), AT_S, history=grown(2.0, 4.0))
    lines = text(screen(scene, Size(120, 40), PLAIN))
    begin = next(at for at, line in enumerate(lines) if "ALLOCATED" in line)
    assert hit_at(scene, Size(120, 40), PLAIN, 5, begin + 1) is None
    assert hit_at(scene, Size(120, 40), PLAIN, 5, begin - 3) == Hit(TopPanel.ENDED, 2)


def test_a_key_goes_round_when_it_is_shown() -> None:
    state, seen = State(), []
    for _ in range(3):
        state, _ = press(state, "i", shown(three_jobs(), state), 5)
        seen.append((state.history, state.message))
    assert seen == [
        (WhenShown.ALWAYS, "the history is always shown"),
        (WhenShown.NEVER, "the history is not shown"),
        (WhenShown.WITH_ROOM, "the history is shown where there is room"),
    ]


def test_on_a_plain_terminal_it_is_ascii() -> None:
    lines = text(history_lines(grown(1.0, 4.0, 9.0, 16.0), busy(AT_S + 3, 16.0), PLAIN, 80, 9))
    plain = [plain_signs(line) for line in lines]
    assert all(line.isascii() and "?" not in line for line in plain)
    assert [len(line) for line in plain] == [80] * 9


def test_before_the_second_snapshot_there_is_nothing() -> None:
    history = grown(1.0)
    assert height_of(history, busy(AT_S, 1.0)) == 0


@pytest.mark.parametrize("users", [0, 1, 60])
@given(columns=st.integers(72, 220), room=st.integers(0, 60))
def test_it_has_exactly_its_size(users: int, columns: int, room: int) -> None:
    now = many(users, 50) if users else snapshot()
    history = History()
    for at in range(3):
        history.add({**now, "at": AT_S + at})
    lines = text(history_lines(history, now, PLAIN, columns, room))
    assert [cell_len(line) for line in lines] == [columns] * room
