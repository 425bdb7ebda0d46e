"""Reserves of the journal's disk and of the machine's memory, which users cannot use up.

While less than a reserve is free, submissions of users are refused and, if the disk is short, their
changes too. Cancellations, requests of administrators, launches and ends of accepted jobs are not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from drfd.common.errors import Refused
from drfd.common.units import show_size
from drfd.core.model.job import Actor
from drfd.daemon.config import UserLimits
from drfd.host.measurements import MemoryHeadroom, spare_memory
from drfd.journal.files import Reserve, free_bytes, total_bytes

log = logging.getLogger("drfd")

DISK, MEMORY = "SHORT_OF_DISK", "SHORT_OF_MEMORY"
#: Seconds for which a reading is used again.
_FRESH_S = 0.5
#: Seconds between two looks at whether the reserve file can be made again.
_MAINTAIN_S = 10.0
#: Reserve of memory at most, as a divisor of what a limit allows.
_MEMORY_PART = 16


@dataclass(frozen=True, slots=True)
class ReserveShortage:
    """Less disk or memory is free than its reserve. `code` is `DISK` or `MEMORY`."""

    code: str
    free_bytes: int
    kept_bytes: int
    #: In words: the fact, which requests of users are refused meanwhile, and the way out.
    text: str
    refused: str
    cure: str


class Reserves:
    def __init__(
        self,
        reserve: Reserve,
        limits: Callable[[], UserLimits],
        *,
        mono: Callable[[], float] = time.monotonic,
        memory: Callable[[], list[MemoryHeadroom]] = spare_memory,
    ) -> None:
        """`limits` returns the present limits of the configuration, and `memory` the room below
        each bound on this process's memory."""
        self.reserve = reserve
        self._directory = reserve.path.parent
        self._limits = limits
        self._mono = mono
        self._memory = memory
        self._found: list[ReserveShortage] = []
        self._fresh_until_s = float("-inf")

    def refuse(self, actor: Actor, *, is_submission: bool) -> None:
        """Raise Refused for a change while the disk is short, and for a submission also while
        memory is."""
        for each in () if actor.is_admin else self.shortages():
            if is_submission or each.code == DISK:
                what = "submitted" if is_submission else "changed"
                code = each.code.lower().replace("_", "-")
                raise Refused(code, f"nothing is {what} now: {each.text}", hint=each.cure)

    def shortages(self) -> list[ReserveShortage]:
        now = self._mono()
        if now >= self._fresh_until_s:
            before = {each.code for each in self._found}
            self._found = [*self._of_disk(), *self._of_memory()]
            self._fresh_until_s = now + _FRESH_S
            for each in self._found:
                if each.code not in before:
                    words = "event=short code=%s free_bytes=%d kept_bytes=%d"
                    log.warning(words, each.code, each.free_bytes, each.kept_bytes)
        return self._found

    def kept_disk_bytes(self) -> int:
        """Return the bytes of the journal's disk that users cannot fill through drfd."""
        given = self._limits().reserve_disk_bytes
        return default_reserve_disk(total_bytes(self._directory)) if given is None else given

    async def maintain(self) -> None:
        """Make the reserve file, and make it whole again at intervals. Never returns."""
        is_logged = False
        while True:
            try:
                await asyncio.to_thread(self.reserve.make)
                is_logged = False
            except OSError as error:
                if not is_logged:
                    log.error("event=no-reserve path=%s error=%s", self.reserve.path, error)
                is_logged = True
            await asyncio.sleep(_MAINTAIN_S)

    def warnings(self) -> list[str]:
        """Return sentences for `drf doctor`."""
        found = [f"{each.text} ({each.cure})" for each in self.shortages()]
        try:
            if not self.reserve.is_whole():
                found.append(
                    f"{show_size(self.reserve.size_bytes())} of "
                    f"{show_size(self.reserve.wanted_bytes())} are left of {self.reserve.path}, "
                    "the room for the ends of jobs on a full disk; it is made again when there is "
                    "room"
                )
        except OSError as error:
            found.append(f"cannot look at the disk of {self._directory}: {error.strerror}")
        return found

    def _of_disk(self) -> list[ReserveShortage]:
        try:
            free, kept = free_bytes(self._directory), self.kept_disk_bytes()
        except OSError:
            # The next write reports the error.
            return []
        if free >= kept:
            return []
        text = (
            f"the disk of {self._directory} has {show_size(free)} free, and the last "
            f"{show_size(kept)} are kept for the ends of jobs"
        )
        cure = (
            f"delete files on the file system of {self._directory}, where the journal is; the "
            "administrator can lower reserve_disk under [limits]"
        )
        return [ReserveShortage(DISK, free, kept, text, "submissions and changes", cure)]

    def _of_memory(self) -> list[ReserveShortage]:
        given = self._limits().reserve_memory_bytes
        try:
            spare = self._memory()
        except (OSError, ValueError):
            return []
        for each in spare:
            kept = default_reserve_memory(each.total_bytes) if given is None else given
            kept = min(kept, each.total_bytes // _MEMORY_PART)
            if each.free_bytes < kept:
                text = (
                    f"{each.of} has {show_size(each.free_bytes)} of memory available, and the last "
                    f"{show_size(kept)} are kept for jobs that were accepted"
                )
                cure = "wait until something has ended; drf top and ps show what uses it"
                return [ReserveShortage(MEMORY, each.free_bytes, kept, text, "submissions", cure)]
        return []


def default_reserve_disk(total_bytes: int) -> int:
    """Return the reserve of a file system if none is configured: a twentieth, at least 64 MiB and
    at most 1 GiB, but never more than a quarter."""
    return min(max(64 << 20, min(1 << 30, total_bytes // 20)), total_bytes // 4)


def default_reserve_memory(total_bytes: int) -> int:
    """Return the reserve of memory if none is configured: a 64th, 256 MiB at most."""
    return min(256 << 20, total_bytes // 64)
