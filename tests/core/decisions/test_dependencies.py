"""Jobs that wait for other jobs, and for a time: when they may start, and what they are told."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.core.amounts.resources import Resources
from drfd.core.decisions import dependencies
from drfd.core.decisions.decide import decide, leftovers
from drfd.core.decisions.dependencies import (
    Settlement,
    awaited,
    begin,
    first_stuck,
    is_met,
    settle_all,
)
from drfd.core.explain.reasons import (
    AwaitedJob,
    DependenciesEnded,
    HeldAndNever,
    HeldBy,
    NeverStarts,
    ReasonCode,
    StartsFrom,
    WaitReason,
    WaitsFor,
    explain_wait,
)
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Line
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    UNSTARTED,
    Broken,
    Dependency,
    Job,
    JobSpec,
    JobState,
    Notify,
    Outcome,
    RequiredOutcome,
    Words,
    owner_of,
)
from drfd.core.model.lifecycle import NotifyNever, RemoveAttempt, owed
from fakes import ALICE, BOB, Bench, attempt_started, demand, ended, now, rules, spec
from seeds import seeds


def after(*ids: int, want: RequiredOutcome = RequiredOutcome.OK, **more: object) -> JobSpec:
    return spec(after=tuple(Dependency(each, want) for each in ids), **more)  # type: ignore[arg-type]


def end(bench: Bench, job_id: int, *, exit_code: int = 0, at_s: float = 0.0) -> list[ev.Event]:
    """The running job exits; what the removal of its cgroup brings about."""
    attempt = bench.job(job_id).attempt
    bench.feed(ended(job_id, attempt, at_s, exit_code=exit_code))
    return bench.feed(st.AttemptRemoved(now(at_s), job_id, attempt))


def reason(bench: Bench, job_id: int) -> WaitReason:
    found = explain_wait(bench.job(job_id), bench.ledger, None, bench.rules)
    assert found is not None
    return found


def waits_for(
    job_id: int,
    *states: tuple[JobState, int],
    user: str = "alice",
    is_array: bool = False,
    until_s: float | None = None,
    others: int = 0,
) -> WaitReason:
    awaited_job = AwaitedJob(str(job_id), user, is_array, states, until_s)
    return WaitReason(ReasonCode.DEPENDENCY, WaitsFor(awaited_job, others))


@pytest.mark.parametrize("outcome", Outcome)
def test_ok_wants_completion_and_fail_any_other_end(outcome: Outcome) -> None:
    good = outcome is Outcome.COMPLETED
    assert [is_met(want, outcome) for want in RequiredOutcome] == [good, True, not good]


def test_a_job_starts_when_the_last_of_those_it_waits_for_has_ended_well(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    third = bench.submit(after(first, second), at_s=1)
    assert bench.schedule(2) == []
    assert bench.job(third).eligible_at is None
    end(bench, first, at_s=3)
    assert bench.schedule(3) == []
    (_, settled) = end(bench, second, at_s=4)
    assert settled == ev.DependencySettled(
        job_id=third, at_s=now(4).at_s, on=second, outcome=Outcome.COMPLETED, is_met=True
    )
    assert bench.job(third).eligible_at == now(4).at_s, "its patience begins now"
    assert bench.schedule(4) == [third]


def test_a_job_whose_first_process_is_gone_has_not_ended(bench: Bench) -> None:
    first = bench.start()
    second = bench.submit(after(first))
    bench.feed(ended(first))
    assert bench.job(first).state is JobState.CLEANING
    assert bench.schedule() == []
    bench.feed(st.AttemptRemoved(now(), first, 1))
    assert bench.schedule() == [second]


def test_a_job_never_starts_after_the_wrong_end_and_says_so(bench: Bench) -> None:
    first = bench.start()
    wants_ok, wants_fail, wants_any = (
        bench.submit(after(first, want=want))
        for want in (RequiredOutcome.OK, RequiredOutcome.FAIL, RequiredOutcome.ANY)
    )
    end(bench, first, exit_code=3)
    assert bench.schedule() == [wants_fail, wants_any]
    assert bench.job(wants_ok).broken == Broken(first, Outcome.FAILED)
    assert reason(bench, wants_ok) == WaitReason(
        ReasonCode.DEPENDENCY_NEVER,
        NeverStarts(str(wants_ok), str(first), Outcome.FAILED, RequiredOutcome.OK),
    )


def test_of_a_job_that_never_starts_the_conditions_that_are_left_are_told(bench: Bench) -> None:
    first, other = bench.start(), bench.start()
    awaited = (
        Dependency(first),
        Dependency(other, RequiredOutcome.ANY),
    )
    waiting = bench.submit(replace(bench.job(first).spec, after=awaited))
    end(bench, first, exit_code=3)
    assert reason(bench, waiting) == WaitReason(
        ReasonCode.DEPENDENCY_NEVER,
        NeverStarts(
            *(str(waiting), str(first), Outcome.FAILED, RequiredOutcome.OK),
            ((str(other), RequiredOutcome.ANY),),
        ),
    )


def test_a_hold_does_not_hide_that_a_job_never_starts(bench: Bench) -> None:
    """A release alone would help nobody."""
    first = bench.start()
    held = bench.submit(after(first), held=True)
    assert reason(bench, held).code is ReasonCode.HELD
    end(bench, first, exit_code=3)
    never = NeverStarts(str(held), str(first), Outcome.FAILED, RequiredOutcome.OK)
    both = HeldAndNever(never, HeldBy("alice", str(held)))
    assert reason(bench, held) == WaitReason(ReasonCode.DEPENDENCY_NEVER, both)
    bench.feed(st.ReleaseAsked(now(), held, ALICE))
    assert reason(bench, held) == WaitReason(ReasonCode.DEPENDENCY_NEVER, never)


def test_a_job_that_was_cancelled_does_not_wait_any_more(bench: Bench) -> None:
    """Whatever it has waited for."""
    first = bench.start()
    broken = bench.submit(after(first))
    waiting = bench.submit(after(broken))
    timed = bench.submit(spec(begin_s=unix(9)))
    end(bench, first, exit_code=1)
    for job_id in (waiting, broken, timed):
        before = bench.job(job_id)
        (event,) = bench.feed(st.CancelAsked(now(), job_id, ALICE))
        gone = Ledger.of_jobs(bench.rules.axes, [before]).apply(event)
        assert gone is not None
        assert explain_wait(gone, bench.ledger, None, bench.rules) is None


def test_a_cancelled_job_has_ended_and_not_well(bench: Bench) -> None:
    first = bench.submit(held=True)
    wants_ok = bench.submit(after(first))
    wants_fail = bench.submit(after(first, want=RequiredOutcome.FAIL))
    bench.feed(st.CancelAsked(now(), first, ALICE))
    assert bench.schedule() == [wants_fail]
    assert bench.job(wants_ok).broken == Broken(first, Outcome.CANCELLED)


def test_the_reason_names_the_job_that_is_waited_for_and_its_end_at_the_latest(
    bench: Bench,
) -> None:
    first = bench.start(spec("root.bob", actor=BOB, time_limit_s=60), at_s=10)
    second = bench.submit(after(first))
    third = bench.submit(after(first, second))
    assert reason(bench, second) == waits_for(
        first, (JobState.RUNNING, 1), user="bob", until_s=now(70).at_s
    )
    assert reason(bench, third) == waits_for(second, (JobState.PENDING, 1), others=1)
    end(bench, first, exit_code=1)
    assert reason(bench, third).code is ReasonCode.DEPENDENCY_NEVER


def test_what_waits_for_a_job_that_never_starts_is_told_so(bench: Bench) -> None:
    first = bench.submit(held=True)
    second = bench.submit(after(first))
    third = bench.submit(after(second))
    bench.feed(st.CancelAsked(now(), first, ALICE))
    assert reason(bench, third) == waits_for(second)


def test_how_a_job_ended_before_the_submission_is_the_journals_to_say(bench: Bench) -> None:
    first, bad = bench.start(), bench.start()
    end(bench, first)
    end(bench, bad, exit_code=1)
    known = {first: Outcome.COMPLETED, bad: Outcome.FAILED}
    bench.feed(st.SubmitAsked(now(), after(first), ended=known))
    bench.feed(st.SubmitAsked(now(), after(first, bad), ended=known))
    assert bench.schedule() == [3]
    assert bench.job(4).broken == Broken(bad, Outcome.FAILED)


@pytest.mark.parametrize("job_id", [1, 7])
def test_nobody_waits_for_a_job_that_does_not_exist(bench: Bench, job_id: int) -> None:
    with pytest.raises(Refused, match=f"there is no job {job_id} to wait for"):
        bench.submit(after(job_id))


def test_a_held_job_goes_on_waiting_when_it_is_released(bench: Bench) -> None:
    first = bench.start()
    second, third = bench.submit(after(first)), bench.submit(after(first))
    for job_id in (second, third):
        bench.feed(st.HoldAsked(now(), job_id, ALICE))
    bench.feed(st.ReleaseAsked(now(), second, ALICE))
    assert bench.schedule() == []
    end(bench, first)
    assert bench.schedule() == [second]
    bench.feed(st.ReleaseAsked(now(5), third, ALICE))
    assert bench.job(third).eligible_at == now(5).at_s
    assert bench.schedule() == [third]


def test_a_dependency_on_a_preempted_job_waits_for_its_real_end(bench: Bench) -> None:
    first = bench.start(spec(preemptible=True))
    second = bench.submit(after(first))
    bench.preempt(first)
    end(bench, first, exit_code=1)
    assert bench.job(first).state is JobState.PENDING
    assert bench.schedule() == [first]
    assert bench.job(second).awaits == (Dependency(first),)


def test_only_so_many_jobs_wait_for_one_and_others_cannot_take_all_their_places(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "MOST_DEPENDENTS", 4)
    monkeypatch.setattr(dependencies, "MOST_OF_OTHERS", 2)
    job_id = bench.start()
    theirs = after(job_id, pool="root.bob", actor=BOB)
    for asked, more in ((theirs, 2), (after(job_id), 2)):
        for _ in range(more):
            last = bench.submit(asked)
        with pytest.raises(Refused, match=f"jobs wait for job {job_id} already"):
            bench.submit(asked)
    # One that is among them may stay.
    change(bench, last, after=(Dependency(job_id, RequiredOutcome.ANY),))


def test_the_ends_of_a_thousand_jobs_are_one_event_of_each_job_that_waits(bench: Bench) -> None:
    """Each end was an event and a record of its own: the cancellation of an array of a thousand
    tasks for which twenty jobs waited, one by one, kept everybody waiting for 13 seconds."""
    common = st.SubmitAsked(now(), spec(), True, spans=((0, 99, 1),))
    (submitted,) = bench.feed(common)
    assert isinstance(submitted, ev.ArraySubmitted)
    tasks = range(submitted.array_id + 1, submitted.array_id + 101)
    wants = [
        bench.submit(after(*tasks, want=want)) for want in (RequiredOutcome.ANY, RequiredOutcome.OK)
    ]
    cancelled, *told = bench.feed(st.CancelAsked(now(5), submitted.array_id, ALICE))
    assert isinstance(cancelled, ev.Cancelled)
    for job_id, met, event in zip(wants, (True, False), told, strict=True):
        assert isinstance(event, ev.DependencySettled)
        assert event.job_id == job_id
        assert [each.on for each in event.all] == [*tasks]
        assert {(each.outcome, each.is_met) for each in event.all} == {(Outcome.CANCELLED, met)}
        assert bench.job(job_id).awaits == ()
    assert bench.job(wants[1]).broken == Broken(tasks[0], Outcome.CANCELLED)
    assert bench.ledger.dependents == {}
    # So it is at a submission, of what has ended before.
    ends = dict.fromkeys(tasks, Outcome.CANCELLED)
    asked = st.SubmitAsked(now(6), after(*tasks, want=RequiredOutcome.ANY), ended=ends)
    _, settled = bench.feed(asked)
    assert isinstance(settled, ev.DependencySettled)
    assert len(settled.all) == 100


def test_only_so_many_jobs_wait_for_the_tasks_of_one_array(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tasks may be cancelled in one turn, in which everybody else waits."""
    monkeypatch.setattr(dependencies, "MOST_DEPENDENTS", 4)
    monkeypatch.setattr(dependencies, "MOST_OF_OTHERS", 2)
    (submitted,) = bench.feed(st.SubmitAsked(now(), spec(), True, spans=((0, 99, 1),)))
    assert isinstance(submitted, ev.ArraySubmitted)
    first = submitted.array_id + 1
    for task in (first, first + 1):
        bench.submit(after(task, pool="root.bob", actor=BOB))
    with pytest.raises(Refused, match="wait 2 times for array 1"):
        bench.submit(after(first + 2, pool="root.bob", actor=BOB))
    with pytest.raises(Refused, match="and 4 times are the most"):
        bench.submit(after(first + 2, first + 3, first + 4))
    last = bench.submit(after(first + 2, first + 3))
    # Those that are among them may stay.
    change(bench, last, after=(Dependency(first + 3, RequiredOutcome.ANY),))
    bench.submit(after(first + 99))


