"""Whole screens, as they were looked at and found good.

After a change that is meant: `DRFD_RENEW_SCREENS=1 python -m pytest tests/cli/top/test_screens.py`
writes them anew below `screens/`; look at each (those that end in .ansi with `cat`), and at the
difference.
"""

from __future__ import annotations

import os
import re
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
from drfd_cli.top.actions import Act, Question, Verb
from drfd_cli.top.paint import Line, Theme
from drfd_cli.top.panels import in_words, leaf_marks
from drfd_cli.top.screen import encode
from drfd_cli.top.state import CursorPlace, Page, RowFilter, State, TopPanel
from drfd_cli.top.view import (
    LEAST_COLUMNS,
    LEAST_ROWS,
    Detail,
    Scene,
    Size,
    screen,
    settled,
    whole,
)

SCREENS = Path(__file__).parent / "screens"
PLAIN, COLOURED = Theme(has_colour=False), Theme(has_colour=True)

SNAPSHOTS: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": snapshot,
    "three": three_jobs,
    "gpus": with_gpus,
    "nodes": with_nodes,
    "5000-of-60": lambda: many(60, 5000),
    "5000-of-1": lambda: many(1, 5000),
    "hostile": hostile,
}
NOTICES = [{"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 12s"}]
WINDOW = [{"code": "MAINTENANCE", "text": "maintenance from 22:00 to 02:00 (upgrade); no job"}]
DRAIN = {"by": "root", "since": 1.7e9, "reason": "disk swap at 18:00, until about 19:00"}
SIZES = [Size(80, 24), Size(120, 40), Size(200, 60)]


def at(
    snapshot: dict[str, Any], state: State, detail: Detail | None = None, **changes: Any
) -> Scene:
    return Scene(snapshot, state, AT_S, detail, **changes)


def detail(**changes: Any) -> Detail:
    show, why, usage = replies()
    output = tuple(f"aligned {1000 * step:,} reads" for step in range(40))
    return replace(Detail(show, why, usage, 0.0, output, "/home/bob/drf-40.out"), **changes)


def of_a_job(**changes: Any) -> State:
    return State(page=Page.JOB, job=three_jobs()["running"][0], **changes)


def scenes() -> dict[str, Scene]:
    """Other states of the screen than the usual one."""
    three = three_jobs()
    question = Question(
        Act(Verb.CANCEL, ("44_[8-99%4]",)), "cancel 92 tasks, job 44_[8-99%4] (sweep) of carol?"
    )
    return {
        "help": at(three, State(page=Page.HELP)),
        "job": at(three, of_a_job(), detail()),
        "job-of-another": at(
            three, of_a_job(shows_errors=True),
            detail(
                usage=None, output=(), path="", problem="only its owner is told where it is",
                is_errors=True,
            ),
        ),
        "job-errors-not-read-yet": at(three, of_a_job(shows_errors=True), detail()),
        "job-not-heard-of-yet": at(three, of_a_job()),
        "waiting-in-focus": at(three, State(panel=TopPanel.WAITING)),
        "tree-in-focus": at(many(60, 5000), State(panel=TopPanel.TREE)),
        "question": at(three, State(panel=TopPanel.WAITING, question=question)),
        "typing": at(three, State(row_filter=RowFilter("sweep"), is_typing=True)),
        "of-one-node": at(three, State(row_filter=RowFilter(below="root.lab", only_mine=True))),
        "message": at(three, State(message="cancelled job 45")),
        "refused": at(three, State(message="job 40 is bob's", is_bad=True)),
        "sorted": at(many(60, 5000), State(sorted_by={TopPanel.RUNNING: 2, TopPanel.TREE: 2})),
        "draining": at({**three, "draining": True}, State()),
        "draining-why": at({**three, "draining": True, "drain": DRAIN}, State()),
        "noticed": at({**three, "draining": True, "notices": NOTICES}, State()),
        "maintenance": at({**three, "notices": WINDOW}, State()),
        "away": at(three, State(), trouble="the daemon is away, for 1m15s now; trying again"),
    }  # fmt: skip


