"""Whole screens, as they were looked at and found good, and what is drawn on them.

After a change that is meant: `DRFD_RENEW_SCREENS=1 python -m pytest tests/cli/top/test_screens.py`
writes them anew below `screens/`; look at each (those that end in .ansi with `cat`), and at the
difference.
"""

import os
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import ColorSystem

from canned_snapshots import (
    AT_S,
    CAPACITY,
    HOSTILE,
    hostile,
    many,
    node,
    replies,
    row,
    snapshot,
    three_jobs,
    waits,
    with_gpus,
    with_nodes,
)
from drfd_cli.output import clean
from drfd_cli.tables.live import live_columns
from drfd_cli.top.app import encode
from drfd_cli.top.keys import Act, Page, Question
from drfd_cli.top.paint import Line, Theme, fit, fit_right, wrap
from drfd_cli.top.panels import summary
from drfd_cli.top.state import RowFilter, State, TopPanel
from drfd_cli.top.view import (
    LEAST_COLUMNS,
    LEAST_ROWS,
    Detail,
    Scene,
    Size,
    screen,
    scrolled,
    whole,
)
from seeds import examples

SCREENS = Path(__file__).parent / "screens"
PLAIN, COLOURED = Theme(has_colour=False), Theme(has_colour=True)
SMALL, LARGE, WIDE = Size(80, 24), Size(120, 40), Size(200, 60)
SNAPSHOTS: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": snapshot,
    "three": three_jobs,
    "gpus": with_gpus,
    "nodes": with_nodes,
    "5000-of-60": lambda: many(60, 5000),
    "hostile": hostile,
}
NOTICES = [{"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 12s"}]
WINDOW = [{"code": "MAINTENANCE", "text": "maintenance from 22:00 to 02:00 (upgrade); no job"}]
DRAIN = {"by": "root", "since": 1.7e9, "reason": "disk swap at 18:00, until about 19:00"}
WAITING = State(panel=TopPanel.WAITING)


def at(
    snapshot: dict[str, Any], state: State | None = None, detail: Detail | None = None, **more: Any
) -> Scene:
    return Scene(snapshot, state or State(), AT_S, detail, **more)


def detail(**changes: Any) -> Detail:
    show, why = replies()
    output = tuple(f"aligned {1000 * step:,} reads" for step in range(40))
    return replace(Detail(show, why, 0.0, output, "/home/bob/drf-40.out"), **changes)


def of_a_job(**changes: Any) -> State:
    return State(page=Page.JOB, job=three_jobs()["running"][0], **changes)


def scenes() -> dict[str, Scene]:
    """Other states of the screen than the usual one."""
    three = three_jobs()
    question = Question(
        Act("cancel", ("44_[8-99%4]",)), "cancel 92 tasks, job 44_[8-99%4] (sweep) of carol?"
    )
    nothing = detail(
        show={**replies()[0], "curve": None}, output=(), path="",
        problem="only its owner is told where it is", is_errors=True,
    )  # fmt: skip
    return {
        "help": at(three, State(page=Page.HELP)),
        "job": at(three, of_a_job(), detail()),
        "job-of-another": at(three, of_a_job(shows_errors=True), nothing),
        "job-errors-not-read-yet": at(three, of_a_job(shows_errors=True), detail()),
        "job-not-heard-of-yet": at(three, of_a_job()),
        "question": at(three, State(panel=TopPanel.WAITING, question=question)),
        "typing": at(three, State(row_filter=RowFilter("sweep"), is_typing=True)),
        "of-one-node": at(three, State(row_filter=RowFilter(below="root.lab", only_mine=True))),
        "refused": at(three, State(message="job 40 is bob's", is_bad=True)),
        "draining-why": at({**three, "draining": True, "drain": DRAIN}),
        "noticed": at({**three, "draining": True, "notices": NOTICES}),
        "maintenance": at({**three, "notices": WINDOW}),
        "away": at(three, trouble="the daemon is away, for 1m15s now; trying again"),
    }


def text(lines: list[Line]) -> list[str]:
    return ["".join(piece.text for piece in line) for line in lines]


def seen(scene: Scene, size: Size = SMALL, theme: Theme = PLAIN) -> str:
    return "".join(f"{line}\n" for line in text(screen(scene, size, theme)))


def is_as_before(name: str, shown: str) -> None:
    path = SCREENS / name
    if os.environ.get("DRFD_RENEW_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == shown, f"{name} has changed"


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("nothing", SMALL), ("three", SMALL), ("three", LARGE), ("gpus", SMALL), ("nodes", SMALL),
        ("5000-of-60", SMALL), ("5000-of-60", WIDE), ("hostile", LARGE),
    ],
    ids=str,
)  # fmt: skip
def test_the_screen_of_a_snapshot(name, size):
    shown = seen(at(SNAPSHOTS[name]()), size)
    is_as_before(f"{name}-{size.columns}x{size.rows}.txt", shown)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", scenes())
