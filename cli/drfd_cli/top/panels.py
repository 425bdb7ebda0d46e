"""The parts of the main page as lines: the machine, and a panel for each list.

The lines of the machine have a bar for each resource, with a colour or a letter for each leaf of
the tree that holds a part of it. The panels list the fair-share tree, running jobs with their use,
waiting jobs with the reason, and jobs that ended recently.

The panels of jobs name keys of `tables.live`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from string import ascii_letters
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from rich.segment import Segment

from drfd.common.units import AXES, show_size
from drfd.core.model.job import leaf_path
from drfd_cli.commands.shares import POOLS
from drfd_cli.output import Column, amount_of, clean, code_line, columns_of, counted
from drfd_cli.tables.columns import as_text, at, pair
from drfd_cli.tables.layout import Painted, fitted, right, widths_of, with_values
from drfd_cli.tables.live import (
    Gauge,
    live_columns,
    part_of,
    show_axis,
    show_declared,
)
from drfd_cli.top.paint import (
    HUES,
    Line,
    Theme,
    bar,
    fit,
    fit_right,
    hue_style,
    joined,
    marked,
    marked_bar,
    width_of,
    wrap,
)
from drfd_cli.top.state import TopPanel, leaf_of, leaves

if TYPE_CHECKING:
    from drfd.protocol.replies import GpuView, MachineView, SnapshotNode, SnapshotRow, SnapshotView
    from drfd_cli.top.state import TreeRow
    from drfd_cli.top.view import Scene

# -- the machine ---------------------------------------------------------------------------------

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


def leaf_marks(nodes: Sequence[SnapshotNode]) -> dict[str, Painted]:
    """Return by path the letter of each leaf of the fair-share tree, for screens without colours,
    painted with its colour. Both depend on the path, unless another leaf has taken them, so they
    seldom change while others come and go."""
    # Leaves with running jobs get distinct colours first.
    found = sorted(leaves(nodes), key=lambda node: not node["running"])
    paths = [node["path"] for node in found]
    letters = _letters(tuple(sorted(paths) if len(paths) <= len(ascii_letters) else paths))
    marks: dict[str, Painted] = {}
    taken: set[int] = set()
    for node in found:
        path = node["path"]
        hue = crc32(path.encode(errors="replace")) % HUES
        taken = set() if len(taken) == HUES else taken
        while hue in taken:
            hue = (hue + 1) % HUES
        taken.add(hue)
        marks[path] = Painted(letters[path] if node["running"] else " ", hue_style(hue))
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


def header(scene: Scene, theme: Theme, columns: int, *, most_each: int) -> list[Line]:
    """Return the lines about the machine, of which at most `most_each` are about single nodes, and
    as many about single GPUs."""
    snapshot, room = scene.snapshot, max(8, columns - _LABEL_WIDTH - 3 - _FIGURES_WIDTH)
    marks = leaf_marks(snapshot["nodes"])
    if scene.trouble:
        first = first_line(scene, theme, columns)
    else:
        first = first_line(scene, theme, columns - _FIGURES_WIDTH)
        first += _figures(tuple(_FIGURES), theme, "dim", "dim")
    nodes = [
        _node_meter(node, theme, room)
        for node in sorted(snapshot.get("machines", ()), key=lambda each: each["state"] == "up")
    ]
    leaf_by_id = {row["id"]: leaf_of(row) for row in snapshot["running"]}
    gpus = [_gpu_meter(gpu, leaf_by_id, marks, theme, room) for gpu in snapshot.get("gpus", ())]
    return [
        first,
        *(_meter_of(snapshot, name, marks, theme, room) for name in [
            *(name for name in AXES if _amount(snapshot["capacity"], name)),
            *(f"gres:{name}" for name in snapshot["capacity"]["gres"]),
        ]),
        *_at_most(most_each, nodes, "nodes: drf nodes", theme, columns),
        *_at_most(most_each, gpus, "GPUs", theme, columns),
    ]  # fmt: skip


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
    snapshot: SnapshotView, name: str, marks: dict[str, Painted], theme: Theme, room: int
) -> Line:
    """Return the line of a resource, with the allocations side by side; a countable one is named
    "gres:gpu"."""
    capacity, is_gres = _amount(snapshot["capacity"], name), name.startswith("gres:")
    # Of each leaf its path, what it holds, and how much of that is in use: all of a countable one,
    # of which the use is not measured.
    parts = [
        (node["path"], _amount(node["usage"], name),
         _amount(node["usage"] if is_gres else node["used"] or {}, name))
        for node in leaves(snapshot["nodes"])
    ]  # fmt: skip
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
            chars = marks[path] + chars[1:]
        stack.append(Segment(chars, theme[marks[path].style]))
    taken = min(room - end, round(part_of(kept, whole) * room))
    stack += [Segment(_FREE * (room - end - taken), theme["free"]),
              Segment(_EXTERNAL * taken, theme["outside"])]  # fmt: skip
    axis = name.removeprefix("gres:")
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
    # The memory on GPUs is "gpu mem".
    kind, _, which = axis.partition(":")
    label = f"{which} mem" if which else kind
    return _meter(label, stack, figures, theme, last_style="hot" if is_high else "plain")


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


_MEMORY_OF_GPU = pair(as_text(at("memory_used"), show_size), as_text(at("memory_total"), show_size))


def _gpu_meter(
    gpu: GpuView, leaf_by_id: Mapping[int, str], marks: dict[str, Painted], theme: Theme, room: int
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
        chars = mark + chars[1:]
    stack = [
        Segment(chars, theme["plain" if mark is None else mark.style]),
        Segment(_FREE * (room - own_columns - outside_columns), theme["free"]),
        Segment(_EXTERNAL * outside_columns, theme["outside"]),
    ]
    busy = "" if gpu["utilisation"] is None else f"{gpu['utilisation']}%"
    figures = (
        _MEMORY_OF_GPU(gpu), "lost" if gpu["is_lost"] else busy,
        show_size(outside) if outside else "", "",
    )  # fmt: skip
    # Its number, or its address if discovery does not know it.
    name = gpu["name"] or gpu["pci"].removeprefix("0000:")
    label = f"gpu {name}" if gpu["name"] and len(name) <= _LABEL_WIDTH - 4 else name
    return _meter(label, stack, figures, theme, "alarm" if gpu["is_lost"] else "plain")


def _amount(amounts: Mapping[str, object], name: str) -> float:
    """Return the amount of this name, or 0 if there is none or it is not known."""
    kind, _, gres = name.partition(":")
    if gres:
        amounts, name = cast("Mapping[str, object]", amounts.get(kind, {})), gres
    return amount_of(amounts, name) or 0.0


def first_line(scene: Scene, theme: Theme, columns: int) -> Line:
    """Return the line with the host, the time, and notices."""
    snapshot, trouble = scene.snapshot, scene.trouble
    clock = time.strftime("%H:%M:%S", time.localtime(scene.now_s))
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


def summary(snapshot: SnapshotView) -> str:
    """Return a summary in one line, which stays on the terminal after the live view."""
    capacity, counts = snapshot["capacity"], snapshot["counts"]
    used = [node["usage"] for node in leaves(snapshot["nodes"])]
    cores, memory = sum(each["cores"] for each in used), sum(each["memory"] for each in used)
    waiting = counts.get("PENDING", 0) + counts.get("HELD", 0)
    suspended = counts.get("SUSPENDED", 0)
    paused = f" {suspended} suspended," if suspended else ""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot["at"]))
    said = [each.replace("DRAINING", "draining", 1) for each in _draining(snapshot)]
    said += [clean(each["text"], 300) for each in snapshot["notices"]]
    return "; ".join([
        f"{snapshot['host']} at {clock}: {show_axis('cores', cores)} of"
        f" {show_axis('cores', capacity['cores'])} cores and {show_size(memory)} of"
        f" {show_size(capacity['memory'])} held",
        f"{sum(counts.values()) - waiting - suspended} running,{paused} {waiting} waiting",
        *said,
    ])  # fmt: skip


# -- the panels ----------------------------------------------------------------------------------

#: The columns of each list of jobs, by the keys of `live_columns`.
_SHOWN = {
    TopPanel.RUNNING: (
        *("label", "name", "user", "pool", *(f"{name}_now" for name in AXES), "gpu_now", "spent"),
    ),
    TopPanel.WAITING: (
        *("label", "name", "user", "cores", "memory", "io", "gres", "start", "waits_for"),
        *("needed", "free", "blocked_by", "until", "code"),
    ),
    TopPanel.ENDED: ("label", "name", "user", "outcome", "exit", "ran", "ended_ago"),
}
_NOTHING = {
    TopPanel.RUNNING: "nothing runs",
    TopPanel.WAITING: "nothing waits",
    TopPanel.ENDED: "nothing has ended lately",
}
#: Most columns that one that the user wants besides has at least, and its rank: after all others.
_MOST_OWN, _OWN = 20, 8
#: Least columns that names keep beside a title.
_NAME_BESIDE = 12
#: The columns of the figures beside a bar.
_BESIDE_BAR = 10
#: The columns before a sentence below a row, and the most lines of one.
_SENTENCE_INDENT, _MOST_WHY = 13, 2


@dataclass(frozen=True)
class PanelTable:
    """The content of a panel. `title` stands in the heading, over the first columns."""

    title: str
    #: The columns that there is room for, with their widths. A cell is a text, maybe with a style;
    #: or a function that draws it at a width.
    columns: Sequence[tuple[Column, int]]
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
    for number, row in enumerate(table.rows[first : first + room], first):
        line: Line = [Segment("*", theme["mark"]) if table.is_marked(row) else Segment(" ")]
        for column, width in table.columns:
            line += [*_drawn(column.cell(row), width, theme, is_right=column.is_right),
                     Segment(" ")]  # fmt: skip
        line = joined(line, columns)
        lines.append(marked(line, theme["cursor"]) if is_focus and number == cursor else line)
        lines += [dim(" " * _SENTENCE_INDENT + words) for words in sentences.get(number, ())]
    if not table.rows:
        lines.append(dim(f" {table.nothing}"))
    elif table.more and first + room > len(table.rows):
        lines.append(dim(f" {table.more}"))
    lines = lines[:height]
    return lines + [[Segment(" " * columns)] for _ in range(height - len(lines))]


def _head(table: PanelTable, theme: Theme, columns: int, *, is_focus: bool) -> Line:
    names = [fit(each.title, width, right=each.is_right) for each, width in table.columns]
    words = " " + " ".join(names)
    # The title may be wider than the first column, and then hides headings.
    title = f" {table.title} "
    rest = words[len(title) :]
    if rest[:1] not in ("", " ") and words[len(title) - 1] != " ":
        # Hide the whole of a heading that the title would cut.
        end = (rest + " ").index(" ")
        rest = " " * end + rest[end:]
    return [Segment(fit(title + rest, columns), theme["head_focus" if is_focus else "head"])]


def _drawn(cell: Any, width: int, theme: Theme, *, is_right: bool) -> Line:
    """Return a cell, exactly as wide as asked."""
    if callable(cell):
        drawn: Line = cell(width)
        return drawn
    style = theme[getattr(cell, "style", "plain")]
    room = width - _BESIDE_BAR
    if not isinstance(cell, Gauge) or len(cell) >= _BESIDE_BAR:
        return [Segment(fit(str(cell), width, right=is_right), style)]
    is_near = cell.style != "plain"
    words = fit_right(f"!{cell}" if is_near and not theme.has_colour else cell, _BESIDE_BAR)
    full = style if is_near else theme["good"]
    blank = " " if cell.part is None else "·"
    return [*bar(cell.part or 0.0, room, full, theme["free"], blank), Segment(words, style)]


def _laid_out(columns: Sequence[Column], room: int, title: str = "") -> list[tuple[Column, int]]:
    """Return the columns that fit, in their order, with their widths.

    `room` includes a blank before the first column and after each. The column of ids, before the
    names, is as wide as the title above it, which else hides the heading of the names, if these
    have enough room.
    """
    spans = [(each.least, max(each.least, each.most), each.rank) for each in columns]
    kept = fitted(spans, room - 1, 1)
    columns = [columns[at] for at in kept]
    leasts, wanted, _ = zip(*(spans[at] for at in kept), strict=True)
    widths = widths_of(columns, leasts, wanted, room - 1, 1)
    at = next((at for at, column in enumerate(columns) if column.title == "NAME"), 0)
    extra = len(title) + 1 - sum(width + 1 for width in widths[:at])
    if at and 0 < extra <= widths[at] - _NAME_BESIDE:
        widths[at - 1] += extra
        widths[at] -= extra
    return [*zip(columns, widths, strict=True)]


#: Ends of the scale of shares; the first is used that no share or entitlement exceeds.
_SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Least columns of a screen with long names in the tree.
_WIDE = 100
_NOBODY = Painted(" ", "plain")


def tree_table(
    scene: Scene, rows: list[TreeRow], marks: dict[str, Painted], theme: Theme, columns: int
) -> PanelTable:
    """Return the panel of the fair-share tree, in which the user's own row is highlighted."""
    below, order = scene.state.row_filter.below, scene.state.order(TopPanel.TREE)
    own = leaf_path("root", scene.snapshot["user"]).removeprefix("root.")
    most = max((max(row["dominant_share"], row["entitlement"]) for row in rows), default=1.0)
    scale = next((each for each in _SCALES if each >= most), 1.0)

    def swatch(row: TreeRow) -> Painted:
        mark = marks.get(row["path"], _NOBODY)
        return Painted("■", mark.style) if row["path"] in marks and theme.has_colour else mark

    def name(row: TreeRow) -> Painted:
        style = "title" if row["is_leaf"] and row["path"].endswith(f".{own}") else "plain"
        return Painted(f"{row['title']} ◂" if row["path"] == below else row["title"], style)

    def share(row: TreeRow, width: int) -> Line:
        style = theme[marks.get(row["path"], _NOBODY).style]
        shares = part_of(row["dominant_share"], scale), part_of(row["entitlement"], scale)
        return marked_bar(*shares, width, (style, theme["free"], theme["mark"]))

    def satisfied(row: TreeRow) -> Painted:
        level = row["satisfaction"]
        style = "warm" if row["pending"] and level < 1 else "good" if level >= 1 else "dim"
        return Painted(f"{level:.0%}" if level < 100 else "many", style)

    def count(key: str, row: Mapping[str, object]) -> Painted:
        return Painted(row[key], "plain" if row[key] else "dim")

    shown = [
        Column("", swatch, least=1),
        Column("", name, least=28 if columns >= _WIDE else 14),
        replace(POOLS["weight"], least=6, rank=2),
        right("ENTITLED", lambda row: _percent(row["entitlement"]), least=8),
        right(f"{scale:.0%}", lambda row: partial(share, row), least=10, most=columns),
        right("SHARE", lambda row: _percent(row["dominant_share"]), least=5),
        replace(POOLS["dominant_resource"], least=8, rank=1),
        right("SATISFIED", satisfied, least=9),
        right("RUN", partial(count, "running"), least=4),
        right("WAIT", partial(count, "pending"), least=6),
    ]
    by = "" if order == "share" else f" by {order}"
    return PanelTable(f"SHARES{by}", _laid_out(shown, columns), rows, "nobody has jobs")


