"""What running attempts may use at present, above their floors.

The controller orders it, as often as it likes, and decides how much. Only the kernel remembers it:
an attempt begins at its floor, and keeps what it has been lent while there is no launcher or no
controller. The floor is in its attempt file, so that a later controller knows what can be lent.
"""

from __future__ import annotations

import logging
from typing import Any

from drfd.common.journald import about
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement, LimitFailed
from drfd.launcher.protocol import (
    SHARE,
    BadMessage,
    Ceilings,
    LaunchOrder,
    LendOrder,
    read_ceilings,
)
from drfd.launcher.system.files import VANISHED

log = logging.getLogger("drfd.launcher")

#: Key in the first record of an attempt file.
LENDS = "lends"
#: Most attempts of which it is remembered that an order about them was logged.
_MOST_LOGGED = 1000


def floor_of(order: LaunchOrder) -> Ceilings | None:
    """Return the floor of an attempt that can be lent something, with 0 cores if none are lent, as
    in all modes of cores but SHARE; or None. One without ranges can be lent something, too: its
    owner may declare them while it runs."""
    limits = order.limits
    cores_milli = limits.cores_milli if limits.cores_by == SHARE else 0
    if not cores_milli and not limits.disks:
        return None
    return Ceilings(cores_milli=cores_milli, disks=limits.disks)


def read_floor(attempt: Attempt) -> Ceilings | None:
    """Return the floor in an attempt file, or None if there is none that can be understood."""
    record: Any = attempt.created.get(LENDS)
    try:
        return None if record is None else read_ceilings(record)
    except BadMessage:
        return None


class Lending:
    """Carries out orders about running attempts."""

    def __init__(self, confinement: Confinement) -> None:
        self._confinement = confinement
        #: Attempts with an order that could not be carried out, which was logged.
        self._logged: set[Key] = set()

    def lend(self, order: LendOrder) -> None:
        """Carry out an order. What cannot be done is logged once for each attempt: the controller
        may repeat the order every second, and is owed no answer."""
        try:
            self._confinement.lend(order.key, order.cores_milli or None, order.disks)
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
