"""The mouse selects, opens, sorts and moves; pools are folded and orders reversed."""

from __future__ import annotations

import os
import select
from typing import Any

import pytest

from canned_snapshots import AT_S, many, three_jobs
from drfd_cli.top.keys import KeyDecoder
from drfd_cli.top.paint import Theme
from drfd_cli.top.screen import AlternateScreen
from drfd_cli.top.state import Hit, Page, State, TopPanel, cursor, press, shown
from drfd_cli.top.view import Scene, Size, hit_at, screen

PLAIN = Theme(has_colour=False)
SIZES = [Size(80, 24), Size(120, 40), Size(200, 60)]


def lines_of(scene: Scene, size: Size) -> list[str]:
    return ["".join(piece.text for piece in line) for line in screen(scene, size, PLAIN)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("of", [three_jobs(), many(7, 5000)])
@pytest.mark.parametrize("panel", list(TopPanel))
def test_each_row_is_found_where_it_is_drawn(
    size: Size, of: dict[str, Any], panel: TopPanel
) -> None:
    scene = Scene(of, State(panel=panel), AT_S)
    lists, hits = scene.lists(), 0
    for y, line in enumerate(lines_of(scene, size)):
        for x in (1, size.columns - 2):
            hit = hit_at(scene, size, PLAIN, x, y)
            if hit is None or hit.row is None or hit.panel is TopPanel.TREE:
                continue
            beside = line[85:] if size.columns >= 170 else line
            label = lists[hit.panel][hit.row]["label"]
            words = beside.split()
            # A sentence below a row belongs to it.
            assert label in words[:2] or beside.startswith(" " * 13)
            hits += 1
    assert hits > 5


def after(state: State, key: str, hit: Hit | None, of: dict[str, Any] | None = None) -> State:
    of = of or three_jobs()
    state, action = press(state, key, shown(of, state), 5, hit=hit)
    assert action is None
    return state


def test_a_click_selects_and_a_second_one_opens() -> None:
    state = after(State(), "click 3 3", Hit(TopPanel.WAITING, 1))
    assert state.panel is TopPanel.WAITING
    assert cursor(state, TopPanel.WAITING, shown(three_jobs(), state)[TopPanel.WAITING]) == 1
    opened = after(state, "click 3 3", Hit(TopPanel.WAITING, 1))
    assert opened.page is Page.JOB
    assert opened.job is not None and opened.job["label"] == "44_[8-99%4]"


def test_a_click_on_a_heading_sorts_and_again_reverses() -> None:
    state = after(State(), "click 3 3", Hit(TopPanel.WAITING, heading="MEM"))
    assert state.orders()[TopPanel.WAITING] == "memory"
    rows = [row["label"] for row in shown(three_jobs(), state)[TopPanel.WAITING]]
    assert rows == ["45", "44_[8-99%4]", "46"]
    state = after(state, "click 3 3", Hit(TopPanel.WAITING, heading="MEM"))
    rows = [row["label"] for row in shown(three_jobs(), state)[TopPanel.WAITING]]
    assert rows == ["46", "44_[8-99%4]", "45"]
    assert after(state, "click 3 3", Hit(TopPanel.WAITING, heading="FREE")) == state


def test_headings_are_found_where_they_are_drawn() -> None:
    scene = Scene(three_jobs(), State(), AT_S)
    lines = lines_of(scene, Size(120, 40))
    for panel, name, heading in (
        (TopPanel.TREE, "SATISFIED", "SATISFIED"), (TopPanel.RUNNING, "MEMORY", "MEMORY"),
        (TopPanel.WAITING, "BLOCKED", "BLOCKED BY"), (TopPanel.ENDED, "OUTCOME", "OUTCOME"),
        (TopPanel.TREE, "SHARES", "SHARES"),
    ):  # fmt: skip
        y, x = next((y, line.index(name)) for y, line in enumerate(lines) if name in line)
        assert hit_at(scene, Size(120, 40), PLAIN, x + 2, y) == Hit(panel, heading=heading)


def test_the_wheel_moves_in_the_panel_below_the_mouse() -> None:
    busy = many(7, 5000)
    state = after(State(), "wheel-down 3 3", Hit(TopPanel.WAITING, 1), busy)
    assert (state.panel, state.places[TopPanel.WAITING].index) == (TopPanel.WAITING, 3)
    state = after(state, "wheel-up 3 3", Hit(TopPanel.WAITING, 1), busy)
    assert state.places[TopPanel.WAITING].index == 0
    assert after(State(page=Page.HELP), "wheel-down 3 3", None).scroll == 3


@pytest.mark.parametrize("key", ["c", "t", "/"])
def test_a_click_is_no_answer(key: str) -> None:
    state = after(State(), key, None)
    assert after(state, "click 3 3", Hit(TopPanel.ENDED, 0)) == state


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        (b"\x1b[<0;12;5M", "click 12 5"), (b"\x1b[<64;1;1M", "wheel-up 1 1"),
        (b"\x1b[<65;300;80M", "wheel-down 300 80"), (b"\x1b[<0;12;5m", ""),
        (b"\x1b[<2;12;5M", ""), (b"\x1b[<32;12;5M", ""), (b"\x1b[<;;M", ""),
    ],
)  # fmt: skip
def test_events_of_a_mouse_are_keys(sent: bytes, key: str) -> None:
    keys = KeyDecoder()
    assert [*keys.feed(sent), *keys.feed(b"j")] == [*([key] if key else []), "j"]
    keys = KeyDecoder()
    assert [each for byte in sent for each in keys.feed(bytes([byte]))] == ([key] if key else [])


