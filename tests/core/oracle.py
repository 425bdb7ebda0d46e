"""A slow scheduling pass over a tree, from docs/fairness.md 1.1 to 1.3, without any code of drfd.

Everything is computed anew at each step, in fractions. Where the text leaves a choice:

- which job is next in an inner node is not said, so that no order is defined between it and a
  sibling that is as satisfied and has used as much, nor among nodes that hold what they are
  promised nothing of: `Pass.choices` gives all launches that the text allows, and a `guide` chooses
  among them;
- guarantees that sum to more than there is are cut in proportion;
- of the heads that have waited too long and do not fit, the one that has waited longest closes its
  leaf, in both phases, until something is kept for it;
- a drain begins when the first shadow time that was given is past by `drain_after`;
- of what reservations keep idle, the first jobs of each demand of a leaf take their part in the
  order of priority and age, and each is charged to the first reservation that it would delay;
- what a limit keeps back is kept for below that node, at all limited nodes up to it; one place at
  each node, and one on the machine, which is the node "root"; the outer ones come first.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import NamedTuple

Vector = tuple[int, ...]
Level = tuple[int, Fraction]
Turn = tuple[Level, float, int, str]

#: The satisfaction of a node that holds something of which it is promised nothing.
BEYOND: Level = (1, Fraction(0))
UNLIMITED = 10**18


@dataclass(frozen=True)
class Rule:
    """Of one node: entries per axis."""

    weights: Sequence[Fraction] | None = None
    limit: Sequence[int | None] | None = None
    guarantee: Sequence[int] | None = None


@dataclass(frozen=True)
class Tree:
    capacity: Vector
    rules: Mapping[str, Rule] = field(default_factory=dict)


class Ask(NamedTuple):
    """A waiting job."""

    leaf: str
    demand: Vector
    priority: int = 0
    #: Since when it waits, and how long it will run as estimated; seconds.
    since_s: float = 0
    length_s: float = 0


class Kept(NamedTuple):
    """What is kept for a big job: its shadow time and the extra then, of each node that counts."""

    job_id: int
    #: The node below which others are held back.
    within: str
    shadow_s: float
    extras: Mapping[str, Vector]
    drains: bool
    #: The first shadow time that was given.
    due_s: float


class Debt(NamedTuple):
    """What a leaf's reservations have kept idle beyond its share; in billionths of the machine,
    rounded down, times seconds."""

    owed: int
    #: What they keep idle now, and what the leaf is promised, per second.
    idle: int
    promised: int


class Times(NamedTuple):
    now_s: float
    patience_s: float
    drain_after_s: float
    #: When the running jobs end as estimated, their leaves, and what each gives back.
    ends: Sequence[tuple[float, str, Vector]]
    #: The reservations of the pass before.
    before: Sequence[Kept] = ()
    #: Jobs that ask for at most this part of what the reserved one asks for pass it.
    passes: Fraction = Fraction(0)
    #: The debts after the pass before, how long ago that was, and the time for which a leaf may owe
    #: what it is promised.
    debts: Mapping[str, Debt] = {}
    since_s: int = 0
    allowance_s: int = UNLIMITED


def above(path: str) -> str:
    return path[: path.rindex(".")]


def line(leaf: str) -> list[str]:
    """The leaf and all above it but the root."""
    names = leaf.split(".")
    return [".".join(names[:end]) for end in range(len(names), 1, -1)]


def added(left: Vector, right: Vector) -> Vector:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def taken(left: Vector, right: Vector) -> Vector:
    return tuple(a - b for a, b in zip(left, right, strict=True))


def within(demand: Vector, room: Sequence[int]) -> bool:
    return all(asked <= there or not asked for asked, there in zip(demand, room, strict=True))


# -- promises (docs/fairness.md 1.1) -------------------------------------------------------------


def shared_out(
    whole: Fraction, claims: Sequence[tuple[Fraction, Fraction, Fraction | None]]
) -> list[Fraction]:
    """`whole` for claims of (weight, least, most): give out by weight, fix those whose bound was
    hurt, in the direction that was hurt more, and begin again with the others."""
    least = sum((low for _, low, _ in claims), Fraction(0))
    if least >= whole:
        return [whole * low / least if least else Fraction(0) for _, low, _ in claims]
    fixed: dict[int, Fraction] = {}
    while len(fixed) < len(claims):
        loose = [at for at in range(len(claims)) if at not in fixed]
        weight = sum(claims[at][0] for at in loose)
        left = whole - sum(fixed.values())
        wish = {at: left * claims[at][0] / weight for at in loose}
        given = {}
        for at in loose:
            _, low, high = claims[at]
            given[at] = max(wish[at], low) if high is None else min(max(wish[at], low), high)
        hurt = sum(given.values()) - sum(wish.values())
        if hurt == 0:
            fixed |= given
        for at in loose:
            if (given[at] - wish[at]) * hurt > 0:
                fixed[at] = given[at]
    return [fixed[at] for at in range(len(claims))]


def promises(tree: Tree, leaves: set[str]) -> dict[str, list[Fraction]]:
    """What each node is promised of the machine, per axis, while `leaves` are active."""
    active = sorted({path for leaf in leaves for path in line(leaf)})
    axes = range(len(tree.capacity))
    found: dict[str, list[Fraction]] = {"root": [Fraction(1) for _ in axes]}

    def claim(path: str, axis: int) -> tuple[Fraction, Fraction, Fraction | None]:
        rule, top = tree.rules.get(path, Rule()), tree.capacity[axis]
        weight = rule.weights[axis] if rule.weights else Fraction(1)
        if not top:
            return weight, Fraction(0), None
        low = min(rule.guarantee[axis], top) if rule.guarantee else 0
        high = rule.limit[axis] if rule.limit else None
        return weight, Fraction(low, top), None if high is None else Fraction(min(high, top), top)

    for depth in range(1, 1 + max((path.count(".") for path in active), default=0)):
        here = [path for path in active if path.count(".") == depth]
        for parent in sorted({above(path) for path in here}):
            children = [path for path in here if above(path) == parent]
            columns = [
                shared_out(found[parent][axis], [claim(child, axis) for child in children])
                for axis in axes
            ]
            for at, child in enumerate(children):
                found[child] = [column[at] for column in columns]
    return found


# -- the pass (docs/fairness.md 1.2, 1.3) --------------------------------------------------------


@dataclass
class Pass:
    tree: Tree
    waiting: dict[int, Ask]
    held: dict[str, Vector]
    past_usage: Mapping[str, float]
    times: Times | None
    promised: dict[str, list[Fraction]]
    #: The launches of another pass, to be followed where the text leaves a choice.
    guide: Sequence[int] = ()
    launches: list[int] = field(default_factory=list)
    #: So many launches came before a choice of who gets the reservation; None: there was none.
    sure: int | None = None
    kept: list[Kept] = field(default_factory=list)
    #: The job that closes its leaf, and the node where something must be kept for it.
    starvation_guard: int | None = None
    _guard_place: str | None = None
    #: Leaves whose heads were kept back by a limit when the phase began, or when they came first.
    _limited: set[str] = field(default_factory=set)
    _given: list[tuple[float, str, Vector]] = field(default_factory=list)

    @property
    def free(self) -> Vector:
        return tuple(
            top - sum(held[axis] for held in self.held.values())
            for axis, top in enumerate(self.tree.capacity)
        )

    def usage(self, path: str) -> Vector:
        below = [held for leaf, held in self.held.items() if path in line(leaf)]
        return tuple(sum(held[axis] for held in below) for axis in range(len(self.tree.capacity)))

    def level(self, path: str) -> Level:
        """Satisfaction: the largest part of what is held over what is promised."""
        most = Fraction(0)
        for amount, top, part in zip(
            self.usage(path), self.tree.capacity, self.promised[path], strict=True
        ):
            if top and amount:
                if not part:
                    return BEYOND
                most = max(most, Fraction(amount, top) / part)
        return 0, most

    def keeps_promise(self, path: str, demand: Vector) -> bool:
        """Would the node hold no more than it is promised, with `demand` more?"""
        after = added(self.usage(path), demand)
        return all(
            amount <= part * top
            for amount, part, top in zip(
                after, self.promised[path], self.tree.capacity, strict=True
            )
            if top
        )

    def limit(self, path: str) -> Vector | None:
        limit = self.tree.rules.get(path, Rule()).limit
        if limit is None:
            return None
        return tuple(UNLIMITED if most is None else most for most in limit)

    def room(self, path: str) -> Vector | None:
        """What the node may hold more; None: it has no limit."""
        if path == "root":
            return self.free
        limit = self.limit(path)
        return None if limit is None else taken(limit, self.usage(path))

    def within_limits(self, leaf: str, demand: Vector) -> bool:
        rooms = [self.room(path) for path in line(leaf)]
        return all(room is None or within(demand, room) for room in rooms)

    def may_start(self, job_id: int, *, promise_only: bool) -> bool:
        ask = self.waiting[job_id]
        return (
            within(ask.demand, self.free)
            and self.within_limits(ask.leaf, ask.demand)
            and (not promise_only or any(self.keeps_promise(p, ask.demand) for p in line(ask.leaf)))
            and self.passes(job_id)
        )

    def jobs(self, leaf: str) -> list[int]:
        """Those of a leaf, in its own order; last those that could never start."""
        own = [job_id for job_id, ask in self.waiting.items() if ask.leaf == leaf]
        key = {job_id: (-self.waiting[job_id].priority, job_id) for job_id in own}
        return sorted(own, key=lambda job_id: (not self.could_start(job_id), key[job_id]))

    def could_start(self, job_id: int) -> bool:
        """On the empty machine."""
        ask = self.waiting[job_id]
        rooms = [self.tree.rules.get(path, Rule()).limit or () for path in line(ask.leaf)]
        return all(
            most is None or asked <= most or not asked
            for room in (self.tree.capacity, *rooms)
            for asked, most in zip(ask.demand, room, strict=False)
        )

    def run(self) -> None:
        self._keep()
        self.starvation_guard, self._guard_place = self._find_eldest()
        for promise_only in (True, False):
            done: set[str] = set()
            leaves = {ask.leaf for ask in self.waiting.values()}
            self._limited = {leaf for leaf in leaves if self._is_limited(self.jobs(leaf)[0])}
            while leaves := {ask.leaf for ask in self.waiting.values()} - done:
                leaf = self._next_leaf(leaves, promise_only=promise_only)
                job_id = self._next_job(leaf, promise_only=promise_only)
                if job_id is None:
                    done.add(leaf)
                else:
                    self._launch(job_id)
                    self._limited.discard(leaf)
                    if any(ask.leaf == leaf for ask in self.waiting.values()):
                        self._limited |= {leaf} if self._is_limited(self.jobs(leaf)[0]) else set()

    def choices(self) -> set[int]:
        """The jobs of which the next launch may be one; nothing is reserved."""
        for promise_only in (True, False):
            ready = {}
            for leaf in {ask.leaf for ask in self.waiting.values()}:
                job_id = self._next_job(leaf, promise_only=promise_only)
                if job_id is not None:
                    ready[leaf] = job_id
            if ready:
                return {ready[leaf] for leaf in self._next_leaves("root", set(ready))}
        return set()

    def _next_leaves(self, path: str, leaves: set[str]) -> set[str]:
        """Those that may be served next below the node."""
        if path in leaves:
            return {path}
        firsts = self._first_children(path, leaves)
        return {leaf for child in firsts for leaf in self._next_leaves(child, leaves)}

    def _turn(self, path: str, leaves: set[str]) -> Turn:
        past_usage = self.past_usage.get(path, float("-inf"))
        if path in leaves:
            return self.level(path), past_usage, self.jobs(path)[0], path
        least = self._turns(path, leaves)[0]
        return min(self.level(path), least[0]), past_usage, least[2], path

    def _turns(self, path: str, leaves: set[str]) -> list[Turn]:
        """Of the node's children, in order."""
        children = {p for leaf in leaves for p in line(leaf) if above(p) == path}
        return sorted(self._turn(child, leaves) for child in children)

    def _first_children(self, path: str, leaves: set[str]) -> list[str]:
        """The child that is served first; or several, where the text does not say which."""
        turns = self._turns(path, leaves)
        first = turns[0]
        if first[0] == BEYOND:
            return [turn[3] for turn in turns]
        tied = [turn[3] for turn in turns if turn[:2] == first[:2]]
        return [first[3]] if leaves.issuperset(tied) else tied

    def _next_leaf(self, leaves: set[str], *, promise_only: bool) -> str:
        """Where the text leaves a choice, the guide makes it."""
        free = self._next_leaves("root", leaves)
        if len(free) == 1:
            return free.pop()
        # Whoever is looked at first gets the place.
        if not promise_only and self.sure is None and any(map(self._place, free)):
            self.sure = len(self.launches)
        wanted = self.waiting.get(next(iter(self.guide[len(self.launches) :]), 0))
        if wanted is not None and wanted.leaf in free:
            return wanted.leaf
        # What cannot start gets out of the way.
        return min(free, key=lambda leaf: (self._can_start(leaf, promise_only=promise_only), leaf))

    def _can_start(self, leaf: str, *, promise_only: bool) -> bool:
        own = self.jobs(leaf)
        return not self._is_closed(own[0]) and any(
            self.may_start(j, promise_only=promise_only) for j in own
        )

    def obstacles(self, job_id: int, *, beside: bool) -> list[str]:
        """The nodes that keep a job back, from its leaf up to the machine; `beside`: also by what
        is kept for others there."""
        ask = self.waiting[job_id]
        return [
            path
            for path in (*line(ask.leaf), "root")
            if (room := self.room(path)) is not None
            and not (within(ask.demand, room) and not (beside and self._hurts(job_id, path)))
        ]

    def _place(self, leaf: str) -> str | None:
        """Where its head gets a reservation when it is looked at now."""
        head = self.jobs(leaf)[0]
        place = next(iter(self.obstacles(head, beside=True)), None)
        if (
            place is None
            or (place != "root" and leaf not in self._limited)
            or self.times is None
            or self.times.now_s - self.waiting[head].since_s < self.times.patience_s
            or self._owes(leaf)
            or any(kept.within == place for kept in self.kept)
            or self._is_kept_for(head, place)
        ):
            return None
        return place

    def _is_limited(self, head: int) -> bool:
        ask = self.waiting[head]
        return self.could_start(head) and not self.within_limits(ask.leaf, ask.demand)

    def _is_kept_for(self, job_id: int, place: str | None) -> bool:
        return any(kept.job_id == job_id and place in kept.extras for kept in self.kept)

    def _is_closed(self, head: int) -> bool:
        """Does the first job of a leaf let no later one pass?"""
        return head == self.starvation_guard and not self._is_kept_for(head, self._guard_place)

    def _find_eldest(self) -> tuple[int | None, str | None]:
        heads = [self.jobs(leaf)[0] for leaf in {ask.leaf for ask in self.waiting.values()}]
        late = [
            (self.waiting[head].since_s, self.waiting[head].leaf, head, places[0])
            for head in heads
            if self.times is not None
            and self.could_start(head)
            and not self._owes(self.waiting[head].leaf)
            and self.times.now_s - self.waiting[head].since_s > self.times.drain_after_s
            and (places := self.obstacles(head, beside=False))
            and not self._is_kept_for(head, places[0])
        ]
        return min(late)[2:] if late else (None, None)

    def _next_job(self, leaf: str, *, promise_only: bool) -> int | None:
        own = self.jobs(leaf)
        if not promise_only and (place := self._place(leaf)) is not None:
            self._reserve(own[0], place)
        if self._is_closed(own[0]):
            return None
        allowed = (j for j in own if self.may_start(j, promise_only=promise_only))
        return next(allowed, None)

    def _launch(self, job_id: int) -> None:
        ask = self.waiting[job_id]
        if self.times is not None:
            end_s = self.times.now_s + ask.length_s
            self._take({"root", *line(ask.leaf)}, ask.demand, end_s)
            self._given.append((end_s, ask.leaf, ask.demand))
        del self.waiting[job_id]
        self.held[ask.leaf] = added(self.held[ask.leaf], ask.demand)
        self.launches.append(job_id)

    # The reservations.

    def _keep(self) -> None:
        kept = self.times.before if self.times is not None else ()
        for before in sorted(kept, key=lambda each: each.within.count(".")):
            if before.job_id not in self.waiting:
                continue
            if self.obstacles(before.job_id, beside=True):
                self._reserve(before.job_id, before.within, before)
            else:
                self._launch(before.job_id)

    def _reserve(self, job_id: int, place: str, before: Kept | None = None) -> None:
        assert self.times is not None
        ask, now_s = self.waiting[job_id], self.times.now_s
        others = [kept for kept in self.kept if kept.job_id != job_id]
        paths = [
            p
            for p in line(ask.leaf)
            if self.limit(p) is not None and f"{p}.".startswith(f"{place}.")
        ]
        paths += ["root"] if place == "root" else []
        changes = [(end_s, leaf, back) for end_s, leaf, back in (*self.times.ends, *self._given)]
        moments = {now_s, *(end_s for end_s, *_ in changes)}
        for kept in others:
            moments |= {kept.shadow_s, self._end_s(kept)}
        for at_s in sorted(at_s for at_s in moments if at_s >= now_s):
            rooms = {path: self._room_at(path, at_s, changes, others) for path in paths}
            later = [kept for kept in others if kept.shadow_s > at_s]
            end_s = at_s + ask.length_s
            if all(
                within(ask.demand, room)
                and all(self._allows(kept, path, ask.demand, end_s, room) for kept in later)
                for path, room in rooms.items()
            ):
                break
        else:
            return
        due_s = at_s
        if before is not None:
            due_s = before.due_s
        drains = now_s - due_s > self.times.drain_after_s
        extras = {path: taken(room, ask.demand) for path, room in rooms.items()}
        self.kept = others
        self._take(extras.keys(), ask.demand, end_s, not_before_s=at_s)
        self.kept.append(Kept(job_id, place, at_s, extras, drains, due_s))

    def _room_at(
        self,
        path: str,
        at_s: float,
        ends: Sequence[tuple[float, str, Vector]],
        others: Sequence[Kept],
    ) -> Vector:
        """What is left at a node, if all goes as estimated and nothing else starts."""
        room = self.room(path)
        assert room is not None
        for end_s, leaf, back in ends:
            if end_s <= at_s and path in ("root", *line(leaf)):
                room = added(room, back)
        for kept in others:
            if path in kept.extras and kept.shadow_s <= at_s < self._end_s(kept):
                room = taken(room, self.waiting[kept.job_id].demand)
        return room

    def _end_s(self, kept: Kept) -> float:
        return kept.shadow_s + self.waiting[kept.job_id].length_s

    def _take(
        self, paths: Collection[str], demand: Vector, end_s: float, not_before_s: float = -inf
    ) -> None:
        """Of what is left beside each of the reservations."""
        for at, kept in enumerate(self.kept):
            if kept.shadow_s >= not_before_s and kept.shadow_s < end_s:
                extras = {
                    path: taken(extra, demand) if path in paths else extra
                    for path, extra in kept.extras.items()
                }
                self.kept[at] = kept._replace(extras=extras)

    def passes(self, job_id: int) -> bool:
        """May it start beside the reservations?"""
        return self._delayed(job_id) is None

    def _delayed(self, job_id: int) -> Kept | None:
        """The first reservation that it would delay."""
        paths = (*line(self.waiting[job_id].leaf), "root")
        return next(iter(kept for path in paths for kept in self._all_delayed(job_id, path)), None)

    def _hurts(self, job_id: int, path: str) -> bool:
        """Would it delay a reservation at this node?"""
        return bool(self._all_delayed(job_id, path))

    def _all_delayed(self, job_id: int, path: str) -> list[Kept]:
        ask, room = self.waiting[job_id], self.room(path)
        if room is None or self.times is None:
            return []
        end_s = self.times.now_s + ask.length_s
        others = [kept for kept in self.kept if kept.job_id != job_id]
        return [kept for kept in others if not self._allows(kept, path, ask.demand, end_s, room)]

    def _allows(self, kept: Kept, path: str, demand: Vector, end_s: float, room: Vector) -> bool:
        if path not in kept.extras:
            return True
        assert self.times is not None
        theirs = self.waiting[kept.job_id].demand
        parts = [Fraction(asked, most) for asked, most in zip(demand, theirs, strict=True) if most]
        if not kept.drains and all(part <= self.times.passes for part in parts):
            return True
        needed = zip(room, theirs, strict=True)
        if kept.drains and not within(demand, [max(0, there - asked) for there, asked in needed]):
            return False
        return end_s <= kept.shadow_s or within(demand, kept.extras[path])

    # What they keep idle.

    def _owed(self, leaf: str) -> int:
        """At the time of the pass."""
        debt = self.times.debts.get(leaf) if self.times is not None else None
        if self.times is None or debt is None:
            return 0
        return max(0, debt.owed + (debt.idle - debt.promised) * self.times.since_s)

    def _promise(self, leaf: str) -> int:
        """Of the resource of which the leaf is promised the largest part."""
        pairs = zip(self.promised[leaf], self.tree.capacity, strict=True)
        return int(max((part for part, top in pairs if top), default=Fraction(0)) * 10**9)

    def _owes(self, leaf: str) -> bool:
        """So much that nothing more is kept for its jobs?"""
        assert self.times is not None
        return self._owed(leaf) > self._promise(leaf) * self.times.allowance_s

    def idle(self) -> dict[str, int]:
        """What is kept idle after the pass, by the leaves for which it is."""
        alike: dict[tuple[str, Vector], list[int]] = {}
        age = sorted(self.waiting, key=lambda job_id: (-self.waiting[job_id].priority, job_id))
        for job_id in age:
            alike.setdefault(self.waiting[job_id][:2], []).append(job_id)
        paths = {path for leaf, _ in alike for path in ("root", *line(leaf))}
        rooms = {path: room for path in paths if (room := self.room(path)) is not None}
        kept_idle = dict[str, Vector]()
        for (leaf, demand), job_ids in alike.items():
            kept = self._delayed(job_ids[0])
            own = [path for path in ("root", *line(leaf)) if path in rooms]
            for _ in job_ids if kept is not None else ():
                if all(within(demand, rooms[path]) for path in own):
                    rooms |= {path: taken(rooms[path], demand) for path in own}
                    owner = self.waiting[kept.job_id].leaf
                    kept_idle[owner] = added(kept_idle.get(owner, (0,) * len(demand)), demand)
        return {
            leaf: max(
                amount * 10**9 // top
                for amount, top in zip(amounts, self.tree.capacity, strict=True)
                if top
            )
            for leaf, amounts in kept_idle.items()
        }

    def debts(self) -> dict[str, Debt]:
        """After the pass."""
        assert self.times is not None
        idle, found = self.idle(), {}
        for leaf in {*self.times.debts, *idle}:
            known = leaf in self.promised
            promised = self._promise(leaf) if known else self.times.debts[leaf].promised
            found[leaf] = Debt(self._owed(leaf), idle.get(leaf, 0), promised)
        return {leaf: debt for leaf, debt in found.items() if debt.owed or leaf in idle}


def begin(
    tree: Tree,
    waiting: Mapping[int, Ask],
    held: Mapping[str, Vector],
    past_usage: Mapping[str, float] | None = None,
    times: Times | None = None,
) -> Pass:
    """A pass that has launched nothing yet."""
    leaves = {ask.leaf for ask in waiting.values()}
    nothing = dict.fromkeys(leaves, (0,) * len(tree.capacity))
    return Pass(
        tree, dict(waiting), nothing | dict(held), past_usage or {}, times,
        promises(tree, leaves | set(held)),
    )  # fmt: skip


def slow_pass(
    tree: Tree,
    waiting: Mapping[int, Ask],
    held: Mapping[str, Vector],
    times: Times,
    guide: Sequence[int],
) -> Pass:
    """The whole pass."""
    found = begin(tree, waiting, held, times=times)
    found.guide = guide
    found.run()
    return found
