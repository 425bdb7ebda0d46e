"""How full the machine is: a bar for each resource, a colour or a letter for each who holds it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_letters
from zlib import crc32

from rich.segment import Segment
from rich.style import Style

from drfd.units import show_size
from drfd_cli.top.paint import HUES, Ink, Line, fit, fit_right, joined, part_of, width_of
from drfd_cli.top.rows import Row, leaves

#: Signs of what is held and used, only held, taken by others, free.
_USED, _HELD, _OUTSIDE, _FREE = "█", "▒", "╱", "·"
_NAME = 7
#: Widths of the columns right of the bars.
_HELD_COLUMN, _USED_COLUMN, _OUTSIDE_COLUMN, _STALL_COLUMN = 10, 6, 7, 5
#: Resource → whose pressure is shown beside it.
_PRESSURES = {"cores": "cpu", "memory": "memory", "read": "io"}
#: Percent; whoever sees that should know why the machine is slow.
_HARD_STALL = 20


@dataclass(frozen=True)
class Sign:
    """How a leaf of the tree is told from the others."""

    style: Style
    #: Without colours.
    letter: str


def signs_of(nodes: Sequence[Row], ink: Ink) -> dict[str, Sign]:
    """A sign for each leaf. A leaf keeps its colour while others come and go, but for clashes."""
    signs: dict[str, Sign] = {}
    taken: list[int] = []
    # Who holds something must be told apart; the others wait for a colour of their own.
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
        signs[path] = Sign(ink.hue(hue), letter)
    return signs


@dataclass(frozen=True)
class _Part:
    """Of a bar: whose, how much is held, how much of that is used."""

    sign: Sign
    held: float
    used: float


def header(
    snapshot: Row,
    signs: dict[str, Sign],
    ink: Ink,
    columns: int,
    *,
    now_s: float,
    trouble: str,
) -> list[Line]:
    """`trouble`: what is wrong with these figures."""
    right = _HELD_COLUMN + _USED_COLUMN + _OUTSIDE_COLUMN + _STALL_COLUMN + 4
    room = max(8, columns - _NAME - 3 - right)
    lines = [first_line(snapshot, ink, columns, now_s=now_s, trouble=trouble)]
    if not trouble:
        heads = _cells(("HELD", "USED", "OUTSIDE", "STALL"), ink["dim"], hot=ink["dim"])
        lines = [[*first_line(snapshot, ink, columns - right, now_s=now_s, trouble=""), *heads]]
    for name, capacity in _resources(snapshot):
        parts = [_part(node, name, signs) for node in leaves(snapshot["nodes"]) if node["running"]]
        # Of what others use, a part has its place beside the capacity: the reserve.
        external = snapshot["external"] or {"kept": {}}
        outside, kept = external.get(name, 0.0), external["kept"].get(name, 0.0)
        bar = list(_stack(parts, kept, capacity, room, ink))
        label = fit(name.removeprefix("gres:"), _NAME)
        stall = _stall(snapshot, name)
        told = f"{stall:.0f}%" if stall is not None else ""
        figures = (*_figures(name, parts, outside, capacity), told)
        hot = ink["hot" if stall is not None and stall >= _HARD_STALL else "plain"]
        cells = _cells(figures, ink["plain"], hot=hot)
        lines.append([Segment(f" {label} ", ink["title"]), *bar, Segment(" "), *cells])
    return lines


def _resources(snapshot: Row) -> Iterator[tuple[str, float]]:
    capacity = snapshot["capacity"]
    for name in ("cores", "memory", "read", "write"):
        if capacity[name]:
            yield name, capacity[name]
    for name, count in capacity["gres"].items():
        yield f"gres:{name}", count


def _part(node: Row, name: str, signs: dict[str, Sign]) -> _Part:
    kind, _, gres = name.partition(":")
    if gres:
        # Nobody measures what is counted: who has it, uses it.
        held = node["usage"]["gres"].get(gres, 0)
        return _Part(signs[node["path"]], held, held)
    return _Part(signs[node["path"]], node["usage"][kind], (node["used"] or {}).get(kind) or 0.0)


def _stack(
    parts: Sequence[_Part], kept: float, capacity: float, columns: int, ink: Ink
) -> Iterator[Segment]:
    """Who holds how much, one beside the other; what is kept from all for what runs outside of
    drfd, at the end."""
    total = sum(part.held for part in parts)
    # More may be held than there is, for a while, when the configuration has taken some away.
    whole = max(capacity, total)
    end, held = 0, 0.0
    for part in parts:
        begin, held = end, held + part.held
        end = round(part_of(held, whole) * columns)
        width = end - begin
        used = round(part_of(part.used, part.held) * width)
        signs = _USED * used + _HELD * (width - used)
        if width and not ink.has_colour:
            signs = part.sign.letter + signs[1:]
        yield Segment(signs, part.sign.style)
    taken = min(columns - end, round(part_of(kept, whole) * columns))
    yield Segment(_FREE * (columns - end - taken), ink["free"])
    yield Segment(_OUTSIDE * taken, ink["outside"])


def _figures(
    name: str, parts: Sequence[_Part], outside: float, capacity: float
) -> tuple[str, str, str]:
    held, used = sum(part.held for part in parts), sum(part.used for part in parts)
    shown = f"{_amount(name, held)}/{_amount(name, capacity)}"
    if name.startswith("gres:"):
        return shown, "", ""
    return shown, _amount(name, used), _amount(name, outside) if outside else ""


def _stall(snapshot: Row, name: str) -> float | None:
    """Percent of the last ten seconds in which somebody waited for it; one figure for all disks."""
    pressure = (snapshot["pressure"] or {}).get(_PRESSURES.get(name, ""))
    stall: float | None = pressure["some"] if pressure else None
    return stall


def _amount(name: str, amount: float) -> str:
    if name == "cores":
        return f"{amount:.1f}".removesuffix(".0") if amount < 100 else f"{amount:.0f}"
    return f"{amount:g}" if name.startswith("gres:") else show_size(amount)


def _cells(cells: tuple[str, str, str, str], style: Style, *, hot: Style) -> Line:
    widths = (_HELD_COLUMN, _USED_COLUMN, _OUTSIDE_COLUMN, _STALL_COLUMN)
    held, used, outside, stall = (
        fit_right(cell, width) for cell, width in zip(cells, widths, strict=True)
    )
    return [Segment(f"{held} {used} {outside} ", style), Segment(stall, hot), Segment(" ", style)]


def first_line(snapshot: Row, ink: Ink, columns: int, *, now_s: float, trouble: str) -> Line:
    """Whose machine, when, and what is wrong."""
    clock = time.strftime("%H:%M:%S", time.localtime(now_s))
    line = [Segment(f" {fit(snapshot['host'], 24).rstrip()} ", ink["title"]), Segment(f" {clock} ")]
    if trouble:
        told = f" {trouble} "
        line.append(Segment(fit(told, columns - width_of(line) - 1).rstrip() + " ", ink["alarm"]))
    elif snapshot["draining"]:
        line.append(Segment(" DRAINING ", ink["notice"]))
    return joined(line, columns)


def in_words(snapshot: Row) -> str:
    """The line that stays when the screen is gone."""
    held = {
        name: sum(node["usage"][name] for node in leaves(snapshot["nodes"]))
        for name in ("cores", "memory")
    }
    capacity, counts = snapshot["capacity"], snapshot["counts"]
    waiting = counts.get("PENDING", 0) + counts.get("HELD", 0)
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot["at"]))
    draining = "; draining" if snapshot["draining"] else ""
    return (
        f"{snapshot['host']} at {clock}: {_amount('cores', held['cores'])} of"
        f" {_amount('cores', capacity['cores'])} cores and {show_size(held['memory'])} of"
        f" {show_size(capacity['memory'])} held;"
        f" {sum(counts.values()) - waiting} running, {waiting} waiting{draining}"
    )
