"""Lending: which running jobs may use more than their floor for now, and how much.

A job has a floor, which it declares, and an upper end, up to which it may be lent what others leave
idle. Its ceiling is between; once a second it is decided from measured use (`judge`). What is lent
is an amount of one kind: cores (`MachineCores`), or the rate of a disk (`DiskRate`). Amounts are
real numbers, since they are measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import inf
from typing import ClassVar

from drfd.common.units import AXES, show_amount
from drfd.core.fairness.share_tree import FairShare, parent_of, path_up, ways_apart
from drfd.core.model.job import ROOT
from drfd.core.model.machine import Vector

#: The factor by which a ceiling may rise in a step.
_RISE = 2.0
#: By how much more than they have used a job, and processes outside drfd, are expected to use next,
#: if nothing held them back: a factor, and of cores outside and of disk rates also an amount.
_MORE, _MORE_OUTSIDE, _MORE_BPS = 1.3, 0.05, float(1 << 20)
#: The part of the machine that must be in use for it to count as full, and the part of its floor
#: that a job must then use to count as held back: there is no other sign of it on cgroup v1.
_FULL, _MOST_OF_FLOOR = 0.93, 0.9
#: The part of its floor that a job must use on a full machine to count as one that others keep from
#: using all of its floor.
_LEAST_OF_FLOOR = 0.5
#: The part of a disk's rate up to which it is lent. The rest is for jobs that start or resume
#: before the next judgement, and for processes outside drfd.
_LENT = 0.9
#: The part of its ceiling that a job must use of a disk to count as held back: requests are large
#: beside the rate of a second.
_MOST_OF_CEILING = 0.9
#: The least entitlement that is reckoned with: a node with none is served after all others.
_LEAST = 1e-9
#: Amounts below this are rounding errors.
_NOTHING = 1e-9
#: Satisfactions that differ by less than this part are alike: ceilings are not moved by less.
_FEW = 0.05
#: The most users that are named.
_NAMED = 3


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


# -- what there is to lend -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCores:
    """The cores of a machine. The kernel's weights, which stand for the floors, give a job that
    wakes up its floor at once. So what a job leaves of its floor is lent to others meanwhile, and
    ceilings together may exceed what there is. Processes outside drfd come first."""

    #: All that jobs may have.
    capacity: float
    #: The use by processes outside drfd, beyond what the machine has besides its capacity.
    outside: float
    #: The part of all cores that is in use, by whomever, or that a hypervisor withholds.
    busy: float

    #: A ceiling is moved only by more than this part of itself.
    few: ClassVar[float] = 0.04
    #: What all ceilings together may never exceed, but where the floors alone do.
    bound: ClassVar[float] = inf

    @property
    def room(self) -> float:
        """What is there for the jobs that are judged."""
        is_some = self.outside > _MORE_OUTSIDE
        wanted = self.outside * _MORE + _MORE_OUTSIDE if is_some else self.outside
        return max(0.0, self.capacity - wanted)

    def is_held_back(self, job: Borrower) -> bool:
        """Return whether the job could use more than its ceiling, or its floor, lets it."""
        return job.is_throttled or self._uses(job, _MOST_OF_FLOOR)

    def wanted(self, job: Borrower) -> float:
        """Return what the job could use now, as far as one can tell."""
        if self.is_held_back(job):
            return job.most
        # Weights hold on each CPU by itself: a job that shares its CPU with a thread of a borrower
        # gets less than its floor, at least half of it. Were that all that it could use, the
        # borrower would be lent the rest, and take it for as long as it runs.
        return max(job.floor if self._uses(job, _LEAST_OF_FLOOR) else 0.0, job.used * _MORE)

    def _uses(self, job: Borrower, part: float) -> bool:
        return self.busy >= _FULL and job.used >= part * job.floor


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRate:
    """The reads or the writes of a disk, in bytes per second. Disks have no weights that would give
    a job its floor back when it wakes up. So a floor is kept for its job even while nobody uses it,
    and all ceilings together stay below the rate of the disk. Nobody counts how often a ceiling has
    held a job back."""

    #: All that jobs may have.
    rate: float
    #: The ceilings of all other jobs that may use it.
    fixed: float

    few: ClassVar[float] = 0.1

    @property
    def room(self) -> float:
        return max(0.0, _LENT * self.rate - self.fixed)

    @property
    def bound(self) -> float:
        return self.room

    def is_held_back(self, job: Borrower) -> bool:
        return job.used >= _MOST_OF_CEILING * job.ceiling

    def wanted(self, job: Borrower) -> float:
        if self.is_held_back(job):
            return job.most
        return max(job.floor, job.used * _MORE + _MORE_BPS)


#: What is lent, in its unit.
Source = MachineCores | DiskRate


# -- division --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    job_id: int
    #: What the job gets in any case, and the most that it could use; not less than `least`.
    least: float
    most: float
    #: Among the jobs of its leaf, what goes beyond `least` is divided in proportion to this.
    weight: float


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    """A node of the fair-share tree with running jobs: a pool, or a user's leaf."""

    #: The amount of the resource that it is promised. Above zero if its weights are.
    entitled: float
    #: Its satisfaction by the other resources that its jobs hold: 1 is what it is promised.
    held: float
    #: Its children, or the claims of a leaf's own jobs.
    below: Mapping[str, TreeNode] = field(default_factory=dict)
    claims: Sequence[Claim] = ()

    @cached_property
    def least(self) -> float:
        return sum(each.least for each in self._parts)

    @cached_property
    def most(self) -> float:
        return sum(each.most for each in self._parts)

    @property
    def _parts(self) -> list[TreeNode | Claim]:
        return [*self.below.values(), *self.claims]

    def at(self, level: float, is_after: int) -> float:
        """Return what the node has when everybody is served up to a level of satisfaction. At the
        level at which it holds the other resources it jumps: the part is that after the jump if
        `is_after`."""
        if (level, is_after) < (self.held, 1):
            return self.least
        return min(self.most, max(self.least, level * max(self.entitled, _LEAST)))

    def turns(self) -> Iterator[tuple[float, int]]:
        """Yield the arguments of `at` between which it is a straight line, or a jump."""
        entitled = max(self.entitled, _LEAST)
        for level in (self.held, self.least / entitled, self.most / entitled):
            yield max(level, self.held), 0
            yield max(level, self.held), 1


