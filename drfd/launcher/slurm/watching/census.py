"""Which jobs that Slurm shows as running are on their nodes.

A slurmctld that was killed may have forgotten that jobs have ended. It says that they run until
their nodes register, which they do every 20 * SlurmdTimeout / 3 seconds: by default after half an
hour. To tell the nodes to register is no help with newer versions: slurmctld starts itself again
then, and takes such a job for one that has just begun. So the nodes are asked for the jobs, some
seconds after each start of slurmctld.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from drfd.launcher.attempt_files import Key
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.mapping import ask_node, read_asked


@dataclass(frozen=True, slots=True)
class Shown:
    """A job that a list shows as running."""

    slurm_id: int
    node: str
    #: A node is not asked for a job that is suspended.
    is_suspended: bool = False


@dataclass
class Census:
    """What the nodes have answered since the last start of slurmctld."""

    commands: Commands
    #: Gets an attempt whose node has nothing of its job, which slurmctld shows as running.
    on_absent: Callable[[Key], None]
    _boot: int = 0
    _pause_s: float = 0.0
    #: The number of the last list that may be of the slurmctld before.
    _after_list: int = 0
    #: The attempts that the last list showed as running, and its number.
    _shown: Mapping[Key, Shown] = field(default_factory=dict)
    _number: int = 0
    #: The attempts of the first list after slurmctld's start that were not found on their nodes
    #: yet; None until there is that list.
    _doubted: dict[Key, Shown] | None = field(default_factory=dict)
    _due_mono_s: float = 0.0
    #: The attempts that their node lacked, each with the number of the last list asked for before.
    _absent: dict[Key, int] = field(default_factory=dict)
    #: Nodes that have not answered yet.
    _asked: set[str] = field(default_factory=set)

    def see_start(self, boot: int, pause_s: float, lists: int) -> bool:
        """Take when slurmctld started, for how long it may be starting a job on a node, and the
        number of lists asked for. Return whether it is another one than before."""
        if boot == self._boot:
            return False
        self._boot, self._pause_s, self._after_list = boot, pause_s, lists
        self._doubted = None
        self._absent.clear()
        return True

    def see_list(self, number: int, shown: Mapping[Key, Shown]) -> None:
        """Take the attempts that the list with this number shows as running."""
        self._shown, self._number = shown, number
        if self._doubted is None and number > self._after_list:
            self._doubted = dict(shown)
            self._due_mono_s = time.monotonic() + self._pause_s

    def ask_nodes(self, lists: int) -> None:
        """Ask each node for the jobs that were not found on it yet, if it is time for that. `lists`
        is the number of lists asked for."""
        if not self._doubted or time.monotonic() < self._due_mono_s:
            return
        # Jobs that have ended, or were started again, are left out from now on.
        self._doubted = {
            key: self._shown[key]
            for key, each in self._doubted.items()
            if key in self._shown and self._shown[key].slurm_id == each.slurm_id
        }
        nodes: dict[str, dict[Key, int]] = {}
        for key, each in self._doubted.items():
            if not each.is_suspended:
                nodes.setdefault(each.node, {})[key] = each.slurm_id
        for node, jobs in nodes.items():
            if node not in self._asked:
                self._asked.add(node)
                self.commands.run(
                    ask_node(jobs.values()), partial(self._take, node, jobs, self._boot, lists)
                )

    def _take(
        self, node: str, jobs: Mapping[Key, int], boot: int, lists: int, answer: Answer
    ) -> None:
        self._asked.discard(node)
        if not answer.is_good or answer.complaint.strip() or boot != self._boot:
            # It is not reached, or one of the jobs is ending.
            return
        found = read_asked(answer.output)
        for key, slurm_id in jobs.items():
            if self._doubted is None or key not in self._doubted:
                continue
            if slurm_id in found:
                del self._doubted[key]
                self._absent.pop(key, None)
                continue
            # Its end may be on its way: it counts if a later list shows that it has not come.
            is_shown = key in self._shown and self._shown[key].slurm_id == slurm_id
            if self._number > self._absent.setdefault(key, lists) and is_shown:
                del self._doubted[key], self._absent[key]
                self.on_absent(key)
