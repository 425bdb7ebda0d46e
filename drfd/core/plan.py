"""What a pass has decided, and what it saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from drfd.core.backfill import Backfill, Outlook
from drfd.core.external import ExternalLoad
from drfd.core.fairshare import Standing
from drfd.core.reservation import Reservation
from drfd.core.resources import Vector
from drfd.core.serving import Queueing


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the pass decided, and what it saw, so that waits can be explained from it."""

    #: Jobs to admit, in order.
    admitted: list[int]
    #: What is left after them.
    free: Vector
    #: Leaves that still have waiting jobs, in the order in which they would be served next.
    order: Sequence[str]
    #: It has looked at so much that it left the rest to the next one: see `core.admission`.
    is_cut: bool = False
    #: What is kept for big jobs, in the order of their places; goes into the next pass.
    reservations: tuple[Reservation, ...] = ()
    #: The job that no later one of its leaf may pass.
    eldest: int | None = None
    #: What was kept free for processes outside drfd.
    external: ExternalLoad | None = None
    #: What the pass knew of time, if anything.
    outlook: Outlook | None = field(default=None, compare=False)
    #: Where everybody stands after them, until the next pass; None where a test has no need of it.
    standing: Standing | None = field(default=None, compare=False)

    @cached_property
    def queueing(self) -> Queueing | None:
        return None if self.standing is None else Queueing(self.order, self.standing)

    def reservation_of(self, job_id: int) -> Reservation | None:
        return next((each for each in self.reservations if each.job_id == job_id), None)

    def hurt_by(self, job_id: int, demand: Vector) -> Reservation | None:
        """The reservation that a waiting job would hurt if it started in what is left."""
        if self.outlook is None:
            return None
        return Backfill(self.outlook, list(self.reservations)).hurt(demand, job_id, self.free)
