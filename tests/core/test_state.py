"""Jobs, their events and the books: a closed table of states, tables that agree, exact amounts."""

import copy
import sys

import pytest

from drfd.common.errors import Refused
from drfd.common.owner import Owner
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.effects import Kill, owed
from drfd.core.model.job import ALLOCATED_STATES, JobState
from drfd.core.model.machine import Allocation
from drfd.core.model.options import cores_end
from fakes import BOB, TRANSITIONS, happened, ledger_at, replace, spec, tables

S = JobState
KINDS = ev.JobEvent.__subclasses__()
LIVE = [state for state in JobState if state is not S.ENDED]

# -- the table of states ---------------------------------------------------------------------------


def reached_from(state: JobState) -> set[JobState]:
    seen: set[JobState] = set()
    ahead = [state]
    while ahead:
        here = ahead.pop()
        if here not in seen:
            seen.add(here)
            ahead += TRANSITIONS[here].values()
    return seen


def test_every_state_can_be_reached_from_a_new_job():
    """A job is born PENDING or HELD."""
    assert reached_from(S.PENDING) == set(JobState)
    assert reached_from(S.HELD) == set(JobState)


@pytest.mark.parametrize("state", JobState)
def test_every_state_can_reach_the_end(state):
    assert S.ENDED in reached_from(state)


def test_no_way_leads_out_of_the_states_that_hold_resources_but_by_cleaning():
    """Resources come back when the cgroup is gone, and not before: to the end, or to the queue."""
    ways = {
        (state, kind, after)
        for state, moves in TRANSITIONS.items()
        for kind, after in moves.items()
        if state in ALLOCATED_STATES and after not in ALLOCATED_STATES
    }
    assert ways == {
        (S.CLEANING, ev.Cleaned, S.ENDED),
        (S.CLEANING, ev.Requeued, S.PENDING),
        (S.CLEANING, ev.Retried, S.PENDING),
    }


def test_only_admission_leads_into_the_states_that_hold_resources():
    ways = {
        kind
        for state, moves in TRANSITIONS.items()
        for kind, after in moves.items()
        if state not in ALLOCATED_STATES and after in ALLOCATED_STATES
    }
    assert ways == {ev.Admitted}


def test_a_job_stopped_while_it_is_frozen_is_owed_its_end_and_no_sigterm():
    job = ledger_at(S.SUSPENDED, 7).apply(happened(ev.StopRequested, 7))
    assert job is not None
    assert owed(job) == Kill(7, 1)


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ev.KINDS.values(), ids=lambda kind: kind.__name__)
def test_a_kind_has_no_subclass_and_says_when_it_happened(kind):
    assert kind.__subclasses__() == []
    assert "at_s" in kind.__struct_fields__


# -- the books -------------------------------------------------------------------------------------


#: What `spec()` asks for.
ONE = (1000, 1 << 30, 0, 0)


# -- state × event ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS[1:]], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", LIVE)
def test_an_event_moves_the_job_as_the_table_says_or_changes_nothing(state, kind):
    ledger = ledger_at(state)
    before = tables(ledger)
    after = TRANSITIONS[state].get(kind)
    if after is None:
        with pytest.raises(ev.InvalidTransition):
            ledger.apply(happened(kind))
        assert tables(ledger) == before
    else:
        job = ledger.apply(happened(kind))
        assert job is not None
        assert job.state is after
        assert ledger.jobs == ({} if after is S.ENDED else {1: job})
    ledger.check()


def test_equal_texts_of_jobs_are_one_and_none_is_kept_for_ever():
    """Some versions of Python never give up interned texts, of which a user chooses new ones."""
    first, second = (replace(spec(), stdout="/".join(["here", "out"])) for _ in range(2))
    assert first.stdout is second.stdout
    other = "/".join(["here", "out"])
    assert sys.intern(other) is other


# -- check -----------------------------------------------------------------------------------------


def _miscount(ledger: Ledger) -> None:
    ledger.allocated = Allocation((1000, 0, 0, 0))


def _forget_use(ledger: Ledger) -> None:
    ledger.used.clear()


def _forget_holder(ledger: Ledger) -> None:
    ledger.allocations["root.alice"].clear()


def _queue_twice(ledger: Ledger) -> None:
    ledger.queues["root.bob"][ONE].clear()


def _lose_waiter(ledger: Ledger) -> None:
    ledger.job_counts.waiting.clear()


def _reuse_ids(ledger: Ledger) -> None:
    ledger.next_id = 2


@pytest.mark.parametrize(
    "spoil", [_miscount, _forget_use, _forget_holder, _queue_twice, _lose_waiter, _reuse_ids]
)
def test_check_finds_every_table_that_disagrees_with_the_jobs(spoil):
    ledger = ledger_at(S.RUNNING)
    ledger.apply(happened(ev.Submitted, 2, spec=spec("root.bob", actor=BOB)))
    ledger.check()
    spoilt = copy.deepcopy(ledger)
    spoil(spoilt)
    with pytest.raises(AssertionError):
        spoilt.check()
    ledger.check()


# -- jobs ------------------------------------------------------------------------------------------


def test_what_is_not_known_of_an_owner_does_not_differ():
    owner = Owner(uid=1000, user="ada", journal="j", submitted_us=5)
    assert owner.may_be(owner)
    assert owner.may_be(Owner())
    assert Owner(user="ada").may_be(owner)
    assert not owner.may_be(Owner(uid=1001))
    assert not owner.may_be(replace(owner, user="bob"))
    assert not owner.may_be(Owner(journal="k"))
    assert not Owner(uid=1000, submitted_us=6).may_be(owner)


# -- upper ends of ranges --------------------------------------------------------------------------


def test_a_range_ends_above_its_beginning_and_an_open_one_with_the_machine():
    ends = [cores_end(2000, most, 16_000) for most in (0, 2000, 8000, 99_000, "all")]
    assert ends == [0, 0, 8000, 99_000, 16_000]
    assert cores_end(2000, "all", 1000) == 0
    with pytest.raises(Refused) as refused:
        cores_end(2000, 1000, 16_000)
    assert refused.value.text == "-c: the range ends at 1, below the 2 that the job holds"
    assert refused.value.hint == "write -c LEAST..MOST"