def test_the_mouse_is_given_back_to_the_terminal() -> None:
    here, there = os.openpty()
    try:

        def sent() -> bytes:
            found = b""
            while select.select([here], [], [], 0.05)[0]:
                found += os.read(here, 1 << 16)
            return found

        shown_screen = AlternateScreen(there, there)
        shown_screen.use_mouse(True)
        shown_screen.enter()
        assert b"\x1b[?1000h\x1b[?1006h" in sent()
        shown_screen.use_mouse(False)
        assert sent() == b"\x1b[?1006l\x1b[?1000l"
        shown_screen.use_mouse(True)
        shown_screen.leave()
        assert b"\x1b[?1006l\x1b[?1000l" in sent()
    finally:
        os.close(here)
        os.close(there)


def test_m_turns_the_mouse_off_and_on() -> None:
    state = after(State(), "m", None)
    assert (state.has_mouse, state.message) == (
        False,
        "the mouse is off: the terminal selects text",
    )
    assert after(state, "m", None).has_mouse


def test_a_pool_is_folded_and_unfolded() -> None:
    three, state = three_jobs(), State(panel=TopPanel.TREE)

    def paths(state: State) -> list[str]:
        return [row["path"] for row in shown(three, state)[TopPanel.TREE]]

    whole = ["root.lab", "root.lab.alice", "root.lab.bob", "root.carol"]
    assert paths(state) == whole
    folded = after(state, " ", None)
    assert paths(folded) == ["root.lab", "root.carol"]
    assert "lab ▸" in "\n".join(lines_of(Scene(three, folded, AT_S), Size(80, 24)))
    assert paths(after(folded, " ", None)) == whole
    leaf = after(after(state, "G", None), " ", None)
    assert (leaf.folded, leaf.message) == (frozenset(), "only a pool can be folded")


@pytest.mark.parametrize("panel", list(TopPanel))
def test_any_order_can_be_reversed(panel: TopPanel) -> None:
    three = three_jobs()
    state = State(panel=panel)
    forth, back = (
        [row.get("path") or row["label"] for row in shown(three, each)[panel]]
        for each in (state, after(state, "S", None))
    )
    if panel is TopPanel.TREE:
        assert back == ["root.carol", "root.lab", "root.lab.bob", "root.lab.alice"]
    else:
        assert back == forth[::-1]