def _percent(part: float) -> str:
    """Return a percentage; small shares have a decimal, so that they differ from zero."""
    return f"{part:.0%}" if part >= 0.1 or part == 0 else f"{part:.1%}"


def jobs_table(
    scene: Scene,
    panel: TopPanel,
    rows: list[SnapshotRow],
    marks: dict[str, Painted],
    theme: Theme,
    columns: int,
    **more: Any,
) -> PanelTable:
    """Return the panel of a list of jobs, with the columns that the user wants besides. The whole
    reasons of waiting jobs stand below the rows if there is room."""
    live = live_columns(scene.now_s)
    shown = with_values([live[key] for key in _SHOWN[panel]], rows)
    for column in map(live.__getitem__, scene.state.columns):
        widths = [columns_of(str(column.cell(row))) for row in rows]
        least = max([len(column.title), *(min(each, _MOST_OWN) for each in widths)])
        shown.append(replace(column, least=least, rank=_OWN))

    def mark_of(row: SnapshotRow) -> Painted:
        return marks.get(leaf_of(row), _NOBODY)

    def swatch(row: SnapshotRow) -> Painted:
        return Painted("▍", mark_of(row).style) if theme.has_colour else mark_of(row)

    if panel is TopPanel.RUNNING:
        shown = [Column("", swatch, least=1), *(
            replace(each, show=lambda row: Painted(row["user"], mark_of(row).style))
            if each.key == "user" else each for each in shown
        )]  # fmt: skip
    about = (lambda row: code_line(row["reason"])) if panel is TopPanel.WAITING else None
    laid_out = _laid_out(shown, columns, more["title"])
    return PanelTable(columns=laid_out, rows=rows, nothing=_NOTHING[panel], about=about, **more)
