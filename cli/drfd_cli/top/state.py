"""The state of the live view: which rows each panel lists, the cursor, the page. Pure.

`press` returns the state after a key, and the action that is to be done outside the screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from drfd.common.errors import Refused
from drfd.common.indices import show_numbers
from drfd.core.model.job import leaf_path
from drfd_cli.commands.shares import branch
from drfd_cli.output import amount_of
from drfd_cli.tables.live import left_s
from drfd_cli.top.keys import ACTIONS, Act, Page, Prompt, Question, Viewer, begin, typed

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotNode, SnapshotRow, SnapshotView

    class TreeRow(SnapshotNode):
        title: str
        is_leaf: bool


class TopPanel(StrEnum):
    """The panels, in the order of the screen."""

    TREE = "tree"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(frozen=True)
class RowFilter:
    """A filter of jobs: by a text, a node of the tree, and whether only the user's own."""

    text: str = ""
    below: str = ""
    only_mine: bool = False

    def is_empty(self) -> bool:
        return not (self.text or self.below or self.only_mine)


#: The rows of each panel: `TreeRow` for the tree, `SnapshotRow` for the others.
Lists = dict[TopPanel, list[Any]]
_PANELS = tuple(TopPanel)


class UserAction(Enum):
    QUIT = auto()
    REDRAW = auto()
    #: Stop the program, as ^Z does.
    SUSPEND = auto()


@dataclass(frozen=True)
class Look:
    """The output of a job, or its errors, that is to be shown by a pager."""

    row: SnapshotRow
    errors: bool


@dataclass(frozen=True)
class CursorPlace:
    """The row under the cursor, and its index, which is used if the row is gone."""

    key: str = ""
    index: int = 0


@dataclass(frozen=True)
class State:
    panel: TopPanel = TopPanel.RUNNING
    page: Page = Page.MAIN
    places: Mapping[TopPanel, CursorPlace] = field(default_factory=dict)
    row_filter: RowFilter = field(default_factory=RowFilter)
    is_typing: bool = False
    #: The index of each panel's order in `ORDERS`; 0 if there is none.
    sorted_by: Mapping[TopPanel, int] = field(default_factory=dict)
    #: The panels in which the order is reversed.
    backwards: frozenset[TopPanel] = frozenset()
    #: Paths of the pools of which nothing below is listed.
    folded: frozenset[str] = frozenset()
    #: The job that the page about one job shows.
    job: SnapshotRow | None = None
    shows_errors: bool = False
    #: The number of lines that a page is scrolled down.
    scroll: int = 0
    #: The pages that are under the one that is shown.
    under: tuple[Page, ...] = ()
    question: Question | None = None
    prompt: Prompt | None = None
    #: Keys of columns of jobs that the user wants besides those of each panel.
    columns: Sequence[str] = ()
    #: The marked jobs, by `mark_of`.
    marked: frozenset[str] = frozenset()
    #: The message about the last action, and whether it is an error.
    message: str = ""
    is_bad: bool = False

    def order(self, panel: TopPanel) -> str:
        return list(ORDERS[panel])[self.sorted_by.get(panel, 0)]


# -- the rows of the panels ----------------------------------------------------------------------


def shown(snapshot: SnapshotView, state: State) -> Lists:
    """Return the rows of each panel. The tree is never filtered."""
    row_filter, waiting = state.row_filter, snapshot["pending"]
    if row_filter.only_mine:
        # `pending` is cut; `mine` has the user's own jobs behind the cut.
        waiting = [*waiting, *snapshot["mine"]]
    lists: Lists = {TopPanel.TREE: _tree(snapshot["nodes"], state)}
    for panel, rows in (
        (TopPanel.RUNNING, snapshot["running"]),
        (TopPanel.WAITING, waiting),
        (TopPanel.ENDED, snapshot["ended"]),
    ):
        if not row_filter.is_empty():
            rows = [row for row in rows if _is_chosen(row, row_filter, snapshot["user"])]
        lists[panel] = _sorted(rows, panel, state)
    lists[TopPanel.ENDED] = _gathered(lists[TopPanel.ENDED])
    return lists


def viewer_of(snapshot: SnapshotView) -> Viewer:
    return Viewer(snapshot["user"], snapshot["admin"])


def key_of(panel: TopPanel, row: Any) -> str:
    """Return the key by which a row is found again in later snapshots."""
    if panel is TopPanel.TREE:
        return str(row["path"])
    return mark_of(row) if panel is TopPanel.WAITING else str(row["label"])