def text(lines: list[Line]) -> str:
    return "".join("".join(piece.text for piece in line) + "\n" for line in lines)


def seen(lines: list[Line], theme: Theme) -> str:
    """With the colours of a terminal that has 256 of them, if it is for one with colours."""
    if not theme.has_colour:
        return text(lines)
    return "".join(encode(line, ColorSystem.EIGHT_BIT) + "\n" for line in lines)


def is_as_before(name: str, shown: str) -> None:
    path = SCREENS / name
    if os.environ.get("DRFD_RENEW_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == shown, f"{name} has changed"


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.columns}x{size.rows}")
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_screen_of_a_snapshot(name: str, size: Size) -> None:
    shown = screen(at(SNAPSHOTS[name](), State()), size, PLAIN)
    is_as_before(f"{name}-{size.columns}x{size.rows}.txt", text(shown))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.columns}x{size.rows}")
def test_the_screen_with_colours(size: Size) -> None:
    shown = screen(at(three_jobs(), State()), size, COLOURED)
    is_as_before(f"three-{size.columns}x{size.rows}.ansi", seen(shown, COLOURED))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", scenes())
def test_the_screen_of_a_state(name: str) -> None:
    is_as_before(f"{name}.txt", text(screen(scenes()[name], Size(80, 24), PLAIN)))


@pytest.mark.usefixtures("plain")
def test_a_large_screen_shows_more_of_a_job() -> None:
    shown = screen(scenes()["job"], Size(120, 50), COLOURED)
    is_as_before("job-120x50.ansi", seen(shown, COLOURED))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_is_printed_once(name: str) -> None:
    shown = whole(at(SNAPSHOTS[name](), State()), 160, PLAIN)
    is_as_before(f"{name}-once.txt", text(shown))


def test_a_page_moves_no_further_than_there_is_something_to_see() -> None:
    """Or a key would seem dead for as often as another was pressed in vain."""
    size = Size(80, 24)
    short = at(three_jobs(), State(page=Page.HELP, scroll=7))
    assert settled(short, Size(80, 50), PLAIN).scroll == 0
    long = at(three_jobs(), of_a_job(scroll=10_000), detail())
    end = settled(long, size, PLAIN)
    assert 20 < end.scroll < 50
    shown = screen(replace(long, state=end), size, PLAIN)
    assert "aligned 39,000 reads" in text(shown[-3:])
    assert "aligned 39,000 reads" not in text(
        screen(replace(long, state=replace(end, scroll=end.scroll - 1)), size, PLAIN)
    )


# -- whatever is in it ---------------------------------------------------------------------------

ALL = {**{name: at(make(), State()) for name, make in SNAPSHOTS.items()}, **scenes()}


@given(
    scene=st.sampled_from(list(ALL.values())),
    columns=st.integers(LEAST_COLUMNS, 260),
    rows=st.integers(LEAST_ROWS, 90),
    theme=st.sampled_from([PLAIN, COLOURED]),
    panel=st.sampled_from(list(TopPanel)),
)
def test_every_screen_is_exactly_as_large_as_asked(
    scene: Scene, columns: int, rows: int, theme: Theme, panel: TopPanel
) -> None:
    scene = replace(scene, state=replace(scene.state, panel=panel))
    lines = screen(scene, Size(columns, rows), theme)
    assert len(lines) == rows
    for line in lines:
        words = "".join(piece.text for piece in line)
        assert cell_len(words) == columns, words
        assert words == clean(words, 1000), "a sign that a terminal obeys"


@given(columns=st.integers(1, LEAST_COLUMNS), rows=st.integers(1, LEAST_ROWS - 1))
def test_a_screen_that_is_too_small_says_so_and_is_kept_within(columns: int, rows: int) -> None:
    lines = screen(at(three_jobs(), State()), Size(columns, rows), PLAIN)
    assert len(lines) == rows
    assert all(cell_len("".join(piece.text for piece in line)) == columns for line in lines)
    told = f"too small: {LEAST_COLUMNS}×{LEAST_ROWS} is needed"
    assert told.startswith(text(lines).split("\n")[0].rstrip(" …"))


