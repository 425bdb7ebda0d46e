"""The parts of the main page as lines: the machine, and a panel for each list.

The lines of the machine have a bar for each resource, with a colour or a letter for each leaf of
the tree that holds a part of it. The panels list the fair-share tree, running jobs with their use,
waiting jobs with the reason, and jobs that ended recently.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from string import ascii_letters
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rich.segment import Segment
from rich.style import Style

from drfd.common.units import show_duration, show_size
from drfd.core.model.job import leaf_path
from drfd_cli.commands.shares import quota_words, weight_words
from drfd_cli.output import (
    clean,
    code_line,
    run_s,
    show_gres,
    show_io,
    show_machine_time,
    size_or_dash,
)
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
    wrap,
)
from drfd_cli.top.state import Axis, State, TopPanel, leaf_of, leaves, left_s

if TYPE_CHECKING:
    from drfd.protocol.replies import GpuView, SnapshotNode, SnapshotRow, SnapshotView
    from drfd_cli.top.state import TreeRow

# -- the machine ---------------------------------------------------------------------------------

_AXES: tuple[Axis, ...] = ("cores", "memory", "read", "write")
#: Characters of a bar: allocated and used, allocated and unused, used by external processes, free.
_USED, _ALLOCATED, _EXTERNAL, _FREE = "█", "▒", "╱", "·"
_RESOURCE_NAME = 7
#: Widths of the columns right of the bars.
_ALLOC_COLUMN, _USED_COLUMN, _EXTERNAL_COLUMN, _PRESSURE_COLUMN = 11, 6, 8, 8
#: The resources of which other processes' use is taken into account.
_EXTERNAL_AXES = ("cores", "memory")
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
    """Return a mark for each leaf, by path. Colour and letter depend on the path, unless another
    leaf has taken them, so they seldom change while others come and go."""
    # Leaves with running jobs get distinct colours first.
    found = leaves(nodes)
    holders = [node["path"] for node in found if node["running"]]
    paths = [*holders, *(node["path"] for node in found if not node["running"])]
    letters = _letters(tuple(sorted(paths) if len(paths) <= len(ascii_letters) else paths))
    marks: dict[str, LeafMark] = {}
    taken: list[int] = []
    for path in paths:
        hue = crc32(path.encode(errors="replace")) % HUES
        if len(taken) % HUES == 0:
            taken = []
        while hue in taken:
            hue = (hue + 1) % HUES
        taken.append(hue)
        marks[path] = LeafMark(theme.hue(hue), letters[path])
    for path in paths[len(holders) :]:
        marks[path] = replace(marks[path], letter=" ")
    return marks


@lru_cache(maxsize=8)
def _letters(paths: tuple[str, ...]) -> Mapping[str, str]:
    """Return a letter for each path: one of the user's name, or of the pool's if the user is in
    several, that is not taken, or any other."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    users = Counter(path.rpartition(".")[2] for path in paths)
    for path in paths:
        pool, _, user = path.rpartition(".")
        words = pool.rpartition(".")[2] if users[user] > 1 else user
        name = [sign for sign in words.lower() if sign in ascii_letters]
        start = crc32(path.encode(errors="replace")) % len(ascii_letters)
        others = ascii_letters[start:] + ascii_letters[:start]
        wanted = (*name, *(sign.upper() for sign in name), *others)
        found[path] = next((sign for sign in wanted if sign not in taken), others[0])
        taken.add(found[path])
    return found


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
    most_each: int,
) -> list[Line]:
    """Return the lines about the machine. `trouble` says why the figures are outdated, and there
    are at most `most_each` lines about single nodes, and about single GPUs."""
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
        label = fit(gres_label(name), _RESOURCE_NAME)
        pressure = _pressure(snapshot, name)
        told = f"{pressure:.0f}%" if pressure is not None else ""
        figures = (*_figures(name, parts, external, capacity), told)
        if snapshot["external_off"] and name in _EXTERNAL_AXES:
            figures = (*figures[:2], "ignored", told)
        hot = theme["hot" if pressure is not None and pressure >= _HIGH_PRESSURE else "plain"]
        cells = _cells(figures, theme["plain"], hot=hot)
        lines.append([Segment(f" {label} ", theme["title"]), *stack, Segment(" "), *cells])
    lines += _node_lines(snapshot, theme, columns, room, most_each)
    return [*lines, *_gpu_lines(snapshot, marks, theme, columns, room, most_each)]


