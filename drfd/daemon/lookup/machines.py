"""The machines on which jobs run, as `drf nodes` shows them."""

from __future__ import annotations

from collections.abc import Mapping

from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.machine import Vector, plus
from drfd.core.model.resources import Node, Resources
from drfd.daemon.lookup.views import resources_view
from drfd.protocol.replies import DrainView, MachineView

LOCAL, SLURM = "local", "slurm"
UP, AWAY, DRAINED = "up", "away", "drained"
#: Why a node is away of which no more is known.
_NO_LAUNCHER = "no launcher takes orders for it"


def machine_views(
    ledger: Ledger,
    rules: Rules,
    *,
    away_since_s: float | None,
    causes: Mapping[str, str],
    outside: Mapping[str, Resources],
) -> list[MachineView]:
    """Return the machines, the controller's own first.

    `away_since_s` is since when the only launcher has been away, for a single machine, or None;
    `causes` has why nodes are away of which more is known than that, and `outside` what Slurm has
    given to jobs on them that are not drfd's.
    """
    nodes = ledger.axes.nodes or (Node(name="", capacity=rules.capacity),)
    home, held, counts = ledger.axes.home, dict[str, Vector](), dict[str, int]()
    for job in ledger.allocated_jobs():
        name = job.node or home
        amounts = tuple(ledger.allocation(job))
        held[name] = plus(held[name], amounts) if name in held else amounts
        counts[name] = counts.get(name, 0) + 1
    found: list[MachineView] = []
    for node in nodes:
        since_s = ledger.nodes_away.get(node.name) if ledger.axes.nodes else away_since_s
        own = ledger.node_drains.get(node.name) if node.name else None
        state, since_s, text = _standing(
            since_s, own or ledger.drained, causes.get(node.name) or _NO_LAUNCHER
        )
        view: MachineView = {
            "name": node.name,
            "engine": LOCAL if node.name == home else SLURM,
            "features": sorted(node.features),
            "state": state,
            "since": since_s,
            "text": text,
            "capacity": resources_view(node.capacity),
            "allocated": resources_view(ledger.axes.resources(held.get(node.name, ledger.nothing))),
            "running": counts.get(node.name, 0),
        }
        if node.name in outside:
            view["outside"] = resources_view(outside[node.name])
        if own is not None:
            view["drain"] = drain_view(own)
        found.append(view)
    return found


def drain_view(stop: ev.Drained) -> DrainView:
    return {"by": stop.by, "since": stop.stopped_s, "reason": stop.reason}


def _standing(
    away_since_s: float | None, stop: ev.Drained | None, cause: str
) -> tuple[str, float | None, str]:
    """Return state, since when, and why. One that is away counts as that also while drained."""
    if away_since_s is not None:
        return AWAY, away_since_s, cause
    if stop is not None:
        return DRAINED, stop.stopped_s, stop.reason
    return UP, None, ""
