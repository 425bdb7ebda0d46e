"""Groups that users make of their own jobs: never more of them run than a job allows, and no job
waits for its group while fewer run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.common.groups import read_group
from drfd.core.decisions import job_requests
from drfd.core.explain.forecast import Forecast
from drfd.core.explain.reasons import GroupLimit, ReasonCode, WaitReason, explain_wait
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, UserGroup
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduling_pass import POLICIES
from fakes import (
    ALICE,
    BOB,
    Bench,
    attempt_started,
    demand,
    now,
    rules,
    schedule,
    spec,
)

PATIENT = replace(rules(), patience=replace(rules().patience, reserves=False))


def of(
    cores: int = 1,
    at_once: int | None = 2,
    name: str = "sweep",
    pool: str = "root.alice",
    **more: Any,
) -> JobSpec:
    return replace(spec(pool, **more), demand=demand(cores), group=UserGroup(name, at_once))


def job_id_of(events: list[ev.Event]) -> int:
    event = events[0]
    return event.array_id if isinstance(event, ev.ArraySubmitted) else event.job_id


def why(bench: Bench, job_id: int) -> WaitReason | None:
    return explain_wait(bench.ledger.job(job_id), bench.ledger, None, bench.rules)


def test_of_the_limits_of_array_and_group_the_one_that_is_reached_is_told() -> None:
    """The array might run two at once; its group runs one already."""
    bench = Bench(rules(9, 9))
    first = bench.submit(of(at_once=1))
    assert bench.schedule() == [first]
    asked = st.SubmitAsked(now(), of(at_once=1), False, spans=((0, 5, 1),), at_once=2)
    (event,) = bench.feed(asked)
    assert isinstance(event, ev.ArraySubmitted)
    assert why(bench, event.array_id + 6) == WaitReason(
        ReasonCode.LIMIT, GroupLimit("alice", "sweep", at_once=1, running=1)
    )


# -- the text ---------------------------------------------------------------------------------


def test_a_group_has_a_name_and_perhaps_a_number() -> None:
    assert read_group("sweep") == ("sweep", None)
    assert read_group("läufe_2.b%12") == ("läufe_2.b", 12)
    assert [str(UserGroup(*read_group(each))) for each in ("a", "a%3")] == ["a", "a%3"]


@pytest.mark.parametrize(
    "text", ["", "%2", "a b", "a%", "a%0", "a%x", "a%-1", "a%2%3", "x" * 65, "a\n", "--", ".a"]
)
def test_a_group_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        read_group(text)
    assert refused.value.text.startswith("--group: ")
    assert refused.value.hint == "write --group sweep, or --group sweep%2 for two at once"


# -- what starts ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_unlike_jobs_count_together(policy: str) -> None:
    """The queues offer two of each kind, and the pass drops those that are too many."""
    bench = Bench(replace(PATIENT, policy=policy))
    ids = [bench.submit(of(cores)) for cores in (1, 2, 1, 2)]
    assert len(bench.schedule()) == 2
    assert bench.schedule() == []
    bench.ledger.check()
    assert bench.ledger.groups.running(("alice", "sweep")) == 2
    assert sorted(why(bench, each) is None for each in ids) == [False, False, True, True]


def test_a_job_that_does_not_fit_keeps_no_other_of_its_group_waiting() -> None:
    bench = Bench(PATIENT)
    bench.start(replace(spec("root.bob", actor=BOB), demand=demand(5)))
    big = [bench.submit(of(9)) for _ in range(3)]
    small = bench.submit(of(1))
    assert bench.schedule() == [small]
    assert all(why(bench, each) is not None for each in big)


def test_the_room_of_a_job_that_is_left_out_goes_to_others_at_once() -> None:
    bench = Bench(PATIENT)
    first = bench.submit(of(2, at_once=1))
    bench.submit(of(5, at_once=1))
    other = bench.submit(replace(spec(), demand=demand(6)))
    plan = schedule(bench.ledger, bench.rules)
    assert plan.admitted == [first]
    assert plan.is_cut
    assert [*bench.schedule(), *bench.schedule()] == [first, other]


# -- changes ----------------------------------------------------------------------------------


def test_the_number_can_be_changed() -> None:
    bench = Bench(PATIENT)
    ids = [bench.submit(of(at_once=1)) for _ in range(4)]
    assert bench.schedule() == ids[:1]
    change = st.Change(group=UserGroup("sweep", 2))
    (event,) = bench.feed(st.ChangeAsked(now(), ids[1], ALICE, change))
    assert isinstance(event, ev.Altered)
    assert event.text == "group sweep%1 → sweep%2"
    assert bench.feed(st.ChangeAsked(now(), ids[1], ALICE, change)) == []
    assert bench.schedule() == [ids[1]]
    out = st.Change(group=UserGroup(""))
    bench.feed(st.ChangeAsked(now(), ids[2], ALICE, out))
    assert bench.ledger.job(ids[2]).spec.group is None
    assert bench.schedule() == [ids[2]]
    assert isinstance(why(bench, ids[3]), WaitReason)
    with pytest.raises(Refused, match="only the time limit"):
        bench.feed(st.ChangeAsked(now(), ids[0], ALICE, change))
    with pytest.raises(NotPermitted):
        bench.feed(st.ChangeAsked(now(), ids[3], BOB, change))
    bench.ledger.check()


def test_too_many_kinds_of_jobs_in_a_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_requests, "MOST_KINDS", 2)
    bench = Bench(PATIENT)
    bench.submit(of(1))
    bench.submit(of(2))
    with pytest.raises(Refused) as refused:
        bench.submit(of(3))
    assert refused.value.code == "too-many-kinds"
    bench.submit(of(2))
    bench.submit(of(2, at_once=None))
    bench.submit(of(3, name="other"))


@pytest.mark.parametrize(
    ("wish", "how"),
    [({}, {"held": True}), ({"begin_s": now().at_s + 100}, {}), ({}, {"spans": ((0, 5, 1),)})],
    ids=["held", "begins later", "array"],
)
def test_jobs_that_cannot_start_yet_count_among_the_kinds(
    wish: dict[str, Any], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them may become free at once, when nothing can be refused any more."""
    monkeypatch.setattr(job_requests, "MOST_KINDS", 2)
    bench = Bench(PATIENT)
    asked = [st.SubmitAsked(now(), replace(of(cores), **wish), **how) for cores in (1, 2)]
    first, _ = [job_id_of(bench.feed(each)) for each in asked]
    with pytest.raises(Refused, match="different demands"):
        bench.submit(of(3))
    other = bench.submit(of(3, name="other"))
    change = st.ChangeAsked(now(), other, ALICE, st.Change(group=UserGroup("sweep", 2)))
    with pytest.raises(Refused, match="different demands"):
        bench.feed(change)
    bench.ledger.check()
    bench.feed(st.CancelAsked(now(), first, ALICE))
    bench.feed(change)
    bench.ledger.check()


