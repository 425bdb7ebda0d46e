"""What a machine has beside cores: nodes, GPUs, memory of its own processes and load from outside.

Where jobs start, what is kept for them there, and why they wait.
"""

from collections.abc import Iterable
from fractions import Fraction
from itertools import permutations
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.worlds import (
    CAROL,
    DAVE,
    context,
    forecast,
    of,
    pass_of,
    pass_over,
    preemptions,
    start_s,
    why,
)
from drfd.common.errors import Refused
from drfd.core.decisions import stimuli as st
from drfd.core.explain.forecast import smaller_demand
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import CONFIGURABLE, Pool, Preempting, ReservationSettings, Rules
from drfd.core.model.events import Drained
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.model.machine import (
    Allocation,
    FreeResources,
    Instance,
    InstancePlace,
    NodeDemand,
    choose_instances,
)
from drfd.core.model.resources import NOTHING, Axes, ClusterNode, Resources
from drfd.core.scheduling.backfill import BehindInOrder, KeptReservation, Reservation
from drfd.core.scheduling.kept_free import SAMPLES, ExternalLoad, ExternalLoadEstimator, beside_jobs
from drfd.core.scheduling.release_times import Certainty
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.scheduling.waits import (
    ClosedNode,
    Draining,
    ExternalUse,
    NodesAway,
    NodesDrained,
    ResourceShortage,
    Shortfall,
    TooLittleFree,
)
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    GIB,
    Bench,
    demand,
    ended,
    launched,
    now,
    of_gpu_memory,
    of_gpus,
    replace,
    rules,
    schedule,
    spec,
    with_gpus,
    with_shared_gpus,
)

# -- nodes -----------------------------------------------------------------------------------------


def with_nodes(*sizes: tuple[float, float], **changes: Any) -> Rules:
    """Machines n0, n1 and so on with so many cores and GiB."""
    nodes = tuple(
        ClusterNode(name=f"n{at}", capacity=demand(cores, memory))
        for at, (cores, memory) in enumerate(sizes)
    )
    capacity = demand(sum(cores for cores, _ in sizes), sum(memory for _, memory in sizes))
    return Rules(axes=Axes(nodes=nodes), capacity=capacity, **changes)


def node_job(cores: float, memory: float = 1, **changes: Any) -> JobSpec:
    """A job that asks for so much; `node`, `features` and `gres` as in `Resources`."""
    where = {key: changes.pop(key) for key in ("node", "features", "gres") if key in changes}
    return spec(asks=replace(demand(cores, memory), **where), **changes)


def shortfall(bench: Bench, job_id: int) -> Shortfall:
    """The only thing that the job waits for."""
    found = why(bench, job_id)
    assert found is not None and isinstance(found, TooLittleFree)
    (short,) = found.shortfalls
    return short


def nodes_of(bench: Bench, *jobs: int) -> list[str]:
    return [bench.job(each).node for each in jobs]


def test_who_waits_for_a_node_is_passed_by_those_who_do_not():
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bench.start(node_job(4, node="n1"))
    bound, free = bench.submit(node_job(2, node="n1")), bench.submit(node_job(2))
    assert bench.schedule() == [free]
    short = shortfall(bench, bound)
    assert (short.shortage.axis, short.shortage.needed, short.shortage.free) == ("cores", 2000, 0)


def test_the_jobs_of_one_node_make_room_for_who_starves():
    bench = Bench(with_nodes((4, 8), (4, 8)))
    for at_s in (0, 10, 20, 30):
        bench.start(node_job(2, preemptible=True), at_s=at_s)
    starving = bench.submit(node_job(4, pool="root.bob", actor=BOB))
    found = preemptions(bench, "root.bob", starving)
    assert {bench.job(event.job_id).node for event in found} == {"n1"}
    assert len(found) == 2


def test_more_than_the_largest_node_has_is_refused():
    bench = Bench(with_nodes((4, 8), (8, 4)))
    for asked, text in (
        (node_job(9), "9 cores, and no node for it has more than 8"),
        # More than all of them together, too.
        (node_job(99), "99 cores, and no node for it has more than 8"),
        (node_job(1, gres=(("gpu", 1),)), "no node here has a resource 'gpu'"),
        (node_job(8, 8), "no node has as much of all"),
        (node_job(1, node="n7"), "no node 'n7'"),
        (node_job(1, features=("gold",)), "no node here has the features gold"),
    ):
        with pytest.raises(Refused, match=text):
            bench.submit(asked)


@pytest.mark.parametrize(
    ("node", "at_s", "certainty"), [("n1", 500, Certainty.LIMITS), ("n0", None, Certainty.UNKNOWN)]
)
def test_a_start_beside_the_load_from_outside_is_known(node, at_s, certainty):
    """The load of the first node, of which nobody knows how long it lasts, says nothing of n1."""
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bench.start(node_job(4, node="n1", time_limit_s=500), at_s=0)
    job = bench.submit(node_job(4, node=node))
    until_s = now(60).at_s
    load = ExternalLoad(used=demand(3, 0), kept=demand(3, 0), until_s=until_s)
    future = forecast(bench, 10, external=load)
    start = future.expected_start(job)
    assert start.certainty is certainty
    assert start.start_s == (None if at_s is None else now(at_s).at_s)
    assert future.is_unknown_for_external is (at_s is None)


