"""Readers of command-line texts that name jobs, times, outcomes and signals.

`drfd.common.units` reads amounts. A text that cannot be read raises Refused, with what to write
instead.
"""

from __future__ import annotations

import re
import time
from signal import Signals
from typing import NamedTuple

from drfd.common.errors import Refused
from drfd.common.indices import count_of, read_array
from drfd.common.signals import MARKS
from drfd.common.units import parse_duration, parse_memory
from drfd.protocol.limits import MOST_AFTER, MOST_IDS

_MOST_ID = 1 << 53
#: Patterns are texts, each of which is compiled when it is used first.
_RANGE = r"([0-9]{1,16})(?:-([0-9]{1,16}))?"
#: `42_7`: the task with index 7 of array 42.
_TASK = r"[0-9]{1,15}_[0-9]{1,10}"
#: `42_[7-20,30]`: several tasks of array 42, as lists show them.
_TASKS = r"([0-9]{1,15})_\[([^\[\]]+)\]"
#: A comma outside brackets.
_COMMA = r",(?![^\[]*\])"
_AFTER = r"([0-9]{1,16}|[0-9]{1,15}_[0-9]{1,10})(?:-([0-9]{1,16}))?(?::(ok|any|fail))?"
_GRES = r"(?a)([a-zA-Z][\w-]{0,63})(?:=([0-9]{1,16}))?"
_MOST_GRES = 1 << 20
OUTCOMES = {
    "fail": "FAILED",
    "launch": "LAUNCH_FAILED",
    "lost": "LOST",
    "timeout": "TIMEOUT",
    "memory": "OUT_OF_MEMORY",
    "limit": "LIMIT_EXCEEDED",
}
#: What becomes of a job whose `--after` can never be met.
IF_NEVER = ("cancel", "keep")

#: A time of the day, and the forms of a day: a word, a date, and dates as Slurm writes them.
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?"
_DAYS = (
    r"(?P<word>yesterday|today|tomorrow)",
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)",
    r"(?P<month>\d{1,2})(?P<sign>[/.])(?P<day>\d{1,2})(?:(?P=sign)(?P<short>\d\d))?",
)
#: Of past times only: `1130` could be meant as half past eleven.
_BARE_DAY = r"(?P<month>\d\d)(?P<day>\d\d)(?P<short>\d\d)?"
#: Names of times of the day, as Slurm has them, too.
CLOCKS = {
    "midnight": "00:00", "elevenses": "11:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00",
}  # fmt: skip
#: A time from now on, or before it: `now+2h`, `now + 1 minute`, `+10s`, `now-1hour`.
_OFF = r"(?:now\s*)?(\+)\s*(.+)|now\s*(-)\s*(.+)"
#: A duration with units, without a sign: `10 min`, `1h30m ago`.
_SPAN = r"((?:[0-9]+(?:\.[0-9]+)?\s*[a-z]+\s*)+?)(ago)?"
#: A time of the day by a clock of twelve hours.
_TWELVE = r"\b(0?[1-9]|1[0-2])((?::[0-5][0-9]){0,2})\s*([ap])\.?m\b\.?"
_BEGIN_HINT = "write 18:00, 6pm, now+2h, tomorrow, 2026-11-21 or 2026-11-21T08:00"
_PAST_HINT = "write 2026-03-01, '2026-03-01 14:30', 14:30, yesterday, or 7d for seven days ago"

#: A feature of a machine, as the configuration names it.
_FEATURE = r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}"

#: A job or an array, or a task as `42_7`.
Ref = int | str


class Gres(NamedTuple):
    """A countable resource that a job asks for."""

    name: str
    #: None for the number of before.
    number: int | None
    #: Bytes on each instance, 0 for no limit; None for what was declared before.
    memory_bytes: int | None = None


