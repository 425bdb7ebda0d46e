"""All printing: tables, times, and other people's words made harmless.

stdout is data, stderr is talk. rich is imported only when a table is drawn.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from drfd.units import show_duration, show_size

if TYPE_CHECKING:
    from rich.table import Table

View = dict[str, Any]
#: What waiting for a job exits with that has not run.
NEVER_RAN = 125
#: A heading, or one with the alignment of its column.
Column = str | tuple[str, str]

#: Signs that turn the direction of writing: they can make one name look like another.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Width of tables that go to a file or a pipe.
_PLAIN_WIDTH = 160
#: Tables of more rows are printed without the work of laying them out.
_LONG = 500


def clean(text: object, most: int = 200) -> str:
    """Text that others chose, without control signs, and not endless."""
    word = str(text)
    if word.isascii() and word.isprintable() and len(word) <= most:
        return word
    word = "".join(sign if sign.isprintable() and sign not in _BIDI else "?" for sign in word)
    return word if len(word) <= most else word[: most - 1] + "…"


def shorten(text: object, columns: int) -> str:
    """Cleaned text that takes at most so many columns of a screen; some signs take two."""
    word = clean(text)
    if word.isascii() and len(word) <= columns:
        return word
    if len(word) + sum(unicodedata.east_asian_width(sign) in "WF" for sign in word) <= columns:
        return word
    kept, used = "", 0
    for sign in word:
        used += 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if used >= columns:
            break
        kept += sign
    return kept + "…"


def print_json(view: object) -> None:
    click.echo(json.dumps(view))


def tell(text: object) -> None:
    """One line of data, on stdout, with other people's words made harmless."""
    click.echo(clean(text, 2000))


def say(text: str) -> None:
    """Talk, on stderr, in one line."""
    click.echo(f"drf: {clean(text, 1000)}", err=True)


def parts(column: Column) -> tuple[str, str]:
    """Its heading, and the side that its cells are aligned to."""
    return (column, "left") if isinstance(column, str) else column


