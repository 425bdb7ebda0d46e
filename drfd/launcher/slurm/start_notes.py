"""What Slurm's event script has noted of the starts of attempts.

The directory holds a symbolic link for each attempt that Slurm has started: its name is the
attempt's, its target the id of Slurm's job. Another link, with that name, a dot and the id of a job
of Slurm's, says that the script has refused a further start (`drfd.slurm.files`).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drfd.launcher.slurm.mapping import Name, read_name

#: Seconds for which the note of an attempt is kept that is not known any more. slurmctld forgets
#: some seconds of what it did; an old copy of its state may know less.
_KEEP_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class StartNotes:
    """The notes in one directory, which belongs to Slurm's user."""

    directory: Path

    def prepare(self, uid: int) -> None:
        """Make the directory for Slurm's user. Raises OSError."""
        self.directory.mkdir(mode=0o755, exist_ok=True)
        if os.getuid() == 0:
            os.chown(self.directory, uid, -1)

    def first_start(self, name: Name) -> int | None:
        """Return the id of the job of Slurm's with which the attempt started; None if it was not
        noted."""
        try:
            target = os.readlink(self.directory / str(name))
        except OSError:
            return None
        return int(target) if target.isascii() and target.isdigit() else None

    def is_refused(self, name: Name, slurm_id: int) -> bool:
        """Return whether this job of Slurm's was refused as a further start of the attempt."""
        return (self.directory / f"{name}.{slurm_id}").is_symlink()

    def is_anothers(self, name: Name, slurm_id: int) -> bool:
        """Return whether another attempt has started under this id of Slurm's, which slurmctld has
        then given twice."""
        for entry in self._entries():
            noted = read_name(entry)
            if noted is not None and noted != name and self.first_start(noted) == slurm_id:
                return True
        return False

    def forget_old(self, known: set[Name], now_s: float | None = None) -> None:
        """Remove the notes of attempts that are not known, when they are a day old."""
        oldest = (time.time() if now_s is None else now_s) - _KEEP_S
        for entry in self._entries():
            name = read_name(entry) or read_name(entry.rpartition(".")[0])
            path = self.directory / entry
            with suppress(OSError):
                if name not in known and path.lstat().st_mtime < oldest:
                    path.unlink()

    def _entries(self) -> list[str]:
        try:
            return os.listdir(self.directory)
        except OSError:
            return []
