"""What of a snapshot is listed, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from drfd.core.job import leaf_path
from drfd.indices import joined, show_spans
from drfd_cli.commands.shares import branch

#: A job, tasks of an array that wait, or a node of the tree, as the daemon shows them.
Row = dict[str, Any]


class Panel(StrEnum):
    """In the order in which they are on the screen."""

    TREE = "tree"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


#: The orders that each panel knows; the first is the usual one.
ORDERS: dict[Panel, tuple[str, ...]] = {
    Panel.TREE: ("share", "name", "satisfied", "running", "waiting"),
    Panel.RUNNING: ("start", "cores", "memory", "time left", "user"),
    Panel.WAITING: ("turn", "submission", "user"),
    Panel.ENDED: ("end", "user"),
}


@dataclass(frozen=True)
class Choice:
    """Which jobs: those that hold the text somewhere, are below a node, are the asker's."""

    text: str = ""
    below: str = ""
    only_mine: bool = False

    def is_any(self) -> bool:
        return not (self.text or self.below or self.only_mine)


Lists = dict[Panel, list[Row]]


def lists(snapshot: Row, choice: Choice, orders: dict[Panel, str]) -> Lists:
    """The rows of each panel. The tree is always whole: it is what the jobs are compared with."""
    waiting = snapshot["pending"]
    if choice.only_mine:
        # Those that stand further back than the list goes.
        waiting = [*waiting, *snapshot["mine"]]
    chosen = {
        Panel.RUNNING: snapshot["running"],
        Panel.WAITING: waiting,
        Panel.ENDED: snapshot["ended"],
    }
    found = {Panel.TREE: _tree(snapshot["nodes"], orders[Panel.TREE])}
    for panel, rows in chosen.items():
        if not choice.is_any():
            rows = [row for row in rows if _is_chosen(row, choice, snapshot["user"])]
        order = orders[panel]
        key = _KEYS.get((panel, order))
        found[panel] = sorted(rows, key=key) if key is not None else rows
    found[Panel.ENDED] = _gathered(found[Panel.ENDED])
    return found


def key_of(panel: Panel, row: Row) -> str:
    """What a row is known by from snapshot to snapshot."""
    return str(row["path" if panel is Panel.TREE else "label"])


def leaf_of(row: Row) -> str:
    """The node that pays for a job."""
    return leaf_path(row["pool"], row["user"])


def leaves(nodes: Sequence[Row]) -> list[Row]:
    """The nodes without others below them, by path."""
    inner = {node["path"].rpartition(".")[0] for node in nodes}
    return sorted(
        (node for node in nodes if node["path"] not in inner and node["path"] != "root"),
        key=lambda node: _parts(node),
    )


def _is_chosen(row: Row, choice: Choice, user: str) -> bool:
    if choice.only_mine and row["user"] != user:
        return False
    if choice.below and not f"{leaf_of(row)}.".startswith(f"{choice.below}."):
        return False
    if not choice.text:
        return True
    reason = row["reason"]
    words = (
        *(row["label"], row["name"], row["user"], row["pool"], row["state"]),
        reason["code"] if reason else row["outcome"] or "",
    )
    return choice.text.casefold() in "\n".join(words).casefold()


def _gathered(rows: Sequence[Row]) -> list[Row]:
    """Tasks of one array that have ended alike, one after the other, in one row with the latest."""
    found = []
    for _, run in groupby(rows, key=_end_of_task):
        alike = list(run)
        latest = alike[0]
        if len(alike) > 1:
            array_id = latest["array_id"]
            indices = joined(row["array_index"] for row in alike)
            label = f"{array_id}_[{show_spans((low, high, 1) for low, high in indices)}]"
            latest = latest | {"id": array_id, "label": label, "tasks": len(alike)}
        found.append(latest)
    return found


def _end_of_task(row: Row) -> tuple[Any, ...]:
    """The same for tasks that stand in one row."""
    if row["array_id"] is None:
        return (row["id"],)
    return row["array_id"], row["name"], row["outcome"], row["exit_code"], row["signal"]


def _parts(node: Row) -> list[str]:
    parts: list[str] = node["path"].split(".")
    return parts


_TREE_KEYS: dict[str, Callable[[Row], Any]] = {
    "name": _parts,
    "share": lambda node: (-node["dominant_share"], _parts(node)),
    "satisfied": lambda node: (node["satisfaction"], _parts(node)),
    "running": lambda node: (-node["running"], _parts(node)),
    "waiting": lambda node: (-node["pending"], _parts(node)),
}


def _tree(nodes: Sequence[Row], order: str) -> list[Row]:
    """Each node below the one that it is in; siblings in the order asked for. What is alone in a
    pool stands in one row with it: they hold and are promised the same."""
    below: dict[str, list[Row]] = {}
    for node in sorted(nodes, key=_TREE_KEYS[order]):
        if node["path"] != "root":
            below.setdefault(node["path"].rpartition(".")[0], []).append(node)
    found: list[Row] = []
    left = [(node, 0, "") for node in reversed(below.pop("root", []))]
    while left:
        node, depth, pools = left.pop()
        inside = below.pop(node["path"], [])
        title = pools + branch(node["path"]).strip()
        if len(inside) == 1 and inside[0]["path"] not in below:
            left.append((inside[0] | {"weight": node["weight"]}, depth, f"{title}/"))
            continue
        found.append(node | {"title": "  " * depth + title, "is_leaf": not inside})
        left += [(each, depth + 1, "") for each in reversed(inside)]
    return found


def now_of(row: Row, what: str) -> float:
    """What a job uses now; what is not known counts as nothing."""
    return (row["now"] or {}).get(what) or 0.0


def left_s(row: Row, at_s: float) -> float | None:
    """Seconds until its time limit; None without one."""
    limit_s, started_s = row["time_limit_s"], row["started_at"]
    return None if limit_s is None or started_s is None else started_s + limit_s - at_s


def _end_s(row: Row) -> float:
    left = left_s(row, 0.0)
    return float("inf") if left is None else left


_KEYS: dict[tuple[Panel, str], Callable[[Row], Any]] = {
    (Panel.RUNNING, "start"): lambda row: (row["started_at"] or float("inf"), row["id"]),
    (Panel.RUNNING, "cores"): lambda row: -now_of(row, "cores"),
    (Panel.RUNNING, "memory"): lambda row: -now_of(row, "memory"),
    (Panel.RUNNING, "time left"): _end_s,
    (Panel.RUNNING, "user"): lambda row: row["user"],
    (Panel.WAITING, "submission"): lambda row: row["submitted_at"],
    (Panel.WAITING, "user"): lambda row: row["user"],
    (Panel.ENDED, "user"): lambda row: row["user"],
}
