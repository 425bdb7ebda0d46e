"""Passes of one policy over plain tables, for tests of what policies decide."""

from __future__ import annotations

from collections.abc import Mapping

from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.plan import PassInput, Plan, PolicyOptions
from drfd.core.scheduling.scheduling_pass import POLICIES
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex


def plan(
    policy: str = "drf",
    *,
    queues: Mapping[str, LeafQueue],
    used: Mapping[str, Vector],
    free: Vector,
    shares: FairShare,
    past_usage: Mapping[str, float] | None = None,
    pass_context: PassContext | None = None,
    recent: Mapping[str, Vector] | None = None,
    terms: PolicyOptions | None = None,
) -> Plan:
    """A pass over an index of its own."""
    tables = LeafTables(
        queues=queues, used=used, shares=shares, past_usage=past_usage or {}, recent=recent or {}
    )
    given = PassInput(
        wait_index=WaitIndex(tables),
        free=free,
        pass_context=pass_context,
        options=terms or PolicyOptions(),
    )
    return POLICIES[policy](given)


def run_pass(wait_index: WaitIndex, *, free: Vector, pass_context: PassContext | None) -> Plan:
    """A pass of the daemon's own policy over an index that is kept."""
    return POLICIES["drf"](PassInput(wait_index=wait_index, free=free, pass_context=pass_context))
