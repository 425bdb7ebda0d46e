"""When all jobs were told to end: the unit that holds them was stopped, as the machine shut down.

How a job ended after that says nothing of the job: one that was cut short may well have exited 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drfd.launcher.attempts import Attempt

#: Written by drfd-jobs.service when it is stopped: the boot's id, and the time in seconds.
FILE_NAME = "jobs-stopped"


@dataclass(frozen=True, slots=True)
class Cut:
    boot_id: str
    at_s: float

    def fell_on(self, attempt: Attempt) -> bool:
        """Did the attempt live at that time?"""
        created, ended = attempt.created, attempt.ended
        # Of what another version has not written, the more careful is supposed: that it lived.
        if created.get("boot_id") != self.boot_id or created.get("at_s", 0.0) > self.at_s:
            return False
        return ended is None or ended.get("at_s", self.at_s) >= self.at_s


def read_cut(room: Path) -> Cut | None:
    """The latest one; None: there was none, or the machine went down before it could be told."""
    try:
        boot_id, at_s = (room / FILE_NAME).read_text().split()
        return Cut(boot_id, float(at_s))
    except (FileNotFoundError, ValueError):
        return None
