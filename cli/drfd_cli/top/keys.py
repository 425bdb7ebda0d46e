"""Keys: what each does and how it is explained, what can be done to jobs by one, and the names of
those in the bytes that a terminal sends. Pure.

A key is declared in `KEYS`: what it does to jobs, its word on the last line, its text in the help.

An action that cannot work is refused at its key, before a question. The daemon decides in the end:
it knows more, and the state may have changed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import zip_longest
from signal import Signals
from typing import TYPE_CHECKING

from drfd.client.option_values import KINDS, fields_of, read
from drfd.client.words import parse_signal
from drfd.common.errors import Refused
from drfd.protocol.job_options import BY_KEY

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotRow


@dataclass(frozen=True)
class Act:
    """A verb that the daemon is to execute on the jobs of some rows."""

    verb: str
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


class Page(Enum):
    MAIN = auto()
    JOB = auto()
    HELP = auto()


@dataclass(frozen=True)
class Action:
    """What a key does to jobs."""

    verb: str
    #: The states in which it works, or any in which a job is not about to end, and what is said of
    #: a job in another one.
    states: tuple[str, ...] = ()
    why: str = ""
    #: The state of jobs of which it takes back what it did, and the verb for that.
    undone: tuple[str, str] = ("", "")
    #: What is typed before it is done, and the option of a job whose value that is.
    typed: str = ""
    option: str = ""

    def verb_for(self, states: Collection[str]) -> str:
        state, verb = self.undone
        return verb if set(states) == {state} else self.verb


_WAITING, _RUNNING, _ENDING = (
    ("PENDING", "HELD"),
    ("RUNNING", "SUSPENDED"),
    ("STOPPING", "CLEANING"),
)
_MAIN, _JOB = (Page.MAIN,), (Page.JOB,)


@dataclass(frozen=True)
class KeyBinding:
    #: The key on the last line, and its word there.
    name: str
    word: str
    #: The keys in the help, and what it says of them.
    names: str
    help: str
    #: The pages whose last line has it; the lower its rank, the narrower the line that it is on.
    pages: tuple[Page, ...] = ()
    rank: int = 99
    action: Action | None = None


#: All keys, in their order on the last line and in the help.
KEYS = (
    KeyBinding("j k", "scroll", "↑ ↓  j k", "up and down", (Page.JOB, Page.HELP)),
    KeyBinding("", "", "PgUp PgDn", "by pages"),
    KeyBinding("", "", "Home End  g G", "first and last"),
    KeyBinding("Tab", "panel", "Tab  ← →  1-4", "another panel", _MAIN, 14),
    KeyBinding("Enter", "open", "Enter", "a job's own page; in SHARES: jobs of this user or pool",
        _MAIN, 10),
    KeyBinding("Esc", "back", "Esc", "back; on the main page: clear the marks, then the filters",
        (Page.JOB, Page.HELP), 2),
    KeyBinding("/", "find", "/", "only jobs with this text in id, name, user, pool or reason",
        _MAIN, 3),
    KeyBinding("u", "mine", "u", "only mine, or all", _MAIN, 11),
    KeyBinding("s", "sort", "s  S", "another order, or reversed", _MAIN, 12),
    KeyBinding("Space", "mark", "Space", "mark jobs: the next action applies to all marked;\n"
        "in SHARES: fold a pool, or unfold it", _MAIN, 13),
    KeyBinding("c", "cancel", "c", "cancel (it asks)", (*_MAIN, *_JOB), 4, Action("cancel")),
    KeyBinding("h", "hold", "h", "hold, or release", (*_MAIN, *_JOB), 5,
        Action("hold", _WAITING, "only waiting jobs can be held", ("HELD", "release"))),
    KeyBinding("p", "suspend", "p", "suspend, or resume", (*_MAIN, *_JOB), 6,
        Action("suspend", _RUNNING, "only a running job can be suspended",
               ("SUSPENDED", "resume"))),
    KeyBinding("t", "time", "t", "change the time limit", (*_MAIN, *_JOB),
        action=Action("set", typed="time limit", option="time")),
    KeyBinding("P", "priority", "P", "change the priority", (*_MAIN, *_JOB),
        action=Action("set", _WAITING, "only a waiting job can be given another priority",
                      typed="priority", option="priority")),
    KeyBinding("x", "signal", "x", "send a signal", (*_MAIN, *_JOB),
        action=Action("signal", ("RUNNING",), "only a running job can be sent a signal",
                      typed="signal")),
    KeyBinding("r", "retry", "r", "submit an ended job again", (*_MAIN, *_JOB), 8, Action("retry")),
    KeyBinding("l", "log", "l", "the output in your PAGER; less follows it while it grows:\n"
        "^C stops that, F begins it again, q comes back", (*_MAIN, *_JOB), 7),
    KeyBinding("e", "errors", "e", "a job's errors, in place of its output", _JOB, 9),
    KeyBinding("", "", "^L", "draw anew"),
    KeyBinding("?", "help", "?  F1", "this page", (*_MAIN, *_JOB), 0),
    KeyBinding("q", "quit", "q  ^C", "quit", _MAIN, 1),
)  # fmt: skip
ACTIONS = {each.name: each.action for each in KEYS if each.action is not None}


def word_of(key: KeyBinding, row: SnapshotRow | None) -> str:
    """Return what the key does, to the job of the row if it does something to jobs."""
    state = row["state"] if row is not None else ""
    if key.action is not None and state == key.action.undone[0] != "":
        return key.action.undone[1]
    return key.word


def refusal(key: str, row: SnapshotRow, viewer: Viewer) -> str:
    """Return why the action cannot work on the job, or empty text if it may."""
    label, state, action = row["label"], row["state"], ACTIONS[key]
    if action.verb == "retry":
        # What is submitted again runs as the user at the screen.
        if row["ended_at"] is None:
            return f"job {label} is {state}: only what has ended can be retried"
        return "" if row["user"] == viewer.user else f"job {label} belongs to {row['user']}"
    if row["ended_at"] is not None:
        return f"job {label} has ended"
    if row["user"] != viewer.user and not viewer.is_admin:
        return f"job {label} belongs to {row['user']}"
    if action.verb != "cancel" and state in _ENDING:
        return f"job {label} is {state}: it is about to end"
    if action.states and state not in action.states:
        return f"job {label} is {state}: {action.why}"
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
    action = ACTIONS[key]
    verb = action.verb_for([row["state"] for row in able])
    # Of marked jobs in both states, those are meant that are to change theirs.
    able = [row for row in able if action.verb_for([row["state"]]) == verb]
    labels = tuple(row["label"] for row in able)
    left = len(rows) - len(able)
    but = f"; {left} of the marked ones cannot" if left else ""
    if action.typed:
        return Prompt(key, labels, f"{action.typed} of {_named(able)}{but}")
    act = Act(verb, labels)
    if len(able) == 1 and not left and verb != "cancel":
        return act
    tasks = f"{able[0]['tasks']} tasks, " if len(able) == 1 and able[0]["tasks"] > 1 else ""
    return Question(act, f"{verb} {tasks}{_named(able)}{but}?")


def _named(rows: Sequence[SnapshotRow]) -> str:
    if len(rows) == 1:
        row = rows[0]
        return f"job {row['label']} ({row['name']}) of {row['user']}"
    tasks = sum(row["tasks"] for row in rows)
    more = f" ({tasks} with all tasks)" if tasks > len(rows) else ""
    return f"{len(rows)} jobs{more}"


def typed(prompt: Prompt) -> Act:
    """Return the act with the value that was typed. Raises Refused if it is none."""
    text, action = prompt.text.strip(), ACTIONS[prompt.key]
    if action.option:
        option = BY_KEY[action.option]
        value = read(option, text)
        words = " ".join([action.typed, *KINDS[option.kind].show(value)])
        return Act(action.verb, prompt.labels, fields_of({option.key: value}), words)
    if not text:
        # Enter alone, perhaps pressed for something else, must end no job.
        hint = "TERM, INT, USR1, ... or a number"
        raise Refused("bad-value", "write which signal", hint=hint)
    number = Signals(parse_signal(text))
    return Act(action.verb, prompt.labels, {"signal": int(number)}, number.name)


_LEGEND = """
  █ ▒ ╱ ·            allocated and used, allocated, left to others, free;
                     a colour (or a letter) is one user in one pool
  PRESSURE           percent of the last 10 s in which processes waited
  SHARES             the bar: dominant share; ┃ or │ on it: the entitlement
  SATISFIED          share over entitlement: from 100% on it holds its entitlement
  RUNNING            used/declared; the bar turns (or ! comes) near the limit
  WAITING            in the order in which they would start now; the cursor
                     there shows the whole reason below"""
#: The lines of the page of keys.
HELP = (
    "",
    *(
        f"  {names:<19}{text}"
        for key in KEYS
        for names, text in zip_longest([key.names], key.help.split("\n"), fillvalue="")
    ),
    *_LEGEND.split("\n"),
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
