"""No cgroup can be had: processes are found by descent, limits are measured, not enforced.

The runner is a subreaper, so all that a job forks stays below it, sessions and double forks
included. If the runner itself is killed, what is left is found by its session.
"""

from __future__ import annotations

import resource
from signal import SIGCONT, SIGKILL, SIGSTOP

from drfd.launcher import affinity, process
from drfd.launcher.affinity import Affinity
from drfd.launcher.attempts import Attempt, Key, Record
from drfd.launcher.counters import Counted
from drfd.launcher.protocol import QUOTA, Limits

#: More rounds than any listing needs that does not race with a fork bomb.
_STOP_ROUNDS = 100


class Unconfined:
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
        return affinity.controls(self._why)

    def mounts(self) -> dict[str, str]:
        return {}

    def cgroup_path(self, key: Key) -> str | None:
        return None

    def adopt(self, key: Key, attempt: Attempt | None) -> None:
        self._affinity.adopt(key, attempt)

    def create(self, key: Key, limits: Limits) -> None:
        self._affinity.choose(key, limits)

    def enter(self, key: Key, limits: Limits, uid: int) -> None:
        self._affinity.keep(key)
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        wanted = process.count_of_user(uid) + limits.pids
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted, wanted))

    def oom_descriptor(self, key: Key) -> int | None:
        return None

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        return False, False

    def counted(self, key: Key) -> Counted:
        return {}

    def signal(self, key: Key, attempt: Attempt | None, number: int) -> None:
        process.signal_all(self._members(attempt), number)

    def freeze(self, key: Key, attempt: Attempt | None) -> bool:
        self._stop(attempt)
        return True

    def thaw(self, key: Key, attempt: Attempt | None) -> None:
        process.signal_all(self._members(attempt), SIGCONT)

    def kill_pass(self, key: Key, attempt: Attempt | None) -> bool:
        stopped = self._stop(attempt)
        process.signal_all(stopped, SIGKILL)
        return not stopped

    def remove(self, key: Key) -> bool:
        self._affinity.forget(key)
        return True

    def leftovers(self) -> list[Key]:
        return []

    def close(self) -> None:
        pass

    def _stop(self, attempt: Attempt | None) -> set[int]:
        """Stopped processes cannot fork: so that a job that forks cannot outrun the walk, all are
        stopped, over and over until no new one turns up."""
        stopped: set[int] = set()
        for _ in range(_STOP_ROUNDS):
            new = set(self._members(attempt)) - stopped
            if not new:
                break
            process.signal_all(new, SIGSTOP)
            stopped |= new
        return stopped

    def _members(self, attempt: Attempt | None) -> list[int]:
        if attempt is None or attempt.runner is None:
            return []
        if attempt.created["boot_id"] != process.boot_id():
            return []
        runner = attempt.runner["pid"]
        if process.start_ticks(runner) == attempt.runner["start_ticks"]:
            return process.descendants(runner)
        return [] if attempt.running is None else _session(attempt.running)


def _session(running: Record) -> list[int]:
    """What is left of a job's session. While it has members, its number is not given to a new
    process; a leader that started at another time says that it has been."""
    leader = running["pid"]
    if process.start_ticks(leader) not in (None, running["start_ticks"]):
        return []
    return process.session_members(leader)
