"""Two simulations of several nodes beside each other: `sim.driver`, which places jobs as the daemon
does, and `sim.cluster`, which fills each node by itself, as Mesos offers them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.resources import Axes, Node, Resources
from drfd.core.fairness.rules import Rules
from drfd.sim.cluster import Batch, Cluster, SharingScheme, Simulation
from drfd.sim.driver import simulate
from drfd.sim.workload import SimJob
from seeds import examples

NODE = (4000, 4096)
#: Shorter than 5 microseconds: the tasks of a cluster all take exactly this long.
TASK_US = 4


def by_nodes(batches: Sequence[Batch], nodes: int) -> list[int]:
    """Return how many cores are held in each microsecond if each node is filled by itself."""
    way = SharingScheme(name="DRF", policy="drf")
    cluster = Cluster(nodes=nodes, node=NODE)
    held = Simulation(batches, cluster, way, step_us=1, seed=1).until(None).held.values()
    return [sum(cores for cores, _ in column) for column in zip(*held, strict=True)]


def by_placement(batches: Sequence[Batch], nodes: int) -> list[int]:
    """Return the same, a microsecond being a second, if jobs are placed as the daemon does."""
    node = Resources(cores_milli=NODE[0], memory_bytes=NODE[1])
    axes = Axes(nodes=tuple(Node(name=f"n{at}", capacity=node) for at in range(nodes)))
    whole = Resources(cores_milli=nodes * NODE[0], memory_bytes=nodes * NODE[1])
    in_order = sorted(batches, key=lambda batch: batch.at_us)
    tasks = [batch for batch in in_order for _ in range(batch.tasks)]
    jobs = [
        SimJob(
            id=number,
            name="",
            user=batch.user,
            submit_s=batch.at_us,
            run_s=batch.task_us,
            limit_s=None,
            demand=Resources(cores_milli=batch.demand[0], memory_bytes=batch.demand[1]),
        )
        for number, batch in enumerate(tasks, 1)
    ]
    run = simulate(jobs, Rules(axes=axes, capacity=whole), estimates="none")
    assert (run.refused, run.unstarted) == ((), ())
    held = [0] * int(max(each.end_s for each in run.ran))
    for each in run.ran:
        for at in range(int(each.start_s), int(each.end_s)):
            held[at] += each.job.demand.cores_milli
    return held


def batch(user: str, cores: int, at_us: int, tasks: int = 1) -> Batch:
    demand = 1000 * cores, 1024 * cores
    return Batch(user=user, tasks=tasks, demand=demand, task_us=TASK_US, at_us=at_us)


@examples(100, quick=7)
@given(
    nodes=some.integers(1, 4),
    cores=some.integers(1, 4),
    sent=some.lists(
        some.tuples(some.sampled_from("abc"), some.integers(0, 9), some.integers(1, 9)),
        min_size=1,
        max_size=6,
    ),
)
def test_jobs_of_one_size_fill_the_nodes_alike_both_ways(
    nodes: int, cores: int, sent: list[tuple[str, int, int]]
) -> None:
    """Any node with room is as good as any other, so as many run at each time."""
    batches = [batch(user, cores, at_us, tasks) for user, at_us, tasks in sent]
    assert by_placement(batches, nodes) == by_nodes(batches, nodes)


def test_a_job_placed_by_the_rest_leaves_room_that_the_first_node_with_room_does_not() -> None:
    """Of two nodes, with 2 and 1 of 4 cores free, the job of 1 core takes the first one that is
    offered, or the one that it fills; only then the next one, of 2 cores, need not wait."""
    batches = [batch("a", 2, 0), batch("a", 3, 0), batch("a", 1, 1), batch("a", 2, 2)]
    assert by_placement(batches, 2)[:4] == [5000, 6000, 8000, 8000]
    assert by_nodes(batches, 2)[:4] == [5000, 6000, 6000, 6000]