def parse_id(text: str) -> Ref:
    """Return the id of "42", or the task "42_7"."""
    word = text.strip()
    if re.fullmatch(_TASK, word):
        return word
    if not re.fullmatch("[0-9]{1,16}", word) or not 1 <= int(word) <= _MOST_ID:
        raise _bad("id", text, "not a job id", "write 41, or 41_7 for a task of an array")
    return int(word)


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Return the countable resources of "gpu=2", "gpu" (one), or "gpu=1,memory=20G,license=2".

    `memory` is that of the resource before it, on each instance; 0 is no limit.
    """
    found: list[Gres] = []
    for part in text.split(","):
        name, _, amount = part.strip().partition("=")
        if name == "memory":
            found[-1:] = [_with_memory(text, amount, found[-1:])]
            continue
        match = re.fullmatch(_GRES, part.strip())
        if match is None:
            raise _bad("gres", text, "not NAME=N", "write gpu=2, or gpu for one")
        count = int(match[2] or 1)
        if count > _MOST_GRES:
            raise _bad("gres", text, "more than any machine has", "write gpu=2, or gpu for one")
        found.append(Gres(match[1], count))
    return tuple(found)


def parse_features(text: str) -> list[str]:
    """Return the features of "ssd,avx512", or of "ssd&avx512" as Slurm writes it."""
    found = [part.strip() for part in text.replace("&", ",").split(",")]
    for each in found:
        if not re.fullmatch(_FEATURE, each):
            hint = "write ssd, or ssd,avx512 for a machine with both"
            raise _bad("constraint", text, "not a list of features", hint)
    return found


def _with_memory(text: str, amount: str, before: list[Gres]) -> Gres:
    """Return the last resource before a word `memory=AMOUNT`, with that memory."""
    # Imported here: seldom needed, and it loads what describes devices.
    from drfd.devices.gpu import GPU

    hint = f"write {GPU}=1,memory=20G"
    if not before:
        raise Refused(
            "bad-value", f"gres: {text!r}: memory stands after what it is the memory of", hint=hint
        )
    if before[0].name != GPU:
        fault = f"only the memory of a {GPU} is measured"
        raise Refused("bad-value", f"gres: {text!r}: {fault}", hint=hint)
    if before[0].memory_bytes is not None:
        raise Refused("bad-value", f"gres: {text!r}: memory is there twice", hint=hint)
    if not amount.strip():
        raise Refused("bad-value", f"gres: {text!r}: memory has no size", hint=hint)
    size = 0 if amount.strip() == "0" else parse_memory(amount, what="gres: memory")
    return before[0]._replace(memory_bytes=size)


def parse_ids(text: str) -> list[Ref]:
    """Return the ids of "3", "3-7" or "1,4-6", and the tasks of "42_7" or "42_[7-20]"."""
    found: list[Ref] = []
    for part in re.split(_COMMA, text):
        if re.fullmatch(_TASK, part.strip()):
            found.append(part.strip())
            continue
        if tasks := re.fullmatch(_TASKS, part.strip()):
            found += _tasks(text, tasks[1], tasks[2], most=MOST_IDS - len(found))
            continue
        match = re.fullmatch(_RANGE, part.strip())
        if match is None:
            raise _bad("ids", text, "not a job id", "write 41, 3-7, 1,4-6 or 42_7")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= _MOST_ID:
            raise _bad("ids", text, "not a range of job ids", "ids begin with 1: write 3-7")
        if len(found) + last - first >= MOST_IDS:
            raise _too_many(text)
        found += range(first, last + 1)
    return found


def _tasks(text: str, array: str, indices: str, *, most: int) -> list[Ref]:
    try:
        spans, _ = read_array(indices)
    except Refused as error:
        hint = f"write '{array}_[7-20]', or {array} for the whole array"
        raise Refused(error.code, error.text, hint=hint) from None
    if count_of(spans) > most:
        raise _too_many(text)
    return [f"{array}_{at}" for first, last, step in spans for at in range(first, last + 1, step)]


def _too_many(text: str) -> Refused:
    return _bad("ids", text, f"more than {MOST_IDS} jobs", "choose fewer at a time")


def parse_after(text: str) -> list[tuple[Ref, str]]:
    """Return (id, want) for each part of "5", "5:any", "5-9" or "5,7-9:fail"; an empty text has
    none."""
    found: list[tuple[Ref, str]] = []
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(_AFTER, part.strip())
        if match is None or match[1] == "0":
            raise _bad("after", part, "not ID or ID:HOW", "write 5, 5-9, 5:any or 5:fail")
        first, last, how = parse_id(match[1]), match[2], match[3] or "ok"
        if last is None:
            found.append((first, how))
            continue
        if not isinstance(first, int) or not first <= int(last) <= _MOST_ID:
            raise _bad("after", part, "not a range of job ids", "write the lower id first: 5-9")
        if len(found) + int(last) - first >= MOST_AFTER:
            hint = "wait for an array, or for a job that waits for the others"
            raise _bad("after", part, f"more than {MOST_AFTER} jobs", hint)
        found += ((job_id, how) for job_id in range(first, int(last) + 1))
    return found


def parse_begin(text: str, now_s: float | None = None, *, may_be_over: bool = False) -> int:
    """Return the Unix time of "18:00", "6pm" or "noon" (the next one), "tomorrow",
    "2026-11-21T08:00", "now+2h", "+2h" or "10 min" (from now on), and 0 for "now", or for a time
    that is over where it `may_be_over`. `now_s` is the present time, for tests."""
    now_s = time.time() if now_s is None else now_s
    if text.strip().lower() == "now":
        return 0
    begin_s = _moment(text, now_s, what="begin", hint=_BEGIN_HINT, is_past=False)
    if begin_s <= now_s and may_be_over:
        return 0
    if begin_s <= now_s:
        raise Refused("bad-value", f"begin: {text!r} is over already", hint=_BEGIN_HINT)
    return int(begin_s)


def parse_past(text: str, now_s: float | None = None) -> float:
    """Return the Unix time of "2026-03-01", "14:30" (the last one), "yesterday", "7d" (ago), "now",
    "@1700000000", or of a time as Slurm writes it."""
    now_s = time.time() if now_s is None else now_s
    return max(0.0, _moment(text, now_s, what="time", hint=_PAST_HINT, is_past=True))


def is_clock(text: str) -> bool:
    """Return whether a text for `parse_begin` is a time of the day alone."""
    word = re.sub(_TWELVE, _of_twelve, text.strip().lower())
    return re.fullmatch(_CLOCK, word, re.ASCII) is not None


def _moment(text: str, now_s: float, *, what: str, hint: str, is_past: bool) -> float:
    low = text.strip().lower()
    if low == "now":
        return now_s
    if off := re.fullmatch(_OFF, low):
        seconds = parse_duration(off[2] or off[4], what=what)
        return now_s + seconds if off[1] else now_s - seconds
    if re.fullmatch("@[0-9]{1,12}", low):
        return float(low[1:])
    word = re.sub(_TWELVE, _of_twelve, CLOCKS.get(low, low))
    if word == low and (span := re.fullmatch(_SPAN, low)):
        seconds = parse_duration(span[1], what=what)
        return now_s - seconds if is_past or span[2] else now_s + seconds
    days = (*_DAYS, _BARE_DAY) if is_past else _DAYS
    for form in (_CLOCK, *(f"{day}(?:[-t ]{_CLOCK})?" for day in days)):
        if found := re.fullmatch(form, word, re.ASCII):
            try:
                return _at(found.groupdict(), now_s, is_past=is_past)
            except (ValueError, OverflowError):
                break
    raise Refused("bad-value", f"{what}: {text[:40]!r} is not a time", hint=hint)


def _at(part: dict[str, str | None], now_s: float, *, is_past: bool) -> int:
    """Return the Unix time of a day and a time of the day; without one of them, or without a year,
    the next such time, or the last. Raises ValueError and OverflowError."""
    year, month, day = time.localtime(now_s)[:3]
    hour, minute, second = (int(part.get(name) or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(part)
    step = -1 if is_past else 1
    at, others = (year, month, day), (year, month, day + step)
    if part.get("word"):
        at = others = year, month, day + {"yesterday": -1, "today": 0}.get(str(part["word"]), 1)
    elif part.get("month"):
        named = part.get("year") or (part.get("short") and f"20{part['short']}")
        at = time.strptime(f"{named or year}-{part['month']}-{part['day']}", "%Y-%m-%d")[:3]
        others = at if named else (at[0] + step, *at[1:])
    clock = hour, minute, second
    found_s = _unix(at, clock, now_s)
    is_other = found_s > now_s if is_past else found_s <= now_s
    return _unix(others, clock, now_s) if is_other else found_s


def _of_twelve(found: re.Match[str]) -> str:
    hour = int(found[1]) % 12 + (12 if found[3] == "p" else 0)
    return f"{hour}{found[2] or ':00'}"


def parse_outcomes(text: str) -> list[str]:
    """Return the outcomes of "fail,timeout"."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in OUTCOMES:
            raise _bad("retry-on", word, "unknown", f"choose from {', '.join(OUTCOMES)}")
    return [OUTCOMES[word] for word in words]


