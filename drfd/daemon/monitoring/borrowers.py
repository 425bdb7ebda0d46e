"""What lending asks of the ledger, of cores and of disk rates alike: which running jobs are judged,
and what the fair-share tree says of the nodes in which they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drfd.core.lending import Node, places_of
from drfd.core.model.job import Job, JobState
from drfd.daemon.engine.engine import Engine

#: Seconds after which a reading is too old to tell a rate.
STALE_S = 5.0


def is_judged(job: Job) -> bool:
    return job.state is JobState.RUNNING and not job.freezing


@dataclass
class Places:
    """The places of all nodes with running jobs, computed anew when what jobs hold has changed."""

    engine: Engine
    #: By axis: what they were computed of, and the places by path.
    _found: dict[int, tuple[object, Mapping[str, Node]]] = field(default_factory=dict)

    def on(self, axis: int, unit: int = 1) -> Mapping[str, Node]:
        """Return the places for lending the resource of one axis, with amounts in units of so many
        of the axis's own."""
        ledger, shares = self.engine.ledger, self.engine.rules.shares
        key = ledger, shares, ledger.allocations.version
        if axis not in self._found or self._found[axis][0] != key:
            self._found[axis] = key, places_of(shares, ledger.used, axis, unit)
        return self._found[axis][1]
