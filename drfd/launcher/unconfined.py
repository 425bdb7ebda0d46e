"""No cgroup can be had: processes are found by descent, limits are measured, not enforced.

The runner is a subreaper, so all that a job forks stays below it, sessions and double forks
included. If the runner itself is killed, what is left is found by its session.
"""

from __future__ import annotations

import os
import resource
from signal import SIGKILL

from drfd.launcher import process
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.protocol import Limits


class Unconfined:
    kind = "none"

    def __init__(self, why: str) -> None:
        #: Why there are no cgroups, for people.
        self._why = why
        self._next_cpu = 0

    def controls(self) -> dict[str, str]:
        return {
            "cores": f"measured: kept on as many CPUs as it declares, rounded up; {self._why}",
            "memory": f"measured: stopped when seen over its limit twice; {self._why}",
            "read": f"measured: stopped when far over for long; {self._why}",
            "write": f"measured: stopped when far over for long; {self._why}",
            "processes": "enforced: RLIMIT_NPROC above what the user runs already",
        }

    def mounts(self) -> dict[str, str]:
        return {}

    def cgroup_path(self, key: Key) -> str | None:
        return None

    def create(self, key: Key, limits: Limits) -> None:
        # Neighbouring jobs start on different CPUs.
        self._next_cpu += -(-limits.cores_milli // 1000)

    def enter(self, key: Key, limits: Limits) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        count = min(-(-limits.cores_milli // 1000), len(cpus))
        first = (self._next_cpu - count) % len(cpus)
        os.sched_setaffinity(0, {cpus[(first + i) % len(cpus)] for i in range(count)})
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        wanted = process.count_of_user(os.getuid()) + limits.pids
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted, wanted))

    def oom_descriptor(self, key: Key) -> int | None:
        return None

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        return False, False

    def signal(self, key: Key, attempt: Attempt | None, number: int) -> None:
        process.signal_all(self._members(attempt), number)

    def kill_pass(self, key: Key, attempt: Attempt | None) -> bool:
        members = self._members(attempt)
        process.signal_all(members, SIGKILL)
        return not members

    def remove(self, key: Key) -> bool:
        return True

    def leftovers(self) -> list[Key]:
        return []

    def close(self) -> None:
        pass

    def _members(self, attempt: Attempt | None) -> list[int]:
        if attempt is None or attempt.runner is None:
            return []
        if attempt.created["boot_id"] != process.boot_id():
            return []
        runner = attempt.runner["pid"]
        if process.start_ticks(runner) == attempt.runner["start_ticks"]:
            return process.descendants(runner)
        return [] if attempt.running is None else process.session_members(attempt.running["pid"])
