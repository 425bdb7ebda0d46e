"""Many nodes under one scheduler, in virtual time: for the DRF paper's experiments.

Shares are of the whole cluster, and a task runs on one node. Whenever a node has room, the policy
of `core.policies` fills it as if nothing else were free: as Mesos does, which offers node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import ceil
from random import Random

from drfd.core.backfill import Outlook
from drfd.core.fairshare import FairShare
from drfd.core.policies import plan_by
from drfd.core.queue import LeafQueue
from drfd.core.reservation import Patience, Reservation
from drfd.core.resources import Vector, minus, plus
from drfd.core.tally import Terms
from drfd.core.tree import TOP
from drfd.sim.cluster import SECOND, Batch, Cluster, Ended, Outcome, Way
from drfd.sim.contention import MEMORY, slowdown


@dataclass(slots=True)
class _Job:
    #: Its number.
    batch: int
    submitted_us: int
    left: int
    #: Of its tasks that still wait, if any.
    ids: range = range(0)


@dataclass(slots=True)
class _Task:
    job: _Job
    #: How long it would still take on a node that is not overcommitted.
    left_us: int


@dataclass(slots=True)
class _Node:
    held: Vector
    tasks: list[_Task] = field(default_factory=list)
    #: When its tasks' `left_us` were true.
    at_us: int = 0
    #: By which factor its tasks are slowed down since.
    factor: Fraction = Fraction(1)
    #: Wakings that were planned earlier have another number.
    turn: int = 0
    #: What it keeps room for.
    kept: tuple[Reservation, ...] = ()


class _Kind(IntEnum):
    """What happens, in the order in which it does at one instant."""

    TASK_ENDS = 0
    BATCH_GOES = 1
    BATCH_COMES = 2


def run(
    batches: Sequence[Batch],
    cluster: Cluster,
    way: Way,
    *,
    end_us: int | None,
    step_us: int,
    seed: int,
    swap_cost: int,
) -> Outcome:
    """Until `end_us`, or, where that is None, until all tasks have ended; then nothing may repeat.
    Tasks that fit on no node must not be among them."""
    return _Run(batches, cluster, way, step_us, seed, swap_cost).until(end_us)


class _Run:
    def __init__(
        self, batches: Sequence[Batch], cluster: Cluster, way: Way, step_us: int, seed: int,
        swap_cost: int,
    ) -> None:  # fmt: skip
        self._cluster, self._way, self._swap_cost = cluster, way, swap_cost
        self._random = Random(seed)  # noqa: S311  # chance, not secrets
        self._shares = FairShare(cluster.capacity)
        nothing: Vector = (0,) * len(cluster.node)
        self._nodes = [_Node(nothing) for _ in range(cluster.nodes)]
        names = list(dict.fromkeys(batch.user for batch in batches))
        self._leaves = [f"{TOP}.u{number}" for number in range(len(names))]
        self._leaf_of = dict(zip(names, self._leaves, strict=True))
        self._queues = {leaf: LeafQueue() for leaf in self._leaves}
        self._used = dict.fromkeys(self._leaves, nothing)
        self._running = dict.fromkeys(self._leaves, 0)
        #: The jobs of waiting tasks, by the tasks' numbers.
        self._waiting: dict[int, _Job] = {}
        self._next_id = 1
        self._batches = batches
        self._jobs: dict[int, _Job] = {}
        #: (time, kind, number of the batch or the node, turn of the node)
        self._events = [(batch.at_us, _Kind.BATCH_COMES, at, 0) for at, batch in enumerate(batches)]
        self._events += [
            (batch.until_us, _Kind.BATCH_GOES, at, 0)
            for at, batch in enumerate(batches)
            if batch.until_us is not None
        ]
        heapify(self._events)
        self._now_us = 0
        self._overcommitted_us = 0
        self._outcome = Outcome(step_us=step_us, held={name: [] for name in names})

    def until(self, end_us: int | None) -> Outcome:
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
        """What was held since the latest event, at every step before `until_us`."""
        out = self._outcome
        for name, leaf in self._leaf_of.items():
            steps = -(-until_us // out.step_us) - len(out.held[name])
            out.held[name] += [self._used[leaf]] * steps

    def _submit(self, number: int) -> None:
        batch = self._batches[number]
        ids = range(self._next_id, self._next_id + batch.tasks)
        self._next_id = ids.stop
        job = _Job(number, self._now_us, batch.tasks, ids)
        self._jobs[number] = job
        self._waiting.update(dict.fromkeys(ids, job))
        queue = self._queues[self._leaf_of[batch.user]]
        queue.add_run(batch.demand, (0, ids.start, ids.stop - 1))

    def _withdraw(self, number: int) -> None:
        job = self._jobs[number]
        batch = self._batches[number]
        for task_id in job.ids:
            if self._waiting.pop(task_id, None) is not None:
                self._queues[self._leaf_of[batch.user]].remove(batch.demand, (0, task_id))
                job.left -= 1

    def _fill(self, number: int) -> None:
        node, way = self._nodes[number], self._way
        queues = {leaf: queue for leaf, queue in self._queues.items() if queue}
        if not queues:
            return
        self._advance(node)
        slots = None
        if way.slots is not None:
            # The policy compares users by what they run everywhere; the room is this node's.
            slots = sum(self._running.values()) + way.slots - len(node.tasks)
        found = plan_by(
            way.policy,
            queues=queues,
            used=self._used,
            free=minus(self._cluster.node, node.held),
            shares=self._shares,
            outlook=self._outlook(node) if way.reserves else None,
            terms=Terms(slots=slots, running=self._running, overcommit=True),
        )
        node.kept = tuple(found.reservations)
        if not found.admitted:
            return
        for task_id in found.admitted:
            job = self._waiting.pop(task_id)
            batch = self._batches[job.batch]
            leaf = self._leaf_of[batch.user]
            self._queues[leaf].remove(batch.demand, (0, task_id))
            self._used[leaf] = plus(self._used[leaf], batch.demand)
            self._running[leaf] += 1
            node.held = plus(node.held, batch.demand)
            node.tasks.append(_Task(job, self._length(batch)))
        self._plan(number)

    def _outlook(self, node: _Node) -> Outlook:
        """All lengths are known, and nobody has to wait before room is kept for him."""
        now_s = self._now_us / SECOND

        def length_s(task_id: int) -> float:
            return self._batches[self._waiting[task_id].batch].task_us / SECOND

        return Outlook(
            now_s=now_s,
            patience=Patience(patience_s=0),
            ends=[
                (now_s + task.left_us / SECOND, self._batches[task.job.batch].demand)
                for task in node.tasks
            ],
            since_s=lambda task_id: self._waiting[task_id].submitted_us / SECOND,
            length_s=length_s,
            entry=lambda task_id: (0, task_id) if task_id in self._waiting else None,
            before=node.kept,
        )

    def _length(self, batch: Batch) -> int:
        spread = batch.task_us // 5
        return batch.task_us + self._random.randint(-spread, spread)

    def _wake(self, number: int) -> None:
        """Those of its tasks that have no work left end."""
        node = self._nodes[number]
        self._advance(node)
        for task in [task for task in node.tasks if task.left_us <= 0]:
            node.tasks.remove(task)
            job = task.job
            batch = self._batches[job.batch]
            leaf = self._leaf_of[batch.user]
            self._used[leaf] = minus(self._used[leaf], batch.demand)
            self._running[leaf] -= 1
            node.held = minus(node.held, batch.demand)
            self._outcome.tasks += 1
            job.left -= 1
            if job.left == 0:
                self._outcome.ended.append(Ended(batch, job.submitted_us, self._now_us))
                if batch.repeats:
                    heappush(self._events, (self._now_us, _Kind.BATCH_COMES, job.batch, 0))
        self._plan(number)

    def _advance(self, node: _Node) -> None:
        """Its tasks have worked until now."""
        passed_us = self._now_us - node.at_us
        node.at_us = self._now_us
        if passed_us:
            done_us = passed_us * node.factor.denominator // node.factor.numerator
            for task in node.tasks:
                task.left_us -= done_us
            if node.held[MEMORY] > self._cluster.node[MEMORY]:
                self._overcommitted_us += passed_us

    def _plan(self, number: int) -> None:
        """When its next task will end, as it is filled now."""
        node = self._nodes[number]
        node.turn += 1
        node.factor = slowdown(node.held, self._cluster.node, self._swap_cost)
        if node.tasks:
            left_us = min(task.left_us for task in node.tasks)
            end_us = self._now_us + max(1, ceil(left_us * node.factor))
            heappush(self._events, (end_us, _Kind.TASK_ENDS, number, node.turn))
