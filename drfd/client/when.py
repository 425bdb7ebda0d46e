"""Moments as people write them, in the time zone of whoever types them."""

from __future__ import annotations

import re
import time

from drfd.errors import Refused
from drfd.units import parse_duration

_CLOCK = r"(\d{1,2}):(\d\d)(?::(\d\d))?"
_MOMENT = re.compile(rf"(?:(\d{{4}}-\d\d-\d\d|today|tomorrow)(?:[T ]|$))?(?:{_CLOCK})?", re.ASCII)
_HINT = "write 18:00, now+2h, tomorrow, 2026-11-21 or 2026-11-21T08:00"


def parse_begin(text: str, now_s: float) -> int:
    """Unix time in whole seconds of "18:00" (the next one), "tomorrow", "2026-11-21T08:00" or
    "now+2h"; 0 for "now"."""
    word = text.strip()
    if word == "now":
        return 0
    if word.startswith("now+"):
        return int(now_s) + parse_duration(word.removeprefix("now+"), what="begin")
    found = _MOMENT.fullmatch(word)
    if found is None or not word:
        raise Refused("bad-value", f"begin: {text!r} is not a time", hint=_HINT)
    date, *clock = found.groups()
    year, month, day = _day(date, now_s)
    moment_s = _unix(year, month, day, *clock)
    if date is None and moment_s <= now_s:
        moment_s = _unix(year, month, day + 1, *clock)
    if moment_s <= now_s:
        raise Refused("bad-value", f"begin: {text!r} is over already", hint=_HINT)
    return moment_s


def _day(date: str | None, now_s: float) -> tuple[int, int, int]:
    year, month, day = time.localtime(now_s)[:3]
    if date in (None, "today"):
        return year, month, day
    if date == "tomorrow":
        return year, month, day + 1
    try:
        year, month, day = time.strptime(date, "%Y-%m-%d")[:3]
    except ValueError:
        raise Refused("bad-value", f"begin: there is no day {date}", hint=_HINT) from None
    return year, month, day


def _unix(
    year: int, month: int, day: int, hour: str | None, minute: str | None, second: str | None
) -> int:
    clock = int(hour or 0), int(minute or 0), int(second or 0)
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise Refused("bad-value", f"begin: there is no time {hour}:{minute}", hint=_HINT)
    # -1: the time zone says whether summer time holds then. A 32nd is the next month's 1st.
    try:
        return int(time.mktime((year, month, day, *clock, 0, 0, -1)))
    except OverflowError:
        raise Refused("bad-value", f"begin: the year {year} is too far away", hint=_HINT) from None
