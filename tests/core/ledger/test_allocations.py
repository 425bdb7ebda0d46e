"""Who holds most: found once, and found anew as soon as anybody holds something else."""

from __future__ import annotations

from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import JobState
from fakes import ROADS, demand, happened, rules, spec


def play(ledger: Ledger, job_id: int, *kinds: type, cores: float = 1) -> None:
    for kind in kinds:
        changes = {"spec": spec(asks=demand(cores))} if kind is ev.Submitted else {}
        ledger.apply(happened(kind, job_id, **changes))


def largest(ledger: Ledger, axis: int = 0) -> int | None:
    return next(iter(ledger.holders(axis).all), None)


def test_it_follows_every_change_of_what_is_held() -> None:
    ledger = Ledger(rules().axes)
    assert largest(ledger) is None
    play(ledger, 1, *ROADS[JobState.RUNNING], cores=2)
    assert largest(ledger) == 1
    play(ledger, 2, *ROADS[JobState.RUNNING], cores=2)
    assert largest(ledger) == 1, "the eldest of equals"
    play(ledger, 3, *ROADS[JobState.RUNNING], cores=4)
    assert largest(ledger) == 3
    assert ledger.holders(0).all == [3, 1, 2]
    assert ledger.holders(0).by_user == {"alice": [3, 1, 2]}
    play(ledger, 3, ev.SuspendRequested, ev.Suspended)
    assert (largest(ledger), largest(ledger, 1)) == (1, 1), "frozen, it keeps its memory alone"
    assert largest(ledger, 2) is None, "nobody asked for a disk"
    play(ledger, 1, ev.Exited, ev.Cleaned)
    assert largest(ledger) == 2
    play(ledger, 2, ev.Exited, ev.Cleaned)
    assert (largest(ledger), largest(ledger, 1)) == (None, 3)
    ledger.check()
