"""The parts of the main page as lines: the machine, and a panel for each list.

The lines of the machine have a bar for each resource, with a colour or a letter for each leaf of
the tree that holds a part of it. The panels list the fair-share tree, running jobs with their use,
waiting jobs with the reason, and jobs that ended recently.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rich.segment import Segment
from rich.style import Style

from drfd.common.units import show_duration, show_size
from drfd.core.model.job import leaf_path
from drfd_cli.commands.shares import weight_words
from drfd_cli.output import clean, show_gres, show_io
from drfd_cli.top.paint import (
    HUES,
    Line,
    Theme,
    bar,
    fit,
    fit_right,
    joined,
    marked,
    marked_bar,
    part_of,
    spaces,
    width_of,
)
from drfd_cli.top.state import Axis, State, TopPanel, leaf_of, leaves, left_s

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotNode, SnapshotRow, SnapshotView
    from drfd_cli.top.state import TreeRow

# -- the machine ---------------------------------------------------------------------------------

_AXES: tuple[Axis, ...] = ("cores", "memory", "read", "write")
#: Characters of a bar: allocated and used, allocated and unused, used by external processes, free.
_USED, _ALLOCATED, _EXTERNAL, _FREE = "█", "▒", "╱", "·"
_RESOURCE_NAME = 7
#: Widths of the columns right of the bars.
_ALLOC_COLUMN, _USED_COLUMN, _EXTERNAL_COLUMN, _PRESSURE_COLUMN = 10, 6, 8, 8
#: The pressure that is shown beside each resource.
_PRESSURES = {"cores": "cpu", "memory": "memory", "read": "io"}
#: Percent of pressure from which the figure is highlighted.
_HIGH_PRESSURE = 20


@dataclass(frozen=True)
class LeafMark:
    """The colour of a leaf of the fair-share tree, and its letter on screens without colours."""

    style: Style
    letter: str


def leaf_marks(nodes: Sequence[SnapshotNode], theme: Theme) -> dict[str, LeafMark]:
    """Return a mark for each leaf, by path. The colour depends on the path, unless that colour is
    taken, so it seldom changes while other leaves come and go."""
    marks: dict[str, LeafMark] = {}
    taken: list[int] = []
    # Leaves with running jobs get distinct colours first.
    holders = [node for node in leaves(nodes) if node["running"]]
    rest = [node for node in leaves(nodes) if not node["running"]]
    for number, node in enumerate([*holders, *rest]):
        path = node["path"]
        hue = crc32(path.encode(errors="replace")) % HUES
        if len(taken) % HUES == 0:
            taken = []
        while hue in taken:
            hue = (hue + 1) % HUES
        taken.append(hue)
        letter = ascii_letters[number % len(ascii_letters)] if node["running"] else " "
        marks[path] = LeafMark(theme.hue(hue), letter)
    return marks


@dataclass(frozen=True)
class _Part:
    """A part of a bar: the mark of a leaf, the amount allocated, and the part of it in use."""

    mark: LeafMark
    held: float
    used: float


def header(
    snapshot: SnapshotView,
    marks: dict[str, LeafMark],
    theme: Theme,
    columns: int,
    *,
    now_s: float,
    trouble: str,
) -> list[Line]:
    """Return the lines about the machine. `trouble` says why the figures are outdated."""
    right = _ALLOC_COLUMN + _USED_COLUMN + _EXTERNAL_COLUMN + _PRESSURE_COLUMN + 4
    room = max(8, columns - _RESOURCE_NAME - 3 - right)
    lines = [first_line(snapshot, theme, columns, now_s=now_s, trouble=trouble)]
    if not trouble:
        heads = _cells(("ALLOC", "USED", "EXTERNAL", "PRESSURE"), theme["dim"], hot=theme["dim"])
        lines = [[*first_line(snapshot, theme, columns - right, now_s=now_s, trouble=""), *heads]]
    for name, capacity in _resources(snapshot):
        parts = [_part(node, name, marks) for node in leaves(snapshot["nodes"]) if node["running"]]
        # The reserve beside the capacity covers a part of the external use; `kept` is the rest.
        load = snapshot["external"]
        external, kept = (_number(load, name), _number(load["kept"], name)) if load else (0.0, 0.0)
        stack = list(_stack(parts, kept, capacity, room, theme))
        label = fit(name.removeprefix("gres:"), _RESOURCE_NAME)
        pressure = _pressure(snapshot, name)
        told = f"{pressure:.0f}%" if pressure is not None else ""
        figures = (*_figures(name, parts, external, capacity), told)
        hot = theme["hot" if pressure is not None and pressure >= _HIGH_PRESSURE else "plain"]
        cells = _cells(figures, theme["plain"], hot=hot)
        lines.append([Segment(f" {label} ", theme["title"]), *stack, Segment(" "), *cells])
    return lines


def _resources(snapshot: SnapshotView) -> Iterator[tuple[str, float]]:
    capacity = snapshot["capacity"]
    for name in _AXES:
        if capacity[name]:
            yield name, capacity[name]
    for gres, count in capacity["gres"].items():
        yield f"gres:{gres}", count


def _part(node: SnapshotNode, name: str, marks: dict[str, LeafMark]) -> _Part:
    kind, _, gres = name.partition(":")
    if gres:
        # Use of countable resources is not measured, so the allocation counts as used.
        held = node["usage"]["gres"].get(gres, 0)
        return _Part(marks[node["path"]], held, held)
    return _Part(
        marks[node["path"]], _number(node["usage"], kind), _number(node["used"] or {}, kind)
    )


def _number(amounts: Mapping[str, object], name: str) -> float:
    """Return the amount of this name, or 0 if there is none or it is not known."""
    amount = amounts.get(name)
    return amount if isinstance(amount, int | float) else 0.0


def _stack(
    parts: Sequence[_Part], kept: float, capacity: float, columns: int, theme: Theme
) -> Iterator[Segment]:
    """Yield the allocations side by side and, at the end, the part for external processes."""
    total = sum(part.held for part in parts)
    # After a reload with a smaller capacity, more may be allocated than there is.
    whole = max(capacity, total)
    end, held = 0, 0.0
    for part in parts:
        begin, held = end, held + part.held
        end = round(part_of(held, whole) * columns)
        width = end - begin
        used = round(part_of(part.used, part.held) * width)
        chars = _USED * used + _ALLOCATED * (width - used)
        if width and not theme.has_colour:
            chars = part.mark.letter + chars[1:]
        yield Segment(chars, part.mark.style)
    taken = min(columns - end, round(part_of(kept, whole) * columns))
    yield Segment(_FREE * (columns - end - taken), theme["free"])
    yield Segment(_EXTERNAL * taken, theme["outside"])


def _figures(
    name: str, parts: Sequence[_Part], external: float, capacity: float
) -> tuple[str, str, str]:
    held, used = sum(part.held for part in parts), sum(part.used for part in parts)
    shown = f"{_amount(name, held)}/{_amount(name, capacity)}"
    if name.startswith("gres:"):
        return shown, "", ""
    return shown, _amount(name, used), _amount(name, external) if external else ""


def _pressure(snapshot: SnapshotView, name: str) -> float | None:
    """Return the percentage of the last ten seconds in which some process waited for the resource,
    or None if it is not measured. All disks have one figure."""
    found = (snapshot["pressure"] or {}).get(_PRESSURES.get(name, ""))
    return found["some"] if found else None


def _amount(name: str, amount: float) -> str:
    if name == "cores":
        return f"{amount:.1f}".removesuffix(".0") if amount < 100 else f"{amount:.0f}"
    return f"{amount:g}" if name.startswith("gres:") else show_size(amount)


def _cells(cells: tuple[str, str, str, str], style: Style, *, hot: Style) -> Line:
    widths = (_ALLOC_COLUMN, _USED_COLUMN, _EXTERNAL_COLUMN, _PRESSURE_COLUMN)
    alloc, used, external, pressure = (
        fit_right(cell, width) for cell, width in zip(cells, widths, strict=True)
    )
    figures = f"{alloc} {used} {external} "
    return [Segment(figures, style), Segment(pressure, hot), Segment(" ", style)]


def first_line(
    snapshot: SnapshotView, theme: Theme, columns: int, *, now_s: float, trouble: str
) -> Line:
    """Return the line with the host, the time, and notices."""
    clock = time.strftime("%H:%M:%S", time.localtime(now_s))
    line = [
        Segment(f" {fit(snapshot['host'], 24).rstrip()} ", theme["title"]),
        Segment(f" {clock} "),
    ]
    notices = snapshot.get("notices") or ()
    codes = [clean(notice["code"], 40).replace("_", " ") for notice in notices]
    if trouble or codes:
        # Only the codes fit; drf status has the sentences.
        told = trouble or ", ".join([*codes, *["DRAINING"] * snapshot["draining"]])
        room = columns - width_of(line) - 1
        line.append(Segment(fit(f" {told} ", room).rstrip() + " ", theme["alarm"]))
    elif snapshot["draining"]:
        line.append(Segment(" DRAINING ", theme["notice"]))
    return joined(line, columns)


def in_words(snapshot: SnapshotView) -> str:
    """Return a summary in one line, which stays on the terminal after the live view."""
    held = {
        name: sum(node["usage"][name] for node in leaves(snapshot["nodes"])) for name in _AXES[:2]
    }
    capacity, counts = snapshot["capacity"], snapshot["counts"]
    waiting = counts.get("PENDING", 0) + counts.get("HELD", 0)
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot["at"]))
    draining = "; draining" if snapshot["draining"] else ""
    draining += "".join(f"; {clean(each['text'], 300)}" for each in snapshot.get("notices") or ())
    return (
        f"{snapshot['host']} at {clock}: {_amount('cores', held['cores'])} of"
        f" {_amount('cores', capacity['cores'])} cores and {show_size(held['memory'])} of"
        f" {show_size(capacity['memory'])} held;"
        f" {sum(counts.values()) - waiting} running, {waiting} waiting{draining}"
    )


# -- the panels ----------------------------------------------------------------------------------

#: Ends of the scale of shares; the first is used that no share or entitlement exceeds.
_SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_NAME, _WIDE_NAME = 14, 28
#: Least columns of a screen with long names.
_WIDE = 100


def tree_table(
    rows: list[TreeRow],
    marks: dict[str, LeafMark],
    theme: Theme,
    columns: int,
    *,
    user: str,
    state: State,
) -> PanelTable:
    """Return the panel of the fair-share tree, in which the row of `user` is highlighted."""
    below, order = state.row_filter.below, state.orders()[TopPanel.TREE]
    name = PanelColumn("", _WIDE_NAME if columns >= _WIDE else _NAME)
    weight, entitled = PanelColumn("WEIGHT", 6, True), PanelColumn("ENTITLED", 8, True)
    share, of = PanelColumn("SHARE", 5, True), PanelColumn("OF", 6)
    satisfied, running = PanelColumn("SAT", 4, True), PanelColumn("RUN", 4, True)
    waiting = PanelColumn("WAIT", 6, True)
    fixed = (name, weight, entitled, share, of, satisfied, running, waiting)
    own = leaf_path("root", user).removeprefix("root.")
    room = columns - 5 - sum(column.width + 1 for column in fixed)
    most = max((max(row["dominant_share"], row["entitlement"]) for row in rows), default=0.0)
    scale = next((each for each in _SCALES if each >= most), 1.0)
    bar = PanelColumn(f"0{f'{scale:.0%}':>{max(0, room - 1)}}", room)

    def cells(row: TreeRow) -> list[Line]:
        mark = marks.get(row["path"])
        style = mark.style if mark is not None else theme["plain"]
        swatch = " " if mark is None else "■" if theme.has_colour else mark.letter
        level = row["satisfaction"]
        is_short = row["pending"] and level < 1
        shown = f"{row['title']} ◂" if row["path"] == below else row["title"]
        is_own = row["is_leaf"] and row["path"].rpartition(".")[2] == own
        return [
            [Segment(swatch, style)],
            [Segment(fit(shown, name.width), theme["title" if is_own else "plain"])],
            text(weight_words(row["weight"]), weight, theme),
            text(_percent(row["entitlement"]), entitled, theme),
            marked_bar(
                part_of(row["dominant_share"], scale),
                part_of(row["entitlement"], scale),
                room,
                (style, theme["free"], theme["mark"]),
            ),
            text(_percent(row["dominant_share"]), share, theme),
            text(row["dominant_resource"] or "-", of, theme, "dim"),
            text(
                f"{level:.0%}" if level < 100 else "many",
                satisfied, theme, "warm" if is_short else "good" if level >= 1 else "dim",
            ),
            text(str(row["running"]), running, theme, "plain" if row["running"] else "dim"),
            text(str(row["pending"]), waiting, theme, "plain" if row["pending"] else "dim"),
        ]  # fmt: skip

    heads = (
        PanelColumn("", 1),
        name,
        weight,
        entitled,
        bar,
        share,
        of,
        satisfied,
        running,
        waiting,
    )
    by = "" if order == "share" else f" by {order}"
    return PanelTable(f"SHARES{by}", heads, cells, rows, "nobody has jobs")


def _percent(part: float) -> str:
    """Return a percentage; small shares have a decimal, so that they differ from zero."""
    return f"{part:.0%}" if part >= 0.1 or part == 0 else f"{part:.1%}"


@dataclass(frozen=True)
class PanelColumn:
    title: str
    width: int
    is_right: bool = False


@dataclass(frozen=True)
class PanelTable:
    """The content of a panel. `title` stands in the heading, over the first columns."""

    title: str
    columns: Sequence[PanelColumn]
    #: Returns a cell of exactly its width for each column.
    cells: Callable[[Any], list[Line]]
    rows: Sequence[Any]
    #: The text if there are no rows.
    nothing: str
    #: The text below the last row, if there are rows that the snapshot does not have.
    more: str = ""

    @property
    def height(self) -> int:
        """The number of lines of the whole panel."""
        return 1 + max(1, len(self.rows)) + bool(self.more)


def draw(
    table: PanelTable,
    theme: Theme,
    columns: int,
    height: int,
    *,
    cursor: int | None,
    is_focus: bool,
) -> list[Line]:
    """Return the panel as `height` lines, with the row at `cursor`, marked if it has the focus."""
    if height <= 0:
        return []
    lines = [_head(table, theme, columns, is_focus=is_focus)]
    room = height - 1
    first = 0
    if cursor is not None:
        first = max(0, min(cursor - room // 2, len(table.rows) - room))
    for at, row in enumerate(table.rows[first : first + room], first):
        line: Line = [Segment(" ")]
        for cell in table.cells(row):
            line += [*cell, Segment(" ")]
        line = joined(line, columns)
        lines.append(marked(line, theme["cursor"]) if is_focus and at == cursor else line)
    if not table.rows:
        lines.append([Segment(fit(f" {table.nothing}", columns), theme["dim"])])
    elif table.more and first + room > len(table.rows):
        lines.append([Segment(fit(f" {table.more}", columns), theme["dim"])])
    lines = lines[:height]
    return lines + [[spaces(columns)] for _ in range(height - len(lines))]


def _head(table: PanelTable, theme: Theme, columns: int, *, is_focus: bool) -> Line:
    names = [
        (fit_right if column.is_right else fit)(column.title, column.width)
        for column in table.columns
    ]
    words = " " + " ".join(names)
    # The title may be wider than the first column, and then hides headings.
    title = f" {table.title} "
    rest = words[len(title) :]
    if rest[:1] not in ("", " "):
        # Hide the whole of a heading that the title would cut.
        end = (rest + " ").index(" ")
        rest = " " * end + rest[end:]
    return [Segment(fit(title + rest, columns), theme["head_focus" if is_focus else "head"])]


def text(word: str, column: PanelColumn, theme: Theme, style: str = "plain") -> Line:
    cut = fit_right(word, column.width) if column.is_right else fit(word, column.width)
    return [Segment(cut, theme[style])]


#: Least columns of a screen with rates of disks, and with pools.
_WITH_RATES, _WITH_POOLS = 112, 150
#: Fractions of the demand from which a bar shows a job as near its limit, and as at its limit.
_WARM, _HOT = 0.8, 0.95
_LABEL, _MOST_NAME = 9, 32


@dataclass(frozen=True)
class _Gauge:
    """A column with a bar and the text "now/declared".

    `at_limit` is the style of a full bar if the limit only throttles the job. It is empty if the
    limit ends the job; then the bar changes its colour near the limit, too.
    """

    column: PanelColumn
    bar_columns: int
    show: Callable[[float], str]
    at_limit: str = ""

    def cell(self, now: float | None, declared: float, theme: Theme) -> Line:
        if not declared and not now:
            return text("-", self.column, theme, "dim")
        part = part_of(now or 0.0, declared)
        style = "good"
        if part >= _HOT:
            style = self.at_limit or "hot"
        elif part >= _WARM and not self.at_limit:
            style = "warm"
        room = self.column.width - self.bar_columns - 1
        words = fit_right(
            f"{'?' if now is None else self.show(now)}/{self.show(declared) if declared else '-'}",
            room,
        )
        is_near = style in ("hot", "warm") and not theme.has_colour
        words = f"!{words.lstrip()}".rjust(room) if is_near and words[0] == " " else words
        plain = theme[style if style in ("hot", "warm") else "plain"]
        filled = bar(part, self.bar_columns, theme[style], theme["free"], "·" if declared else " ")
        return [*filled, Segment(f" {words}", plain)]


def running_table(
    rows: list[SnapshotRow],
    marks: dict[str, LeafMark],
    theme: Theme,
    columns: int,
    *,
    at_s: float,
    title: str,
) -> PanelTable:
    has_rates = columns >= _WITH_RATES
    gauge = 4 if columns < _WITH_POOLS else 8
    label, user = PanelColumn("", _LABEL), PanelColumn("USER", 8 if columns < _WITH_POOLS else 12)
    pool = PanelColumn("POOL", 14)
    cores, memory = PanelColumn("CORES", gauge + 9, True), PanelColumn("MEMORY", gauge + 12, True)
    read, write = PanelColumn("READ", gauge + 11, True), PanelColumn("WRITE", gauge + 11, True)
    spent = PanelColumn("TIME", 13, True)
    others = [label, user, *([pool] if columns >= _WITH_POOLS else []), cores, memory]
    others += [*([read, write] if has_rates else []), spent]
    name = PanelColumn("NAME", columns - 4 - sum(column.width + 1 for column in others))

    gauges: dict[Axis, _Gauge] = {
        "cores": _Gauge(cores, gauge, _cores, "good"),
        "memory": _Gauge(memory, gauge, show_size),
    }
    if has_rates:
        gauges["read"] = _Gauge(read, gauge, show_size, "warm")
        gauges["write"] = _Gauge(write, gauge, show_size, "warm")

    def cells(row: SnapshotRow) -> list[Line]:
        now, demand = row["now"], row["demand"]
        mark = marks.get(leaf_of(row))
        owner = mark.style if mark is not None else theme["plain"]
        made = [
            [Segment("▍" if theme.has_colour else mark.letter if mark else " ", owner)],
            text(row["label"], label, theme),
            text(row["name"], name, theme, "title"),
            [Segment(fit(row["user"], user.width), owner)],
        ]
        if pool in others:
            made.append(text(row["pool"].removeprefix("root."), pool, theme, "dim"))
        made += [
            each.cell(None if now is None else now.get(what), demand[what], theme)
            for what, each in gauges.items()
        ]
        return [*made, _spent(row, spent, at_s, theme)]

    heads = [PanelColumn("", 1), label, name, *others[1:]]
    return PanelTable(title, heads, cells, rows, "nothing runs")


def waiting_table(
    rows: list[SnapshotRow], theme: Theme, columns: int, *, at_s: float, title: str, more: str
) -> PanelTable:
    is_wide = columns >= _WITH_RATES
    label = PanelColumn("", _LABEL + 2)
    name, user = PanelColumn("NAME", 16 if is_wide else 10), PanelColumn("USER", 8)
    cores, memory = PanelColumn("CORES", 5, True), PanelColumn("MEM", 5, True)
    io, gres = PanelColumn("IO R/W", 9, True), PanelColumn("GRES", 8)
    start = PanelColumn("START", 7, True)
    # The reason has the rest of the width.
    has_io = is_wide and any(row["demand"]["read"] or row["demand"]["write"] for row in rows)
    has_gres = is_wide and any(any(row["demand"]["gres"].values()) for row in rows)
    others = [label, name, user, cores, memory, *([io] if has_io else [])]
    others += [*([gres] if has_gres else []), start]
    why = PanelColumn("WHY", columns - 2 - sum(column.width + 1 for column in others))

    def cells(row: SnapshotRow) -> list[Line]:
        demand = row["demand"]
        is_held = row["state"] == "HELD"
        made = [
            text(row["label"], label, theme),
            text(row["name"], name, theme, "title"),
            text(row["user"], user, theme),
            text(_cores(demand["cores"]), cores, theme),
            text(show_size(demand["memory"]), memory, theme),
        ]
        if has_io:
            made.append(text(show_io(demand), io, theme))
        if has_gres:
            made.append(text(show_gres(demand["gres"]), gres, theme))
        made.append(text(_start(row, at_s), start, theme))
        return [*made, text(reason_words(row), why, theme, "held" if is_held else "plain")]

    return PanelTable(title, [*others, why], cells, rows, "nothing waits", more)


def ended_table(
    rows: list[SnapshotRow], theme: Theme, columns: int, *, at_s: float, title: str
) -> PanelTable:
    label, user = PanelColumn("", _LABEL + 2), PanelColumn("USER", 8)
    outcome, code = PanelColumn("OUTCOME", 14), PanelColumn("EXIT", 8)
    ran, ago = PanelColumn("RAN", 7, True), PanelColumn("ENDED", 12, True)
    others = (label, user, outcome, code, ran, ago)
    room = columns - 2 - sum(column.width + 1 for column in others)
    name = PanelColumn("NAME", min(_MOST_NAME, room))

    def cells(row: SnapshotRow) -> list[Line]:
        state = row["outcome"] or row["state"]
        style = {"COMPLETED": "good", "CANCELLED": "dim"}.get(state, "hot")
        ran_s = (row["ended_at"] or at_s) - (row["started_at"] or row["ended_at"] or at_s)
        return [
            text(row["label"], label, theme),
            text(row["name"], name, theme),
            text(row["user"], user, theme),
            text(state, outcome, theme, style),
            text(_code(row), code, theme),
            text(show_duration(ran_s) if row["started_at"] else "-", ran, theme),
            text(_ago(row["ended_at"], at_s), ago, theme),
        ]

    return PanelTable(title, [label, name, *others[1:]], cells, rows, "nothing has ended lately")


def reason_words(row: SnapshotRow) -> str:
    """Return the reason of a pending job, as `drf status` prints it."""
    reason = row["reason"]
    if reason is None:
        return "held" if row["state"] == "HELD" else ""
    return f"{reason['code']}: {reason['text']}".removesuffix(": ")


def _cores(cores: float) -> str:
    return f"{cores:.1f}".removesuffix(".0") if cores >= 0.1 or cores < 0.005 else f"{cores:.2f}"


def _spent(row: SnapshotRow, column: PanelColumn, at_s: float, theme: Theme) -> Line:
    """Return the run time and the time limit, or the state if that is not RUNNING."""
    if row["state"] != "RUNNING" or row["started_at"] is None:
        return text(row["state"].lower(), column, theme, "held")
    limit_s, left = row["time_limit_s"], left_s(row, at_s)
    words = show_duration(at_s - row["started_at"])
    if limit_s is None or left is None:
        return text(words, column, theme)
    near = left <= limit_s * (1 - _HOT)
    return text(f"{words}/{_limit(limit_s)}", column, theme, "hot" if near else "plain")


def _limit(limit_s: float) -> str:
    """Return the time limit without a second unit of zero, such as "2h" or "1d"."""
    return show_duration(limit_s).removesuffix("00h").removesuffix("00m").removesuffix("00s")


def _start(row: SnapshotRow, at_s: float) -> str:
    expected_s = row["expected_start_at"]
    if expected_s is None:
        return "-"
    return show_duration(expected_s - at_s) if expected_s >= at_s + 1 else "now"


def _ago(ended_s: float | None, at_s: float) -> str:
    if ended_s is None:
        return "-"
    if at_s - ended_s < 86400:
        return f"{show_duration(at_s - ended_s)} ago"
    return time.strftime("%b %d %H:%M", time.localtime(ended_s))


def _code(row: SnapshotRow) -> str:
    number = row["signal"]
    if number is not None:
        known = {each.value: each.name for each in signal.Signals}
        return known.get(number, f"signal {number}")
    return "" if row["exit_code"] is None else str(row["exit_code"])
