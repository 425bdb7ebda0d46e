"""Slurm's commands as child processes that the loop watches. Each has a time limit: while slurmctld
is away they would wait for minutes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

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


@dataclass(slots=True)
class _Call:
    pid: int
    pidfd: int
    due_mono_s: float
    output_fd: int
    complaint_fd: int
    on_answer: Callable[[Answer], None]
    is_late: bool = False


class Commands:
    """The commands that run."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        programs: Path,
        conf: Path | None,
        most_s: float,
    ) -> None:
        """`programs` is the directory of Slurm's commands, `conf` its configuration if that is not
        where they look for it, and `most_s` how long each may take."""
        self._selector = selector
        self.programs = programs
        self.conf = conf
        self._most_s = most_s
        self._calls: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

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
        output_fd, complaint_fd = os.memfd_create("output"), os.memfd_create("complaint")
        try:
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
        except OSError as error:
            os.close(output_fd)
            os.close(complaint_fd)
            on_answer(Answer(None, "", f"{words[0]} cannot be run: {error.strerror}"))
            return
        # Its end is waited for here.
        process.returncode = 0
        self.watch(process.pid, output_fd, complaint_fd, on_answer)

    def watch(
        self, pid: int, output_fd: int, complaint_fd: int, on_answer: Callable[[Answer], None]
    ) -> None:
        """Wait for a child that leads a session of its own, and take over the descriptors of files
        in memory that it writes to."""
        pidfd = os.pidfd_open(pid)
        due_mono_s = time.monotonic() + self._most_s
        self._calls[pid] = _Call(pid, pidfd, due_mono_s, output_fd, complaint_fd, on_answer)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(pid))

    def pause_s(self) -> float | None:
        dues = [call.due_mono_s for call in self._calls.values() if not call.is_late]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def run_due(self) -> None:
        """Kill what takes too long."""
        now = time.monotonic()
        for call in self._calls.values():
            if call.due_mono_s <= now and not call.is_late:
                call.is_late = True
                # Not its group: a user's process may not have made one yet.
                os.kill(call.pid, signal.SIGKILL)

    def _ended(self, pid: int) -> None:
        call = self._calls.pop(pid)
        self._selector.unregister(call.pidfd)
        os.close(call.pidfd)
        _, status = os.waitpid(pid, 0)
        code = None if call.is_late else os.waitstatus_to_exitcode(status)
        output, complaint = _taken(call.output_fd), _taken(call.complaint_fd)
        if call.is_late:
            complaint = f"Slurm has not answered within {self._most_s:g} s"
        call.on_answer(Answer(code, output, complaint))


def _taken(fd: int) -> str:
    """Return what was written to a file in memory, and close it."""
    try:
        parts, at = [], 0
        while at < _MOST_BYTES and (part := os.pread(fd, 1 << 20, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts).decode(errors="surrogateescape")
    finally:
        os.close(fd)
