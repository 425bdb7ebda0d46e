"""The links to several launchers: one of each, by the nodes on which it runs jobs.

An order goes to the launcher of the node that its job is on. Each launcher may be away and come
back by itself: the engine starts nothing on its nodes meanwhile, and goes on with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from drfd.common.owner import Owner
from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.model.effects import Effect
from drfd.core.model.job import Job
from drfd.daemon.engine.engine import Engine
from drfd.daemon.engine.nodes import NO_NODES, Nodes
from drfd.daemon.launcher_link.link import Link
from drfd.daemon.launcher_link.messages import LaunchSettings, NodeFacts


class Links:
    """An engine's `Host`: the controller's own launcher, and those of other nodes."""

    def __init__(self, own: Link, *others: Link) -> None:
        self.own = own
        self._links = (own, *others)

    def is_ready(self) -> bool:
        return any(link.is_ready() and link.nodes != NO_NODES for link in self._links)

    def nodes_away(self) -> frozenset[str]:
        return frozenset(self.node_faults())

    def node_faults(self) -> dict[str, str]:
        """Return the nodes on which nothing starts just now, and why; "" if their launcher is
        away."""
        return {name: text for link in self._links for name, text in link.node_faults().items()}

    def node_facts(self) -> dict[str, NodeFacts]:
        """Return what the launchers know of their nodes."""
        return {name: facts for link in self._links for name, facts in link.node_facts().items()}

    def perform(self, effect: Effect, job: Job) -> None:
        link = self.of(job)
        if link is not None and link.is_ready():
            link.perform(effect, job)

    def of(self, job: Job) -> Link | None:
        """Return the link to the launcher of the job's node, or None if there is none. Of a node
        that is not configured it is the controller's own: that may have had the name."""
        return next((link for link in self._links if link.nodes.has(job)), None)

    def adopt(self, nodes: Iterable[Nodes]) -> None:
        """Let the launchers run jobs on these nodes from now on, in their order."""
        for link, names in zip(self._links, nodes, strict=True):
            link.adopt(names)

    def set_up(self, settings: LaunchSettings) -> None:
        """Let these limits hold for all jobs that start from now on."""
        for link in self._links:
            link.settings = settings

    @property
    def strays(self) -> dict[AttemptKey, Owner]:
        """Attempts that belong to no job of this journal, of all launchers."""
        return {key: owner for link in self._links for key, owner in link.strays.items()}

    @property
    def stuck(self) -> set[AttemptKey]:
        """Attempts whose processes cannot be killed, of all launchers."""
        return {key for link in self._links for key in link.stuck}

    def end_stray(self, key: AttemptKey) -> bool:
        """Have the launchers that know this attempt of no job end and remove it. Returns False if
        none does."""
        found = [link.end_stray(key) for link in self._links]
        return any(found)

    async def run(self, engine: Engine) -> None:
        """Keep all connections. Never returns."""
        await asyncio.gather(*(link.run(engine) for link in self._links))
