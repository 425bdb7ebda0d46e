"""A cluster of equal nodes under one scheduler, in virtual time: for the DRF paper's experiments.

Shares are parts of the whole cluster, and a task runs on one node. Whenever a node has room, a
policy of `core.scheduling.scheduling_pass` fills it as if no other node had any, as Mesos does,
which offers node by node. All times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import ceil
from random import Random

from drfd.core.amounts.vectors import Vector, minus, plus
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import TOP, FairShare
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.backfill import PassContext, Reservation
from drfd.core.scheduling.plan import PassInput, PolicyOptions
from drfd.core.scheduling.scheduling_pass import POLICIES
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex

SECOND = 1_000_000

#: Indices of the vectors of a cluster.
CORES, MEMORY = 0, 1

#: Fitted: with six slots a node, as many large jobs end as in figure 9 of the DRF paper.
SWAP_COST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A job of equal tasks, which may run in any order and on any node."""

    user: str
    tasks: int
    demand: Vector
    #: Run time of a task on a node that is not overcommitted; each task takes up to a fifth more or
    #: less, at random.
    task_us: int
    at_us: int = 0
    #: When tasks that still wait are withdrawn, or None if they never are.
    until_us: int | None = None
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
    """A policy, and how it is applied to the nodes of a cluster."""

    name: str
    #: A name in `core.scheduling.scheduling_pass.POLICIES`.
    policy: str
    #: Slots of a node, under the policy "slots".
    slots: int | None = None
    #: Whether a node keeps room for a task that is served next and does not fit yet, as drfd does.
    #: If not, the task is passed over, as by Mesos. Only the policy "drf" can reserve.
    reserves: bool = False


@dataclass(frozen=True, slots=True)
class BatchEnd:
    batch: Batch
    submitted_us: int
    ended_us: int


@dataclass(slots=True, kw_only=True)
class ClusterRun:
    """The result of a simulation."""

    step_us: int
    #: User → the resources held at 0, `step_us`, 2 * `step_us` and so on.
    held: dict[str, list[Vector]]
    #: The jobs that have ended, in order.
    ended: list[BatchEnd] = field(default_factory=list)
    #: The number of tasks that have ended.
    tasks: int = 0
    end_us: int = 0
    #: The part of all node time in which the tasks of a node asked for more memory than it has.
    overcommitted: Fraction = Fraction(0)


def slowdown(held: Vector, node: Vector, swap_cost: int) -> Fraction:
    """Return the factor by which run times grow on a node whose tasks ask for `held` together.

    A model for schedulers that overcommit; without overcommitment the factor is 1.

    Cores are divided: tasks that ask for 12 of 8 cores run at 8/12 of their speed. Memory costs
    more. Where tasks hold h of m bytes, h > m, a part f = 1 - m/h lies in the swap space: the bytes
    that are touched least. If touches fall off linearly from the most to the least used byte, f^2
    of them go there, and each of these takes `swap_cost` times as long as one in memory: the tasks
    take 1 + swap_cost * f^2 times as long. Both hold for every task of the node, also for those
    that would have fitted.
    """
    crowd = max(Fraction(1), Fraction(held[CORES], node[CORES]))
    if held[MEMORY] <= node[MEMORY]:
        return crowd
    swapped = 1 - Fraction(node[MEMORY], held[MEMORY])
    return crowd * (1 + swap_cost * swapped**2)


@dataclass(slots=True)
class _Job:
    batch: Batch
    #: The index of the batch.
    number: int
    #: The node of its user in the fair-share tree.
    leaf: str
    submitted_us: int
    #: Tasks that have neither ended nor been withdrawn.
    left: int
    #: The task ids of the job.
    ids: range = range(0)


@dataclass(slots=True)
class _Task:
    job: _Job
    #: Remaining run time on a node that is not overcommitted.
    left_us: int


