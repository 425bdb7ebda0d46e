"""The parts of the main page as lines: the machine, and a panel for each list.

The lines of the machine have a bar for each resource, with a colour or a letter for each leaf of
the tree that holds a part of it. The panels list the fair-share tree, running jobs with their use,
waiting jobs with the reason, and jobs that ended recently.

A column of a panel is declared once, in the table of its panel: heading, width, text, style, and
where it is shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from string import ascii_letters
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rich.segment import Segment
from rich.style import Style

from drfd.common.units import show_duration, show_size
from drfd.core.model.job import leaf_path
from drfd_cli.commands.shares import POOLS
from drfd_cli.output import (
    clean,
    code_line,
    counted,
    run_s,
    show_cores_of,
    size_or_dash,
)
from drfd_cli.tables.columns import JOBS
from drfd_cli.tables.layout import fitted
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
    from drfd.protocol.replies import GpuView, MachineView, SnapshotNode, SnapshotRow, SnapshotView
    from drfd_cli.output import Column
    from drfd_cli.top.state import TreeRow

# -- the machine ---------------------------------------------------------------------------------

_AXES: tuple[Axis, ...] = ("cores", "memory", "read", "write")
#: Characters of a bar: allocated and used, allocated and unused, used by external processes, free.
_USED, _ALLOCATED, _EXTERNAL, _FREE = "█", "▒", "╱", "·"
_LABEL_WIDTH = 7
#: The columns right of the bars and their widths.
_FIGURES = {"ALLOC": 11, "USED": 6, "EXTERNAL": 8, "PRESSURE": 8}
_FIGURES_WIDTH = sum(_FIGURES.values()) + len(_FIGURES)
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
    found = sorted(leaves(nodes), key=lambda node: not node["running"])
    paths = [node["path"] for node in found]
    letters = _letters(tuple(sorted(paths) if len(paths) <= len(ascii_letters) else paths))
    marks: dict[str, LeafMark] = {}
    taken: set[int] = set()
    for node in found:
        path = node["path"]
        hue = crc32(path.encode(errors="replace")) % HUES
        taken = set() if len(taken) == HUES else taken
        while hue in taken:
            hue = (hue + 1) % HUES
        taken.add(hue)
        marks[path] = LeafMark(theme.hue(hue), letters[path] if node["running"] else " ")
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


def header(
    snapshot: SnapshotView, theme: Theme, columns: int, *, now_s: float, trouble: str,
    most_each: int,
) -> list[Line]:  # fmt: skip
    """Return the lines about the machine. `trouble` says why the figures are outdated, and there
    are at most `most_each` lines about single nodes, and about single GPUs."""
    room = max(8, columns - _LABEL_WIDTH - 3 - _FIGURES_WIDTH)
    marks = leaf_marks(snapshot["nodes"], theme)
    if trouble:
        first = first_line(snapshot, theme, columns, now_s=now_s, trouble=trouble)
    else:
        first = first_line(snapshot, theme, columns - _FIGURES_WIDTH, now_s=now_s, trouble="")
        first = [*first, *_figures(tuple(_FIGURES), theme, "dim", "dim")]
    nodes = [
        _node_meter(node, theme, room)
        for node in sorted(snapshot.get("machines", ()), key=lambda each: each["state"] == "up")
    ]
    leaf_by_id = {row["id"]: leaf_of(row) for row in snapshot["running"]}
    gpus = [_gpu_meter(gpu, leaf_by_id, marks, theme, room) for gpu in snapshot.get("gpus", ())]
    return [
        first,
        *(_meter_of(snapshot, name, marks, theme, room) for name in _resources(snapshot)),
        *_at_most(most_each, nodes, "nodes: drf nodes", theme, columns),
        *_at_most(most_each, gpus, "GPUs", theme, columns),
    ]


def _at_most(most: int, lines: list[Line], what: str, theme: Theme, columns: int) -> list[Line]:
    """Return the first lines, and below them one that counts the others."""
    if len(lines) <= most or not most:
        return lines[:most]
    left = f" … and {len(lines) - most + 1} more {what}"
    return [*lines[: most - 1], [Segment(fit(left, columns), theme["dim"])]]


def _meter(
    label: str, stack: Sequence[Segment], figures: tuple[str, ...], theme: Theme,
    style: str = "plain", last_style: str = "plain",
) -> Line:  # fmt: skip
    """Return a line with a label, a bar, and figures right of it."""
    name = Segment(f" {fit(label, _LABEL_WIDTH)} ", theme["title"])
    return [name, *stack, Segment(" "), *_figures(figures, theme, style, last_style)]


def _figures(words: tuple[str, ...], theme: Theme, style: str, last_style: str) -> Line:
    *first, last = map(fit_right, words, _FIGURES.values())
    plain = theme[style]
    return [Segment(" ".join([*first, ""]), plain), Segment(last, theme[last_style]),
            Segment(" ", plain)]  # fmt: skip


def _meter_of(
    snapshot: SnapshotView, name: str, marks: dict[str, LeafMark], theme: Theme, room: int
) -> Line:
    """Return the line of a resource, with the allocations side by side."""
    capacity = _amount(snapshot["capacity"], name)
    parts = list(_held_and_used(snapshot, name))
    held, used = sum(part for _, part, _ in parts), sum(part for *_, part in parts)
    # The reserve beside the capacity covers a part of the external use; `kept` is the rest.
    load = snapshot["external"]
    external, kept = (_amount(load, name), _amount(load["kept"], name)) if load else (0.0, 0.0)
    # After a reload with a smaller capacity, more may be allocated than there is.
    whole = max(capacity, held)
    stack, end, sum_held = list[Segment](), 0, 0.0
    for path, part, part_used in parts:
        begin, sum_held = end, sum_held + part
        end = round(part_of(sum_held, whole) * room)
        filled = round(part_of(part_used, part) * (end - begin))
        chars = _USED * filled + _ALLOCATED * (end - begin - filled)
        if chars and not theme.has_colour:
            chars = marks[path].letter + chars[1:]
        stack.append(Segment(chars, marks[path].style))
    taken = min(room - end, round(part_of(kept, whole) * room))
    stack += [Segment(_FREE * (room - end - taken), theme["free"]),
              Segment(_EXTERNAL * taken, theme["outside"])]  # fmt: skip
    axis, is_gres = name.removeprefix("gres:"), name.startswith("gres:")
    # All disks have one figure of the last ten seconds in which some process waited for them.
    found = (snapshot["pressure"] or {}).get(_PRESSURES.get(name, ""))
    pressure = found["some"] if found else None
    others = show_axis(name, external) if external else ""
    if name in snapshot["external_off"]:
        others = "ignored"
    figures = (
        f"{show_declared(axis, held)}/{show_declared(axis, capacity)}",
        "" if is_gres else show_axis(name, used),
        others,
        "" if pressure is None else f"{pressure:.0f}%",
    )
    is_high = pressure is not None and pressure >= _HIGH_PRESSURE
    return _meter(gres_label(name), stack, figures, theme, last_style="hot" if is_high else "plain")


def _node_meter(node: MachineView, theme: Theme, room: int) -> Line:
    """Return the line of one of several machines, with its allocated cores."""
    held, capacity = node["allocated"]["cores"], node["capacity"]["cores"]
    filled = min(room, round(part_of(held, capacity) * room))
    is_up = node["state"] == "up"
    stack = [Segment(_ALLOCATED * filled, theme["plain"]),
             Segment(_FREE * (room - filled), theme["free"])]  # fmt: skip
    figures = (
        f"{show_declared('cores', held)}/{show_declared('cores', capacity)}",
        counted(node["running"], "job"), "", "" if is_up else node["state"],
    )  # fmt: skip
    return _meter(node["name"], stack, figures, theme, last_style="plain" if is_up else "alarm")


def _gpu_meter(
    gpu: GpuView, leaf_by_id: Mapping[int, str], marks: dict[str, LeafMark], theme: Theme, room: int
) -> Line:
    """Return the line of a GPU whose use is measured, with its memory."""
    used, total = gpu["memory_used"], gpu["memory_total"]
    # Where the driver does not tell its processes, nobody knows whose it is.
    outside = gpu["memory_outside"] or 0
    own_columns = min(room, round(part_of((used or 0) - outside, total or 0) * room))
    outside_columns = min(room - own_columns, round(part_of(outside, total or 0) * room))
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
        f"{size_or_dash(used)}/{size_or_dash(total)}", "lost" if gpu["is_lost"] else busy,
        show_size(outside) if outside else "", "",
    )  # fmt: skip
    # Its number, or its address if discovery does not know it.
    name = gpu["name"] or gpu["pci"].removeprefix("0000:")
    label = f"gpu {name}" if gpu["name"] and len(name) <= _LABEL_WIDTH - 4 else name
    return _meter(label, stack, figures, theme, "alarm" if gpu["is_lost"] else "plain")


def parts_of_capacity(snapshot: SnapshotView) -> tuple[dict[str, float], dict[str, float]]:
    """Return which part of each resource is allocated, and which part is used by jobs, of those of
    which the use is measured."""
    held: dict[str, float] = {}
    used: dict[str, float] = {}
    for name in _resources(snapshot):
        parts = list(_held_and_used(snapshot, name))
        capacity = _amount(snapshot["capacity"], name) or 1
        held[name] = sum(part for _, part, _ in parts) / capacity
        if not name.startswith("gres:"):
            used[name] = sum(part for *_, part in parts) / capacity
    return held, used


def _resources(snapshot: SnapshotView) -> list[str]:
    """Return the names of the resources, countable ones such as "gres:gpu"."""
    capacity = snapshot["capacity"]
    axes = [name for name in _AXES if capacity[name]]
    return [*axes, *(f"gres:{name}" for name in capacity["gres"])]


def _held_and_used(snapshot: SnapshotView, name: str) -> Iterator[tuple[str, float, float]]:
    """Yield the path of each leaf, how much it holds of a resource, and how much of that is in use:
    all of a countable one, of which the use is not measured."""
    for node in leaves(snapshot["nodes"]):
        held = _amount(node["usage"], name)
        is_gres = name.startswith("gres:")
        yield node["path"], held, held if is_gres else _amount(node["used"] or {}, name)


def _amount(amounts: Mapping[str, Any], name: str) -> float:
    """Return the amount of this name, or 0 if there is none or it is not known."""
    _, _, gres = name.partition(":")
    amount = amounts.get("gres", {}).get(gres) if gres else amounts.get(name)
    return amount if isinstance(amount, int | float) else 0.0


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


def first_line(
    snapshot: SnapshotView, theme: Theme, columns: int, *, now_s: float, trouble: str
) -> Line:
    """Return the line with the host, the time, and notices."""
    clock = time.strftime("%H:%M:%S", time.localtime(now_s))
    line = [
        Segment(f" {fit(snapshot['host'], 24).rstrip()} ", theme["title"]),
        Segment(f" {clock} "),
    ]
    # Of most only the codes fit; drf status has the sentences.
    codes = [
        notice["text"] if notice["code"] == "MAINTENANCE" else notice["code"].replace("_", " ")
        for notice in snapshot["notices"]
    ]
    told = trouble or ", ".join([*codes, *_draining(snapshot)])
    if told:
        words = fit(f" {told} ", columns - width_of(line) - 1).rstrip() + " "
        line.append(Segment(words, theme["alarm" if trouble or codes else "notice"]))
    return joined(line, columns)


def _draining(snapshot: SnapshotView) -> list[str]:
    """Return the notice that launching is stopped, with its reason, or none."""
    if not snapshot["draining"]:
        return []
    reason = snapshot["drain"]["reason"] if "drain" in snapshot else ""
    return [f"DRAINING: {clean(reason, 300)}" if reason else "DRAINING"]


def in_words(snapshot: SnapshotView) -> str:
    """Return a summary in one line, which stays on the terminal after the live view."""
    capacity, counts = snapshot["capacity"], snapshot["counts"]
    held = {
        name: sum(node["usage"][name] for node in leaves(snapshot["nodes"])) for name in _AXES[:2]
    }
    waiting = counts.get("PENDING", 0) + counts.get("HELD", 0)
    suspended = counts.get("SUSPENDED", 0)
    paused = f" {suspended} suspended," if suspended else ""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot["at"]))
    said = [each.replace("DRAINING", "draining", 1) for each in _draining(snapshot)]
    said += [clean(each["text"], 300) for each in snapshot["notices"]]
    return "; ".join([
        f"{snapshot['host']} at {clock}: {show_axis('cores', held['cores'])} of"
        f" {show_axis('cores', capacity['cores'])} cores and {show_size(held['memory'])} of"
        f" {show_size(capacity['memory'])} held",
        f"{sum(counts.values()) - waiting - suspended} running,{paused} {waiting} waiting",
        *said,
    ])  # fmt: skip


# -- the panels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PanelColumn:
    """A column of a panel."""

    title: str
    width: int
    #: Returns the text of a row; or without it `draw` returns the cell, exactly as wide as its
    #: second argument.
    words: Callable[[Any], str] = str
    style: Style | Callable[[Any], Style] | None = None
    draw: Callable[[Any, int], Line] | None = None
    is_right: bool = False
    #: Text at the right end of the heading.
    title_end: str = ""
    #: The order in which columns are added to a narrow screen; 0 for those that it always has.
    rank: int = 0
    #: The width up to which the column grows where there is room.
    most: int = 0
    is_shown: bool = True

    def cell(self, row: Any) -> Line:
        if self.draw is not None:
            return self.draw(row, self.width)
        cut = (fit_right if self.is_right else fit)(self.words(row), self.width)
        return [Segment(cut, self.style(row) if callable(self.style) else self.style)]


right = partial(PanelColumn, is_right=True)


def _of(column: Column, width: int, **more: Any) -> PanelColumn:
    """Return a column of lists as one of a panel."""
    return PanelColumn(
        column.title, width, lambda row: str(column.show(row)), is_right=column.is_right, **more
    )


def _of_user(column: Column) -> PanelColumn:
    """Return a column that the user wants besides those of a panel."""
    return _of(column, max(len(column.title), _LEAST_OWN), rank=_OWN, most=column.most)


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
    #: Returns whether a row has a mark before it.
    is_marked: Callable[[Any], bool] = lambda row: False

    @property
    def height(self) -> int:
        """The number of lines of the whole panel."""
        return 1 + max(1, len(self.rows)) + bool(self.more)

    def sentences(self, columns: int) -> dict[int, list[str]]:
        """Return the lines below rows, by the index of the row."""
        words = [] if self.about is None else [self.about(row) for row in self.rows]
        return {
            at: wrap(text, columns - _SENTENCE_INDENT - 1, _MOST_WHY)
            for at, (text, following) in enumerate(pairwise([*words, ""]))
            if text and text != following
        }

    def extra_height(self, columns: int, most: int) -> int:
        """Return the number of lines of all sentences, or 0 if there are more than `most`."""
        if self.about is None or most <= 0:
            return 0
        extra = sum(map(len, self.sentences(columns).values()))
        return extra if extra <= most else 0


#: The columns before a sentence below a row, and the most lines of one.
_SENTENCE_INDENT, _MOST_WHY = 13, 2


def draw(
    table: PanelTable, theme: Theme, columns: int, height: int, *, cursor: int | None,
    is_focus: bool,
) -> list[Line]:  # fmt: skip
    """Return the panel as `height` lines, with the row at `cursor`, highlighted if it has the
    focus."""
    if height <= 0:
        return []

    def dim(text: str) -> Line:
        return [Segment(fit(text, columns), theme["dim"])]

    lines = [_head(table, theme, columns, is_focus=is_focus)]
    room = height - 1
    first = 0
    if cursor is not None:
        first = max(0, min(cursor - room // 2, len(table.rows) + bool(table.more) - room))
    has_room = table.extra_height(columns, height - table.height)
    sentences = table.sentences(columns) if has_room else {}
    for at, row in enumerate(table.rows[first : first + room], first):
        line: Line = [Segment("*", theme["mark"]) if table.is_marked(row) else Segment(" ")]
        for column in table.columns:
            line += [*column.cell(row), Segment(" ")]
        line = joined(line, columns)
        lines.append(marked(line, theme["cursor"]) if is_focus and at == cursor else line)
        lines += [dim(" " * _SENTENCE_INDENT + words) for words in sentences.get(at, ())]
    if not table.rows:
        lines.append(dim(f" {table.nothing}"))
    elif table.more and first + room > len(table.rows):
        lines.append(dim(f" {table.more}"))
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


def _laid_out(columns: Sequence[PanelColumn], room: int, title: str = "") -> list[PanelColumn]:
    """Return the columns that fit, in their order, with the rest of the room shared out.

    `room` includes a blank before the first column and after each. The column of ids, before the
    names, is as wide as the title above it, which else hides the heading of the names, if these
    have enough room.
    """
    columns = [each for each in columns if each.is_shown]
    spans = [(each.width, max(each.width, each.most), each.rank) for each in columns]
    widths = fitted(spans, room - 1, 1)
    found = [replace(columns[at], width=width) for at, width in widths.items()]
    at = next((at for at, column in enumerate(found) if column.title == "NAME"), 0)
    extra = len(title) + 1 - sum(column.width + 1 for column in found[:at])
    if at and 0 < extra <= found[at].width - _NAME_BESIDE:
        found[at - 1] = replace(found[at - 1], width=found[at - 1].width + extra)
        found[at] = replace(found[at], width=found[at].width - extra)
    return found


#: Ends of the scale of shares; the first is used that no share or entitlement exceeds.
_SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_NAME, _WIDE_NAME = 14, 28
_LEAST_BAR = 10
#: Least columns of a screen with long names.
_WIDE = 100
#: Least width of a column that the user wants besides, and its rank: after all others.
_LEAST_OWN, _OWN = 7, 8
#: A width that no screen has.
_ENDLESS = 1000


def tree_table(
    rows: list[TreeRow], marks: dict[str, LeafMark], theme: Theme, columns: int, *,
    user: str, state: State,
) -> PanelTable:  # fmt: skip
    """Return the panel of the fair-share tree, in which the row of `user` is highlighted."""
    below, order = state.row_filter.below, state.order(TopPanel.TREE)
    own = leaf_path("root", user).removeprefix("root.")
    most = max((max(row["dominant_share"], row["entitlement"]) for row in rows), default=1.0)
    scale = next((each for each in _SCALES if each >= most), 1.0)
    dim, plain = theme["dim"], theme["plain"]
    nobody = LeafMark(plain, " ")

    def mark_of(row: TreeRow) -> LeafMark:
        return marks.get(row["path"], nobody)

    def swatch(row: TreeRow) -> str:
        return "■" if row["path"] in marks and theme.has_colour else mark_of(row).letter

    def bar_cell(row: TreeRow, width: int) -> Line:
        share, entitlement = row["dominant_share"], row["entitlement"]
        styles = (mark_of(row).style, theme["free"], theme["mark"])
        return marked_bar(part_of(share, scale), part_of(entitlement, scale), width, styles)

    def level_style(row: TreeRow) -> Style:
        level = row["satisfaction"]
        return theme["warm" if row["pending"] and level < 1 else "good" if level >= 1 else "dim"]

    def name_style(row: TreeRow) -> Style:
        return theme["title"] if row["is_leaf"] and row["path"].endswith(f".{own}") else plain

    def unless_none(key: str) -> Callable[[Any], Style]:
        return lambda row: plain if row[key] else dim

    shown = [
        PanelColumn("", 1, swatch, lambda row: mark_of(row).style),
        PanelColumn("", _WIDE_NAME if columns >= _WIDE else _NAME,
                    lambda row: f"{row['title']} ◂" if row["path"] == below else row["title"],
                    name_style),
        _of(POOLS["weight"], 6, rank=2),
        right("ENTITLED", 8, lambda row: _percent(row["entitlement"])),
        PanelColumn("0", _LEAST_BAR, draw=bar_cell, title_end=f"{scale:.0%}", most=_ENDLESS),
        right("SHARE", 5, lambda row: _percent(row["dominant_share"])),
        _of(POOLS["dominant_resource"], 8, style=dim, rank=1),
        right("SATISFIED", 9,
              lambda row: f"{row['satisfaction']:.0%}" if row["satisfaction"] < 100 else "many",
              level_style),
        right("RUN", 4, lambda row: str(row["running"]), unless_none("running")),
        right("WAIT", 6, lambda row: str(row["pending"]), unless_none("pending")),
    ]  # fmt: skip
    by = "" if order == "share" else f" by {order}"
    return PanelTable(f"SHARES{by}", _laid_out(shown, columns), rows, "nobody has jobs")


def _percent(part: float) -> str:
    """Return a percentage; small shares have a decimal, so that they differ from zero."""
    return f"{part:.0%}" if part >= 0.1 or part == 0 else f"{part:.1%}"


_RATES: tuple[Axis, Axis] = ("read", "write")
#: Least columns of a screen with rates of disks, with codes of reasons, and with pools.
_WITH_GPUS, _WITH_RATES, _WITH_CODES, _WITH_POOLS = 100, 112, 140, 150
#: Least columns of a screen with all digits of cores.
_WITH_DIGITS = 80
#: Fractions of the demand from which a bar shows a job as near its limit, and as at its limit.
_WARM, _HOT = 0.8, 0.95
_LABEL, _LEAST_NAME, _MOST_NAME = 9, 4, 32
#: Least columns that names keep beside a title.
_NAME_BESIDE = 12


def _gauge(
    axis: Axis, bar_columns: int, theme: Theme, at_limit: str, row: SnapshotRow, width: int
) -> Line:
    """Return a bar and the text "now/declared". Of a range of cores it is "5/2..8", and the bar is
    of all eight. Where there is no room for that, the bar alone has it.

    `at_limit` is the style of a full bar if the limit only throttles the job. It is empty if the
    limit ends the job; then the bar changes its colour near the limit, too.
    """
    now, declared = None if row["now"] is None else row["now"].get(axis), row["demand"][axis]
    if not declared and not now:
        return [Segment(fit_right("-", width), theme["dim"])]
    most = _upper_end(row) if axis == "cores" else None
    part = part_of(now or 0.0, declared if most is None else most)
    style = "good"
    if part >= _HOT:
        style = at_limit or "hot"
    elif part >= _WARM and not at_limit:
        style = "warm"
    room = width - bar_columns - 1
    used = "?" if now is None else show_axis(axis, now)
    words = show_declared(axis, declared) if declared else "-"
    figures = f"{used}/{words}"
    if most is not None and len(longer := f"{figures}..{show_axis(axis, most)}") <= room:
        figures = longer
    words = fit_right(figures, room)
    is_near = style in ("hot", "warm")
    if is_near and not theme.has_colour and words[0] == " ":
        words = f"!{words.lstrip()}".rjust(room)
    filled = bar(part, bar_columns, theme[style], theme["free"], "·" if declared else " ")
    return [*filled, Segment(f" {words}", theme[style if is_near else "plain"])]


def _upper_end(row: SnapshotRow) -> float | None:
    return row["demand"].get("cores_max")


def running_table(
    rows: list[SnapshotRow], marks: dict[str, LeafMark], theme: Theme, columns: int, *,
    at_s: float, title: str, own: Sequence[Column] = (),
) -> PanelTable:  # fmt: skip
    is_wide = columns >= _WITH_POOLS
    bar_columns = 8 if is_wide else 4
    # Such as "0.07/0.125"; the narrowest screens have no room for it.
    longest = max(
        (len(show_cores_of(each["demand"], "{:g}".format)) for each in rows), default=0
    )  # fmt: skip
    cores = min(14 if is_wide else 10, max(8, 5 + longest)) if columns >= _WITH_DIGITS else 8
    nobody = LeafMark(theme["plain"], " ")

    def mark_of(row: SnapshotRow) -> LeafMark:
        return marks.get(leaf_of(row), nobody)

    def owner(row: SnapshotRow) -> Style:
        return mark_of(row).style

    def gauge(
        axis: Axis, figures: int, at_limit: str = "", *, is_shown: bool = True
    ) -> PanelColumn:
        cell = partial(_gauge, axis, bar_columns, theme, at_limit)
        return right(axis.upper(), bar_columns + 1 + figures, draw=cell, is_shown=is_shown)

    shown = [
        PanelColumn("", 1, lambda row: "▍" if theme.has_colour else mark_of(row).letter, owner),
        PanelColumn("", _LABEL, lambda row: row["label"]),
        PanelColumn("NAME", _LEAST_NAME, lambda row: row["name"], theme["title"], most=_ENDLESS),
        _of(JOBS["user"], 12 if is_wide else 8, style=owner),
        PanelColumn("POOL", 14, lambda row: row["pool"].removeprefix("root."), theme["dim"],
                    is_shown=is_wide),
        gauge("cores", cores, "good"),
        gauge("memory", 11),
        *(gauge(axis, 10, "warm", is_shown=columns >= _WITH_RATES) for axis in _RATES),
        right("GPU", 10, lambda row: _gpu_words(row) or "-",
              is_shown=columns >= _WITH_GPUS and any(map(_gpu_words, rows))),
        right("TIME", 13, lambda row: _spent(row, at_s),
              lambda row: theme[_spent_style(row, at_s)]),
        *map(_of_user, own),
    ]  # fmt: skip
    return PanelTable(title, _laid_out(shown, columns, title), rows, "nothing runs")


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
    rows: list[SnapshotRow], theme: Theme, columns: int, *, at_s: float, title: str, more: str,
    own: Sequence[Column] = (),
) -> PanelTable:  # fmt: skip
    """Return the panel of waiting jobs, with the evidence of their reasons in columns. The whole
    reasons stand below the rows if there is room."""
    found = [_evidence(row) for row in rows]
    demands = [row["demand"] for row in rows]

    # Columns without content are left out.
    def has(key: str) -> bool:
        return any(key in each for each in found)

    def amount(key: str, row: SnapshotRow) -> str:
        about = _evidence(row)
        return show_declared(about["resource"], about[key]) if key in about else "-"

    def demand(axis: Axis, row: SnapshotRow) -> str:
        return show_declared(axis, row["demand"][axis])

    def code(row: SnapshotRow) -> str:
        return row["reason"]["code"] if row["reason"] else ""

    def until(row: SnapshotRow) -> str:
        until_s = _evidence(row).get("until")
        return "-" if until_s is None else _clock(until_s, at_s)

    shown = [
        PanelColumn("", _LABEL + 2, lambda row: row["label"]),
        PanelColumn("NAME", 8, lambda row: row["name"], theme["title"], most=16),
        _of(JOBS["user"], 8),
        right("CORES", 5, partial(demand, "cores")),
        right("MEM", 5, partial(demand, "memory")),
        _of(JOBS["io"], 9, rank=5, is_shown=any(each["read"] or each["write"] for each in demands)),
        _of(JOBS["gres"], 8, rank=6, is_shown=any(any(each["gres"].values()) for each in demands)),
        right("START", 6, lambda row: _start(row, at_s)),
        PanelColumn("WAITS FOR", 15, lambda row: _evidence(row).get("waits_for") or code(row),
                    lambda row: theme["held" if row["state"] == "HELD" else "plain"], most=18),
        right("NEEDS", 5, partial(amount, "needed"), rank=2, is_shown=has("needed")),
        right("FREE", 5, partial(amount, "free"), rank=1, is_shown=has("needed")),
        PanelColumn("BLOCKED BY", 14, lambda row: _evidence(row).get("blocked_by", ""), rank=3,
                    most=26, is_shown=has("blocked_by")),
        right("UNTIL", 6, until, rank=4, is_shown=has("until")),
        PanelColumn("REASON", 16, code, theme["dim"], rank=7, is_shown=columns >= _WITH_CODES),
        *map(_of_user, own),
    ]  # fmt: skip
    return PanelTable(
        title, _laid_out(shown, columns, title), rows, "nothing waits", more,
        about=lambda row: code_line(row["reason"]),
    )  # fmt: skip


def _evidence(row: SnapshotRow) -> Mapping[str, Any]:
    """Return the evidence of the reason."""
    return row["reason"]["evidence"] if row["reason"] else {}


def ended_table(
    rows: list[SnapshotRow], theme: Theme, columns: int, *, at_s: float, title: str,
    own: Sequence[Column] = (),
) -> PanelTable:  # fmt: skip
    def outcome(row: SnapshotRow) -> str:
        return row["outcome"] or row["state"]

    def ran(row: SnapshotRow) -> str:
        return show_duration(run_s(row, at_s)) if row["started_at"] else "-"

    styles = {"COMPLETED": theme["good"], "CANCELLED": theme["dim"]}
    shown = [
        PanelColumn("", _LABEL + 2, lambda row: row["label"]),
        PanelColumn("NAME", _LEAST_NAME, lambda row: row["name"], most=_MOST_NAME),
        _of(JOBS["user"], 8),
        PanelColumn("OUTCOME", 14, outcome, lambda row: styles.get(outcome(row), theme["hot"])),
        _of(JOBS["exit"], 8),
        right("RAN", 7, ran),
        right("ENDED", 12, lambda row: _ago(row["ended_at"], at_s)),
        *map(_of_user, own),
    ]
    laid_out = _laid_out(shown, columns, title)
    return PanelTable(title, laid_out, rows, "nothing has ended lately")


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