def _node_lines(
    snapshot: SnapshotView, theme: Theme, columns: int, room: int, most: int
) -> Iterator[Line]:
    """Yield a line for each machine, if there are several, with its allocated cores as a bar of
    `room` columns, and one that counts those for which there is no line. Machines on which nothing
    starts come first."""
    nodes = sorted(snapshot.get("machines", ()), key=lambda node: node["state"] == "up")
    first = nodes if len(nodes) <= most else nodes[: max(0, most - 1)]
    for node in first:
        held, capacity = node["allocated"]["cores"], node["capacity"]["cores"]
        filled = min(room, round(part_of(held, capacity) * room))
        is_up = node["state"] == "up"
        figures = (
            f"{show_declared('cores', held)}/{show_declared('cores', capacity)}",
            f"{node['running']} job{'s' * (node['running'] != 1)}",
            "",
            "" if is_up else node["state"],
        )
        yield [
            Segment(f" {fit(clean(node['name']), _RESOURCE_NAME)} ", theme["title"]),
            Segment(_ALLOCATED * filled, theme["plain"]),
            Segment(_FREE * (room - filled), theme["free"]),
            Segment(" "),
            *_cells(figures, theme["plain"], hot=theme["plain" if is_up else "alarm"]),
        ]
    if most and len(nodes) > len(first):
        left = f" … and {len(nodes) - len(first)} more nodes: drf nodes"
        yield [Segment(fit(left, columns), theme["dim"])]


def _gpu_lines(
    snapshot: SnapshotView,
    marks: dict[str, LeafMark],
    theme: Theme,
    columns: int,
    room: int,
    most: int,
) -> Iterator[Line]:
    """Yield a line for each GPU whose use is measured, with its memory as a bar of `room` columns,
    and one that counts those for which there is no line."""
    gpus = snapshot.get("gpus", ())
    first = gpus if len(gpus) <= most else gpus[: max(0, most - 1)]
    leaf_by_id = {row["id"]: leaf_of(row) for row in snapshot["running"]}
    for gpu in first:
        used, total = gpu["memory_used"], gpu["memory_total"]
        # Where the driver does not tell its processes, nobody knows whose it is.
        outside = gpu["memory_outside"] or 0
        own = (used or 0) - outside
        own_columns, outside_columns = 0, 0
        if total:
            own_columns = min(room, round(part_of(own, total) * room))
            outside_columns = min(room - own_columns, round(part_of(outside, total) * room))
        users = {leaf_by_id.get(job_id, "") for job_id in gpu["jobs"] or ()}
        mark = marks.get(users.pop()) if len(users) == 1 else None
        chars = _USED * own_columns
        if mark is not None and own_columns and not theme.has_colour:
            chars = mark.letter + chars[1:]
        stack = [
            Segment(chars, theme["plain"] if mark is None else mark.style),
            Segment(_FREE * (room - own_columns - outside_columns), theme["free"]),
            Segment(_EXTERNAL * outside_columns, theme["outside"]),
        ]
        busy = "" if gpu["utilisation"] is None else f"{gpu['utilisation']}%"
        figures = (
            f"{size_or_dash(used)}/{size_or_dash(total)}",
            "lost" if gpu["is_lost"] else busy,
            show_size(outside) if outside else "",
            "",
        )
        cells = _cells(figures, theme["alarm" if gpu["is_lost"] else "plain"], hot=theme["plain"])
        label = fit(_gpu_label(gpu), _RESOURCE_NAME)
        yield [Segment(f" {label} ", theme["title"]), *stack, Segment(" "), *cells]
    if most and len(gpus) > len(first):
        left = f" … and {len(gpus) - len(first)} more GPUs"
        yield [Segment(fit(left, columns), theme["dim"])]


def _gpu_label(gpu: GpuView) -> str:
    """Return the number of a GPU, or its address if discovery does not know it."""
    name = gpu["name"]
    if name is None:
        return clean(gpu["pci"].removeprefix("0000:"))
    return clean(f"gpu {name}" if len(name) <= _RESOURCE_NAME - 4 else name)


def parts_of_capacity(snapshot: SnapshotView) -> tuple[dict[str, float], dict[str, float]]:
    """Return which part of each resource is allocated, and which part is used by jobs, of those of
    which the use is measured."""
    held: dict[str, float] = {}
    used: dict[str, float] = {}
    found = leaves(snapshot["nodes"])
    for name, capacity in _resources(snapshot):
        kind, _, gres = name.partition(":")
        if gres:
            held[name] = sum(node["usage"]["gres"].get(gres, 0) for node in found) / (capacity or 1)
            continue
        held[name] = sum(_number(node["usage"], kind) for node in found) / (capacity or 1)
        used[name] = sum(_number(node["used"] or {}, kind) for node in found) / (capacity or 1)
    return held, used


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
    axis = name.removeprefix("gres:")
    shown = f"{show_declared(axis, held)}/{show_declared(axis, capacity)}"
    if name.startswith("gres:"):
        return shown, "", ""
    return shown, show_axis(name, used), show_axis(name, external) if external else ""


