"""Signals to all processes of an attempt, those that the job forks meanwhile included."""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass, field

from drfd.failpoints import reach
from drfd.journald import about
from drfd.launcher import attempts
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.confinement import Confinement

log = logging.getLogger("drfd.launcher")

#: Until what could not be written down is tried again.
_RETRY_S = 1.0


@dataclass
class Signalling:
    """Sends each signal once; while the disk is full, later."""

    confinement: Confinement
    attempts_fd: int
    #: What is still to be sent: how many signals there are in all, and the last of them.
    _unsent: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    _due_mono_s: float = 0.0
    #: Those that were asked to leave.
    _asked: set[Key] = field(default_factory=set)

    def terminate(self, key: Key, attempt: Attempt) -> None:
        """Ask all of them to leave."""
        self._asked.add(key)
        reach("signal.before-signal")
        self.confinement.signal(key, attempt, signal.SIGTERM)
        # A stopped process could not handle it.
        self.confinement.signal(key, attempt, signal.SIGCONT)
        reach("signal.after-signal")

    def started(self, key: Key, attempt: Attempt) -> None:
        """Before its program began, it could not hear."""
        if key in self._asked:
            self.terminate(key, attempt)

    def forget(self, key: Key) -> None:
        self._asked.discard(key)

    def send(self, key: Key, count: int, signals: tuple[int, ...]) -> None:
        """Send those of the last `signals`, of `count` in all, that have not been sent yet. A death
        in between loses one rather than sending it twice."""
        self._unsent.pop(key, None)
        try:
            self._send(key, count, signals)
        except OSError as error:
            log.error(
                "event=signal-put-off job=%d error=%s", key[0], error, extra=about(job=key[0])
            )
            self._unsent[key] = count, signals
            self._due_mono_s = time.monotonic() + _RETRY_S

    def pause_s(self) -> float | None:
        """How long until `look` has something to do; None: nothing was put off."""
        return max(0.0, self._due_mono_s - time.monotonic()) if self._unsent else None

    def look(self) -> None:
        """Try again what was put off, when it is time."""
        if self._unsent and time.monotonic() >= self._due_mono_s:
            for key, (count, signals) in list(self._unsent.items()):
                self.send(key, count, signals)

    def _send(self, key: Key, count: int, signals: tuple[int, ...]) -> None:
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None or attempt.is_over or attempt.running is None:
            return
        sent = attempt.signalled["count"] if attempt.signalled is not None else 0
        new = signals[-(count - sent) :] if count > sent else ()
        if not new:
            return
        reach("signals.before-mark")
        attempts.note_signals(self.attempts_fd, key, count)
        reach("signals.after-mark")
        for number in new:
            self.confinement.signal(key, attempt, number)
