"""What the fair-share tree says of the nodes whose running jobs may be lent something."""

from __future__ import annotations

from collections.abc import Mapping

from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.share_tree import TOP, FairShare
from drfd.core.lending.ceilings import Place


def places_of(
    shares: FairShare, used: Mapping[str, Vector], axis: int, unit: int = 1
) -> dict[str, Place]:
    """Return the places of all nodes with running jobs, by path, for lending the resource of one
    axis. `used` is what each leaf holds; its amount on the axis is not considered, as what is
    measured takes its place. Amounts of the result are in units of so many of the axis's own."""
    tree = shares.share_tree(used, ())
    top = shares.capacity[axis] / unit
    found = {}
    for path, node in tree.nodes.items():
        if path == TOP:
            continue
        entitled = node.entitled
        held = [
            amount / capacity / float(part) if part else float("inf")
            for at, (amount, capacity, part) in enumerate(
                zip(tree.used[path], shares.capacity, entitled, strict=True)
            )
            if at != axis and capacity > 0 and amount > 0
        ]
        found[path] = Place(entitled=float(entitled[axis]) * top, held=max(held, default=0.0))
    return found