def mark_of(row: SnapshotRow) -> str:
    """Return a key of a job or of waiting tasks of an array, which stays when the first of them
    start. Ended tasks that share a row are meant one by one."""
    array, bracket, tasks = row["label"].partition("[")
    if row["ended_at"] is not None or not bracket:
        return row["label"]
    return array + tasks.strip("]").replace("-", ",").rpartition(",")[2]


def leaf_of(row: SnapshotRow) -> str:
    return leaf_path(row["pool"], row["user"])


def leaves(nodes: Sequence[SnapshotNode]) -> list[SnapshotNode]:
    """Return the nodes without others below them, sorted by path."""
    inner = {node["path"].rpartition(".")[0] for node in nodes}
    return sorted(
        (node for node in nodes if node["path"] not in inner and node["path"] != "root"), key=_parts
    )


def _is_chosen(row: SnapshotRow, row_filter: RowFilter, user: str) -> bool:
    if row_filter.only_mine and row["user"] != user:
        return False
    if row_filter.below and not f"{leaf_of(row)}.".startswith(f"{row_filter.below}."):
        return False
    if not row_filter.text:
        return True
    reason = row["reason"]
    words = (
        *(row["label"], row["name"], row["user"], row["pool"], row["state"]),
        row.get("group") or "",
        reason["code"] if reason else row["outcome"] or "",
    )
    return row_filter.text.casefold() in "\n".join(words).casefold()


def _gathered(rows: Sequence[SnapshotRow]) -> list[SnapshotRow]:
    """Merge neighbouring rows of tasks of one array that ended alike into that of the latest."""
    found = []
    for _, run in groupby(rows, key=_end_of_task):
        alike = list(run)
        latest = alike[0]
        if len(alike) > 1:
            array_id = latest["array_id"]
            label = f"{array_id}_[{show_numbers(row['array_index'] or 0 for row in alike)}]"
            latest = {**latest, "label": label, "tasks": len(alike)}
            latest["id"] = array_id or latest["id"]
        found.append(latest)
    return found


def _end_of_task(row: SnapshotRow) -> tuple[object, ...]:
    if row["array_id"] is None:
        return (row["id"],)
    return row["array_id"], row["name"], row["outcome"], row["exit_code"], row["signal"]


def _parts(node: SnapshotNode) -> list[str]:
    return node["path"].split(".")


def _sorted(rows: Sequence[Any], panel: TopPanel, state: State) -> list[Any]:
    key = ORDERS[panel][state.order(panel)]
    rows = sorted(rows, key=key) if key is not None else list(rows)
    return rows[::-1] if panel in state.backwards else rows


def _tree(nodes: Sequence[SnapshotNode], state: State) -> list[TreeRow]:
    """Return each node followed by the nodes below it, siblings in the given order. A pool with one
    leaf shares a row with it, because both have the same allocation and entitlement."""
    below: dict[str, list[SnapshotNode]] = {}
    for node in _sorted(nodes, TopPanel.TREE, state):
        if node["path"] != "root":
            below.setdefault(node["path"].rpartition(".")[0], []).append(node)
    found: list[TreeRow] = []
    left = [(node, 0, "") for node in reversed(below.pop("root", []))]
    while left:
        node, depth, pools = left.pop()
        inside = below.pop(node["path"], [])
        title = pools + branch(node["path"]).strip()
        if len(inside) == 1 and inside[0]["path"] not in below:
            left.append(({**inside[0], "weight": node["weight"]}, depth, f"{title}/"))
            continue
        is_folded = bool(inside) and node["path"] in state.folded
        sign = " ▸" if is_folded else ""
        found.append({**node, "title": "  " * depth + title + sign, "is_leaf": not inside})
        left += [] if is_folded else [(each, depth + 1, "") for each in reversed(inside)]
    return found


def _use(row: SnapshotRow, axis: str) -> float:
    """Return the present use of a job, or zero if it is not known."""
    return amount_of(row["now"], axis) or 0.0


