"""The judgement of lending, once a second: from measured use to the ceilings of running jobs.

A job has a floor, which it declares and is promised at every moment, and a most, up to which it may
be lent what others leave idle. Its ceiling is somewhere between. What is lent is an amount of one
kind: cores (`core.lending.cores`), or what a disk reads or writes in a second
(`core.lending.disks`). A `Source` says what there is of it, and what a job could use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.share_tree import TOP, FairShare, parent_of
from drfd.core.lending.division import Claim, Node, by_weight, divide

#: The factor by which a ceiling may rise in a step.
_RISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrower:
    """A running job, with what was measured of it since the last judgement. All amounts are in the
    unit of what is lent."""

    job_id: int
    leaf: str
    floor: float
    #: The most that it may be lent; not less than the floor.
    most: float
    #: The ceiling that it has.
    ceiling: float
    used: float
    #: Whether the kernel has counted that its ceiling has held it back.
    is_throttled: bool = False


class Source(Protocol):
    """What is lent, in its unit."""

    @property
    def room(self) -> float:
        """What is there for the jobs that are judged."""

    @property
    def bound(self) -> float:
        """What their ceilings may never exceed together, but where the floors alone do."""

    @property
    def few(self) -> float:
        """A ceiling is moved only by more than this part of itself."""

    def is_held_back(self, job: Borrower) -> bool:
        """Return whether the job could use more than its ceiling, or its floor, lets it."""

    def wanted(self, job: Borrower) -> float:
        """Return what the job could use now, as far as one can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result for one job."""

    ceiling: float
    #: Whether it could use more than it may.
    is_hungry: bool


def judge(
    jobs: Sequence[Borrower], source: Source, places: Mapping[str, Node]
) -> dict[int, Judgement]:
    """Return the ceilings for the next second, by job. `places` are the nodes of the tree in
    which there are jobs, by path, without the root.

    First all get what they could use, as far as there is room; what is left then is their room to
    grow. A job that could use less than its floor has its floor as its ceiling all the same, and
    the others are lent what it leaves.
    """
    want = {job.job_id: min(job.most, source.wanted(job)) for job in jobs}
    claims: dict[str, list[Claim]] = {}
    for job in jobs:
        most = want[job.job_id]
        claim = Claim(job_id=job.job_id, least=min(most, job.floor), most=most, weight=job.floor)
        claims.setdefault(job.leaf, []).append(claim)
    parts = divide(node_of(claims, places), source.room)
    left = source.room - sum(max(parts[job.job_id], job.floor) for job in jobs)
    grown = _growth(jobs, parts, left)
    aims = {
        job.job_id: min(job.most, max(job.floor, parts[job.job_id]) + grown[job.job_id])
        for job in jobs
    }
    ceilings = _moved(jobs, aims, source)
    return {
        job.job_id: Judgement(
            ceiling=ceilings[job.job_id],
            is_hungry=(
                source.is_held_back(job) and ceilings[job.job_id] < job.most * (1 - source.few)
            ),
        )
        for job in jobs
    }


def _growth(jobs: Sequence[Borrower], parts: Mapping[int, float], left: float) -> dict[int, float]:
    """Divide what nobody could use now as room to grow, by floors."""
    room = [max(0.0, job.most - max(parts[job.job_id], job.floor)) for job in jobs]
    grown = by_weight(left, [job.floor for job in jobs], room)
    return {job.job_id: more for job, more in zip(jobs, grown, strict=True)}


def _moved(jobs: Sequence[Borrower], aims: Mapping[int, float], source: Source) -> dict[int, float]:
    """Return the ceilings, moved towards the aims: up by steps, down at once where others need it,
    and not at all where it would make little difference."""
    few, floors = source.few, sum(job.floor for job in jobs)
    kept = {job.job_id: max(job.ceiling, aims[job.job_id]) for job in jobs}
    is_crowded = sum(kept.values()) > max(source.room, floors) * (1 + few)
    found = {}
    for job in jobs:
        aim, now = aims[job.job_id], min(max(job.ceiling, job.floor), job.most)
        if abs(aim - now) <= few * now or (aim < now and not is_crowded):
            found[job.job_id] = now
        else:
            found[job.job_id] = min(aim, now * _RISE)
    if sum(found.values()) > max(source.bound, floors):
        return {job_id: min(ceiling, aims[job_id]) for job_id, ceiling in found.items()}
    return found


#: The root has no siblings, so nothing is compared with it.
_ROOT = Node(entitled=1.0, held=0.0)


def node_of(claims: Mapping[str, Sequence[Claim]], places: Mapping[str, Node]) -> Node:
    """Return the tree of these nodes, with the claims of the jobs of each leaf, by its path.
    `places` are as in `judge`."""
    children: dict[str, list[str]] = {}
    for path in places:
        children.setdefault(parent_of(path), []).append(path)

    def node(path: str) -> Node:
        below = {each: node(each) for each in sorted(children.get(path, ()))}
        return replace(places.get(path, _ROOT), below=below, claims=claims.get(path, ()))

    return node(TOP)


def places_of(
    shares: FairShare, used: Mapping[str, Vector], axis: int, unit: int = 1
) -> dict[str, Node]:
    """Return all nodes with running jobs, by path, without the root and what is below each, for
    lending the resource of one axis. `used` is what each leaf holds; its amount on the axis is not
    considered, as what is measured takes its place. Amounts of the result are in units of so many
    of the axis's own."""
    tree = shares.share_tree(used, ())
    top = shares.capacity[axis] / unit
    found = {}
    for path, node in tree.nodes.items():
        if path == TOP:
            continue
        amounts = zip(tree.used[path], shares.capacity, node.entitled, strict=True)
        held = [
            amount / capacity / float(part) if part else inf
            for at, (amount, capacity, part) in enumerate(amounts)
            if at != axis and capacity > 0 and amount > 0
        ]
        entitled = float(node.entitled[axis]) * top
        found[path] = Node(entitled=entitled, held=max(held, default=0.0))
    return found
