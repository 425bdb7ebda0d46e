"""Keys: what can be done to jobs by one, the names of those in the bytes that a terminal sends, and
the page that explains them. Pure.

An action that cannot work is refused at its key, before a question. The daemon decides in the end:
it knows more, and the state may have changed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from signal import Signals
from typing import TYPE_CHECKING

from drfd.client.words import parse_signal
from drfd.common.errors import Refused
from drfd.common.units import exact_duration, is_endless, parse_duration

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotRow


class Verb(StrEnum):
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    SUSPEND = "suspend"
    RESUME = "resume"
    SIGNAL = "signal"
    SET = "set"
    RETRY = "retry"


@dataclass(frozen=True)
class Act:
    """A verb that the daemon is to execute on the jobs of some rows."""

    verb: Verb
    labels: tuple[str, ...]
    #: Further fields of the request, and the same in words.
    fields: Mapping[str, object] = field(default_factory=dict)
    words: str = ""


@dataclass(frozen=True)
class Question:
    """The act that is done after a yes."""

    act: Act
    text: str


@dataclass(frozen=True)
class Prompt:
    """A value that is being typed for some jobs. `key` names the action."""

    key: str
    labels: tuple[str, ...]
    #: What is typed, and of which jobs.
    about: str
    text: str = ""


@dataclass(frozen=True)
class Viewer:
    """The user at the screen."""

    user: str = ""
    is_admin: bool = True


#: The keys of actions, and what each does.
KEYS = {
    "c": "cancel", "h": "hold", "p": "suspend", "t": "time", "P": "priority", "x": "signal",
    "r": "retry",
}  # fmt: skip
_WAITING, _RUNNING, _ENDING = (
    ("PENDING", "HELD"),
    ("RUNNING", "SUSPENDED"),
    ("STOPPING", "CLEANING"),
)
#: The states in which an action works, and what is said of a job in another one.
_STATES = {
    "h": (_WAITING, "only waiting jobs can be held"),
    "p": (_RUNNING, "only a running job can be suspended"),
    "x": (("RUNNING",), "only a running job can be sent a signal"),
    "P": (_WAITING, "only a waiting job can be given another priority"),
}
_TYPED = {"t": "time limit", "P": "priority", "x": "signal"}
_MOST_PRIORITY = 1_000_000


def word_of(key: str, row: SnapshotRow | None) -> str:
    """Return what the key does to the job of the row."""
    state = row["state"] if row is not None else ""
    if key == "h" and state == "HELD":
        return "release"
    if key == "p" and state == "SUSPENDED":
        return "resume"
    return KEYS[key]


def refusal(key: str, row: SnapshotRow, viewer: Viewer) -> str:
    """Return why the action cannot work on the job, or empty text if it may."""
    label, state = row["label"], row["state"]
    if key == "r":
        # What is submitted again runs as the user at the screen.
        if row["ended_at"] is None:
            return f"job {label} is {state}: only what has ended can be retried"
        return "" if row["user"] == viewer.user else f"job {label} belongs to {row['user']}"
    if row["ended_at"] is not None:
        return f"job {label} has ended"
    if row["user"] != viewer.user and not viewer.is_admin:
        return f"job {label} belongs to {row['user']}"
    if key != "c" and state in _ENDING:
        return f"job {label} is {state}: it is about to end"
    states, why = _STATES.get(key, ((), ""))
    if states and state not in states:
        return f"job {label} is {state}: {why}"
    return ""


def begin(key: str, rows: Sequence[SnapshotRow], viewer: Viewer) -> Act | Question | Prompt | str:
    """Return what the key leads to for the jobs of the rows: the act itself, a question or a value
    to type before it, or the reason why none of them allows it.

    Nothing is asked about a single job, unless it is to be cancelled.
    """
    refused = [refusal(key, row, viewer) for row in rows]
    able = [row for row, why in zip(rows, refused, strict=True) if not why]
    if not able:
        return refused[0]
    verb = _verb(key, able)
    # Of marked jobs in both states, those are meant that are to change theirs.
    able = [row for row in able if _verb(key, [row]) is verb]
    labels = tuple(row["label"] for row in able)
    left = len(rows) - len(able)
    but = f"; {left} of the marked ones cannot" if left else ""
    if key in _TYPED:
        return Prompt(key, labels, f"{_TYPED[key]} of {_named(able)}{but}")
    act = Act(verb, labels)
    if len(able) == 1 and not left and verb is not Verb.CANCEL:
        return act
    tasks = f"{able[0]['tasks']} tasks, " if len(able) == 1 and able[0]["tasks"] > 1 else ""
    return Question(act, f"{verb} {tasks}{_named(able)}{but}?")


def _verb(key: str, rows: Sequence[SnapshotRow]) -> Verb:
    states = {row["state"] for row in rows}
    match key:
        case "c":
            return Verb.CANCEL
        case "h":
            return Verb.RELEASE if states == {"HELD"} else Verb.HOLD
        case "p":
            return Verb.RESUME if states == {"SUSPENDED"} else Verb.SUSPEND
        case "x":
            return Verb.SIGNAL
        case "r":
            return Verb.RETRY
    return Verb.SET


def _named(rows: Sequence[SnapshotRow]) -> str:
    if len(rows) == 1:
        row = rows[0]
        return f"job {row['label']} ({row['name']}) of {row['user']}"
    tasks = sum(row["tasks"] for row in rows)
    more = f" ({tasks} with all tasks)" if tasks > len(rows) else ""
    return f"{len(rows)} jobs{more}"


def typed(prompt: Prompt) -> Act:
    """Return the act with the value that was typed. Raises Refused if it is none."""
    text = prompt.text.strip()
    match prompt.key:
        case "t":
            seconds = 0 if is_endless(text) else parse_duration(text)
            words = f"time limit {exact_duration(seconds) if seconds else 'unlimited'}"
            return Act(Verb.SET, prompt.labels, {"time_limit_s": seconds}, words)
        case "x":
            if not text:
                # Enter alone, perhaps pressed for something else, must end no job.
                hint = "TERM, INT, USR1, ... or a number"
                raise Refused("bad-value", "write which signal", hint=hint)
            number = Signals(parse_signal(text))
            return Act(Verb.SIGNAL, prompt.labels, {"signal": int(number)}, number.name)
    try:
        priority = int(text)
    except ValueError:
        priority = _MOST_PRIORITY + 1
    if abs(priority) > _MOST_PRIORITY:
        hint = "write a whole number, such as 5 or -5"
        raise Refused("bad-value", f"priority: {text[:40]!r} is not one", hint=hint)
    return Act(Verb.SET, prompt.labels, {"priority": priority}, f"priority {priority}")


#: The page of keys.
HELP = (
    "",
    "  ↑ ↓  j k           up and down          PgUp PgDn        by pages",
    "  Home End  g G      first and last       Tab  ← →  1-4    another panel",
    "  Enter              a job's own page; in SHARES: only the jobs of this node",
    "  /                  only jobs with this text in id, name, user, pool or reason",
    "  u                  only mine, or all    Esc              all again",
    "  s  S               another order, or reversed            ^L  draw anew",
    "  Space              mark jobs: the next action is for all of those shown;",
    "                     in SHARES: fold a pool, or unfold it",
    "  c                  cancel (it asks)     h                hold, or release",
    "  p                  suspend, or resume   x                send a signal",
    "  t                  change the time limit                 P  the priority",
    "  r                  submit an ended job again",
    "  l                  the output in your PAGER; less follows it while it grows:",
    "                     ^C stops that, F begins it again, q comes back",
    "  e                  a job's errors, in place of its output",
    "  i                  use and shares over time: with room, always, never",
    "  q  ^C              quit",
    "",
    "  █ ▒ ╱ ·            allocated and used, allocated, left to others, free;",
    "                     a colour (or a letter) is one user in one pool",
    "  PRESSURE           percent of the last 10 s in which processes waited",
    "  SHARES             the bar: dominant share; ┃ or │ on it: the entitlement",
    "  SATISFIED          share over entitlement: from 100% on the promise is kept",
    "  SHORT 7D           missing of the promise in 7 days, as time of the machine",
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
                key = _by_name(match)
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


def _by_name(match: re.Match[str]) -> str:
    numbers, final, single = match[1], match[2], match[3]
    if single:
        return _FINAL.get(single, "")
    if final is None:
        return "f1" if match[0].endswith("A") else ""
    if final == "~":
        return _TILDE.get(numbers.partition(";")[0], "")
    return _FINAL.get(final, "")
