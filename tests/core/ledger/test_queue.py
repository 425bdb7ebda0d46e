"""One leaf's waiting jobs: priority first, then the order of submission."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.ledger.queue import Entry, LeafQueue, Line
from seeds import examples

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


def test_a_run_stands_where_its_jobs_would_stand_one_by_one() -> None:
    queue = queue_of([(SMALL, (0, 1)), (SMALL, (0, 9)), (SMALL, (-1, 7))])
    queue.add_runs(SMALL, [(0, 3, 6)])
    line = queue.groups[SMALL]
    assert line == [(-1, 7), (0, 1), (0, 3), (0, 4), (0, 5), (0, 6), (0, 9)]
    assert [line[at] for at in range(7)] == list(line)
    assert (line.first, line.last, len(line)) == ((-1, 7), (0, 9), 7)
    with pytest.raises(IndexError):
        line[7]


def test_what_leaves_the_middle_of_a_run_splits_it() -> None:
    line = Line()
    line.add_run((0, 1, 9))
    line.remove((0, 5))
    assert list(line.runs()) == [(0, 1, 4), (0, 6, 9)]
    with pytest.raises(KeyError):
        line.remove_run((0, 4, 6))
    line.remove_run((0, 6, 9))
    assert list(line.runs()) == [(0, 1, 4)]


def test_a_line_gives_its_first_and_last_as_runs() -> None:
    line = Line()
    line.add_run((0, 1, 9))
    line.add((2, 4))
    assert line.take_first(3) == (0, 1, 3)
    assert line.take_last(3) == (2, 4, 4)
    assert line.take_last(3) == (0, 7, 9)
    assert line.take_first(9) == (0, 4, 6)
    assert (list(line), len(line)) == ([], 0)


def test_a_line_of_runs_is_what_a_set_of_its_entries_would_be() -> None:
    """Through all that an array does: runs come, single ones and pieces of runs leave and come."""
    random = Random(2)
    line, model, blocks = Line(), set[Entry](), list[list[Entry]]()
    for number in range(4000):
        first = number * 10
        run = random.choice([0, -1, 1]), first, first + random.randrange(10)
        line.add_run(run)
        block = [(run[0], job_id) for job_id in range(first, run[2] + 1)]
        blocks.append(block)
        model.update(block)
        for _ in range(2):
            block = random.choice(blocks)
            low = random.randrange(len(block))
            piece = block[low : low + random.randint(1, 3)]
            there = [entry for entry in piece if entry in model]
            whole = piece[0][0], piece[0][1], piece[-1][1]
            if len(there) == len(piece):
                line.remove_run(whole)
                model.difference_update(piece)
            elif not there:
                line.add_run(whole)
                model.update(piece)
            else:
                with pytest.raises(KeyError):
                    line.remove_run(whole)
            assert (piece[0] in line) is (piece[0] in model)
        assert len(line) == len(model)
    assert list(line) == sorted(model)
    assert (line.first, line.last) == (min(model), max(model))


def test_many_runs_enter_and_leave_a_line_as_each_of_them_would() -> None:
    """Through all that a torn array does: its runs come and leave together, also where the line has
    cut them otherwise, and others stand before, behind and among them."""
    random = Random(3)
    line, model = Line(), Line()
    for number in range(60):
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
