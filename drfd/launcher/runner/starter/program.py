"""The compiled program that begins jobs' processes (starter.c): its choice, and its start."""

from __future__ import annotations

import os
import select
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.starter import plan
from drfd.launcher.runner.starter.sources import PROGRAM, fingerprint
from drfd.launcher.system import process
from drfd.linux import syscalls
from drfd.linux.syscalls import Capabilities

#: The program writes its id as an int of C.
_PID_BYTES = 4
#: Seconds that its process in a cgroup may take to write it: in a frozen cgroup it never does.
_TELL_S = 120.0
_ANSWER_BYTES = 200


class Unusable(Exception):
    """The compiled program cannot be used, so no job can be started; the text says why."""


@dataclass
class Starter:
    """Starts jobs' processes by the program that is open as `program_fd`."""

    program_fd: int
    #: Whether the program can refuse itself system calls here (`wait.h`).
    is_filtered: bool = True
    _capabilities: Capabilities | None = field(default=None, init=False)

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self.program_fd}"

    def read_capabilities(self) -> None:
        """Take note of this runner's capabilities, which all its jobs begin with."""
        # An exec as root gives the program all capabilities; it goes back to these.
        self._capabilities = syscalls.capabilities()

    def start(self, job: JobStart) -> int:
        """Start the process of a job or of a notification, close its ends of the pipes, and return
        its pid, unless nobody reads that. Raises LimitFailed, OSError."""
        assert self._capabilities is not None
        confinement, order = job.confinement, job.assignment.order
        entrance = confinement.entrance(job.key, order.limits, order.uid)
        data = plan.encode(job, entrance, self._capabilities)
        if job.is_notice:
            # It is released at once.
            data += b"+"
        given = (job.entry_fd, job.report_fd, job.go_fd, job.assignment.payload_fd)
        for fd in given:
            os.set_inheritable(fd, True)
        argv = ["drfd-starter", *map(str, given)]
        # What fits into the empty pipe in any case is there before the program, which need not
        # wait for it.
        at = os.write(job.go_in, data[: select.PIPE_BUF])
        # This copies no page tables, whose pages would all have to be copied at the next touch.
        pid = os.posix_spawn(self._path, argv, {})
        # Else nothing would show here that the process has died.
        job.close_its_ends()
        try:
            # A signal may cut a write short.
            while at < len(data):
                at += os.write(job.go_in, data[at:])
        except BrokenPipeError:
            # It has died, as its report or its wait status shows.
            return pid
        is_first = entrance.cgroup is None or job.entry_out == -1
        return pid if is_first else self._successor(pid, job.entry_out)

    def execute(self, *words: str) -> NoReturn:
        """Execute the program in this process. Raises OSError."""
        os.execve(self._path, ["drfd-starter", *words], {})

    def _successor(self, first: int, entry_out: int) -> int:
        """Return the pid of the process in the cgroup that the program goes on as, and reap its
        first one. Returns `first` itself if there is none, as its report or its wait status shows.
        """
        ended = os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_code == os.CLD_EXITED and ended.si_status != 0:
            return first
        told = os.read(entry_out, _PID_BYTES) if process.is_readable(entry_out, _TELL_S) else b""
        if len(told) == _PID_BYTES:
            pid = int.from_bytes(told, sys.byteorder)
        else:
            # It was killed, for memory for instance, or is frozen. This runner has no other child.
            pid = next((one for one in process.children(os.getpid()) if one != first), first)
        if pid != first:
            os.waitpid(first, 0)
        return pid


def open_starter(program: Path = PROGRAM) -> Starter:
    """Return the starter for all jobs of this launcher. Raises Unusable unless it is there, nobody
    else could have written it, and it was compiled from the sources next to it."""
    try:
        fd = _opened(program)
        try:
            is_filtered = _insist_on_sources(fd)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise Unusable(f"{program} cannot be used: {error.strerror}") from None
    return Starter(fd, is_filtered)


def _opened(program: Path) -> int:
    """Open the program, checked with all directories above it. Raises Unusable, OSError."""
    path = os.path.realpath(program)
    for above in Path(path).parents:
        _insist_on_owner(str(above), os.stat(above))
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Unusable(f"{path} is missing: install drfd again") from None
    status = os.fstat(fd)
    try:
        if not stat.S_ISREG(status.st_mode):
            raise Unusable(f"{path} is no file")
        _insist_on_owner(path, status)
    except Unusable:
        os.close(fd)
        raise
    return fd


def _insist_on_owner(path: str, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.getuid()):
        raise Unusable(f"{path} belongs to uid {status.st_uid}, who could replace the program")
    # Files of others in a directory such as /tmp cannot be replaced.
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    # An ordinary user often has a group of one, and a umask that lets it write.
    others = 0o022 if os.getuid() == 0 else 0o002
    if status.st_mode & others and not is_sticky:
        raise Unusable(f"{path} can be written by others, who could replace the program")


def _insist_on_sources(fd: int) -> bool:
    """Return whether the program can filter its system calls. Raises Unusable unless it runs here
    and is of the present sources, and OSError."""
    answer_out, answer_in = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, answer_in, 1)]
        path = f"/proc/self/fd/{fd}"
        pid = os.posix_spawn(path, ["drfd-starter"], {}, file_actions=actions)
        os.close(answer_in)
        answer_in = -1
        answer = os.read(answer_out, _ANSWER_BYTES)
    finally:
        os.close(answer_out)
        if answer_in != -1:
            os.close(answer_in)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise Unusable("jobs are started by a program that needs a newer kernel (Linux 5.11)")
    sources, _, lack = answer.decode(errors="replace").strip().partition(" ")
    if sources != fingerprint():
        raise Unusable(f"{PROGRAM} is of other sources: install drfd again")
    return not lack
