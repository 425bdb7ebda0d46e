"""The books: one writer, tables that agree, and a history that replays to the same books."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import get_args

import pytest

from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import JobState
from drfd.core.model.lifecycle import TRANSITIONS, InvalidTransition
from fakes import (
    BOB,
    happened,
    ledger_at,
    spec,
    tables,
)

S = JobState
KINDS = list(get_args(ev.JobEvent))
LIVE = [state for state in JobState if state is not S.ENDED]
GIB = 1 << 30
NOTHING = (0, 0, 0, 0)
#: What `spec()` asks for.
ONE = (1000, GIB, 0, 0)


# -- state × event ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS[1:]], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", LIVE)
def test_an_event_moves_the_job_as_the_table_says_or_changes_nothing(
    state: JobState, kind: type
) -> None:
    ledger = ledger_at(state)
    before = tables(ledger)
    after = TRANSITIONS[state].get(kind)
    if after is None:
        with pytest.raises(InvalidTransition):
            ledger.apply(happened(kind))
        assert tables(ledger) == before
    else:
        job = ledger.apply(happened(kind))
        assert job is not None
        assert job.state is after
        assert ledger.jobs == ({} if after is S.ENDED else {1: job})
    ledger.check()


@pytest.mark.parametrize("state", LIVE)
def test_a_job_cannot_be_born_twice(state: JobState) -> None:
    """The same id again would be counted twice in every table."""
    ledger = ledger_at(state)
    before = tables(ledger)
    with pytest.raises(InvalidTransition):
        ledger.apply(happened(ev.Submitted, spec=spec("root.bob", actor=BOB)))
    assert tables(ledger) == before


def test_an_event_about_a_job_that_has_ended_is_an_invalid_transition() -> None:
    ledger = ledger_at(S.ENDED)
    before = tables(ledger)
    with pytest.raises(InvalidTransition):
        ledger.apply(happened(ev.Cleaned))
    assert tables(ledger) == before


# -- what each event makes of a job -----------------------------------------------------------


# -- who holds what ---------------------------------------------------------------------------


# -- suspension -------------------------------------------------------------------------------

ALL, KEPT, GIVEN = (2000, 4 * GIB, 5, 6, 1), (0, 4 * GIB, 0, 0, 1), (2000, 0, 5, 6, 0)


def test_a_job_that_does_not_hold_anything_holds_nothing() -> None:
    for state in (S.PENDING, S.HELD):
        ledger = ledger_at(state)
        assert ledger.allocation(ledger.jobs[1]) == NOTHING
    assert ledger_at(S.PENDING).wanted(ledger_at(S.PENDING).jobs[1]) == ONE
    assert ledger_at(S.HELD).wanted(ledger_at(S.HELD).jobs[1]) is None


# -- requeueing -------------------------------------------------------------------------------


# -- ids --------------------------------------------------------------------------------------


# -- check ------------------------------------------------------------------------------------


def _miscount(ledger: Ledger) -> None:
    ledger.allocated = (1000, 0, 0, 0)


def _forget_use(ledger: Ledger) -> None:
    ledger.used.clear()


def _forget_holder(ledger: Ledger) -> None:
    ledger.allocations["root.alice"].clear()


def _queue_twice(ledger: Ledger) -> None:
    ledger.queues["root.bob"].add(ONE, (0, 9))


def _lose_waiter(ledger: Ledger) -> None:
    ledger.job_counts.waiting.clear()


def _reuse_ids(ledger: Ledger) -> None:
    ledger.next_id = 2


@pytest.mark.parametrize(
    "spoil", [_miscount, _forget_use, _forget_holder, _queue_twice, _lose_waiter, _reuse_ids]
)
def test_check_finds_every_table_that_disagrees_with_the_jobs(
    spoil: Callable[[Ledger], None],
) -> None:
    ledger = ledger_at(S.RUNNING)
    ledger.apply(happened(ev.Submitted, 2, spec=spec("root.bob", actor=BOB)))
    ledger.check()
    spoilt = copy.deepcopy(ledger)
    spoil(spoilt)
    with pytest.raises(AssertionError):
        spoilt.check()
    ledger.check()
