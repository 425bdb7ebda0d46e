"""What running attempts may use at present, between their floors and the most they may be lent.

The controller orders it, as often as it likes. Only the kernel remembers it: an attempt begins at
its floor, and keeps what it has been lent while there is no launcher or no controller. Its bounds
are in its attempt file, so that the next launcher keeps to them too. An attempt that began in
another mode of cores than SHARE keeps the cores that it has.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from drfd.common.journald import about
from drfd.launcher.attempt_files import Attempt, Key, Record
from drfd.launcher.confinement.interface import Confinement, LimitFailed
from drfd.launcher.protocol import (
    SHARE,
    BadMessage,
    Ceilings,
    DiskLimit,
    LaunchOrder,
    LendOrder,
    ceilings_record,
    read_ceilings,
)
from drfd.launcher.system.files import VANISHED

log = logging.getLogger("drfd.launcher")

#: Key in the first record of an attempt file.
LENDS = "lends"
#: Most attempts of which it is remembered that an order about them was logged.
_MOST_LOGGED = 1000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an attempt always has, and the most that it may be lent."""

    floor: Ceilings
    #: With 0 cores if its quota is never moved, as in all modes of cores but SHARE.
    most: Ceilings

    def clamp(self, order: LendOrder) -> tuple[int | None, tuple[DiskLimit, ...]]:
        """Return the cores, None if none can be lent, and the rates of each disk that has a limit,
        of an order about this attempt, moved into the bounds. A rate without a limit stays without
        one."""
        ends, cores_milli = order.most or self.most, None
        if self.most.cores_milli:
            cores_milli = _between(self.floor.cores_milli, order.cores_milli, ends.cores_milli)
        asked = {disk.device: disk for disk in order.disks}
        most = {disk.device: disk for disk in ends.disks}
        return cores_milli, tuple(
            _clamp_disk(floor, asked[floor.device], most.get(floor.device, floor))
            for floor in self.floor.disks
            if floor.device in asked
        )


def _clamp_disk(floor: DiskLimit, asked: DiskLimit, most: DiskLimit) -> DiskLimit:
    return DiskLimit(
        device=floor.device,
        read_bps=floor.read_bps and _between(floor.read_bps, asked.read_bps, most.read_bps),
        write_bps=floor.write_bps and _between(floor.write_bps, asked.write_bps, most.write_bps),
    )


def _between(floor: int, asked: int, most: int) -> int:
    return max(floor, min(asked, most))


def bounds_of(order: LaunchOrder) -> Bounds | None:
    """Return the bounds of an attempt that can be lent something, or None. One without ranges can
    be, too: its owner may declare them while it runs."""
    floor = Ceilings(cores_milli=order.limits.cores_milli, disks=order.limits.disks)
    most = order.most or floor
    if order.limits.cores_by == SHARE:
        return Bounds(floor, most)
    return Bounds(floor, replace(most, cores_milli=0)) if floor.disks else None


def record_of(bounds: Bounds) -> Record:
    return {"floor": ceilings_record(bounds.floor), "most": ceilings_record(bounds.most)}


def read_bounds(attempt: Attempt) -> Bounds | None:
    """Return the bounds in an attempt file, or None if there are none that can be understood."""
    record: Any = attempt.created.get(LENDS)
    try:
        return Bounds(read_ceilings(record["floor"]), read_ceilings(record["most"]))
    except (BadMessage, KeyError, TypeError):
        return None


class Lending:
    """The running attempts that may be lent something."""

    def __init__(self, confinement: Confinement) -> None:
        self._confinement = confinement
        self._bounds: dict[Key, Bounds] = {}
        #: Attempts with an order that could not be carried out, which was logged.
        self._logged: set[Key] = set()

    def begun(self, key: Key, bounds: Bounds | None) -> None:
        """Take note of an attempt that this launcher, or an earlier one, has started."""
        if bounds is not None:
            self._bounds[key] = bounds
            self._logged.discard(key)

    def adopt(self, key: Key, attempt: Attempt) -> None:
        """Take over an attempt of an earlier launcher, with what the kernel says it may use."""
        if not attempt.is_over:
            self.begun(key, read_bounds(attempt))

    def forget(self, key: Key) -> None:
        self._bounds.pop(key, None)

    def lend(self, order: LendOrder) -> None:
        """Carry out an order. What cannot be done is logged once for each attempt: the controller
        may repeat the order every second, and is owed no answer."""
        bounds = self._bounds.get(order.key)
        if bounds is None:
            self._log(logging.INFO, order.key, "no such attempt runs that may be lent something")
            return
        try:
            self._confinement.lend(order.key, *bounds.clamp(order))
        except (LimitFailed, OSError) as error:
            is_over = isinstance(error, OSError) and error.errno in VANISHED
            self._log(logging.INFO if is_over else logging.ERROR, order.key, error)

    def _log(self, level: int, key: Key, why: object) -> None:
        if key in self._logged:
            return
        if len(self._logged) >= _MOST_LOGGED:
            self._logged.clear()
        self._logged.add(key)
        log.log(
            level, "event=not-lent job=%d attempt=%d error=%s", *key, why, extra=about(job=key[0])
        )
