"""What the configuration decides for the core: capacity, pools, weights, bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction

from drfd.core.fairshare import FairShare
from drfd.core.job import leaf_path
from drfd.core.preemption import Preempting
from drfd.core.reservation import Patience
from drfd.core.resources import Axes, Resources, Vector, kind_of
from drfd.core.tree import NodeRule
from drfd.errors import NotPermitted, Refused

ROOT = "root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the configuration gives a node of the tree. Axes by name; what is left out is plain."""

    weight: Fraction = Fraction(1)
    #: Weights of single resources, in place of `weight`.
    weights: Mapping[str, Fraction] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    guarantee: Mapping[str, int] = field(default_factory=dict)

    def rule(self, axes: Axes) -> NodeRule:
        # What is said of "read" holds for each disk of which nothing is said.
        names = [(name, kind_of(name)) for name in axes.names]
        weights, limit, guarantee = self.weights, self.limit, self.guarantee
        return NodeRule(
            weights=tuple(
                weights.get(name, weights.get(kind, self.weight)) for name, kind in names
            ),
            limit=tuple(limit.get(name, limit.get(kind)) for name, kind in names)
            if limit
            else None,
            guarantee=tuple(guarantee.get(name, guarantee.get(kind, 0)) for name, kind in names)
            if guarantee
            else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Claim):
    #: Whose jobs it takes; None: of anyone who names it.
    users: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    axes: Axes = field(default_factory=Axes)
    capacity: Resources
    #: By dotted name below the root: "lab", "lab.night".
    pools: Mapping[str, Pool] = field(default_factory=dict)
    #: What single users are given: (pool, user); the pool "" for users in none.
    members: Mapping[tuple[str, str], Claim] = field(default_factory=dict)
    #: TERM, then this long, then KILL.
    grace_s: int = 10
    max_waiting_per_user: int = 200_000
    #: How long the texts of these may be together: they are kept in memory.
    max_letters_per_user: int = 256 << 20
    #: How much their environments and scripts may have, those that are alike counted once: they
    #: are kept in the journal until the jobs are over.
    max_kept_bytes_per_user: int = 256 << 20
    #: When a waiting job gets a reservation.
    patience: Patience = field(default_factory=Patience)
    #: One of `core.policies.CONFIGURABLE`.
    policy: str = "drf"
    #: Under the policy "slots", how many jobs may run at once; None: as many as there are cores.
    slots: int | None = None
    #: None: nobody is ever stopped for somebody else.
    preempting: Preempting | None = None
    #: How fast usage is forgotten, where it decides a tie.
    half_life_s: int = 7 * 86400
    #: A job counts as held for so long from its start, in fairness; 0: only while it runs.
    min_hold_s: int = 10
    #: Cores and memory that the machine has besides its capacity, for processes outside drfd;
    #: None: what these use does not matter.
    beside: Resources | None = None

    def __post_init__(self) -> None:
        vector = self.axes.vector(self.capacity)
        rules = {f"{ROOT}.{name}": pool.rule(self.axes) for name, pool in self.pools.items()}
        for (pool, user), claim in self.members.items():
            above = f"{ROOT}.{pool}" if pool else f"{ROOT}.{user}"
            rules[leaf_path(above, user)] = claim.rule(self.axes)
        object.__setattr__(self, "room", vector)
        object.__setattr__(self, "shares", FairShare(vector, rules))

    room: Vector = field(init=False, compare=False)
    shares: FairShare = field(init=False, compare=False)

    def also_for(self, demands: Iterable[Resources]) -> Rules:
        """The same rules, with axes also for the disks and countables that are asked for and that
        the machine has no more: what waits for them must not start without."""
        disks, gres = set[str](), set[str]()
        for demand in demands:
            disks.update(demand.used_disks)
            gres.update(name for name, _ in demand.gres)
        lost = tuple(sorted(disks.difference(self.axes.disks)))
        no_more = tuple(sorted(gres.difference(self.axes.gres)))
        if not lost and not no_more:
            return self
        return replace(self, axes=replace(self.axes, lost=lost, gres=(*self.axes.gres, *no_more)))

    @property
    def lost_gres(self) -> tuple[str, ...]:
        """Countables that the machine has no more, and jobs still name."""
        there = {name for name, _ in self.axes.instances}
        return tuple(name for name in self.axes.gres if name not in there)

    @property
    def slot_count(self) -> int:
        return self.slots or max(1, self.capacity.cores_milli // 1000)

    def pool_for(self, user: str, pool: str | None) -> str:
        """The pool that pays for a job of `user`, who may have named one."""
        found = self._pool_for(user, pool)
        clash = leaf_path(found, user).removeprefix(f"{ROOT}.")
        if clash in self.pools and not self._is_alone(user, clash):
            raise Refused(
                "name-clash",
                f"the pool {clash} has your name: your jobs could not be told from those of others",
                hint="the administrator can rename it, or you can name another with -p",
            )
        return found

    def _is_alone(self, user: str, name: str) -> bool:
        """Does the pool take nobody's jobs but this user's?"""
        below = any(other.startswith(f"{name}.") for other in self.pools)
        return self.pools[name].users == frozenset({user}) and not below

    def _pool_for(self, user: str, pool: str | None) -> str:
        if pool is None:
            mine = (name for name, each in self.pools.items() if user in (each.users or ()))
            return f"{ROOT}.{next(mine, user)}"
        name = pool.removeprefix(f"{ROOT}.")
        if name not in self.pools:
            # Outside their pool, its members have no leaf of their own.
            if name == user and not any(user in (each.users or ()) for each in self.pools.values()):
                return f"{ROOT}.{user}"
            near = get_close_matches(name, self.pools, 1)
            known = ", ".join(sorted(self.pools)) or "none"
            hint = f"did you mean {near[0]}?" if near else f"configured pools: {known}"
            raise Refused("no-such-pool", f"there is no pool {name!r}", hint=hint)
        users = self.pools[name].users
        if users is not None and user not in users:
            raise NotPermitted("not-in-pool", f"pool {name} does not take jobs of {user}")
        return f"{ROOT}.{name}"