def _counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that are looked up from now on."""
    found: list[int] = []
    find = bench.ledger.find

    def counted(job_id: int) -> Job | None:
        found.append(job_id)
        return find(job_id)

    monkeypatch.setattr(bench.ledger, "find", counted)
    return found


def test_a_cycle_is_looked_for_once_however_many_dependencies_lead_to_a_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a dependency waits for was walked through for each of a thousand dependencies: one
    request after a chain of jobs kept everybody else waiting for minutes."""
    job_id = bench.submit(spec(), held=True)
    chain = [bench.submit(spec(), held=True)]
    for _ in range(99):
        chain.append(bench.submit(after(chain[-1])))
    looked = _counted(bench, monkeypatch)
    change(bench, job_id, after=tuple(Dependency(each) for each in chain[::-1]))
    assert len(looked) < 500
    # It is still found, behind whatever has been looked at before.
    free = bench.submit(spec(), held=True)
    with pytest.raises(Refused, match=f"job {job_id} would wait for job {chain[0]}"):
        change(bench, chain[0], after=(Dependency(free), Dependency(job_id)))


def test_what_the_tasks_of_an_array_wait_for_is_looked_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it can ever start was found out for each task anew, by who waited for the array."""
    chain = [bench.submit(spec(), held=True)]
    for _ in range(99):
        chain.append(bench.submit(after(chain[-1])))
    tasks = [replace(bench.job(chain[-1]), id=1000 + at) for at in range(100)]
    looked = _counted(bench, monkeypatch)
    assert first_stuck(tasks, bench.ledger) is None
    assert len(looked) < 500
    broken = replace(tasks[7], broken=Broken(5, Outcome.FAILED))
    assert first_stuck([*tasks, broken], bench.ledger) is broken


def test_an_arrays_tasks_are_looked_through_once_for_all_that_wait_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a list they were looked through for each job that waits: nobody's list was told in less
    than a minute while a thousand jobs waited for an array with thousands of records."""
    (submitted,) = bench.feed(st.SubmitAsked(now(), spec(), True, spans=((0, 9, 1),)))
    assert isinstance(submitted, ev.ArraySubmitted)
    array_id = submitted.array_id
    waiting = [bench.submit(after(array_id)) for _ in range(5)]
    for task in range(array_id + 1, array_id + 11):
        bench.feed(st.ReleaseAsked(now(), task, ALICE))
    looked: list[int] = []
    parts = dependencies._parts

    def counted(ledger: Ledger, job_id: int) -> list[Job]:
        looked.append(job_id)
        return parts(ledger, job_id)

    monkeypatch.setattr(dependencies, "_parts", counted)
    pending = waits_for(array_id, (JobState.PENDING, 10), is_array=True)
    assert {reason(bench, each) for each in waiting} == {pending}
    assert looked == [array_id]
    # What happens to any of them is seen.
    bench.feed(st.HoldAsked(now(), array_id + 7, ALICE))
    assert reason(bench, waiting[0]) == waits_for(
        array_id, (JobState.HELD, 1), (JobState.PENDING, 9), is_array=True
    )
    bench.feed(st.ReleaseAsked(now(), array_id + 7, ALICE))
    assert reason(bench, waiting[0]) == pending


