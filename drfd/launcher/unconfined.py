"""No cgroup can be had: processes are found by descent, limits are measured, not enforced.

The runner is a subreaper, so all that a job forks stays below it, sessions and double forks
included. If the runner itself is killed, what is left is found by its session: that of the job's
first process, or, when this has ended too, one whose members carry the job's variables, because its
number may have been given to somebody else. A job that has taken those away is left alone then.
"""

from __future__ import annotations

import resource
import time
from itertools import count
from signal import SIGCONT, SIGKILL, SIGSTOP

from drfd.launcher import affinity, process
from drfd.launcher.affinity import Affinity
from drfd.launcher.attempts import Attempt, Key, Record
from drfd.launcher.counters import Counted
from drfd.launcher.protocol import QUOTA, Limits

#: More rounds than any listing needs that does not race with a fork bomb.
_STOP_ROUNDS = 100
#: How long one call insists on a proof that all stand still; and how many walks it makes at the
#: least, which may take longer: to stop them, to see who has died of it, and to see nothing new.
_FREEZE_WAIT_S, _FREEZE_WALKS = 0.05, 3
#: How often the runner's children are looked at between two walks.
_CHASE_ROUNDS = 10


class Unconfined:
    kind = "none"
    #: Its descendants are the job.
    keeps_runners = False

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

    def enter(self, key: Key, limits: Limits, uid: int, pid: int) -> None:
        self._affinity.keep(key, pid)
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        wanted = process.count_of_user(uid) + limits.pids
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (wanted, wanted))

    def oom_descriptor(self, key: Key) -> int | None:
        return None

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        return False, False

    def counted(self, key: Key) -> Counted:
        return {}

    def signal(self, key: Key, attempt: Attempt | None, number: int) -> None:
        process.signal_all(_members(key, attempt), number)

    def freeze(self, key: Key, attempt: Attempt | None) -> bool:
        """A process that forks and ends at once is not seen by a walk, nor is its child; but it has
        to be reaped. So all stand still once a walk has found nobody but stopped processes, and
        dead ones that an earlier walk has found dead, and the runner has slept all the while.

        Who has begun a child by vfork(2), as shells do, cannot be interrupted before it has become
        its program: told to stop, it is as good as stopped while that child is. A thread that waits
        for another one's memory map before it forks looks the same for a moment, so two walks have
        to find the same, with nobody awake in between."""
        runner = _runner(attempt)
        if runner is None:
            return not self._stop(key, attempt)
        known_dead: set[int] = set()
        told: set[int] = set()
        seen: object = None
        deadline = time.monotonic() + _FREEZE_WAIT_S
        for walk in count(1):
            before = process.rest(runner)
            family = process.family(runner)
            dead = {pid for pid, one in family.items() if one.state in "ZX"}
            held = {one.parent for one in family.values() if one.state in "TtD"}
            waiting = {pid for pid in held & told if family[pid].state == "D"}
            moving = {pid for pid, one in family.items() if one.state not in "TtZX"} - waiting
            earlier, seen = seen, (set(family), {pid: process.rest(pid) for pid in waiting})
            is_quiet = before is not None and process.rest(runner) == before
            is_proven = not waiting or (seen == earlier and None not in seen[1].values())
            if is_quiet and is_proven and not moving and dead <= known_dead:
                return True
            if walk >= _FREEZE_WALKS and time.monotonic() > deadline:
                break
            process.signal_all(moving, SIGSTOP)
            process.signal_threads(moving & told, SIGSTOP)
            told |= moving
            known_dead = dead
            _chase(runner)
        return False

    def thaw(self, key: Key, attempt: Attempt | None) -> None:
        process.signal_all(_members(key, attempt), SIGCONT)

    def kill_pass(self, key: Key, attempt: Attempt | None) -> bool:
        stopped = self._stop(key, attempt)
        process.signal_all(stopped, SIGKILL)
        return not stopped

    def remove(self, key: Key) -> bool:
        self._affinity.forget(key)
        return True

    def leftovers(self) -> list[Key]:
        return []

    def close(self) -> None:
        pass

    def _stop(self, key: Key, attempt: Attempt | None) -> set[int]:
        """Stopped processes cannot fork: so that a job that forks cannot outrun the walk, all are
        stopped, over and over until no new one turns up."""
        runner = _runner(attempt)
        if runner is not None:
            _chase(runner)
        stopped: set[int] = set()
        for _ in range(_STOP_ROUNDS):
            new = set(_members(key, attempt)) - stopped
            if not new:
                break
            process.signal_all(new, SIGSTOP)
            stopped |= new
        return stopped


def _members(key: Key, attempt: Attempt | None) -> list[int]:
    """The living processes of the attempt."""
    runner = _runner(attempt)
    if runner is not None:
        return process.descendants(runner)
    if attempt is None or attempt.running is None or not _is_of_this_boot(attempt):
        return []
    return _session(key, attempt.created["uid"], attempt.running)


def _runner(attempt: Attempt | None) -> int | None:
    """The runner's pid, if it lives."""
    if attempt is None or attempt.runner is None or not _is_of_this_boot(attempt):
        return None
    pid: int = attempt.runner["pid"]
    return pid if process.start_ticks(pid) == attempt.runner["start_ticks"] else None


def _chase(runner: int) -> None:
    """Stop those who fork and end faster than a walk: all that such a process leaves behind is its
    successor, a child of the runner's by then, and in the same group."""
    own_group = process.group_of(runner)
    for _ in range(_CHASE_ROUNDS):
        for pid in process.children(runner):
            group = process.group_of(pid)
            if group is not None and group != own_group:
                process.signal_all([-group], SIGSTOP)


def _is_of_this_boot(attempt: Attempt) -> bool:
    """Or may be, by a damaged record; then the start times of its processes must tell."""
    return attempt.created["boot_id"] in (None, process.boot_id())


def _session(key: Key, uid: int, running: Record) -> list[int]:
    """What is left of a job's session. While it has members, its number is not given to a new
    process; a leader that started at another time says that it has been. Without a leader its
    members tell: they have the variables of whoever began the session, unless they changed them."""
    leader = running["pid"]
    started = process.start_ticks(leader)
    members = process.session_members(leader)
    if started is not None:
        return members if started == running["start_ticks"] else []
    mine = {"DRF_JOB_ID": str(key[0]), "DRF_ATTEMPT": str(key[1])}
    is_mine = any(process.has_in_environment(pid, uid, mine) for pid in members)
    return members if is_mine else []