def divide(node: TreeNode, amount: float) -> dict[int, float]:
    """Return what each job below the node gets of the amount, by its id. The parts sum to the
    amount, or to less when every job has all that it could use, or to more when what they get in
    any case is more.

    Each job gets what it uses of its floor. The rest goes to the least satisfied nodes first, as
    with launches (`core.fairness.service_order`). A node's satisfaction also counts all that its
    jobs hold of other resources: the holder of most memory is lent cores last.
    """
    parts: dict[int, float] = {}
    if node.below:
        children = list(node.below.values())
        for child, part in zip(children, _among(children, amount), strict=True):
            parts |= divide(child, part)
        return parts
    room = [claim.most - claim.least for claim in node.claims]
    more = by_weight(amount - node.least, [claim.weight for claim in node.claims], room)
    for claim, extra in zip(node.claims, more, strict=True):
        parts[claim.job_id] = claim.least + extra
    return parts


def _among(children: Sequence[TreeNode], amount: float) -> list[float]:
    if amount >= sum(child.most for child in children) - _NOTHING:
        return [child.most for child in children]
    if amount <= sum(child.least for child in children) + _NOTHING:
        return [child.least for child in children]

    turns = sorted({(0.0, 0), *chain.from_iterable(child.turns() for child in children)})
    at = bisect_left(turns, True, key=lambda turn: sum(c.at(*turn) for c in children) >= amount)
    if at == len(turns):
        # Of large amounts, such as bytes, the last turn may be a rounding error below the sum.
        return [child.most for child in children]
    # Between two turns all get more in proportion. At a jump that makes none of them more
    # satisfied.
    low, high = ([child.at(*turn) for child in children] for turn in turns[at - 1 : at + 1])
    part = (amount - sum(low)) / (sum(high) - sum(low))
    return [less + (more - less) * part for less, more in zip(low, high, strict=True)]


