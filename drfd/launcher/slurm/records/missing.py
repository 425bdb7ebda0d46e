"""Attempts that Slurm's lists lack though they have begun, or may have: when it is known that they
have no process any more.

slurmctld forgets its last seconds when it is killed. A node goes on with a job until it registers
and hears that slurmctld does not know it. So the nodes are asked to register, and some seconds
after that the end of the attempt counts as unknown. The next launcher asks and waits again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.launcher.attempt_files import Key
from drfd.launcher.slurm.commands import Answer
from drfd.launcher.slurm.list_times import ListTimes

#: Seconds after that order in which all lists must lack an attempt before its end counts as
#: unknown: Slurm's MessageTimeout, by default. Within it the nodes have registered and ended what
#: slurmctld does not know, so that another attempt does not run beside it.
_FORGOTTEN_S = 10.0
#: Least seconds between two orders to Slurm's nodes to register.
_REGISTER_S = 5.0


@dataclass
class Missing:
    """The attempts that are missing, and since when."""

    times: ListTimes
    #: Asks all nodes to register, and calls its argument with Slurm's answer.
    register: Callable[[Callable[[Answer], None]], None]
    #: Since when each attempt was missing when all nodes were asked to register (monotonic clock).
    _since: dict[Key, float] = field(default_factory=dict)
    #: Those of them for which Slurm has not confirmed that it has asked the nodes.
    _unregistered: set[Key] = field(default_factory=set)
    #: The list at which all nodes were asked to register, and when they may be asked again.
    _registering: int = -1
    _register_due_mono_s: float = 0.0

    def is_gone(self, key: Key) -> bool:
        """Return whether no node can have a process any more of this attempt, which the present
        list lacks. If not, a list is asked for when that may be so."""
        now = time.monotonic()
        if key not in self._since:
            if not self._have_registered(now):
                return False
            self._since[key] = now
            self._unregistered.add(key)
        if now - self._since[key] < _FORGOTTEN_S:
            self.times.schedule(_FORGOTTEN_S)
            return False
        return True

    def forget(self, key: Key) -> None:
        """Take an attempt for missing no longer: it was found, or its end is known."""
        self._since.pop(key, None)
        self._unregistered.discard(key)

    def _have_registered(self, now: float) -> bool:
        """Return whether all nodes are asked to register since the last list was asked for. That
        ends the jobs that slurmctld does not know. It reads its configuration again then, and
        refuses some requests meanwhile: so they are asked rarely."""
        if self._registering == self.times.count:
            return True
        if now < self._register_due_mono_s:
            self.times.schedule(self._register_due_mono_s - now)
            return False
        self._registering, self._register_due_mono_s = self.times.count, now + _REGISTER_S
        self.register(self._take_register_answer)
        return True

    def _take_register_answer(self, answer: Answer) -> None:
        # Where Slurm refuses it, the waits begin again.
        for key in () if answer.is_good else self._unregistered:
            self._since.pop(key, None)
        self._unregistered.clear()
