"""Attempts that are being ended, and when to try again: a cgroup may need several tries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from drfd.launcher.attempts import Key
from drfd.launcher.protocol import Order

#: First and longest pause between two tries.
_RETRY_S, _RETRY_MAX_S = 0.002, 1.0
#: After so long, its processes count as impossible to kill.
_STUCK_S = 10.0


@dataclass(slots=True)
class Ending:
    """An attempt that is being killed, and removed after that if `remove`."""

    remove: bool
    since_mono_s: float
    due_mono_s: float
    pause_s: float = _RETRY_S
    told_stuck: bool = False
    #: To be launched once the remains of its earlier try are gone.
    relaunch: Order | None = None


class Endings:
    def __init__(self) -> None:
        self._all: dict[Key, Ending] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._all

    def add(self, key: Key, *, remove: bool, relaunch: Order | None = None) -> None:
        """Asked for again, it is tried again at once; a removal outweighs a mere killing."""
        now = time.monotonic()
        ending = self._all.setdefault(key, Ending(remove, now, now))
        ending.remove |= remove
        ending.relaunch = relaunch or ending.relaunch
        ending.due_mono_s = now

    def hurry(self, key: Key) -> None:
        """Something has changed for it: no need to wait."""
        if key in self._all:
            self._all[key].due_mono_s = time.monotonic()

    def pause_s(self) -> float | None:
        """How long until one of them is due; None: there are none."""
        if not self._all:
            return None
        return max(0.0, min(e.due_mono_s for e in self._all.values()) - time.monotonic())

    def due(self) -> Iterator[tuple[Key, Ending]]:
        now = time.monotonic()
        return iter([(k, e) for k, e in self._all.items() if e.due_mono_s <= now])

    def finish(self, key: Key) -> None:
        del self._all[key]

    def put_off(self, ending: Ending) -> bool:
        """Try again later, and later each time; True when it is time to say that it is stuck."""
        now = time.monotonic()
        ending.due_mono_s = now + ending.pause_s
        ending.pause_s = min(ending.pause_s * 2, _RETRY_MAX_S)
        if ending.told_stuck or now - ending.since_mono_s < _STUCK_S:
            return False
        ending.told_stuck = True
        return True