def test_a_change_of_an_array_cannot_bring_too_many_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_requests, "MOST_KINDS", 2)
    bench = Bench(PATIENT)
    alone = replace(of(), group=None)
    (event,) = bench.feed(st.SubmitAsked(now(), alone, spans=((0, 3, 1),), held=True))
    assert isinstance(event, ev.ArraySubmitted)
    for task in (1, 2, 3):
        change = st.Change(cores_milli=1000 * (task + 1))
        bench.feed(st.ChangeAsked(now(), event.array_id + task, ALICE, change))
    change = st.Change(group=UserGroup("sweep", 2))
    assert len(bench.feed(st.ChangeAsked(now(), event.array_id, ALICE, change))) == 2
    bench.ledger.check()


# -- forecasts --------------------------------------------------------------------------------


def test_a_forecast_waits_for_the_group() -> None:
    bench = Bench(PATIENT)
    ids = [bench.submit(of(at_once=1, time_limit_s=100)) for _ in range(3)]
    assert bench.schedule() == ids[:1]
    bench.feed(attempt_started(ids[0]))

    def start_s(job_id: int) -> float | None:
        left = Forecast(
            type(bench.ledger).of_jobs(bench.rules.axes, bench.ledger.jobs.values()),
            bench.rules, RunTimes(), {}, (), now(),
        )  # fmt: skip
        return left.start_s(job_id)

    first, second = start_s(ids[1]), start_s(ids[2])
    assert first is not None
    assert second is not None
    assert now().at_s < first < second


# -- whatever happens -------------------------------------------------------------------------


def running(bench: Bench) -> Counter[tuple[str, str]]:
    jobs = bench.ledger.allocated_jobs()
    return Counter((job.spec.user, job.spec.group.name) for job in jobs if job.spec.group)


def test_a_job_that_names_no_limit_has_that_of_its_group() -> None:
    """Of the waiting jobs, then of the running ones; another group and another user have their
    own."""
    bench = Bench()

    def limit(job_id: int) -> int | None:
        group = bench.ledger.jobs[job_id].spec.group
        assert group is not None
        return group.at_once

    def fresh(**more: Any) -> int | None:
        job_id = job_id_of(bench.feed(st.SubmitAsked(now(), of(at_once=None, **more))))
        found = limit(job_id)
        bench.feed(st.CancelAsked(now(), job_id, ALICE))
        return found

    assert fresh() is None
    running = bench.start(of(at_once=1))
    assert (fresh(), fresh(name="other")) == (1, None)
    waiting = job_id_of(bench.feed(st.SubmitAsked(now(), of(at_once=None))))
    assert limit(waiting) == 1
    bench.feed(st.ChangeAsked(now(), waiting, ALICE, st.Change(group=UserGroup("sweep", 3))))
    assert (fresh(), limit(running)) == (3, 1)
    assert limit(job_id_of(bench.feed(st.SubmitAsked(now(), of(at_once=7))))) == 7
    assert fresh() == 3
