"""Attempts that are signalled, frozen or killed, with the time of the next try.

One try may not suffice: a freeze takes a while, the kernel removes processes and cgroups with a
delay, and the disk may be too full to record a signal.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.protocol import Assignment

log = logging.getLogger("drfd.launcher")

#: Seconds that work on one attempt takes at most where its processes stand still at once, and how
#: much longer than slower work its user's next one waits.
_SLOW_S, _PAUSES = 0.004, 3


class Pace:
    """When the next signal, freeze or kill of each user's is due. It holds up the launcher's only
    thread for milliseconds where processes wait for a disk, or a file system of their user's."""

    def __init__(self) -> None:
        self._from_mono_s: dict[int | None, float] = {}

    def wait_s(self, uid: int | None) -> float:
        return max(0.0, self._from_mono_s.get(uid, 0.0) - time.monotonic())

    def took(self, uid: int | None, since_mono_s: float) -> None:
        now = time.monotonic()
        if (spent_s := now - since_mono_s) > _SLOW_S:
            self._from_mono_s[uid] = now + _PAUSES * spent_s
        else:
            self._from_mono_s.pop(uid, None)


#: First and longest pause between two tries to kill or remove an attempt, in seconds.
_KILL_S, _KILL_MAX_S = 0.002, 1.0
#: Seconds after which the launcher looks for what keeps the processes alive.
_HELD_S = 3.0
#: Seconds after which the processes are reported as impossible to kill, and the longest pause then.
_STUCK_S = 10.0


@dataclass(slots=True)
class Ending:
    """An attempt that is being killed, and then removed if `remove` is set."""

    remove: bool
    since_mono_s: float
    due_mono_s: float
    pause_s: float = _KILL_S
    is_reported_stuck: bool = False
    #: True while a process ends what keeps the attempt's processes alive.
    is_being_freed: bool = False
    #: Whose it is, once that has been looked up.
    uid: int | None = None
    #: The order to launch once nothing of the earlier try is left, or of the job to be notified of.
    relaunch: Assignment | None = None
    #: Why the owner was not notified of the job's end, if that was ordered and nothing was begun.
    notice: str | None = None

    def resists(self) -> bool:
        """Return whether its processes take longer to exit than killed processes normally do."""
        return time.monotonic() - self.since_mono_s > _HELD_S


class Endings:
    """The attempts that are being killed or removed."""

    def __init__(self) -> None:
        self._all: dict[Key, Ending] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._all

    def add(
        self,
        key: Key,
        *,
        remove: bool,
        relaunch: Assignment | None = None,
        notice: str | None = None,
    ) -> None:
        """Add an attempt, due at once. If it is there already, its next try is due now, and a
        removal replaces a mere kill."""
        now = time.monotonic()
        ending = self._all.setdefault(key, Ending(remove, now, now))
        ending.remove |= remove
        ending.notice = notice or ending.notice
        if relaunch is not None:
            if ending.relaunch is not None:
                ending.relaunch.close()
            ending.relaunch = relaunch
        ending.due_mono_s = now

    def removes(self, key: Key) -> bool:
        """Return whether the attempt is being removed, and not merely killed."""
        return key in self._all and self._all[key].remove

    def hurry(self, key: Key) -> None:
        """Make the attempt's next try due now, because something has changed for it."""
        if key in self._all:
            self._all[key].due_mono_s = time.monotonic()

    def pause_s(self) -> float | None:
        """Return the seconds until the next try is due, or None if there are no endings."""
        if not self._all:
            return None
        return max(0.0, min(e.due_mono_s for e in self._all.values()) - time.monotonic())

    def due(self) -> Iterator[tuple[Key, Ending]]:
        now = time.monotonic()
        return iter([(k, e) for k, e in self._all.items() if e.due_mono_s <= now])

    def finish(self, key: Key) -> None:
        del self._all[key]

    def put_off(self, ending: Ending) -> bool:
        """Postpone the next try, by a longer pause each time. Returns True once: when the attempt
        is to be reported as stuck."""
        now = time.monotonic()
        ending.due_mono_s = now + ending.pause_s
        # On cgroup v1 each try at one that is stuck holds up the launcher for 5 ms, and a server of
        # NFS that does not answer may hold hundreds.
        most_s = _STUCK_S if ending.is_reported_stuck else _KILL_MAX_S
        ending.pause_s = min(ending.pause_s * 2, most_s)
        if ending.is_reported_stuck or now - ending.since_mono_s < _STUCK_S:
            return False
        ending.is_reported_stuck = True
        return True


