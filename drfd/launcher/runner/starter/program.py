"""The compiled program that runs attempts (starter.c): its choice, and its start."""

from __future__ import annotations

import os
import signal
import stat
from dataclasses import dataclass
from pathlib import Path

from drfd.launcher.runner.starter.sources import PROGRAM, fingerprint

#: Numbers of capabilities(7).
DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SETGID, SETUID = 1, 2, 5, 6, 7
SYS_ADMIN, SYS_RESOURCE, AUDIT_CONTROL = 21, 24, 30
_ANSWER_BYTES = 200
#: A job ignores no signal, as Python does with some. Of each that is not named here, the C library
#: asks first what becomes of it, and resets it then.
_SIGNALS = signal.valid_signals()


class Unusable(Exception):
    """The compiled program cannot be used, so no job can be started; the text says why."""


@dataclass
class Starter:
    """Runs attempts by the program that is open as `program_fd`."""

    program_fd: int
    #: Whether the program can refuse itself system calls here (`wait.h`).
    is_filtered: bool = True

    def spawn(self, attempt_fd: int, launched_fd: int, plan: bytes, payload_fd: int) -> int:
        """Start the runner of an attempt, and return its pid. It gets the attempt's file, the pipe
        to the launcher, which is inheritable, and the payload. Raises OSError."""
        plan_fd = os.memfd_create("plan", 0)
        try:
            os.pwrite(plan_fd, plan, 0)
            theirs = (attempt_fd, launched_fd, plan_fd, payload_fd)
            argv = ["drfd-starter", *map(str, theirs)]
            # The C library would take four system calls for each. Other programs that the launcher
            # executes get only what is passed to them.
            for fd in (attempt_fd, payload_fd):
                os.set_inheritable(fd, True)
            # This copies no page tables, whose pages would have to be copied at a touch.
            path = f"/proc/self/fd/{self.program_fd}"
            return os.posix_spawn(path, argv, {}, setsigdef=_SIGNALS)
        finally:
            os.close(plan_fd)


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


def needed_capabilities(*, enters_spaces: bool, serves_root: bool) -> int:
    """Return the capabilities with which an attempt is started, as bits. `enters_spaces` is set if
    jobs have a /tmp of their own, and `serves_root` if root's own jobs run here, whose directories
    and output files may belong to any user. The bounding set is never reduced, so set-user-id
    programs work in jobs."""
    found = [KILL, SETGID, SETUID, SYS_RESOURCE, AUDIT_CONTROL]
    found += [SYS_ADMIN] * enters_spaces + [DAC_OVERRIDE, DAC_READ_SEARCH] * serves_root
    return sum(1 << number for number in found)


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
