"""Launches postponed because of a shortage: which jobs wait, and for how long.

A shortage of the machine blocks all launches, one of a user that user's, one of a job only that
job. The pause doubles if a launch fails before any has succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Self

from drfd.core.model.job import Job, JobState, Postponed, Whose, leaf_name

#: The pause after the first shortage, and the longest pause, in seconds.
FIRST_PAUSE_S, MOST_PAUSE_S = 1, 60
#: Number of consecutive failures of one job before others are tried without it: the job may be the
#: cause.
_TRIES_WITH_OTHERS = 3
#: A shortage that occurs more than this many seconds after the end of a pause counts as a new one.
_FORGOTTEN_S = 600.0


#: The name under which the shortage of the machine is known; no account has it.
MACHINE = ""


class Shortages(dict[str, Postponed]):
    """Known shortages of single users by user, and that of the machine. Only the ledger changes it.
    The table is empty nearly all the time."""

    @classmethod
    def of_jobs(cls, jobs: Iterable[Job]) -> Self:
        """Take the shortages from the records of waiting `jobs`, as a restarted daemon does.
        Launches may pause although the shortage is over: the records do not show later launches."""
        shortages, waiting = cls(), (JobState.PENDING, JobState.HELD, JobState.CLEANING)
        found = [job for job in jobs if job.postponed is not None and job.state in waiting]
        for job in sorted(found, key=lambda job: job.postponed.at_s if job.postponed else 0.0):
            shortages.note(job)
        return shortages

    def note(self, job: Job) -> None:
        postponed = job.postponed
        if postponed is not None and postponed.whose is not Whose.JOB:
            self[_scope(postponed.whose, job)] = postponed

    def note_start(self, job: Job) -> None:
        """Record that the job's program runs, which ends the shortages of machine and user."""
        self.pop(MACHINE, None)
        self.pop(job.spec.user, None)

    def pausing(self, now_s: float) -> Shortages:
        """Return the shortages because of which launches pause at that Unix time."""
        return Shortages({key: each for key, each in self.items() if is_waited_for(each, now_s)})

    def next_s(self, now_s: float) -> float | None:
        """Return the Unix time at which the next pause ends, or None if there is no pause."""
        return min((each.until_s for each in self.pausing(now_s).values()), default=None)

    def blocked_leaves(self, leaves: Iterable[str]) -> frozenset[str]:
        names = set(map(leaf_name, self))
        return frozenset(leaf for leaf in leaves if leaf.rpartition(".")[2] in names)

    def delaying(self, job: Job) -> Postponed | None:
        return self.get(MACHINE) or self.get(job.spec.user)


def is_waited_for(postponed: Postponed, now_s: float) -> bool:
    """True if the pause is not over. A remaining time above the longest pause counts as over,
    because the clock was set back."""
    return 0 < postponed.until_s - now_s <= MOST_PAUSE_S


def next_try(
    shortages: Shortages, job: Job, whose: Whose, *, text: str, resource: str, at_s: float
) -> Postponed:
    """Return the postponement that follows from a failed launch of this job."""
    before = job.postponed if whose is Whose.JOB else shortages.get(_scope(whose, job))
    if before is not None and (before.whose is not whose or at_s - before.until_s > _FORGOTTEN_S):
        before = None
    if before is not None and whose is not Whose.JOB and is_waited_for(before, at_s):
        # This launch was under way when the other one failed.
        tries, until_s = before.tries, before.until_s
    else:
        tries = 1 if before is None else before.tries + 1
        until_s = at_s + pause_s(tries)
    mine = job.postponed
    return Postponed(
        whose=whose,
        text=text,
        resource=resource,
        at_s=at_s,
        until_s=until_s,
        tries=tries,
        own_tries=1 if mine is None or mine.whose is not whose else mine.own_tries + 1,
    )


def pause_s(tries: int) -> int:
    """Return the pause, in seconds, after the failure with this number in a row, from 1 on."""
    # 2^6 seconds exceed the longest pause; larger powers would only cost time.
    return min(FIRST_PAUSE_S << min(tries - 1, 6), MOST_PAUSE_S)


def alone_until_s(postponed: Postponed) -> int | None:
    """Return the Unix time until which the job itself must wait, or None if it need not."""
    if postponed.whose is Whose.JOB:
        return ceil(postponed.until_s)
    if postponed.own_tries <= _TRIES_WITH_OTHERS:
        return None
    # After the common pause, others are tried first.
    return ceil(postponed.until_s + pause_s(postponed.own_tries))


def _scope(whose: Whose, job: Job) -> str:
    return MACHINE if whose is Whose.MACHINE else job.spec.user