# -- begin times -----------------------------------------------------------------------------------


def unix(at_s: int) -> int:
    return int(now(at_s).at_s)


def test_a_job_starts_at_its_begin_time_and_not_before(bench: Bench) -> None:
    job_id = bench.submit(spec(begin_s=unix(60)))
    assert bench.schedule() == []
    assert reason(bench, job_id) == WaitReason(ReasonCode.BEGIN_TIME, StartsFrom(unix(60), None))
    assert bench.feed(st.Tick(now(59.9))) == []
    bench.feed(st.Tick(now(60.5)))
    assert bench.job(job_id).eligible_at == now(60.5).at_s
    assert bench.schedule(60.5) == [job_id]


def test_a_begin_time_that_is_over_keeps_nothing_back(bench: Bench) -> None:
    job_id = bench.submit(spec(begin_s=unix(-1)))
    assert bench.schedule() == [job_id]


def test_a_moment_costs_the_jobs_that_it_lets_go_and_no_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in (30, 10, 20, 40):
        bench.submit(spec(begin_s=unix(seconds)))
    looked: list[object] = []
    walk = Line.__iter__

    def counting(line: Line) -> object:
        for entry in walk(line):
            looked.append(entry)
            yield entry

    monkeypatch.setattr(Line, "__iter__", counting)
    assert [each.job_id for each in begin(bench.ledger, now(20).at_s)] == [2, 3]  # type: ignore[union-attr]
    assert len(looked) == 3, "and the first that is still to come"
    monkeypatch.undo()


def test_a_crowd_whose_time_has_come_is_let_go_in_several_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "_AT_ONCE", 2)
    for _ in range(3):
        bench.submit(spec(begin_s=unix(5)))
    assert [len(bench.feed(st.Tick(now(5)))) for _ in range(3)] == [2, 1, 0]


def test_both_the_time_and_the_others_must_let_it_go(bench: Bench) -> None:
    first = bench.start()
    early = bench.submit(after(first, begin_s=unix(60)))
    late = bench.submit(after(first, begin_s=unix(5)))
    bench.feed(st.Tick(now(6)))
    assert bench.schedule() == []
    end(bench, first, at_s=7)
    assert bench.schedule(7) == [late]
    bench.feed(st.Tick(now(60)))
    assert bench.schedule(60) == [early]


