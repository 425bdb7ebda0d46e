"""Signals to all processes of an attempt, those that the job forks meanwhile included."""

from __future__ import annotations

import signal

from drfd.failpoints import reach
from drfd.launcher import attempts
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.confinement import Confinement


def terminate(confinement: Confinement, key: Key, attempt: Attempt) -> None:
    reach("signal.before-signal")
    confinement.signal(key, attempt, signal.SIGTERM)
    # A stopped process could not handle it.
    confinement.signal(key, attempt, signal.SIGCONT)
    reach("signal.after-signal")


def send_signals(
    confinement: Confinement, attempts_fd: int, key: Key, count: int, signals: tuple[int, ...]
) -> None:
    """Send those of the last `signals`, of `count` in all, that have not been sent yet. A death in
    between loses one rather than sending it twice."""
    attempt = attempts.read(attempts_fd, key)
    if attempt is None or attempt.is_over or attempt.running is None:
        return
    sent = attempt.signalled["count"] if attempt.signalled is not None else 0
    new = signals[-(count - sent) :] if count > sent else ()
    if not new:
        return
    reach("signals.before-mark")
    attempts.note_signals(attempts_fd, key, count)
    reach("signals.after-mark")
    for number in new:
        confinement.signal(key, attempt, number)
