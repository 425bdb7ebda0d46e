"""Attempts that are slow to freeze, and when to look again: some of their processes still run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from drfd.launcher.attempts import Key

#: First and longest pause between two looks.
_LOOK_S, _LOOK_MAX_S = 0.02, 1.0


@dataclass(slots=True)
class _Wait:
    due_mono_s: float
    pause_s: float = _LOOK_S


class Freezing:
    def __init__(self) -> None:
        self._all: dict[Key, _Wait] = {}

    def put_off(self, key: Key) -> None:
        """It does not stand still yet: look again, and later each time."""
        now = time.monotonic()
        wait = self._all.setdefault(key, _Wait(now))
        wait.due_mono_s = now + wait.pause_s
        wait.pause_s = min(wait.pause_s * 2, _LOOK_MAX_S)

    def discard(self, key: Key) -> None:
        self._all.pop(key, None)

    def pause_s(self) -> float | None:
        """How long until one of them is due; None: there are none."""
        if not self._all:
            return None
        return max(0.0, min(wait.due_mono_s for wait in self._all.values()) - time.monotonic())

    def due(self) -> list[Key]:
        now = time.monotonic()
        return [key for key, wait in self._all.items() if wait.due_mono_s <= now]
