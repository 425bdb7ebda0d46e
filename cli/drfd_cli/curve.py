"""How the use of a job went, as a line of small bars against what it had asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from drfd.units import show_cores, show_duration, show_size

#: From nothing to all of it, and where the screen has no such signs.
_BARS, _PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#%"
#: Fewer points than this show nothing.
_LEAST = 3

_KINDS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("cores", lambda cores: show_cores(round(1000 * cores))),
    ("memory", show_size),
)


def lines(curve: dict[str, Any] | None, demand: dict[str, Any], columns: int) -> list[str]:
    """One for the cores and one for the memory, as far as they are known, so wide at most."""
    if curve is None:
        return []
    found = []
    for kind, show in _KINDS:
        values = [each for each in curve[kind] if each is not None]
        if len(values) < _LEAST:
            continue
        asked, most = demand[kind], max(values)
        words = f"most {show(most)} of {show(asked)}, over {_length(curve)}"
        room = columns - len(kind) - len(words) - 4
        if room >= _LEAST:
            bars = spark(curve["at"], curve[kind], max(asked, most), room)
            found.append(f"{kind:<6} {bars}  {words}")
    return found


def spark(at: Sequence[float], values: Sequence[float | None], top: float, columns: int) -> str:
    """A bar for each equal part of the time, as high as the highest point in it; where points are
    further apart, the one that covers it. Blank: nothing is known, or nothing was used."""
    signs = _BARS if _can_show(_BARS) else _PLAIN_BARS
    columns = min(columns, len(at))
    whole_s = (at[-1] - at[0]) or 1.0
    highest: list[float | None] = [None] * columns
    before = 0
    for moment, value in zip(at, values, strict=True):
        # A point stands for the time that ends with it.
        last = min(columns - 1, int((moment - at[0]) / whole_s * columns))
        for column in range(min(before + 1, last), last + 1):
            if value is not None:
                highest[column] = max(highest[column] or 0, value)
        before = last
    return "".join(signs[_level(each, top)] for each in highest).rstrip() or "-"


def _level(value: float | None, top: float) -> int:
    if not value or not top:
        return 0
    # What is there at all is seen.
    return max(1, min(8, round(8 * value / top)))


def _length(curve: dict[str, Any]) -> str:
    return show_duration(curve["at"][-1] - curve["at"][0])


def _can_show(signs: str) -> bool:
    try:
        signs.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
