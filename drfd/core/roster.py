"""What is left of one array: the tasks that are not over, and those that may start now.

With a bound on how many run at once, the pending tasks stand in two lines: `open` holds the first
of them, as many as may start, and these are in the queue of their leaf; `shut` holds the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from drfd.core.array import Array, Group
from drfd.core.job import Job, JobState, Outcome
from drfd.core.queue import Entry, Line, Run
from drfd.indices import Ids

#: A task that has ended otherwise than it should: its id, and how.
Bad = tuple[int, Outcome]
#: An array, its tasks without a record of their own, and the first of those that ended badly.
Left = tuple[Array, tuple[Ids, ...], Bad | None]


@dataclass
class Roster:
    array: Array
    #: The tasks that have no record of their own.
    unborn: Line
    #: Of the tasks that ended badly, the first in the order of indices.
    bad: Bad | None = None
    #: The others that are not over, and how many of these hold resources.
    live: set[int] = field(default_factory=set)
    active: int = 0
    open: Line = field(default_factory=Line)
    shut: Line = field(default_factory=Line)

    @classmethod
    def of(cls, array: Array, ids: Iterable[Ids], bad: Bad | None = None) -> Roster:
        return cls(array, _line(array, ids), bad)

    def become(self, common: Job) -> None:
        """What its tasks without a record are from now on."""
        ids = self.ids()
        if common.state is JobState.ENDED:
            self.array = replace(self.array, common=common, cancelled=ids)
            self.note_bad(ids[0][0], common.outcome)
            ids = ()
        else:
            self.array = replace(self.array, common=common)
        self.unborn = _line(self.array, ids)

    def note_bad(self, job_id: int, outcome: Outcome | None) -> None:
        """A task has ended so; None is as good as cancelled."""
        if outcome is not Outcome.COMPLETED:
            each = job_id, outcome or Outcome.CANCELLED
            self.bad = each if self.bad is None else min(self.bad, each)

    @property
    def is_over(self) -> bool:
        return not self.unborn and not self.live

    def is_over_after(self, ended: Collection[int], *, rest: bool) -> bool:
        """Is it over when these have ended, and with `rest` all that has no record?"""
        left = 0 if rest else len(self.unborn) - sum(map(self.has_unborn, ended))
        return not left and self.live <= set(ended)

    def outcome_after(self, ended: Mapping[int, Outcome], *, rest: bool) -> Outcome:
        """Then: COMPLETED if all its tasks are, else that of the first task that is not."""
        bad = [] if self.bad is None else [self.bad]
        if rest:
            bad.append((self.unborn.first[1], Outcome.CANCELLED))
        bad += [
            (job_id, outcome)
            for job_id, outcome in ended.items()
            if self.array.has_task(job_id) and outcome is not Outcome.COMPLETED
        ]
        return min(bad)[1] if bad else Outcome.COMPLETED

    @property
    def is_bounded(self) -> bool:
        return self.array.at_once is not None

    def ids(self) -> tuple[Ids, ...]:
        """The tasks that have no record of their own."""
        return tuple((first, last) for _, first, last in self.unborn.runs())

    def has_unborn(self, job_id: int) -> bool:
        return (-self.array.spec.priority, job_id) in self.unborn

    # -- for arrays with a bound ----------------------------------------------------------------

    def add(self, run: Run) -> bool:
        """Pending tasks come; may they start now? `moves` brings the lines to their lengths."""
        is_open = bool(self.open) and run[:2] < self.open.last
        (self.open if is_open else self.shut).add_run(run)
        return is_open

    def remove(self, run: Run) -> Run | None:
        """Pending tasks leave; those of them that might have started."""
        priority, first, last = run
        is_open: Run | None = run
        is_shut: Run | None = None
        if not self.open or run[:2] > self.open.last:
            is_open, is_shut = None, run
        elif (priority, last) > self.open.last:
            # The line was cut within this run.
            at = self.open.last[1]
            is_open, is_shut = (priority, first, at), (priority, at + 1, last)
        if is_open is not None:
            self.open.remove_run(is_open)
        if is_shut is not None:
            self.shut.remove_run(is_shut)
        return is_open

    def moves(self) -> Iterator[tuple[int, Run]]:
        """Tasks that may start from now on (1), and that may not any more (-1)."""
        if self.array.at_once is None:
            return
        room = max(0, self.array.at_once - self.active)
        while len(self.open) < room and self.shut:
            run = self.shut.take_first(room - len(self.open))
            self.open.add_run(run)
            yield 1, run
        while len(self.open) > room:
            run = self.open.take_last(len(self.open) - room)
            self.shut.add_run(run)
            yield -1, run

    def is_shut(self, entry: Entry) -> bool:
        """Does a pending task wait for others of the array to end?"""
        return entry in self.shut


class Rosters(dict[int, Roster]):
    """Those of arrays with a task that is not over, by the array's id."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []
        #: The task that was asked for last, and of what array: a pass asks for the same again.
        self._last: tuple[Array, Job] | None = None

    def enrol(self, roster: Roster) -> None:
        """A later array than all that are there."""
        self[roster.array.id] = roster
        self._ids.append(roster.array.id)

    def drop_if_over(self, roster: Roster) -> None:
        if roster.is_over:
            del self[roster.array.id]
            del self._ids[bisect_left(self._ids, roster.array.id)]

    def unborn(self, job_id: int) -> Job | None:
        """A task that has no record of its own."""
        at = bisect_left(self._ids, job_id) - 1
        roster = self[self._ids[at]] if at >= 0 else None
        if roster is None or not roster.has_unborn(job_id):
            return None
        if self._last is None or self._last[0] is not roster.array or self._last[1].id != job_id:
            self._last = roster.array, roster.array.task(job_id)
        return self._last[1]

    def bound_of(self, job: Job) -> Roster | None:
        """Of a task of an array with a bound on how many run at once."""
        roster = None if job.array_id is None else self.get(job.array_id)
        return roster if roster is not None and roster.is_bounded else None

    def groups(self) -> list[Group]:
        """The tasks without a record of their own, array by array."""
        return [Group(each.array, each.ids()) for each in self.values() if each.unborn]

    def left(self) -> list[Left]:
        return [(each.array, each.ids(), each.bad) for each in self.values()]


def _line(array: Array, ids: Iterable[Ids]) -> Line:
    line = Line()
    for first, last in ids:
        line.add_run((-array.spec.priority, first, last))
    return line


def entry_of(job: Job) -> Entry:
    return -job.spec.priority, job.id