def drained(bench: Bench, node: str, *, on: bool = True) -> None:
    bench.feed(st.DrainAsked(now(50), on, ADMIN, "new fans" if on else None, node))


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_nothing_starts_on_a_closed_node_and_all_goes_on_elsewhere(policy):
    bench = Bench(with_nodes((4, 8), (4, 8), policy=policy, slots=9))
    bench.ledger.nodes_away = {"n0": 50.0}
    jobs = [bench.submit(node_job(2)) for _ in range(3)]
    assert bench.schedule() == jobs[:2]
    assert nodes_of(bench, *jobs) == ["n1", "n1", ""]
    bench.ledger.nodes_away = {}
    assert bench.schedule() == jobs[2:]
    assert nodes_of(bench, *jobs) == ["n1", "n1", "n0"]
    bench.check()


@pytest.mark.parametrize(("limit_s", "starts"), [(1000, False), (60, True)])
def test_what_is_free_now_on_one_node_and_later_on_another_is_not_enough(limit_s, starts):
    """A job that waits for all of n0 is delayed by one that starts there, whatever n1 has then."""
    bench = Bench(with_nodes((4, 8), (4, 8)))
    for cores, node, ends_s in ((2, "n0", 100), (4, "n1", 50)):
        bench.start(node_job(cores, node=node, time_limit_s=ends_s))
    large = bench.submit(node_job(4, node="n0", pool="root.bob", actor=BOB))
    small = bench.submit(node_job(2, time_limit_s=limit_s))
    plan = pass_over(bench, 10, reserving=ReservationSettings(delay_s=0))
    assert [(each.job_id, each.start_s) for each in plan.reservations] == [(large, now(100).at_s)]
    assert plan.admitted == [small] * starts


def test_who_waits_for_a_closed_node_holds_nobody_up_and_is_told_of_it():
    """Neither a reservation nor a long wait keeps others from the other node."""
    bench, scheduler = Bench(with_nodes((8, 16), (4, 8))), Scheduler(3600)
    bench.ledger.nodes_away = {"n0": 50.0}
    bound = bench.submit(node_job(1, node="n0"), at_s=0)
    large = bench.submit(node_job(6), at_s=0)
    for at_s in (0, 1000, 10**6):
        small = bench.submit(node_job(4, time_limit_s=9000), at_s=at_s)
        assert pass_of(bench, scheduler, at_s) == [small]
        assert scheduler.reservations == ()
        for each in (bound, large):
            told = NodesAway((ClosedNode("n0", away_since_s=50.0),))
            assert why(bench, each) == told
        bench.feed(launched(small, at_s=at_s))
        bench.finish(small)
        scheduler.forget_derived_state()
    bench.ledger.nodes_away = {}
    bench.check()


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_nobody_waits_behind_a_job_of_a_closed_node(policy):
    """Nor behind one of a user whose limit has become smaller than it."""
    bench = Bench(with_nodes((4, 8), (4, 8), policy=policy, slots=9))
    drained(bench, "n1")
    bench.submit(node_job(1, 8))
    bench.rules = replace(bench.rules, pools={"alice": Pool(limit={"memory": 7 * GIB})})
    bound = bench.submit(node_job(1, node="n1"))
    others = [bench.submit(node_job(3)) for _ in range(2)]
    assert bench.schedule() == others[:1]
    last = bench.submit(node_job(3, pool="root.bob", actor=BOB))
    assert bench.schedule() == []
    found = why(bench, bound)
    assert found is not None and found.code == "DRAINING"
    for each in (others[1], last):
        found = why(bench, each)
        assert found is not None and not isinstance(found, NodesAway)
        if isinstance(found, BehindInOrder):
            assert found.job == str(others[1])
    bench.check()


@pytest.mark.parametrize("rest", [((4, 8),), ()])
def test_who_waits_for_a_node_that_is_not_configured_any_more_is_told_so(rest):
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bound = bench.submit(node_job(1, node="n1"))
    rules = with_nodes(*rest) if rest else Rules(axes=Axes(), capacity=demand(4, 8))
    ledger = bench.ledger.with_axes(rules.axes)
    reason = NodesAway((ClosedNode("n1"),))
    assert explain_wait(ledger.jobs[bound], ledger, None, rules) == reason


def test_a_drained_node_is_told_apart_from_one_that_is_away():
    bench = Bench(with_nodes((4, 8), (4, 8), (2, 4)))
    large, bound = bench.submit(node_job(3)), bench.submit(node_job(1, node="n0"))
    drained(bench, "n0")
    stop = Draining("root", now(50).at_s, "new fans")
    bench.ledger.nodes_away = {"n1": 60.0}
    assert bench.schedule() == []
    away = NodesAway((ClosedNode("n0", drained=stop), ClosedNode("n1", away_since_s=60.0)))
    assert why(bench, large) == away
    only = NodesDrained((ClosedNode("n0", drained=stop),))
    assert why(bench, bound) == only
    copy = bench.ledger.with_axes(bench.rules.axes)
    assert copy.closed_nodes == bench.ledger.closed_nodes == {"n0", "n1"}
    drained(bench, "n0", on=False)
    assert bench.schedule() == [large, bound]
    bench.ledger.nodes_away = {}
    bench.check()


