"""Events that follow from reports, stale reports, and reconciliation with the launcher."""

from __future__ import annotations

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.decisions.decide import Leftovers, leftovers
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobState, Outcome, Owner
from fakes import (
    ALICE,
    Bench,
    happened,
    now,
)

S = JobState


# -- scheduling -------------------------------------------------------------------------------


# -- news of runners --------------------------------------------------------------------------


# -- freezing ---------------------------------------------------------------------------------


def test_late_news_of_a_freezing_does_not_freeze_a_job_that_has_gone_on(bench: Bench) -> None:
    bench.bring(S.SUSPENDED)
    bench.feed(st.ResumeAsked(now(1), 1, ALICE))
    assert bench.schedule(2) == [1]
    assert bench.feed(st.Frozen(now(3), 1, 1)) == []
    job = bench.job(1)
    assert (job.state, job.suspensions) == (S.RUNNING, 1)


# -- requeueing -------------------------------------------------------------------------------


# -- limits and time --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.STOPPING, S.CLEANING])
def test_a_breach_of_what_is_being_stopped_changes_nothing(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    assert bench.feed(st.Breached(now(), 1, 1, Outcome.LIMIT_EXCEEDED, "much")) == []


# -- other policies -----------------------------------------------------------------------------


S = JobState


# -- reconciliation -----------------------------------------------------------------------------


JOURNAL = "0" * 32
Key = tuple[int, int]


def sort_out(ledger: Ledger, known: dict[Key, Owner], *ended: int) -> Leftovers:
    over = {job_id: job(job_id) for job_id in ended}
    return leftovers(ledger, known, JOURNAL, over.get)


def job(job_id: int) -> Job:
    submitted = Ledger(Axes()).apply(happened(ev.Submitted, job_id))
    assert submitted is not None
    return submitted
