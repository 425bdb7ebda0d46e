"""The reservations of one pass: who has a place, who may start beside them, who gets the next one.

Those of the pass before come first, in their order: each starts if it fits and hurts none before
it, or keeps its place as things are now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from drfd.core.external import ExternalLoad
from drfd.core.queue import Entry
from drfd.core.reservation import (
    Coming,
    InOrder,
    Patience,
    Reservation,
    allows,
    reserve,
    shadow,
    taken,
)
from drfd.core.resources import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a pass must know of time, to reserve and to backfill."""

    now_s: float
    patience: Patience
    #: When the running jobs will have ended, as estimated, and what each gives back. Holds for the
    #: pass alone.
    ends: Coming | InOrder
    #: Of a waiting job: since when it may start (Unix time), and how long it will run as estimated.
    #: A line-up that is kept must be told of a leaf when these change for its jobs.
    since_s: Callable[[int], float]
    length_s: Callable[[int], float]
    #: A job's place in its queue; None when it does not wait any more.
    entry: Callable[[int], Entry | None]
    #: The reservations of the pass before, in order.
    before: tuple[Reservation, ...]
    #: Jobs that were suspended and wait to go on, with leaf and what they wait for: until they
    #: have gone on, and ended, they keep their memory.
    suspended: Mapping[int, tuple[str, Vector]] = field(default_factory=dict)
    #: What is kept free for processes outside drfd; its expected end is one of `ends`.
    external: ExternalLoad | None = None

    def end_s(self, job_id: int) -> float:
        """When a waiting job would have ended, as estimated, if it started now."""
        return self.now_s + self.length_s(job_id)

    def waited_s(self, job_id: int) -> float:
        return self.now_s - self.since_s(job_id)

    def is_late(self, job_id: int) -> bool:
        """Has it waited long enough for a reservation?"""
        return self.patience.reserves and self.waited_s(job_id) >= self.patience.patience_s

    def has_waited_too_long(self, job_id: int) -> bool:
        """So long that, if nobody has waited longer, no later job of its leaf may pass it."""
        return self.patience.reserves and self.waited_s(job_id) > self.patience.drain_after_s


@dataclass
class Backfill:
    """The reservations as they stand while a pass runs."""

    outlook: Outlook
    #: In order: none may be hurt by a later one.
    kept: list[Reservation] = field(default_factory=list)

    def may_keep(self, before: Reservation) -> bool:
        """Is there still a place for a reservation of the pass before?"""
        return before.is_forced or self.has_place

    @property
    def has_place(self) -> bool:
        rules = self.outlook.patience
        return rules.reserves and sum(not each.is_forced for each in self.kept) < rules.depth

    @property
    def drains(self) -> bool:
        """Does one of them let nothing start that others might wait for?"""
        return any(each.is_drain and not each.is_forced for each in self.kept)

    def may_reserve(self, job_id: int) -> bool:
        """Is there a place for a job that cannot start, and has it waited long enough?"""
        return self.has_place and self.outlook.is_late(job_id) and not self.has_place_for(job_id)

    def has_place_for(self, job_id: int) -> bool:
        return any(each.job_id == job_id for each in self.kept)

    def is_hopeless(
        self, job_id: int, demand: Vector, *, free: Vector, given: Mapping[int, Vector]
    ) -> bool:
        """Would it not fit even when all has come back? `given` as for `reserve`."""
        outlook, back = self.outlook, self._back(given)
        length_s = outlook.length_s(job_id)
        return shadow(demand, length_s, free, outlook.ends, outlook.now_s, given=back) is None

    def deadline_s(self, demand: Vector, free: Vector) -> float | None:
        """By when a job of this demand must have ended if it starts in `free` now, so that it hurts
        no reservation; infinity: it may run on. None: none may start, however short."""
        found = inf
        for each in self.kept:
            if not allows(each, demand, each.start_s, free):
                return None
            if not allows(each, demand, inf, free):
                found = min(found, each.start_s)
        return found

    def allows(self, demand: Vector, job_id: int, free: Vector) -> bool:
        """May it start now without hurting any reservation?"""
        return self.hurt(demand, job_id, free) is None

    def hurt(self, demand: Vector, job_id: int, free: Vector) -> Reservation | None:
        """The first reservation that the job would hurt if it started in `free` now."""
        if not self.kept:
            return None
        end_s = self.outlook.end_s(job_id)
        others = [each for each in self.kept if each.job_id != job_id]
        if job_id in self.outlook.suspended:
            # It must end to give back what it holds: a drain that it waits for may wait for it.
            others = [each if each.is_forced else replace(each, is_drain=False) for each in others]
        return next((each for each in others if not allows(each, demand, end_s, free)), None)

    def let_in(self, demand: Vector, job_id: int) -> None:
        """The job starts now."""
        if self.kept:
            end_s = self.outlook.end_s(job_id)
            self.kept = [taken(each, demand, end_s) for each in self.kept]

    def reserve(
        self,
        job_id: int,
        leaf: str,
        demand: Vector,
        *,
        free: Vector,
        given: Mapping[int, Vector],
        before: Reservation | None = None,
    ) -> bool:
        """Give the job the next place; `given` is what this pass has admitted. False: it would not
        fit even when all has come back."""
        outlook = self.outlook
        found = reserve(
            job_id=job_id,
            leaf=leaf,
            demand=demand,
            length_s=outlook.length_s(job_id),
            free=free,
            ends=outlook.ends,
            given=self._back(given),
            kept=self.kept,
            before=before,
            now_s=outlook.now_s,
            rules=outlook.patience,
        )
        if found is None:
            return False
        self.kept = [
            taken(each, demand, found.end_s) if found.start_s <= each.start_s else each
            for each in self.kept
        ]
        self.kept.append(found)
        return True

    def _back(self, given: Mapping[int, Vector]) -> list[tuple[float, Vector]]:
        """When what this pass has admitted comes back."""
        return [(self.outlook.end_s(job_id), held) for job_id, held in given.items()]
