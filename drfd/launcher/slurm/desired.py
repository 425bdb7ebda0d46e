"""The desired state of an attempt: what the controller has ordered, until a list shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from drfd.launcher import protocol
from drfd.launcher.slurm.commands import Commands
from drfd.launcher.slurm.mapping import SlurmJob
from drfd.launcher.slurm_root.requests import END, RESUME, SIGNAL, SUSPEND

#: Seconds between two tries to bring something about.
AGAIN_S = 2.0
_TERM = 15


#: The orders that end an attempt, each of which includes the one before.
_ENDS = (protocol.TERMINATE, protocol.KILL, protocol.REMOVE)


@dataclass(slots=True)
class Desired:
    """The orders for an attempt that are not carried out yet."""

    #: It is acted on with a list that was asked for later than this one.
    after_list: int
    #: One of `_ENDS`, and whether its processes are to stand still; None if neither is wanted.
    end: str | None = None
    frozen: bool | None = None
    #: When the next try is due, and how many there were.
    _due_mono_s: float = 0.0
    _tries: int = 0

    @property
    def is_reached(self) -> bool:
        return self.end is None and self.frozen is None

    @property
    def remove(self) -> bool:
        return self.end == protocol.REMOVE

    def add(self, name: str, after_list: int) -> None:
        """Take an order of the protocol, which came after this list was asked for."""
        self.after_list, self._due_mono_s = after_list, 0.0
        if name not in _ENDS:
            self.frozen = name == protocol.FREEZE
            return
        self.end = max(self.end or name, name, key=_ENDS.index)
        if self.frozen:
            self.frozen = None

    def keep_removal_only(self) -> None:
        """Nothing but the removal is left to be wanted of an attempt that is over."""
        self.end, self.frozen = self.end if self.remove else None, None

    def pursue(self, job: SlurmJob, commands: Commands, on_frozen: Callable[[], None]) -> None:
        """Do the next thing with its job in Slurm, which a list has shown and which is not over."""
        if job.state == "COMPLETING":
            return
        if self.end == protocol.TERMINATE:
            if job.has_started:
                commands.act(SIGNAL, job, _TERM)
            else:
                commands.act(END, job)
            self.end = None
        elif self.end is not None:
            if self._is_due():
                # By SIGKILL and by cancelling in turn.
                commands.end(job) if self._tries % 2 == 1 else commands.act(END, job)
        elif job.state == ("SUSPENDED" if self.frozen else "RUNNING"):
            if self.frozen:
                on_frozen()
            self.frozen = None
        elif job.state in ("RUNNING", "SUSPENDED") and self._is_due():
            commands.act(SUSPEND if self.frozen else RESUME, job)

    def _is_due(self) -> bool:
        """Return whether it is time for another try, and count it."""
        now = time.monotonic()
        if now < self._due_mono_s:
            return False
        self._tries += 1
        self._due_mono_s = now + AGAIN_S
        return True
