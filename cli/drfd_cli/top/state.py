"""The state of the live view: which rows each panel lists, the cursor, the page. Pure.

`KeyDecoder` finds the keys, by name, in the bytes that a terminal sends. `press` returns the state
after a key, and the action that is to be done outside the screen.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from drfd.common.indices import joined, show_spans
from drfd.core.model.job import leaf_path
from drfd_cli.commands.shares import branch

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotNode, SnapshotRow, SnapshotView

    class TreeRow(SnapshotNode):
        title: str
        is_leaf: bool


#: A resource that a job requests and that is measured.
Axis = Literal["cores", "memory", "read", "write"]


class TopPanel(StrEnum):
    """The panels, in the order of the screen."""

    TREE = "tree"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


#: The orders of each panel, the default first.
ORDERS: dict[TopPanel, tuple[str, ...]] = {
    TopPanel.TREE: ("share", "name", "satisfied", "running", "waiting"),
    TopPanel.RUNNING: ("start", "cores", "memory", "time left", "user"),
    TopPanel.WAITING: ("turn", "submission", "user"),
    TopPanel.ENDED: ("end", "user"),
}


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


class Page(Enum):
    MAIN = auto()
    JOB = auto()
    HELP = auto()


class Verb(StrEnum):
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True)
class Act:
    """A verb that the daemon is to execute on a job."""

    verb: Verb
    label: str


class UserAction(Enum):
    QUIT = auto()
    REDRAW = auto()
    #: Stop the program, as ^Z does.
    SUSPEND = auto()


@dataclass(frozen=True)
class CursorPlace:
    """The row under the cursor, and its index, which is used if the row is gone."""

    key: str = ""
    index: int = 0


@dataclass(frozen=True)
class Question:
    act: Act
    text: str


@dataclass(frozen=True)
class State:
    panel: TopPanel = TopPanel.RUNNING
    page: Page = Page.MAIN
    places: Mapping[TopPanel, CursorPlace] = field(default_factory=dict)
    row_filter: RowFilter = field(default_factory=RowFilter)
    is_typing: bool = False
    #: The index of each panel's order in `ORDERS`; 0 if there is none.
    sorted_by: Mapping[TopPanel, int] = field(default_factory=dict)
    #: The job that the page about one job shows.
    job: SnapshotRow | None = None
    shows_errors: bool = False
    #: The number of lines that a page is scrolled down.
    scroll: int = 0
    question: Question | None = None
    #: The message about the last action, and whether it is an error.
    message: str = ""
    is_bad: bool = False

    def orders(self) -> dict[TopPanel, str]:
        return {panel: ORDERS[panel][self.sorted_by.get(panel, 0)] for panel in TopPanel}


# -- the rows of the panels ----------------------------------------------------------------------


def shown(snapshot: SnapshotView, state: State) -> Lists:
    """Return the rows of each panel. The tree is never filtered."""
    row_filter, orders = state.row_filter, state.orders()
    waiting = snapshot["pending"]
    if row_filter.only_mine:
        # `pending` is cut; `mine` has the user's own jobs behind the cut.
        waiting = [*waiting, *snapshot["mine"]]
    chosen = {
        TopPanel.RUNNING: snapshot["running"],
        TopPanel.WAITING: waiting,
        TopPanel.ENDED: snapshot["ended"],
    }
    found: Lists = {TopPanel.TREE: _tree(snapshot["nodes"], orders[TopPanel.TREE])}
    for panel, rows in chosen.items():
        if not row_filter.is_empty():
            rows = [row for row in rows if _is_chosen(row, row_filter, snapshot["user"])]
        key = _SORT_KEYS.get((panel, orders[panel]))
        found[panel] = sorted(rows, key=key) if key is not None else rows
    found[TopPanel.ENDED] = _gathered(found[TopPanel.ENDED])
    return found


def key_of(panel: TopPanel, row: Any) -> str:
    """Return the key by which a row is found again in later snapshots."""
    return str(row["path" if panel is TopPanel.TREE else "label"])


def leaf_of(row: SnapshotRow) -> str:
    """Return the path of the leaf that a job is charged to."""
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
            indices = joined(row["array_index"] or 0 for row in alike)
            label = f"{array_id}_[{show_spans((low, high, 1) for low, high in indices)}]"
            latest = {**latest, "label": label, "tasks": len(alike)}
            latest["id"] = array_id or latest["id"]
        found.append(latest)
    return found


def _end_of_task(row: SnapshotRow) -> tuple[object, ...]:
    """Return a key that is equal for tasks that share a row."""
    if row["array_id"] is None:
        return (row["id"],)
    return row["array_id"], row["name"], row["outcome"], row["exit_code"], row["signal"]


def _parts(node: SnapshotNode) -> list[str]:
    return node["path"].split(".")


_TREE_SORT_KEYS: dict[str, Callable[[SnapshotNode], Any]] = {
    "name": _parts,
    "share": lambda node: (-node["dominant_share"], _parts(node)),
    "satisfied": lambda node: (node["satisfaction"], _parts(node)),
    "running": lambda node: (-node["running"], _parts(node)),
    "waiting": lambda node: (-node["pending"], _parts(node)),
}


def _tree(nodes: Sequence[SnapshotNode], order: str) -> list[TreeRow]:
    """Return each node followed by the nodes below it, siblings in the given order. A pool with one
    leaf shares a row with it, because both have the same allocation and entitlement."""
    below: dict[str, list[SnapshotNode]] = {}
    for node in sorted(nodes, key=_TREE_SORT_KEYS[order]):
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
        found.append({**node, "title": "  " * depth + title, "is_leaf": not inside})
        left += [(each, depth + 1, "") for each in reversed(inside)]
    return found


def _use(row: SnapshotRow, what: Axis) -> float:
    """Return the present use of a job, or zero if it is not known."""
    return (row["now"] and row["now"].get(what)) or 0.0


def left_s(row: SnapshotRow, at_s: float) -> float | None:
    """Return the seconds until the time limit, or None if there is none."""
    limit_s, started_s = row["time_limit_s"], row["started_at"]
    return None if limit_s is None or started_s is None else started_s + limit_s - at_s


def _end_s(row: SnapshotRow) -> float:
    left = left_s(row, 0.0)
    return float("inf") if left is None else left


_SORT_KEYS: dict[tuple[TopPanel, str], Callable[[SnapshotRow], Any]] = {
    (TopPanel.RUNNING, "start"): lambda row: (row["started_at"] or float("inf"), row["id"]),
    (TopPanel.RUNNING, "cores"): lambda row: -_use(row, "cores"),
    (TopPanel.RUNNING, "memory"): lambda row: -_use(row, "memory"),
    (TopPanel.RUNNING, "time left"): _end_s,
    (TopPanel.RUNNING, "user"): lambda row: row["user"],
    (TopPanel.WAITING, "submission"): lambda row: row["submitted_at"],
    (TopPanel.WAITING, "user"): lambda row: row["user"],
    (TopPanel.ENDED, "user"): lambda row: row["user"],
}


# -- the effect of keys --------------------------------------------------------------------------

_STEPS = {"down": 1, "j": 1, "up": -1, "k": -1}
#: Most characters of a search text.
_MOST_TEXT = 60
#: A scroll position beyond the end of any page.
_END = 100_000


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
    state: State, key: str, lists: Lists, page_rows: int
) -> tuple[State, UserAction | Act | None]:
    """Return the next state, and the action to do outside the screen or None. `page_rows` is the
    number of rows that PgUp and PgDn move."""
    state = replace(state, message="", is_bad=False)
    if key == "ctrl-c":
        return state, UserAction.QUIT
    if key == "ctrl-l":
        return state, UserAction.REDRAW
    if key == "ctrl-z":
        return state, UserAction.SUSPEND
    if state.question is not None:
        act = state.question.act if key in ("y", "Y") else None
        told = "" if act else "nothing done"
        return replace(state, question=None, message=told), act
    if state.is_typing:
        return _type(state, key), None
    if key in ("?", "f1") and state.page is not Page.HELP:
        return replace(state, page=Page.HELP, scroll=0), None
    if key in ("c", "h") and (job := _job(state, lists)) is not None:
        return _act(state, key, job)
    if state.page is not Page.MAIN:
        return _on_page(state, key, page_rows), None
    if key == "q":
        return state, UserAction.QUIT
    return _on_main(state, key, lists, page_rows), None


def _job(state: State, lists: Lists) -> SnapshotRow | None:
    """Return the job that a key affects: the job of the page or under the cursor, or None."""
    if state.page is Page.JOB and state.job is not None:
        label = state.job["label"]
        listed = (row for panel in _PANELS[1:] for row in lists[panel] if row["label"] == label)
        return next(listed, state.job)
    rows = [] if state.page is Page.HELP or state.panel is TopPanel.TREE else lists[state.panel]
    return rows[cursor(state, state.panel, rows)] if rows else None


def _type(state: State, key: str) -> State:
    text = state.row_filter.text
    match key:
        case "enter" | "down" | "up" | "tab":
            return replace(state, is_typing=False)
        case "esc":
            text, state = "", replace(state, is_typing=False)
        case "backspace":
            text = text[:-1]
        case "ctrl-u":
            text = ""
        case _ if len(key) == 1 and len(text) < _MOST_TEXT:
            text += key
    return replace(state, row_filter=replace(state.row_filter, text=text))


def _on_page(state: State, key: str, page_rows: int) -> State:
    """Handle a key on the help, or on the page about a job."""
    match key:
        case "q" | "esc" | "left" | "backspace" | "enter" | "?":
            # The help may have been opened on the page of a job.
            back = Page.JOB if state.page is Page.HELP and state.job is not None else Page.MAIN
            job = state.job if back is Page.JOB else None
            return replace(state, page=back, job=job, scroll=0)
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
        case "esc":
            return replace(state, row_filter=RowFilter())
        case "enter" if rows:
            return _open(state, rows[at])
        case "home" | "g":
            return _move(state, rows, 0)
        case "end" | "G":
            return _move(state, rows, len(rows) - 1)
        case "pgdn" | " ":
            return _move(state, rows, at + page_rows)
        case "pgup":
            return _move(state, rows, at - page_rows)
        case _ if key in _STEPS:
            return _move(state, rows, at + _STEPS[key])
    return state


def _move(state: State, rows: list[Any], at: int) -> State:
    if not rows:
        return state
    at = max(0, min(at, len(rows) - 1))
    place = CursorPlace(key_of(state.panel, rows[at]), at)
    return replace(state, places={**state.places, state.panel: place})


def _open(state: State, row: Any) -> State:
    if state.panel is not TopPanel.TREE:
        return replace(state, page=Page.JOB, job=row, scroll=0, shows_errors=False)
    below = "" if state.row_filter.below == row["path"] else row["path"]
    return replace(state, row_filter=replace(state.row_filter, below=below))


def _act(state: State, key: str, row: SnapshotRow) -> tuple[State, Act | None]:
    """Hold or release at once; ask before a job is cancelled."""
    label = row["label"]
    if row["ended_at"] is not None:
        return replace(state, message=f"job {label} has ended", is_bad=True), None
    if key == "h":
        if row["state"] not in ("PENDING", "HELD"):
            told = f"job {label} is {row['state']}: only waiting jobs can be held"
            return replace(state, message=told, is_bad=True), None
        return state, Act(Verb.RELEASE if row["state"] == "HELD" else Verb.HOLD, label)
    tasks = f"{row['tasks']} tasks, " if row["tasks"] > 1 else ""
    text = f"cancel {tasks}job {label} ({row['name']}) of {row['user']}?"
    return replace(state, question=Question(Act(Verb.CANCEL, label), text)), None


# -- the bytes of keys ---------------------------------------------------------------------------

#: The page of keys.
HELP = (
    "",
    "  ↑ ↓  j k           up and down          PgUp PgDn Space  by pages",
    "  Home End  g G      first and last       Tab  ← →  1-4    another panel",
    "  Enter              a job's own page; in SHARES: only the jobs of this node",
    "  /                  only jobs with this text in id, name, user, pool or reason",
    "  u                  only mine, or all    Esc              all again",
    "  s                  another order        ^L               draw anew",
    "  c                  cancel (it asks)     h                hold, or release",
    "  e                  a job's errors, in place of its output",
    "  q  ^C              quit",
    "",
    "  █ ▒ ╱ ·            allocated and used, allocated, left to others, free;",
    "                     a colour (or a letter) is one user in one pool",
    "  PRESSURE           percent of the last 10 s in which processes waited",
    "  SHARES             the bar: dominant share; ┃ or │ on it: the entitlement",
    "  SATISFIED          share over entitlement: from 100% on the promise is kept",
    "  RUNNING            used/declared; the bar turns (or ! comes) near the limit",
    "  WAITING            in the order in which they would start now; the cursor",
    "                     there shows the whole reason below",
)


_ESC = "\x1b"
#: Keys by the final character of their control sequence, or by its number before ~ (xterm).
_FINAL = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab",
    "P": "f1",
}  # fmt: skip
_TILDE = {
    "1": "home", "4": "end", "5": "pgup", "6": "pgdn", "7": "home", "8": "end", "11": "f1",
    "3": "delete",
}  # fmt: skip
#: The Linux console sends ESC [ [ A for F1.
_SEQUENCE = re.compile(r"\x1b(?:\[\[[A-E]|\[([0-?]*)[ -/]*([@-Z\\-~])|O([@-~]))")
_BEGUN = re.compile(r"\x1b(?:\[(?:\[|[0-?]*[ -/]*)|O)?")
_CHARACTERS = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace",
    "\x03": "ctrl-c", "\x0c": "ctrl-l", "\x15": "ctrl-u", "\x1a": "ctrl-z",
    "\x0e": "down", "\x10": "up",
}  # fmt: skip
#: Most characters of the sequence of a key; a longer one is none.
_MOST = 32


class KeyDecoder:
    """Finds the keys in the bytes of a terminal, also if a key arrives in several pieces.

    ESC is a key, and also begins other keys. The caller decides by `flush` that nothing follows it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the names of the complete keys. A character is its own name."""
        self._rest += self._decoder.decode(data)
        while self._rest:
            if self._rest[0] != _ESC:
                char, self._rest = self._rest[0], self._rest[1:]
                key = _CHARACTERS.get(char, char if char.isprintable() else "")
            elif match := _SEQUENCE.match(self._rest):
                self._rest = self._rest[match.end() :]
                key = _named(match)
            elif _BEGUN.fullmatch(self._rest) and len(self._rest) < _MOST:
                return
            else:
                # ESC, and another key right after it.
                self._rest, key = self._rest[1:], "esc"
            if key:
                yield key

    @property
    def is_waiting(self) -> bool:
        """Whether a key has begun but is not complete."""
        return bool(self._rest)

    def flush(self) -> Iterator[str]:
        """End a key that has begun: ESC alone is a key, an incomplete sequence is none."""
        is_escape = self._rest == _ESC
        self._rest = ""
        if is_escape:
            yield "esc"


def _named(match: re.Match[str]) -> str:
    numbers, final, single = match[1], match[2], match[3]
    if single:
        return _FINAL.get(single, "")
    if final is None:
        return "f1" if match[0].endswith("A") else ""
    if final == "~":
        return _TILDE.get(numbers.partition(";")[0], "")
    return _FINAL.get(final, "")
