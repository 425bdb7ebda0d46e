"""A cluster of equal nodes on which the paper's experiments run, simulated by `sim.driver`.

Shares are parts of the whole cluster, and a task runs on one node. DRF is compared with policies
that look at less than a task needs: at a slot, or at the CPUs alone. They are fair to the users in
what they look at, and overcommit the rest, so that nodes become slow (`slowdown`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, inf
from random import Random

from drfd.core.fairness.rules import ReservationSettings, Rules
from drfd.core.model.machine import Vector, minus, plus
from drfd.core.model.resources import Axes, ClusterNode, Resources
from drfd.sim.driver import Speeds, simulate
from drfd.sim.workload import SimJob

#: Indices of the vectors of a cluster.
CORES, MEMORY = 0, 1

#: Fitted: with six slots a node, as many large jobs end as in figure 9 of the DRF paper.
SWAP_COST = 40


def vector(cpus: float, gb: float) -> Vector:
    return int(cpus * 1000), int(gb * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A job of equal tasks, which may run in any order and on any node."""

    user: str
    tasks: int
    #: Thousandths of cores, and MiB.
    demand: Vector
    #: Run time of a task on a node that is not overcommitted; each task takes up to a fifth more or
    #: less, at random.
    task_s: float
    at_s: float = 0.0
    #: When tasks that still wait are withdrawn, or None if they never are.
    until_s: float | None = None
    #: Whether its user submits the same job again when it has ended.
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A number of equal nodes."""

    nodes: int
    #: The capacity of one node.
    node: Vector
    #: The slowdown by swapping: see `slowdown`.
    swap_cost: int = SWAP_COST

    @property
    def capacity(self) -> Vector:
        return tuple(each * self.nodes for each in self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingScheme:
    """What is shared fairly: all resources by "drf", `slots` of each node by "slots", cores by
    "cpu"."""

    name: str
    policy: str
    slots: int | None = None
    #: Whether room is kept for a task that is served next and does not fit yet, as drfd does. If
    #: not, the task is passed over, as by Mesos.
    reserves: bool = False

    def looked_at(self, amounts: Vector, *, tasks: int = 1) -> Resources:
        """Return what the scheme counts of a task, or of a node that has room for `tasks`."""
        if self.policy == "slots":
            return Resources(cores_milli=tasks * 1000)
        memory_bytes = 0 if self.policy == "cpu" else amounts[MEMORY] << 20
        return Resources(cores_milli=amounts[CORES], memory_bytes=memory_bytes)


@dataclass(slots=True)
class Submission:
    """A job that was submitted."""

    batch: Batch
    submitted_s: float
    #: Tasks that have not ended, and when the last one has.
    left: int
    ended_s: float = 0.0

    @property
    def took_s(self) -> float:
        return self.ended_s - self.submitted_s


def slowdown(held: Vector, node: Vector, swap_cost: int) -> float:
    """Return the factor by which run times grow on a node whose tasks ask for `held` together.

    A model for schedulers that overcommit; without overcommitment the factor is 1.

    Cores are divided: tasks that ask for 12 of 8 cores run at 8/12 of their speed. Memory costs
    more. Where tasks hold h of m bytes, h > m, a part f = 1 - m/h lies in the swap space: the bytes
    that are touched least. If touches fall off linearly from the most to the least used byte, f^2
    of them go there, and each of these takes `swap_cost` times as long as one in memory: the tasks
    take 1 + swap_cost * f^2 times as long. Both hold for every task of the node, also for those
    that would have fitted.
    """
    swapped = max(0.0, 1 - node[MEMORY] / max(1, held[MEMORY]))
    return max(1.0, held[CORES] / node[CORES]) * (1 + swap_cost * swapped**2)


class ClusterRun(Speeds):
    """A simulation: what runs on each node, and in the end the result."""

    def __init__(
        self,
        batches: Sequence[Batch],
        cluster: Cluster,
        way: SharingScheme,
        *,
        step_s: float,
        seed: int,
    ) -> None:
        """Each task must fit on an empty node."""
        self._batches, self._cluster, self._way, self._step_s = batches, cluster, way, step_s
        self._random = Random(seed)  # noqa: S311  # chance, not secrets
        self._ids = count(1)
        nothing: Vector = (0,) * len(cluster.node)
        #: User → the resources held at 0, `step_s`, 2 * `step_s` and so on.
        self.held: dict[str, list[Vector]] = {batch.user: [] for batch in batches}
        #: The jobs all of whose tasks have ended, in order.
        self.ended: list[Submission] = []
        self.end_s = self._overcommitted_s = 0.0
        #: What each user and each node holds now.
        self._used = dict.fromkeys(self.held, nothing)
        self._on_node = {f"n{at}": nothing for at in range(cluster.nodes)}
        self._tasks: dict[str, set[int]] = {name: set() for name in self._on_node}
        #: Task → its submission; running task → its node.
        self._of: dict[int, Submission] = {}
        self._node_of: dict[int, str] = {}
        self._touched: set[str] = set()
        self._crowded: set[str] = set()

    def run(self, end_s: float | None = None) -> ClusterRun:
        """Simulate until a time, or until all tasks have ended if it is None. Then no batch may
        repeat."""
        node = self._way.looked_at(self._cluster.node, tasks=self._way.slots or 1)
        nodes = tuple(ClusterNode(name=name, capacity=node) for name in self._on_node)
        rules = Rules(
            axes=Axes(nodes=nodes),
            capacity=Resources(
                cores_milli=node.cores_milli * len(nodes),
                memory_bytes=node.memory_bytes * len(nodes),
            ),
            reserving=ReservationSettings(delay_s=0, reserves=self._way.reserves),
            min_charge_s=0,
        )
        simulate(
            [task for batch in self._batches for task in self.submitted(batch, batch.at_s)],
            rules,
            estimates="limit",
            speeds=self,
            until_s=inf if end_s is None else end_s,
        )
        self.advance(end_s or 0.0)
        return self

    @property
    def overcommitted(self) -> float:
        """The part of all node time in which the tasks of a node asked for more memory than it
        has."""
        return self._overcommitted_s / (self.end_s * len(self._on_node) or 1)

    def submitted(self, batch: Batch, at_s: float) -> Iterator[SimJob]:
        submission = Submission(batch, at_s, batch.tasks)
        demand = self._way.looked_at(batch.demand)
        for _ in range(batch.tasks):
            task_id = next(self._ids)
            self._of[task_id] = submission
            yield SimJob(
                id=task_id,
                name="",
                user=batch.user,
                submit_s=at_s,
                run_s=batch.task_s * self._random.uniform(0.8, 1.2),
                demand=demand,
                limit_s=batch.task_s,
                until_s=batch.until_s,
            )

    def start(self, job: SimJob, leaf: str, node: str, now_s: float) -> None:
        self._node_of[job.id] = node
        self._tasks[node].add(job.id)
        self._change(job.id, node, now_s, plus)

    def end(self, job: SimJob, now_s: float) -> Sequence[SimJob]:
        node = self._node_of.pop(job.id)
        self._tasks[node].remove(job.id)
        self._change(job.id, node, now_s, minus)
        submission = self._of.pop(job.id)
        submission.left -= 1
        if submission.left:
            return ()
        submission.ended_s = now_s
        self.ended.append(submission)
        return tuple(self.submitted(submission.batch, now_s)) if submission.batch.repeats else ()

    def changed(self, used: Mapping[str, Vector], now_s: float) -> Mapping[int, float]:
        speeds = {}
        for name in self._touched:
            held = self._on_node[name]
            speed = 1 / slowdown(held, self._cluster.node, self._cluster.swap_cost)
            speeds.update(dict.fromkeys(self._tasks[name], speed))
        self._touched.clear()
        return speeds

    def advance(self, now_s: float) -> None:
        """Record what has been held since the latest change, for every step before now."""
        if now_s > self.end_s:
            self._overcommitted_s += len(self._crowded) * (now_s - self.end_s)
            self.end_s = now_s
            for user, rows in self.held.items():
                rows += [self._used[user]] * (ceil(now_s / self._step_s) - len(rows))

    def _change(
        self, task_id: int, node: str, now_s: float, change: Callable[[Vector, Vector], Vector]
    ) -> None:
        """Take account of a task that starts or ends on the node."""
        self.advance(now_s)
        batch = self._of[task_id].batch
        self._used[batch.user] = change(self._used[batch.user], batch.demand)
        held = self._on_node[node] = change(self._on_node[node], batch.demand)
        self._touched.add(node)
        if held[MEMORY] > self._cluster.node[MEMORY]:
            self._crowded.add(node)
        else:
            self._crowded.discard(node)