def _pressure(snapshot: SnapshotView, name: str) -> float | None:
    """Return the percentage of the last ten seconds in which some process waited for the resource,
    or None if it is not measured. All disks have one figure."""
    found = (snapshot["pressure"] or {}).get(_PRESSURES.get(name, ""))
    return found["some"] if found else None


def show_axis(axis: str, amount: float) -> str:
    """Return an amount in the units of replies, short enough for a column."""
    kind = axis.partition(":")[0]
    if kind in ("memory", "read", "write", "gpu_memory"):
        return show_size(amount)
    if kind == "gpu_utilisation":
        return f"{amount:g}%"
    if kind != "cores":
        return f"{amount:g}"
    decimals = 2 if 0.005 <= amount < 1 else 1 if amount < 100 else 0
    shown = f"{amount:.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if decimals else shown


def gres_label(name: str) -> str:
    """Return the label of a resource's row: "gpu" for "gres:gpu", "gpu mem" for its memory."""
    kind, _, which = name.removeprefix("gres:").partition(":")
    return f"{which} mem" if which else kind


def show_declared(axis: str, amount: float) -> str:
    """Return a declared amount, of which no digits are left out that were written."""
    return f"{amount:.4g}" if axis == "cores" and amount < 1000 else show_axis(axis, amount)


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
    notices = snapshot["notices"]
    codes = [
        clean(notice["text"], 200)
        if notice["code"] == "MAINTENANCE"
        else clean(notice["code"], 40).replace("_", " ")
        for notice in notices
    ]
    if trouble or codes:
        # Of most only the codes fit; drf status has the sentences.
        told = trouble or ", ".join([*codes, *_draining(snapshot)])
        room = columns - width_of(line) - 1
        line.append(Segment(fit(f" {told} ", room).rstrip() + " ", theme["alarm"]))
    elif snapshot["draining"]:
        room = columns - width_of(line) - 1
        told = fit(f" {_draining(snapshot)[0]} ", room).rstrip() + " "
        line.append(Segment(told, theme["notice"]))
    return joined(line, columns)


def _draining(snapshot: SnapshotView) -> list[str]:
    """Return the notice that launching is stopped, with its reason, or none."""
    if not snapshot["draining"]:
        return []
    reason = snapshot["drain"]["reason"] if "drain" in snapshot else ""
    return [f"DRAINING: {clean(reason, 300)}" if reason else "DRAINING"]


def in_words(snapshot: SnapshotView) -> str:
    """Return a summary in one line, which stays on the terminal after the live view."""
    held = {
        name: sum(node["usage"][name] for node in leaves(snapshot["nodes"])) for name in _AXES[:2]
    }
    capacity, counts = snapshot["capacity"], snapshot["counts"]
    waiting = counts.get("PENDING", 0) + counts.get("HELD", 0)
    suspended = counts.get("SUSPENDED", 0)
    paused = f" {suspended} suspended," if suspended else ""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot["at"]))
    draining = "".join(
        f"; {each.replace('DRAINING', 'draining', 1)}" for each in _draining(snapshot)
    )
    draining += "".join(f"; {clean(each['text'], 300)}" for each in snapshot["notices"])
    return (
        f"{snapshot['host']} at {clock}: {show_axis('cores', held['cores'])} of"
        f" {show_axis('cores', capacity['cores'])} cores and {show_size(held['memory'])} of"
        f" {show_size(capacity['memory'])} held;"
        f" {sum(counts.values()) - waiting - suspended} running,{paused} {waiting} waiting"
        f"{draining}"
    )


# -- the panels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PanelColumn:
    title: str
    width: int
    #: Returns the cell of a row, exactly as wide as the second argument.
    cell: Callable[[Any, int], Line]
    is_right: bool = False
    #: Text at the right end of the heading.
    title_end: str = ""
    #: The order in which columns are added to a narrow screen; 0 for those that it always has.
    rank: int = 0
    #: The width up to which the column grows where there is room.
    most: int = 0