def new_table(*columns: Column, title: str | None = None) -> Table:
    """A table with these headings; ("NAME", "right") aligns the column to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        name, justify = parts(column)
        # The last column takes what is left, on as many lines as it needs.
        heading = Text(clean(name))
        table.add_column(heading, justify=justify, no_wrap=column != columns[-1])  # type: ignore[arg-type]
    return table


def add_row(table: Table, cells: Sequence[object]) -> None:
    from rich.text import Text

    # Text, never markup: a job may be called "[red]".
    table.add_row(*(Text(clean(cell, 400), style=getattr(cell, "style", "")) for cell in cells))


def width(stream: TextIO | None = None) -> int:
    """Columns of the screen (of `stream`, in place of stdout), or enough of them for a file."""
    if stream is not None:
        try:
            return os.get_terminal_size(stream.fileno()).columns or _PLAIN_WIDTH
        except OSError:
            return _PLAIN_WIDTH
    return shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns


def print_rows(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], *, fixed: Sequence[str],
    last_width: int = 0,
) -> None:  # fmt: skip
    """A table on stdout. Where room is short, columns are cut, but not the `fixed` ones, and the
    last one is broken into lines of at least `last_width`."""
    if len(rows) > _LONG:
        print_pages(columns, [rows])
        return
    from rich.console import Console

    from drfd_cli.narrow import fit

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    table = new_table(*columns)
    for cells in rows:
        add_row(table, cells)
    has_screen = sys.stdout.isatty() or "COLUMNS" in os.environ
    fit(table, width() if has_screen else None, fixed=fixed, last_width=last_width)
    console = Quiet(
        highlight=False,
        width=width(),
        force_terminal=has_colour(),
        # Decided already, also about NO_COLOR.
        no_color=False,
        color_system="standard" if has_colour() else None,
    )
    console.print(table)


def print_pages(columns: Sequence[Column], pages: Iterable[Sequence[Sequence[object]]]) -> None:
    """A list that nobody reads as a whole: a line for each row, and done at once, page by page.
    A column becomes wider where a later page needs that."""
    names = [parts(column)[0] for column in columns]
    is_right = [parts(column)[1] == "right" for column in columns]
    table, widths = [names], [0] * len(columns)
    for rows in pages:
        table += [[clean(cell, 400) for cell in cells] for cells in rows]
        columned = zip(widths, *table, strict=True)
        widths = [max(width, *map(len, cells)) for width, *cells in columned]
        lines = []
        for cells in table:
            padded = (
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(cells, widths, is_right, strict=True)
            )
            lines.append("  ".join(padded).rstrip())
        click.echo("\n".join(lines))
        table = []


def show_demand(demand: View) -> list[str]:
    """Cores, memory and I/O as three cells."""
    return [f"{demand['cores']:g}", show_size(demand["memory"]), show_io(demand)]


def show_io(rates: View) -> str:
    """ "200M/50M", or "-"."""
    read, write = rates["read"], rates["write"]
    return "-" if not read and not write else f"{show_size(read)}/{show_size(write)}"


def show_gres(counts: View) -> str:
    """ "2 gpu, 1 tape", or "-"."""
    return ", ".join(f"{count} {clean(name)}" for name, count in counts.items()) or "-"


def show_held(job: View) -> str:
    """Which it has, "gpu 0,1", or how many it asks for, "2 gpu"."""
    held = job.get("gres_instances")
    if not held:
        return show_gres(job["demand"]["gres"])
    return ", ".join(f"{clean(name)} {clean(','.join(each))}" for name, each in held.items())


def show_elapsed(job: View) -> str:
    if job["started_at"] is None:
        return "-"
    return show_duration((job["ended_at"] or time.time()) - job["started_at"])


def show_time(at_s: float | None) -> str:
    if at_s is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def show_when(at_s: float, now_s: float | None = None) -> str:
    """A time near now, as people say it, in this machine's zone: "14:05 (in 12m30s)",
    "tomorrow 03:00 (in 9h10m)", "yesterday 23:10 (3h02m ago)", "2026-11-20 14:05"."""
    now_s = time.time() if now_s is None else now_s
    days = round((_midnight(at_s) - _midnight(now_s)) / 86400)
    day = {0: "", 1: "tomorrow ", -1: "yesterday "}.get(days)
    if day is None:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))
    clock = day + time.strftime("%H:%M", time.localtime(at_s))
    apart = show_duration(abs(at_s - now_s))
    return f"{clock} (in {apart})" if at_s >= now_s else f"{clock} ({apart} ago)"


def _midnight(at_s: float) -> float:
    """Before it; days differ in length when the clock is put forward or back."""
    year, month, day, *_ = time.localtime(at_s)
    return time.mktime((year, month, day, 0, 0, 0, 0, 0, -1))


#: What an expected start rests on.
ESTIMATE = "if running jobs end as estimated and nobody submits anything before"


def why_line(job: View) -> str:
    """Reason or outcome in one line."""
    about = job["reason"] or job["outcome"]
    # Of others' jobs it is not said how they ended.
    return "" if about is None else f"{about['code']}: {about['text']}".removesuffix(": ")


def tell_never(job: View) -> None:
    """Of a job that somebody waits for, and that can never start."""
    name = str(job["id"])
    if job["array_id"] is not None:
        name = f"{job['array_id']}_{job['array_index']}"
    say(clean(f"job {name} never starts: {job['reason']['text']}", 1000))


def advice_line(advice: View) -> str:
    """What to ask for next time, and what that rests on."""
    count = advice["jobs"]
    basis = "its last job" if count == 1 else f"its last {count} jobs"
    short = f", {advice['short_jobs']} cut short" if advice["short_jobs"] else ""
    return f"drf submit {' '.join(advice['options'])}  (from {basis}{short})"


def is_terminal() -> bool:
    return sys.stdout.isatty()


#: What `--color` says.
_colour = "auto"


def set_colour(choice: str) -> None:
    global _colour
    _colour = choice


def has_colour() -> bool:
    """Whether stdout gets colours."""
    if _colour != "auto":
        return _colour == "always"
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal() and not plain


class Painted(str):
    """A cell with a style, for who sees colours."""

    style: str

    def __new__(cls, text: object, style: str) -> Painted:
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


#: Of states that want to be seen; the others are ordinary.
_STATE_STYLES = {
    "RUNNING": "green",
    "STARTING": "green",
    "PENDING": "yellow",
    **dict.fromkeys(("HELD", "SUSPENDED", "STOPPING", "CLEANING"), "magenta"),
    **dict.fromkeys(("COMPLETED", "CANCELLED"), "bright_black"),
}


def show_state(state: str) -> Painted:
    return Painted(state, _STATE_STYLES.get(state, "red"))
