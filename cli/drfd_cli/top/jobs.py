"""The jobs as panels: those that run with what they use, those that wait and why, recent ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from rich.segment import Segment

from drfd.units import show_duration, show_size
from drfd_cli.output import show_gres, show_io
from drfd_cli.top.header import Sign
from drfd_cli.top.paint import Ink, Line, bar, fit, fit_right, part_of
from drfd_cli.top.rows import Row, leaf_of, left_s
from drfd_cli.top.table import Column, Table, text

#: From these widths on there is room for rates of disks, and for pools.
_WITH_RATES, _WITH_POOLS = 112, 150
#: Of what was declared: from here on a bar says that it is near its limit, and at its limit.
_WARM, _HOT = 0.8, 0.95
_LABEL, _MOST_NAME = 9, 32


def running_table(
    rows: list[Row], signs: dict[str, Sign], ink: Ink, columns: int, *, at_s: float, title: str
) -> Table:
    has_rates = columns >= _WITH_RATES
    gauge = 4 if columns < _WITH_POOLS else 8
    label, user = Column("", _LABEL), Column("USER", 8 if columns < _WITH_POOLS else 12)
    pool = Column("POOL", 14)
    cores, memory = Column("CORES", gauge + 9, True), Column("MEMORY", gauge + 12, True)
    read, write = Column("READ", gauge + 11, True), Column("WRITE", gauge + 11, True)
    spent = Column("TIME", 13, True)
    others = [label, user, *([pool] if columns >= _WITH_POOLS else []), cores, memory]
    others += [*([read, write] if has_rates else []), spent]
    name = Column("NAME", columns - 4 - sum(column.width + 1 for column in others))

    def cells(row: Row) -> list[Line]:
        now, demand = row["now"] or {}, row["demand"]
        sign = signs.get(leaf_of(row))
        owner = sign.style if sign is not None else ink["plain"]
        made = [
            [Segment("▍" if ink.has_colour else sign.letter if sign else " ", owner)],
            text(row["label"], label, ink),
            text(row["name"], name, ink, "title"),
            [Segment(fit(row["user"], user.width), owner)],
        ]
        if pool in others:
            made.append(text(_pool(row), pool, ink, "dim"))
        made.append(_gauge(now.get("cores"), demand["cores"], gauge, cores, _cores, ink, "good"))
        made.append(_gauge(now.get("memory"), demand["memory"], gauge, memory, show_size, ink, ""))
        if has_rates:
            for what, column in (("read", read), ("write", write)):
                made.append(
                    _gauge(now.get(what), demand[what], gauge, column, show_size, ink, "warm")
                )
        return [*made, _spent(row, spent, at_s, ink)]

    heads = [Column("", 1), label, name, *others[1:]]
    return Table(title, heads, cells, rows, "nothing runs")


def waiting_table(
    rows: list[Row], ink: Ink, columns: int, *, at_s: float, title: str, more: str
) -> Table:
    is_wide = columns >= _WITH_RATES
    label = Column("", _LABEL + 2)
    name, user = Column("NAME", 16 if is_wide else 10), Column("USER", 8)
    cores, memory = Column("CORES", 5, True), Column("MEM", 5, True)
    io, gres = Column("IO R/W", 9, True), Column("GRES", 8)
    start = Column("START", 7, True)
    # The reason needs the room that nothing else does.
    has_io = is_wide and any(row["demand"]["read"] or row["demand"]["write"] for row in rows)
    has_gres = is_wide and any(any(row["demand"]["gres"].values()) for row in rows)
    others = [label, name, user, cores, memory, *([io] if has_io else [])]
    others += [*([gres] if has_gres else []), start]
    why = Column("WHY", columns - 2 - sum(column.width + 1 for column in others))

    def cells(row: Row) -> list[Line]:
        demand = row["demand"]
        is_held = row["state"] == "HELD"
        made = [
            text(row["label"], label, ink),
            text(row["name"], name, ink, "title"),
            text(row["user"], user, ink),
            text(_cores(demand["cores"]), cores, ink),
            text(show_size(demand["memory"]), memory, ink),
        ]
        if has_io:
            made.append(text(show_io(demand), io, ink))
        if has_gres:
            made.append(text(show_gres(demand["gres"]), gres, ink))
        made.append(text(_start(row, at_s), start, ink))
        return [*made, text(reason_words(row), why, ink, "held" if is_held else "plain")]

    return Table(title, [*others, why], cells, rows, "nothing waits", more)


def ended_table(rows: list[Row], ink: Ink, columns: int, *, at_s: float, title: str) -> Table:
    label, user = Column("", _LABEL + 2), Column("USER", 8)
    outcome, code = Column("OUTCOME", 14), Column("EXIT", 8)
    ran, ago = Column("RAN", 7, True), Column("ENDED", 12, True)
    others = (label, user, outcome, code, ran, ago)
    room = columns - 2 - sum(column.width + 1 for column in others)
    name = Column("NAME", min(_MOST_NAME, room))

    def cells(row: Row) -> list[Line]:
        state = row["outcome"] or row["state"]
        style = {"COMPLETED": "good", "CANCELLED": "dim"}.get(state, "hot")
        ran_s = (row["ended_at"] or at_s) - (row["started_at"] or row["ended_at"] or at_s)
        return [
            text(row["label"], label, ink),
            text(row["name"], name, ink),
            text(row["user"], user, ink),
            text(state, outcome, ink, style),
            text(_code(row), code, ink),
            text(show_duration(ran_s) if row["started_at"] else "-", ran, ink),
            text(_ago(row["ended_at"], at_s), ago, ink),
        ]

    return Table(title, [label, name, *others[1:]], cells, rows, "nothing has ended lately")


def reason_words(row: Row) -> str:
    """Why it waits, as `drf status` says it."""
    reason = row["reason"]
    if reason is None:
        return "held" if row["state"] == "HELD" else ""
    return f"{reason['code']}: {reason['text']}".removesuffix(": ")


def _gauge(
    now: float | None, declared: float, columns: int, column: Column, show: Callable[[float], str],
    ink: Ink, at_limit: str,
) -> Line:  # fmt: skip
    """A bar and "now/declared". `at_limit`: the style of a bar whose limit only holds back; where
    it ends the job, the bar turns in two steps."""
    if not declared and not now:
        return text("-", column, ink, "dim")
    part = part_of(now or 0.0, declared)
    style = "good"
    if part >= _HOT:
        style = at_limit or "hot"
    elif part >= _WARM and not at_limit:
        style = "warm"
    room = column.width - columns - 1
    words = fit_right(
        f"{'?' if now is None else show(now)}/{show(declared) if declared else '-'}", room
    )
    is_near = style in ("hot", "warm") and not ink.has_colour
    words = f"!{words.lstrip()}".rjust(room) if is_near and words[0] == " " else words
    plain = ink[style if style in ("hot", "warm") else "plain"]
    empty = " " if not declared else "·"
    return [*bar(part, columns, ink[style], ink["free"], empty), Segment(f" {words}", plain)]


def _cores(cores: float) -> str:
    return f"{cores:.1f}".removesuffix(".0") if cores >= 0.1 or cores < 0.005 else f"{cores:.2f}"


def _spent(row: Row, column: Column, at_s: float, ink: Ink) -> Line:
    """How long it runs, and may; of what does not simply run, its state."""
    if row["state"] != "RUNNING" or row["started_at"] is None:
        return text(row["state"].lower(), column, ink, "held")
    limit_s, left = row["time_limit_s"], left_s(row, at_s)
    words = show_duration(at_s - row["started_at"])
    if limit_s is None or left is None:
        return text(words, column, ink)
    near = left <= limit_s * (1 - _HOT)
    return text(f"{words}/{_limit(limit_s)}", column, ink, "hot" if near else "plain")


def _limit(limit_s: float) -> str:
    """Without a second unit that is nothing: "2h", "1d"."""
    return show_duration(limit_s).removesuffix("00h").removesuffix("00m").removesuffix("00s")


def _start(row: Row, at_s: float) -> str:
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


def _code(row: Row) -> str:
    number = row["signal"]
    if number is not None:
        known = {each.value: each.name for each in signal.Signals}
        return known.get(number, f"signal {number}")
    return "" if row["exit_code"] is None else str(row["exit_code"])


def _pool(row: Row) -> str:
    pool: str = row["pool"]
    return pool.removeprefix("root.")
