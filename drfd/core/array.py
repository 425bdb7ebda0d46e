"""Job arrays: one submission, many tasks that differ in their index alone.

The array has an id of its own, and its tasks have the ids that follow it, in the order of their
indices. A task has no record of its own before the first event that is about it alone.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from drfd.core.job import Job, JobSpec
from drfd.indices import MAX_INDEX, Ids, Span, count_of, show_spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    #: What its tasks without a record of their own are: a job with the id of the array, and without
    #: an index. When these were cancelled, it has ended.
    common: Job
    #: In order, none of them within another.
    spans: tuple[Span, ...]
    #: How many tasks may run at once; None: as many as there is room for.
    at_once: int | None
    #: The tasks that were cancelled before they had a record.
    cancelled: tuple[Ids, ...] = ()

    @property
    def id(self) -> int:
        return self.common.id

    @property
    def last_id(self) -> int:
        """The id of its last task."""
        return self.common.id + count_of(self.spans)

    @property
    def spec(self) -> JobSpec:
        return self.common.spec

    @property
    def size(self) -> int:
        return count_of(self.spans)

    @property
    def whole(self) -> Group:
        """All tasks, whatever has happened to them."""
        return Group(self, ((self.id + 1, self.last_id),))

    def task(self, job_id: int) -> Job:
        """A task that has no record of its own, as it stands."""
        return replace(self.common, id=job_id, array_index=self.index_of(job_id))

    def has_task(self, job_id: int) -> bool:
        return self.id < job_id <= self.last_id

    def index_of(self, job_id: int) -> int:
        ((first, _, _),) = self.spans_of((job_id, job_id))
        return first

    def id_of(self, index: int) -> int | None:
        """The task with this index; None: there is none."""
        at = bisect_right(self.spans, (index, MAX_INDEX, MAX_INDEX)) - 1
        if at < 0:
            return None
        first, last, step = self.spans[at]
        if index > last or (index - first) % step:
            return None
        return self.id + 1 + count_of(self.spans[:at]) + (index - first) // step

    def spans_of(self, *ids: Ids) -> list[Span]:
        """The indices of the tasks with these ids."""
        found = []
        for low, high in ids:
            skip, most = low - self.id - 1, high - low + 1
            for span in self.spans:
                here = count_of([span])
                if skip < here and most:
                    taken = min(here - skip, most)
                    start = span[0] + skip * span[2]
                    found.append((start, start + (taken - 1) * span[2], span[2]))
                    most -= taken
                skip = max(0, skip - here)
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks of an array that have no record of their own: they are all alike."""

    array: Array
    ids: tuple[Ids, ...]

    @property
    def size(self) -> int:
        return sum(last - first + 1 for first, last in self.ids)

    @property
    def first_id(self) -> int:
        return self.ids[0][0]

    @property
    def job(self) -> Job:
        """One that stands for all: the first, without its index."""
        return replace(self.array.common, id=self.first_id)

    @property
    def indices(self) -> str:
        """`7-999%50`."""
        bound = "" if self.array.at_once is None else f"%{self.array.at_once}"
        return show_spans(self.array.spans_of(*self.ids)) + bound
