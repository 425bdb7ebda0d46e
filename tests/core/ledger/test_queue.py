"""One leaf's waiting jobs: priority first, then the order of submission."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.ledger.queue import Entry, LeafQueue, Line
from seeds import examples, seeds

STEADY = examples(100)
SMALL, LARGE = (1, 1), (2, 2)
ENTRIES = some.lists(
    some.tuples(some.sampled_from([SMALL, LARGE]), some.integers(-2, 2)), max_size=12
).map(lambda rows: [(demand, (prio, at)) for at, (demand, prio) in enumerate(rows)])


def queue_of(rows: list[tuple[tuple[int, ...], Entry]]) -> LeafQueue:
    queue = LeafQueue()
    for demand, entry in rows:
        queue.add(demand, entry)
    return queue


@pytest.mark.parametrize("entry", [(0, 1), (0, 3), (0, 9), (-1, 2)])
def test_removing_what_is_not_there_raises_and_changes_nothing(entry: Entry) -> None:
    queue = queue_of([(SMALL, (0, 2)), (SMALL, (0, 4))])
    with pytest.raises(KeyError):
        queue.remove(SMALL, entry)
    with pytest.raises(KeyError):
        queue.remove(LARGE, (0, 2))
    assert queue.groups == {SMALL: [(0, 2), (0, 4)]}


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


def test_a_run_stands_where_its_jobs_would_stand_one_by_one() -> None:
    queue = queue_of([(SMALL, (0, 1)), (SMALL, (0, 9)), (SMALL, (-1, 7))])
    queue.add_runs(SMALL, [(0, 3, 6)])
    line = queue.groups[SMALL]
    assert line == [(-1, 7), (0, 1), (0, 3), (0, 4), (0, 5), (0, 6), (0, 9)]
    assert [line[at] for at in range(7)] == list(line)
    assert (line.first, line.last, len(line)) == ((-1, 7), (0, 9), 7)
    with pytest.raises(IndexError):
        line[7]


@pytest.mark.parametrize("moves", seeds([30, 60], quick=1))
def test_many_runs_enter_and_leave_a_line_as_each_of_them_would(moves: int) -> None:
    """Through all that a torn array does: its runs come and leave together, also where the line has
    cut them otherwise, and others stand before, behind and among them."""
    random = Random(3)
    line, model = Line(), Line()
    for number in range(moves):
        at = random.randrange(20) * 100_000
        priority = random.choice([0, -1])
        runs = []
        for step in range(random.choice([1, 5, 300, 3000])):
            first = at + number * 1_000_000_000 + step * 9
            runs.append((priority, first, first + random.randrange(7)))
        line.add_runs(runs)
        for run in runs:
            model.add_run(run)
        if random.random() < 0.5:
            # A task leaves from within a run and comes back: the run stays cut.
            priority, first, last = random.choice(runs)
            for each in (line, model):
                each.remove((priority, last))
                each.add((priority, last))
        left = random.sample(runs, random.randrange(len(runs) + 1))
        line.remove_runs(sorted(left))
        for run in left:
            model.remove_run(run)
        assert len(line) == len(model)
    assert [*line] == [*model]


@pytest.mark.parametrize("many", [3, 300])
def test_runs_of_which_one_is_not_there_are_an_error(many: int) -> None:
    line = Line()
    line.add_runs([(0, at, at + 2) for at in range(0, many * 10, 10)])
    with pytest.raises(KeyError):
        line.remove_runs([(0, at, at + 3) for at in range(0, many * 10, 10)])
