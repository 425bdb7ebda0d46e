"""One leaf's waiting jobs: priority first, then the order of submission."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from drfd.core.queue import Entry, LeafQueue

STEADY = settings(derandomize=True, deadline=None, max_examples=100)
SMALL, LARGE = (1, 1), (2, 2)
ENTRIES = some.lists(
    some.tuples(some.sampled_from([SMALL, LARGE]), some.integers(-2, 2)), max_size=12
).map(lambda rows: [(demand, (prio, at)) for at, (demand, prio) in enumerate(rows)])


def queue_of(rows: list[tuple[tuple[int, ...], Entry]]) -> LeafQueue:
    queue = LeafQueue()
    for demand, entry in rows:
        queue.add(demand, entry)
    return queue


def test_jobs_of_one_demand_stand_in_the_order_of_submission() -> None:
    assert queue_of([(SMALL, (0, 1)), (SMALL, (0, 2)), (SMALL, (0, 3))]).groups == {
        SMALL: [(0, 1), (0, 2), (0, 3)]
    }


def test_a_higher_priority_stands_before_an_earlier_submission() -> None:
    assert queue_of([(SMALL, (0, 1)), (SMALL, (-5, 2)), (SMALL, (5, 3))]).groups == {
        SMALL: [(-5, 2), (0, 1), (5, 3)]
    }


def test_a_released_job_takes_its_old_place() -> None:
    assert queue_of([(SMALL, (0, 1)), (SMALL, (0, 3)), (SMALL, (0, 2))]).groups == {
        SMALL: [(0, 1), (0, 2), (0, 3)]
    }


def test_jobs_of_another_demand_form_a_group_of_their_own() -> None:
    queue = queue_of([(SMALL, (0, 1)), (LARGE, (0, 2))])
    assert queue.groups == {SMALL: [(0, 1)], LARGE: [(0, 2)]}
    assert len(queue) == 2


def test_an_empty_group_is_dropped_and_an_empty_queue_is_false() -> None:
    queue = queue_of([(SMALL, (0, 1))])
    assert queue
    queue.remove(SMALL, (0, 1))
    assert queue.groups == {}
    assert not queue
    assert len(queue) == 0


@pytest.mark.parametrize("entry", [(0, 1), (0, 3), (0, 9), (-1, 2)])
def test_removing_what_is_not_there_raises_and_changes_nothing(entry: Entry) -> None:
    queue = queue_of([(SMALL, (0, 2)), (SMALL, (0, 4))])
    with pytest.raises(KeyError):
        queue.remove(SMALL, entry)
    with pytest.raises(KeyError):
        queue.remove(LARGE, (0, 2))
    assert queue.groups == {SMALL: [(0, 2), (0, 4)]}


def test_a_queue_is_equal_by_what_it_holds_and_cannot_be_hashed() -> None:
    assert queue_of([(SMALL, (0, 1))]) == queue_of([(SMALL, (0, 1))])
    assert queue_of([(SMALL, (0, 1))]) != queue_of([(LARGE, (0, 1))])
    assert queue_of([]) != {}
    with pytest.raises(TypeError):
        hash(queue_of([]))


@STEADY
@given(ENTRIES, some.randoms(use_true_random=False), some.integers(0, 12))
def test_the_order_of_arrival_and_what_has_left_do_not_matter(
    rows: list[tuple[tuple[int, ...], Entry]], random: Random, stay: int
) -> None:
    """The queue is what its entries are: a rebuilt ledger has the same queues."""
    arrivals = list(rows)
    random.shuffle(arrivals)
    queue = queue_of(arrivals)
    for demand, entry in rows[stay:]:
        queue.remove(demand, entry)
    left = rows[:stay]
    assert queue == queue_of(left)
    assert queue.groups == {
        demand: sorted(entry for each, entry in left if each == demand) for demand, _ in left
    }


def test_a_long_line_is_sorted_whatever_comes_and_goes() -> None:
    """So long that it consists of several blocks."""
    random = Random(1)
    queue, model = LeafQueue(), set[Entry]()
    for number in range(3000):
        entry = random.choice([0, 0, -1, 1]), number
        queue.add(SMALL, entry)
        model.add(entry)
    for _ in range(3):
        for entry in random.sample(sorted(model), 700):
            queue.remove(SMALL, entry)
            model.remove(entry)
        for _ in range(500):
            entry = random.choice([0, -1, 1]), random.randrange(3000)
            if entry not in model:
                queue.add(SMALL, entry)
                model.add(entry)
        line = queue.groups[SMALL]
        assert list(line) == sorted(model)
        assert (line.first, len(line), len(queue)) == (min(model), len(model), len(model))
    with pytest.raises(KeyError):
        queue.remove(SMALL, (7, 0))
