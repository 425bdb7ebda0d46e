"""Times of the week as an administrator writes them: "Sat 02:00", "Mon-Fri 08:00-18:00".

They are local times of the machine. Time zones change their offset, so each week is asked for by
itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from drfd.common.errors import Refused

WEEK_S = 7 * 86400

_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: The number of each day by its name, and by its short one.
_DAYS = {word: day for day, name in enumerate(_NAMES) for word in (name, name[:3])}
_DAY, _TIME = r"([a-z]{3,9})", r"(\d\d?):(\d\d)"
_WEEKLY = re.compile(rf"{_DAY}\s+{_TIME}", re.ASCII)
#: Two times of the week.
_STRETCH = re.compile(rf"{_DAY}\s+{_TIME}-{_DAY}\s+{_TIME}", re.ASCII)
#: Days, hours, or both.
_HOURS = re.compile(rf"([a-z,-]{{3,99}})?(?:(?:^|\s+){_TIME}-{_TIME})?", re.ASCII)
_EXAMPLES = (
    'write when = "Mon-Fri 08:00-18:00", "22:00-06:00" for each night, "Sat,Sun" for whole days, '
    'or "Fri 18:00-Mon 08:00"'
)


@dataclass(frozen=True, slots=True)
class Weekly:
    """A time of the week: the day (0: Monday), hour and minute."""

    day: int
    hour: int
    minute: int

    def times_s(self, from_s: float, until_s: float) -> Iterator[float]:
        """Yield the Unix times between the two at which a local clock shows this time."""
        now = time.localtime(from_s)
        day = now.tm_mday + (self.day - now.tm_wday) % 7 - 7
        while True:
            moment = (now.tm_year, now.tm_mon, day, self.hour, self.minute, 0, 0, 0, -1)
            at_s = time.mktime(moment)
            if at_s >= until_s:
                return
            if at_s >= from_s:
                yield at_s
            day += 7


@dataclass(frozen=True, slots=True)
class WeekHours:
    """Times of each week, each from a begin to the next end that belongs to it."""

    parts: tuple[tuple[Weekly, Weekly], ...]

    def spans_s(self, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        """Yield begin and end, as Unix times, of those that are not over at `from_s` and begin
        before `until_s`."""
        for start, end in self.parts:
            for start_s in start.times_s(from_s - WEEK_S - 86400, until_s):
                end_s = next(end.times_s(start_s + 1, start_s + WEEK_S + 86400))
                if end_s > from_s:
                    yield start_s, end_s


def parse_weekly(text: str) -> Weekly | None:
    """Return the time of the week that the text names, such as "Sat 02:00", or None."""
    found = _WEEKLY.fullmatch(text.lower())
    try:
        return None if found is None else _at(_DAYS[found[1]], found[2], found[3])
    except (KeyError, ValueError):
        return None


def parse_week_hours(value: object) -> WeekHours:
    """Return the times of "Mon-Fri 08:00-18:00", "22:00-06:00", "Sat,Sun" and the like. Raises
    Refused."""
    text = re.sub(r"\s*([-–,])\s*", r"\1", value.strip()) if isinstance(value, str) else ""
    try:
        parts = tuple(_parts(text.replace("–", "-").lower()))
    except (KeyError, ValueError):
        text = f"{value!r} is not a time of the week from begin to end"
        raise Refused("config", text, hint=_EXAMPLES) from None
    if any(start == end for start, end in parts):
        fault = f"{value!r} ends when it begins"
        hint = 'for whole days write them alone: when = "Sat,Sun", or "Mon-Sun" for all'
        raise Refused("config", fault, hint=hint)
    return WeekHours(parts)


def _parts(text: str) -> Iterator[tuple[Weekly, Weekly]]:
    """Yield the one part of "fri 18:00-mon 08:00", or a part for each day of "mon-fri 08:00-18:00"
    and the like. Hours that end no later than they begin end on the next day. Raises KeyError and
    ValueError for other texts."""
    if found := _STRETCH.fullmatch(text):
        begin = _at(_DAYS[found[1]], found[2], found[3])
        yield begin, _at(_DAYS[found[4]], found[5], found[6], is_end=True)
        return
    found = _HOURS.fullmatch(text)
    if found is None or not text:
        raise ValueError(text)
    hours = found.group(2, 3, 4, 5) if found[2] else ("0", "0", "24", "0")
    for day in range(7) if found[1] is None else _days(found[1]):
        start, end = _at(day, *hours[:2]), _at(day, *hours[2:], is_end=True)
        if end.day == day and (end.hour, end.minute) < (start.hour, start.minute):
            end = Weekly((day + 1) % 7, end.hour, end.minute)
        yield start, end


def _days(text: str) -> list[int]:
    """Return the days of "mon-fri,sun" in order. Raises KeyError and ValueError."""
    found: set[int] = set()
    for item in text.split(","):
        first, *rest = (_DAYS[word] for word in item.split("-"))
        [last] = rest or [first]
        found.update((first + number) % 7 for number in range((last - first) % 7 + 1))
    return sorted(found)


def _at(day: int, hour: str, minute: str, *, is_end: bool = False) -> Weekly:
    """Return the time of the week. A day ends at 24:00, too. Raises ValueError."""
    if is_end and (int(hour), int(minute)) == (24, 0):
        return Weekly((day + 1) % 7, 0, 0)
    if int(hour) > 23 or int(minute) > 59:
        raise ValueError(hour, minute)
    return Weekly(day, int(hour), int(minute))
