"""Cores that are lent: what the machine has for jobs, and which jobs could use more.

The kernel's weights, which stand for the floors, see to it that a job which wakes up has its floor
at once. So what a job leaves of its floor may be lent to others meanwhile, and ceilings together
may exceed what there is.

What a job could use is not known, only what it has used: one that was held back by its ceiling
could use all that it may be lent, any other a little more than it has used, and for one that sleeps
nothing is kept. Processes outside drfd are reckoned in the same way and come first, so nothing is
lent that they would miss.

The kernel's weights hold on each CPU by itself. A job with one thread shares its CPU with a thread
of a borrower that has more threads than its own CPUs, and on a full machine gets less than its
floor, at least half of it. What it would use then is its floor: were it what it has used, the
borrower would be lent the rest, and take it for as long as it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from drfd.core.lending.ceilings import Borrower

#: By how much more than they have used a job, and processes outside drfd, are expected to use next,
#: if nothing held them back: a factor, and for those outside an amount, in cores.
_MORE, _MORE_OUTSIDE = 1.3, 0.05
#: The part of the machine that must be in use for it to count as full, and the part of its floor
#: that a job must then use to count as held back: there is no other sign of it on cgroup v1.
_FULL, _MOST_OF_FLOOR = 0.93, 0.9
#: The part of its floor that a job must use on a full machine to count as one that others keep from
#: using all of its floor.
_LEAST_OF_FLOOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to lend from. In cores."""

    #: All that jobs may have.
    capacity: float
    #: The use by processes outside drfd, beyond what the machine has besides its capacity.
    outside: float
    #: The part of all cores that is in use, by whomever, or that a hypervisor withholds.
    busy: float

    @property
    def is_full(self) -> bool:
        return self.busy >= _FULL

    @property
    def room(self) -> float:
        """What is there for jobs, if processes outside come first and may want more."""
        is_some = self.outside > _MORE_OUTSIDE
        wanted = self.outside * _MORE + _MORE_OUTSIDE if is_some else self.outside
        return max(0.0, self.capacity - wanted)

    @property
    def bound(self) -> float:
        return inf

    @property
    def few(self) -> float:
        return 0.04

    def is_held_back(self, job: Borrower) -> bool:
        if job.is_throttled:
            return True
        return self.is_full and job.used >= _MOST_OF_FLOOR * job.floor

    def wanted(self, job: Borrower) -> float:
        if self.is_held_back(job):
            return job.most
        if self.is_full and job.used >= _LEAST_OF_FLOOR * job.floor:
            return max(job.floor, job.used * _MORE)
        return job.used * _MORE
