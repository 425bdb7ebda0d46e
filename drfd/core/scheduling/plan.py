"""The input of a policy for one pass, and its result, the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.share_tree import ShareTree
from drfd.core.ledger.postponed import Shortages
from drfd.core.model.events import StartReason
from drfd.core.scheduling.backfill import Backfill, PassContext, Reservation
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.release_times import Certainty
from drfd.core.scheduling.wait_index import WaitIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """The limits at which a pass stops and leaves the rest to the next one. None means no limit."""

    #: The number of times that a demand vector is examined.
    examined: int | None = None
    #: Jobs started.
    starts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInput:
    """The input of a policy for one pass."""

    #: The waiting jobs, and the resources that each leaf holds and has used.
    wait_index: WaitIndex
    #: The resources in which jobs may start.
    free: Vector
    #: The facts about time; without them nothing is reserved.
    pass_context: PassContext | None = None
    limits: PassLimits = PassLimits()
    #: The number of jobs that may run at once under the policy "slots", and how many of each leaf
    #: hold a slot.
    slots: int | None = None
    running: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decisions of a pass, with the facts from which waits can be explained."""

    #: Jobs to admit, in order.
    admitted: list[int]
    #: What each of them holds then, if the policy says it.
    held: Mapping[int, Vector] = field(default_factory=dict, compare=False)
    #: The rule by which a job starts, for each that does not start by its own turn.
    reasons: Mapping[int, StartReason] = field(default_factory=dict, compare=False)
    #: The resources left after them.
    free: Vector
    #: Leaves that still have waiting jobs, in the order in which they would be served next.
    order: Sequence[str]
    #: Whether the pass reached one of its `PassLimits`, so that more jobs may be able to start.
    is_cut: bool = False
    #: The number of times that a demand vector was examined.
    examined: int = field(default=0, compare=False)
    #: The reservations for big jobs, in order; the next pass gets them.
    reservations: tuple[Reservation, ...] = ()
    #: The job that no later one of its leaf may pass.
    starvation_guard: int | None = None
    #: The load from outside drfd for which the pass kept resources free, or None.
    external: ExternalLoad | None = None
    #: The shortages because of which launches pause.
    shortages: Shortages = field(default_factory=Shortages)
    pass_context: PassContext | None = field(default=None, compare=False)
    #: The share tree after the pass; the next pass changes it. None in plans made by tests.
    share_tree: ShareTree | None = field(default=None, compare=False)

    @cached_property
    def notes(self) -> dict[Any, Any]:
        """Return what explanations have found out about this pass, under keys of their own."""
        return {}

    def start_reason(self, job_id: int) -> StartReason:
        """Return the rule by which one of the admitted jobs starts."""
        return self.reasons.get(job_id, StartReason.TURN)

    def reservation_of(self, job_id: int) -> Reservation | None:
        return next((each for each in self.reservations if each.job_id == job_id), None)

    def certainty_of(self, reservation: Reservation) -> Certainty:
        """Return on what the start of a reservation of this plan rests."""
        key = "certainty", reservation.job_id
        if key not in self.notes and self.pass_context is not None:
            self.notes[key] = self.pass_context.certainty(reservation.start_s)
        found: Certainty = self.notes.get(key, Certainty.ESTIMATED)
        return found

    def delayed_reservation(self, job_id: int, demand: Vector) -> Reservation | None:
        """Return the reservation that the job would delay in the resources left, or None."""
        if self.pass_context is None:
            return None
        return Backfill(self.pass_context, list(self.reservations)).delayed_reservation(
            demand, job_id, self.free
        )
