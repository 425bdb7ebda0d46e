"""Very short jobs count a moment longer than they run: in fairness, and in nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from core.passes import plan
from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.priority_tree import ShortJobs
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue


def queue_of(*jobs: tuple[str, Vector]) -> dict[str, LeafQueue]:
    queues: dict[str, LeafQueue] = {}
    for job_id, (leaf, demand) in enumerate(jobs, start=1):
        queues.setdefault(leaf, LeafQueue()).add(demand, (0, job_id))
    return queues


def test_jobs_count_until_their_time_is_over() -> None:
    short = ShortJobs()
    short.add("a", (1, 2), 10.0)
    short.add("a", (3, 0), 8.0)
    short.add("b", (0, 0), 9.0)
    assert short.counted == {"a": (4, 2), "b": (0, 0)}
    assert short.forget(7.9) == []
    assert (short.forget(9.0), short.counted) == (["a", "b"], {"a": (1, 2)})
    assert (short.forget(99.0), short.counted) == (["a"], {})


def held_seconds(min_hold_s: int, *, until_s: int = 120) -> Counter[str]:
    """Two places for an hour's worth of jobs of three leaves: a's take one second each, and were
    all submitted first; those of the others take twenty. What each leaf holds, in place-seconds.
    """
    lengths = {"root.a": 1, "root.b": 20, "root.c": 20}
    jobs = [(leaf, (1,)) for leaf in lengths for _ in range(200)]
    queues = queue_of(*jobs)
    short = ShortJobs()
    running: dict[int, int] = {}
    held: Counter[str] = Counter()
    for now_s in range(until_s):
        for job_id in [each for each, end_s in running.items() if end_s <= now_s]:
            leaf, demand = jobs[job_id - 1]
            started_s = running.pop(job_id) - lengths[leaf]
            if started_s + min_hold_s > now_s:
                short.add(leaf, demand, started_s + min_hold_s)
        short.forget(now_s)
        used = Counter(jobs[job_id - 1][0] for job_id in running)
        done = plan(
            queues=queues,
            used={leaf: (count,) for leaf, count in used.items()},
            free=(2 - len(running),),
            shares=FairShare((2,)),
            recent=short.counted,
        )
        assert len(running) + len(done.admitted) == 2, "nothing is kept free for what has ended"
        for job_id in done.admitted:
            leaf, demand = jobs[job_id - 1]
            queues[leaf].remove(demand, (0, job_id))
            running[job_id] = now_s + lengths[leaf]
        held.update(jobs[job_id - 1][0] for job_id in running)
    return held


def test_a_stream_of_short_jobs_does_not_always_come_first() -> None:
    """It looks empty whenever one of its jobs has ended, and so the third leaf never has a turn."""
    assert held_seconds(0) == {"root.a": 120, "root.b": 120}
    fair = held_seconds(10)
    assert fair["root.a"] < 240 / 3
    assert min(fair["root.b"], fair["root.c"]) > 60


def test_what_a_short_job_held_is_free_and_does_not_count_against_limits() -> None:
    shares = FairShare((4,), {"root.lab": NodeRule(limit=(2,))})
    done = plan(
        queues=queue_of(("root.lab.a", (2,)), ("root.b", (2,))),
        used={},
        free=(4,),
        shares=shares,
        recent={"root.lab.a": (2,)},
    )
    assert sorted(done.admitted) == [1, 2]
    assert done.free == (0,)


@pytest.mark.parametrize(("recent", "first"), [({}, 1), ({"root.a": (3,)}, 2)])
def test_a_leaf_that_has_just_had_a_short_job_is_further_from_its_turn(
    recent: dict[str, Vector], first: int
) -> None:
    done = plan(
        queues=queue_of(("root.a", (3,)), ("root.b", (3,))),
        used={"root.b": (1,), "root.c": (5,)},
        free=(3,),
        shares=FairShare((9,)),
        recent=recent,
    )
    assert done.admitted == [first]