def by_weight(amount: float, weights: Sequence[float], room: Sequence[float]) -> list[float]:
    """Divide the amount in proportion to the weights, nobody getting more than there is room."""
    parts = [0.0] * len(room)
    left = [at for at, most in enumerate(room) if most > _NOTHING]
    while left and amount > _NOTHING:
        unit = amount / sum(weights[at] for at in left)
        full = [at for at in left if room[at] <= weights[at] * unit]
        if not full:
            for at in left:
                parts[at] = weights[at] * unit
            break
        for at in full:
            parts[at] = room[at]
            amount -= room[at]
        left = [at for at in left if at not in full]
    return parts


def node_of(claims: Mapping[str, Sequence[Claim]], places: Mapping[str, TreeNode]) -> TreeNode:
    """Return the tree of these nodes, with the claims of the jobs of each leaf, by its path.
    `places` are as in `judge`."""
    children: dict[str, list[str]] = {}
    for path in places:
        children.setdefault(parent_of(path), []).append(path)
    # The root has no siblings, so nothing is compared with it.
    root = TreeNode(entitled=1.0, held=0.0)

    def node(path: str) -> TreeNode:
        below = {each: node(each) for each in sorted(children.get(path, ()))}
        return replace(places.get(path, root), below=below, claims=claims.get(path, ()))

    return node(ROOT)


def places_of(
    shares: FairShare, used: Mapping[str, Vector], axis: int, unit: int = 1
) -> dict[str, TreeNode]:
    """Return all nodes with running jobs, by path, without the root and what is below each, for
    lending the resource of one axis. `used` is what each leaf holds; its amount on the axis is not
    considered, as what is measured takes its place. Amounts of the result are in units of so many
    of the axis's own."""
    tree = shares.share_tree(used, ())
    top = shares.capacity[axis] / unit
    found = {}
    for path in tree.charged:
        parts = tree.entitled(path)
        amounts = enumerate(zip(tree.charged[path], shares.capacity, parts, strict=True))
        held = [
            amount / capacity / float(part) if part else inf
            for at, (amount, capacity, part) in amounts
            if at != axis and capacity > 0 and amount > 0
        ]
        found[path] = TreeNode(entitled=float(parts[axis]) * top, held=max(held, default=0.0))
    return found


# -- judgement -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    ceiling: float
    #: Whether it could use more than it may.
    is_hungry: bool


def judge(
    jobs: Sequence[Borrower], source: Source, places: Mapping[str, TreeNode]
) -> dict[int, Judgement]:
    """Return the ceilings for the next second, by job. `places` are the nodes of the tree in which
    there are jobs, by path, without the root.

    First all get what they could use; what is left is to grow into. The ceiling is never below the
    floor, and the others are lent what a job leaves of its floor.
    """
    claims: dict[str, list[Claim]] = {}
    for job in jobs:
        most = min(job.most, source.wanted(job))
        claim = Claim(job_id=job.job_id, least=min(most, job.floor), most=most, weight=job.floor)
        claims.setdefault(job.leaf, []).append(claim)
    divided = divide(node_of(claims, places), source.room)
    parts = [max(divided[job.job_id], job.floor) for job in jobs]
    room = [max(0.0, job.most - part) for job, part in zip(jobs, parts, strict=True)]
    grown = by_weight(source.room - sum(parts), [job.floor for job in jobs], room)
    aims = [min(job.most, part + more) for job, part, more in zip(jobs, parts, grown, strict=True)]
    ceilings = _moved(jobs, aims, source)
    return {
        job.job_id: Judgement(
            ceiling=ceiling,
            is_hungry=source.is_held_back(job) and ceiling < job.most * (1 - source.few),
        )
        for job, ceiling in zip(jobs, ceilings, strict=True)
    }


def _moved(jobs: Sequence[Borrower], aims: Sequence[float], source: Source) -> list[float]:
    """Return the ceilings, moved towards the aims: up by steps, down at once where others need it,
    and not at all where it would make little difference."""
    few, floors = source.few, sum(job.floor for job in jobs)
    kept = sum(max(job.ceiling, aim) for job, aim in zip(jobs, aims, strict=True))
    is_crowded = kept > max(source.room, floors) * (1 + few)
    ceilings = []
    for job, aim in zip(jobs, aims, strict=True):
        now = min(max(job.ceiling, job.floor), job.most)
        stays = abs(aim - now) <= few * now or (aim < now and not is_crowded)
        ceilings.append(now if stays else min(aim, now * _RISE))
    if sum(ceilings) > max(source.bound, floors):
        return list(map(min, ceilings, aims))
    return ceilings


