"""Tables on narrow screens: closer together first, then cut where it hurts least.

rich would cut the right end of every line off when columns that may not be cut are too wide.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table

#: A column that may be cut keeps so many signs.
_LEAST = 4
#: So much is kept for a last column that is broken into lines, if nobody says how much.
_LAST = 16


def fit(table: Table, columns: int | None, *, fixed: Sequence[str], last_width: int) -> None:
    """To a screen of so many columns; None: a file. `fixed` columns are never cut; the last one is
    broken into lines of at least `last_width`, unless that is zero."""
    widths = [
        max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        for column in table.columns
    ]
    is_fixed = [str(column.header) in fixed for column in table.columns]
    is_broken = last_width > 0 or not is_fixed[-1]
    if is_broken:
        widths[-1], is_fixed[-1] = min(widths[-1], last_width or _LAST), last_width > 0
    # Between two columns there are three signs, or one, and one at each end.
    if columns is not None and sum(widths) + 3 * len(widths) - 1 > columns:
        table.padding = (0, 0)
        is_word = [column.justify != "right" for column in table.columns]
        widths = _squeezed(widths, is_fixed, is_word, columns - len(widths) - 1)
        for column, own in zip(table.columns, widths, strict=True):
            column.max_width = own
    for column, own, keeps in zip(table.columns, widths, is_fixed, strict=True):
        if keeps:
            column.min_width = own
    if is_broken:
        # What is left is its own.
        table.columns[-1].max_width = None


def _squeezed(
    widths: Sequence[int], is_fixed: Sequence[bool], is_word: Sequence[bool], room: int
) -> list[int]:
    """Words before numbers, the widest first."""
    found = list(widths)
    while sum(found) > room:
        free = [at for at, own in enumerate(found) if own > _LEAST and not is_fixed[at]]
        if not free:
            break
        found[max(free, key=lambda at: (is_word[at], found[at]))] -= 1
    return found
