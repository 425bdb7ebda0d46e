"""Launches postponed because of a shortage: which jobs wait, for how long, and what is tried next.

A shortage of the machine blocks all launches, one of a user blocks that user's, and one of a single
job delays that job alone. After a pause one launch is tried, and no other until it is known to run.
If it fails too, the next pause is twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil

from drfd.core.model.job import Job, JobState, Postponed, Whose, leaf_name

#: The pause after the first shortage, and the longest pause, in seconds.
FIRST_PAUSE_S, MOST_PAUSE_S = 1, 60
#: Number of consecutive failures of one job before another is tried: the job may be the cause.
_TRIES_OF_ONE = 3
#: Seconds that a launch under trial blocks the others at most: it may hang for its own reasons.
_TRY_S = 10.0
#: A shortage that occurs more than this many seconds after the end of a pause counts as a new one.
_FORGOTTEN_S = 600.0

_Key = tuple[Whose, str]


@dataclass(frozen=True, slots=True)
class LaunchBlocks:
    """The users who may start no job, or only one, because of shortages."""

    machine: Postponed | None = None
    #: Whether one job, of any user, may start in spite of the machine's shortage.
    allows_one: bool = False
    #: Shortages of single users, by user.
    users: dict[str, Postponed] = field(default_factory=dict)
    #: Those of these users who may start one job.
    allowing_one: frozenset[str] = frozenset()

    @property
    def blocks_all(self) -> bool:
        return self.machine is not None and not self.allows_one

    def blocked_leaves(self, leaves: Iterable[str]) -> frozenset[str]:
        """Return those of the leaves whose user may start nothing because of a shortage."""
        shut = {leaf_name(user) for user in self.users if user not in self.allowing_one}
        return frozenset(leaf for leaf in leaves if leaf.rpartition(".")[2] in shut)

    def delaying(self, job: Job) -> Postponed | None:
        return self.machine or self.users.get(job.spec.user)


class Shortages:
    """Known shortages of the machine and of single users. Only the ledger writes them.

    The table is empty nearly all the time.
    """

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        """Take the shortages from the records of waiting `jobs`, as a restarted daemon does.

        The records do not show that a launch has succeeded since, so one launch may be tried alone
        although the shortage is over.
        """
        #: The shortages that there are; only for reading.
        self.known: dict[_Key, Postponed] = {}
        #: The job whose launch is being tried, and since when in Unix time.
        self._tried: dict[_Key, tuple[int, float]] = {}
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
            key = _key(postponed.whose, job.spec.user)
            self.known[key] = postponed
            self._tried.pop(key, None)

    def note_try(self, job: Job, at_s: float) -> None:
        """Record that the job was admitted and will be launched."""
        for key in (_key(Whose.MACHINE, ""), _key(Whose.USER, job.spec.user)):
            if key in self.known:
                self._tried[key] = job.id, at_s

    def note_start(self, job: Job) -> None:
        """Record that the job's program runs, which ends the shortages of machine and user."""
        for key in (_key(Whose.MACHINE, ""), _key(Whose.USER, job.spec.user)):
            self.known.pop(key, None)
            self._tried.pop(key, None)

    def of(self, whose: Whose, user: str) -> Postponed | None:
        return self.known.get(_key(whose, user))

    def launch_blocks(self, now_s: float, is_starting: Callable[[int], bool]) -> LaunchBlocks:
        """Return whose launches are blocked at that Unix time.

        `is_starting` tells whether the job with that id was admitted and has neither run nor
        failed.
        """

        def may_try(key: _Key) -> bool:
            if is_waited_for(self.known[key], now_s):
                return False
            tried = self._tried.get(key)
            is_tried = tried is not None and 0 <= now_s - tried[1] < _TRY_S
            return not (is_tried and tried is not None and is_starting(tried[0]))

        users = {user: each for (whose, user), each in self.known.items() if whose is Whose.USER}
        machine = _key(Whose.MACHINE, "")
        return LaunchBlocks(
            machine=self.known.get(machine),
            allows_one=machine in self.known and may_try(machine),
            users=users,
            allowing_one=frozenset(user for user in users if may_try(_key(Whose.USER, user))),
        )

    def next_s(self, now_s: float) -> float | None:
        """Return the Unix time at which the next pause ends, or None if there is no pause."""
        times = (each.until_s for each in self.known.values() if is_waited_for(each, now_s))
        return min(times, default=None)

    def copy(self) -> Shortages:
        other = Shortages()
        other.known = dict(self.known)
        return other

    def forget(self, now_s: float) -> None:
        """Drop the shortages whose pause is over, as a forecast does."""
        self.known = {key: each for key, each in self.known.items() if is_waited_for(each, now_s)}


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
    """Return the Unix time until which the job alone must wait, or None if it need not."""
    if postponed.whose is Whose.JOB:
        return ceil(postponed.until_s)
    if postponed.own_tries <= _TRIES_OF_ONE:
        return None
    # After the common pause, another job is tried first.
    return ceil(postponed.until_s + pause_s(postponed.own_tries))


def _key(whose: Whose, user: str) -> _Key:
    return whose, "" if whose is Whose.MACHINE else user