@pytest.mark.parametrize("word", HOSTILE)
def test_a_question_about_a_job_of_any_name_shows_how_to_answer(word: str) -> None:
    question = Question(Act(Verb.CANCEL, ("1",)), f"cancel job 1 ({word}) of {word}?")
    lines = screen(at(three_jobs(), State(question=question)), Size(80, 24), PLAIN)
    assert "y: yes, any other key: no" in text(lines)


def test_a_waiting_job_under_the_cursor_tells_its_whole_reason() -> None:
    reason = {"code": "LIMIT", "text": "root.physics may hold 2 cores and holds 2"}
    shown = snapshot(pending=[waits(7, reason=reason)], counts={"PENDING": 1})
    lines = text(screen(at(shown, State(panel=TopPanel.WAITING)), Size(80, 24), PLAIN))
    assert "\n 7: LIMIT: root.physics may hold 2 cores and holds 2 " in lines


def test_a_long_reason_under_the_cursor_is_wrapped_and_the_panels_stay() -> None:
    text_of = {"long": "it fits, but " + "room is kept free for job 2 (alice), " * 5, "short": "x"}
    rows = [
        waits(at, reason={"code": "RESERVATION", "text": text_of[name]})
        for at, name in enumerate(text_of)
    ]
    shown = snapshot(pending=rows, counts={"PENDING": 2})
    first, second = (
        text(screen(
            at(shown, State(panel=TopPanel.WAITING, places={TopPanel.WAITING: place})),
            Size(80, 24), PLAIN,
        )).splitlines()
        for place in (CursorPlace("0", 0), CursorPlace("1", 1))
    )  # fmt: skip
    assert first[:20] == second[:20]
    told = " ".join(line.strip() for line in first[20:23])
    assert told == f"0: RESERVATION: {text_of['long']}".rstrip()
    assert [line.strip() for line in second[20:23]] == ["1: RESERVATION: x", "", ""]


def test_the_page_of_a_job_has_its_sentences_whole() -> None:
    show, why, _ = replies()
    told = "it fits, but " + "room is kept free for job 2 (alice), " * 6 + "as expected"
    job = {**show["job"], "state": "PENDING", "reason": {"code": "RESERVATION", "text": told}}
    note = "it starts in an hour, " + "if running jobs end as estimated, " * 3 + "or later"
    page = detail(show={**show, "job": job}, why={**why, "notes": [note]}, usage=None)
    shown = text(screen(at(three_jobs(), of_a_job(), page), Size(80, 40), PLAIN))
    words = " ".join(shown.split())
    assert f"why RESERVATION: {told} " in words
    assert f"{note} " in words


@pytest.mark.parametrize(
    ("columns", "heads"),
    [
        (72, "WAITS FOR FREE"),
        (80, "WAITS FOR NEEDS FREE"),
        (100, "WAITS FOR NEEDS FREE BLOCKED BY UNTIL"),
        (140, "WAITS FOR NEEDS FREE BLOCKED BY UNTIL REASON"),
    ],
)
def test_a_narrow_screen_has_fewer_columns_of_evidence(columns: int, heads: str) -> None:
    shown = snapshot(pending=[waits(7)], counts={"PENDING": 1})
    lines = text(screen(at(shown, State()), Size(columns, 24), PLAIN)).splitlines()
    head = next(line for line in lines if line.startswith(" WAITING"))
    assert " ".join(head.partition("START ")[2].split()) == heads


@pytest.mark.parametrize(
    ("memory_gib", "near"), [(3, False), (3.3, True), (4, True), (None, False)]
)
def test_a_bar_without_colours_says_that_it_is_near_its_limit(
    memory_gib: float | None, near: bool
) -> None:
    used = None if memory_gib is None else int(memory_gib * (1 << 30))
    now = {"cores": 1.0, "memory": used, "memory_peak": used, "read": 0, "write": 0}
    shown = snapshot(running=[row(1, now=now)], counts={"RUNNING": 1})
    lines = text(screen(at(shown, State()), Size(80, 24), PLAIN))
    assert ("!" in lines) is near


