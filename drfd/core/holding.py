"""The jobs that hold resources, by leaf; a leaf without any is absent. For the ledger to write."""

from __future__ import annotations

from collections.abc import Callable

from drfd.core.job import Job
from drfd.core.resources import Vector


class Holding(dict[str, set[int]]):
    def __init__(self) -> None:
        super().__init__()
        #: What `largest` has found, until anybody holds something else.
        self._largest: dict[int, int | None] = {}

    def add(self, leaf: str, job_id: int) -> None:
        self._largest.clear()
        self.setdefault(leaf, set()).add(job_id)

    def remove(self, leaf: str, job_id: int) -> None:
        self._largest.clear()
        self[leaf].remove(job_id)
        if not self[leaf]:
            del self[leaf]

    def largest(self, axis: int, held: Callable[[int], Vector]) -> int | None:
        """The job that holds most on an axis, the eldest of equals; None: nobody holds any.
        `held`: what a job holds. It is looked for once between two changes, since a long list
        names it in every line."""
        if axis not in self._largest:
            amounts = ((held(each)[axis], -each) for ids in self.values() for each in ids)
            amount, name = max(amounts, default=(0, 0))
            self._largest[axis] = -name if amount else None
        return self._largest[axis]


def holds_the_same(before: Job, job: Job) -> bool:
    """Does it hold what it held, and did not and does not wait for anything?"""
    return (
        before.spec is job.spec
        and before.holds_resources
        and job.holds_resources
        and before.suspended_at is job.suspended_at is None
        and before.instances is job.instances
    )
