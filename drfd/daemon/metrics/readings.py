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
#: The user label of the row for all users beyond the configured number. No user can be called so.
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
) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows of pools and of users. `leaves` are the paths of users with jobs, and
    `configured` those of pools. Users without jobs have no row. The users
    with the most jobs get a row each; one row has the sums of all others."""
    pools, users = [], []
    above_leaves = {path for leaf in leaves for path in path_up(leaf)} - leaves
    for node in nodes:
        path = node["path"]
        above, _, name = path.rpartition(".")
        if path in leaves:
            users.append(_row(node, _pool_label(above), show_path(f"{ROOT}.{name}")))
        elif path in above_leaves or path in configured:
            pools.append(_row(node, _pool_label(path), ""))
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
                running=sum(row.running for row in rest),
                waiting=sum(row.waiting for row in rest),
            )
        )
    return pools, shown


def _pool_label(path: str) -> str:
    return WHOLE if path in ("", ROOT) else show_path(path)


def _row(node: SnapshotNode, pool: str, user: str) -> NodeRow:
    return NodeRow(
        pool=pool,
        user=user,
        share=node["dominant_share"],
        entitlement=node["entitlement"],
        satisfaction=node["satisfaction"],
        running=node["running"],
        waiting=node["pending"],
    )