#: First and longest pause between two checks of a freeze, in seconds.
_FREEZE_S, _FREEZE_MAX_S = 0.02, 1.0


@dataclass(slots=True)
class _Wait:
    due_mono_s: float
    pause_s: float = _FREEZE_S


@dataclass
class Freezing:
    """Freezes and thaws attempts."""

    confinement: Confinement
    attempts_fd: int
    #: Sends the controller a report about an attempt.
    tell: Callable[[str, Key], None]
    #: Returns whether the attempt is being killed, and must not be frozen any more.
    is_ending: Callable[[Key], bool]
    pace: Pace
    #: Attempts that have been told to freeze and still have running processes.
    _slow: dict[Key, _Wait] = field(default_factory=dict)

    def freeze(self, key: Key) -> None:
        attempt = attempt_files.read(self.attempts_fd, key)
        may_freeze = attempt is not None and not attempt.is_over and not self.is_ending(key)
        if may_freeze and attempt is not None and not self._is_frozen(key, attempt):
            self._put_off(key)
            return
        self.forget(key)
        if attempt is None:
            self.tell("missing", key)
        elif may_freeze:
            reach("freeze.before-report")
            self.tell("frozen", key)

    def _is_frozen(self, key: Key, attempt: Attempt) -> bool:
        uid, begun_s = attempt.created["uid"], time.monotonic()
        if self.pace.wait_s(uid):
            return False
        is_frozen = self.confinement.freeze(key, attempt)
        if not is_frozen:
            self.pace.took(uid, begun_s)
        return is_frozen

    def thaw(self, key: Key) -> None:
        self.forget(key)
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None:
            self.tell("missing", key)
        elif not attempt.is_over:
            reach("thaw.before-thaw")
            self.confinement.thaw(key, attempt)

    def forget(self, key: Key) -> None:
        """Stop waiting for the freeze of an attempt."""
        self._slow.pop(key, None)

    def pause_s(self) -> float | None:
        """Return the seconds until the next check is due, or None if there is none."""
        if not self._slow:
            return None
        return max(0.0, min(wait.due_mono_s for wait in self._slow.values()) - time.monotonic())

    def run_due(self) -> None:
        """Check the attempts that are due."""
        now = time.monotonic()
        for key in [key for key, wait in self._slow.items() if wait.due_mono_s <= now]:
            self.freeze(key)

    def _put_off(self, key: Key) -> None:
        """Schedule the next check of an attempt, after a longer pause each time."""
        now = time.monotonic()
        wait = self._slow.setdefault(key, _Wait(now))
        wait.due_mono_s = now + wait.pause_s
        wait.pause_s = min(wait.pause_s * 2, _FREEZE_MAX_S)


#: Seconds until a signal that could not be recorded is tried again.
_RETRY_S = 1.0
#: Seconds that signals are sent for at a time, and attempts killed, before the loop reads orders
#: again: each signal freezes its job for a moment, and users may request thousands a second.
TURN_S = 0.005