# -- who keeps a job from being lent more ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rivals:
    """Other users who could use more of what is lent than they may, by name."""

    everybody: tuple[str, ...] = ()
    #: Those of them who hold less, and so are served first.
    poorer: tuple[str, ...] = ()


NO_RIVALS = Rivals()


def find_rivals(
    jobs: Sequence[tuple[str, Borrower]],
    found: Mapping[int, Judgement],
    places: Mapping[str, TreeNode],
) -> dict[tuple[str, str], Rivals]:
    """Return the rivals of users whose jobs could use more, by user and leaf. `jobs` come with
    their users; `found` and `places` are those of `judge`."""
    amounts: dict[str, float] = {}
    for _, job in jobs:
        for path in path_up(job.leaf):
            amounts[path] = amounts.get(path, 0.0) + found[job.job_id].ceiling
    #: The satisfaction of each node, by what its jobs may use.
    levels = dict[str, float]()
    for path, amount in amounts.items():
        held, entitled = places[path].held, places[path].entitled
        levels[path] = max(held, amount / entitled if entitled > 0 else inf)

    def is_poorer(leaf: str, than: str) -> bool:
        mine, theirs = ways_apart(leaf, than)
        return bool(mine and theirs) and levels[mine[-1]] < levels[theirs[-1]] * (1 - _FEW)

    hungry = sorted({(user, job.leaf) for user, job in jobs if found[job.job_id].is_hungry})
    rivals = {}
    for user, leaf in hungry:
        others = [(other, at) for other, at in hungry if other != user]
        poorer = {other for other, at in others if is_poorer(at, leaf)}
        everybody = {other for other, _ in others}
        rivals[user, leaf] = Rivals(tuple(sorted(everybody)), tuple(sorted(poorer)))
    return rivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What a running job may use now of its range on one axis, in the units of `Resources`."""

    #: "cores", or "read:data" also where there is only one disk.
    axis: str
    floor: int
    ceiling: int
    #: The end of the range, or the machine's capacity if that is less.
    most: int
    #: Whether it could use more than it may, and who else could.
    is_hungry: bool
    rivals: Rivals = NO_RIVALS


def loan_text(loan: Loan, asked: int, *, names_disk: bool = False) -> str:
    """Describe a loan: "may use 5 cores now, 3 of them lent: bob, who holds less, wants more too",
    "may read 40M/s on data now, 30M/s of that lent: bob wants more too". `asked` is the end of the
    job's range."""
    kind, _, disk = loan.axis.partition(":")
    # Cores are told in hundredths.
    step = AXES[kind].scale // 100 or 1
    now, lent = (
        show_amount(kind, round(amount / step) * step)
        for amount in (loan.ceiling, max(0, loan.ceiling - loan.floor))
    )
    if kind == "cores":
        text = f"may use {now} {'core' if now == '1' else 'cores'} now"
        lent, rest = f"{lent} of them lent", "the others are in use"
    else:
        text = f"may {kind} {now}{f' on {disk}' if names_disk else ''} now"
        lent, rest = f"{lent} of that lent", "the rest is in use or kept free"
    text += f", {lent}" if loan.ceiling > loan.floor else ", its floor"
    if loan.ceiling >= loan.most:
        return f"{text}: all that {'it asked for' if loan.most >= asked else 'there is'}"
    return text + (_why(loan.rivals, rest) if loan.is_hungry else "")


def _why(rivals: Rivals, rest: str) -> str:
    """Say why a job that could use more is not lent more. `rest` says it where nobody else could
    use more."""
    users = rivals.poorer or rivals.everybody
    if not users:
        return f": {rest}"
    left = len(users) - _NAMED
    names = [*users[:_NAMED], f"{left} more {'user' if left == 1 else 'users'}"][: len(users)]
    who = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    is_one = len(users) == 1
    less = f", who {'holds' if is_one else 'hold'} less," if rivals.poorer else ""
    return f": {who}{less} {'wants' if is_one else 'want'} more too"
