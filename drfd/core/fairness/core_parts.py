"""The part of the machine's cores that the kernel is to give each pool and user with running jobs
while all of them want more.

Cores are divided by the weights of the fair-share tree, but nobody gets less than the lower ends of
their running jobs, nor more than the upper ends. So the parts of all sum up to no more than the
machine, and whoever needs the lower ends has them, however few others want the rest.

The kernel weighs groups on each CPU by itself. A single process beside those of others on all CPUs
has less than its part until it has moved them. Who has no range is given more weight than the part:
quotas keep such jobs to their lower ends all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from drfd.core.fairness.share_tree import AxisClaim, FairShare, divide, parent_of, path_up
from drfd.core.model.job import ROOT

#: The axis of cores in vectors.
CORES = 0
#: The factor for the parts of those who have no range.
_FIRST = 8


def divide_cores(
    shares: FairShare, ends: Iterable[tuple[str, int, int]], capacity_milli: int
) -> dict[str, int]:
    """Return the weight of each node of the tree, by path: its thousandths of cores, or some times
    as much. `ends` are the lower and the upper end of each running job, after its leaf."""
    least, most = Counter[str](), Counter[str]()
    below: dict[str, set[str]] = {}
    for leaf, lower, upper in ends:
        for path in path_up(leaf):
            least[path] += lower
            most[path] += upper
            below.setdefault(parent_of(path), set()).add(path)
    found: dict[str, int] = {}
    left = [(ROOT, Fraction(capacity_milli))]
    while left:
        path, whole = left.pop()
        names = sorted(below.get(path, ()))
        claims = [
            AxisClaim(
                weight=shares.claims(name)[CORES].weight,
                guarantee=Fraction(least[name]),
                limit=Fraction(most[name]),
            )
            for name in names
        ]
        for name, part in zip(names, divide(whole, claims), strict=True):
            found[name] = round(part) * (_FIRST if least[name] == most[name] else 1)
            left.append((name, part))
    return found