@dataclass
class Signalling:
    """Sends each signal once, later if the disk is full. If a job's pending signals include a
    number several times, it is sent once, as the kernel keeps it once for a process."""

    confinement: Confinement
    attempts_fd: int
    pace: Pace
    #: The attempts of each user that have something pending; the user in front is the next one.
    _queues: dict[int | None, dict[Key, None]] = field(default_factory=dict)
    #: Pending signals: how many the job is to have been sent in all, and the last of them.
    _unsent: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    _due_mono_s: float = 0.0
    #: Attempts that have been told to end, and those that are still to be sent SIGTERM.
    _asked: set[Key] = field(default_factory=set)
    _unasked: set[Key] = field(default_factory=set)

    def terminate(self, key: Key, attempt: Attempt) -> None:
        """Have `run_due` send SIGTERM to all processes, after the signals ordered before."""
        self._asked.add(key)
        self._unasked.add(key)
        self._queue(key, attempt)

    def launched(self, key: Key) -> None:
        """Send SIGTERM again, if it was sent before the program began and so had no effect."""
        attempt = attempt_files.read(self.attempts_fd, key) if key in self._asked else None
        if attempt is not None and not attempt.is_over:
            self.terminate(key, attempt)

    def forget(self, key: Key) -> None:
        self._asked.discard(key)
        self._unasked.discard(key)

    def add(self, key: Key, count: int, signals: tuple[int, ...]) -> None:
        """Have `run_due` send those of the last `signals`, of `count` in all, that have not been
        sent yet. They include the signals added for the attempt before."""
        self._unsent[key] = count, signals
        self._queue(key, attempt_files.read(self.attempts_fd, key))

    def drop(self, key: Key) -> None:
        """Forget the pending signals of an attempt that is to freeze: to send one thaws it. The
        controller sends them again when it is thawed."""
        self._unsent.pop(key, None)

    def pause_s(self) -> float | None:
        """Return the seconds until `run_due` has something to do, or None if nothing is pending."""
        if not self._queues:
            return None
        return max(self._due_mono_s - time.monotonic(), min(map(self.pace.wait_s, self._queues)))

    def run_due(self) -> None:
        """Send pending signals for at most `TURN_S`, of each user's to one attempt in turn."""
        begun_s = now_s = time.monotonic()
        while self._due_mono_s <= now_s < begun_s + TURN_S:
            ready = [uid for uid in self._queues if not self.pace.wait_s(uid)][:1]
            for uid in ready:
                keys = self._queues.pop(uid)
                key = next(iter(keys))
                del keys[key]
                if not self._send_those_of(key):
                    keys[key] = None
                if keys:
                    self._queues[uid] = keys
                self.pace.took(uid, now_s)
            if not ready:
                return
            now_s = time.monotonic()

    def _queue(self, key: Key, attempt: Attempt | None) -> None:
        uid = None if attempt is None else attempt.created["uid"]
        self._queues.setdefault(uid, {})[key] = None

    def _send_those_of(self, key: Key) -> bool:
        """Send what is pending, and return whether nothing is left. If the launcher is killed, a
        signal is lost rather than sent twice."""
        try:
            if key in self._unsent:
                self._send(key, *self._unsent[key])
        except OSError as error:
            log.error(
                "event=signal-put-off job=%d error=%s", key[0], error, extra=about(job=key[0])
            )
            self._due_mono_s = time.monotonic() + _RETRY_S
        else:
            self._unsent.pop(key, None)
        if key in self._unasked:
            self._unasked.discard(key)
            attempt = attempt_files.read(self.attempts_fd, key)
            if attempt is not None and not attempt.is_over:
                reach("signal.before-signal")
                # A stopped process could not handle SIGTERM.
                self.confinement.signal(key, attempt, signal.SIGTERM, signal.SIGCONT)
                reach("signal.after-signal")
        return key not in self._unsent

    def _send(self, key: Key, count: int, signals: tuple[int, ...]) -> None:
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None or attempt.is_over or attempt.launched is None:
            return
        sent = attempt.signalled["count"] if attempt.signalled is not None else 0
        new = signals[-(count - sent) :] if count > sent else ()
        if not new:
            return
        reach("signals.before-mark")
        attempt_files.note_signals(self.attempts_fd, key, count)
        reach("signals.after-mark")
        for number in dict.fromkeys(new):
            self.confinement.signal(key, attempt, number)