def test_a_job_near_its_time_limit_is_red_and_others_are_not() -> None:
    late = row(1, started_at=AT_S - 3500)
    shown = snapshot(running=[late, row(2)], counts={"RUNNING": 2})
    lines = screen(at(shown, State(panel=TopPanel.TREE)), Size(80, 24), COLOURED)
    hot = [piece.text.strip() for line in lines for piece in line if piece.style is COLOURED["hot"]]
    assert hot == ["58m20s/1h"]


def test_figures_are_never_cut() -> None:
    """All of what is held, all digits of what was declared, and the greatest use."""
    demand = {**row(1)["demand"], "cores": 0.125, "memory": 21_500_000_000}
    now = {"cores": 0.07, "memory": 0, "memory_peak": 0, "read": 0, "write": 0}
    nodes = [
        node("root.alice", usage=demand, running=1, dominant_resource="memory"),
    ]
    capacity = {**CAPACITY, "memory": 22_100_000_000}
    shown = snapshot(
        capacity=capacity, nodes=nodes, running=[row(1, demand=demand, now=now)],
        pending=[waits(2, demand=demand)], counts={"RUNNING": 1, "PENDING": 1},
    )  # fmt: skip
    for size in SIZES:
        lines = text(screen(at(shown, State()), size, PLAIN))
        assert " 0.125/16 " in lines
        assert " 20G/20.6G " in lines
        assert " 0.07/0.125 " in lines
        assert re.search(r"\n? 2 .* 0.125 +20G ", lines)


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_the_figures_beside_a_graph_are_whole(columns: int) -> None:
    _, _, usage = replies()
    usage = {
        "usage": {**usage["usage"], "cores": [0.058] * len(usage["usage"]["at"])},
        "demand": {**usage["demand"], "cores": 0.125},
    }
    lines = text(
        screen(at(three_jobs(), of_a_job(), detail(usage=usage)), Size(columns, 50), PLAIN)
    )
    assert " 0.06 of 5, most 0.06" in lines


def test_cores_that_are_lent_are_added_to_those_that_are_declared() -> None:
    shown = three_jobs()
    job = shown["running"][0]
    job["demand"]["cores"] = 2.0
    assert job["now"] is not None
    job["now"]["cores"], job["now"]["cores_ceiling"] = 4.9, 5.5
    lines = text(screen(at(shown, State()), Size(120, 40), PLAIN))
    assert " 4.9/2+3.5 " in lines
    job["demand"]["cores"], job["now"]["cores"], job["now"]["cores_ceiling"] = 0.3, 0.85, 0.85
    assert " 0.85/0.3+0.55 " in text(screen(at(shown, State()), Size(150, 40), PLAIN))
    assert " 0.85/0.3 " in text(screen(at(shown, State()), Size(120, 40), PLAIN))
    job["demand"]["cores"], job["now"]["cores"], job["now"]["cores_ceiling"] = 2.0, 4.9, 2.0
    assert " 4.9/2 " in text(screen(at(shown, State()), Size(120, 40), PLAIN))


def test_rates_that_are_lent_are_added_too_where_there_is_room() -> None:
    shown = three_jobs()
    job = shown["running"][0]
    job["demand"]["read"] = job["demand"]["write"] = 10 << 20
    assert job["now"] is not None
    job["now"]["read"], job["now"]["read_ceiling"] = 150 << 20, 200 << 20
    job["now"]["write"], job["now"]["write_ceiling"] = 5 << 20, 10 << 20
    wide = text(screen(at(shown, State()), Size(150, 40), PLAIN))
    assert " 150M/10M+190M " in wide
    assert " 5M/10M " in wide
    narrow = text(screen(at(shown, State()), Size(120, 40), PLAIN))
    assert " 150M/10M " in narrow
    assert "190M" not in narrow


