"""Failpoints: named places where a test may kill a process, to prove that nothing is lost there.

Failpoints are off, and no option turns them on: root would read in a directory which process to
kill. Tests run the programs by an entry of their own, which names the directory, and lists the
points (tests/failing.py). A file in the directory with the name of a point arms it once. Its
content says which process gets SIGKILL: "self" or a pid. With "stop", the process that reaches the
point writes its pid into `POINT.reached` and stops, so that a test can kill others at that moment
and then continue it (SIGCONT). The file is removed first, so that a restarted process passes.
"""

from __future__ import annotations

import os
import signal

from drfd.common.errors import ConfigError

_directory = ""


def enable(directory: str) -> None:
    """Watch the files in `directory` from now on. Raises ConfigError if others may write there: a
    file says which process is killed."""
    global _directory
    try:
        status = os.stat(directory)
    except OSError as error:
        raise ConfigError("failpoints", f"{directory}: {error.strerror}") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError("failpoints", f"others may write to {directory}")
    _directory = directory


def directory() -> str | None:
    """Return the directory of the files, or None if failpoints are off."""
    return _directory or None


def reach(name: str) -> None:
    """Kill this process, or the one that the file names, if a test has armed the point."""
    if _directory:
        _fire(os.path.join(_directory, name))


def _fire(path: str) -> None:
    try:
        with open(path) as armed:
            whom = armed.read().strip()
        os.unlink(path)
    except FileNotFoundError:
        return
    if whom == "stop":
        with open(f"{path}.reached", "w") as reached:
            reached.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid() if whom == "self" else int(whom), signal.SIGKILL)