def test_the_screen_of_a_state(name):
    is_as_before(f"{name}.txt", seen(scenes()[name]))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("name", "scene", "size"),
    [("three", at(three_jobs()), SMALL), ("job", scenes()["job"], Size(120, 50))],
    ids=["three", "job"],
)
def test_the_screen_with_the_colours_of_a_terminal_that_has_256(name, scene, size):
    lines = screen(scene, size, COLOURED)
    shown = "".join(encode(line, ColorSystem.EIGHT_BIT) + "\n" for line in lines)
    is_as_before(f"{name}-{size.columns}x{size.rows}.ansi", shown)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", ["three", "5000-of-60"])
def test_what_is_printed_once(name):
    lines = text(whole(at(SNAPSHOTS[name]()), 160, PLAIN))
    is_as_before(f"{name}-once.txt", "".join(f"{line}\n" for line in lines))


# -- whatever is in it -------------------------------------------------------------------------

ALL = [*(at(make()) for make in SNAPSHOTS.values()), *scenes().values()]


@examples(50)
@given(
    scene=st.sampled_from(ALL),
    columns=st.integers(LEAST_COLUMNS, 260),
    rows=st.integers(LEAST_ROWS, 90),
    theme=st.sampled_from([PLAIN, COLOURED]),
    panel=st.sampled_from(list(TopPanel)),
)
def test_every_screen_is_exactly_as_large_as_asked(scene, columns, rows, theme, panel):
    scene = replace(scene, state=replace(scene.state, panel=panel))
    lines = text(screen(scene, Size(columns, rows), theme))
    assert [cell_len(words) for words in lines] == [columns] * rows
    for words in lines:
        assert words == clean(words, 1000), "a sign that a terminal obeys"


@given(columns=st.integers(1, LEAST_COLUMNS), rows=st.integers(1, LEAST_ROWS - 1))
def test_a_screen_that_is_too_small_says_so_and_is_kept_within(columns, rows):
    lines = text(screen(at(three_jobs()), Size(columns, rows), PLAIN))
    assert [cell_len(line) for line in lines] == [columns] * rows
    told = f"too small: {LEAST_COLUMNS}×{LEAST_ROWS} is needed"
    assert told.startswith(lines[0].rstrip(" …"))


def test_a_page_moves_no_further_than_there_is_something_to_see():
    """Or a key would seem dead for as often as another was pressed in vain."""
    short = at(three_jobs(), State(page=Page.HELP, scroll=7))
    assert scrolled(short, Size(80, 50), PLAIN).scroll == 0
    long = at(three_jobs(), of_a_job(scroll=10_000), detail())
    end = scrolled(long, SMALL, PLAIN)
    assert 20 < end.scroll < 50
    last = "aligned 39,000 reads"
    assert last in "".join(seen(replace(long, state=end)).splitlines()[-3:])
    assert last not in seen(replace(long, state=replace(end, scroll=end.scroll - 1)))


# -- reasons -----------------------------------------------------------------------------------


def waiting(*reasons: tuple[str, str]) -> dict[str, Any]:
    rows = [
        waits(number, reason={"code": code, "text": told})
        for number, (code, told) in enumerate(reasons)
    ]
    return snapshot(pending=rows, counts={"PENDING": len(rows)})


# -- figures -----------------------------------------------------------------------------------


def test_a_job_near_its_time_limit_is_red_and_others_are_not():
    shown = snapshot(running=[row(1, started_at=AT_S - 3500), row(2)], counts={"RUNNING": 2})
    lines = screen(at(shown, State(panel=TopPanel.TREE)), SMALL, COLOURED)
    hot = [piece.text.strip() for line in lines for piece in line if piece.style is COLOURED["hot"]]
    assert hot == ["58m20s/1h"]
    # The time in which it was suspended does not count.
    shown["running"][0]["suspended_seconds"] = 600.0
    assert "48m20s/1h" in seen(at(shown, State(panel=TopPanel.TREE)))


@pytest.mark.parametrize("size", [SMALL, LARGE, WIDE], ids=str)
def test_figures_are_never_cut(size):
    """All of what is held, all digits of what was declared, and the greatest use."""
    demand = {**row(1)["demand"], "cores": 0.125, "memory": 21_500_000_000}
    now = {"cores": 0.07, "memory": 0, "memory_peak": 0, "read": 0, "write": 0}
    shown = snapshot(
        capacity={**CAPACITY, "memory": 22_100_000_000},
        nodes=[node("root.alice", usage=demand, running=1, dominant_resource="memory")],
        running=[row(1, demand=demand, now=now)], pending=[waits(2, demand=demand)],
        counts={"RUNNING": 1, "PENDING": 1},
    )  # fmt: skip
    lines = seen(at(shown), size)
    assert [
        each for each in (" 0.125/16 ", " 20G/20.6G ", " 0.07/0.125 ") if each not in lines
    ] == []
    assert re.search(r"\n? 2 .* 0.125 +20G ", lines)
    show, _ = replies()
    show["curve"]["cores"] = [0.058] * len(show["curve"]["at"])
    page = detail(show=show)
    shown_page = seen(at(three_jobs(), of_a_job(), page), Size(size.columns, 50))
    assert " 0.06 now, most 0.06 of 5, over 9m55s" in shown_page