def test_a_node_is_drained_by_administrators_and_by_its_name():
    bench = Bench(with_nodes((4, 8), (4, 8)))
    with pytest.raises(Refused, match="only an administrator"):
        bench.feed(st.DrainAsked(now(), True, ALICE, node="n0"))
    with pytest.raises(Refused, match="no node 'n7'"):
        bench.feed(st.DrainAsked(now(), True, ADMIN, node="n7"))
    assert bench.feed(st.DrainAsked(now(), False, ADMIN, node="n0")) == []
    drained(bench, "n1")
    assert bench.feed(st.DrainAsked(now(60), True, ADMIN, "new fans", "n1")) == []
    (event,) = bench.feed(st.DrainAsked(now(60), True, ADMIN, "new disks", "n1"))
    assert isinstance(event, Drained) and event.stopped_s == now(50).at_s
    assert not bench.ledger.draining
    assert bench.ledger.closed_nodes == {"n1"}


def test_a_frozen_job_waits_for_its_own_node():
    bench = Bench(with_nodes((4, 8), (4, 8)))
    frozen = bench.start(node_job(3))
    bench.suspend(frozen)
    bench.feed(st.ResumeAsked(now(), frozen, ALICE))
    bench.ledger.nodes_away = {"n0": 50.0}
    assert bench.schedule() == []
    found = why(bench, frozen)
    assert found is not None and found.code == "NODE_AWAY"
    bench.ledger.nodes_away = {}
    assert bench.schedule() == [frozen]


def test_nobody_is_stopped_for_room_on_a_closed_node():
    bench = Bench(with_nodes((4, 8), (4, 8)))
    for at_s in (0, 10):
        bench.start(node_job(4, preemptible=True), at_s=at_s)
    drained(bench, "n1")
    starving = bench.submit(node_job(4, pool="root.bob", actor=BOB))
    found = preemptions(bench, "root.bob", starving)
    assert {bench.job(event.job_id).node for event in found} == {"n0"}


def test_a_start_is_forecast_for_when_one_node_has_room_though_all_together_have_it_sooner():
    bench = Bench(with_nodes((4, 8), (4, 8)))
    for cores, limit_s, node in ((3, 600, "n0"), (2, 60, "n1"), (2, 1200, "n1")):
        bench.start(node_job(cores, node=node, time_limit_s=limit_s))
    waiting = bench.submit(node_job(3, pool="root.bob", actor=BOB))
    bound = bench.submit(node_job(4, pool="root.bob", actor=BOB, node="n1"))
    # At 60 s three cores are free, one of them on n0.
    found = forecast(bench)
    assert found.start_s(waiting) == now(600.0).at_s
    assert found.ledger.jobs[waiting].node == "n0"
    assert forecast(bench).start_s(bound) == now(1200.0).at_s


def test_a_smaller_demand_is_proposed_that_one_node_has_free():
    bench = Bench(with_nodes((4, 8), (4, 8)))
    bench.start(node_job(2, node="n0"))
    bench.start(node_job(1, node="n1"))
    waiting = bench.submit(node_job(4, pool="root.bob", actor=BOB))
    less = smaller_demand(forecast(bench), bench.job(waiting))
    assert less is not None
    assert less.demand.cores_milli == 3000
    fits_now = bench.submit(replace(less, pool="root.bob"))
    assert bench.schedule() == [fits_now]


AMOUNTS = some.tuples(some.integers(0, 2), some.integers(0, 2))
ON_NODES = some.dictionaries(some.sampled_from("ab"), AMOUNTS, max_size=2)
#: All that is a key somewhere, or is compared.
VALUES = (
    AMOUNTS
    | some.builds(NodeDemand, AMOUNTS, some.frozensets(some.sampled_from("ab")))
    | some.builds(Allocation, AMOUNTS, ON_NODES)
    | some.builds(FreeResources, AMOUNTS, ON_NODES)
)


@given(some.tuples(VALUES, VALUES, VALUES))
def test_what_is_equal_has_one_hash_and_the_order_of_three_makes_no_difference(values):
    one, two, three = values
    for left, right in permutations(values, 2):
        assert (left == right) is (right == left) is not (left != right)
        assert left != right or hash(left) == hash(right)
    assert not one == two == three or one == three
    assert len({len(set(each)) for each in permutations(values)}) == 1


LEFT = some.tuples(some.integers(-2, 9), some.integers(-2, 9))


@given(AMOUNTS, some.integers(0, 5), LEFT, some.sampled_from([1, 2, 3, None]))
def test_as_many_jobs_start_together_as_one_after_the_other(demand, most, sums, count):
    nodes = {str(at): sums for at in range(count or 0)}
    free = FreeResources(tuple(each * (count or 1) for each in sums), nodes, nodes)
    left, started = free, 0
    while started < most and left.fits(demand):
        left, started = left - left.placed(demand), started + 1
    assert free.filled(demand, most) == (started, left)


# -- countable things, one by one ------------------------------------------------------------------


THERE = (("gpu", ("0", "1", "2")), ("tape", ("left", "right")))


def gpus_of(job: Job) -> tuple[str, ...]:
    return dict(job.instances).get("gpu", ())


def places(*nodes: int | None, links: Iterable[str] = ()) -> list[tuple[Instance, InstancePlace]]:
    """GPUs from 0 on these NUMA nodes; `links`: pairs such as "02"."""
    linked: dict[str, set[str]] = {str(number): set() for number in range(len(nodes))}
    for one, other in links:
        linked[one].add(other)
        linked[other].add(one)
    return [
        (("gpu", str(number)), InstancePlace(node, frozenset(linked[str(number)])))
        for number, node in enumerate(nodes)
    ]


