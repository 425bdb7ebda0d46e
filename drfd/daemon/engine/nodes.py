"""Which nodes a launcher runs jobs on: all of them where it is the only one.

The controller's own launcher also has jobs that are on no node: from before there were several, and
those that never started.
"""

from __future__ import annotations

from dataclasses import dataclass

from drfd.core.model.job import Job
from drfd.core.model.resources import Axes


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of one launcher."""

    #: None for all.
    names: frozenset[str] | None
    #: Whether the controller's own node is among them.
    has_home: bool
    #: The nodes of other launchers, where the controller's own node is among these.
    others: frozenset[str] = frozenset()

    @property
    def are_all(self) -> bool:
        return self.names is None

    def has(self, job: Job) -> bool:
        """Return whether the launcher runs the job, or would notify its owner. The controller's own
        may also have a job of a node that is not configured: its own had that name before."""
        if self.names is None or job.node in self.names:
            return True
        return self.has_home and job.node not in self.others

    def may_have(self, job: Job) -> bool:
        """Return whether the launcher may know an attempt of the job: one that waits again was
        anywhere."""
        return not job.node or self.has(job)

    def must_have(self, job: Job) -> bool:
        """Return whether the launcher knows the job's attempt if anybody does. A job of a node that
        is not configured may run there still: it must not be taken for lost, and be started once
        more, because this launcher does not know it."""
        if self.has_home and not job.node:
            return True
        return self.names is not None and job.node in self.names

    def __str__(self) -> str:
        return "" if self.names is None else f" nodes={','.join(sorted(self.names))}"


ALL_NODES = Nodes(None, has_home=True)
NO_NODES = Nodes(frozenset(), has_home=False)


def home_and_others(axes: Axes) -> tuple[Nodes, Nodes]:
    """Return the controller's own node, and all others."""
    if not axes.nodes:
        return ALL_NODES, NO_NODES
    home, *others = [node.name for node in axes.nodes]
    own = Nodes(frozenset({home}), has_home=True, others=frozenset(others))
    return own, Nodes(frozenset(others), has_home=False)