@pytest.mark.parametrize(
    ("declared", "used", "most", "columns", "told"),
    [
        (2.0, 4.9, 8.0, 80, " ██▌·  4.9/2..8 "), (0.3, 0.85, 0.85, 80, "  0.85/0.3..0.85 "),
    ],
)  # fmt: skip
def test_a_range_is_shown_if_need_be_in_place_of_the_bar(declared, used, most, columns, told):
    shown = three_jobs()
    job = shown["running"][0]
    job["demand"] |= {"cores": declared, "cores_max": most}
    job["now"] |= {"cores": used}
    assert told in seen(at(shown), Size(columns, 40))


def test_gpus_have_their_declared_memory_and_curves():
    shown = with_gpus()
    shown["running"][1]["demand"]["gres_memory"] = {"gpu": 20 << 30}
    shown["running"][1]["now"]["gpu_memory_single"] = 19 << 30
    lines = seen(at(shown), WIDE).splitlines()
    assert [line.split()[-2:] for line in lines if "19G/20G" in line] == [["19G/20G", "10m00s/1h"]]
    assert any(" 3G " in line and " b 40 " in line for line in lines)
    show, _ = replies()
    points = len(show["curve"]["at"])
    show["curve"]["gpu_memory"] = [3 << 30] * points
    show["curve"]["gpu_utilisation"] = [None, *[150] * (points - 1)]
    show["job"]["demand"] = {**show["job"]["demand"], "gres": {"gpu": 2}}
    page = detail(show=show)
    for size in (Size(80, 50), Size(120, 50)):
        told = seen(at(three_jobs(), of_a_job(), page), size)
        assert " 150% now, most 150% of 200%, over" in told and " 3G now, most 3G, over" in told
        assert "GPU" not in seen(at(three_jobs(), of_a_job(), detail()), size)


# -- names, shares and counts ------------------------------------------------------------------


def test_nothing_is_left_blank_or_counted_twice():
    head = seen(at(snapshot()))
    assert re.search(r" SHARES .* ENTITLED +100% ", head) and "ignored" not in head
    assert "nobody has jobs" in seen(at(snapshot(), State(row_filter=RowFilter("x"))))
    assert re.search(r" cores .* ignored +0% ", seen(at(snapshot(external_off=["cores"]))))
    shown = {**three_jobs(), "counts": {"RUNNING": 2, "SUSPENDED": 1, "PENDING": 1}}
    assert " RUNNING 2, 1 suspended " in seen(at(shown))
    assert "; 2 running, 1 suspended, 1 waiting" in summary(shown)
    shown["counts"] = {"RUNNING": 3}
    assert "; 3 running, 0 waiting" in summary(shown)


# -- text and bars of exact width --------------------------------------------------------------

#: Releases of rich do not agree on how wide these are; whatever they say, it holds.
HINDI = "\u0939\u093f\u0928\u094d\u0926\u0940"
WORDS = st.text(max_size=60) | st.sampled_from([*HOSTILE, HINDI])


@examples(50)
@given(WORDS, st.integers(0, 40), st.integers(1, 4))
def test_text_takes_exactly_its_columns_and_is_harmless(words, columns, most):
    for shown in (fit(words, columns), fit_right(words, columns)):
        assert sum(map(cell_len, shown)) == columns
        assert not {unicodedata.category(sign) for sign in shown} & {
            "Cc", "Cf", "Cs", "Co", "Zl", "Zp",
        }  # fmt: skip
    lines = wrap(words, columns + 4, most)
    assert len(lines) <= most
    assert all(cell_len(line) <= columns + 4 for line in lines)


@pytest.mark.parametrize("key", live_columns(AT_S))
def test_each_column_that_a_user_may_want_can_be_shown(key):
    found = snapshot(pending=[waits(8)], running=[row(7)], ended=[row(6, ended_at=AT_S)])
    scene = Scene(found, State(columns=[key]), AT_S)
    lines = ["".join(piece.text for piece in line) for line in whole(scene, 240, PLAIN)]
    assert sum(live_columns(AT_S)[key].title in line for line in lines) >= 3


def test_a_column_that_the_user_wants_shows_whole_values():
    scene = Scene(snapshot(running=[row(7)]), State(columns=["submitted_at"]), AT_S)
    lines = text(whole(scene, 160, PLAIN))
    assert any(re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", line.rstrip()) for line in lines)
