"""Jobs, their events and the books: a closed table of states, tables that agree, exact amounts."""

import copy
import sys
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.common.owner import Owner
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.effects import Kill, owed
from drfd.core.model.job import ALLOCATED_STATES, JobState, most_cores_milli
from drfd.core.model.machine import (
    NodeDemand,
    Placed,
    Room,
    SharedInstances,
    Vector,
    fits,
    lacking_of,
    minus,
    node_of,
    place,
    placed,
    plus,
    short_axes,
    total,
)
from drfd.core.model.options import most_here, most_of
from drfd.core.model.resources import Axes, ClusterNode, Resources
from fakes import BOB, TRANSITIONS, demand, happened, ledger_at, replace, spec, tables
from seeds import examples

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


@pytest.mark.parametrize("state", LIVE)
def test_a_job_cannot_be_born_twice(state):
    """The same id again would be counted twice in every table."""
    ledger = ledger_at(state)
    before = tables(ledger)
    with pytest.raises(ev.InvalidTransition):
        ledger.apply(happened(ev.Submitted, spec=spec("root.bob", actor=BOB)))
    assert tables(ledger) == before


def test_equal_texts_of_jobs_are_one_and_none_is_kept_for_ever():
    """Some versions of Python never give up interned texts, of which a user chooses new ones."""
    first, second = (replace(spec(), stdout="/".join(["here", "out"])) for _ in range(2))
    assert first.stdout is second.stdout
    other = "/".join(["here", "out"])
    assert sys.intern(other) is other


def test_an_event_about_a_job_that_has_ended_is_an_invalid_transition():
    ledger = ledger_at(S.ENDED)
    before = tables(ledger)
    with pytest.raises(ev.InvalidTransition):
        ledger.apply(happened(ev.Cleaned))
    assert tables(ledger) == before


# -- check -----------------------------------------------------------------------------------------


def _miscount(ledger: Ledger) -> None:
    ledger.allocated = (1000, 0, 0, 0)


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


CAPACITY = demand(16, 64, read=1000, write=500)


@pytest.mark.parametrize(
    ("axis", "end", "error"),
    [
        ("cores", 1000, "-c: the range ends at 1, below the 2 that the job holds"),
        ("read", 50, "--io: the range ends at 50/s, below the 100/s that the job holds"),
        ("write", 50, "--io: a range of writes has no lower end, which is what the job holds"),
    ],
)
def test_an_upper_end_below_the_lower_one_is_refused(axis, end, error):
    with pytest.raises(Refused) as refused:
        most_of(demand(2, read=100), {axis: end}, CAPACITY)
    assert refused.value.text == error
    assert refused.value.hint.endswith("LEAST..MOST")


def test_the_machine_of_the_moment_cuts_the_wish():
    wish = spec(asks=demand(2, read=100), most=Resources(cores_milli=99_000, read_bps=400))
    assert most_cores_milli(wish) == 99_000
    assert most_here(wish, CAPACITY) == Resources(cores_milli=16_000, read_bps=400)
    assert most_here(wish, demand(2, read=200)) == Resources(read_bps=200)
    assert most_here(wish, demand(2, read=100)) is None
    assert most_here(spec(asks=demand(2)), CAPACITY) is None
    assert most_cores_milli(spec(asks=demand(2))) == 2000


# -- amounts and vectors ---------------------------------------------------------------------------


STEADY = examples(100)
GPUS = Axes(gres=("gpu", "license"))
AMOUNTS = some.integers(0, 1 << 60)
VECTORS = some.lists(AMOUNTS, min_size=6, max_size=6).map(tuple)


@STEADY
@given(VECTORS)
def test_a_vector_becomes_resources_and_the_same_vector_again(vector):
    assert GPUS.vector(GPUS.resources(vector)) == vector


# -- disks -----------------------------------------------------------------------------------------

TWO = Axes(gres=("gpu",), disks=("data", "scratch"))
NAMED = Resources(
    cores_milli=1000, memory_bytes=5, gres=(("gpu", 2),), disks=(("data", 1, 2), ("scratch", 3, 4))
)


def test_several_disks_have_axes_of_their_own():
    assert TWO.names == (
        *("cores", "memory", "read:data", "write:data", "read:scratch", "write:scratch", "gpu"),
    )
    assert TWO.vector(NAMED) == (1000, 5, 1, 2, 3, 4, 2)
    assert TWO.resources(TWO.vector(NAMED)) == NAMED