def test_a_held_job_does_not_start_when_its_time_comes(bench: Bench) -> None:
    job_id = bench.submit(spec(begin_s=unix(5)), held=True)
    bench.feed(st.Tick(now(6)))
    assert bench.schedule(6) == []
    bench.feed(st.ReleaseAsked(now(7), job_id, ALICE))
    assert bench.schedule(7) == [job_id]


# -- changes ---------------------------------------------------------------------------------------


def change(bench: Bench, job_id: int, *, by: st.Actor = ALICE, at_s: float = 0.0,
           ended: dict[int, Outcome] | None = None, **wish: object) -> list[ev.Event]:  # fmt: skip
    wishes = st.Change(**wish)  # type: ignore[arg-type]
    return bench.feed(st.ChangeAsked(now(at_s), job_id, by, wishes, ended or {}))


def test_dependencies_can_be_taken_away_and_given(bench: Bench) -> None:
    first = bench.start()
    second = bench.submit(after(first))
    third = bench.submit()
    change(bench, third, after=(Dependency(first),))
    change(bench, second, after=(), at_s=3)
    assert bench.job(second).eligible_at == now(3).at_s
    assert bench.schedule() == [second]
    end(bench, first)
    assert bench.schedule() == [third]


def test_a_broken_dependency_is_mended_by_another_one(bench: Bench) -> None:
    first, other = bench.start(), bench.start()
    second = bench.submit(after(first))
    end(bench, first, exit_code=1)
    end(bench, other)
    change(bench, second, after=(Dependency(other),), ended={other: Outcome.COMPLETED})
    assert bench.job(second).broken is None
    assert bench.schedule() == [second]


def test_a_circle_is_refused_however_long(bench: Bench) -> None:
    first = bench.submit(held=True)
    second = bench.submit(after(first))
    third = bench.submit(after(second))
    for job_id in (first, second, third):
        with pytest.raises(Refused) as refused:
            change(bench, first, after=(Dependency(job_id),))
        assert refused.value.code == "cycle"
    change(bench, third, after=(Dependency(first),))
    change(bench, second, after=(Dependency(third),))


def test_a_begin_time_can_be_moved_and_taken_away(bench: Bench) -> None:
    job_id = bench.submit(spec(begin_s=unix(60)))
    change(bench, job_id, begin_s=unix(30))
    bench.feed(st.Tick(now(30)))
    assert bench.job(job_id).eligible_at == now(30).at_s
    change(bench, job_id, begin_s=unix(90), at_s=31)
    assert bench.schedule(31) == []
    change(bench, job_id, begin_s=0, at_s=32)
    assert bench.job(job_id).spec.begin_s is None
    assert bench.schedule(32) == [job_id]


def test_another_demand_pool_and_priority_move_it_in_the_queues(bench: Bench) -> None:
    bench.start(spec(asks=demand(9, 1)))
    first, second = bench.submit(), bench.submit()
    (event,) = change(bench, second, priority=5, cores_milli=500, read_bps=7, name="other")
    assert isinstance(event, ev.Altered)
    assert event.text == ("name job → other, priority 0 → 5, cores 1 → 0.5, io 0/0 → 7/0")
    end(bench, 1)
    assert bench.schedule() == [second, first]
    assert bench.job(second).eligible_at == now().at_s, "it has waited as long as before"


def test_what_would_be_refused_at_submission_is_refused_and_changes_nothing(bench: Bench) -> None:
    job_id = bench.submit(held=True)
    before = bench.job(job_id)
    for wish, code in (
        ({"cores_milli": 10_000}, "too-big"),
        ({"pool": "nowhere"}, "no-such-pool"),
        ({"after": (Dependency(99),)}, "no-such-job"),
    ):
        with pytest.raises(Refused) as refused:
            change(bench, job_id, **wish)
        assert refused.value.code == code
        if code == "too-big":
            assert refused.value.hint == "the job stays as it is"
    with pytest.raises(NotPermitted):
        change(bench, job_id, by=BOB, priority=1)
    assert bench.job(job_id) == before


def test_a_change_to_what_is_so_already_is_no_event(bench: Bench) -> None:
    job_id = bench.submit(held=True)
    assert change(bench, job_id, priority=0, cores_milli=1000, begin_s=0, after=()) == []


def test_a_running_jobs_time_is_shortened_by_its_owner_and_lengthened_by_administrators(
    bench: Bench,
) -> None:
    job_id = bench.start(spec(time_limit_s=60))
    admin = st.Actor(user="root", uid=0, is_admin=True)
    for longer in (61, 0):
        with pytest.raises(NotPermitted, match="only an administrator may give it more time"):
            change(bench, job_id, time_limit_s=longer)
    with pytest.raises(Refused, match=r"only the time limit \(-t\) can be changed"):
        change(bench, job_id, time_limit_s=30, priority=4)
    change(bench, job_id, time_limit_s=30)
    change(bench, job_id, time_limit_s=45, by=admin)
    assert bench.feed(st.Tick(now(44))) == []
    (stop,) = bench.feed(st.Tick(now(45)))
    assert isinstance(stop, ev.StopRequested)
    assert stop.outcome is Outcome.TIMEOUT


def test_a_range_of_a_waiting_job_is_changed_as_a_whole_or_by_its_upper_end(bench: Bench) -> None:
    """Lower and upper end are one wish: a new figure alone is no range any more."""
    job_id = bench.submit(held=True)
    texts = []
    for wish, least, most in (
        ({"cores_milli": 2000, "cores_max_milli": 8000}, 2000, 8000),
        ({"cores_max_milli": 4000}, 2000, 4000),
        ({"memory_bytes": 2 << 30}, 2000, 4000),
        ({"cores_max_milli": "all"}, 2000, 9000),
        ({"cores_milli": 3000}, 3000, None),
        ({"cores_max_milli": 9000}, 3000, 9000),
        ({"cores_max_milli": 0}, 3000, None),
    ):
        (event,) = change(bench, job_id, **wish)
        assert isinstance(event, ev.Altered)
        texts.append(event.text)
        after = bench.job(job_id).spec
        assert after.demand.cores_milli == least
        assert after.most == (None if most is None else Resources(cores_milli=most))
    assert texts == [
        "cores 1 → 2..8",
        "cores 2..8 → 2..4",
        "memory 1G → 2G",
        "cores 2..4 → 2..9",
        "cores 2..9 → 3",
        "cores 3 → 3..9",
        "cores 3..9 → 3",
    ]


