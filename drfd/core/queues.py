"""The queues of all leaves, and which tasks of an array with a bound stand in them.

For the ledger alone to write: nothing is judged here.
"""

from __future__ import annotations

from drfd.core.job import Job, JobState
from drfd.core.queue import LeafQueue, Run
from drfd.core.resources import Vector
from drfd.core.roster import Rosters, entry_of


class Queues(dict[str, LeafQueue]):
    """Jobs that wait to start, or to go on, by leaf; a leaf without any is absent."""

    def __init__(self, arrays: Rosters) -> None:
        super().__init__()
        self._arrays = arrays
        #: Leaves whose queue has changed since whoever keeps something by them has taken them out:
        #: an event of a task may let in, or shut out, tasks of its array that are in other pools.
        self.changed: set[str] = set()

    def line_up(self, job: Job, wanted: Vector, run: Run, sign: int) -> None:
        """Enter (`sign` 1) or strike out (-1) a job that waits, or tasks of which it is the first.
        Tasks that may not start as yet stay outside: see `settle`."""
        roster = self._arrays.bound_of(job) if job.state is JobState.PENDING else None
        if roster is None:
            self.put(job, wanted, run, sign)
        elif sign > 0:
            if roster.add(run):
                self.put(job, wanted, run, 1)
        else:
            opened = roster.remove(run)
            if opened is not None:
                self.put(job, wanted, opened, -1)

    def put(self, job: Job, wanted: Vector, run: Run, sign: int) -> None:
        """The same, whatever the bound of its array."""
        leaf = job.spec.leaf
        self.changed.add(leaf)
        if sign > 0:
            self.setdefault(leaf, LeafQueue()).add_run(wanted, run)
        else:
            self[leaf].remove_run(wanted, run)
            if not self[leaf]:
                del self[leaf]

    def is_shut_out(self, job: Job) -> bool:
        """Is it pending, and not in the queue, because as many of its array run as may?"""
        roster = self._arrays.bound_of(job)
        return roster is not None and roster.is_shut(entry_of(job))
