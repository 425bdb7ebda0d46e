"""Lines of a screen: pieces of text, each with a style, that together are exactly as wide as asked.

Everything that others chose passes through `fit`: what it gives takes exactly so many columns, and
nothing in it means anything to a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rich.cells import get_character_cell_size
from rich.segment import Segment
from rich.style import Style

from drfd_cli.output import clean

Line = list[Segment]

#: A sign with more marks above and below than this is a heap, not a letter.
_MOST_MARKS = 2
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_GRAPHIC = frozenset("▏▎▍▌▋▊▉█·│┃■")

#: Styles by what they are for; without colour only attributes are left.
_COLOURED = {
    "plain": "",
    "dim": "bright_black",
    "title": "bold",
    "head": "bold black on color(250)",
    "head_focus": "bold black on color(114)",
    "foot": "black on color(250)",
    "key": "bold",
    "good": "green",
    "warm": "yellow",
    "hot": "bold red",
    "held": "magenta",
    "mark": "bold",
    "alarm": "bold white on red",
    "notice": "bold black on yellow",
    "cursor": "reverse",
    "outside": "color(245)",
    "free": "color(238)",
}
_PLAIN = {
    "head": "reverse",
    "head_focus": "bold reverse",
    "foot": "reverse",
    **dict.fromkeys(("title", "key", "hot", "mark"), "bold"),
    **dict.fromkeys(("alarm", "notice"), "bold reverse"),
    "cursor": "reverse",
}
#: Of leaves of the tree; neighbours in the list are far apart for most eyes.
_HUES = (
    *("color(39)", "color(208)", "color(78)", "color(170)", "color(221)"),
    *("color(44)", "color(203)", "color(105)", "color(180)", "color(66)"),
)
HUES = len(_HUES)


class Ink:
    """Styles by name, for screens with colours or without."""

    def __init__(self, *, has_colour: bool) -> None:
        self.has_colour = has_colour
        chosen = _COLOURED if has_colour else _PLAIN
        self._styles = {name: Style.parse(chosen.get(name, "") or "none") for name in _COLOURED}
        self._hues = [Style.parse(hue if has_colour else "none") for hue in _HUES]

    def __getitem__(self, name: str) -> Style:
        return self._styles[name]

    def hue(self, number: int) -> Style:
        return self._hues[number % HUES]


@lru_cache(maxsize=8192)
def fit(text: str, columns: int) -> str:
    """As much of the text as there is room for, made harmless, with blanks up to `columns`."""
    if columns <= 0:
        return ""
    if len(text) <= columns and text.isascii() and text.isprintable():
        return text.ljust(columns)
    signs = _letters(text, columns)
    used = sum(width for _, width in signs)
    if used > columns:
        while signs and used > columns - 1:
            used -= signs.pop()[1]
        signs.append(("…", 1))
        used += 1
    return "".join(sign for sign, _ in signs) + " " * (columns - used)


def _letters(text: str, columns: int) -> list[tuple[str, int]]:
    """Each letter with its marks, and how wide it is: all, or the first that do not fit."""
    letters: list[tuple[str, int]] = []
    used, marks = 0, 0
    for sign in unicodedata.normalize("NFC", clean(text, 4 * columns + 16)):
        if "\ufe00" <= sign <= "\ufe0f":
            # Terminals do not agree on how wide these make the letter before.
            continue
        width = get_character_cell_size(sign)
        if width == 0:
            marks += 1
            if letters and marks <= _MOST_MARKS:
                letters[-1] = (letters[-1][0] + sign, letters[-1][1])
            continue
        if used > columns:
            break
        letters.append((sign, width))
        used, marks = used + width, 0
    return letters


def fit_right(text: str, columns: int) -> str:
    """As `fit`, with the blanks before it."""
    cut = fit(text, columns).rstrip(" ")
    return fit(text, columns)[len(cut) :] + cut


def width_of(line: Iterable[Segment]) -> int:
    return sum(get_character_cell_size(sign) for piece in line for sign in piece.text)


def spaces(columns: int, style: Style | None = None) -> Segment:
    return Segment(" " * max(0, columns), style)


def wrap(text: str, columns: int, most: int) -> list[str]:
    """The text on at most so many lines, broken between words where that is possible."""
    lines: list[str] = []
    rest = clean(text, 4000)
    while rest and len(lines) < most:
        if len(lines) == most - 1:
            lines.append(fit(rest, columns).rstrip())
            break
        cut, used = 0, 0
        for sign in rest:
            used += get_character_cell_size(sign)
            if used > columns:
                break
            cut += 1
        if cut < len(rest):
            space = rest.rfind(" ", 0, cut + 1)
            cut = space if space > cut // 2 else max(1, cut)
        lines.append(fit(rest[:cut], columns).rstrip())
        rest = rest[cut:].lstrip(" ")
    return lines


def part_of(amount: float, whole: float) -> float:
    """From 0 to 1; nothing of nothing is 0."""
    return min(1.0, max(0.0, amount / whole)) if whole > 0 else 0.0


def bar(part: float, columns: int, full: Style, empty: Style, blank: str = "·") -> Line:
    """A bar filled to a part of its length, in eighths of a column; what is not nothing shows."""
    eighths = round(part * columns * 8)
    if part > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    filled = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return [Segment(filled, full), Segment(blank * (columns - len(filled)), empty)]


def marked_bar(part: float, mark: float, columns: int, styles: tuple[Style, Style, Style]) -> Line:
    """A bar with a sign at `mark`. The styles are of what is filled, what is not, the mark."""
    full, empty, sign = styles
    at = min(columns - 1, int(mark * columns))
    signs = "".join(piece.text for piece in bar(part, columns, full, empty))
    end = len(signs.rstrip("·"))
    pieces = []
    for begin, stop in ((0, at), (at + 1, columns)):
        pieces += [
            Segment(signs[begin : min(stop, end)], full),
            Segment(signs[max(begin, min(stop, end)) : stop], empty),
        ]
    return [*pieces[:2], Segment("┃" if at < end else "│", sign), *pieces[2:]]


def spark(values: Sequence[float | None], top: float, rows: int) -> list[str]:
    """A graph of so many lines, highest first, with a column for each value; None stays empty."""
    lines = []
    for row in reversed(range(rows)):
        signs = []
        for value in values:
            level = 0 if value is None else round(part_of(value, top) * rows * 8)
            if value:
                level = max(1, level)
            signs.append(_LEVELS[min(8, max(0, level - 8 * row))])
        lines.append("".join(signs))
    return lines


def joined(line: Line, columns: int) -> Line:
    """The line with blanks up to `columns`."""
    missing = columns - width_of(line)
    return [*line, spaces(missing)] if missing > 0 else line


def marked(line: Line, style: Style) -> Line:
    """The line with its words in one style; bars would mean the opposite in reverse."""
    return [
        Segment(piece.text, style) if _GRAPHIC.isdisjoint(piece.text) else piece for piece in line
    ]
