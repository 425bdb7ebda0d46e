"""Jobs on several machines: where they start, what is kept for them there, and why they wait."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from core.explain.test_reasons import why
from core.ledger.test_instances import run, submit
from drfd.core.amounts.resources import Axes, Node
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.explain.reasons import (
    BehindInFifo,
    ClosedNode,
    Draining,
    ExternalUse,
    NodesClosed,
    ReasonCode,
    ResourceShortage,
    TooLittleFree,
    WaitReason,
    explain_wait,
)
from drfd.core.fairness.rules import Preempting, Rules
from drfd.core.model import stimuli as st
from drfd.core.model.events import Drained
from drfd.core.model.job import JobSpec
from drfd.core.scheduling.certainty import Certainty
from drfd.core.scheduling.kept_free import RUNNER_BYTES, ExternalLoad, runner_count
from drfd.core.scheduling.preemption import Starving, Supply, preempt
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.scheduling.scheduling_pass import CONFIGURABLE
from fakes import ADMIN, ALICE, BOB, Bench, attempt_started, demand, now, spec


def with_nodes(
    *sizes: tuple[float, float], features: dict[str, str] | None = None, **changes: Any
) -> Rules:
    """Machines n0, n1 and so on with so many cores and GiB; `features` of some, by name."""
    nodes = tuple(
        Node(
            name=f"n{at}",
            capacity=demand(cores, memory),
            features=frozenset((features or {}).get(f"n{at}", "").split()),
        )
        for at, (cores, memory) in enumerate(sizes)
    )
    capacity = demand(sum(cores for cores, _ in sizes), sum(memory for _, memory in sizes))
    return Rules(axes=Axes(nodes=nodes), capacity=capacity, **changes)


def of(cores: float, memory: float = 1, **changes: Any) -> JobSpec:
    """A job that asks for so much; `node`, `features` and `gres` as in `Resources`."""
    where = {key: changes.pop(key) for key in ("node", "features", "gres") if key in changes}
    return spec(asks=replace(demand(cores, memory), **where), **changes)


def nodes_of(bench: Bench, *jobs: int) -> list[str]:
    return [bench.job(each).node for each in jobs]


def test_who_waits_for_a_node_is_passed_by_those_who_do_not() -> None:
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bench.start(of(4, node="n1"))
    bound, free = bench.submit(of(2, node="n1")), bench.submit(of(2))
    assert bench.schedule() == [free]
    found = why(bench, bound)
    assert found is not None and isinstance(found.evidence, TooLittleFree)
    (short,) = found.evidence.shortfalls
    assert (short.shortage.axis, short.shortage.needed, short.shortage.free) == ("cores", 2000, 0)


def test_the_jobs_of_one_node_make_room_for_who_starves() -> None:
    bench = Bench(with_nodes((4, 8), (4, 8)))
    for at_s in (0, 10, 20, 30):
        bench.start(of(2, preemptible=True), at_s=at_s)
    starving = Starving("root.bob", bench.submit(of(4, pool="root.bob", actor=BOB)))
    share_tree = bench.rules.shares.share_tree(bench.ledger.used, bench.ledger.queues)
    supply = Supply(capacity=bench.rules.shares.capacity)
    found = preempt(bench.ledger, share_tree, supply, starving, Preempting(), now(5000))
    assert {bench.job(event.job_id).node for event in found} == {"n1"}
    assert len(found) == 2


def test_more_than_the_largest_node_has_is_refused() -> None:
    bench = Bench(with_nodes((4, 8), (8, 4)))
    with pytest.raises(Exception, match="9 cores, and no node for it has more than 8"):
        bench.submit(of(9))
    # More than all of them together, too.
    with pytest.raises(Exception, match="99 cores, and no node for it has more than 8"):
        bench.submit(of(99))
    with pytest.raises(Exception, match="no node here has a resource 'gpu'"):
        bench.submit(of(1, gres=(("gpu", 1),)))
    with pytest.raises(Exception, match="no node has as much of all"):
        bench.submit(of(8, 8))
    with pytest.raises(Exception, match="no node 'n7'"):
        bench.submit(of(1, node="n7"))
    with pytest.raises(Exception, match="no node here has the features gold"):
        bench.submit(of(1, features=("gold",)))


@pytest.mark.parametrize(
    ("node", "at_s", "certainty"),
    [("n1", 500, Certainty.LIMITS), ("n0", None, Certainty.UNKNOWN)],
)
def test_a_start_beside_the_load_from_outside_is_known(
    node: str, at_s: float | None, certainty: Certainty
) -> None:
    """The load of the first node, of which nobody knows how long it lasts, says nothing of n1."""
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bench.start(of(4, node="n1", time_limit_s=500), at_s=0)
    job = bench.submit(of(4, node=node))
    until_s = now(60).at_s
    load = ExternalLoad(used=demand(3, 0), kept=demand(3, 0), until_s=until_s)
    future = Forecast(bench.ledger, bench.rules, RunTimes(), {}, (), now(10), load)
    start = future.expected_start(job)
    assert start.certainty is certainty
    assert start.start_s == (None if at_s is None else now(at_s).at_s)
    assert future.is_unknown_for_external is (at_s is None)


def drained(bench: Bench, node: str, *, on: bool = True) -> None:
    bench.feed(st.DrainAsked(now(50), on, ADMIN, "new fans" if on else None, node))


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_nothing_starts_on_a_closed_node_and_all_goes_on_elsewhere(policy: str) -> None:
    bench = Bench(with_nodes((4, 8), (4, 8), policy=policy, slots=9))
    bench.ledger.nodes_away = {"n0": 50.0}
    jobs = [bench.submit(of(2)) for _ in range(3)]
    assert bench.schedule() == jobs[:2]
    assert nodes_of(bench, *jobs) == ["n1", "n1", ""]
    bench.ledger.nodes_away = {}
    assert bench.schedule() == jobs[2:]
    assert nodes_of(bench, *jobs) == ["n1", "n1", "n0"]
    bench.check()


def test_jobs_start_beside_those_that_another_scheduler_was_given_past_drfd() -> None:
    bench, scheduler = Bench(with_nodes((2, 4), (8, 16))), Scheduler(3600)
    load = scheduler.external_load
    others = {"n1": demand(5, 1), "gone": demand(1, 1)}
    assert load.see_elsewhere(others)
    assert not load.see_elsewhere(others)
    large, small = (submit(bench, scheduler, of(each, node="n1"), 0) for each in (4, 3))
    assert run(bench, scheduler, 0) == [small]
    bench.feed(attempt_started(small))
    scheduler.note(bench.job(small))
    bench.finish(small)
    assert run(bench, scheduler, 1) == []
    assert why(bench, large, scheduler.last_plan) == WaitReason(
        ReasonCode.EXTERNAL_LOAD,
        ExternalUse(ResourceShortage("cores", 4000, 3000), used=5000, kept=5000, node="n1"),
    )
    bench.ledger.nodes_away = {"n1": 1.0}
    assert run(bench, scheduler, 2) == []
    assert why(bench, large, scheduler.last_plan) == WaitReason(
        ReasonCode.NODE_AWAY, NodesClosed((ClosedNode("n1", away_since_s=1.0),))
    )
    bench.ledger.nodes_away = {}
    assert load.see_elsewhere({})
    assert run(bench, scheduler, 3) == [large]
    bench.check()


def test_who_waits_for_a_closed_node_holds_nobody_up_and_is_told_of_it() -> None:
    """Neither a reservation nor a long wait keeps others from the other node."""
    bench, scheduler = Bench(with_nodes((8, 16), (4, 8))), Scheduler(3600)
    bench.ledger.nodes_away = {"n0": 50.0}
    bound = submit(bench, scheduler, of(1, node="n0"), 0)
    large = submit(bench, scheduler, of(6), 0)
    for at_s in (0, 1000, 10**6):
        small = submit(bench, scheduler, of(4, time_limit_s=9000), at_s)
        assert run(bench, scheduler, at_s) == [small]
        assert scheduler.reservations == ()
        for each in (bound, large):
            told = NodesClosed((ClosedNode("n0", away_since_s=50.0),))
            assert why(bench, each) == WaitReason(ReasonCode.NODE_AWAY, told)
        bench.feed(attempt_started(small, at_s=at_s))
        scheduler.note(bench.job(small))
        bench.finish(small)
        scheduler.forget_derived_state()
    bench.ledger.nodes_away = {}
    bench.check()


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_nobody_waits_behind_a_job_of_a_closed_node(policy: str) -> None:
    bench = Bench(with_nodes((4, 8), (4, 8), policy=policy, slots=9))
    drained(bench, "n1")
    bound = bench.submit(of(1, node="n1"))
    others = [bench.submit(of(3)) for _ in range(2)]
    assert bench.schedule() == others[:1]
    last = bench.submit(of(3, pool="root.bob", actor=BOB))
    assert bench.schedule() == []
    found = why(bench, bound)
    assert found is not None and found.code is ReasonCode.DRAINING
    for each in (others[1], last):
        found = why(bench, each)
        assert found is not None and not isinstance(found.evidence, NodesClosed)
        if isinstance(found.evidence, BehindInFifo):
            assert found.evidence.job == str(others[1])
    bench.check()


@pytest.mark.parametrize("rest", [((4, 8),), ()])
def test_who_waits_for_a_node_that_is_not_configured_any_more_is_told_so(
    rest: tuple[tuple[float, float], ...],
) -> None:
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bound = bench.submit(of(1, node="n1"))
    rules = with_nodes(*rest) if rest else Rules(axes=Axes(), capacity=demand(4, 8))
    ledger = bench.ledger.with_axes(rules.axes)
    reason = WaitReason(ReasonCode.NODE_AWAY, NodesClosed((ClosedNode("n1"),)))
    assert explain_wait(ledger.jobs[bound], ledger, None, rules) == reason


def test_a_drained_node_is_told_apart_from_one_that_is_away() -> None:
    bench = Bench(with_nodes((4, 8), (4, 8), (2, 4)))
    large, bound = bench.submit(of(3)), bench.submit(of(1, node="n0"))
    drained(bench, "n0")
    stop = Draining("root", now(50).at_s, "new fans")
    bench.ledger.nodes_away = {"n1": 60.0}
    assert bench.schedule() == []
    away = NodesClosed((ClosedNode("n0", drained=stop), ClosedNode("n1", away_since_s=60.0)))
    assert why(bench, large) == WaitReason(ReasonCode.NODE_AWAY, away)
    only = NodesClosed((ClosedNode("n0", drained=stop),))
    assert why(bench, bound) == WaitReason(ReasonCode.DRAINING, only)
    copy = bench.ledger.with_axes(bench.rules.axes)
    assert copy.closed_nodes == bench.ledger.closed_nodes == {"n0", "n1"}
    drained(bench, "n0", on=False)
    assert bench.schedule() == [large, bound]
    bench.ledger.nodes_away = {}
    bench.check()


def test_a_node_is_drained_by_administrators_and_by_its_name() -> None:
    bench = Bench(with_nodes((4, 8), (4, 8)))
    with pytest.raises(Exception, match="only an administrator"):
        bench.feed(st.DrainAsked(now(), True, ALICE, node="n0"))
    with pytest.raises(Exception, match="no node 'n7'"):
        bench.feed(st.DrainAsked(now(), True, ADMIN, node="n7"))
    assert bench.feed(st.DrainAsked(now(), False, ADMIN, node="n0")) == []
    drained(bench, "n1")
    assert bench.feed(st.DrainAsked(now(60), True, ADMIN, "new fans", "n1")) == []
    (event,) = bench.feed(st.DrainAsked(now(60), True, ADMIN, "new disks", "n1"))
    assert isinstance(event, Drained) and event.stopped_s == now(50).at_s
    assert not bench.ledger.draining
    assert bench.ledger.closed_nodes == {"n1"}


def test_a_frozen_job_waits_for_its_own_node() -> None:
    bench = Bench(with_nodes((4, 8), (4, 8)))
    frozen = bench.start(of(3))
    bench.suspend(frozen)
    bench.feed(st.ResumeAsked(now(), frozen, ALICE))
    bench.ledger.nodes_away = {"n0": 50.0}
    assert bench.schedule() == []
    found = why(bench, frozen)
    assert found is not None and found.code is ReasonCode.NODE_AWAY
    bench.ledger.nodes_away = {}
    assert bench.schedule() == [frozen]


def test_nobody_is_stopped_for_room_on_a_closed_node() -> None:
    bench = Bench(with_nodes((4, 8), (4, 8)))
    for at_s in (0, 10):
        bench.start(of(4, preemptible=True), at_s=at_s)
    drained(bench, "n1")
    starving = Starving("root.bob", bench.submit(of(4, pool="root.bob", actor=BOB)))
    share_tree = bench.rules.shares.share_tree(bench.ledger.used, bench.ledger.queues)
    supply = Supply(capacity=bench.rules.shares.capacity)
    found = preempt(bench.ledger, share_tree, supply, starving, Preempting(), now(5000))
    assert {bench.job(event.job_id).node for event in found} == {"n0"}


def test_runners_take_memory_of_the_first_node_alone() -> None:
    """There is memory for one runner beside the capacity, and the nodes are full of jobs."""
    rules = with_nodes((4, 8), (4, 8), root_room_bytes=RUNNER_BYTES)
    bench = Bench(rules)
    jobs = [bench.submit(of(1, 2, node=node)) for node in ("n0", "n1") for _ in range(4)]
    assert bench.schedule() == [*jobs[:3], *jobs[4:]]
    assert runner_count(bench.ledger) == 3
    bench.check()


def forecast(bench: Bench) -> Forecast:
    """From now on; the bench is copied, as a forecast changes its ledger."""
    return Forecast(
        ledger=deepcopy(bench.ledger),
        rules=bench.rules,
        run_times=RunTimes(),
        past_usage={},
        before=(),
        now=now(0.0),
    )


def test_a_start_is_forecast_for_when_one_node_has_room_though_all_together_have_it_sooner() -> (
    None
):
    bench = Bench(with_nodes((4, 8), (4, 8)))
    for cores, limit_s, node in ((3, 600, "n0"), (2, 60, "n1"), (2, 1200, "n1")):
        bench.start(of(cores, node=node, time_limit_s=limit_s))
    waiting = bench.submit(of(3, pool="root.bob", actor=BOB))
    bound = bench.submit(of(4, pool="root.bob", actor=BOB, node="n1"))
    # At 60 s three cores are free, one of them on n0.
    found = forecast(bench)
    assert found.start_s(waiting) == now(600.0).at_s
    assert found.ledger.job(waiting).node == "n0"
    assert forecast(bench).start_s(bound) == now(1200.0).at_s


def test_a_smaller_demand_is_proposed_that_one_node_has_free() -> None:
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bench.start(of(2, node="n0"))
    bench.start(of(1, node="n1"))
    waiting = bench.submit(of(4, pool="root.bob", actor=BOB))
    less = smaller_demand(lambda: forecast(bench), bench.job(waiting))
    assert less is not None
    assert less.demand.cores_milli == 3000
    fits_now = bench.submit(replace(less, pool="root.bob"))
    assert bench.schedule() == [fits_now]