def test_a_disk_that_is_gone_has_axes_as_long_as_somebody_names_it():
    axes = Axes(gres=("gpu",), disks=("data",), lost=("scratch",))
    assert axes.names == (
        "cores",
        "memory",
        "read",
        "write",
        "gpu",
        "read:scratch",
        "write:scratch",
    )
    assert axes.vector(NAMED) == (1000, 5, 1, 2, 2, 3, 4)
    assert axes.vector(Resources(read_bps=7)) == (0, 0, 7, 0, 0, 0, 0)
    assert axes.resources((1, 2, 3, 4, 5, 6, 7)) == Resources(
        cores_milli=1, memory_bytes=2, read_bps=3, write_bps=4, gres=(("gpu", 5),)
    )


# -- parts of shared instances ---------------------------------------------------------------------


SIZE = 24


def gpu_room(*parts: int, cores: int = 8) -> Room:
    """Free cores, and shared instances with so much free each."""
    names = tuple(map(str, range(len(parts))))
    shared = SharedInstances(axis=1, size=SIZE, names=names, places={})
    return Room((cores, sum(parts)), on_gpus((cores, sum(parts)), *parts).nodes, shared=shared)


def on_gpus(amounts: Vector, *parts: int) -> Placed:
    return Placed(amounts, {"": amounts + parts})


@pytest.mark.parametrize("compute", [plus, minus, fits, short_axes])
def test_vectors_of_different_machines_do_not_mix(compute):
    assert callable(compute)
    with pytest.raises(ValueError, match=r"zip|machines"):
        compute((1, 1), (1, 1, 1))


def test_parts_of_two_instances_are_not_one_part():
    free = gpu_room(10, 10)
    assert free[1] >= 15
    assert not fits((1, 15), free)
    assert place((1, 15), free) is None
    assert short_axes((1, 15), free) == [1]
    assert short_axes((9, 15), free) == [0, 1]
    assert lacking_of((1, 15), free, 1) == (15, 10)
    assert lacking_of((1, 21), free, 1) == (21, 10)
    assert lacking_of((1, 2 * SIZE), gpu_room(24, 23, 9), 1) == (2 * SIZE, SIZE)
    assert lacking_of((9, 2 * SIZE), gpu_room(24, 24, 9), 0) == (9, 8)


def test_what_is_placed_on_an_instance_is_taken_and_comes_back():
    free = gpu_room(24, 12)
    held = placed((2, 12), free)
    left = minus(free, held)
    assert isinstance(left, Room)
    assert (tuple(left), left.parts("")) == ((6, 24), (24, 0))
    assert plus(left, held) == free
    back = total([held, held], (0, 0))
    assert isinstance(back, Placed)
    assert back.parts("") == (0, 24)
    gone = minus((0, 0), held)
    assert isinstance(gone, Placed)
    assert (tuple(gone), gone.parts("")) == ((-2, -12), (0, -12))
    assert plus(gone, held) == Placed((0, 0), {})
    with pytest.raises(AssertionError, match="no room"):
        placed((1, 13), left.shut(["0"]))


def test_instances_are_shut_and_opened_again():
    shut = gpu_room(24, 12).shut(["0"])
    assert (tuple(shut), shut.parts("")) == ((8, 12), (0, 12))
    opened = shut.reopened(on_gpus((0, 12), 0, 12))
    assert (tuple(opened), opened.parts("")) == ((8, 36), (24, 12))
    assert gpu_room(24, 12, cores=-1).shut(["0"]) == (-1, 12), "the only machine's own lack stays"


def test_vectors_are_equal_if_their_parts_are():
    assert on_gpus((1, 2), 2, 0) == on_gpus((1, 2), 2, 0)
    assert on_gpus((1, 2), 2, 0) != on_gpus((1, 2), 0, 2)
    assert on_gpus((1, 2), 2, 0) == (1, 2)
    assert len({on_gpus((1, 2), 2, 0), on_gpus((1, 2), 2, 0)}) == 1


parts_of_one = some.integers(0, SIZE)


