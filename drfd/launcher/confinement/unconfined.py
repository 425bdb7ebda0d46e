"""Confinement without cgroups, as far as it goes: limits are measured, not enforced.

Processes are found by descent. The runner is a subreaper, so all of a job stay below it, including
those with sessions of their own and those forked twice. If the runner itself is killed, only the
session of the job's first process is found, as long as that lives.
"""

from __future__ import annotations

import resource
from functools import partial
from signal import SIGCONT, SIGKILL, SIGSTOP

from drfd.common.signals import number_of, reached
from drfd.launcher.attempt_files import Key, Records
from drfd.launcher.confinement.cores import Affinity, affinity_controls
from drfd.launcher.confinement.interface import (
    Confinement,
    LimitFailed,
    Prepared,
    ProcessLimits,
)
from drfd.launcher.confinement.processes import first_process, is_of_this_boot, living_runner
from drfd.launcher.protocol import QUOTA, AttemptLimits, Devices
from drfd.launcher.system import process

#: Largest number of listings in one stop; without a fork bomb far fewer suffice.
_STOP_ROUNDS = 100


class Unconfined(Confinement):
    kind = "none"

    def __init__(self, why: str) -> None:
        #: Why there are no cgroups, for people.
        self._why = why
        self._affinity = Affinity()

    def controls(self) -> dict[str, str]:
        return {
            "cores": self.cores()[QUOTA],
            "memory": f"measured: stopped when seen over its limit twice; {self._why}",
            "read": f"measured: stopped when far over for long; {self._why}",
            "write": f"measured: stopped when far over for long; {self._why}",
            "processes": "enforced: RLIMIT_NPROC above what the user runs already",
        }

    def cores(self) -> dict[str, str]:
        return affinity_controls(self._why)

    def hiding(self) -> tuple[bool, str]:
        return False, f"devices cannot be hidden from jobs: {self._why}"

    def create(
        self, key: Key, limits: AttemptLimits, devices: Devices, is_made: bool = False
    ) -> Prepared:
        if devices.hidden:
            raise LimitFailed(self.hiding()[1])
        self._affinity.choose(key, limits)
        return Prepared()

    def process_limits(self, key: Key, limits: AttemptLimits, uid: int) -> ProcessLimits:
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        wanted = process.count_of_user(uid) + limits.pids
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        return ProcessLimits(self._affinity.cpus(key), wanted)

    def signal(self, key: Key, attempt: Records | None, *numbers: int) -> None:
        listed = partial(_members, attempt)
        for number in numbers:
            pids = reached(listed(), number, first_process(attempt))
            process.signal_those(pids, listed, number_of(number))

    def freeze(self, key: Key, attempt: Records | None) -> bool:
        """Stop the processes that are found. This is best effort: one that forks and ends all the
        time may go on, and so does one that waits in vfork(2)."""
        self._stop(key, attempt)
        return True

    def thaw(self, key: Key, attempt: Records | None) -> None:
        listed = partial(_members, attempt)
        process.signal_those(listed(), listed, SIGCONT)

    def members(self, key: Key, attempt: Records | None) -> list[int]:
        return _members(attempt)

    def kill_pass(self, key: Key, attempt: Records | None) -> bool:
        stopped = self._stop(key, attempt)
        process.signal_those(stopped, partial(_members, attempt), SIGKILL)
        return not stopped

    def remove(self, key: Key) -> bool:
        self.forget(key)
        return True

    def forget(self, key: Key) -> None:
        self._affinity.forget(key)

    def _stop(self, key: Key, attempt: Records | None) -> set[int]:
        """Stop all processes, repeatedly until no new one appears, and return their pids. Stopped
        processes cannot fork, so a job that forks cannot outrun this."""
        stopped: set[int] = set()
        for _ in range(_STOP_ROUNDS):
            new = set(_members(attempt)) - stopped
            if not new:
                break
            process.signal_those(new, partial(_members, attempt), SIGSTOP)
            stopped |= new
        return stopped


def _members(attempt: Records | None) -> list[int]:
    """Return the living processes of the attempt: those below its runner, or, if that was killed,
    those of the job's session as long as its first process lives, which keeps its number."""
    runner = living_runner(attempt)
    if runner is not None:
        return process.descendants(runner)
    if attempt is None or attempt.launched is None or not is_of_this_boot(attempt):
        return []
    first, ticks = attempt.launched["pid"], attempt.launched["start_ticks"]
    return process.session_members(first) if process.start_ticks(first) == ticks else []