def parse_if_never(text: str) -> str:
    """Return `keep` or `cancel`."""
    if text not in IF_NEVER:
        raise Refused(
            "bad-value",
            f"if-never: {text[:40]!r} is neither keep nor cancel",
            hint="cancel ends the job when a job that it waits for has ended otherwise",
        )
    return text


def parse_whole(text: str, bounds: tuple[int, int], *, what: str) -> int:
    """Return a whole number within bounds."""
    least, most = bounds
    if re.fullmatch("[+-]?[0-9]{1,9}", text.strip()) and least <= int(text) <= most:
        return int(text)
    is_number = re.fullmatch("[+-]?[0-9]+", text.strip())
    fault = "out of range" if is_number else "not a number"
    raise _bad(what, text, fault, f"write a whole number from {least} to {most}")


def parse_signal(text: str) -> int:
    """Return the number of "USR1", "SIGUSR1" or "10", with the mark of "first:" or "rest:" (see
    drfd.common.signals)."""
    whom, sign, name = text.strip().rpartition(":")
    word = name.upper()
    try:
        number = int(word) if word.isdecimal() else Signals[f"SIG{word.removeprefix('SIG')}"].value
        return Signals(number) | (MARKS[whom] if sign else 0)
    except (KeyError, ValueError):
        raise _bad("signal", name or text, "not a signal", "write USR1, TERM or a number") from None


def parse_warning(text: str) -> tuple[int, int]:
    """Return the signal and the seconds of "USR1@60"."""
    signal, at, span = text.partition("@")
    if not at:
        raise _bad("warn", text, "not SIGNAL@TIME", "write USR1@60 or TERM@5m")
    return parse_signal(signal), parse_duration(span, what="warn")


def _bad(what: str, text: str, fault: str, hint: str) -> Refused:
    word = text if len(text) <= 40 else f"{text[:37]}..."
    return Refused("bad-value", f"{what}: {word!r} is {fault}", hint=hint)


def _unix(day: tuple[int, int, int], clock: tuple[int, int, int], now_s: float) -> int:
    """Return the next moment after now that has this date and time, or else the last. Where clocks
    are set back, there are two. Raises OverflowError."""
    # In summer time, not in it, and as mktime(3) finds out, which moves a time that is left out. It
    # takes a 32nd for the next month's 1st.
    found = [int(time.mktime((*day, *clock, 0, 0, each))) for each in (1, 0, -1)]
    exact = [each for each in found if time.localtime(each)[3:6] == clock] or found[2:]
    return next((each for each in exact if each > now_s), exact[-1])