#: The orders of each panel, the default first, with the sort key; None for the daemon's own order.
ORDERS: dict[TopPanel, dict[str, Callable[[Any], Any] | None]] = {
    TopPanel.TREE: {
        "share": lambda node: (-node["dominant_share"], _parts(node)),
        "name": lambda node: _parts(node),
        "satisfied": lambda node: (node["satisfaction"], _parts(node)),
        "running": lambda node: (-node["running"], _parts(node)),
        "waiting": lambda node: (-node["pending"], _parts(node)),
    },
    TopPanel.RUNNING: {
        "start": lambda row: (row["started_at"] or inf, row["id"]),
        "cores": lambda row: -_use(row, "cores"),
        "memory": lambda row: -_use(row, "memory"),
        "time left": lambda row: inf if (left := left_s(row, time.time())) is None else left,
        "user": itemgetter("user"),
        "name": itemgetter("name"),
    },
    TopPanel.WAITING: {
        "turn": None,
        "submission": itemgetter("submitted_at"),
        "user": itemgetter("user"),
        "name": itemgetter("name"),
        "cores": lambda row: -row["demand"]["cores"],
        "memory": lambda row: -row["demand"]["memory"],
    },
    TopPanel.ENDED: {"end": None, "user": itemgetter("user")},
}


# -- the effect of keys --------------------------------------------------------------------------

_ANYBODY = Viewer()
#: Keys that do the same at any time.
_ALWAYS = {
    "ctrl-c": UserAction.QUIT, "ctrl-l": UserAction.REDRAW, "ctrl-z": UserAction.SUSPEND,
}  # fmt: skip
_STEPS = {"down": 1, "j": 1, "up": -1, "k": -1}
#: Most characters of the filter's text.
_MOST_TEXT = 60
#: A scroll position beyond the end of any page.
_END = 1 << 40


def cursor(state: State, panel: TopPanel, rows: Sequence[Any]) -> int:
    """Return the index of the cursor, which follows its row, or stays if the row is gone."""
    place = state.places.get(panel, CursorPlace())
    if place.index < len(rows) and key_of(panel, rows[place.index]) == place.key:
        return place.index
    for at, row in enumerate(rows):
        if key_of(panel, row) == place.key:
            return at
    return max(0, min(place.index, len(rows) - 1))


def press(
    state: State, key: str, lists: Lists, page_rows: int, viewer: Viewer = _ANYBODY
) -> tuple[State, UserAction | Act | Look | None]:
    """Return the next state, and the action to do outside the screen or None. `page_rows` is the
    number of rows that PgUp and PgDn move; without a `viewer`, nothing is refused to the user."""
    state = replace(state, message="", is_bad=False)
    if key in _ALWAYS:
        return state, _ALWAYS[key]
    if state.question is not None:
        act = state.question.act if key in ("y", "Y") else None
        told = "" if act else "nothing done"
        marked = frozenset[str]() if act else state.marked
        return replace(state, question=None, message=told, marked=marked), act
    if state.prompt is not None:
        return _answer(state, state.prompt, key)
    if state.is_typing:
        text = "" if key == "esc" else _typed(state.row_filter.text, key)
        is_typing = key not in ("enter", "down", "up", "tab", "esc")
        row_filter = replace(state.row_filter, text=text)
        return replace(state, is_typing=is_typing, row_filter=row_filter), None
    if key in ("?", "f1") and state.page is not Page.HELP:
        under = (*state.under, state.page)
        return replace(state, page=Page.HELP, under=under, scroll=0), None
    if key == "l" and (row := selected(state, lists)):
        return state, Look(row, errors=state.shows_errors and state.page is Page.JOB)
    if key in ACTIONS and (rows := targets(state, lists)):
        return _act(state, key, rows, viewer)
    if state.page is not Page.MAIN:
        return _on_page(state, key, page_rows), None
    if key == "q":
        return state, UserAction.QUIT
    return _on_main(state, key, lists, page_rows), None


def marked_rows(state: State, lists: Lists) -> list[SnapshotRow]:
    listed = (row for panel in _PANELS[1:] for row in lists[panel])
    return [row for row in listed if mark_of(row) in state.marked]


def targets(state: State, lists: Lists) -> list[SnapshotRow]:
    """Return the jobs that an action affects: the marked ones that are listed, or else that of the
    page or under the cursor."""
    if state.page is Page.MAIN and state.panel is not TopPanel.TREE:
        marked = marked_rows(state, lists)
        if marked:
            return marked
    row = selected(state, lists)
    return [] if row is None else [row]


def selected(state: State, lists: Lists) -> SnapshotRow | None:
    """Return the job of the page or under the cursor, or None."""
    if state.page is Page.JOB and state.job is not None:
        label = state.job["label"]
        listed = (row for panel in _PANELS[1:] for row in lists[panel] if row["label"] == label)
        return next(listed, state.job)
    rows = [] if state.page is Page.HELP or state.panel is TopPanel.TREE else lists[state.panel]
    return rows[cursor(state, state.panel, rows)] if rows else None