def test_ranges_of_rates_are_changed_like_those_of_cores(bench: Bench) -> None:
    job_id = bench.submit(held=True)
    (event,) = change(bench, job_id, read_bps=100, read_max_bps="all", write_bps=10)
    assert bench.job(job_id).spec.most == Resources(read_bps=1000)
    assert isinstance(event, ev.Altered)
    assert event.text == "io 0/0 → 100..1000/10"
    change(bench, job_id, cores_max_milli=4000)
    assert bench.job(job_id).spec.most == Resources(cores_milli=4000, read_bps=1000)
    change(bench, job_id, read_bps=50)
    assert bench.job(job_id).spec.most == Resources(cores_milli=4000)
    with pytest.raises(Refused, match="--io: the range ends at 20/s, below the 50/s"):
        change(bench, job_id, read_max_bps=20)


def test_of_a_running_job_the_owner_may_change_the_upper_ends_of_ranges(bench: Bench) -> None:
    """They are not booked, so nobody else is concerned; what it holds stays."""
    job_id = bench.start(spec(asks=demand(2)))
    held = bench.ledger.allocated
    change(bench, job_id, cores_milli=2000, cores_max_milli=4000)
    assert bench.job(job_id).spec.most == Resources(cores_milli=4000)
    change(bench, job_id, cores_max_milli="all", time_limit_s=30)
    assert bench.job(job_id).spec.most == Resources(cores_milli=9000)
    assert bench.job(job_id).spec.time_limit_s == 30
    for floor in ({"cores_milli": 3000, "cores_max_milli": 4000}, {"cores_milli": 1000}):
        with pytest.raises(Refused, match=r"and the upper end of a range \(-c 2..8\)"):
            change(bench, job_id, **floor)
    change(bench, job_id, cores_milli=2000)
    assert bench.job(job_id).spec.most is None
    assert bench.ledger.allocated == held
    with pytest.raises(NotPermitted):
        change(bench, job_id, by=BOB, cores_max_milli=4000)


def test_the_range_of_an_array_is_that_of_its_tasks(bench: Bench) -> None:
    bench.feed(st.SubmitAsked(now(), spec(asks=demand(2)), spans=((0, 9, 1),)))
    change(bench, 1, cores_max_milli=4000)
    assert bench.schedule() == [2, 3, 4, 5]
    assert bench.job(2).spec.most == Resources(cores_milli=4000)


