"""Words of the command line for jobs, moments, outcomes and signals, as the wire has them.

Like `drfd.units` for amounts: what cannot be read is Refused, with what to write instead.
"""

from __future__ import annotations

import re
import time
from signal import Signals
from typing import Any

from drfd.client import when
from drfd.errors import Refused
from drfd.indices import count_of, read_array
from drfd.units import parse_duration

#: So many jobs at once, as the daemon takes them.
_MOST_IDS = 100_000
_MOST_ID = 1 << 53
_RANGE = re.compile(r"([0-9]{1,16})(?:-([0-9]{1,16}))?")
#: `42_7`: the task with index 7 of array 42.
_TASK = re.compile(r"[0-9]{1,15}_[0-9]{1,10}")
#: `42_[7-20,30]`: these tasks of array 42, as lists show them.
_TASKS = re.compile(r"([0-9]{1,15})_\[([^\[\]]+)\]")
#: A comma that is in no brackets.
_COMMA = re.compile(r",(?![^\[]*\])")
_AFTER = re.compile(r"([0-9]{1,16}|[0-9]{1,15}_[0-9]{1,10})(?::(ok|any|fail))?")
_GRES = re.compile(r"([a-zA-Z][\w-]{0,63})(?:=([0-9]{1,16}))?", re.ASCII)
_MOST_GRES = 1 << 20
_OUTCOMES = {
    "fail": "FAILED",
    "launch": "LAUNCH_FAILED",
    "lost": "LOST",
    "timeout": "TIMEOUT",
    "memory": "OUT_OF_MEMORY",
    "limit": "LIMIT_EXCEEDED",
}


#: A job or an array, or a task as `42_7`.
Ref = int | str


def parse_id(text: str) -> Ref:
    """The id of "42", or the task "42_7"."""
    word = text.strip()
    if _TASK.fullmatch(word):
        return word
    if not re.fullmatch("[0-9]{1,16}", word) or not 1 <= int(word) <= _MOST_ID:
        raise _bad("id", text, "not a job id", "write 41, or 41_7 for a task of an array")
    return int(word)


def parse_gres(text: str) -> tuple[str, int]:
    """What is counted, and how many: "gpu=2"; "gpu" is one of them."""
    match = _GRES.fullmatch(text.strip())
    if match is None:
        raise _bad("gres", text, "not NAME=N", "write gpu=2, or gpu for one")
    count = int(match[2] or 1)
    if count > _MOST_GRES:
        raise _bad("gres", text, "more than any machine has", "write gpu=2, or gpu for one")
    return match[1], count


def parse_ids(text: str) -> list[Ref]:
    """The ids of "3", "3-7" or "1,4-6"; tasks of an array as "42_7" or "42_[7-20]"."""
    found: list[Ref] = []
    for part in _COMMA.split(text):
        if _TASK.fullmatch(part.strip()):
            found.append(part.strip())
            continue
        if tasks := _TASKS.fullmatch(part.strip()):
            found += _tasks(text, tasks[1], tasks[2], room=_MOST_IDS - len(found))
            continue
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _bad("ids", text, "not a job id", "write 41, 3-7 or 1,4-6")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= _MOST_ID:
            raise _bad("ids", text, "not a range of job ids", "ids begin with 1: write 3-7")
        if len(found) + last - first >= _MOST_IDS:
            raise _too_many(text)
        found += range(first, last + 1)
    return found


def _tasks(text: str, array: str, indices: str, *, room: int) -> list[Ref]:
    spans, _ = read_array(indices)
    if count_of(spans) > room:
        raise _too_many(text)
    return [f"{array}_{at}" for first, last, step in spans for at in range(first, last + 1, step)]


def _too_many(text: str) -> Refused:
    return _bad("ids", text, f"more than {_MOST_IDS} jobs", "choose fewer at a time")


def parse_after(text: str) -> list[Any]:
    """(id, want) of "5", "5:any" or "5,7:fail"; nothing of an empty word."""
    found = []
    for part in text.split(",") if text.strip() else ():
        match = _AFTER.fullmatch(part.strip())
        if match is None or match[1] == "0":
            raise _bad("after", part, "not ID or ID:HOW", "write 5, 5:any or 5:fail")
        found.append((parse_id(match[1]), match[2] or "ok"))
    return found


def parse_begin(text: str) -> int:
    return when.parse_begin(text, time.time())


def parse_outcomes(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in _OUTCOMES:
            raise _bad("retry-on", word, "unknown", f"choose from {', '.join(_OUTCOMES)}")
    return [_OUTCOMES[word] for word in words]


def parse_signal(text: str) -> int:
    """The number of "USR1", "SIGUSR1" or "10"."""
    word = text.strip().upper()
    try:
        return Signals(int(word)) if word.isdecimal() else Signals[f"SIG{word.removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise _bad("signal", text, "not a signal", "write USR1, TERM or a number") from None


def parse_warning(text: str) -> tuple[int, int]:
    """Signal and seconds of "USR1@60"."""
    signal, at, span = text.partition("@")
    if not at:
        raise _bad("warn", text, "not SIGNAL@TIME", "write USR1@60 or TERM@5m")
    return parse_signal(signal), parse_duration(span, what="warn")


def _bad(what: str, text: str, fault: str, hint: str) -> Refused:
    word = text if len(text) <= 40 else f"{text[:37]}..."
    return Refused("bad-value", f"{what}: {word!r} is {fault}", hint=hint)
