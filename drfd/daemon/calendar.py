"""The maintenance windows and the limits by hour of the configuration, as a calendar in Unix time.

Times are read as local times of the machine. A weekly pattern is expanded for the weeks ahead; the
daemon does that again from time to time, because the core knows no calendar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from drfd.common.errors import Refused
from drfd.common.strict_table import TomlTable
from drfd.common.units import clock_time, parse_duration, show_duration
from drfd.common.week import WEEK_S, Weekly, parse_weekly
from drfd.core.fairness.rules import NodeSettings
from drfd.core.model.calendar import NO_LIMIT_S, Calendar, Limit, LimitSpan, make_calendar
from drfd.core.model.resources import Axes

_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)
_EXAMPLES = 'start = "2026-12-01 22:00" for once, or "Sat 02:00" for each week'
_LEAST_S = 60
#: For how many seconds before now limits by hour are known, in case the clock is set back.
_PAST_S = WEEK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    name: str
    #: A Unix time, or a time of each week.
    start: float | Weekly
    length_s: int
    reason: str = ""

    def starts_s(self, from_s: float, until_s: float) -> Iterable[float]:
        """Return when it begins: of a weekly one each time between the two."""
        start = self.start
        return start.times_s(from_s, until_s) if isinstance(start, Weekly) else (start,)


def read_windows(top: TomlTable) -> tuple[WindowSettings, ...]:
    """Read the tables [[window]]."""
    found: list[WindowSettings] = []
    for table in top.tables("window") or ():
        window = table.attempt(partial(_read_window, table), None)
        if window is not None and window.name in [each.name for each in found]:
            table.error(
                table.at("name"), f"there are two windows {window.name!r}", "give each its own name"
            )
        found += [window] if window is not None else []
    return tuple(found)


def _read_window(table: TomlTable) -> WindowSettings:
    name = table.take("name", _read_name, None) or table.fail(
        "name", "is missing", hint='write name = "upgrade"'
    )
    start = table.take("start", _read_start, None)
    if start is None:
        table.fail("start", "is missing", hint=f"write {_EXAMPLES}")
    length_s = table.take("length", parse_duration, None) or table.fail(
        "length", "is missing", hint='write length = "4h"'
    )
    if length_s < _LEAST_S:
        table.fail(
            "length",
            f"{show_duration(length_s)} is shorter than a minute",
            hint='write "30m" or "4h"; a number alone is seconds',
        )
    if isinstance(start, Weekly) and length_s >= WEEK_S:
        table.fail(
            "length",
            f"{show_duration(length_s)} leaves no time between weekly windows",
            hint="write less than a week, or a date for start",
        )
    reason = table.take("reason", _read_reason, "")
    table.done()
    return WindowSettings(name=name, start=start, length_s=length_s, reason=reason)


def expand(
    windows: Sequence[WindowSettings],
    nodes: Iterable[tuple[str, NodeSettings]],
    axes: Axes,
    now_s: float,
) -> Calendar:
    """Return the windows that are not over, of a weekly pattern those that begin within
    `NO_LIMIT_S`, and for so long the limits of those of the nodes, each with its path, that have
    limits by hour."""
    from_s, until_s = now_s - _PAST_S, now_s + NO_LIMIT_S
    spans, own = list[LimitSpan](), dict[str, Limit]()
    for each in windows:
        is_weekly = isinstance(each.start, Weekly)
        spans += [
            LimitSpan(
                start_s=start_s,
                end_s=start_s + each.length_s,
                name=each.name,
                reason=each.reason,
                is_weekly=is_weekly,
            )
            for start_s in each.starts_s(from_s, until_s)
            if start_s + each.length_s > now_s
        ]
    for path, node in nodes:
        own[path] = node.limit
        spans += [
            LimitSpan(path=path, start_s=start_s, end_s=end_s, limit=hours.limit)
            for hours in node.hours
            for start_s, end_s in hours.when.spans_s(from_s, until_s)
        ]
    return make_calendar(spans, own, axes.names, from_s=from_s, until_s=until_s)


def window_warnings(
    settings: Sequence[WindowSettings], now_s: float, default_limit_s: int | None
) -> Iterator[str]:
    """Yield a sentence for each window that is over for good, and one if jobs that state no time
    limit never start; `default_limit_s` is their limit."""
    weekly = next((each for each in settings if isinstance(each.start, Weekly)), None)
    if weekly is not None and default_limit_s is None:
        yield (
            f"the window {weekly.name} comes each week and defaults.time is unlimited: jobs that "
            "state no time limit never start"
        )
    for each in settings:
        if not isinstance(each.start, Weekly) and each.start + each.length_s <= now_s:
            end = clock_time(each.start + each.length_s)
            yield f"the window {each.name} ended {end}: it can be removed from the configuration"


def _read_name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Refused(
            "config",
            f"{value!r} is not a name of up to 40 letters, digits, dots, - and _",
            hint='write name = "upgrade"',
        )
    return value


def _read_reason(value: object) -> str:
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise Refused(
            "config", "is not a line of up to 200 characters", hint='write reason = "new kernel"'
        )
    return value


def _read_start(value: object) -> float | Weekly:
    # A date and time of TOML is one without quotes.
    text = str(value).strip() if isinstance(value, str | datetime) else ""
    weekly = parse_weekly(text)
    if weekly is not None:
        return weekly
    if len(text) > len("2026-12-01"):
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            pass
    text = f"{value!r} is neither a date with a time nor a time of the week"
    raise Refused("config", text, hint=f"write {_EXAMPLES}")
