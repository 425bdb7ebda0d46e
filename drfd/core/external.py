"""Load from outside drfd: what other processes use of the machine, and is left to them.

A measured use is full of spikes. What counts is a level that moves only when all of the latest
samples are on one side of it, and then to the nearest of them: what comes and goes within
`SAMPLES` samples is not seen at all. Of the level, what the machine has beside the capacity covers
the first part; the rest is kept free of new jobs once it is large enough to be noticed, until it
is less than half of that. Jobs that run keep all they have, and nobody's entitlement changes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

from drfd.core.resources import NOTHING, Resources

#: So many samples must agree.
SAMPLES = 5
#: A load is expected to last as long again as it has lasted, and at least so long …
_LEAST_S = 60.0
#: … but one that has lasted so long, for ever: nothing waits for its end any more.
_LASTING_S = 3600.0

#: Cores (thousandths) and memory (bytes): all that can be seen from outside.
_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalLoad:
    """A load that has been seen. Only of cores and memory."""

    #: What is used from outside.
    used: Resources
    #: What of the capacity that takes away.
    kept: Resources
    #: Until when it is expected to last, Unix time; infinity: nobody knows.
    until_s: float


@dataclass
class Gauge:
    """Is shown every sample, and knows the load."""

    #: What is kept free.
    kept: Resources = NOTHING
    _samples: deque[_Pair] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _level: _Pair = (0, 0)
    #: Since when anything is kept, Unix time.
    _since_s: float = 0.0

    def see(self, use: Resources, *, beside: Resources, capacity: Resources, now_s: float) -> bool:
        """Take a sample of what all but drfd and its jobs use; whether it changes what is kept.
        `beside`: what the machine has besides its capacity."""
        self._samples.append(_pair(use))
        if len(self._samples) < SAMPLES:
            return False
        cores, memory = zip(*self._samples, strict=True)
        self._level = _drawn(self._level[0], cores), _drawn(self._level[1], memory)
        before = self.kept
        self.kept = Resources(
            cores_milli=_noticed(
                self._level[0] - beside.cores_milli,
                least=max(500, capacity.cores_milli // 16),
                is_seen=before.cores_milli > 0,
            ),
            memory_bytes=_noticed(
                self._level[1] - beside.memory_bytes,
                least=min(1 << 30, capacity.memory_bytes // 16),
                is_seen=before.memory_bytes > 0,
            ),
        )
        if before == NOTHING:
            self._since_s = now_s
        return self.kept != before

    def load(self, now_s: float) -> ExternalLoad | None:
        """None: there is none."""
        if self.kept == NOTHING:
            return None
        lasted_s = now_s - self._since_s
        return ExternalLoad(
            used=Resources(cores_milli=self._level[0], memory_bytes=self._level[1]),
            kept=self.kept,
            until_s=inf if lasted_s >= _LASTING_S else now_s + max(_LEAST_S, lasted_s),
        )


def _pair(amount: Resources) -> _Pair:
    return amount.cores_milli, amount.memory_bytes


def _drawn(level: int, samples: tuple[int, ...]) -> int:
    """The level, drawn to the samples if all of them are above it or all below."""
    return max(min(samples), min(max(samples), level))


def _noticed(beyond: int, *, least: int, is_seen: bool) -> int:
    """What is kept free of what is used beyond what is there for it. Less than `least` are the
    system's own doings, and errors of measurement."""
    return beyond if beyond >= (least // 2 if is_seen else least) and beyond > 0 else 0
