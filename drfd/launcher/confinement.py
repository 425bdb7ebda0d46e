"""How a job is kept within its limits: one interface, one class for each kind of machine.

Every method may be repeated, and finds nothing to do when its work is done.
"""

from __future__ import annotations

from typing import Protocol

from drfd.failpoints import reach
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.counters import Counted
from drfd.launcher.protocol import Limits


class LimitFailed(Exception):
    """A limit could not be applied: the job must not start. Says which and why."""


def reach_before_limits() -> None:
    """Called by `create` when there is a place and no limit yet."""
    reach("launch.before-limits")


class PlaceGone(Exception):
    """The directory of all job cgroups has vanished: the launcher must begin anew."""


class Confinement(Protocol):
    #: "cgroup-v2", "cgroup-v1" or "none".
    kind: str
    #: Whether the runner of one attempt may be given another after it: nothing of an attempt is
    #: found by its runner then, nor kept in the memory of the process that called `create`.
    keeps_runners: bool

    def controls(self) -> dict[str, str]:
        """resource → "enforced", "measured" or "not controlled", with a reason after a colon.
        A limit of what is enforced is applied or the job does not start; what is measured is
        judged by the controller."""

    def cores(self) -> dict[str, str]:
        """The same of cores alone, for each of CORES_MODES; `controls` has it of quotas."""

    def mounts(self) -> dict[str, str]:
        """controller → directory below which `cgroup_path` lies; empty without cgroups."""

    def cgroup_path(self, key: Key) -> str | None:
        """The attempt's cgroup below each controller."""

    def adopt(self, key: Key, attempt: Attempt | None) -> None:
        """Called at the start, for each attempt that an earlier launcher has left."""

    def create(self, key: Key, limits: Limits) -> None:
        """Make a fresh place with all limits set and read back. Raises LimitFailed, PlaceGone."""

    def enter(self, key: Key, limits: Limits, uid: int, pid: int) -> None:
        """Put a process in there that is about to become `uid` and has done nothing yet; 0: the
        calling one. Raises LimitFailed, OSError."""

    def oom_descriptor(self, key: Key) -> int | None:
        """Readable when the kernel has killed for memory in there and the rest must follow."""

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        """(something was killed for memory, and because of the job's own limit)."""

    def counted(self, key: Key) -> Counted:
        """What the kernel has counted of it so far."""

    def signal(self, key: Key, attempt: Attempt | None, number: int) -> None:
        """Send a signal to every process of the attempt, and thaw them if they were frozen."""

    def freeze(self, key: Key, attempt: Attempt | None) -> bool:
        """Let no process of the attempt run; True once none does. Frozen, they can be killed."""

    def thaw(self, key: Key, attempt: Attempt | None) -> None:
        """Undo `freeze`."""

    def kill_pass(self, key: Key, attempt: Attempt | None) -> bool:
        """SIGKILL to every process of the attempt; True once none is left."""

    def remove(self, key: Key) -> bool:
        """Remove what `create` made; False when it is still in use."""

    def leftovers(self) -> list[Key]:
        """Attempts for which something exists that `remove` would take away."""

    def close(self) -> None:
        """The launcher ends; jobs may live on."""
