"""The gates that close by a rule of their own, whatever is free.

A gate returns why no job of a demand may start below a leaf now, as the reason itself, or None. So
a rule is a module with a gate and its reason, and a line of `gates_of`: a pass asks all of them,
explanations ask them again of what the pass has left, and where a reason says when the gate opens
(`Wait.opens_s`), the next pass is made then, in a forecast too. Room and reservations are asked
after them (`Backfill.closed_gate`). Preemption asks none.

What is no such rule: what differs between jobs of one demand keeps their class (`JobClass`) out of
the queues (`core.ledger.queue`), and what stops every start is a fact of the ledger, which
`schedule` looks at before it begins a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.machine import Vector
from drfd.core.scheduling.waits import Wait


class Gate(Protocol):
    def closed(self, leaf: str, demand: Vector, started: int) -> Wait | None:
        """Return why a job of this demand may not start. So many others have been `started` in this
        pass."""


def gates_of(ledger: Ledger, rules: Rules, now_s: float) -> Iterator[Gate]:
    """Yield the gates of a pass at this time (Unix time)."""
    if rules.policy == "slots":
        yield Slots(rules.slot_count, rules.slot_count - sum(ledger.slots_taken().values()))


class SlotsTaken(Wait, frozen=True):
    code = "RESOURCES"
    says = "all {0.count} slots are taken (policy slots)"
    waits_for, blocked_by = "a slot", "{0.count} slots taken"
    count: int


@dataclass(frozen=True)
class Slots:
    """The policy "slots" lets so many jobs run at once."""

    count: int
    free: int

    def closed(self, leaf: str, demand: Vector, started: int) -> Wait | None:
        return SlotsTaken(self.count) if started >= self.free else None
