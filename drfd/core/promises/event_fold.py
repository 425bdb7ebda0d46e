"""Folds the events of a journal, those for an audit included, into the account of promises.

Equal events give an equal account, whoever folds them. Nothing is counted before the first record
of the rules in force: journals of older versions have none. Who waits is what the queues of a
ledger with the same events say; jobs that a maintenance window holds back count as waiting, because
windows are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from drfd.core.amounts.resources import NOTHING, Axes, Resources
from drfd.core.amounts.vectors import Vector, plus
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.promises.account import Account, Obstacle


class EventFold:
    """The account of the events taken so far."""

    def __init__(self, window_ms: int, rules_of: Callable[[str], Rules]) -> None:
        """`rules_of` returns the rules with a digest; what it raises is raised by `take`."""
        self.account = Account(FairShare(()), window_ms)
        self._rules_of = rules_of
        self._rules: Rules | None = None
        self._ledger = Ledger(Axes())
        #: Whether there is no daemon, or no launcher anywhere, and the nodes without a launcher.
        self._is_away = False
        self._nodes_away: tuple[str, ...] = ()
        self._outside = NOTHING

    def take(self, event: ev.Event | ev.AuditEvent) -> None:
        """Count the time until the event, and let it happen. Events come in their order in the
        journal."""
        if isinstance(event, ev.DaemonStarted):
            self._take_start(event)
            return
        self._go_to(event.at_s)
        match event:
            case ev.DaemonStopped():
                self._set_away(everywhere=True)
            case ev.LaunchersAway():
                self._set_away(everywhere=event.everywhere, nodes=event.nodes)
            case ev.Configured():
                self._adopt(self._rules_of(event.rules))
            case ev.ExternalLoadChanged():
                self._outside = event.kept
                self._tell_obstacles()
            case ev.Drained():
                self._ledger.apply(event)
                self._tell_obstacles()
            case ev.IdsRaised():
                self._ledger.apply(event)
            case _:
                self._take_change(event)

    def _go_to(self, at_s: float) -> None:
        self.account.advance(round(at_s * 1000))

    def _take_start(self, event: ev.DaemonStarted) -> None:
        if event.away_since_s is not None:
            # After a kill, no record says since when there was no daemon.
            self._go_to(event.away_since_s)
            self._set_away(everywhere=True)
        self._go_to(event.at_s)
        self._is_away, self._nodes_away = False, ()
        self._adopt(self._rules_of(event.rules))

    def _set_away(self, *, everywhere: bool, nodes: tuple[str, ...] = ()) -> None:
        self._is_away, self._nodes_away = everywhere, nodes
        self._tell_obstacles()

    def _adopt(self, rules: Rules) -> None:
        self._rules = rules = rules.also_for(self._ledger.demands())
        if rules.axes != self._ledger.axes:
            self._ledger = self._ledger.with_axes(rules.axes)
        self._ledger.queues.changed.clear()
        self.account.adopt(rules.shares)
        for leaf in sorted({*self._ledger.queues, *self._ledger.used}):
            self._tell(leaf)
        self._tell_obstacles()

    def _take_change(self, event: ev.JobEvent | ev.ArraySubmitted) -> None:
        before = (
            None if isinstance(event, ev.ArraySubmitted) else self._ledger.find_common(event.job_id)
        )
        if isinstance(event, ev.Admitted) and before is not None and self._rules is not None:
            demand = tuple(self._ledger.axes.vector(before.spec.demand))
            self.account.count_start(before.spec.leaf, demand, event.why)
        after = self._ledger.apply(event)
        touched = {job.spec.leaf for job in (before, after) if job is not None}
        touched.update(self._ledger.queues.changed)
        self._ledger.queues.changed.clear()
        if self._rules is not None:
            for leaf in sorted(touched):
                self._tell(leaf)

    def _tell(self, leaf: str) -> None:
        """Tell the account of what the leaf waits for and holds."""
        queue = self._ledger.queues.get(leaf)
        demands: list[Vector] = []
        if queue is not None:
            first = min(queue.groups, key=lambda demand: queue.groups[demand].first)
            demands = [tuple(each) for each in (first, *queue.groups)]
        self.account.put(
            leaf, demands=tuple(dict.fromkeys(demands)), used=self._ledger.used.get(leaf)
        )

    def _tell_obstacles(self) -> None:
        if self._rules is None:
            return
        drained = self._rules.capacity if self._ledger.draining else NOTHING
        away = self._rules.capacity if self._is_away else NOTHING
        amounts = {
            Obstacle.AWAY: self._sum([away, *self._of_nodes(self._nodes_away)]),
            Obstacle.DRAINED: self._sum([drained, *self._of_nodes(self._ledger.node_drains)]),
            Obstacle.OUTSIDE: self._sum([self._outside]),
        }
        for obstacle, kept in amounts.items():
            self.account.keep_from_jobs(obstacle, kept)

    def _of_nodes(self, names: Iterable[str]) -> list[Resources]:
        assert self._rules is not None
        return [node.capacity for node in self._rules.axes.nodes if node.name in names]

    def _sum(self, amounts: Iterable[Resources]) -> Vector:
        total = self._ledger.nothing
        for each in amounts:
            total = plus(total, tuple(self._ledger.axes.vector(each)))
        return total