@dataclass(frozen=True)
class PanelTable:
    """The content of a panel. `title` stands in the heading, over the first columns."""

    title: str
    columns: Sequence[PanelColumn]
    rows: Sequence[Any]
    #: The text if there are no rows.
    nothing: str
    #: The text below the last row, if there are rows that the snapshot does not have.
    more: str = ""
    #: Returns the sentence that stands below a row if there is room for those of all rows; the
    #: same one is told once for neighbours.
    about: Callable[[Any], str] | None = None

    @property
    def height(self) -> int:
        """The number of lines of the whole panel."""
        return 1 + max(1, len(self.rows)) + bool(self.more)

    def sentences(self, columns: int) -> dict[int, list[str]]:
        """Return the lines below rows, by the index of the row."""
        found: dict[int, list[str]] = {}
        if self.about is None or not self.rows:
            return found
        words = [self.about(row) for row in self.rows]
        for at, (text, following) in enumerate(zip(words, [*words[1:], ""], strict=True)):
            if text and text != following:
                found[at] = wrap(text, columns - _SENTENCE_INDENT - 1, _MOST_WHY)
        return found

    def extra_height(self, columns: int, most: int) -> int:
        """Return the number of lines of all sentences, or 0 if there are more than `most`."""
        if self.about is None or most <= 0:
            return 0
        extra = sum(map(len, self.sentences(columns).values()))
        return extra if extra <= most else 0


#: The columns before a sentence below a row.
_SENTENCE_INDENT = 13


