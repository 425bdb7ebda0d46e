"""Launches postponed because of a shortage: which jobs wait, and for how long.

A shortage of the machine blocks all launches, one of a user blocks that user's, and one of a single
job delays only that job. After a pause launches go on. If one fails before any has succeeded, the
next pause is twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

from drfd.core.model.job import Job, JobState, Postponed, Whose, leaf_name

#: The pause after the first shortage, and the longest pause, in seconds.
FIRST_PAUSE_S, MOST_PAUSE_S = 1, 60
#: Number of consecutive failures of one job before others are tried without it: the job may be the
#: cause.
_TRIES_WITH_OTHERS = 3
#: A shortage that occurs more than this many seconds after the end of a pause counts as a new one.
_FORGOTTEN_S = 600.0

_Key = tuple[Whose, str]


@dataclass(frozen=True, slots=True)
class LaunchBlocks:
    """The shortages during whose pause nothing is launched."""

    #: The shortage of the machine, or None.
    machine: Postponed | None = None
    #: Shortages of single users, by user.
    users: dict[str, Postponed] = field(default_factory=dict)

    def blocked_leaves(self, leaves: Iterable[str]) -> frozenset[str]:
        """Return those of the leaves whose user may start nothing because of a shortage."""
        shut = set(map(leaf_name, self.users))
        return frozenset(leaf for leaf in leaves if leaf.rpartition(".")[2] in shut)

    def delaying(self, job: Job) -> Postponed | None:
        return self.machine or self.users.get(job.spec.user)


class Shortages:
    """Known shortages of the machine and of single users. Only the ledger writes them.

    The table is empty nearly all the time.
    """

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        """Take the shortages from the records of waiting `jobs`, as a restarted daemon does.

        The records do not show that a launch has succeeded since, so launches may pause although
        the shortage is over.
        """
        #: The shortages that there are; only for reading.
        self.known: dict[_Key, Postponed] = {}
        waiting = (JobState.PENDING, JobState.HELD, JobState.CLEANING)
        found = [job for job in jobs if job.postponed is not None and job.state in waiting]
        for job in sorted(found, key=lambda job: job.postponed.at_s if job.postponed else 0.0):
            self.note(job)

    def __bool__(self) -> bool:
        return bool(self.known)

    def note(self, job: Job) -> None:
        """Record that the launch of the job was postponed."""
        postponed = job.postponed
        if postponed is not None and postponed.whose is not Whose.JOB:
            self.known[_key(postponed.whose, job.spec.user)] = postponed

    def note_start(self, job: Job) -> None:
        """Record that the job's program runs, which ends the shortages of machine and user."""
        for key in (_key(Whose.MACHINE, ""), _key(Whose.USER, job.spec.user)):
            self.known.pop(key, None)

    def of(self, whose: Whose, user: str) -> Postponed | None:
        return self.known.get(_key(whose, user))

    def launch_blocks(self, now_s: float) -> LaunchBlocks | None:
        """Return whose launches are blocked at that Unix time, or None if nobody's are."""
        left = {key: each for key, each in self.known.items() if is_waited_for(each, now_s)}
        machine = left.pop(_key(Whose.MACHINE, ""), None)
        users = {user: each for (_, user), each in left.items()}
        return LaunchBlocks(machine, users) if users or machine is not None else None

    def next_s(self, now_s: float) -> float | None:
        """Return the Unix time at which the next pause ends, or None if there is no pause."""
        times = (each.until_s for each in self.known.values() if is_waited_for(each, now_s))
        return min(times, default=None)

    def copy(self) -> Shortages:
        other = Shortages()
        other.known = dict(self.known)
        return other


def is_waited_for(postponed: Postponed, now_s: float) -> bool:
    """True if the pause is not over. A remaining time above the longest pause counts as over,
    because the clock was set back."""
    return 0 < postponed.until_s - now_s <= MOST_PAUSE_S


def next_try(
    shortages: Shortages, job: Job, whose: Whose, *, text: str, resource: str, at_s: float
) -> Postponed:
    """Return the postponement that follows from a failed launch of this job."""
    before = job.postponed if whose is Whose.JOB else shortages.of(whose, job.spec.user)
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


def _key(whose: Whose, user: str) -> _Key:
    return whose, "" if whose is Whose.MACHINE else user
