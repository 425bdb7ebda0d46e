"""What the user has made of the screen: which key does what. Pure.

`press` gives the next state and, when something is to be done outside of the screen, a wish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto

from drfd_cli.top.rows import ORDERS, Choice, Lists, Panel, Row, key_of

_PANELS = tuple(Panel)
_STEPS = {"down": 1, "j": 1, "up": -1, "k": -1}
#: A text that is looked for is not longer.
_MOST_TEXT = 60
#: Further down than any page goes.
_END = 100_000


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
    """Ask the daemon for something to be done to a job."""

    verb: Verb
    label: str


class Wish(Enum):
    QUIT = auto()
    REDRAW = auto()
    #: As ^Z does.
    SUSPEND = auto()


@dataclass(frozen=True)
class Place:
    """The row under the cursor, and how far down it was if it is gone."""

    key: str = ""
    index: int = 0


@dataclass(frozen=True)
class Question:
    act: Act
    text: str


@dataclass(frozen=True)
class State:
    panel: Panel = Panel.RUNNING
    page: Page = Page.MAIN
    places: Mapping[Panel, Place] = field(default_factory=dict)
    choice: Choice = field(default_factory=Choice)
    is_typing: bool = False
    #: Which of its orders each panel has; the first, if none is said.
    sorted_by: Mapping[Panel, int] = field(default_factory=dict)
    #: Of the page about one job.
    job: Row | None = None
    shows_errors: bool = False
    #: How far the text of a page has moved up.
    scroll: int = 0
    question: Question | None = None
    #: What came of the last wish, and whether that is bad news.
    message: str = ""
    is_bad: bool = False

    def orders(self) -> dict[Panel, str]:
        return {panel: ORDERS[panel][self.sorted_by.get(panel, 0)] for panel in Panel}


def cursor(state: State, panel: Panel, rows: list[Row]) -> int:
    """Where the cursor is; it follows its row, and stays where it was when that is gone."""
    place = state.places.get(panel, Place())
    if place.index < len(rows) and key_of(panel, rows[place.index]) == place.key:
        return place.index
    for at, row in enumerate(rows):
        if key_of(panel, row) == place.key:
            return at
    return max(0, min(place.index, len(rows) - 1))


def press(state: State, key: str, lists: Lists, page_rows: int) -> tuple[State, Wish | Act | None]:
    """`page_rows`: how far a page goes."""
    state = replace(state, message="", is_bad=False)
    if key == "ctrl-c":
        return state, Wish.QUIT
    if key == "ctrl-l":
        return state, Wish.REDRAW
    if key == "ctrl-z":
        return state, Wish.SUSPEND
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
        return state, Wish.QUIT
    return _on_main(state, key, lists, page_rows), None


def _job(state: State, lists: Lists) -> Row | None:
    """The job that a key is about, as it is now: that of the page, or the one under the cursor."""
    if state.page is Page.JOB and state.job is not None:
        label = state.job["label"]
        listed = (row for panel in _PANELS[1:] for row in lists[panel] if row["label"] == label)
        return next(listed, state.job)
    rows = [] if state.page is Page.HELP or state.panel is Panel.TREE else lists[state.panel]
    return rows[cursor(state, state.panel, rows)] if rows else None


def _type(state: State, key: str) -> State:
    text = state.choice.text
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
    return replace(state, choice=replace(state.choice, text=text))


def _on_page(state: State, key: str, page_rows: int) -> State:
    """On the help, or the page about a job."""
    match key:
        case "q" | "esc" | "left" | "backspace" | "enter" | "?":
            # From the help back to the job that it was asked for on.
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
            mine = not state.choice.only_mine
            return replace(state, choice=replace(state.choice, only_mine=mine))
        case "s":
            count = len(ORDERS[state.panel])
            number = (state.sorted_by.get(state.panel, 0) + 1) % count
            return replace(state, sorted_by={**state.sorted_by, state.panel: number})
        case "esc":
            return replace(state, choice=Choice())
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


def _move(state: State, rows: list[Row], at: int) -> State:
    if not rows:
        return state
    at = max(0, min(at, len(rows) - 1))
    place = Place(key_of(state.panel, rows[at]), at)
    return replace(state, places={**state.places, state.panel: place})


def _open(state: State, row: Row) -> State:
    if state.panel is not Panel.TREE:
        return replace(state, page=Page.JOB, job=row, scroll=0, shows_errors=False)
    below = "" if state.choice.below == row["path"] else row["path"]
    return replace(state, choice=replace(state.choice, below=below))


def _act(state: State, key: str, row: Row) -> tuple[State, Act | None]:
    """Hold and release at once; nothing is cancelled without a yes."""
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