@pytest.mark.parametrize("state", [JobState.STOPPING, JobState.CLEANING])
def test_what_is_about_to_end_cannot_be_changed(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    with pytest.raises(Refused, match="nothing can be changed"):
        change(bench, 1, time_limit_s=5)


def test_the_dependencies_of_one_users_jobs_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is an event when what is waited for ends: the cancellation of a thousand jobs for which
    a thousand waited held everybody up for minutes."""
    monkeypatch.setattr(dependencies, "MOST_MORE", 5)
    ids = [bench.submit(spec(), held=True) for _ in range(6)]
    others = [bench.submit(spec(pool="root.bob", actor=BOB), held=True) for _ in range(2)]
    chain = bench.submit(after(ids[0]))
    for _ in range(10):
        chain = bench.submit(after(chain))
    assert bench.ledger.job_counts.more_dependencies == {}
    first = bench.submit(after(*ids[:4]))
    with pytest.raises(Refused, match="would wait for 6 others beyond the first") as caught:
        bench.submit(after(*ids[:4]))
    assert caught.value.code == "too-many-dependencies"
    second = bench.submit(after(*ids[:3]))
    # Nobody else is concerned, and what counts less is taken.
    bench.submit(after(*others, pool="root.bob", actor=BOB))
    fewer = tuple(Dependency(each) for each in ids[:2])
    bench.feed(st.ChangeAsked(now(0), second, ALICE, st.Change(after=fewer)))
    assert bench.ledger.job_counts.more_dependencies == {ALICE.user: 4, BOB.user: 1}
    bench.feed(st.CancelAsked(now(0), first, ALICE))
    assert bench.ledger.job_counts.more_dependencies == {ALICE.user: 1, BOB.user: 1}


RULES = replace(rules(cores=1000, memory_gib=1000), max_waiting_per_user=10**6)


class Parts:
    """Books whose jobs are told of ends `most` at a time, by who asks for it."""

    def __init__(self, most: float = inf) -> None:
        self.ledger = Ledger(RULES.axes)
        self.settlement = Settlement()
        self.most = most
        #: How each has ended, as the journal keeps it.
        self.ended: dict[int, Outcome] = {}

    def feed(self, stimulus: st.Stimulus) -> list[ev.Event]:
        found = decide(self.ledger, stimulus, RULES)
        for event in found:
            self._apply(event)
        return found

    def tell(self) -> list[ev.Event]:
        """One part."""
        found = []
        for event in self.settlement.take(self.ledger, self.most):
            self._apply(event)
            found.append(event)
        return found

    def _apply(self, event: ev.Event) -> None:
        arrays = dict(self.ledger.arrays.items())
        job = self.ledger.apply(event)
        if job is not None and job.state is JobState.ENDED:
            assert job.outcome is not None
            gone = [job.id]
            if job.id in arrays:
                whole = arrays[job.id].array
                gone = [
                    each
                    for each in range(whole.id + 1, whole.last_id + 1)
                    if each not in self.ended and not self.ledger.lives(each)
                ]
            self.ended.update(dict.fromkeys(gone, job.outcome))
            array_id = job.array_id
            if array_id is not None and array_id not in self.ledger.arrays:
                bad = arrays[array_id].failed
                self.ended[array_id] = Outcome.COMPLETED if bad is None else bad[1]

    def submit(self, asked: JobSpec, **more: Any) -> int:
        first = self.ledger.next_id
        gone = {each.job_id: self.ended[each.job_id] for each in asked.after
                if each.job_id in self.ended}  # fmt: skip
        self.feed(st.SubmitAsked(now(), asked, ended=gone, **more))
        return first

    def run(self, job_id: int, exit_code: int, at_s: float) -> None:
        """From its start to its end."""
        self.ledger.apply(ev.Admitted(job_id=job_id, at_s=now(at_s).at_s, attempt=1))
        self.feed(attempt_started(job_id))
        self.feed(ended(job_id, 1, at_s, exit_code=exit_code))
        self.feed(st.AttemptRemoved(now(at_s), job_id, 1))


def results(ledger: Ledger) -> dict[int, Any]:
    """What is true of each job that lives; since when it waits for its turn, too."""
    jobs = [*ledger.jobs.values(), *(each.array.common for each in ledger.arrays.values())]
    return {job.id: (job.state, job.awaits, job.broken, job.eligible_at) for job in jobs}


def life(books: Parts, seed: int, between: Callable[[], object]) -> None:
    """Jobs and arrays that wait for each other, their ends, and what is asked for meanwhile."""
    random, at_s = Random(seed), 0.0
    ids: list[int] = []
    for _ in range(60):
        at_s += 1.0
        live = [each for each in ids if books.ledger.lives(each)]
        chance = random.random()
        known = random.sample(ids[-12:], min(len(ids), random.choice([0, 1, 1, 2, 4])))
        asked = spec(
            after=tuple(Dependency(each, random.choice([*RequiredOutcome])) for each in known),
            priority=random.choice([0, 0, 5]),
            actor=random.choice([ALICE, BOB]),
        )
        chosen = random.choice(live) if live else None
        code, choice = random.choice([0, 0, 1]), random.random()
        if chance < 0.5 or chosen is None:
            spans = ((0, 3, 1),) if choice < 0.2 else ()
            first = books.submit(asked, spans=spans)
            ids += range(first, books.ledger.next_id)
        elif chance < 0.8:
            job = books.ledger.find(chosen)
            # What waits, as far as has been told, starts in one of the books later than in another.
            if job is not None and job.state is JobState.PENDING and not job.spec.after:
                books.run(chosen, code, at_s)
        else:
            kind = st.CancelAsked if choice < 0.7 else st.HoldAsked
            try:
                books.feed(kind(now(at_s), chosen, st.Actor("root", 0, is_admin=True)))
            except Refused:
                pass
        between()


@pytest.mark.parametrize("most", seeds([1, 2], quick=1))
def test_told_in_parts_all_jobs_stand_as_if_they_had_been_told_at_once(most: int) -> None:
    """Whatever happens between two parts, and also if the books are read anew between them."""
    told = untold = 0
    for seed in range(30):
        at_once, parts, read = Parts(), Parts(most), Parts(most)

        def read_again(books: Parts = read) -> None:
            nonlocal told, untold
            told += len(books.tell())
            untold += bool(books.ledger.dependents.ended)
            before = books.ledger
            before.check()
            books.ledger = Ledger.of_jobs(
                RULES.axes,
                before.jobs.values(),
                arrays=before.arrays.live(),
                next_id=before.next_id,
                ended=lambda ids: {each: before.dependents.ended[each] for each in ids},
            )
            books.settlement = Settlement()

        life(at_once, seed, at_once.tell)
        life(parts, seed, parts.tell)
        life(read, seed, read_again)
        for books in (parts, read):
            told += len(settle_all(books.ledger))
            assert results(books.ledger) == results(at_once.ledger), seed
            assert not books.ledger.dependents.ended
            books.ledger.check()
        # And these are right: as each end of all that a job waits for says by itself.
        for job in at_once.ledger.jobs.values():
            over = [each for each in job.spec.after if each.job_id in at_once.ended]
            assert set(job.awaits) == set(job.spec.after) - set(over), seed
            bad = any(not is_met(each.want, at_once.ended[each.job_id]) for each in over)
            assert (job.broken is not None) is bad, seed
    assert told > 100
    assert untold > (20 if most == 1 else 1)


def crowd(books: Parts, first: int, *specs: JobSpec) -> list[int]:
    ids = [books.submit(each) for each in specs]
    books.run(first, 0, 5.0)
    assert len(books.ledger.dependents.ended) == 1
    return ids


def test_a_part_is_as_large_as_it_is_to_be() -> None:
    books = Parts(64)
    first = books.submit(spec())
    ids = crowd(books, first, *(after(first) for _ in range(200)))
    parts = []
    while books.ledger.dependents.ended:
        parts.append([event.job_id for event in books.tell()])
    assert [job_id for part in parts for job_id in part] == ids
    assert list(map(len, parts)) == [63, 64, 64, 9], "to put them in order has its price, too"
    assert books.tell() == []


def test_jobs_that_wait_for_many_others_make_a_part_smaller() -> None:
    books = Parts(64)
    first = books.submit(spec())
    others = [books.submit(spec()) for _ in range(320)]
    crowd(books, first, *(after(first, *others) for _ in range(12)))
    assert len(books.tell()) == 6


def test_those_come_first_that_would_start_first_and_users_take_turns() -> None:
    books = Parts(4)
    first = books.submit(spec())
    low = [books.submit(after(first)) for _ in range(3)]
    high = [books.submit(after(first, priority=5)) for _ in range(2)]
    theirs = [books.submit(after(first, pool="root.bob", actor=BOB)) for _ in range(2)]
    crowd(books, first)
    assert [event.job_id for event in books.tell()] == [high[0], theirs[0], high[1], theirs[1]]
    assert [event.job_id for event in books.tell()] == low


def test_the_end_of_one_users_job_is_told_beside_a_crowd_that_waits_for_anothers() -> None:
    books = Parts(4)
    first, other = books.submit(spec()), books.submit(spec("root.bob", actor=BOB))
    crowd(books, first, *(after(first) for _ in range(100)))
    (theirs,) = [books.submit(after(other, pool="root.bob", actor=BOB))]
    books.tell()
    books.run(other, 0, 6.0)
    assert theirs in [event.job_id for event in books.tell()]


def test_who_is_not_told_yet_can_be_asked_about_changed_and_cancelled() -> None:
    books = Parts(1)
    first = books.submit(spec())
    told, *ids = crowd(books, first, *(after(first) for _ in range(4)))
    assert [event.job_id for event in books.tell()] == [told]

    def job(job_id: int) -> Job:
        return books.ledger.jobs[job_id]

    reason = explain_wait(job(ids[0]), books.ledger, None, RULES)
    assert reason == WaitReason(ReasonCode.DEPENDENCY, DependenciesEnded())
    assert awaited(job(ids[0]), books.ledger) == []
    assert first_stuck([job(each) for each in ids], books.ledger) is None
    # One more may come to wait for what has ended: it is told at once.
    late = books.submit(after(first, want=RequiredOutcome.FAIL))
    assert job(late).broken == Broken(first, Outcome.COMPLETED)
    books.feed(st.ChangeAsked(now(), ids[0], ALICE, st.Change(after=())))
    books.feed(st.CancelAsked(now(), ids[1], ALICE))
    books.feed(st.HoldAsked(now(), ids[2], ALICE))
    assert [event.job_id for event in books.tell()] == [ids[2]]
    assert job(ids[2]).awaits == ()
    assert job(ids[2]).state is JobState.HELD
    books.ledger.check()


def test_nobody_is_refused_because_of_those_who_are_still_to_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drfd.core.decisions.dependencies.MOST_DEPENDENTS", 3)
    books = Parts(1)
    first = books.submit(spec())
    crowd(books, first, *(after(first) for _ in range(3)))
    late = books.submit(after(first))
    assert books.ledger.jobs[late].awaits == ()


def test_of_two_ends_that_are_told_together_the_first_bad_one_is_named(bench: Bench) -> None:
    books = Parts(inf)
    first, second = books.submit(spec()), books.submit(spec())
    waiting = books.submit(after(second, first))
    books.run(first, 1, 5.0)
    books.run(second, 2, 6.0)
    (event,) = books.tell()
    assert [(each.on, each.is_met) for each in event.all] == [(first, False), (second, False)]
    assert event.at_s == now(6.0).at_s
    assert books.ledger.jobs[waiting].broken == Broken(first, Outcome.FAILED)


def test_a_copy_of_the_books_knows_whom_to_tell(bench: Bench) -> None:
    books = Parts(1)
    first = books.submit(spec())
    crowd(books, first, *(after(first) for _ in range(3)))
    books.tell()
    copy = deepcopy(books.ledger.with_axes(RULES.axes))
    assert [event.job_id for event in settle_all(copy)] == [3, 4]


# -- jobs that are cancelled when they can never start -----------------------------------------


def if_never(*ids: int, want: RequiredOutcome = RequiredOutcome.OK) -> JobSpec:
    return after(*ids, want=want, cancel_if_never=True)


def fate(bench: Bench, job_id: int) -> tuple[Outcome, str] | None:
    """How the job has ended by a rule, and what is said of it."""
    for event in bench.events:
        if isinstance(event, ev.Cancelled) and event.job_id == job_id:
            assert event.by == "drfd"
            return Outcome.CANCELLED, event.why
    assert bench.ledger.find(job_id) is not None
    return None


def why(label: object, outcome: str) -> tuple[Outcome, str]:
    return Outcome.CANCELLED, (
        f"cancelled, because job {label} ended {outcome} and it could never start "
        "(--if-never cancel)"
    )


def test_a_chain_is_cancelled_to_its_end_and_each_names_its_cause(bench: Bench) -> None:
    first = bench.start()
    second = bench.submit(if_never(first))
    third = bench.submit(if_never(second), held=True)
    kept = bench.submit(after(second))
    rescue = bench.submit(if_never(second, want=RequiredOutcome.ANY))
    end(bench, first, exit_code=3)
    assert fate(bench, second) == why(first, "FAILED")
    assert fate(bench, third) == why(second, "CANCELLED")
    assert fate(bench, kept) is None, "its owner may still want it"
    assert bench.job(kept).broken == Broken(second, Outcome.CANCELLED)
    assert bench.schedule(2) == [rescue]
    assert not bench.ledger.dependents.ended


def test_a_dependency_that_is_met_cancels_nobody(bench: Bench) -> None:
    first = bench.start()
    second = bench.submit(if_never(first))
    end(bench, first)
    assert fate(bench, second) is None
    assert bench.schedule(2) == [second]


def test_one_that_can_never_start_from_its_submission_on_is_cancelled_in_the_same_turn(
    bench: Bench,
) -> None:
    asked = st.SubmitAsked(now(6), if_never(7), ended={7: Outcome.TIMEOUT})
    events = bench.feed(asked)
    assert [type(event) for event in events] == [ev.Submitted, ev.DependencySettled, ev.Cancelled]
    assert fate(bench, events[0].job_id) == why(7, "TIMEOUT")  # type: ignore[union-attr]
    assert bench.ledger.jobs == {}


def test_all_tasks_that_wait_are_cancelled_together(bench: Bench) -> None:
    first = bench.start()
    (array,) = bench.feed(st.SubmitAsked(now(), if_never(first), spans=((0, 99, 1),)))
    assert isinstance(array, ev.ArraySubmitted)
    last = bench.submit(if_never(array.array_id))
    events = end(bench, first, exit_code=1)
    assert [type(event) for event in events[1:]] == [
        ev.DependencySettled, ev.Cancelled, ev.DependencySettled, ev.Cancelled,
    ]  # fmt: skip
    assert fate(bench, last) == why(array.array_id, "CANCELLED")
    assert bench.ledger.jobs == {}
    assert not bench.ledger.arrays


def test_a_task_that_failed_is_named_by_its_index(bench: Bench) -> None:
    (array,) = bench.feed(st.SubmitAsked(now(), spec(), spans=((7, 9, 1),)))
    assert isinstance(array, ev.ArraySubmitted)
    task, *_ = bench.schedule()
    waiting = bench.submit(if_never(task))
    bench.feed(attempt_started(task))
    end(bench, task, exit_code=1)
    assert fate(bench, waiting) == why(f"{array.array_id}_7", "FAILED")


def test_new_dependencies_that_can_never_be_met_cancel_it_too(bench: Bench) -> None:
    waiting = bench.submit(if_never(bench.start()))
    change = st.Change(after=(Dependency(99),))
    bench.feed(st.ChangeAsked(now(3), waiting, ALICE, change, ended={99: Outcome.FAILED}))
    assert fate(bench, waiting) == why(99, "FAILED")


@pytest.mark.parametrize("most", [1, 3, inf])
@pytest.mark.parametrize("seed", seeds(range(25), quick=5))
def test_in_any_graph_exactly_those_are_cancelled_that_must_be(seed: int, most: float) -> None:
    """Each by the end of one that it waits for, however many are told at a time, also if the books
    are read anew between two parts."""
    random, books = Random(seed), Parts(most)
    ids: list[int] = []
    specs: dict[int, JobSpec] = {}
    for _ in range(40):
        known = random.sample(ids, min(len(ids), random.choice([0, 1, 1, 2, 3])))
        asked = spec(
            after=tuple(Dependency(each, random.choice([*RequiredOutcome])) for each in known),
            cancel_if_never=random.random() < 0.6,
        )
        ids.append(books.submit(asked))
        specs[ids[-1]] = asked
    roots = [each for each in ids if not specs[each].after]
    for at_s, root in enumerate(random.sample(roots, len(roots)), 1):
        books.run(root, random.choice([0, 1]), float(at_s))
        books.tell()
        if random.random() < 0.3:
            books.ledger = Ledger.of_jobs(
                RULES.axes, books.ledger.jobs.values(), arrays=(),
                next_id=books.ledger.next_id,
                ended=lambda ids: {each: books.ledger.dependents.ended[each] for each in ids},
            )  # fmt: skip
            books.settlement = Settlement()
    while books.ledger.dependents.ended:
        assert books.tell(), "what is left is told"
    for job_id in ids:
        after_these = specs[job_id].after
        over = {each: books.ended.get(each.job_id) for each in after_these}
        is_broken = any(out is not None and not is_met(on.want, out) for on, out in over.items())
        job = books.ledger.find(job_id)
        if job_id in roots:
            assert job is None
        elif is_broken and specs[job_id].cancel_if_never:
            assert job is None
            assert books.ended[job_id] is Outcome.CANCELLED
        else:
            assert job is not None
            assert (job.broken is not None) is is_broken
            is_free = not is_broken and all(out is not None for out in over.values())
            assert (job.eligible_at is not None) is is_free
    books.ledger.check()


# -- owners who are notified that a job can never start ----------------------------------------

TELL = Notify(("fail",), Words.of(["tell"]))


def never(bench: Bench, asked: JobSpec, **more: Any) -> list[ev.Event]:
    """Job 1 fails, for which this job or array waits; what comes of that for it."""
    first = bench.start()
    assert first == 1
    bench.feed(st.SubmitAsked(now(), replace(asked, after=(Dependency(first),)), **more))
    return [each for each in end(bench, first, exit_code=3) if getattr(each, "job_id", 1) != 1]


def owes(bench: Bench) -> list[NotifyNever]:
    return [each for each in map(owed, bench.ledger.jobs_to_notify()) if each is not None]  # type: ignore[misc]


@pytest.mark.parametrize("held", [False, True])
def test_the_owner_of_a_job_that_never_starts_is_notified_once(bench: Bench, held: bool) -> None:
    (settled,) = never(bench, spec(notify=TELL), held=held)
    assert isinstance(settled, ev.DependencySettled)
    assert owes(bench) == [NotifyNever(2, UNSTARTED)]
    told = st.NeverNotified(now(), 2, "told")
    assert bench.feed(told) == [ev.OwnerNotified(job_id=2, at_s=now().at_s, notice="told")]
    assert bench.feed(told) == []
    assert (owes(bench), owed(bench.job(2))) == ([], None)


@pytest.mark.parametrize("notify", [None, Notify(("start",), Words.of(["tell"]))])
def test_who_did_not_ask_for_it_is_not_notified(bench: Bench, notify: Notify | None) -> None:
    never(bench, spec(notify=notify))
    assert (owes(bench), owed(bench.job(2))) == ([], None)
    assert bench.feed(st.NeverNotified(now(), 2, "told")) == []


def test_one_that_is_cancelled_for_it_is_so_after_the_notification(bench: Bench) -> None:
    never(bench, spec(notify=TELL, cancel_if_never=True))
    assert bench.job(2).state is JobState.PENDING
    _, cancelled = bench.feed(st.NeverNotified(now(), 2, "not told: no"))
    assert cancelled == ev.Cancelled(
        job_id=2,
        at_s=now().at_s,
        by="drfd",
        why="cancelled, because job 1 ended FAILED and it could never start (--if-never cancel)",
    )
    assert owes(bench) == []


def test_a_task_that_has_left_the_books_is_named_by_its_label(bench: Bench) -> None:
    never(bench, spec(notify=TELL, cancel_if_never=True))
    _, cancelled = bench.feed(st.NeverNotified(now(), 2, "told", {1: "7_3"}))
    assert isinstance(cancelled, ev.Cancelled)
    assert "because job 7_3 ended FAILED" in cancelled.why


def test_an_array_that_never_starts_is_one_notification(bench: Bench) -> None:
    never(bench, spec(notify=TELL, cancel_if_never=True), spans=((0, 99, 1),))
    assert owes(bench) == [NotifyNever(3, UNSTARTED)]
    kinds = [type(each) for each in bench.feed(st.NeverNotified(now(), 3, "told"))]
    assert kinds == [ev.OwnerNotified, ev.Cancelled]
    assert bench.ledger.is_empty


def test_new_dependencies_that_can_never_be_met_are_another_notification(bench: Bench) -> None:
    never(bench, spec(notify=TELL))
    bench.feed(st.NeverNotified(now(), 2, "told"))
    change = st.ChangeAsked(now(), 2, ALICE, st.Change(after=(Dependency(7),)))
    bench.feed(replace(change, ended={7: Outcome.FAILED}))
    assert owes(bench) == [NotifyNever(2, UNSTARTED)]


def test_a_notification_that_comes_too_late_says_nothing_of_a_job_that_may_start(
    bench: Bench,
) -> None:
    never(bench, spec(notify=TELL, cancel_if_never=True))
    bench.feed(st.ChangeAsked(now(), 2, ALICE, st.Change(after=())))
    assert bench.feed(st.NeverNotified(now(), 2, "told")) == []
    assert bench.schedule() == [2]


def test_the_launchers_file_of_it_stays_until_the_notification_is_recorded(bench: Bench) -> None:
    never(bench, spec(notify=TELL))
    known = {(2, UNSTARTED): owner_of(bench.job(2), "j")}
    assert leftovers(bench.ledger, known, "j", lambda _: None).removals == []
    bench.feed(st.NeverNotified(now(), 2, "told"))
    found = leftovers(bench.ledger, known, "j", lambda _: None)
    assert (found.removals, found.strays) == ([RemoveAttempt(2, UNSTARTED)], {})
