"""Tables that are kept between passes: each gives what one made anew would, and a pass over them
does not grow with users or queues.

They are there for speed alone; what passes decide is tested elsewhere.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bench.load import Load, Shape
from core.worlds import lines_counted
from drfd.core.ledger.queue import JobsOfClass
from seeds import examples

# -- work ------------------------------------------------------------------------------------------


def lines_per_step(shape: Shape, steps: int = 30) -> float:
    """Of an end, a submission, and a pass that launches about one job."""
    load = Load(shape)
    for _ in range(20):
        load.step()
    with lines_counted() as lines:
        for _ in range(steps):
            load.step()
    return lines[0] / steps


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.slow
def test_the_work_of_a_launch_and_an_end_grows_far_less_than_users_and_queues(deep, reserved):
    few = lines_per_step(Shape(users=100, queued=1_000, deep=deep, reserved=reserved))
    longer = lines_per_step(Shape(users=100, queued=10_000, deep=deep, reserved=reserved))
    wider = lines_per_step(Shape(users=3_000, queued=10_000, deep=deep, reserved=reserved))
    assert longer < 3 * few
    assert wider < 4 * few


# -- the queue of a leaf ---------------------------------------------------------------------------


@examples(100)
@given(some.lists(some.integers(-2, 2), max_size=12), some.randoms(use_true_random=False))
def test_the_order_of_arrival_and_what_has_left_do_not_matter(priorities, random):
    """A rebuilt ledger has the same queues."""
    entries = [(priority, at) for at, priority in enumerate(priorities)]
    random.shuffle(entries)
    stay, alike = random.randrange(len(entries) + 1), JobsOfClass()
    for priority, at in entries:
        alike.add((priority, at, at), (at, at))
    for entry in entries[stay:]:
        alike.remove(entry)
        with pytest.raises(KeyError):
            alike.remove(entry)
    left = sorted(entries[:stay])
    assert [*alike] == left
    assert all((entry in alike) is (entry in left) for entry in entries)
    assert [alike.after(entry) for entry in [(-3, 0), *left]] == [*left, None]


@examples(100)
@given(some.lists(some.integers(0, 19), max_size=40))
def test_tasks_of_an_array_join_and_leave_runs_one_by_one(toggled):
    """Beside tasks of another array and a single job, whose ids are adjacent."""
    arrays = [(0, 9), (10, 18)]
    alike, there = JobsOfClass(), set(range(20))
    alike.add((0, 19, 19), (19, 19))
    for first, last in arrays:
        alike.add((0, first, last), (first, last))
    for job_id in toggled:
        if job_id in there:
            alike.remove((0, job_id))
        else:
            among = next((ids for ids in arrays if ids[0] <= job_id <= ids[1]), (job_id, job_id))
            alike.add((0, job_id, job_id), among)
        there ^= {job_id}
        assert [*alike] == [(0, each) for each in sorted(there)]
        assert len(alike) == len(there)
        ends = {last for _, _, last in alike.runs()}
        assert ends == {each for each in there if each + 1 not in there or each in (9, 18, 19)}