def chosen_gpus(
    count: int, known: list[tuple[Instance, InstancePlace]], taken: Iterable[str] = ()
) -> str:
    there = (("gpu", tuple(name for (_, name), _ in known)),)
    held = {("gpu", name) for name in taken}
    ((_, found),) = choose_instances([("gpu", count)], there, held, known)
    return "".join(found)


@pytest.mark.parametrize(
    ("count", "taken", "chosen"),
    [
        (1, "", "0"),
        (2, "", "01"),
        (2, "0", "12"),
        (4, "0", "4567"),
        (1, "0", "1"),
        (3, "014", "567"),
        (1, "014", "2"),
        # On no single node: all of the emptier one, and the rest of the other.
        (5, "0", "14567"),
        (3, "0146", "235"),
    ],
)
def test_instances_of_one_node_are_chosen_and_large_nodes_kept_whole(count, taken, chosen):
    assert chosen_gpus(count, places(0, 0, 0, 0, 1, 1, 1, 1), taken) == chosen


def test_linked_instances_are_chosen_together():
    pairs = places(0, 0, 0, 0, links=["02", "13"])
    assert chosen_gpus(2, pairs) == "02"
    assert chosen_gpus(2, pairs, "0") == "13"
    assert chosen_gpus(2, pairs, "01") == "23"
    ring = places(None, None, None, None, None, links=["12", "23", "34"])
    assert chosen_gpus(3, ring) == "123"
    # Nodes count for more than links, which may lead over the border.
    assert chosen_gpus(2, places(0, 1, 0, links=["01"])) == "02"


def test_more_than_is_free_is_a_bug_of_whoever_admitted_it():
    with pytest.raises(AssertionError, match="2 of gpu were admitted"):
        choose_instances([("gpu", 2)], THERE, {("gpu", "0"), ("gpu", "2")})


def test_a_requeued_job_gets_new_ones():
    bench = Bench(with_gpus(2))
    first = bench.start(of_gpus(1, preemptible=True))
    bench.preempt(first)
    bench.feed(ended(first))
    bench.feed(st.RemovedReport(now().at_s, first, 1))
    assert bench.job(first).instances == ()
    other = bench.submit(of_gpus(1, priority=9))
    assert bench.schedule() == [other, first]
    assert gpus_of(bench.job(first)) == ("1",)
    bench.check()


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_a_limit_of_none_of_a_countable_refuses_it_and_stands_in_no_other_way(policy):
    pools = {"lab": Pool(users=frozenset({"alice"}), limit={"gpu": 0})}
    bench = Bench(with_gpus(2, pools=pools, policy=policy))
    bench.submit(of_gpus(1, pool="root.bob", actor=BOB))
    with pytest.raises(Refused, match=r"root\.lab may hold 0 at most"):
        bench.submit(of_gpus(1, pool="root.lab"))
    plain = bench.submit(spec(pool="root.lab"))
    assert plain in bench.schedule()
    share_tree = bench.rules.shares.share_tree(bench.ledger.used, ())
    assert share_tree.least_entitled("root.lab") == Fraction(1, 2)


def test_who_starves_for_a_gpu_is_served_by_a_requeue_and_not_by_a_freeze():
    bench = Bench(with_gpus(2))
    for at_s in (0, 10):
        last = bench.start(of_gpus(1, preemptible=True), at_s=at_s)
    starving = bench.submit(of_gpus(1, pool="root.bob", actor=BOB))
    for how, victims in ((Preempting(), [last]), (Preempting(suspends=True), [])):
        found = preemptions(bench, "root.bob", starving, how)
        assert [event.job_id for event in found] == victims


def test_a_smaller_demand_that_would_start_keeps_its_gpus():
    bench = Bench(with_gpus(2))
    bench.start(spec(asks=demand(6, 1)))
    asks = replace(demand(8, 1), gres=(("gpu", 2),))
    waiting = bench.job(bench.submit(spec(asks=asks)))

    smaller = replace(waiting.spec, demand=replace(asks, cores_milli=3000))
    assert smaller_demand(forecast(bench), waiting) == smaller


# -- another configuration -------------------------------------------------------------------------


def reload(bench: Bench, rules: Rules) -> None:
    """As the engine does it."""
    bench.rules = rules.also_for(spec.demand for spec in bench.ledger.specs())
    bench.ledger = bench.ledger.with_axes(bench.rules.axes)


def test_what_waits_for_a_resource_that_is_gone_waits_on_and_starts_when_it_is_back():
    bench = Bench(with_gpus(1))
    waiting = bench.submit(of_gpus(1))
    plain = with_gpus(1)
    none = replace(plain, axes=replace(plain.axes, gres=(), instances=()), capacity=demand(9, 18))
    reload(bench, none)
    assert bench.schedule() == []
    with pytest.raises(Refused, match="no resource 'gpu'"):
        bench.submit(of_gpus(1))
    reload(bench, plain)
    assert bench.schedule() == [waiting]


# -- several jobs on one GPU -----------------------------------------------------------------------


