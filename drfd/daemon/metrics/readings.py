"""The figures of one moment, as plain values: what a text with metrics is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drfd.core.fairness.rules import ROOT
from drfd.core.fairness.share_tree import path_up
from drfd.core.model.job import Outcome, show_path
from drfd.daemon.metrics.tally import HistogramCopy
from drfd.protocol.replies import GpuView, ResourcesView, SnapshotNode, SumView

#: The pool label of the whole machine, and of users in no pool. No pool can be called so.
WHOLE = "/"
#: The user label of the row for all users beyond the configured number. A user of this name gets
#: another label; see `_user_label`.
OTHERS = "(other)"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A pool, or the user of a pool; `user` is "" for a pool."""

    pool: str
    user: str
    share: float
    entitlement: float
    #: None of the row for other users, where it would mean nothing.
    satisfaction: float | None
    #: Whether a quota, a limit or a maintenance window keeps all waiting jobs of a user from what
    #: is due; None of pools, and of the row for other users.
    is_held_back: bool | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    version: str
    started_s: float
    #: Unix time since which `ends` and the histograms count.
    counted_since_s: float
    capacity: ResourcesView
    allocated: ResourcesView
    used: SumView
    #: Cores and bytes that processes outside drfd use, or None if they are not looked at.
    external: tuple[float, int] | None
    #: Pressure stall information in per cent, by resource and kind.
    pressure: Mapping[str, Mapping[str, float | None]]
    jobs: Mapping[str, int]
    pools: Sequence[NodeRow]
    users: Sequence[NodeRow]
    gpus: Sequence[GpuView]
    ends: Mapping[Outcome, int]
    wait: HistogramCopy
    turn: HistogramCopy
    commit: HistogramCopy
    is_launcher_up: bool
    is_drained: bool
    nodes_away: int
    #: Codes of the notices that `drf status` shows.
    notices: Sequence[str]
    journal_bytes: int


def node_rows(
    nodes: Sequence[SnapshotNode],
    leaves: frozenset[str],
    configured: frozenset[str],
    most_users: int,
    held_back: frozenset[str] = frozenset(),
) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows of pools and of users. `leaves` are the paths of users with jobs, and
    `configured` those of pools; `held_back` those of users whose jobs wait for a quota, a limit or
    the end of a maintenance window. Users without jobs have no row. The users
    with the most jobs get a row each; one row has the sums of all others."""
    pools, users = [], []
    above_leaves = {path for leaf in leaves for path in path_up(leaf)} - leaves
    for node in nodes:
        path = node["path"]
        above, _, name = path.rpartition(".")
        if path in leaves:
            user = _user_label(show_path(f"{ROOT}.{name}"))
            users.append(_row(node, _pool_label(above), user, is_held_back=path in held_back))
        elif path in above_leaves or path in configured:
            pools.append(_row(node, _pool_label(path), "", is_held_back=None))
    users.sort(key=lambda row: (-row.running - row.waiting, row.pool, row.user))
    rest = users[most_users:]
    shown = sorted(users[:most_users], key=lambda row: (row.pool, row.user))
    if rest:
        shown.append(
            NodeRow(
                pool=WHOLE,
                user=OTHERS,
                share=sum(row.share for row in rest),
                entitlement=sum(row.entitlement for row in rest),
                satisfaction=None,
                is_held_back=None,
                running=sum(row.running for row in rest),
                waiting=sum(row.waiting for row in rest),
            )
        )
    return pools, shown


def _pool_label(path: str) -> str:
    return WHOLE if path in ("", ROOT) else show_path(path)


def _user_label(name: str) -> str:
    """Return the label of a user of this name: the name, but "(other)" gets parentheses, and so do
    names that are "(other)" in parentheses. Labels differ where names do."""
    inner = name
    while inner != OTHERS and inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    return f"({name})" if inner == OTHERS else name


def _row(node: SnapshotNode, pool: str, user: str, *, is_held_back: bool | None) -> NodeRow:
    return NodeRow(
        pool=pool,
        user=user,
        share=node["dominant_share"],
        entitlement=node["entitlement"],
        satisfaction=node["satisfaction"],
        is_held_back=is_held_back,
        running=node["running"],
        waiting=node["pending"],
    )
