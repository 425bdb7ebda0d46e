"""How long may be waited for processes to stand still, all jobs together.

Nearly all are frozen within a fraction of a millisecond. One that waits for a disk is not, and the
launcher has one loop: a score of those, looked at again and again, would leave no time for others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: The longest wait, the shortest, which everybody has, and the share of all time that goes to more
#: than the shortest.
_MOST_S, _LEAST_S, _SHARE = 0.05, 0.001, 0.05


class Patience:
    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._mono = mono
        self._left_s = _MOST_S
        self._seen_mono_s = mono()

    @contextmanager
    def wait(self) -> Iterator[float]:
        """Until when, by the monotonic clock; the time that the block takes counts."""
        begin = self._mono()
        earned_s = (begin - self._seen_mono_s) * _SHARE
        self._left_s = min(_MOST_S, self._left_s + earned_s)
        try:
            yield begin + max(_LEAST_S, self._left_s)
        finally:
            self._seen_mono_s = self._mono()
            self._left_s = max(0.0, self._left_s - (self._seen_mono_s - begin))


#: That of this process.
PATIENCE = Patience()