@given(parts=some.lists(parts_of_one, max_size=4), asked=some.integers(0, 4 * SIZE))
def test_a_demand_is_placed_exactly_if_some_instances_have_enough(parts, asked):
    if asked > SIZE:
        asked -= asked % SIZE
    free = gpu_room(*parts)
    if asked < SIZE:
        possible = not asked or any(part >= asked for part in parts)
    else:
        some_whole = combinations(parts, asked // SIZE)
        possible = any(min(each) >= SIZE for each in some_whole)
    assert fits((1, asked), free) is possible
    if possible and asked:
        held = placed((1, asked), free)
        assert isinstance(held, Placed)
        assert sum(held.parts("")) == asked == held[1]
        assert set(held.parts("")) <= {0, min(asked, SIZE)}
        left = minus(free, held)
        assert isinstance(left, Room)
        assert min(left.parts("")) >= 0
        assert left[1] == sum(left.parts(""))


# -- rooms of nodes --------------------------------------------------------------------------------


def room(**nodes: Vector) -> Room:
    """So much free on each node, of 8 cores and 64 of memory."""
    sums = map(sum, zip(*nodes.values(), strict=True))
    return Room(sums, nodes, dict.fromkeys(nodes, (8, 64)))


def on(demand: Vector, node: str) -> Placed:
    return Placed(demand, {node: demand})


def test_what_is_placed_on_a_node_is_taken_and_comes_back():
    free = room(a=(8, 64), b=(4, 32))
    held = placed((4, 8), free)
    left = minus(free, held)
    assert isinstance(left, Room)
    assert (tuple(left), left.nodes) == ((8, 88), {"a": (8, 64), "b": (0, 24)})
    assert plus(left, held) == free == plus(held, left)
    assert total([held, on((1, 1), "a")], (0, 0)) == Placed((5, 9), {"a": (1, 1), "b": (4, 8)})
    assert plus(minus((0, 0), held), held) == Placed((0, 0), {})
    assert minus(total([held, held], (0, 0)), held) == held


def test_a_closed_node_has_nothing_free_whatever_comes_back_there():
    free = minus(room(a=(8, 64), b=(4, 32)), on((8, 8), "a")).without(["a"])
    assert (free, free.nodes) == ((4, 32), {"b": (4, 32)})
    back = plus(free, on((8, 8), "a"))
    assert isinstance(back, Room)
    assert (back, back.nodes) == ((4, 32), {"b": (4, 32)})
    assert place((5, 1), back) is None
    assert short_axes((5, 1), back) == [0]
    assert not fits(NodeDemand((1, 1), frozenset({"a"})), back)
    nothing = back.without(["b"])
    assert (nothing, place((1, 1), nothing)) == ((0, 0), None)


amounts = some.tuples(some.integers(-3, 8), some.integers(-3, 8))


@examples(100, quick=11)
@given(nodes=some.lists(amounts, min_size=1, max_size=4), demand=amounts)
def test_a_demand_is_placed_exactly_if_a_node_has_enough(nodes, demand):
    demand = tuple([max(0, each) for each in demand])
    free = room(**{f"n{at}": each for at, each in enumerate(nodes)}).without()
    assert fits(demand, free) is any(fits(demand, each) for each in nodes)
    assert fits(demand, free) is (short_axes(demand, free) == [])
    if fits(demand, free):
        left = minus(free, placed(demand, free))
        held = [name for name in free.nodes if left.nodes[name] != free.nodes[name]]
        assert len(held) == any(demand)
        assert all(minus(free.nodes[name], demand) == left.nodes[name] for name in held)


@given(
    nodes=some.lists(amounts, min_size=2, max_size=4),
    moves=some.lists(some.tuples(some.integers(0, 3), amounts, some.booleans()), max_size=6),
)
def test_a_room_without_nodes_is_the_room_of_the_others(nodes, moves):
    whole = {f"n{at}": each for at, each in enumerate(nodes)}
    closed = room(**whole).without(["n0"])
    others = room(**{name: free for name, free in whole.items() if name != "n0"}).without()
    for at, held, is_start in moves:
        change = on(held, f"n{at % len(nodes)}")
        closed = minus(closed, change) if is_start else plus(closed, change)
        if at % len(nodes):
            others = minus(others, change) if is_start else plus(others, change)
    assert (closed, closed.nodes, closed.without()) == (others, others.nodes, others.without())


@given(nodes=some.lists(some.sampled_from([(8, 64), (4, 64), (8, 9), (1, 1)]), min_size=1))
def test_of_many_alike_nodes_the_one_is_taken_that_each_by_itself_would_give(nodes):
    demand, free = (3, 8), room(**{f"n{at}": each for at, each in enumerate(nodes)})
    rests = [
        (max((cores - 3) / 8, (memory - 8) / 64), name)
        for name, (cores, memory) in free.nodes.items()
        if cores >= 3 and memory >= 8
    ]
    assert place(demand, free) == (on(demand, min(rests)[1]) if rests else None)


def test_a_part_of_a_core_is_for_nodes_that_give_out_parts():
    own = ClusterNode(name="head", capacity=Resources(cores_milli=2500))
    whole = ClusterNode(name="n1", capacity=Resources(cores_milli=4000), whole_cores=True)
    axes = Axes(nodes=(own, whole))
    free = axes.room(axes.amounts(Resources(cores_milli=6500)))
    assert isinstance(free, Room)
    assert free.nodes["head"] == axes.amounts(own.capacity)
    for milli, among in ((500, {"head"}), (1000, {"head", "n1"}), (3000, {"head", "n1"})):
        assert axes.nodes_for(Resources(cores_milli=milli)) == among
    part = axes.vector(Resources(cores_milli=2500))
    assert node_of(free.place(part)) == "head"
    assert not free.has_place(axes.vector(Resources(cores_milli=3500)))
    assert node_of(free.place(axes.vector(Resources(cores_milli=3000)))) == "n1"