def draw(
    table: PanelTable,
    theme: Theme,
    columns: int,
    height: int,
    *,
    cursor: int | None,
    is_focus: bool,
    is_marked: Callable[[Any], bool] | None = None,
) -> list[Line]:
    """Return the panel as `height` lines, with the row at `cursor`, highlighted if it has the
    focus."""
    if height <= 0:
        return []
    lines = [_head(table, theme, columns, is_focus=is_focus)]
    room = height - 1
    first = 0
    if cursor is not None:
        first = max(0, min(cursor - room // 2, len(table.rows) + bool(table.more) - room))
    has_room = table.extra_height(columns, height - table.height)
    sentences = table.sentences(columns) if has_room else {}
    for at, row in enumerate(table.rows[first : first + room], first):
        has_mark = is_marked is not None and is_marked(row)
        line: Line = [Segment("*", theme["mark"]) if has_mark else Segment(" ")]
        for column in table.columns:
            line += [*column.cell(row, column.width), Segment(" ")]
        line = joined(line, columns)
        lines.append(marked(line, theme["cursor"]) if is_focus and at == cursor else line)
        for words in sentences.get(at, ()):
            indent = spaces(_SENTENCE_INDENT)
            lines.append([indent, Segment(fit(words, columns - _SENTENCE_INDENT), theme["dim"])])
    if not table.rows:
        lines.append([Segment(fit(f" {table.nothing}", columns), theme["dim"])])
    elif table.more and first + room > len(table.rows):
        lines.append([Segment(fit(f" {table.more}", columns), theme["dim"])])
    lines = lines[:height]
    return lines + [[spaces(columns)] for _ in range(height - len(lines))]


def _head(table: PanelTable, theme: Theme, columns: int, *, is_focus: bool) -> Line:
    names = [
        (fit_right if each.is_right else fit)(each.title, each.width - len(each.title_end))
        + each.title_end
        for each in table.columns
    ]
    words = " " + " ".join(names)
    # The title may be wider than the first column, and then hides headings.
    title = f" {table.title} "
    rest = words[len(title) :]
    if rest[:1] not in ("", " ") and words[len(title) - 1] != " ":
        # Hide the whole of a heading that the title would cut.
        end = (rest + " ").index(" ")
        rest = " " * end + rest[end:]
    return [Segment(fit(title + rest, columns), theme["head_focus" if is_focus else "head"])]


def words_column(
    title: str,
    width: int,
    words: Callable[[Any], str],
    style: Style | Callable[[Any], Style] | None = None,
    *,
    is_right: bool = False,
    rank: int = 0,
    most: int = 0,
) -> PanelColumn:
    """Return a column of text. `style` may depend on the row."""

    def cell(row: Any, width: int) -> Line:
        cut = (fit_right if is_right else fit)(words(row), width)
        return [Segment(cut, style(row) if callable(style) else style)]

    return PanelColumn(title, width, cell, is_right, rank=rank, most=most)


def _laid_out(columns: Sequence[PanelColumn], room: int) -> list[PanelColumn]:
    """Return the columns that fit, in their order, with the rest of the room shared out.

    `room` includes a blank before the first column and after each.
    """
    left = room - 1 - sum(each.width + 1 for each in columns if not each.rank)
    kept = []
    for column in sorted(columns, key=lambda each: each.rank):
        if not column.rank:
            kept.append(column)
        elif column.width < left:
            kept.append(column)
            left -= column.width + 1
    found = []
    for column in columns:
        if column in kept:
            wider = max(0, min(left, column.most - column.width))
            found.append(replace(column, width=column.width + wider))
            left -= wider
    return found


def _beside(title: str, columns: Sequence[PanelColumn]) -> list[PanelColumn]:
    """Return the columns with that of ids, before the names, as wide as the title above it, which
    else hides the heading of the names, if these have enough room."""
    found = list(columns)
    at = next(at for at, column in enumerate(found) if column.title == "NAME")
    extra = len(title) + 1 - sum(column.width + 1 for column in found[:at])
    if 0 < extra <= found[at].width - _NAME_BESIDE:
        found[at - 1] = replace(found[at - 1], width=found[at - 1].width + extra)
        found[at] = replace(found[at], width=found[at].width - extra)
    return found


#: Ends of the scale of shares; the first is used that no share or entitlement exceeds.
_SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_NAME, _WIDE_NAME = 14, 28
_LEAST_BAR = 10
#: Least columns of a screen with long names.
_WIDE = 100
#: A width that no screen has.
_ENDLESS = 1000


def tree_table(
    rows: list[TreeRow],
    marks: dict[str, LeafMark],
    theme: Theme,
    columns: int,
    *,
    user: str,
    state: State,
    shortfalls: Mapping[str, int],
) -> PanelTable:
    """Return the panel of the fair-share tree, in which the row of `user` is highlighted.

    `shortfalls` is what users lacked of their promises in seven days, by leaf path; without any,
    there is no column for it.
    """
    below, order = state.row_filter.below, state.orders()[TopPanel.TREE]
    own = leaf_path("root", user).removeprefix("root.")
    most = max((max(row["dominant_share"], row["entitlement"]) for row in rows), default=0.0)
    # Without anybody there is nothing to magnify.
    scale = next((each for each in _SCALES if each >= most), 1.0) if rows else 1.0
    dim, plain = theme["dim"], theme["plain"]

    def owner(row: TreeRow) -> Style:
        return marks[row["path"]].style if row["path"] in marks else plain

    def swatch(row: TreeRow) -> str:
        mark = marks.get(row["path"])
        return " " if mark is None else "■" if theme.has_colour else mark.letter

    def name_style(row: TreeRow) -> Style:
        return theme["title"] if row["is_leaf"] and row["path"].endswith(f".{own}") else plain

    def bar_cell(row: TreeRow, width: int) -> Line:
        share, entitlement = row["dominant_share"], row["entitlement"]
        styles = (owner(row), theme["free"], theme["mark"])
        return marked_bar(part_of(share, scale), part_of(entitlement, scale), width, styles)

    def level_style(row: TreeRow) -> Style:
        level = row["satisfaction"]
        return theme["warm" if row["pending"] and level < 1 else "good" if level >= 1 else "dim"]

    has_quotas = any("quota" in row for row in rows)

    def quota_style(row: TreeRow) -> Style:
        quota = row.get("quota")
        is_used_up = quota is not None and quota["used_hours"] >= quota["share_hours"]
        return theme["warm"] if is_used_up else plain

    all_columns = [
        words_column("", 1, swatch, owner),
        words_column(
            "", _WIDE_NAME if columns >= _WIDE else _NAME,
            lambda row: f"{row['title']} ◂" if row["path"] == below else row["title"], name_style,
        ),
        words_column("WEIGHT", 6, lambda row: weight_words(row["weight"]), is_right=True, rank=2),
        words_column("ENTITLED", 8, lambda row: _percent(row["entitlement"]), is_right=True),
        PanelColumn("0", _LEAST_BAR, bar_cell, title_end=f"{scale:.0%}", most=_ENDLESS),
        words_column("SHARE", 5, lambda row: _percent(row["dominant_share"]), is_right=True),
        words_column("DOMINANT", 8, lambda row: row["dominant_resource"] or "-", dim,
                     rank=2 if has_quotas else 1),
        words_column(
            "SATISFIED", 9,
            lambda row: f"{row['satisfaction']:.0%}" if row["satisfaction"] < 100 else "many",
            level_style, is_right=True,
        ),
        words_column(
            "RUN", 4, lambda row: str(row["running"]),
            lambda row: plain if row["running"] else dim, is_right=True,
        ),
        words_column(
            "WAIT", 6, lambda row: str(row["pending"]),
            lambda row: plain if row["pending"] else dim, is_right=True,
        ),
    ]  # fmt: skip
    if has_quotas:
        all_columns.append(
            words_column("QUOTA", 12, quota_words, quota_style, is_right=True, rank=1)
        )
    if any(row["path"] in shortfalls for row in rows):
        all_columns.append(
            words_column(
                "SHORT 7D", 8, lambda row: show_machine_time(shortfalls.get(row["path"], 0)),
                lambda row: plain if row["path"] in shortfalls else dim, is_right=True, rank=1,
            )
        )  # fmt: skip
    by = "" if order == "share" else f" by {order}"
    shown = _laid_out(all_columns, columns)
    return PanelTable(f"SHARES{by}", shown, rows, "nobody has jobs")


def _percent(part: float) -> str:
    """Return a percentage; small shares have a decimal, so that they differ from zero."""
    return f"{part:.0%}" if part >= 0.1 or part == 0 else f"{part:.1%}"


_RATES: tuple[Axis, Axis] = ("read", "write")
#: Least columns of a screen with rates of disks, with codes of reasons, and with pools.
_WITH_GPUS, _WITH_RATES, _WITH_CODES, _WITH_POOLS = 100, 112, 140, 150
#: Least columns of a panel with the whole reasons of waiting jobs in place of their evidence.
_WITH_WHY = 150
#: Least columns of a screen with all digits of cores.
_WITH_DIGITS = 80
#: Most lines of a reason below its row.
_MOST_WHY = 2
#: Fractions of the demand from which a bar shows a job as near its limit, and as at its limit.
_WARM, _HOT = 0.8, 0.95
_LABEL, _LEAST_NAME, _MOST_NAME = 9, 4, 32
#: Least columns that names keep beside a title.
_NAME_BESIDE = 12


def _gauge(
    title: str, width: int, axis: Axis, bar_columns: int, theme: Theme, at_limit: str = ""
) -> PanelColumn:
    """Return a column with a bar and the text "now/declared". What a job is lent is added: "5/2+4"
    uses five cores of the two that it declares and four more, and the bar is of all six. Where
    there is no room for that, the bar alone has it.

    `at_limit` is the style of a full bar if the limit only throttles the job. It is empty if the
    limit ends the job; then the bar changes its colour near the limit, too.
    """

    def cell(row: SnapshotRow, width: int) -> Line:
        now, declared = None if row["now"] is None else row["now"].get(axis), row["demand"][axis]
        if not declared and not now:
            return [Segment(fit_right("-", width), theme["dim"])]
        lent = _lent(row, axis)
        part = part_of(now or 0.0, declared + lent)
        style = "good"
        if part >= _HOT:
            style = at_limit or "hot"
        elif part >= _WARM and not at_limit:
            style = "warm"
        room = width - bar_columns - 1
        used = "?" if now is None else show_axis(axis, now)
        figures = f"{used}/{_declared_words(axis, declared, lent)}"
        if len(figures) > room:
            figures = f"{used}/{_declared_words(axis, declared, 0.0)}"
        words = fit_right(figures, room)
        is_near = style in ("hot", "warm") and not theme.has_colour
        words = f"!{words.lstrip()}".rjust(room) if is_near and words[0] == " " else words
        plain = theme[style if style in ("hot", "warm") else "plain"]
        filled = bar(part, bar_columns, theme[style], theme["free"], "·" if declared else " ")
        return [*filled, Segment(f" {words}", plain)]

    return PanelColumn(title, width, cell, is_right=True)


def _lent(row: SnapshotRow, axis: Axis) -> float:
    """Return what a job may use beyond what it declares."""
    now = row["now"]
    if now is None or axis == "memory":
        return 0.0
    ceilings = {
        "cores": now.get("cores_ceiling"),
        "read": now.get("read_ceiling"),
        "write": now.get("write_ceiling"),
    }
    ceiling = ceilings[axis]
    return 0.0 if ceiling is None else max(0.0, ceiling - row["demand"][axis])


def _declared_words(axis: Axis, declared: float, lent: float) -> str:
    words = show_declared(axis, declared) if declared else "-"
    more = show_axis(axis, lent) if lent else "0"
    return words if more == "0" else f"{words}+{more}"


def _declared(rows: Sequence[SnapshotRow]) -> set[str]:
    return {_declared_words("cores", row["demand"]["cores"], _lent(row, "cores")) for row in rows}


def _rate_columns(rows: Sequence[SnapshotRow], axis: Axis, *, is_wide: bool) -> int:
    """Return the columns for the figures of a rate: more where one is lent, such as
    "150M/10M+190M", and there is room."""
    return 14 if is_wide and any(_lent(row, axis) for row in rows) else 10


def running_table(
    rows: list[SnapshotRow],
    marks: dict[str, LeafMark],
    theme: Theme,
    columns: int,
    *,
    at_s: float,
    title: str,
) -> PanelTable:
    is_wide = columns >= _WITH_POOLS
    gauge = 8 if is_wide else 4
    # Such as "0.07/0.125"; the narrowest screens have no room for it.
    longest = max((len(each) for each in _declared(rows)), default=0)
    most = 14 if is_wide else 10
    cores = min(most, max(8, 5 + longest)) if columns >= _WITH_DIGITS else 8

    def mark_of(row: SnapshotRow) -> LeafMark:
        return marks.get(leaf_of(row)) or LeafMark(theme["plain"], " ")

    def owner(row: SnapshotRow) -> Style:
        return mark_of(row).style

    shown = [
        words_column("", 1, lambda row: "▍" if theme.has_colour else mark_of(row).letter, owner),
        words_column("", _LABEL, lambda row: row["label"]),
        words_column("NAME", _LEAST_NAME, lambda row: row["name"], theme["title"], most=_ENDLESS),
        words_column("USER", 12 if is_wide else 8, lambda row: row["user"], owner),
    ]
    if is_wide:
        shown.append(
            words_column("POOL", 14, lambda row: row["pool"].removeprefix("root."), theme["dim"])
        )
    shown += [
        _gauge("CORES", gauge + 1 + cores, "cores", gauge, theme, "good"),
        _gauge("MEMORY", gauge + 12, "memory", gauge, theme),
    ]
    if columns >= _WITH_RATES:
        shown += [
            _gauge(
                axis.upper(),
                gauge + 1 + _rate_columns(rows, axis, is_wide=is_wide),
                axis,
                gauge,
                theme,
                "warm",
            )
            for axis in _RATES
        ]
    if columns >= _WITH_GPUS and any(map(_gpu_words, rows)):
        shown.append(words_column("GPU", 10, lambda row: _gpu_words(row) or "-", is_right=True))
    shown.append(
        words_column(
            "TIME", 13, lambda row: _spent(row, at_s),
            lambda row: theme[_spent_style(row, at_s)], is_right=True,
        )
    )  # fmt: skip
    return PanelTable(title, _beside(title, _laid_out(shown, columns)), rows, "nothing runs")


def _gpu_words(row: SnapshotRow) -> str:
    """Return a job's memory on GPUs and its utilisation of them, or "" if it is on none or that is
    not measured. Of one that declares its memory on each, it is the most on one, of so much alone:
    there is no room for more."""
    now = row["now"]
    if now is None:
        return ""
    memory, busy = now.get("gpu_memory"), now.get("gpu_utilisation")
    words = [show_size(memory)] if isinstance(memory, int) and (memory or busy) else []
    single, limit = now.get("gpu_memory_single"), row["demand"].get("gres_memory", {}).get("gpu")
    if words and single is not None and limit is not None:
        return f"{show_size(single)}/{show_size(limit)}"
    words += [f"{busy}%"] if busy is not None and (memory or busy) else []
    return " ".join(words)


def waiting_table(
    rows: list[SnapshotRow],
    theme: Theme,
    columns: int,
    *,
    at_s: float,
    title: str,
    more: str,
    has_sentences: bool,
) -> PanelTable:
    """Return the panel of waiting jobs, with the evidence of their reasons in columns. With
    `has_sentences`, a wide panel has the whole reasons in their place, and another one has them
    below the rows if there is room."""

    def piece(key: str) -> Callable[[SnapshotRow], str]:
        return lambda row: str(_evidence(row).get(key, ""))

    def amount(key: str) -> Callable[[SnapshotRow], str]:
        def words(row: SnapshotRow) -> str:
            found = _evidence(row)
            return show_declared(found["resource"], found[key]) if key in found else "-"

        return words

    def demand_column(title: str, axis: Axis) -> PanelColumn:
        return words_column(
            title, 5, lambda row: show_declared(axis, row["demand"][axis]), is_right=True
        )

    def code(row: SnapshotRow) -> str:
        return row["reason"]["code"] if row["reason"] else ""

    def waits_for(row: SnapshotRow) -> str:
        return piece("waits_for")(row) or code(row)

    def until(row: SnapshotRow) -> str:
        found = _evidence(row)
        return _clock(found["until"], at_s) if "until" in found else "-"

    found = [_evidence(row) for row in rows]
    demands = [row["demand"] for row in rows]
    shown = [
        words_column("", _LABEL + 2, lambda row: row["label"]),
        words_column("NAME", 8, lambda row: row["name"], theme["title"], most=16),
        words_column("USER", 8, lambda row: row["user"]),
        demand_column("CORES", "cores"),
        demand_column("MEM", "memory"),
    ]
    # Columns without content are left out.
    if any(demand["read"] or demand["write"] for demand in demands):
        shown.append(
            words_column("IO R/W", 9, lambda row: show_io(row["demand"]), is_right=True, rank=5)
        )
    if any(any(demand["gres"].values()) for demand in demands):
        shown.append(words_column("GRES", 8, lambda row: show_gres(row["demand"]["gres"]), rank=6))
    shown += [
        words_column("START", 6, lambda row: _start(row, at_s), is_right=True),
        words_column(
            "WAITS FOR", 15, waits_for,
            lambda row: theme["held" if row["state"] == "HELD" else "plain"], most=18,
        ),
    ]  # fmt: skip
    if has_sentences and columns >= _WITH_WHY:
        shown[-1] = words_column("WHY", 40, _why, most=_ENDLESS)
        return PanelTable(
            title, _beside(title, _laid_out(shown, columns)), rows, "nothing waits", more
        )
    if any("needed" in each for each in found):
        shown += [
            words_column("NEEDS", 5, amount("needed"), is_right=True, rank=2),
            words_column("FREE", 5, amount("free"), is_right=True, rank=1),
        ]
    if any("blocked_by" in each for each in found):
        shown.append(words_column("BLOCKED BY", 14, piece("blocked_by"), rank=3, most=26))
    if any("until" in each for each in found):
        shown.append(words_column("UNTIL", 6, until, is_right=True, rank=4))
    if columns >= _WITH_CODES:
        shown.append(words_column("REASON", 16, code, theme["dim"], rank=7))
    about = _why if has_sentences else None
    shown = _beside(title, _laid_out(shown, columns))
    return PanelTable(title, shown, rows, "nothing waits", more, about)


def _why(row: SnapshotRow) -> str:
    return code_line(row["reason"]) if row["reason"] else ""


def _evidence(row: SnapshotRow) -> Mapping[str, Any]:
    """Return the evidence of the reason."""
    return row["reason"]["evidence"] if row["reason"] else {}


def ended_table(
    rows: list[SnapshotRow], theme: Theme, columns: int, *, at_s: float, title: str
) -> PanelTable:
    def outcome(row: SnapshotRow) -> str:
        return row["outcome"] or row["state"]

    def ran(row: SnapshotRow) -> str:
        return show_duration(run_s(row, at_s)) if row["started_at"] else "-"

    styles = {"COMPLETED": theme["good"], "CANCELLED": theme["dim"]}
    shown = [
        words_column("", _LABEL + 2, lambda row: row["label"]),
        words_column("NAME", _LEAST_NAME, lambda row: row["name"], most=_MOST_NAME),
        words_column("USER", 8, lambda row: row["user"]),
        words_column("OUTCOME", 14, outcome, lambda row: styles.get(outcome(row), theme["hot"])),
        words_column("EXIT", 8, _code),
        words_column("RAN", 7, ran, is_right=True),
        words_column("ENDED", 12, lambda row: _ago(row["ended_at"], at_s), is_right=True),
    ]
    return PanelTable(title, _laid_out(shown, columns), rows, "nothing has ended lately")


def _spent(row: SnapshotRow, at_s: float) -> str:
    """Return the run time and the time limit, or the state if that is not RUNNING."""
    if row["state"] != "RUNNING" or row["started_at"] is None:
        return row["state"].lower()
    limit_s = row["time_limit_s"]
    words = show_duration(run_s(row, at_s))
    return words if limit_s is None else f"{words}/{_limit(limit_s)}"


def _spent_style(row: SnapshotRow, at_s: float) -> str:
    if row["state"] != "RUNNING" or row["started_at"] is None:
        return "held"
    limit_s, left = row["time_limit_s"], left_s(row, at_s)
    is_near = limit_s is not None and left is not None and left <= limit_s * (1 - _HOT)
    return "hot" if is_near else "plain"


def _limit(limit_s: float) -> str:
    """Return the time limit without a second unit of zero, such as "2h" or "1d"."""
    return show_duration(limit_s).removesuffix("00h").removesuffix("00m").removesuffix("00s")


def _start(row: SnapshotRow, at_s: float) -> str:
    expected_s = row["expected_start_at"]
    if expected_s is None:
        return "-"
    return show_duration(expected_s - at_s) if expected_s >= at_s + 1 else "now"


def _clock(then_s: float, at_s: float) -> str:
    """Return a time within a day as "14:05", another one as "Nov 23"."""
    is_near = abs(then_s - at_s) < 86400
    return time.strftime("%H:%M" if is_near else "%b %d", time.localtime(then_s))


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
