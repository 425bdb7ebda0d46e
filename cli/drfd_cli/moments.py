"""Times as people write them, past ones: "2026-03-01", "14:30", "yesterday", "7d" (ago)."""

from __future__ import annotations

import re
import time

from drfd.errors import Refused
from drfd.units import parse_duration

_FORMS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
#: An ago has a unit: "90" alone could be anything.
_AGO = re.compile(r"(\d+(\.\d+)?[smhd])+", re.ASCII)


def parse_moment(text: str, now_s: float | None = None) -> float:
    """The Unix time, in the local time zone. Raises Refused."""
    now_s = time.time() if now_s is None else now_s
    word = text.strip()
    low = word.lower()
    if low == "now":
        return now_s
    if low in ("today", "yesterday"):
        return _local(now_s, days=-1 if low == "yesterday" else 0)
    if word.startswith("@") and word[1:].isdecimal() and len(word) < 14:
        return float(word[1:])
    clock = _CLOCK.fullmatch(word)
    if clock is not None:
        hour, minute = int(clock[1]), int(clock[2])
        today = _local(now_s, hour=hour, minute=minute)
        # A past time is meant: 23:00 at noon was yesterday.
        return today if today <= now_s else _local(now_s, days=-1, hour=hour, minute=minute)
    if _AGO.fullmatch(low):
        return max(0.0, now_s - parse_duration(low))
    for form in _FORMS:
        try:
            return max(0.0, time.mktime(time.strptime(word, form)))
        except (ValueError, OverflowError):
            continue
    raise Refused(
        "bad-value",
        f"time: {text[:40]!r} is not a time",
        hint="write 2026-03-01, '2026-03-01 14:30', 14:30, yesterday, or 7d for seven days ago",
    )


def _local(now_s: float, *, days: int = 0, hour: int = 0, minute: int = 0) -> float:
    """A time of day, today or days from it; days with a change of the clock too."""
    then = time.localtime(now_s)
    return time.mktime((then.tm_year, then.tm_mon, then.tm_mday + days, hour, minute, 0, 0, 0, -1))
