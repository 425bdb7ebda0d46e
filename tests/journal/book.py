"""A journal, and the ledger beside it."""

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from drfd.core.model import events as ev
from drfd.core.model.job import Actor, command_text
from drfd.core.model.resources import Axes
from drfd.core.usage import Curve, Point
from drfd.journal.journal import Journal
from drfd.journal.pruning import read_removable
from drfd.journal.submissions import Payload
from fakes import ALICE, apply_and_append, happened, payload, replace, spec

LONG = command_text(["x" * 5000])
CURVE = Curve(
    attempt=1,
    points=(
        Point.of(1, 0, memory_bytes=(1024, 1)),
        Point.of(2, 1, cores_milli=(1, 1), memory_bytes=(1024, 1), read_bps=(0, 1)),
    ),
)


class Book:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ledger = journal.load(Axes())

    def enter(
        self, *events: ev.Event, at_s: float | None = None, signed: Payload | None = None
    ) -> None:
        """Record events as the engine does, by a clock that is set by hand."""
        for event in events:
            dated = event if at_s is None else structs.replace(event, at_s=at_s)
            apply_and_append(self.journal, dated, self.ledger, signed)

    def submit(
        self,
        job_id: int,
        *,
        actor: Actor = ALICE,
        at_s: float | None = None,
        signed: Payload | None = None,
        **changes: Any,
    ) -> None:
        """`changes`: fields of the job's specification."""
        asked = replace(spec(f"root.{actor.user}", actor=actor), **changes)
        self.enter(happened(ev.Submitted, job_id, spec=asked), at_s=at_s, signed=signed)

    def submit_array(
        self,
        array_id: int,
        size: int,
        *,
        actor: Actor = ALICE,
        signed: Payload | None = None,
        **changes: Any,
    ) -> None:
        """Its tasks have the ids after its own."""
        asked = replace(spec(f"root.{actor.user}", actor=actor), **changes)
        spans = ((1, size, 1),)
        self.enter(
            ev.ArraySubmitted(array_id=array_id, at_s=1.0, spec=asked, spans=spans, at_once=None),
            signed=signed,
        )

    def cancel(self, *ids: int, at_s: float | None = None) -> None:
        """Cancel these jobs, and the waiting tasks of these arrays."""
        for each in ids:
            array_state = self.ledger.arrays.get(each)
            for job_id in (
                [each]
                if array_state is None
                else [task.id for task in self.ledger.tasks(array_state.array)]
            ):
                self.enter(happened(ev.Cancelled, job_id), at_s=at_s)

    def live_and_end(
        self, job_id: int, at_s: float, *, actor: Actor = ALICE, **changes: Any
    ) -> None:
        """A job with everything that may belong to one, which is over at once."""
        asked = {"command": LONG, "signed": payload({"A": "b"}, key=f"key-{job_id}"), **changes}
        self.submit(job_id, actor=actor, at_s=at_s, **asked)
        self.journal.put_curve(job_id, CURVE)
        self.cancel(job_id, at_s=at_s)
        self.journal.commit()

    def prune(self, before_s: float, most: int | None = None) -> list[int]:
        """All that can be removed; what each go has removed."""
        return list(goes(self.journal, before_s, most))


def goes(journal: Journal, before_s: float, most: int | None = None) -> Iterator[int]:
    """Remove what can be removed, and yield the number of each go."""
    while due := read_removable(journal.path, before_s, most):
        while due:
            before = len(due)
            journal.remove_ended(due)
            yield before - len(due)
