"""Jobs that wait for other jobs, and for a time: when they may start, and what they are told."""

from __future__ import annotations

import pytest

from drfd.core import dependencies
from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.dependencies import begin, is_met
from drfd.core.job import Broken, Dependency, JobSpec, JobState, Outcome, Want
from drfd.core.ledger import Ledger
from drfd.core.queue import Line
from drfd.core.reasons import ReasonCode, explain_wait
from drfd.errors import NotPermitted, Refused
from fakes import ALICE, BOB, Bench, demand, ended, now, spec


def after(*ids: int, want: Want = Want.OK, **more: object) -> JobSpec:
    return spec(after=tuple(Dependency(each, want) for each in ids), **more)  # type: ignore[arg-type]


def end(bench: Bench, job_id: int, *, exit_code: int = 0, at_s: float = 0.0) -> list[ev.Event]:
    """The running job exits; what the removal of its cgroup brings about."""
    attempt = bench.job(job_id).attempt
    bench.feed(ended(job_id, attempt, at_s, exit_code=exit_code))
    return bench.feed(st.CgroupGone(now(at_s), job_id, attempt))


def reason(bench: Bench, job_id: int) -> tuple[ReasonCode, str]:
    found = explain_wait(
        bench.job(job_id), bench.ledger, None, bench.rules, lambda at_s: f"<{at_s:.0f}>"
    )
    assert found is not None
    return found.code, found.text


@pytest.mark.parametrize("outcome", Outcome)
def test_ok_wants_completion_and_fail_any_other_end(outcome: Outcome) -> None:
    good = outcome is Outcome.COMPLETED
    assert [is_met(want, outcome) for want in Want] == [good, True, not good]


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
    bench.feed(st.CgroupGone(now(), first, 1))
    assert bench.schedule() == [second]


def test_a_job_never_starts_after_the_wrong_end_and_says_so(bench: Bench) -> None:
    first = bench.start()
    wants_ok, wants_fail, wants_any = (
        bench.submit(after(first, want=want)) for want in (Want.OK, Want.FAIL, Want.ANY)
    )
    end(bench, first, exit_code=3)
    assert bench.schedule() == [wants_fail, wants_any]
    assert bench.job(wants_ok).broken == Broken(first, Outcome.FAILED)
    assert reason(bench, wants_ok) == (
        ReasonCode.DEPENDENCY_NEVER,
        f"job {first} ended FAILED and was to end well, so this one never starts; "
        f"drf cancel {wants_ok}, or drf set --after '' {wants_ok}",
    )


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
        assert explain_wait(gone, bench.ledger, None, bench.rules, str) is None


def test_a_cancelled_job_has_ended_and_not_well(bench: Bench) -> None:
    first = bench.submit(held=True)
    wants_ok = bench.submit(after(first))
    wants_fail = bench.submit(after(first, want=Want.FAIL))
    bench.feed(st.CancelAsked(now(), first, ALICE))
    assert bench.schedule() == [wants_fail]
    assert bench.job(wants_ok).broken == Broken(first, Outcome.CANCELLED)


def test_the_reason_names_the_job_that_is_waited_for_and_its_end_at_the_latest(
    bench: Bench,
) -> None:
    first = bench.start(spec("root.bob", actor=BOB, time_limit_s=60), at_s=10)
    second = bench.submit(after(first))
    third = bench.submit(after(first, second))
    latest = f"<{now(70).at_s:.0f}>"
    assert reason(bench, second) == (
        ReasonCode.DEPENDENCY,
        f"waits for job {first} (bob), which is RUNNING and ends by {latest} at the latest",
    )
    assert reason(bench, third)[1] == (
        f"waits for job {second} (alice), which is PENDING, and 1 more"
    )
    end(bench, first, exit_code=1)
    assert reason(bench, third)[0] is ReasonCode.DEPENDENCY_NEVER


def test_what_waits_for_a_job_that_never_starts_is_told_so(bench: Bench) -> None:
    first = bench.submit(held=True)
    second = bench.submit(after(first))
    third = bench.submit(after(second))
    bench.feed(st.CancelAsked(now(), first, ALICE))
    assert reason(bench, third)[1] == (
        f"waits for job {second} (alice), which never starts: see drf why {second}"
    )


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
    change(bench, last, after=(Dependency(job_id, Want.ANY),))


# -- begin times -----------------------------------------------------------------------------------


def unix(at_s: int) -> int:
    return int(now(at_s).at_s)


def test_a_job_starts_at_its_begin_time_and_not_before(bench: Bench) -> None:
    job_id = bench.submit(spec(begin_s=unix(60)))
    assert bench.schedule() == []
    assert reason(bench, job_id) == (
        ReasonCode.BEGIN_TIME,
        f"it may start from <{unix(60)}> on",
    )
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
    assert isinstance(event, ev.Changed)
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


@pytest.mark.parametrize("state", [JobState.STOPPING, JobState.CLEANING])
def test_what_is_about_to_end_cannot_be_changed(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    with pytest.raises(Refused, match="nothing can be changed"):
        change(bench, 1, time_limit_s=5)