@dataclass(slots=True)
class _ClusterNode:
    held: Vector
    tasks: list[_Task] = field(default_factory=list)
    #: The time for which `left_us` of its tasks holds.
    at_us: int = 0
    #: The slowdown of its tasks since `at_us`.
    factor: Fraction = Fraction(1)
    #: Grows with each planned end; events with an older number are void.
    turn: int = 0
    #: The reservations on this node.
    kept: tuple[Reservation, ...] = ()


class _Kind(IntEnum):
    """The kinds of events, in the order in which those of one instant are handled."""

    TASK_ENDS = 0
    BATCH_GOES = 1
    BATCH_COMES = 2


class Simulation:
    """A run of batches on a cluster. Each task must fit on an empty node."""

    def __init__(
        self, batches: Sequence[Batch], cluster: Cluster, way: SharingScheme, *, step_us: int,
        seed: int,
    ) -> None:  # fmt: skip
        self._cluster, self._way = cluster, way
        self._random = Random(seed)  # noqa: S311  # chance, not secrets
        self._shares = FairShare(cluster.capacity)
        nothing: Vector = (0,) * len(cluster.node)
        self._nodes = [_ClusterNode(nothing) for _ in range(cluster.nodes)]
        names = list(dict.fromkeys(batch.user for batch in batches))
        self._leaves = [f"{TOP}.u{number}" for number in range(len(names))]
        self._leaf_of = dict(zip(names, self._leaves, strict=True))
        self._queues = {leaf: LeafQueue() for leaf in self._leaves}
        self._used = dict.fromkeys(self._leaves, nothing)
        self._running = dict.fromkeys(self._leaves, 0)
        #: Id of a waiting task → its job.
        self._waiting: dict[int, _Job] = {}
        self._next_id = 1
        self._batches = batches
        self._jobs: dict[int, _Job] = {}
        #: (time, kind, index of the batch or the node, turn of the node), a heap.
        self._events = [(batch.at_us, _Kind.BATCH_COMES, at, 0) for at, batch in enumerate(batches)]
        self._events += [
            (batch.until_us, _Kind.BATCH_GOES, at, 0)
            for at, batch in enumerate(batches)
            if batch.until_us is not None
        ]
        heapify(self._events)
        self._now_us = 0
        self._overcommitted_us = 0
        self._outcome = ClusterRun(step_us=step_us, held={name: [] for name in names})

    def until(self, end_us: int | None) -> ClusterRun:
        """Simulate until a time, or until all tasks have ended if it is None. Then no batch may
        repeat."""
        out = self._outcome
        while self._events and (end_us is None or self._events[0][0] < end_us):
            self._sample(self._events[0][0])
            self._now_us = self._events[0][0]
            roomy = set[int]()
            while self._events and self._events[0][0] == self._now_us:
                _, kind, number, turn = heappop(self._events)
                if kind == _Kind.TASK_ENDS:
                    if self._nodes[number].turn == turn:
                        self._wake(number)
                        roomy.add(number)
                elif kind == _Kind.BATCH_GOES:
                    self._withdraw(number)
                else:
                    self._submit(number)
                    roomy.update(range(len(self._nodes)))
            for number in sorted(roomy):
                self._fill(number)
        if end_us is not None:
            self._sample(end_us)
            self._now_us = end_us
        for node in self._nodes:
            self._advance(node)
        out.end_us = self._now_us
        spent_us = self._now_us * len(self._nodes)
        out.overcommitted = Fraction(self._overcommitted_us, spent_us or 1)
        return out

    def _sample(self, until_us: int) -> None:
        """Record what has been held since the latest event, for every step before `until_us`."""
        out = self._outcome
        for name, leaf in self._leaf_of.items():
            steps = -(-until_us // out.step_us) - len(out.held[name])
            out.held[name] += [self._used[leaf]] * steps

    def _submit(self, number: int) -> None:
        batch = self._batches[number]
        ids = range(self._next_id, self._next_id + batch.tasks)
        self._next_id = ids.stop
        job = _Job(batch, number, self._leaf_of[batch.user], self._now_us, batch.tasks, ids)
        self._jobs[number] = job
        self._waiting.update(dict.fromkeys(ids, job))
        self._queues[job.leaf].add_runs(batch.demand, [(0, ids.start, ids.stop - 1)])

    def _withdraw(self, number: int) -> None:
        job = self._jobs[number]
        for task_id in job.ids:
            if self._waiting.pop(task_id, None) is not None:
                self._queues[job.leaf].remove(job.batch.demand, (0, task_id))
                job.left -= 1

    def _fill(self, number: int) -> None:
        node, way = self._nodes[number], self._way
        queues = {leaf: queue for leaf, queue in self._queues.items() if queue}
        if not queues:
            return
        self._advance(node)
        slots = None
        if way.slots is not None:
            # The policy compares users by their tasks on all nodes; the free slots are this node's.
            slots = sum(self._running.values()) + way.slots - len(node.tasks)
        tables = LeafTables(queues=queues, used=self._used, shares=self._shares)
        given = PassInput(
            wait_index=WaitIndex(tables),
            free=minus(self._cluster.node, node.held),
            pass_context=self._pass_context(node) if way.reserves else None,
            options=PolicyOptions(slots=slots, running=self._running, overcommit=True),
        )
        found = POLICIES[way.policy](given)
        node.kept = tuple(found.reservations)
        if not found.admitted:
            return
        for task_id in found.admitted:
            job = self._waiting.pop(task_id)
            leaf, demand = job.leaf, job.batch.demand
            self._queues[leaf].remove(demand, (0, task_id))
            self._used[leaf] = plus(self._used[leaf], demand)
            self._running[leaf] += 1
            node.held = plus(node.held, demand)
            spread_us = job.batch.task_us // 5
            length_us = job.batch.task_us + self._random.randint(-spread_us, spread_us)
            node.tasks.append(_Task(job, length_us))
        self._plan(number)

    def _pass_context(self, node: _ClusterNode) -> PassContext:
        """Return a context in which all run times are known and room is reserved without delay."""
        now_s = self._now_us / SECOND
        return PassContext(
            now_s=now_s,
            patience=ReservationSettings(patience_s=0),
            ends=[(now_s + task.left_us / SECOND, task.job.batch.demand) for task in node.tasks],
            since_s=lambda task_id: self._waiting[task_id].submitted_us / SECOND,
            length_s=lambda task_id: self._waiting[task_id].batch.task_us / SECOND,
            entry=lambda task_id: (0, task_id) if task_id in self._waiting else None,
            before=node.kept,
        )

    def _wake(self, number: int) -> None:
        """End the tasks of a node that have no work left."""
        node = self._nodes[number]
        self._advance(node)
        for task in [task for task in node.tasks if task.left_us <= 0]:
            node.tasks.remove(task)
            job = task.job
            self._used[job.leaf] = minus(self._used[job.leaf], job.batch.demand)
            self._running[job.leaf] -= 1
            node.held = minus(node.held, job.batch.demand)
            self._outcome.tasks += 1
            job.left -= 1
            if job.left == 0:
                self._outcome.ended.append(BatchEnd(job.batch, job.submitted_us, self._now_us))
                if job.batch.repeats:
                    heappush(self._events, (self._now_us, _Kind.BATCH_COMES, job.number, 0))
        self._plan(number)

    def _advance(self, node: _ClusterNode) -> None:
        """Account for the work of the node's tasks until now."""
        passed_us = self._now_us - node.at_us
        node.at_us = self._now_us
        if passed_us:
            done_us = passed_us * node.factor.denominator // node.factor.numerator
            for task in node.tasks:
                task.left_us -= done_us
            if node.held[MEMORY] > self._cluster.node[MEMORY]:
                self._overcommitted_us += passed_us

    def _plan(self, number: int) -> None:
        """Plan the end of the node's next task, given the tasks that it has now."""
        node = self._nodes[number]
        node.turn += 1
        node.factor = slowdown(node.held, self._cluster.node, self._cluster.swap_cost)
        if node.tasks:
            left_us = min(task.left_us for task in node.tasks)
            end_us = self._now_us + max(1, ceil(left_us * node.factor))
            heappush(self._events, (end_us, _Kind.TASK_ENDS, number, node.turn))
