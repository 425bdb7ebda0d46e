"""How declared cores are given to a job: as a quota, as a weight, or as CPUs of its own."""

from __future__ import annotations

from collections.abc import Callable

from drfd.launcher.attempts import Key
from drfd.launcher.pins import Pins
from drfd.launcher.protocol import NO_PIN, PIN, QUOTA, WEIGHT, Limits

#: One period of a quota.
PERIOD_US = 100_000


class Cores:
    """What is done beside the weight, which every job has."""

    def __init__(self, pins: Pins | str, set_quota: Callable[[Key, int], None]) -> None:
        """`pins`: a text says why there are none. `set_quota`: for a job, in microseconds of each
        period; raises LimitFailed or OSError."""
        self._pins = None if isinstance(pins, str) else pins
        self._why_not = pins if isinstance(pins, str) else ""
        self._set_quota = set_quota

    def controls(self) -> dict[str, str]:
        """As `Confinement.cores`."""
        pin = "enforced: whole cores as CPUs of their own, parts by quota on the other CPUs"
        return {
            QUOTA: "enforced",
            WEIGHT: "enforced: at least what a job declares, and what others leave idle",
            PIN: f"enforced: {NO_PIN}: {self._why_not}" if self._why_not else pin,
        }

    def limit(self, key: Key, limits: Limits) -> None:
        """For a new job without processes. Raises LimitFailed, OSError."""
        if self._pins is not None:
            count, part = divmod(limits.cores_milli, 1000)
            is_whole = limits.cores_by == PIN and count > 0 and not part
            if is_whole and self._pins.pin(key, count):
                return
            self._pins.share(key)
        if limits.cores_by != WEIGHT:
            self._set_quota(key, quota_us(limits.cores_milli))

    def frozen(self, key: Key) -> None:
        if self._pins is not None:
            self._pins.park(key)

    def thaw(self, key: Key) -> None:
        """Called first. What was pinned gets CPUs again, or a quota where there are none."""
        lost = 0 if self._pins is None else self._pins.unpark(key)
        if lost:
            self._set_quota(key, quota_us(lost * 1000))

    def gone(self, key: Key) -> None:
        if self._pins is not None:
            self._pins.forget(key)


def quota_us(cores_milli: int) -> int:
    """The kernel takes no less than a millisecond."""
    return max(1000, cores_milli * PERIOD_US // 1000)
