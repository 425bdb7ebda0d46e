"""What Slurm's event script has noted of the starts of attempts.

The directory holds two symbolic links for each attempt that Slurm has started: the name of one is
the attempt's, its target the id of Slurm's job; the other has them exchanged. Another link, with
the attempt's name, a dot and the id of a job of Slurm's, says that the script has refused to start
that (`drfd.slurm.files`), and one with `.ended` how the attempt has ended. An attempt whose link
has the target `closed` never starts.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from drfd.common.units import is_number
from drfd.launcher.slurm.mapping import Name, read_name, read_parts
from drfd.linux.kernel_files import opened

#: Seconds for which the note of an attempt is kept that is not known any more. slurmctld forgets
#: some seconds of what it did; an old copy of its state may know less.
_KEEP_S = 24 * 3600.0
_CLOSED, _END_MARK = "closed", ".ended"
_END = re.compile(r"([A-Z_]+):([0-9]{1,3}:[0-9]{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class StartNotes:
    """The notes in one directory, which belongs to Slurm's user and this launcher's group."""

    directory: Path

    def first_start(self, name: Name) -> int | None:
        """Return the id of the job of Slurm's with which the attempt started; None if it was not
        noted."""
        target = self._target(self.directory / str(name))
        return int(target) if target is not None and is_number(target) else None

    def end(self, name: Name) -> tuple[str, int] | None:
        """Return the state in which the attempt has ended, and its status as wait(2) gives it; None
        if no end was noted."""
        target = self._target(self.directory / f"{name}{_END_MARK}")
        found = _END.fullmatch(target or "")
        status = None if found is None else read_parts(found[2])
        return None if found is None or status is None else (found[1], status)

    def close(self, name: Name) -> bool:
        """Have the script refuse all starts of an attempt from now on. Return whether that is so,
        and none has begun before. It is never so if the script has noted nothing at all, perhaps
        because Slurm does not run it."""
        path = self.directory / str(name)
        try:
            if not any(is_number(entry) or entry.endswith(_END_MARK) for entry in self._entries()):
                return False
            with self._opened() as fd:
                os.symlink(_CLOSED, str(name), dir_fd=fd)
                os.fsync(fd)
        except FileExistsError:
            return self._target(path) == _CLOSED
        except OSError:
            return False
        return True

    def is_refused(self, name: Name, slurm_id: int) -> bool:
        """Return whether the script has refused to start this job of Slurm's."""
        return (self.directory / f"{name}.{slurm_id}").is_symlink()

    def is_anothers(self, name: Name, slurm_id: int) -> bool:
        """Return whether another attempt has started under this id of Slurm's, which slurmctld has
        then given twice."""
        target = self._target(self.directory / str(slurm_id))
        return target is not None and target != str(name)

    def free_id(self, name: Name, slurm_id: int) -> None:
        """Let another job have the id of an attempt, of which its node has nothing any more."""
        path = self.directory / str(slurm_id)
        if self._target(path) == str(name):
            path.unlink(missing_ok=True)

    def forget_old(self, known: set[Name], now_s: float | None = None) -> None:
        """Remove the notes of attempts that are not known, when they are a day old."""
        oldest = (time.time() if now_s is None else now_s) - _KEEP_S
        for entry in self._entries():
            path = self.directory / entry
            about = (self._target(path) or "") if is_number(entry) else entry
            name = read_name(about) or read_name(about.rpartition(".")[0])
            with suppress(OSError):
                if name not in known and path.lstat().st_mtime < oldest:
                    path.unlink()

    def _opened(self) -> AbstractContextManager[int]:
        return opened(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def _target(self, path: Path) -> str | None:
        try:
            return os.readlink(path)
        except OSError:
            return None

    def _entries(self) -> Iterator[str]:
        with suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                yield entry.name
