"""Disk rates that are lent: one direction of one disk, reads or writes.

Disks have no weights that would give a job its floor back when it wakes up. So a floor is kept for
its job even while nobody uses it, only what nobody has declared is lent, and all ceilings together
stay below the rate of the disk.

Nobody counts how often a ceiling has held a job back: one that has used nearly all that it may
could use all that it may be lent, any other a little more than it has used.
"""

from __future__ import annotations

from dataclasses import dataclass

from drfd.core.lending.ceilings import Borrower

#: The part of a disk's rate up to which it is lent. The rest is for jobs that start or resume
#: before the next judgement, and for processes outside drfd.
_LENT = 0.9
#: The part of its ceiling that a job must use to count as held back: requests are large beside the
#: rate of a second.
_MOST_OF_CEILING = 0.9
#: By how much more than it has used a job is expected to use next, if nothing held it back: a
#: factor, and for one that has used nearly nothing an amount, in bytes per second.
_MORE, _LEAST_MORE = 1.3, float(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRate:
    """What there is to lend from. In bytes per second."""

    #: All that jobs may have.
    rate: float
    #: The ceilings of all other jobs that may use it: those that declare a single figure, have only
    #: just begun, or are about to end.
    fixed: float

    @property
    def room(self) -> float:
        return max(0.0, _LENT * self.rate - self.fixed)

    @property
    def bound(self) -> float:
        return self.room

    @property
    def few(self) -> float:
        return 0.1

    def is_held_back(self, job: Borrower) -> bool:
        return job.used >= _MOST_OF_CEILING * job.ceiling

    def wanted(self, job: Borrower) -> float:
        if self.is_held_back(job):
            return job.most
        return max(job.floor, job.used * _MORE + _LEAST_MORE)
