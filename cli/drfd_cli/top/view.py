"""The whole screen from a snapshot, the state of the live view, and the size. Pure.

`screen` returns exactly as many lines as there are rows, each exactly as wide as the screen. The
main page consists of panels. The page about one job has its facts, curves of its use, its events,
and the end of its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from rich.segment import Segment

from drfd.common.units import show_duration
from drfd.core.model.job import show_path
from drfd_cli.charts import usage_lines
from drfd_cli.commands.show import array_lines, job_lines
from drfd_cli.output import advice_line, clean, code_line, run_s, show_time, start_line
from drfd_cli.top.keys import HELP, KEYS, Page, refusal, word_of
from drfd_cli.top.paint import Line, Theme, fit, joined, wrap
from drfd_cli.top.panels import (
    PanelTable,
    draw,
    first_line,
    header,
    jobs_table,
    leaf_marks,
    tree_table,
)
from drfd_cli.top.state import (
    Lists,
    State,
    TopPanel,
    cursor,
    mark_of,
    marked_rows,
    selected,
    shown,
    targets,
    viewer_of,
)

if TYPE_CHECKING:
    from drfd.protocol.replies import ProgressView, ShowReply, SnapshotRow, SnapshotView, WhyReply

#: Least columns of a screen with the tree beside the jobs, and the width of the tree then.
_WIDE, _TREE_COLUMNS = 170, 84
#: Least size of a usable screen.
LEAST_COLUMNS, LEAST_ROWS = 72, 16
#: Least rows of a screen for whole sentences, and the length of a long one.
_WITH_SENTENCES, _SENTENCE = 20, 240
#: Most lines of a sentence on the page of a job.
_MOST_LINES = 8
#: Least rows of a screen that shows the machine above the page of a job.
_ROOMY = 36
#: Most rows of each list of `drf top --once`.
_MOST_PRINTED = 40
#: Goals by which rows are divided among the panels, one after the other: `_FIRST` for each panel,
#: `_FOCUS` for the panel in focus, `_THEN` for each panel.
_FIRST = {TopPanel.TREE: 3, TopPanel.RUNNING: 3, TopPanel.WAITING: 2, TopPanel.ENDED: 1}
_FOCUS = 8
_THEN = {TopPanel.TREE: 8, TopPanel.RUNNING: 8, TopPanel.WAITING: 6, TopPanel.ENDED: 3}


@dataclass(frozen=True)
class Detail:
    """The latest data about a job."""

    #: The daemon's replies to `show` and `why`, or None before they have arrived.
    show: ShowReply | None = None
    why: WhyReply | None = None
    #: When the reply to `why` was requested (monotonic, s).
    why_s: float = 0.0
    #: The last lines of the job's output, or of its errors if `is_errors`, and their path.
    output: tuple[str, ...] = ()
    path: str = ""
    #: The reason if there are no lines.
    problem: str = ""
    is_errors: bool = False


@dataclass(frozen=True)
class Size:
    columns: int
    rows: int


@dataclass(frozen=True)
class Scene:
    """All data of the screen. `now_s` is the present time, which goes on without new snapshots;
    `trouble` says why the snapshot is outdated."""

    snapshot: SnapshotView
    state: State
    now_s: float
    detail: Detail | None = None
    trouble: str = ""

    def lists(self) -> Lists:
        return shown(self.snapshot, self.state)


def screen(scene: Scene, size: Size, theme: Theme) -> list[Line]:
    columns, rows = size.columns, size.rows
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        told = f"too small: {LEAST_COLUMNS}×{LEAST_ROWS} is needed"
        lines = [[Segment(fit(told, columns))], *([[Segment(" " * columns)]] * rows)]
        return lines[:rows]
    listed = scene.lists()
    top = _top(scene, size, theme)
    foot = _foot(scene, listed, theme, size)
    room = rows - len(top) - len(foot)
    if scene.state.page is Page.MAIN:
        body = _panels(scene, listed, size, room, theme)
    else:
        page = _page(scene, columns, room, theme)
        first = min(scene.state.scroll, max(0, len(page) - room))
        body = [joined(line, columns) for line in page[first : first + room]]
        body += [[Segment(" " * columns)]] * (room - len(body))
    return [*top, *body, *foot]


def scrolled(scene: Scene, size: Size, theme: Theme) -> State:
    state = scene.state
    if state.page is Page.MAIN or not state.scroll:
        return state
    # A page has two lines below it.
    room = max(1, size.rows - len(_top(scene, size, theme)) - 2)
    most = max(0, len(_page(scene, size.columns, room, theme)) - room)
    return replace(state, scroll=min(state.scroll, most))


def _top(scene: Scene, size: Size, theme: Theme) -> list[Line]:
    if scene.state.page is not Page.MAIN and size.rows < _ROOMY:
        return [first_line(scene, theme, size.columns)]
    # The lists below keep most of the screen.
    most = max(0, size.rows - LEAST_ROWS) // 4
    return header(scene, theme, size.columns, most_each=most)


def _page(scene: Scene, columns: int, room: int, theme: Theme) -> list[Line]:
    if scene.state.page is Page.HELP:
        return [[Segment(fit(line, columns))] for line in HELP]
    return detail_page(scene.detail, scene.state, theme, columns, room, at_s=scene.now_s)


def whole(scene: Scene, columns: int, theme: Theme) -> list[Line]:
    """Return the main page as it is printed: as many lines as needed, without the line of keys."""
    columns = max(LEAST_COLUMNS, columns)
    lines = header(scene, theme, columns, most_each=_MOST_PRINTED)
    listed = scene.lists()
    for table in _tables(scene, listed, columns, columns, theme).values():
        height = min(table.height, _MOST_PRINTED + 1)
        left = len(table.rows) + 1 - height
        lines += draw(table, theme, columns, height, cursor=None, is_focus=False)
        if left > 0:
            lines.append([Segment(fit(f" … and {left:,} more", columns), theme["dim"])])
    return lines


def _panels(scene: Scene, listed: Lists, size: Size, room: int, theme: Theme) -> list[Line]:
    state = scene.state
    is_beside = size.columns >= _WIDE
    left = _TREE_COLUMNS if is_beside else size.columns
    right = size.columns - _TREE_COLUMNS - 1 if is_beside else size.columns
    tables = _tables(scene, listed, left, right, theme)
    tree = tables.pop(TopPanel.TREE) if is_beside else None
    heights = _divide(tables, room, state.panel, right)

    def lines(panel: TopPanel, table: PanelTable, columns: int, height: int) -> list[Line]:
        if state.marked and panel is not TopPanel.TREE:
            table = replace(table, is_marked=lambda row: mark_of(row) in state.marked)
        at, is_focus = cursor(state, panel, table.rows), panel is state.panel
        return draw(table, theme, columns, height, cursor=at, is_focus=is_focus)

    body: list[Line] = []
    for panel, table in tables.items():
        body += lines(panel, table, right, heights[panel])
    if tree is None:
        return body
    beside = lines(TopPanel.TREE, tree, left, room)
    return [[*a, Segment(" "), *b] for a, b in zip(beside, body, strict=True)]


def _divide(
    tables: dict[TopPanel, PanelTable], room: int, focus: TopPanel, columns: int
) -> dict[TopPanel, int]:
    """Return the number of lines of each panel. The last panel gets the rest."""
    heights = dict.fromkeys(tables, 0)
    wants = {panel: table.height for panel, table in tables.items()}
    left = room
    for goals in (_FIRST, {focus: _FOCUS}, _THEN, {focus: room}, dict.fromkeys(tables, room)):
        goals = {panel: min(1 + goals.get(panel, 0), wants[panel]) for panel in tables}
        # Give one line to each panel in turn.
        while left and (short := [each for each in tables if heights[each] < goals[each]]):
            for panel in short[:left]:
                heights[panel] += 1
            left -= len(short[:left])
    # With room to spare, waiting jobs have their whole reasons below them.
    extra = tables[TopPanel.WAITING].extra_height(columns, left)
    heights[TopPanel.WAITING], left = heights[TopPanel.WAITING] + extra, left - extra
    # Leave an empty line between panels if there is room.
    for panel in list(tables)[:-1] if left >= len(tables) else ():
        heights[panel], left = heights[panel] + 1, left - 1
    heights[list(tables)[-1]] += left
    return heights


def _tables(
    scene: Scene, rows: Lists, left: int, right: int, theme: Theme
) -> dict[TopPanel, PanelTable]:
    snapshot, state = scene.snapshot, scene.state
    counts = snapshot["counts"]
    marks = leaf_marks(snapshot["nodes"])
    waiting = counts.get("PENDING", 0) + counts.get("HELD", 0)
    held = f", {counts['HELD']:,} held" if counts.get("HELD") else ""
    suspended = counts.get("SUSPENDED", 0)
    paused = f", {suspended:,} suspended" if suspended else ""
    titles = {
        TopPanel.RUNNING: f"RUNNING {sum(counts.values()) - waiting - suspended:,}{paused}",
        TopPanel.WAITING: f"WAITING {waiting:,}{held}",
        TopPanel.ENDED: "ENDED",
    }
    is_filtered = not state.row_filter.is_empty()
    more = ""
    # All of the user's own rows are there.
    if snapshot["pending_more"] and not state.row_filter.only_mine:
        more = f"… and {snapshot['pending_more']:,} more rows"
        more += ", which are not searched" if is_filtered else ""
    tables = {TopPanel.TREE: tree_table(scene, rows[TopPanel.TREE], marks, theme, left)}
    for panel, words in titles.items():
        found = f" ({len(rows[panel]):,} shown)" if is_filtered else ""
        by = f" by {state.order(panel)}" if state.sorted_by.get(panel) else ""
        title = words + found + by + ", reversed" * (panel in state.backwards)
        table = jobs_table(scene, panel, rows[panel], marks, theme, right, title=title)
        if panel is TopPanel.WAITING:
            table = replace(table, more=more)
        if is_filtered:
            table = replace(table, nothing=f"none of these {table.more}".rstrip())
        tables[panel] = table
    return tables


def _key_line(scene: Scene, listed: Lists, theme: Theme, columns: int) -> Line:
    """Return the line of keys. Those that cannot work on the selected job are dimmed, or without
    colours left out."""
    state, viewer = scene.state, viewer_of(scene.snapshot)
    rows = targets(state, listed)
    keys = [key for key in KEYS if state.page in key.pages]
    words = {key: word_of(key, rows[0] if rows else None) for key in keys}
    unfit = {
        key
        for key in keys
        if key.action is not None and all(refusal(key.name, row, viewer) for row in rows)
    }
    widths = {key: len(key.name) + len(words[key]) + 2 for key in keys}
    kept, left = set(), columns
    # On a narrow screen, what works on the selected job has the room of what does not.
    for key in sorted(keys, key=lambda key: (key in unfit, key.rank)):
        if widths[key] <= left:
            kept.add(key)
            left -= widths[key]
    line: Line = []
    for key in filter(kept.__contains__, keys):
        if key not in unfit:
            line += [Segment(f" {key.name} ", theme["key"]), Segment(words[key], theme["foot"])]
        elif theme.has_colour:
            line.append(Segment(f" {key.name} {words[key]}", theme["off"]))
        else:
            line.append(Segment(" " * widths[key]))
    return joined(line, columns)


def _foot(scene: Scene, listed: Lists, theme: Theme, size: Size) -> list[Line]:
    """Return the question, message, filter or reason, and below it the line of keys."""
    state, columns = scene.state, size.columns
    words, style = "", "held"
    if state.page is Page.MAIN and state.marked:
        count, there = len(state.marked), len(marked_rows(state, listed))
        whom = f"a key is for {'all of them' if there == count else f'the {there} listed'}"
        if not there:
            whom = "none of them listed; a key is for the job selected"
        words = f"{count} marked{'; ' if there else ', '}{whom}, Esc unmarks"
    elif state.page is Page.MAIN and not state.row_filter.is_empty():
        words = f"only {_choice(state)}; Esc shows all"
    elif state.page is Page.MAIN:
        words, style = _named(state, listed), "dim"
    told: list[Line] = [[Segment(fit(f" {words}", columns), theme[style])]] if words else []
    height, about = 1, ""
    row = selected(state, listed)
    if row is not None and state.page is Page.MAIN and state.panel is TopPanel.WAITING:
        about = f"{row['label']}: {code_line(row['reason'])}"
    if about and size.rows >= _WITH_SENTENCES:
        # The same for each job, so that the panels keep their places when the cursor moves.
        most = max(-(-_SENTENCE // columns), size.rows // 6)
        longest = max(len(code_line(row["reason"])) for row in listed[TopPanel.WAITING])
        # A line loses some columns to words that are not broken.
        needed = -(-(longest + 8) * 21 // (20 * columns))
        height = len(told) + min(most, max(-(-_SENTENCE // columns), needed))
    lines = wrap(about, columns - 1, height - len(told))
    told += [[Segment(fit(f" {line}", columns), theme["dim"])] for line in lines]
    pressing = _pressing(state, theme, columns)
    if pressing is not None:
        told = [pressing]
    told += [[Segment(" " * columns)]] * (height - len(told))
    return [*told, _key_line(scene, listed, theme, columns)]


def _pressing(state: State, theme: Theme, columns: int) -> Line | None:
    """Return the question, the text that is being typed, or the message, or None without any."""
    if state.question is not None:
        # Also with a long name of the job, the possible answers must be visible.
        answer = " y: yes, any other key: no "
        words = fit(f" {state.question.text}", columns - len(answer)).rstrip() + answer
        style = "notice"
    elif state.prompt is not None and not state.message:
        tail = f" {state.prompt.text}▏ Enter: set, Esc: not "
        words = fit(f" {state.prompt.about}:", columns - len(tail)).rstrip() + tail
        style = "notice"
    elif state.is_typing:
        words, style = fit(f" / {state.row_filter.text}▏", columns).rstrip(), "notice"
    elif state.message:
        words = fit(f" {state.message} ", columns).rstrip()
        style = "alarm" if state.is_bad else "title"
    else:
        return None
    return joined([Segment(words, theme[style])], columns)


def _choice(state: State) -> str:
    row_filter = state.row_filter
    parts = [
        "mine" if row_filter.only_mine else "",
        f"those of {show_path(row_filter.below)}" if row_filter.below else "",
        f"with “{row_filter.text}”" if row_filter.text else "",
    ]
    return ", ".join(filter(None, parts))


#: The longest name that is not told again: the panels have room for it, mostly.
_SHORT_NAME = 12


def _named(state: State, listed: Lists) -> str:
    """Return the whole name of the job under the cursor and its group, or "" if that tells nothing,
    and for a waiting job, whose reason stands there."""
    row = selected(state, listed)
    if row is None or state.panel is TopPanel.WAITING:
        return ""
    group = row.get("group")
    if len(row["name"]) <= _SHORT_NAME and not group:
        return ""
    return f"{row['label']}: {clean(row['name'])}" + (f", group {clean(group)}" if group else "")


# -- the page about one job --------------------------------------------------------------------

#: The facts that a small screen shows, and those that no screen shows.
_FIRST_FACTS = ("why", "demand", "limit", "started", "command", "tasks", "indices")
_NEVER = ("job", "array", "state")
#: Least lines of a page with all facts.
_ROOMY_PAGE = 32
_LABEL = 10
_LEAST_EVENTS = 3
_ASKING = "asking the daemon…"


def detail_page(
    detail: Detail | None, state: State, theme: Theme, columns: int, room: int, *, at_s: float
) -> list[Line]:
    """Return the page about a job: `room` lines, or more that scrolling shows."""
    row = state.job
    assert row is not None
    about: Any = row
    if detail is not None and detail.show is not None:
        about = detail.show["array"] if "array" in detail.show else detail.show["job"]
    lines = [_title(row, about, theme, columns, at_s)]

    def line(words: str, style: str = "plain") -> Line:
        return [Segment(fit(f" {words}", columns), theme[style])]

    if detail is None or detail.show is None:
        told = detail.problem if detail is not None and detail.problem else _ASKING
        return [*lines, line(told, "dim")]
    for label, texts, style in _about(detail, detail.show, columns - _LABEL - 2, room, at_s):
        for at, words in enumerate(texts):
            name = "" if at else label
            lines.append(
                [Segment(fit(f" {name}", _LABEL + 1), theme["dim"]), Segment(words, theme[style])]
            )
    events = detail.show["events"]
    # The output takes the lines that it needs, but leaves some for events.
    rest = room - len(lines) - 2
    most = max(_LEAST_EVENTS, rest - max(1, min(len(detail.output), rest - _LEAST_EVENTS)))
    lines.append(line("events ", "head"))
    for event in events[-most:]:
        lines.append(line(f"{show_time(event['at'])}  {event['event']:<17} {event['text']}"))
    what = "errors" if state.shows_errors else "output"
    if detail.is_errors != state.shows_errors:
        # These are the other ones, until the answer to the key is there.
        return [*lines, line(f"{what} ", "head"), line(_ASKING, "dim")]
    lines.append(line(f"{what} {detail.path} ", "head"))
    lines += [line(detail.problem, "dim")] if detail.problem else []
    # The end of the output must be visible without scrolling.
    left = max(3, room - len(lines)) if not state.scroll else len(detail.output)
    return [*lines, *map(line, detail.output[-left:])]


def _title(
    row: SnapshotRow, about: Mapping[str, Any], theme: Theme, columns: int, at_s: float
) -> Line:
    state = about.get("state") or row["state"]
    is_begun = about.get("started_at") is not None
    spent = f"  {show_duration(run_s(cast('ProgressView', about), at_s))}" if is_begun else ""
    name = clean(about["name"], 60)
    words = f" job {row['label']}  {name}  of {clean(about['user'], 40)}"
    style = theme["head_focus"]
    told = Segment(f"{state}{spent} ", style)
    return [Segment(fit(words, columns - len(told.text)), style), told]


def _about(
    detail: Detail, show: ShowReply, columns: int, room: int, at_s: float
) -> Iterator[tuple[str, list[str], str]]:
    """Yield the facts about a job, its use over time, and what explains it: a label, lines of at
    most so many columns, and their style."""
    if "array" in show:
        facts = array_lines(show["array"])
    else:
        # Without the curves, which are as wide as the page.
        facts = job_lines(show["job"], show.get("used"), None)
    for label, value in facts:
        if label not in _NEVER and value != "-" and (room >= _ROOMY_PAGE or label in _FIRST_FACTS):
            # The reason is the main content of the page.
            most = _MOST_LINES if label == "why" else 1
            yield label, wrap(value, columns, most) or [""], "plain"
    if "job" in show:
        demand, is_live = show["job"]["demand"], show["job"]["ended_at"] is None
        curves = usage_lines(show.get("curve"), demand, columns, is_live=is_live)
        yield "over time", curves, "good"
    why: Any = detail.why or {}
    notes = [*why.get("notes", ()), start_line(why["job"], now_s=at_s) if "job" in why else None]
    advice = why.get("advice")
    notes.append(None if advice is None else f"next time: {advice_line(advice)}")
    told = [each for note in filter(None, notes) for each in wrap(note, columns, _MOST_LINES)]
    yield "note", told, "good"