def taken(bench: Bench) -> list[int]:
    """How much of each GPU jobs hold, in GiB."""
    return [part // GIB for part in bench.ledger.allocated.parts("")]


def test_a_limit_counts_the_memory():
    pools = {"lab": Pool(users=frozenset({"alice"}), limit={"memory:gpu": 20 * GIB})}
    bench = Bench(with_shared_gpus(2, pools=pools))
    jobs = [bench.submit(of_gpu_memory(8, pool="root.lab")) for _ in range(3)]
    assert bench.schedule() == jobs[:2]
    with pytest.raises(Refused, match=r"24G of gpu memory, and root\.lab may hold 20G at most"):
        bench.submit(of_gpus(1, pool="root.lab"))


def test_more_than_a_gpu_has_is_refused():
    bench = Bench(with_shared_gpus(2))
    with pytest.raises(Refused, match="30G of a gpu's memory, and each gpu here has 24G"):
        bench.submit(of_gpu_memory(30))
    with pytest.raises(Refused, match="72G of gpu memory, and this machine has 48G for jobs"):
        bench.submit(of_gpus(3))


def test_the_jobs_on_the_gpu_that_is_free_first_are_named():
    """Those on the other one give back as much, and nothing that helps."""
    bench = Bench(with_shared_gpus(2))
    late, first = (
        bench.start(of_gpu_memory(memory, time_limit_s=limit_s))
        for memory, limit_s in ((14, 1200), (8, 600))
    )
    for memory, limit_s in ((16, 9000), (6, 900)):
        bench.start(of_gpu_memory(memory, time_limit_s=limit_s))
    waiting = bench.submit(of_gpus(1, pool="root.bob", actor=BOB))
    assert bench.schedule() == []
    short = shortfall(bench, waiting)
    assert [each.job for each in short.holders] == [str(first), str(late)]
    assert (short.more, short.kept, short.shortage.free) == (0, 0, 2 * GIB)


def test_the_job_on_the_gpu_that_is_free_first_is_named_to_one_that_lacks_cores_too():
    """It would do for the GPU; who holds the cores is told beside it."""
    bench = Bench(with_shared_gpus(2))
    bench.start(of_gpus(1, time_limit_s=1200))
    first = bench.start(of_gpus(1, time_limit_s=600))
    cores = bench.start(spec(asks=demand(7, 1)))
    asks = replace(demand(3, 1), gres=(("gpu", 1),))
    found = why(bench, bench.submit(spec("root.bob", actor=BOB, asks=asks)))
    assert isinstance(found, TooLittleFree)
    named = [[each.job for each in short.holders] for short in found.shortfalls]
    assert named == [[str(cores)], [str(first)]]


def test_a_wait_for_several_gpus_says_how_much_is_of_free_ones():
    bench = Bench(with_shared_gpus(4))
    running = [bench.start(of_gpu_memory(memory)) for memory in (14, 12)]
    waiting = bench.submit(of_gpus(3, pool="root.bob", actor=BOB))
    assert bench.schedule() == []
    short = shortfall(bench, waiting)
    assert (short.shortage.needed, short.shortage.free) == (72 * GIB, 48 * GIB)
    # One of the two is enough.
    assert [each.job for each in short.holders] in [[str(each)] for each in running]


def test_a_frozen_job_keeps_its_part_and_goes_on_with_it():
    bench = Bench(with_shared_gpus(1))
    frozen = bench.start(of_gpu_memory(14))
    bench.suspend(frozen)
    other, third = bench.submit(of_gpu_memory(10)), bench.submit(of_gpu_memory(10))
    assert bench.schedule() == [other]
    bench.feed(st.ResumeAsked(now(), frozen, ALICE))
    assert bench.schedule() == [frozen]
    assert (taken(bench), bench.job(third).state) == ([24], JobState.PENDING)
    bench.check()


def test_a_gpu_in_use_outside_gets_no_more_jobs_though_some_run_on_it():
    bench, scheduler = Bench(with_shared_gpus(2)), Scheduler(3600)
    first = bench.submit(of_gpu_memory(4), at_s=0)
    assert pass_of(bench, scheduler, 0) == [first]
    bench.rules = replace(bench.rules, beside=NOTHING)
    for at_s in (1, 2, 3):
        scheduler.external_load.see_instances(
            {("gpu", "0"): ("carol",)}, bench.rules, now(at_s).at_s
        )
    second = bench.submit(of_gpu_memory(4), at_s=4)
    assert pass_of(bench, scheduler, 4) == [second]
    assert gpus_of(bench.job(second)) == ("1",)
    third = bench.submit(of_gpus(1), at_s=5)
    assert pass_of(bench, scheduler, 5) == []
    bench.finish(second)
    assert pass_of(bench, scheduler, 6) == [third]
    assert gpus_of(bench.job(third)) == ("1",)


@pytest.mark.parametrize(("at_s", "limit_s"), [(32, 9000), (4700, 60)], ids=["long", "drain"])
def test_a_job_beside_a_reservation_is_not_placed_on_the_gpu_of_the_reserved_one(at_s, limit_s):
    """There it would fit best. It would run on when that is free, or a drain is to empty it."""
    reserving = ReservationSettings(drain_after_s=1000)
    bench, scheduler = Bench(with_shared_gpus(2, reserving=reserving)), Scheduler(3600)
    for memory in (14, 12):
        bench.start(of_gpu_memory(memory, time_limit_s=None))
    bench.submit(of_gpus(1, pool="root.bob", actor=BOB))
    assert pass_of(bench, scheduler, 31) == []
    beside = bench.submit(of_gpu_memory(6, time_limit_s=limit_s), at_s=at_s)
    assert pass_of(bench, scheduler, at_s) == [beside]
    assert gpus_of(bench.job(beside)) == ("1",)


def test_the_newest_jobs_on_one_gpu_make_room_for_who_starves():
    bench = Bench(with_shared_gpus(2))
    for at_s in (0, 10, 20, 30):
        bench.start(of_gpu_memory(12, preemptible=True), at_s=at_s)
    starving = bench.submit(of_gpus(1, pool="root.bob", actor=BOB))
    found = preemptions(bench, "root.bob", starving)
    gone = [bench.job(event.job_id) for event in found]
    assert {gpus_of(job) for job in gone} == {("1",)}
    assert len(gone) == 2


def test_nobody_is_stopped_on_a_gpu_that_is_in_use_outside():
    bench = Bench(with_shared_gpus(2))
    for at_s in (0, 10, 20, 30):
        bench.start(of_gpu_memory(12, preemptible=True), at_s=at_s)
    starving = bench.submit(of_gpus(1, pool="root.bob", actor=BOB))

    def stopped(*used: str) -> int:
        instances = tuple((("gpu", each), ("carol",)) for each in used)
        load = ExternalLoad(used=NOTHING, kept=NOTHING, until_s=inf, instances=instances)
        return len(preemptions(bench, "root.bob", starving, external=load))

    # The newest jobs are on GPU 1.
    assert (stopped(), stopped("0"), stopped("1")) == (2, 2, 0)


def test_a_smaller_demand_keeps_its_part():
    bench = Bench(with_shared_gpus(1))
    bench.start(spec(asks=demand(6, 1)))
    asked = of_gpu_memory(8)
    waiting = bench.job(bench.submit(_with_cores(asked, 8)))

    smaller = smaller_demand(forecast(bench), waiting)
    assert smaller is not None
    assert smaller.demand == _with_cores(asked, 3).demand


def _with_cores(asked: JobSpec, cores: int) -> JobSpec:
    return replace(asked, demand=replace(asked.demand, cores_milli=cores * 1000))


def test_a_gpu_that_is_held_beyond_its_new_size_takes_nothing_from_the_others():
    bench = Bench(with_shared_gpus(2))
    small = [bench.start(of_gpu_memory(12)) for _ in range(2)]
    reload(bench, with_shared_gpus(2, size=16 * GIB))
    big = bench.submit(of_gpus(1))
    assert bench.schedule() == [big]
    assert gpus_of(bench.job(big)) == ("1",)
    part = bench.submit(of_gpu_memory(6))
    assert bench.schedule() == []
    for each in small:
        bench.finish(each)
    assert bench.schedule() == [part]
    bench.check()


# -- load from outside -----------------------------------------------------------------------------


#: 16 cores and 32 GiB for jobs: a load of 1 core, or of 1 GiB, is noticed.
MACHINE = Rules(capacity=demand(16, 32), beside=NOTHING)


def use(cores: float = 0, memory_gib: float = 0) -> Resources:
    return demand(cores, memory_gib)


def show(gauge: ExternalLoadEstimator, *samples: Resources) -> int:
    """How many of the samples, two seconds apart, have changed what is kept."""
    return sum(gauge.see(each, MACHINE, now(2 * at).at_s) for at, each in enumerate(samples))


# -- the gauge -------------------------------------------------------------------------------------


def leave(gauge: ExternalLoadEstimator, memory_gib: float) -> bool:
    """A job has ended and left so much memory in use."""
    return gauge.leave(use(0, memory_gib).memory_bytes, MACHINE, now(0).at_s)


def test_what_a_job_leaves_in_memory_is_seen_at_once():
    """Before, it took ten seconds, in which the next job was given the same memory."""
    gauge = ExternalLoadEstimator()
    show(gauge, *[use(0, 1)] * SAMPLES)
    assert leave(gauge, 3)
    assert gauge.kept == use(0, 4)
    # Samples that show it change nothing, and those that do not show it any more end it.
    assert show(gauge, *[use(0, 4)] * 2 * SAMPLES) == 0
    assert show(gauge, *[use(0, 1)] * (SAMPLES - 1)) == 0
    assert show(gauge, use(0, 1)) == 1
    assert gauge.kept == use(0, 1)


def test_samples_from_before_a_job_left_memory_do_not_draw_the_level_back():
    """One sample below it is not enough."""
    gauge = ExternalLoadEstimator()
    show(gauge, *[use(0, 1)] * SAMPLES)
    assert leave(gauge, 3)
    assert show(gauge, use(0, 3.5)) == 0
    assert gauge.kept == use(0, 4)


def test_what_is_left_before_the_first_samples_is_seen_too():
    gauge = ExternalLoadEstimator()
    show(gauge, use(0, 1))
    assert leave(gauge, 3)
    assert gauge.kept == use(0, 3)
    show(gauge, *[use(0, 4)] * SAMPLES)
    assert gauge.kept == use(0, 4)


def test_less_than_a_sixteenth_of_a_small_memory_is_not_noticed_nor_what_was_seen_before():
    gauge, small = ExternalLoadEstimator(), Rules(capacity=demand(16, 8), beside=NOTHING)
    for each, kept in ((use(0, 0.48), NOTHING), (use(0, 0.52), use(0, 0.52))):
        for _ in range(SAMPLES):
            gauge.see(each, small, now().at_s)
        assert gauge.kept == kept
    assert gauge.see(use(), replace(small, beside=None), now().at_s), "the administrator's wish"
    assert not gauge.see(use(0, 0.52), small, now().at_s), "one sample is not enough"


def test_a_load_counts_when_all_samples_show_it_and_is_expected_to_last_as_long_again():
    gauge = ExternalLoadEstimator()
    show(gauge, *[use()] * (SAMPLES - 1), use(8))
    assert gauge.load(now().at_s) is None
    for _ in range(SAMPLES):
        gauge.see(use(8), MACHINE, now(10).at_s)
    for at_s, until_s in ((20, 80), (110, 210), (3610, inf)):
        assert gauge.load(now(at_s).at_s).until_s == now(until_s).at_s


def test_where_cores_do_not_count_memory_alone_is_kept_free():
    gauge, lax = ExternalLoadEstimator(), replace(MACHINE, waits_for_cores=False)
    for _ in range(SAMPLES):
        gauge.see(use(12, 4), lax, now().at_s)
    assert gauge.kept == use(0, 4)


# -- the pass --------------------------------------------------------------------------------------


PATIENT = ReservationSettings(delay_s=30)


def loaded(cores: float, *, until_s: float = inf) -> ExternalLoad:
    return ExternalLoad(used=use(cores), kept=use(cores), until_s=now(until_s).at_s)


def test_under_fifo_too_the_first_job_says_that_it_waits_for_it():
    bench = Bench(replace(rules(9, 18), policy="fifo"))
    bench.submit(spec(asks=demand(9)))
    bench.submit(of(BOB))
    last = pass_over(bench, external=loaded(2), reserving=PATIENT)
    found = [why(bench, job_id, last) for job_id in (1, 2)]
    assert [each.code for each in found if each is not None] == [
        "EXTERNAL_LOAD",
        "RESERVATION",
    ]


def test_what_is_kept_for_others_is_named_only_where_the_holders_are_not_enough():
    bench = Bench()
    bench.start(of(BOB, 5))
    for cores, kept in ((7, 0), (7.5, 2000)):
        last = pass_over(bench, external=loaded(2))
        reason = why(bench, bench.submit(spec(asks=demand(cores))), last)
        assert isinstance(reason, TooLittleFree)
        assert [each.kept for each in reason.shortfalls] == [kept]


# -- reservations and forecasts --------------------------------------------------------------------


def test_for_a_load_without_an_end_in_sight_nothing_is_kept_idle(bench):
    bench.submit(spec(asks=demand(9)))
    bench.submit(of(BOB, limit_s=86400))
    last = pass_over(bench, 200_000, external=loaded(2), reserving=PATIENT)
    assert last.reservations == ()
    assert last.admitted == [2]


def test_a_reservation_waits_for_the_expected_end_of_a_load(bench):
    bench.submit(spec(asks=demand(9)))
    last = pass_over(bench, 40, external=loaded(2, until_s=100), reserving=PATIENT)
    assert [each.start_s for each in last.reservations] == [now(100).at_s]


def test_a_forecast_goes_on_when_the_load_is_over_and_jobs_are_not():
    bench = Bench()
    bench.start(of(BOB, 5, limit_s=600))
    job_id = bench.submit(spec(asks=demand(9), time_limit_s=60))
    assert start_s(bench, job_id, 100, loaded(2, until_s=300)) == 600


# -- instances -------------------------------------------------------------------------------------

BY = ("carol",)


def test_a_gpu_that_others_use_is_given_to_no_job_and_the_reason_names_them():
    bench, scheduler = Bench(with_gpus(2, beside=NOTHING)), Scheduler(half_life_s=3600.0)
    for _ in range(3):
        scheduler.external_load.see_instances({("gpu", "0"): BY}, bench.rules, now().at_s)
    first, second = bench.submit(of_gpus(1)), bench.submit(of_gpus(1))
    pass_of(bench, scheduler, 0)
    assert bench.job(first).instances == (("gpu", ("1",)),)
    assert bench.job(second).instances == ()
    assert scheduler.last_plan is not None
    reason = explain_wait(bench.job(second), bench.ledger, scheduler.last_plan, bench.rules)
    shortage = ResourceShortage("gpu", 1, 0)
    assert reason == ExternalUse(shortage, 1, 1, (("0", BY),))
    for _ in range(3):
        scheduler.external_load.see_instances({}, bench.rules, now().at_s)
    pass_of(bench, scheduler, 0)
    assert bench.job(second).instances == (("gpu", ("0",)),)
    # What a job has is not taken from it, nor counted twice.
    for _ in range(3):
        scheduler.external_load.see_instances({("gpu", "0"): BY}, bench.rules, now().at_s)
    assert beside_jobs(scheduler.external_load.load(now().at_s), bench.ledger) is None


# -- what comes back when --------------------------------------------------------------------------


def test_a_suspended_job_is_not_in_the_way_of_a_reservation_that_waits_for_its_memory(bench):
    """Bob's job needs the memory that alice's holds. She has run for a seventh of an odd limit:
    if her end were rounded by a hair to after the shadow time, both would wait for ever."""
    bench.start(spec(asks=demand(9), time_limit_s=703))
    bench.suspend(1, by=None, at_s=100.3)
    bench.submit(spec("root.bob", actor=BOB, asks=demand(9, 18)), at_s=150)
    plan = schedule(bench.ledger, bench.rules, pass_context=context(bench, 250.7))
    assert plan.admitted == [1]
    assert [kept.job_id for kept in plan.reservations] == [2]


def test_a_drain_lets_go_on_what_holds_the_memory_that_it_waits_for(bench):
    """Else both would wait for ever, on an idle machine."""
    bench.start(spec(asks=demand(9), time_limit_s=600))
    bench.suspend(1, by=None, at_s=10)
    bench.submit(spec("root.bob", actor=BOB, asks=demand(9, 18)), at_s=20)
    drained = Reservation(
        job_id=2,
        leaf="root.bob",
        demand=bench.ledger.demand(bench.job(2)),
        held=Allocation(bench.ledger.demand(bench.job(2))),
        start_s=now(20).at_s,
        end_s=now(20).at_s,
        extras={"root": FreeResources((0, 0, 0, 0))},
        due_s=now(20).at_s,
    )
    pass_context = replace(context(bench, 1_000_000), before=(drained,))
    plan = schedule(bench.ledger, bench.rules, pass_context=pass_context)
    assert [each.is_drain for each in plan.reservations] == [True]
    assert plan.admitted == [1]
    for_2_alone = replace(pass_context, before=(replace(drained, is_forced=True),))
    assert schedule(bench.ledger, bench.rules, pass_context=for_2_alone).admitted == []


def test_what_goes_on_by_its_reservation_is_not_let_go_on_once_more_for_a_drain(bench):
    """Its cores would count twice. Bob's job waits for all memory; carol's needs none of it."""
    bench.start(spec(asks=demand(2), time_limit_s=600))
    bench.start(spec("root.dave", actor=DAVE, asks=demand(3)))
    bench.suspend(1, by=None, at_s=10)
    bench.submit(spec("root.bob", actor=BOB, asks=demand(1, 18)), at_s=20)
    late = bench.submit(spec("root.carol", actor=CAROL, asks=demand(3, 0)), at_s=30)
    before = []
    for job in (bench.job(1), bench.job(3)):
        kept, wanted = KeptReservation(job.id, now(20).at_s), bench.ledger.wanted(job)
        before.append(kept.restored(job.spec.leaf, wanted, now(20).at_s))
    pass_context = replace(context(bench, 1_000_000), before=tuple(before))
    plan = schedule(bench.ledger, bench.rules, pass_context=pass_context)
    assert [(each.job_id, each.is_drain) for each in plan.reservations] == [(3, True)]
    assert (plan.admitted, plan.free.sums[0]) == ([1, late], 1000)


def test_what_is_kept_for_who_starves_lets_nobody_go_on_out_of_turn(bench):
    """Suspended jobs come first in a drain that may wait for their memory: this one does not."""
    bench.start(spec(asks=demand(2), time_limit_s=600))
    bench.start(spec(asks=demand(1), time_limit_s=600))
    bench.start(spec("root.dave", actor=DAVE, asks=demand(4)))
    bench.suspend(1, by=None, at_s=10)
    bench.submit(spec("root.bob", actor=BOB, asks=demand(1, 18)), at_s=20)
    turn = bench.submit(spec("root.carol", actor=CAROL, asks=demand(2, 0)), at_s=30)
    starving, wanted = bench.job(4), bench.ledger.wanted(bench.job(4))
    made = KeptReservation(starving.id, now(20).at_s, is_forced=True)
    place = made.restored("root.bob", wanted, now(20).at_s)
    pass_context = replace(context(bench, 40), before=(place,))
    assert schedule(bench.ledger, bench.rules, pass_context=pass_context).admitted == [turn]


def test_a_drain_lets_nobody_go_on_in_what_is_kept_for_who_starves(bench):
    bench.start(spec(asks=demand(2), time_limit_s=600))
    bench.start(spec("root.dave", actor=DAVE, asks=demand(5)))
    bench.suspend(1, by=None, at_s=10)
    starving = bench.submit(spec("root.bob", actor=BOB, asks=demand(5)), at_s=20)
    big = bench.submit(spec("root.carol", actor=CAROL, asks=demand(9)), at_s=20)
    before = []
    for job_id in (starving, big):
        kept = KeptReservation(job_id, now(20).at_s, is_forced=job_id == starving)
        job = bench.job(job_id)
        before.append(kept.restored(job.spec.leaf, bench.ledger.wanted(job), now(20).at_s))
    pass_context = replace(context(bench, 1_000_000), before=tuple(before))
    plan = schedule(bench.ledger, bench.rules, pass_context=pass_context)
    assert [(each.job_id, each.is_drain) for each in plan.reservations] == [
        (starving, True),
        (big, True),
    ]
    assert plan.admitted == []


def test_first_come_first_served_lets_go_on_who_holds_the_memory_that_the_first_waits_for(bench):
    """Bob's job came first and was held meanwhile. Those of alice's that ask for the same cores as
    hers does to go on still start one by one, when they can."""
    bench.submit(spec("root.bob", actor=BOB, asks=demand(1, 18)), held=True)
    bench.start(spec(asks=demand(4)))
    bench.suspend(2, by=None)
    bench.feed(st.ReleaseAsked(now(), 1, BOB))
    waiting = [bench.submit(spec(asks=demand(4, 0))) for _ in range(2)]
    by_turn = replace(bench.rules, policy="fifo")
    seen = context(bench, 1)
    assert schedule(bench.ledger, by_turn, pass_context=seen).admitted == [2]
    bench.feed(st.CancelAsked(now(), 1, BOB))
    seen = context(bench, 1)
    assert schedule(bench.ledger, by_turn, pass_context=seen).admitted == [2, waiting[0]]
