"""The fair-share tree as a panel: who is promised how much, and has it."""

from __future__ import annotations

from rich.segment import Segment

from drfd.core.job import leaf_path
from drfd_cli.commands.shares import weight_words
from drfd_cli.top.header import Sign
from drfd_cli.top.paint import Ink, Line, fit, marked_bar, part_of
from drfd_cli.top.rows import Row
from drfd_cli.top.table import Column, Table, text

#: Bars go up to the first of these that holds all shares and entitlements.
_SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_NAME, _WIDE_NAME = 14, 28
#: From this width on there is room for long names.
_WIDE = 100


def tree_table(
    rows: list[Row],
    signs: dict[str, Sign],
    ink: Ink,
    columns: int,
    *,
    user: str,
    below: str,
    order: str,
) -> Table:
    """`user`: who looks; `below`: the node whose jobs alone are shown."""
    name = Column("", _WIDE_NAME if columns >= _WIDE else _NAME)
    weight, entitled = Column("WEIGHT", 6, True), Column("ENTITLED", 8, True)
    share, of = Column("SHARE", 5, True), Column("OF", 6)
    satisfied, running = Column("SAT", 4, True), Column("RUN", 4, True)
    waiting = Column("WAIT", 6, True)
    fixed = (name, weight, entitled, share, of, satisfied, running, waiting)
    own = leaf_path("root", user).removeprefix("root.")
    room = columns - 5 - sum(column.width + 1 for column in fixed)
    most = max((max(row["dominant_share"], row["entitlement"]) for row in rows), default=0.0)
    scale = next((each for each in _SCALES if each >= most), 1.0)
    bar = Column(f"0{f'{scale:.0%}':>{max(0, room - 1)}}", room)

    def cells(row: Row) -> list[Line]:
        sign = signs.get(row["path"])
        style = sign.style if sign is not None else ink["plain"]
        swatch = " " if sign is None else "■" if ink.has_colour else sign.letter
        level = row["satisfaction"]
        is_short = row["pending"] and level < 1
        shown = f"{row['title']} ◂" if row["path"] == below else row["title"]
        is_own = row["is_leaf"] and row["path"].rpartition(".")[2] == own
        return [
            [Segment(swatch, style)],
            [Segment(fit(shown, name.width), ink["title" if is_own else "plain"])],
            text(weight_words(row["weight"]), weight, ink),
            text(_percent(row["entitlement"]), entitled, ink),
            marked_bar(
                part_of(row["dominant_share"], scale),
                part_of(row["entitlement"], scale),
                room,
                (style, ink["free"], ink["mark"]),
            ),
            text(_percent(row["dominant_share"]), share, ink),
            text(row["dominant_resource"] or "-", of, ink, "dim"),
            text(
                f"{level:.0%}" if level < 100 else "many",
                satisfied, ink, "warm" if is_short else "good" if level >= 1 else "dim",
            ),
            text(str(row["running"]), running, ink, "plain" if row["running"] else "dim"),
            text(str(row["pending"]), waiting, ink, "plain" if row["pending"] else "dim"),
        ]  # fmt: skip

    heads = (Column("", 1), name, weight, entitled, bar, share, of, satisfied, running, waiting)
    by = "" if order == "share" else f" by {order}"
    return Table(f"SHARES{by}", heads, cells, rows, "nobody has jobs")


def _percent(part: float) -> str:
    """Of many users each has little, and that must not look like nothing."""
    return f"{part:.0%}" if part >= 0.1 or part == 0 else f"{part:.1%}"
