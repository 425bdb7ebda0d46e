"""The limit of what a job may write to its output files.

Root cannot ask the kernel which files an ordinary process has open, without the right to look into
all processes. So the job's process sends its outputs to the runner before it becomes the user's
program, as descriptors of the path alone (O_PATH); the runner compares their sizes from then on.
Closing an ordinary descriptor would wait for the file system, which may be the user's own (FUSE).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable

from drfd.linux.sealed import receive
from drfd.linux.syscalls import known_status

#: Standard output and standard error.
_MOST_OUTPUTS = 2


def take_ready(report_fd: int) -> tuple[bytes, list[int]]:
    """Read the first byte of a process's report, and the outputs that come with it. Raises
    OSError."""
    with socket.socket(fileno=os.dup(report_fd)) as channel:
        ready, fds, _ = receive(channel, 1, _MOST_OUTPUTS)
    return ready, fds


class OutputLimit:
    """The output files of a running job, and how far each may grow."""

    def __init__(self, fds: Iterable[int], most_bytes: int) -> None:
        """Take the descriptors over. Only regular files are measured, each once. Raises OSError
        for a file that is hidden from root, as on a FUSE mount."""
        self.most_bytes = most_bytes
        #: Descriptor → size at the start of the job.
        self._before: dict[int, int] = {}
        seen = set()
        left = [*fds]
        try:
            while left:
                status = known_status(left[0])
                fd, file = left.pop(0), (status.device, status.inode)
                if not stat.S_ISREG(status.mode) or file in seen:
                    os.close(fd)
                    continue
                seen.add(file)
                self._before[fd] = status.size
        except OSError:
            for fd in left:
                os.close(fd)
            self.close()
            raise

    @property
    def sizes(self) -> dict[int, int]:
        """Descriptor → size at the start of the job."""
        return dict(self._before)

    def exceeded(self) -> int | None:
        """Return how many bytes the files have grown if that is more than allowed, or None. What
        others write into them counts, too."""
        grown = sum(max(0, _size(fd) - before) for fd, before in self._before.items())
        return grown if grown > self.most_bytes else None

    def close(self) -> None:
        for fd in self._before:
            os.close(fd)
        self._before.clear()


def _size(fd: int) -> int:
    try:
        # The runner must not wait for a file system that hangs: it would never record the end.
        return known_status(fd).size
    except OSError:
        # The file system is away.
        return 0
