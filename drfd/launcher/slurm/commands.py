"""Slurm's commands as child processes that the loop watches. Each has a time limit: while slurmctld
is away they would wait for minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from types import MappingProxyType

from drfd.launcher.system.background import BackgroundWork

#: Largest number of bytes of an answer that is read.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    #: None if it was killed because it took too long, or could not be begun.
    code: int | None
    output: str
    complaint: str

    @property
    def is_good(self) -> bool:
        return self.code == 0


class Commands:
    """The commands that run."""

    def __init__(
        self, background: BackgroundWork, *, programs: Path, conf: Path | None, most_s: float
    ) -> None:
        """`programs` is the directory of Slurm's commands, `conf` its configuration if that is not
        where they look for it, and `most_s` how long each may take."""
        self._background = background
        self.programs = programs
        self.conf = conf
        self._most_s = most_s
        #: pid → when it is killed, on the monotonic clock; infinite once it was.
        self._dues: dict[int, float] = {}

    @property
    def env(self) -> dict[str, str]:
        """The clean environment: users' variables change what the commands print."""
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        return env if self.conf is None else env | {"SLURM_CONF": str(self.conf)}

    def run(
        self,
        words: Sequence[str],
        on_answer: Callable[[Answer], None],
        *,
        stdin: int = subprocess.DEVNULL,
        fds: Sequence[int] = (),
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Run one of Slurm's commands, which gets these descriptors under their numbers, and these
        variables."""

        def begin(output_fd: int, complaint_fd: int) -> int:
            process = subprocess.Popen(
                [str(self.programs / words[0]), *words[1:]],
                env={**self.env, **env},
                cwd="/",
                stdin=stdin,
                pass_fds=fds,
                stdout=output_fd,
                stderr=complaint_fd,
                start_new_session=True,
            )
            # Its end is waited for by the loop.
            process.returncode = 0
            return process.pid

        try:
            self._begin(begin, on_answer)
        except OSError as error:
            on_answer(Answer(None, "", f"{words[0]} cannot be run: {error.strerror}"))

    def do(
        self, work: Callable[[int, int], object], on_answer: Callable[[Answer], None], *keep: int
    ) -> None:
        """Do `work` in a process, which keeps only the descriptors in `keep`, with those of its
        output and of its complaint. Raises OSError."""
        self._begin(
            lambda *fds: self._background.fork(partial(work, *fds), *fds, *keep, nice=0), on_answer
        )

    def pause_s(self) -> float | None:
        due = min(self._dues.values(), default=inf)
        return None if due == inf else max(0.0, due - time.monotonic())

    def run_due(self) -> None:
        """Kill what takes too long."""
        now = time.monotonic()
        for pid in [pid for pid, due in self._dues.items() if due <= now]:
            self._dues[pid] = inf
            # Not its group: a user's process may not have made one yet.
            os.kill(pid, signal.SIGKILL)

    def _begin(self, begin: Callable[[int, int], int], on_answer: Callable[[Answer], None]) -> None:
        """Begin a child by `begin`, which gets the descriptors of files in memory for what the
        child says and returns its pid. Raises OSError."""
        fds = os.memfd_create("output"), os.memfd_create("complaint")
        try:
            pid = begin(*fds)
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        self._dues[pid] = time.monotonic() + self._most_s
        self._background.watch(pid, partial(self._ended, pid, fds, on_answer))

    def _ended(
        self, pid: int, fds: tuple[int, int], on_answer: Callable[[Answer], None], status: int
    ) -> None:
        output, complaint = map(_taken, fds)
        code: int | None = os.waitstatus_to_exitcode(status)
        if self._dues.pop(pid) == inf:
            code, complaint = None, f"Slurm has not answered within {self._most_s:g} s"
        on_answer(Answer(code, output, complaint))


def _taken(fd: int) -> str:
    """Return what was written to a file in memory, and close it."""
    try:
        data = os.pread(fd, min(os.fstat(fd).st_size, _MOST_BYTES), 0)
        return data.decode(errors="surrogateescape")
    finally:
        os.close(fd)
