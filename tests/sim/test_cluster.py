"""A cluster of nodes under one scheduler, in virtual time, and tasks that overcommit a node."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from drfd.sim.cluster import SECOND, Batch, Cluster, ClusterRun, SharingScheme, Simulation, slowdown

DRF = SharingScheme(name="DRF", policy="drf")
TEN_S = Batch(user="a", tasks=1, demand=(1000, 1024), task_us=10 * SECOND)


def ran(
    *batches: Batch,
    way: SharingScheme = DRF,
    nodes: int = 1,
    node: tuple[int, int] = (4000, 4096),
    end_s: int | None = None,
    seed: int = 1,
    swap_cost: int = 40,
) -> ClusterRun:
    cluster = Cluster(nodes=nodes, node=node, swap_cost=swap_cost)
    simulation = Simulation(batches, cluster, way, step_us=SECOND, seed=seed)
    return simulation.until(None if end_s is None else end_s * SECOND)


def test_slots_count_on_each_node() -> None:
    outcome = ran(
        replace(TEN_S, tasks=30), way=SharingScheme(name="", policy="slots", slots=3), nodes=2
    )
    assert max(held for held, _ in outcome.held["a"]) == 6000, "three tasks on each of two"


def test_slots_overcommit_and_pay_for_it() -> None:
    large = replace(TEN_S, tasks=2, demand=(1000, 4096))
    two = SharingScheme(name="", policy="slots", slots=2)
    outcome = ran(large, way=two)
    # Half of 8 GB is swapped out: 11 times as long, for the two together.
    assert outcome.end_us >= 8 * 11 * SECOND
    assert outcome.overcommitted > Fraction(1, 2)
    free = ran(large, way=two, swap_cost=0)
    assert free.end_us <= 12 * SECOND
    assert ran(large).end_us <= 24 * SECOND, "DRF runs them one after the other"


def test_who_shares_a_node_with_a_hog_is_slowed_too() -> None:
    small = replace(TEN_S, user="b", demand=(1000, 1))
    hogs = replace(TEN_S, tasks=2, demand=(1000, 4096))
    alone = ran(small).end_us
    outcome = ran(hogs, small, way=SharingScheme(name="", policy="slots", slots=3))
    (ended,) = [each for each in outcome.ended if each.batch.user == "b"]
    assert ended.ended_us > 5 * alone


def test_a_batch_that_repeats_comes_again_when_it_has_ended() -> None:
    outcome = ran(replace(TEN_S, tasks=4, repeats=True), end_s=100)
    assert 7 <= len(outcome.ended) <= 12
    ends = [each.ended_us for each in outcome.ended]
    assert [each.submitted_us for each in outcome.ended] == [0, *ends[:-1]]
    assert outcome.end_us == 100 * SECOND
    assert len(outcome.held["a"]) == 100


def test_what_is_withdrawn_does_not_start() -> None:
    outcome = ran(replace(TEN_S, tasks=100, until_us=5 * SECOND))
    assert outcome.tasks == 4, "those that ran already went on"
    assert [each.batch.tasks for each in outcome.ended] == [100]


def test_a_node_that_reserves_makes_room_for_a_large_task() -> None:
    """Without, tasks of one core take each core as it comes free, for ever."""
    small = replace(TEN_S, user="b", tasks=400)
    large = replace(TEN_S, demand=(4000, 1024), tasks=20, at_us=SECOND)
    passed = ran(small, large, end_s=200)
    kept = ran(small, large, end_s=200, way=replace(DRF, reserves=True))
    assert not any(held for held, _ in passed.held["a"])
    cores = [held for held, _ in kept.held["a"]]
    assert cores.index(4000) <= 30
    assert sum(cores) > 0.3 * 4000 * 200


NODE = (8000, 6144)
AMOUNTS = st.tuples(st.integers(0, 30_000), st.integers(0, 30_000))


@given(st.tuples(st.integers(0, NODE[0]), st.integers(0, NODE[1])), st.integers(0, 100))
def test_who_stays_within_the_node_is_not_slowed(held: tuple[int, int], cost: int) -> None:
    assert slowdown(held, NODE, cost) == 1


@given(AMOUNTS, AMOUNTS, st.integers(0, 100))
def test_more_on_a_node_is_never_faster(
    held: tuple[int, int], more: tuple[int, int], cost: int
) -> None:
    both = (held[0] + more[0], held[1] + more[1])
    assert slowdown(both, NODE, cost) >= slowdown(held, NODE, cost)