def test_a_declared_memory_of_each_gpu_is_shown_beside_the_most_on_one() -> None:
    shown = with_gpus()
    shown["running"][1]["demand"]["gres_memory"] = {"gpu": 20 << 30}
    shown["running"][1]["now"]["gpu_memory_single"] = 19 << 30
    lines = text(screen(at(shown, State()), Size(200, 60), PLAIN)).splitlines()
    assert [line.split()[-2:] for line in lines if "19G/20G" in line] == [["19G/20G", "10m00s/1h"]]
    assert any(" 3G " in line and " b 40 " in line for line in lines)


def test_the_page_of_a_job_with_gpus_has_graphs_of_them() -> None:
    show, _, usage = replies()
    points = len(usage["usage"]["at"])
    gpus = {"gpu_memory": [3 << 30] * points, "gpu_utilisation": [None, *[150] * (points - 1)]}
    asks = {**usage["demand"], "gres": {"gpu": 2}}
    show["job"]["demand"] = asks
    usage = {"usage": usage["usage"] | gpus, "demand": asks}
    page = at(three_jobs(), of_a_job(), detail(show=show, usage=usage))
    for size in (Size(80, 50), Size(120, 50)):
        lines = text(screen(page, size, PLAIN))
        assert " 150% of 200%, most 150%" in lines
        assert " 3G of -, most 3G" in lines
    assert "GPU" not in text(screen(at(three_jobs(), of_a_job(), detail()), Size(120, 50), PLAIN))


def test_reasons_are_whole_below_their_rows_where_there_is_room_and_equal_ones_once() -> None:
    told = {"code": "LIMIT", "text": "root.physics may hold 2 cores and holds 2"}
    other = {"code": "HELD", "text": "held by alice; drf release 9 lets it go"}
    pending = [waits(number, reason=told) for number in (5, 6, 7)]
    shown = snapshot(pending=[*pending, waits(9, reason=other)], counts={"PENDING": 4})
    lines = text(screen(at(shown, State()), Size(100, 30), PLAIN)).splitlines()
    sentences = [line.strip() for line in lines if "LIMIT: " in line or "HELD: " in line]
    assert sentences == [f"LIMIT: {told['text']}", f"HELD: {other['text']}"]
    assert lines.index(f"{'':13}{sentences[0]}{'':<{100 - 13 - len(sentences[0])}}") == next(
        at + 1 for at, line in enumerate(lines) if line.startswith(" 7 ")
    )
    small = text(screen(at(shown, State()), Size(100, 17), PLAIN))
    assert "LIMIT: " not in small


def test_a_wide_list_without_room_has_the_reasons_in_a_column() -> None:
    shown = snapshot(
        pending=[waits(number) for number in range(100)], counts={"PENDING": 100}
    )  # fmt: skip
    lines = text(screen(at(shown, State()), Size(160, 30), PLAIN))
    told = "RESOURCES: needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05 at the latest"
    assert len(re.findall(re.escape(told), lines)) > 5


def test_the_sentence_of_the_selected_row_gets_as_many_lines_as_it_needs() -> None:
    told = "room is kept free for job 2 (alice), " * 14 + "at last"
    rows = [waits(number, reason={"code": "RESERVATION", "text": told}) for number in range(90)]
    shown = snapshot(pending=rows, counts={"PENDING": 90})
    lines = text(screen(at(shown, State(panel=TopPanel.WAITING)), Size(80, 60), PLAIN))
    assert "at last" in lines


def letters_of(*names: str, running: int = 1) -> dict[str, str]:
    nodes = [node(f"root.{name}", running=running) for name in names]
    return {
        path.removeprefix("root."): mark.letter for path, mark in leaf_marks(nodes, PLAIN).items()
    }


