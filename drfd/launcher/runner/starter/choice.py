"""The choice, at the launcher's start, how jobs' processes are started."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from drfd.launcher.runner.starter.compiled import Compiled
from drfd.launcher.runner.starter.forked import Forked
from drfd.launcher.runner.starter.interface import JobStarter
from drfd.launcher.runner.starter.sources import PROGRAM, fingerprint

_ANSWER_BYTES = 200


class Unusable(Exception):
    """The compiled program is not used; the text says why."""


def choose(program: Path = PROGRAM) -> JobStarter:
    """Return the starter for all jobs of this launcher: the compiled program, if it is there, if
    nobody else could have written it, and if it was compiled from the sources beside it."""
    try:
        fd = _opened(program)
        try:
            _insist_on_sources(fd)
        except BaseException:
            os.close(fd)
            raise
    except Unusable as error:
        return Forked(str(error))
    except OSError as error:
        return Forked(f"the compiled starter {program} cannot be used: {error.strerror}")
    return Compiled(fd)


def _opened(program: Path) -> int:
    """Open the program, checked with all directories above it. Raises Unusable, OSError."""
    path = os.path.realpath(program)
    for above in Path(path).parents:
        _insist_on_owner(str(above), os.stat(above))
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        why = "no compiled starter is installed, as no C compiler was there"
        raise Unusable(why) from None
    status = os.fstat(fd)
    try:
        if not stat.S_ISREG(status.st_mode):
            raise Unusable(f"the compiled starter {path} is no file")
        _insist_on_owner(path, status)
    except Unusable:
        os.close(fd)
        raise
    return fd


def _insist_on_owner(path: str, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.getuid()):
        raise Unusable(f"{path}, of the compiled starter, belongs to uid {status.st_uid}")
    # Files of others in a directory such as /tmp cannot be replaced.
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    # An ordinary user often has a group of one, and a umask that lets it write.
    others = 0o022 if os.getuid() == 0 else 0o002
    if status.st_mode & others and not is_sticky:
        raise Unusable(f"{path}, of the compiled starter, can be written by others")


def _insist_on_sources(fd: int) -> None:
    """Raise Unusable unless the program runs here and is of the present sources. OSError."""
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
        raise Unusable("the compiled starter needs a newer kernel (Linux 5.11)")
    if answer.decode(errors="replace").strip() != fingerprint():
        raise Unusable("the compiled starter is of other sources: install drfd again")
