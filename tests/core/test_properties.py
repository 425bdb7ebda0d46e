"""One pass over a random tree: what the slow pass says, in its order, with nothing left that fits.

Rows of docs/fairness.md 1.8: choice, work conservation, accounting. Machines have one to five
resources, now and then none of one; users ask for several vectors, with zeros; nodes have weights,
limits and guarantees, and hold something already.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.oracle import Level, Pass, Tree, above, line, promises
from core.passes import plan
from core.worlds import (
    LEAVES,
    World,
    after,
    carry_on,
    entitled,
    fair_share,
    fits_now,
    queues_of,
    run,
    start,
    trees,
    worlds,
)
from seeds import examples


@examples(400)
@given(worlds())
@pytest.mark.slow
def test_a_pass_over_a_tree_is_what_the_slow_pass_says(world: World) -> None:
    state = start(world)
    for job_id in run(world).admitted:
        assert job_id in state.choices()
        carry_on(state, job_id)
    assert state.choices() == set()


@examples(150, quick=11)
@given(trees(), some.sets(some.sampled_from(LEAVES), min_size=1))
def test_what_each_node_is_promised_is_what_the_slow_division_says(
    tree: Tree, leaves: set[str]
) -> None:
    """By weight, within guarantee and limit, on each resource by itself, level by level."""
    expected = promises(tree, leaves)
    assert entitled(tree, leaves) == expected
    for path, parts in expected.items():
        below = [expected[child] for child in expected if child != "root" and above(child) == path]
        for axis, part in enumerate(parts):
            assert sum((each[axis] for each in below), Fraction(0)) <= part


def keeps_a_promise(state: Pass, job_id: int) -> bool:
    ask = state.waiting[job_id]
    return any(state.keeps_promise(path, ask.demand) for path in line(ask.leaf))


def satisfaction(state: Pass, path: str, leaves: set[str]) -> Level:
    """The least of the node's own and of those below that can launch something."""
    below = [leaf for leaf in leaves if path in line(leaf)]
    return min(state.level(p) for leaf in below for p in line(leaf) if path in line(p))


@examples(150, quick=5)
@given(worlds())
def test_each_launch_is_of_the_least_satisfied_at_every_level(world: World) -> None:
    """Among those that could launch something in the same phase; promises come first."""
    state = start(world)
    for job_id in run(world).admitted:
        ask = state.waiting[job_id]
        could = {other for other in state.waiting if fits_now(state, other)}
        keeping = {other for other in could if keeps_a_promise(state, other)}
        assert job_id in (keeping or could)
        rivals = {state.waiting[other].leaf for other in keeping or could}
        for path in line(ask.leaf):
            siblings = {p for leaf in rivals for p in line(leaf) if above(p) == above(path)}
            least = min(satisfaction(state, sibling, rivals) for sibling in siblings)
            assert satisfaction(state, path, rivals) == least
        carry_on(state, job_id)


@examples(150, quick=3)
@given(worlds())
def test_inside_a_leaf_no_job_passes_an_earlier_one_that_could_start(world: World) -> None:
    state = start(world)
    for job_id in run(world).admitted:
        own = state.jobs(state.waiting[job_id].leaf)
        for other in own[: own.index(job_id)]:
            keeping = keeps_a_promise(state, job_id)
            assert not fits_now(state, other) or (keeping and not keeps_a_promise(state, other))
        carry_on(state, job_id)


@examples(150, quick=6)
@given(worlds())
def test_after_a_pass_nothing_that_waits_fits_within_its_limits(world: World) -> None:
    state = after(world)
    assert [job_id for job_id in state.waiting if fits_now(state, job_id)] == []


@examples(150, quick=4)
@given(worlds())
def test_a_pass_gives_no_more_than_there_is_and_no_node_more_than_its_limit(world: World) -> None:
    done, before, now = run(world), start(world), after(world)
    assert len(set(done.admitted)) == len(done.admitted)
    assert done.free == now.free
    assert all(amount >= 0 for amount in now.free)
    for path, rule in world.tree.rules.items():
        have, had = now.usage(path), before.usage(path)
        for axis, most in enumerate(rule.limit or ()):
            assert most is None or have[axis] <= max(most, had[axis])


@examples(150, quick=6)
@given(worlds(), some.randoms(use_true_random=False))
def test_the_order_of_tables_decides_nothing_in_a_tree(world: World, random: Random) -> None:
    """The same jobs give the same pass, whatever order a restart has put them in."""
    jobs, held, lately = list(world.waiting.items()), list(world.held.items()), [*world.past_usage]
    for table in (jobs, held, lately):
        random.shuffle(table)
    again = plan(
        queues=queues_of(dict(jobs)),
        used=dict(held),
        free=start(world).free,
        shares=fair_share(world.tree),
        past_usage={path: world.past_usage[path] for path in lately},
    )
    first = run(world)
    assert (again.admitted, again.free) == (first.admitted, first.free)