def test_a_user_has_a_letter_of_the_own_name_that_stays_when_others_come() -> None:
    alone = letters_of("ux_bo")
    assert alone == {"ux_bo": "u"}
    both = letters_of("newbie", "ux_bo")
    assert both == {"newbie": "n", "ux_bo": "u"}
    alike = letters_of("ann", "alice", "aa", "a1")
    assert len(set(alike.values())) == 4
    many_users = letters_of(*(f"user{number}" for number in range(52)))
    assert len(set(many_users.values())) == 52
    assert letters_of("ann", running=0) == {"ann": " "}


def test_without_anybody_the_scale_of_shares_is_whole() -> None:
    head = text(screen(at(snapshot(), State()), Size(80, 24), PLAIN))
    assert re.search(r" SHARES .* 0 +100% ", head)
    filtered = text(screen(at(snapshot(), State(row_filter=RowFilter("x"))), Size(80, 24), PLAIN))
    assert "nobody has jobs" in filtered


@pytest.mark.parametrize("columns", [80, 120])
def test_quotas_of_the_week_have_a_column_where_somebody_has_one(columns: int) -> None:
    three = three_jobs()
    assert "QUOTA" not in text(screen(at(three, State()), Size(columns, 40), PLAIN))
    quota = {"used_hours": 12.5, "share_hours": 40.0, "then": "last", "restored_at": AT_S + 60}
    nodes = [{**three["nodes"][0], "quota": quota}, *three["nodes"][1:]]
    shown = text(screen(at({**three, "nodes": nodes}, State()), Size(columns, 40), PLAIN))
    assert re.search(r"SATISFIED +RUN +WAIT +QUOTA", shown)
    assert re.search(r"carol .* 12\.5/40 h", shown)


def test_what_users_lacked_has_a_column_where_somebody_lacked_some() -> None:
    three = three_jobs()
    assert "SHORT" not in text(screen(at(three, State()), Size(120, 40), PLAIN))
    lacked = {"root.carol": 90 * 60 * 1000 * 10**9}
    shown = text(screen(at(three, State(), shortfalls=lacked), Size(120, 40), PLAIN))
    assert re.search(r"SATISFIED +RUN +WAIT +SHORT 7D", shown)
    assert re.search(r"carol .* 1h30m", shown)
    assert re.search(r"alice .* - \n", shown)


def test_use_that_is_ignored_is_not_left_blank() -> None:
    shown = text(screen(at(snapshot(external_off=True), State()), Size(80, 24), PLAIN))
    assert re.search(r" cores .* ignored +0% ", shown)
    assert "ignored" not in text(screen(at(snapshot(), State()), Size(80, 24), PLAIN))


def test_suspended_jobs_do_not_count_as_running() -> None:
    shown = {**three_jobs(), "counts": {"RUNNING": 2, "SUSPENDED": 1, "PENDING": 1}}
    lines = text(screen(at(shown, State()), Size(80, 24), PLAIN))
    assert " RUNNING 2, 1 suspended " in lines
    assert "; 2 running, 1 suspended, 1 waiting" in in_words(shown)
    shown["counts"] = {"RUNNING": 3}
    assert "; 3 running, 0 waiting" in in_words(shown)


def test_a_long_name_of_the_job_under_the_cursor_is_told_in_full_with_its_group() -> None:
    name = "video-encode-of-the-second-part"
    running = [row(7, name=name, group="media"), row(8, name="short")]
    shown = snapshot(running=running, counts={"RUNNING": 2})
    foot = text(screen(at(shown, State()), Size(80, 24), PLAIN)).splitlines()[-2]
    assert foot.rstrip() == f" 7: {name}, group media"
    running[0].update(name="short", group=None)
    assert not text(screen(at(shown, State()), Size(80, 24), PLAIN)).splitlines()[-2].strip()


def test_the_title_of_a_panel_does_not_hide_the_heading_of_the_names() -> None:
    shown = snapshot(pending=[waits(45)], counts={"PENDING": 5000})
    lines = text(whole(at(shown, State()), 120, PLAIN)).splitlines()
    heading = next(line for line in lines if line.startswith(" WAITING"))
    assert heading.split()[:5] == ["WAITING", "5,000", "NAME", "USER", "CORES"]
