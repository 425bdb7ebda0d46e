"""The whole screen from a snapshot, the state of the screen, and its size. Pure.

`draw` gives exactly as many lines as there are rows, each exactly as wide as the screen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.segment import Segment

from drfd_cli.top.detail import Detail, detail_page
from drfd_cli.top.header import first_line, header, signs_of
from drfd_cli.top.help import HELP
from drfd_cli.top.jobs import ended_table, reason_words, running_table, waiting_table
from drfd_cli.top.paint import Ink, Line, fit, joined, spaces, width_of
from drfd_cli.top.rows import Lists, Panel, Row, lists
from drfd_cli.top.state import Page, State, cursor
from drfd_cli.top.table import Table, draw
from drfd_cli.top.tree import tree_table

#: From this width on, the tree stands beside the jobs; and so many columns are its own then.
_WIDE, _TREE_COLUMNS = 170, 80
#: A screen of less can show nothing that is of use.
LEAST_COLUMNS, LEAST_ROWS = 72, 16
_FOOT_ROWS = 2
#: A screen of fewer rows has no room for the machine above the page of a job.
_ROOMY = 36
#: A list that is printed, and not looked at, has at most so many rows.
_MOST_PRINTED = 40
#: So many rows of each panel come first; then the panel in focus has its few; then these again.
_FIRST = {Panel.TREE: 3, Panel.RUNNING: 3, Panel.WAITING: 2, Panel.ENDED: 1}
_FOCUS = 8
_THEN = {Panel.TREE: 8, Panel.RUNNING: 8, Panel.WAITING: 6, Panel.ENDED: 3}


@dataclass(frozen=True)
class Size:
    columns: int
    rows: int


@dataclass(frozen=True)
class Scene:
    """All that is to be seen. `now_s`: the time, by which clocks go on while a busy daemon shows
    the same again; `trouble`: why the snapshot is an old one."""

    snapshot: Row
    state: State
    now_s: float
    detail: Detail | None = None
    trouble: str = ""


def screen(scene: Scene, size: Size, ink: Ink) -> list[Line]:
    columns, rows = size.columns, size.rows
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        told = f"too small: {LEAST_COLUMNS}×{LEAST_ROWS} is needed"
        lines = [[Segment(fit(told, columns))], *([[spaces(columns)]] * rows)]
        return lines[:rows]
    listed = shown(scene.snapshot, scene.state)
    top = _top(scene, size, ink)
    room = rows - len(top) - _FOOT_ROWS
    if scene.state.page is Page.MAIN:
        body = _panels(scene, listed, size, room, ink)
    else:
        page = _page(scene, columns, room, ink)
        first = min(scene.state.scroll, max(0, len(page) - room))
        body = [joined(line, columns) for line in page[first : first + room]]
        body += [[spaces(columns)]] * (room - len(body))
    return [*top, *body, *_foot(scene, listed, ink, columns)]


def settled(scene: Scene, size: Size, ink: Ink) -> State:
    """The state with a page moved no further than there is something to see."""
    state = scene.state
    if state.page is Page.MAIN or not state.scroll:
        return state
    room = max(1, size.rows - len(_top(scene, size, ink)) - _FOOT_ROWS)
    most = max(0, len(_page(scene, size.columns, room, ink)) - room)
    return replace(state, scroll=min(state.scroll, most))


def _top(scene: Scene, size: Size, ink: Ink) -> list[Line]:
    snapshot, columns, now_s = scene.snapshot, size.columns, scene.now_s
    if scene.state.page is not Page.MAIN and size.rows < _ROOMY:
        return [first_line(snapshot, ink, columns, now_s=now_s, trouble=scene.trouble)]
    signs = signs_of(snapshot["nodes"], ink)
    return header(snapshot, signs, ink, columns, now_s=now_s, trouble=scene.trouble)


def _page(scene: Scene, columns: int, room: int, ink: Ink) -> list[Line]:
    """All of it, or as much as is worth being seen at once."""
    if scene.state.page is Page.HELP:
        return [[Segment(fit(line, columns))] for line in HELP]
    return detail_page(scene.detail, scene.state, ink, columns, room, at_s=scene.now_s)


def whole(scene: Scene, columns: int, ink: Ink) -> list[Line]:
    """As it is printed: as many lines as it takes, and no keys."""
    columns = max(LEAST_COLUMNS, columns)
    signs = signs_of(scene.snapshot["nodes"], ink)
    lines = header(scene.snapshot, signs, ink, columns, now_s=scene.now_s, trouble="")
    listed = shown(scene.snapshot, scene.state)
    for table in _tables(scene, listed, columns, columns, ink).values():
        height = min(table.height, _MOST_PRINTED + 1)
        left = len(table.rows) + 1 - height
        lines += draw(table, ink, columns, height, cursor=None, is_focus=False)
        if left > 0:
            lines.append([Segment(fit(f" … and {left:,} more", columns), ink["dim"])])
    return lines


def shown(snapshot: Row, state: State) -> Lists:
    """The rows of each panel, as the screen has them."""
    return lists(snapshot, state.choice, state.orders())


def _panels(scene: Scene, listed: Lists, size: Size, room: int, ink: Ink) -> list[Line]:
    is_beside = size.columns >= _WIDE
    left = _TREE_COLUMNS if is_beside else size.columns
    right = size.columns - _TREE_COLUMNS - 1 if is_beside else size.columns
    tables = _tables(scene, listed, left, right, ink)

    def lines(panel: Panel, columns: int, height: int) -> list[Line]:
        table = tables[panel]
        at = cursor(scene.state, panel, table.rows) if table.rows else None
        is_focus = panel is scene.state.panel
        return draw(table, ink, columns, height, cursor=at, is_focus=is_focus)

    if not is_beside:
        heights = _divide(tables, room, scene.state.panel)
        return [line for panel in Panel for line in lines(panel, size.columns, heights[panel])]
    tree = lines(Panel.TREE, left, room)
    jobs = dict(tables)
    del jobs[Panel.TREE]
    heights = _divide(jobs, room, scene.state.panel)
    beside = [line for panel in jobs for line in lines(panel, right, heights[panel])]
    return [[*a, Segment(" "), *b] for a, b in zip(tree, beside, strict=True)]


def _divide(tables: dict[Panel, Table], room: int, focus: Panel) -> dict[Panel, int]:
    """How many lines each panel gets; what is left over goes to the last."""
    heights = dict.fromkeys(tables, 0)
    wants = {panel: table.height for panel, table in tables.items()}
    left = room
    for goals in (_FIRST, {focus: _FOCUS}, _THEN, {focus: room}, dict.fromkeys(tables, room)):
        goals = {panel: min(1 + goals.get(panel, 0), wants[panel]) for panel in tables}
        # One line after the other, so that nobody goes short before others.
        while left and (short := [each for each in tables if heights[each] < goals[each]]):
            for panel in short[:left]:
                heights[panel] += 1
            left -= len(short[:left])
    # A line apart, where there is room.
    for panel in list(tables)[:-1] if left >= len(tables) else ():
        heights[panel], left = heights[panel] + 1, left - 1
    heights[list(tables)[-1]] += left
    return heights


def _tables(scene: Scene, rows: Lists, left: int, right: int, ink: Ink) -> dict[Panel, Table]:
    snapshot, state = scene.snapshot, scene.state
    at_s, counts = scene.now_s, snapshot["counts"]
    signs = signs_of(snapshot["nodes"], ink)
    orders = state.orders()
    waiting = counts.get("PENDING", 0) + counts.get("HELD", 0)
    held = f", {counts['HELD']:,} held" if counts.get("HELD") else ""
    titles = {
        Panel.RUNNING: f"RUNNING {sum(counts.values()) - waiting:,}",
        Panel.WAITING: f"WAITING {waiting:,}{held}",
        Panel.ENDED: "ENDED",
    }
    for panel, title in titles.items():
        is_usual = not state.sorted_by.get(panel)
        found = "" if state.choice.is_any() else f" ({len(rows[panel])} shown)"
        titles[panel] = title + found + ("" if is_usual else f" by {orders[panel]}")
    missing = snapshot["pending_more"]
    more = f"… and {missing:,} more rows" if missing else ""
    tables = {
        Panel.TREE: tree_table(
            rows[Panel.TREE], signs, ink, left,
            user=snapshot["user"], below=state.choice.below, order=orders[Panel.TREE],
        ),
        Panel.RUNNING: running_table(
            rows[Panel.RUNNING], signs, ink, right,
            at_s=at_s, title=titles[Panel.RUNNING],
        ),
        Panel.WAITING: waiting_table(
            rows[Panel.WAITING], ink, right, at_s=at_s, title=titles[Panel.WAITING], more=more,
        ),
        Panel.ENDED: ended_table(
            rows[Panel.ENDED], ink, right, at_s=at_s, title=titles[Panel.ENDED]
        ),
    }  # fmt: skip
    if state.choice.is_any():
        return tables
    return {panel: replace(table, nothing="none of these") for panel, table in tables.items()}


_KEYS = {
    Page.MAIN: (
        ("Tab", "panel"), ("Enter", "open"), ("/", "filter"), ("u", "mine"), ("s", "sort"),
        ("c", "cancel"), ("h", "hold"), ("?", "help"), ("q", "quit"),
    ),
    Page.JOB: (
        ("Esc", "back"), ("c", "cancel"), ("h", "hold"), ("e", "errors"), ("j k", "scroll"),
        ("?", "help"),
    ),
    Page.HELP: (("Esc", "back"), ("j k", "scroll")),
}  # fmt: skip


def _foot(scene: Scene, listed: Lists, ink: Ink, columns: int) -> list[Line]:
    """What is asked or told, and the keys."""
    state = scene.state
    line: Line = []
    for key, what in _KEYS[state.page]:
        pieces = [Segment(f" {key} ", ink["key"]), Segment(what, ink["foot"])]
        if width_of([*line, *pieces]) <= columns:
            line += pieces
    return [_told(scene, listed, ink, columns), joined(line, columns)]


def _told(scene: Scene, listed: Lists, ink: Ink, columns: int) -> Line:
    state = scene.state
    if state.question is not None:
        # The answer that it takes must be seen, whatever the job is called.
        answer = " y: yes, any other key: no "
        words = fit(f" {state.question.text}", columns - len(answer)).rstrip()
        return joined([Segment(words + answer, ink["notice"])], columns)
    if state.is_typing:
        return joined(
            [Segment(fit(f" / {state.choice.text}▏", columns).rstrip(), ink["notice"])], columns
        )
    if state.message:
        style = ink["alarm" if state.is_bad else "title"]
        return joined([Segment(fit(f" {state.message} ", columns).rstrip(), style)], columns)
    if state.page is Page.MAIN and not state.choice.is_any():
        return [Segment(fit(f" only {_choice(state)}; Esc shows all", columns), ink["held"])]
    return [Segment(fit(f" {_about_selected(scene.state, listed)}", columns), ink["dim"])]


def _choice(state: State) -> str:
    choice = state.choice
    below = choice.below.removeprefix("root.").replace(".", "/")
    parts = [
        *(["mine"] if choice.only_mine else []),
        *([f"those of {below}"] if below else []),
        *([f"with “{choice.text}”"] if choice.text else []),
    ]
    return ", ".join(parts)


def _about_selected(state: State, listed: Lists) -> str:
    """The whole reason of a job that waits: its column is short."""
    if state.page is not Page.MAIN or state.panel is not Panel.WAITING:
        return ""
    rows = listed[Panel.WAITING]
    if not rows:
        return ""
    row = rows[cursor(state, Panel.WAITING, rows)]
    return f"{row['label']}: {reason_words(row)}"
