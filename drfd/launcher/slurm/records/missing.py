"""Attempts that Slurm's lists lack though they have begun, or may have: when it is known that they
have no process any more.

slurmctld forgets its last seconds when it is killed. A node goes on with a job until it registers
and hears that slurmctld does not know it. So the nodes are told to register, and some seconds after
that the end of the attempt counts as unknown.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key
from drfd.launcher.slurm.commands import Answer
from drfd.launcher.slurm.list_times import ListTimes

log = logging.getLogger("drfd.launcher")

#: Seconds after that order in which all lists must lack an attempt before its end counts as
#: unknown: Slurm's MessageTimeout, by default. Within it the nodes have registered and ended what
#: slurmctld does not know, so that another attempt does not run beside it.
_FORGOTTEN_S = 10.0
#: Least seconds between two orders to Slurm's nodes to register.
_REGISTER_S = 5.0
#: The file with the missing attempts, and since when.
_FILE = "missing"


@dataclass
class Missing:
    """The attempts that are missing, and since when."""

    #: Directory of the file that outlives the launcher.
    state: Path
    boot_id: str
    times: ListTimes
    #: Tells all nodes to register, and calls its argument with Slurm's answer.
    register: Callable[[Callable[[Answer], None]], None]
    #: Since when each attempt was missing when all nodes were told to register (monotonic clock).
    _since: dict[Key, float] = field(default_factory=dict)
    #: Those of them for which Slurm has not answered yet that it has told the nodes.
    _unregistered: set[Key] = field(default_factory=set)
    #: The list at which all nodes were told to register, and when they may be told again.
    _registering: int = -1
    _register_due_mono_s: float = 0.0

    def load(self, known: Iterable[Key]) -> None:
        """Take over what an earlier launcher has left, of the attempts that are known."""
        try:
            said = json.loads((self.state / _FILE).read_text())
            if said["boot_id"] != self.boot_id:
                return
            since = {str(name): float(at) for name, at in said["since"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        names = {attempt_files.file_name(key): key for key in known}
        self._since = {names[name]: at for name, at in since.items() if name in names}

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
            self.times.hurry(_FORGOTTEN_S)
            return False
        return True

    def forget(self, key: Key) -> None:
        """Take an attempt for missing no longer: it was found, or its end is known."""
        if self._since.pop(key, None) is not None:
            self._unregistered.discard(key)
            self._write()

    def _have_registered(self, now: float) -> bool:
        """Return whether all nodes are told to register since the present list was asked for, which
        ends the jobs that slurmctld does not know. It reads its configuration again then, and
        refuses some requests meanwhile: so they are told rarely."""
        if self._registering == self.times.count:
            return True
        if now < self._register_due_mono_s:
            self.times.hurry(self._register_due_mono_s - now)
            return False
        self._registering, self._register_due_mono_s = self.times.count, now + _REGISTER_S
        self.register(self._told_to_register)
        return True

    def _told_to_register(self, answer: Answer) -> None:
        if answer.is_good:
            self._unregistered.clear()
            self._write()
            return
        # The waits begin again.
        for key in self._unregistered:
            self._since.pop(key, None)
        self._unregistered.clear()

    def _write(self) -> None:
        """Keep what is missing for the next launcher, should this one die: it waits only for what
        is left of the time. After a start of this machine the file says nothing."""
        since = {
            attempt_files.file_name(key): at
            for key, at in self._since.items()
            if key not in self._unregistered
        }
        new = self.state / f"{_FILE}.new"
        try:
            new.write_text(json.dumps({"boot_id": self.boot_id, "since": since}))
            new.rename(self.state / _FILE)
        except OSError as error:
            log.warning("event=missing-not-written error=%s", error.strerror)
