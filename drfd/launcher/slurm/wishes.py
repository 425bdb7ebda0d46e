"""What the controller wants of attempts, until it is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from drfd.launcher import protocol
from drfd.launcher.slurm.control import Control
from drfd.launcher.slurm.mapping import SlurmJob

#: Seconds between two tries to bring something about.
AGAIN_S = 2.0


@dataclass(slots=True)
class Wish:
    """What the controller wants of an attempt."""

    #: It is acted on with a list that was asked for later than this one.
    after_list: int
    terminate: bool = False
    kill: bool = False
    remove: bool = False
    freeze: bool = False
    thaw: bool = False
    #: When the next try is due, and how many there were.
    _due_mono_s: float = 0.0
    _tries: int = 0

    @property
    def is_fulfilled(self) -> bool:
        return not (self.terminate or self.kill or self.remove or self.freeze or self.thaw)

    @property
    def is_end(self) -> bool:
        """Whether the attempt is to end."""
        return self.terminate or self.kill

    def add(self, name: str, after_list: int) -> None:
        """Take an order of the protocol, which came after this list was asked for."""
        self.after_list, self._due_mono_s = after_list, 0.0
        match name:
            case protocol.TERMINATE:
                self.terminate, self.freeze = True, False
            case protocol.KILL:
                self.kill = True
            case protocol.REMOVE:
                self.remove = True
            case protocol.FREEZE:
                self.freeze, self.thaw = True, False
            case protocol.THAW:
                self.freeze, self.thaw = False, True

    def see_over(self) -> None:
        """Nothing but the removal is left to be wanted of an attempt that is over."""
        self.terminate = self.kill = self.freeze = self.thaw = False

    def pursue(self, job: SlurmJob, control: Control, on_frozen: Callable[[], None]) -> None:
        """Do the next thing with its job in Slurm, which a list has shown and which is not over."""
        if job.state == "COMPLETING":
            return
        if self.kill or self.remove:
            if self._is_due():
                control.end([job], is_forced=self._tries % 2 == 1)
        elif self.terminate:
            control.terminate(job)
            self.terminate = False
        elif self.freeze:
            if job.state == "SUSPENDED":
                self.freeze = False
                on_frozen()
            elif job.state == "RUNNING" and self._is_due():
                control.suspend(job)
        elif self.thaw:
            if job.state == "RUNNING":
                self.thaw = False
            elif job.state == "SUSPENDED" and self._is_due():
                control.resume(job)

    def _is_due(self) -> bool:
        """Return whether it is time for another try, and count it."""
        now = time.monotonic()
        if now < self._due_mono_s:
            return False
        self._tries += 1
        self._due_mono_s = now + AGAIN_S
        return True