def _typed(text: str, key: str) -> str:
    if key == "backspace":
        return text[:-1]
    if key == "ctrl-u":
        return ""
    return text + key if len(key) == 1 and len(text) < _MOST_TEXT else text


def _on_page(state: State, key: str, page_rows: int) -> State:
    match key:
        case "q" | "esc" | "left" | "backspace" | "enter" | "?":
            *under, back = state.under or (Page.MAIN,)
            job = None if back is Page.MAIN else state.job
            return replace(state, page=back, under=tuple(under), job=job, scroll=0)
        case "home" | "g":
            return replace(state, scroll=0)
        case "end" | "G":
            return replace(state, scroll=_END)
        case "e" if state.page is Page.JOB:
            return replace(state, shows_errors=not state.shows_errors)
    step = _STEPS.get(key, {"pgdn": page_rows, " ": page_rows, "pgup": -page_rows}.get(key, 0))
    return replace(state, scroll=max(0, state.scroll + step))


def _on_main(state: State, key: str, lists: Lists, page_rows: int) -> State:
    rows = lists[state.panel]
    at = cursor(state, state.panel, rows)
    match key:
        case "tab" | "right":
            return replace(state, panel=_PANELS[(_PANELS.index(state.panel) + 1) % len(_PANELS)])
        case "backtab" | "left":
            return replace(state, panel=_PANELS[_PANELS.index(state.panel) - 1])
        case "1" | "2" | "3" | "4":
            return replace(state, panel=_PANELS[int(key) - 1])
        case "/":
            return replace(state, is_typing=True)
        case "u":
            mine = not state.row_filter.only_mine
            return replace(state, row_filter=replace(state.row_filter, only_mine=mine))
        case "s":
            count = len(ORDERS[state.panel])
            number = (state.sorted_by.get(state.panel, 0) + 1) % count
            return replace(state, sorted_by={**state.sorted_by, state.panel: number})
        case "S":
            return replace(state, backwards=state.backwards ^ {state.panel})
        case " " if state.panel is TopPanel.TREE and rows and rows[at]["is_leaf"]:
            return replace(state, message="only a pool can be folded", is_bad=True)
        case " " if state.panel is TopPanel.TREE and rows:
            return replace(state, folded=state.folded ^ {rows[at]["path"]})
        case " " if rows:
            marked = state.marked ^ {mark_of(rows[at])}
            return _move(replace(state, marked=marked), rows, at + 1)
        case "esc" if state.marked:
            return replace(state, marked=frozenset())
        case "esc":
            return replace(state, row_filter=RowFilter())
        case "enter" if rows:
            return _open(state, rows[at])
        case "home" | "g":
            return _move(state, rows, 0)
        case "end" | "G":
            return _move(state, rows, len(rows) - 1)
    step = _STEPS.get(key) or {"pgdn": page_rows, "pgup": -page_rows}.get(key, 0)
    return _move(state, rows, at + step) if step else state


def _move(state: State, rows: list[Any], at: int) -> State:
    if not rows:
        return state
    at = max(0, min(at, len(rows) - 1))
    place = CursorPlace(key_of(state.panel, rows[at]), at)
    return replace(state, places={**state.places, state.panel: place})


def _open(state: State, row: Any) -> State:
    if state.panel is not TopPanel.TREE:
        under = (state.page,)
        return replace(state, page=Page.JOB, under=under, job=row, scroll=0, shows_errors=False)
    below = "" if state.row_filter.below == row["path"] else row["path"]
    return replace(state, row_filter=replace(state.row_filter, below=below))


def _act(
    state: State, key: str, rows: Sequence[SnapshotRow], viewer: Viewer
) -> tuple[State, Act | None]:
    match begin(key, rows, viewer):
        case Act() as act:
            return replace(state, marked=frozenset()), act
        case Question() as question:
            return replace(state, question=question), None
        case Prompt() as prompt:
            return replace(state, prompt=prompt), None
        case why:
            return replace(state, message=str(why), is_bad=True), None


def _answer(state: State, prompt: Prompt, key: str) -> tuple[State, Act | None]:
    match key:
        case "esc":
            return replace(state, prompt=None, message="nothing done"), None
        case "enter":
            try:
                act = typed(prompt)
            except Refused as error:
                hint = f" ({error.hint})" if error.hint else ""
                return replace(state, message=f"{error.text}{hint}", is_bad=True), None
            return replace(state, prompt=None, marked=frozenset()), act
    text = _typed(prompt.text, key)
    return replace(state, prompt=replace(prompt, text=text)), None
