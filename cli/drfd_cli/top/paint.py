"""Lines of a screen: pieces of text with a style, which together have an exact width.

Text of other users passes through `fit`: the result takes exactly the given columns and contains
nothing that acts on a terminal.
"""

from __future__ import annotations

from functools import lru_cache, partial

from rich.segment import Segment
from rich.style import Style

from drfd_cli.output import clean, cut, pad, wrapped

Line = list[Segment]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_GRAPHIC = frozenset("▏▎▍▌▋▊▉█·│┃■")

#: Styles by purpose. `_PLAIN` has those for screens without colours.
_COLOURED = {
    "plain": "",
    "dim": "bright_black",
    "title": "bold",
    "head": "bold black on color(250)",
    "head_focus": "bold black on color(114)",
    "foot": "black on color(250)",
    "key": "bold",
    "off": "color(244)",
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
#: Colours for leaves of the fair-share tree. Neighbours in the list differ clearly.
_HUES = (
    *("color(39)", "color(208)", "color(78)", "color(170)", "color(221)"),
    *("color(44)", "color(203)", "color(105)", "color(180)", "color(66)"),
)
HUES = len(_HUES)


class Theme:
    """The styles by purpose, for a screen with or without colours."""

    def __init__(self, *, has_colour: bool) -> None:
        self.has_colour = has_colour
        chosen = _COLOURED if has_colour else _PLAIN
        self._styles = {name: Style.parse(chosen.get(name, "") or "none") for name in _COLOURED}
        for number, hue in enumerate(_HUES):
            self._styles[hue_style(number)] = Style.parse(hue if has_colour else "none")

    def __getitem__(self, name: str) -> Style:
        return self._styles[name]


def hue_style(number: int) -> str:
    return f"hue{number % HUES}"


@lru_cache(maxsize=8192)
def fit(text: str, columns: int, *, right: bool = False) -> str:
    """Return the cleaned text, cut and padded with blanks to `columns`, before it if `right`."""
    if columns <= 0:
        return ""
    return pad(cut(clean(text, 4 * columns + 16), columns), columns, right=right)


fit_right = partial(fit, right=True)
#: The width of a line; and the line at a width, padded with blanks.
width_of, joined = Segment.get_line_length, Segment.adjust_line_length


def wrap(text: str, columns: int, most: int) -> list[str]:
    """Return the text on at most `most` lines, broken between words if possible."""
    lines = wrapped(clean(text, 4000), columns) if text else []
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])] if most > 0 else []
    return [fit(line, columns).rstrip() for line in lines]


def bar(part: float, columns: int, full: Style, empty: Style, blank: str = "·") -> Line:
    """Return a bar filled up to `part`, in eighths of a column; a part above zero is visible."""
    eighths = round(part * columns * 8)
    if part > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    filled = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return [Segment(filled, full), Segment(blank * (columns - len(filled)), empty)]


def marked_bar(part: float, mark: float, columns: int, styles: tuple[Style, Style, Style]) -> Line:
    """Return a bar with a line at `mark`. `styles` are for the filled part, the rest, the mark."""
    full, empty, line = styles
    at = min(columns - 1, int(mark * columns))
    chars = "".join(piece.text for piece in bar(part, columns, full, empty))
    end = len(chars.rstrip("·"))
    pieces = []
    for begin, stop in ((0, at), (at + 1, columns)):
        pieces += [
            Segment(chars[begin : min(stop, end)], full),
            Segment(chars[max(begin, min(stop, end)) : stop], empty),
        ]
    return [*pieces[:2], Segment("┃" if at < end else "│", line), *pieces[2:]]


def marked(line: Line, style: Style) -> Line:
    """Return the line with its words in one style. Bars keep theirs: reversed ones mislead."""
    return [
        Segment(piece.text, style) if _GRAPHIC.isdisjoint(piece.text) else piece for piece in line
    ]
