"""Attempts that are being frozen: some take a while, and are looked at until they stand still."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.failpoints import reach
from drfd.launcher import attempts
from drfd.launcher.attempts import Key
from drfd.launcher.confinement import Confinement

#: First and longest pause between two looks.
_LOOK_S, _LOOK_MAX_S = 0.02, 1.0


@dataclass(slots=True)
class _Wait:
    due_mono_s: float
    pause_s: float = _LOOK_S


@dataclass
class Freezing:
    confinement: Confinement
    attempts_fd: int
    #: Tells the controller a report about an attempt.
    tell: Callable[[str, Key], None]
    #: Is the attempt being killed, and so not to be frozen any more?
    is_ending: Callable[[Key], bool]
    #: Some of their processes still run.
    _slow: dict[Key, _Wait] = field(default_factory=dict)

    def freeze(self, key: Key) -> None:
        attempt = attempts.read(self.attempts_fd, key)
        may_freeze = attempt is not None and not attempt.is_over and not self.is_ending(key)
        if may_freeze and not self.confinement.freeze(key, attempt):
            self._put_off(key)
            return
        self.discard(key)
        if attempt is None:
            self.tell("missing", key)
        elif may_freeze:
            reach("freeze.before-report")
            self.tell("frozen", key)

    def thaw(self, key: Key) -> None:
        self.discard(key)
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None:
            self.tell("missing", key)
        elif not attempt.is_over:
            reach("thaw.before-thaw")
            self.confinement.thaw(key, attempt)

    def discard(self, key: Key) -> None:
        """It is not to be frozen any more."""
        self._slow.pop(key, None)

    def pause_s(self) -> float | None:
        """How long until one of them is due to be looked at; None: there are none."""
        if not self._slow:
            return None
        return max(0.0, min(wait.due_mono_s for wait in self._slow.values()) - time.monotonic())

    def look(self) -> None:
        """Try again with those that are due."""
        now = time.monotonic()
        for key in [key for key, wait in self._slow.items() if wait.due_mono_s <= now]:
            self.freeze(key)

    def _put_off(self, key: Key) -> None:
        """It does not stand still yet: look again, and later each time."""
        now = time.monotonic()
        wait = self._slow.setdefault(key, _Wait(now))
        wait.due_mono_s = now + wait.pause_s
        wait.pause_s = min(wait.pause_s * 2, _LOOK_MAX_S)
