"""Folds the events of a journal, those for an audit included, into the account of promises.

Equal events give an equal account, whoever folds them. Nothing is counted before the first record
of the rules in force. Who waits is what the queues of a ledger with the same events say; jobs that
a maintenance window holds back count as waiting, because windows are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from drfd.core.amounts.resources import NOTHING, Axes, Resources
from drfd.core.amounts.vectors import Vector, plus
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import LiveArray
from drfd.core.model import events as ev
from drfd.core.model.job import Job
from drfd.core.promises.account import Account, Obstacle


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands after some event, besides what an account has counted: with it, the events that
    follow are enough."""

    #: Digest of the rules in force, or None before the first record of them.
    rules: str | None = None
    #: None for those that the rules have with the demands of the jobs.
    axes: Axes | None
    jobs: tuple[Job, ...] = ()
    arrays: tuple[LiveArray, ...] = ()
    next_id: int = 1
    drained: ev.Drained | None = None
    node_drains: tuple[ev.Drained, ...] = ()
    is_away: bool = False
    nodes_away: tuple[str, ...] = ()
    outside: Resources = NOTHING
    elsewhere: tuple[tuple[str, Resources], ...] = ()


class EventFold:
    """The account of the events taken so far."""

    def __init__(
        self,
        window_ms: int,
        rules_of: Callable[[str], Rules],
        *,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        """`rules_of` returns the rules with a digest; what it raises is raised by `take`. `advance`
        is called in place of the account's own method, for whoever divides the time otherwise."""
        self.account = Account(FairShare(()), window_ms)
        self._advance = advance or self.account.advance
        self._rules_of = rules_of
        self._digest: str | None = None
        self._rules: Rules | None = None
        self._ledger = Ledger(Axes())
        #: Whether there is no daemon, or no launcher anywhere, and the nodes without a launcher.
        self._is_away = False
        self._nodes_away: tuple[str, ...] = ()
        #: Kept free on the controller's own machine, and given to others' jobs on other nodes.
        self._outside = NOTHING
        self._elsewhere: tuple[tuple[str, Resources], ...] = ()

    def standing(self) -> Standing:
        """Return what stands now."""
        ledger = self._ledger
        return Standing(
            rules=self._digest,
            axes=ledger.axes,
            jobs=tuple(ledger.jobs[job_id] for job_id in sorted(ledger.jobs)),
            arrays=tuple(ledger.arrays.live()),
            next_id=ledger.next_id,
            drained=ledger.drained,
            node_drains=tuple(ledger.node_drains.values()),
            is_away=self._is_away,
            nodes_away=self._nodes_away,
            outside=self._outside,
            elsewhere=self._elsewhere,
        )

    def stand(self, standing: Standing) -> None:
        """Go on from there, at the account's present time."""
        self._ledger = Ledger.of_jobs(
            standing.axes or Axes(),
            standing.jobs,
            arrays=standing.arrays,
            next_id=standing.next_id,
            drained=standing.drained,
            node_drains={each.node: each for each in standing.node_drains},
        )
        self._is_away, self._nodes_away = standing.is_away, standing.nodes_away
        self._outside, self._elsewhere = standing.outside, standing.elsewhere
        if standing.rules is None:
            return
        if standing.axes is None:
            self._adopt(standing.rules)
            return
        self._digest = standing.rules
        self._tell_all(replace(self._rules_of(standing.rules), axes=standing.axes))

    def take(self, event: ev.Event | ev.AuditEvent) -> None:
        """Count the time until the event, and let it happen. Events come in their order in the
        journal."""
        if isinstance(event, ev.DaemonStarted):
            self._take_start(event)
            return
        if not isinstance(event, ev.Launched | ev.Exited):
            # Launchers tell the times of these two afterwards; they change nothing that counts.
            self._go_to(event.at_s)
        match event:
            case ev.DaemonStopped():
                self._set_away(everywhere=True)
            case ev.LaunchersAway():
                self._set_away(everywhere=event.everywhere, nodes=event.nodes)
            case ev.Configured():
                self._adopt(event.rules)
            case ev.ExternalLoadChanged():
                self._outside, self._elsewhere = event.kept, event.elsewhere
                self._tell_obstacles()
            case ev.Drained():
                self._ledger.apply(event)
                self._tell_obstacles()
            case ev.IdsRaised():
                self._ledger.apply(event)
            case _:
                self._take_change(event)

    def _go_to(self, at_s: float) -> None:
        self._advance(round(at_s * 1000))

    def _take_start(self, event: ev.DaemonStarted) -> None:
        if event.away_since_s is not None:
            # After a kill, no record says since when there was no daemon. The last event may have
            # been one whose time a launcher has told.
            self._go_to(max(event.away_since_s, self.account.now_ms / 1000))
            self._set_away(everywhere=True)
        self._go_to(event.at_s)
        self._is_away, self._nodes_away = False, ()
        self._adopt(event.rules)

    def _set_away(self, *, everywhere: bool, nodes: tuple[str, ...] = ()) -> None:
        self._is_away, self._nodes_away = everywhere, nodes
        self._tell_obstacles()

    def _adopt(self, digest: str) -> None:
        rules = self._rules_of(digest).also_for(self._ledger.demands())
        self._digest = digest
        if rules.axes != self._ledger.axes:
            self._ledger = self._ledger.with_axes(rules.axes)
        self._tell_all(rules)

    def _tell_all(self, rules: Rules) -> None:
        self._rules = rules
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
            self.account.count_start(before.spec.leaf, demand, event.why, event.job_id)
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
            first = min(queue, key=lambda demand: queue[demand].first)
            demands = [tuple(each) for each in (first, *queue)]
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
            Obstacle.OUTSIDE: self._sum([self._outside, *self._of_others_jobs()]),
        }
        for obstacle, kept in amounts.items():
            self.account.keep_from_jobs(obstacle, kept)

    def _of_others_jobs(self) -> list[Resources]:
        """Return what others' jobs have of the nodes that are open: a closed one counts whole, and
        no node for more than it has."""
        assert self._rules is not None
        closed = {*self._nodes_away, *self._ledger.node_drains}
        used = {name: each for name, each in self._elsewhere if name not in closed}
        return [
            Resources(
                cores_milli=min(node.capacity.cores_milli, used[node.name].cores_milli),
                memory_bytes=min(node.capacity.memory_bytes, used[node.name].memory_bytes),
            )
            for node in self._rules.axes.nodes
            if node.name in used
        ]

    def _of_nodes(self, names: Iterable[str]) -> list[Resources]:
        assert self._rules is not None
        return [node.capacity for node in self._rules.axes.nodes if node.name in names]

    def _sum(self, amounts: Iterable[Resources]) -> Vector:
        total = self._ledger.nothing
        for each in amounts:
            total = plus(total, tuple(self._ledger.axes.vector(each)))
        return total
