"""The judgement of lending, once a second: from measured use to the ceilings of running jobs.

A job has a floor, which it declares and is promised at every moment, and a most, up to which it may
be lent what others leave idle. Its ceiling is somewhere between. The kernel's weights, which stand
for the floors, see to it that a job which wakes up has its floor at once; ceilings decide about the
rest.

What a job could use is not known, only what it has used: one that was held back by its ceiling
could use all that it may be lent, any other a little more than it has used. Processes outside drfd
are reckoned in the same way and come first, so nothing is lent that they would miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drfd.core.fairness.share_tree import TOP, parent_of
from drfd.core.lending.division import Claim, Node, divide

#: By how much more than it has used a job is expected to use next, if nothing held it back: a
#: factor, and for one that has used nearly nothing an amount, in cores.
_MORE, _LEAST_MORE = 1.3, 0.05
#: The part of the machine that must be in use for it to count as full, and the part of its floor
#: that a job must then use to count as held back: there is no other sign of it on cgroup v1.
_FULL, _MOST_OF_FLOOR = 0.93, 0.9
#: A ceiling is moved only by more than this part of itself.
_FEW = 0.04
#: The factor by which a ceiling may rise in a step.
_RISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrower:
    """A running job, with what was measured of it since the last judgement. In cores."""

    job_id: int
    leaf: str
    floor: float
    #: The most that it may be lent; not less than the floor.
    most: float
    #: The ceiling that it has.
    ceiling: float
    used: float
    #: Whether its ceiling has held it back.
    is_throttled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to lend from. In cores."""

    #: All that jobs may have.
    capacity: float
    #: The use by processes outside drfd, beyond what the machine has besides its capacity.
    outside: float
    #: The part of all cores that is in use, by whomever.
    busy: float

    @property
    def is_full(self) -> bool:
        return self.busy >= _FULL

    @property
    def room(self) -> float:
        """What is there for jobs, if processes outside come first and may want more."""
        wanted = self.outside * _MORE + _LEAST_MORE if self.outside > _LEAST_MORE else self.outside
        return max(0.0, self.capacity - wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the fair-share tree says of a node with running jobs."""

    #: The cores that it is promised.
    entitled: float
    #: Its satisfaction by the other resources that its jobs hold.
    held: float


#: The root has no siblings, so nothing is compared with it.
_ROOT = Place(entitled=1.0, held=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result for one job. In cores."""

    ceiling: float
    #: Whether it could use more than it may.
    is_hungry: bool


def wanted(job: Borrower, machine: Machine) -> float:
    """Return what the job could use now, as far as one can tell."""
    if is_held_back(job, machine):
        return job.most
    return min(job.most, job.used * _MORE + _LEAST_MORE)


def is_held_back(job: Borrower, machine: Machine) -> bool:
    if job.is_throttled:
        return True
    return machine.is_full and job.used >= _MOST_OF_FLOOR * job.floor


def judge(
    jobs: Sequence[Borrower], machine: Machine, places: Mapping[str, Place]
) -> dict[int, Judgement]:
    """Return the ceilings for the next second, by job. `places` are the nodes of the tree in
    which there are jobs, by path, without the root.

    Together the ceilings are no more than there is, but where the floors alone are. First all get
    what they could use, as far as that goes; what is left then is their room to grow.
    """
    want = {job.job_id: wanted(job, machine) for job in jobs}
    claims = {
        job.job_id: Claim(
            job_id=job.job_id,
            least=min(want[job.job_id], job.floor),
            most=want[job.job_id],
            weight=job.floor,
        )
        for job in jobs
    }
    tree = _tree(jobs, claims, places)
    parts = divide(tree, machine.room)
    left = machine.room - sum(max(parts[job.job_id], job.floor) for job in jobs)
    grown = _growth(jobs, parts, left)
    aims = {
        job.job_id: min(job.most, max(job.floor, parts[job.job_id]) + grown[job.job_id])
        for job in jobs
    }
    ceilings = _moved(jobs, aims, machine.room)
    return {
        job.job_id: Judgement(
            ceiling=ceilings[job.job_id],
            is_hungry=(is_held_back(job, machine) and ceilings[job.job_id] < job.most * (1 - _FEW)),
        )
        for job in jobs
    }


def _growth(jobs: Sequence[Borrower], parts: Mapping[int, float], left: float) -> dict[int, float]:
    """Divide what nobody could use now as room to grow, by floors."""
    claims = [
        Claim(
            job_id=job.job_id,
            least=0.0,
            most=max(0.0, job.most - max(parts[job.job_id], job.floor)),
            weight=job.floor,
        )
        for job in jobs
    ]
    return divide(Node(entitled=1.0, held=0.0, claims=claims), max(0.0, left))


def _moved(jobs: Sequence[Borrower], aims: Mapping[int, float], room: float) -> dict[int, float]:
    """Return the ceilings, moved towards the aims: up by steps, down at once where others need it,
    and not at all where it would make little difference."""
    kept = {job.job_id: max(job.ceiling, aims[job.job_id]) for job in jobs}
    is_crowded = sum(kept.values()) > max(room, sum(job.floor for job in jobs)) * (1 + _FEW)
    found = {}
    for job in jobs:
        aim, now = aims[job.job_id], min(max(job.ceiling, job.floor), job.most)
        if abs(aim - now) <= _FEW * now or (aim < now and not is_crowded):
            found[job.job_id] = now
        else:
            found[job.job_id] = min(aim, now * _RISE)
    return found


def _tree(
    jobs: Sequence[Borrower],
    claims: Mapping[int, Claim],
    places: Mapping[str, Place],
) -> Node:
    own: dict[str, list[Claim]] = {}
    for job in jobs:
        own.setdefault(job.leaf, []).append(claims[job.job_id])
    children: dict[str, list[str]] = {}
    for path in places:
        children.setdefault(parent_of(path), []).append(path)

    def node(path: str) -> Node:
        place = places.get(path, _ROOT)
        return Node(
            entitled=place.entitled,
            held=place.held,
            below={each: node(each) for each in sorted(children.get(path, ()))},
            claims=own.get(path, ()),
        )

    return node(TOP)
