"""When something is due of which attempt: a signal, a freeze, a kill or a removal, or the next try.

Each may hold up the launcher's only thread for milliseconds, where processes wait for a disk or a
file system of their user's, and users may request thousands a second. So they are done in turns of
`TURN_S`, between which the loop reads orders, one of each user's after the other, and after a slow
one that user's next one waits.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from drfd.launcher.attempt import Attempt
from drfd.launcher.attempt_files import Record
from drfd.launcher.protocol import Message
from drfd.launcher.runner.identity import Found
from drfd.launcher.runner.runner import Runner

#: Seconds of one turn.
TURN_S = 0.005
#: Seconds that work on one attempt takes at most where its processes stand still at once, and how
#: much longer than slower work its user's next one waits.
_SLOW_S, _PAUSES = 0.004, 19
#: First and longest pause between two tries to freeze an attempt, and to kill or remove one, in
#: seconds.
FREEZE_PAUSES_S, KILL_PAUSES_S = (0.02, 1.0), (0.002, 1.0)
#: Seconds after which the launcher looks for what keeps killed processes alive.
HELD_S = 3.0
#: Seconds after which the processes are reported as impossible to kill, and the pause then. On
#: cgroup v1 each try at one that is stuck holds up the launcher for 5 ms, and a server of NFS that
#: does not answer may hold hundreds.
STUCK_S = 10.0


@dataclass(slots=True, eq=False)
class LocalAttempt(Attempt):
    """An attempt of this machine, and what its launcher keeps for it."""

    #: Whose it is, as far as that is known.
    uid: int | None = None
    #: Whether it is the command that notifies of the job's end.
    is_notice: bool = False
    runner: Runner | None = None
    #: The parent of the directories of its private temporary space, or None if it has none.
    space: str | None = None
    #: The first record of its file, if this launcher has begun it.
    created: Record | None = None
    #: The account that it is to start under.
    account: Found | None = None
    #: What is told of the notification of the job's end, if that was ordered.
    notice: Message | None = None
    #: Whether this controller has got the report of its launch.
    is_reported: bool = False
    #: Number of its runners that have died before they released the job. A controller launches such
    #: an attempt again at once, which must come to an end.
    lost_runners: int = 0
    #: When the next try is due (monotonic clock), or None; the pause before it, and since when it
    #: is tried.
    due_mono_s: float | None = None
    pause_s: float = 0.0
    since_mono_s: float = 0.0
    is_stuck: bool = False
    #: Whether the cgroups that its runner does not make are there; whether all are gone; and
    #: whether a program makes or removes some now.
    is_made: bool = False
    is_cleared: bool = False
    is_in_program: bool = False

    def begin(self) -> None:
        self.pause_s, self.since_mono_s, self.is_stuck = 0.0, time.monotonic(), False

    def takes_s(self) -> float:
        return time.monotonic() - self.since_mono_s


@dataclass
class Schedule:
    """The attempts of which something is due, by user; the user in front is the next one."""

    _heaps: dict[int | None, list[tuple[float, int, LocalAttempt]]] = field(default_factory=dict)
    _count: count[int] = field(default_factory=count)
    #: From when on the next work is done for a user (monotonic clock).
    _from_mono_s: dict[int | None, float] = field(default_factory=dict)

    def add(self, attempt: LocalAttempt, after_s: float = 0.0) -> None:
        """Have something done for an attempt after so many seconds, unless it is sooner."""
        due_mono_s = time.monotonic() + after_s
        if attempt.due_mono_s is None or due_mono_s < attempt.due_mono_s:
            attempt.due_mono_s = due_mono_s
            entry = due_mono_s, next(self._count), attempt
            heapq.heappush(self._heaps.setdefault(attempt.uid, []), entry)

    def put_off(self, attempt: LocalAttempt, first_s: float, most_s: float) -> None:
        """Have the next try after a longer pause each time."""
        attempt.pause_s = min(attempt.pause_s * 2 or first_s, most_s)
        self.add(attempt, attempt.pause_s)

    def pause_s(self) -> float | None:
        """Return the seconds until `run_due` has something to do, or None if nothing is due."""
        dues = [due_mono_s for uid in list(self._heaps) if (due_mono_s := self._first(uid))]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def run_due(self, work: Callable[[LocalAttempt], None]) -> None:
        """Call `work` with the attempts that are due, for at most `TURN_S`."""
        begun_s = now_s = time.monotonic()
        while now_s < begun_s + TURN_S:
            ready = (uid for uid in list(self._heaps) if (self._first(uid) or now_s + 1) <= now_s)
            uid = next(ready, ...)
            if uid is ...:
                return
            heap = self._heaps.pop(uid)
            attempt = heapq.heappop(heap)[2]
            if heap:
                self._heaps[uid] = heap
            attempt.due_mono_s = None
            wait_s = self._from_mono_s.get(uid, 0.0) - now_s
            # One whose runner is gone is only looked at.
            if attempt.runner is not None and wait_s > 0:
                self.add(attempt, wait_s)
                continue
            work(attempt)
            begun_one_s, now_s = now_s, time.monotonic()
            if (spent_s := now_s - begun_one_s) > _SLOW_S:
                self._from_mono_s[uid] = now_s + _PAUSES * spent_s
            else:
                self._from_mono_s.pop(uid, None)

    def _first(self, uid: int | None) -> float | None:
        """Return when the first attempt of a user's is due."""
        heap = self._heaps[uid]
        while heap and heap[0][2].due_mono_s != heap[0][0]:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[uid]
        return heap[0][0] if heap else None
