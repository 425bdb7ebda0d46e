"""When Slurm is asked for the list of its jobs: some moments after each event, and in any case from
time to time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

#: The moments after an event, in seconds: a job passes some states at its start and end.
_AFTER_EVENT_S = (0.0, 0.05, 0.2, 1.0, 3.0)
#: The least pause between two lists.
_LEAST_PAUSE_S = 0.02
#: The most moments that are kept: a burst of events needs no more lists than the pause allows.
_MOST_DUES = 64


@dataclass
class ListTimes:
    """The moments at which lists are due, and the numbers of those that were asked for."""

    #: Seconds after which a list is due without any event.
    poll_s: float
    #: The number of the last list that was asked for; the first has 1.
    count: int = 0
    #: Whether that list has not come yet.
    _is_awaited: bool = False
    _asked_mono_s: float = float("-inf")
    _dues: list[float] = field(default_factory=list)

    def schedule(self, *more_s: float) -> None:
        """Schedule lists because of an event: now, soon, and after so many seconds more."""
        now = time.monotonic()
        dues = {*self._dues, *(now + wait_s for wait_s in (*_AFTER_EVENT_S, *more_s))}
        self._dues = sorted(dues)[:_MOST_DUES]

    def add(self, due_mono_s: float) -> None:
        """Have one more list asked for, at this moment."""
        self._dues = sorted({*self._dues, due_mono_s})

    def pause_s(self) -> float | None:
        """Return the seconds until a list is due, or None while one is awaited."""
        if self._is_awaited:
            return None
        due = min([*self._dues, self._asked_mono_s + self.poll_s])
        return max(0.0, max(due, self._asked_mono_s + _LEAST_PAUSE_S) - time.monotonic())

    def begin(self) -> int | None:
        """Return the number of the list that is to be asked for now, or None if none is due."""
        now, pause_s = time.monotonic(), self.pause_s()
        if pause_s is None or pause_s > 0.0:
            return None
        self._dues = [due for due in self._dues if due > now]
        self._is_awaited, self._asked_mono_s = True, now
        self.count += 1
        return self.count

    def end(self) -> None:
        """The list that was asked for has come, or will not come."""
        self._is_awaited = False
