"""Named places where a test may kill a process, to prove that nothing is lost there.

Off unless the environment variable DRFD_FAILPOINTS names a directory.
A file in it called like the point arms the point once: its content, "self" or a pid, says whom
SIGKILL goes to. The file is taken away first, so a process that is started again passes.
"""

from __future__ import annotations

import os
import signal

#: Every failpoint of the product; a test checks this list against the calls of `reach`.
NAMES = (
    # controller
    "journal.before-commit",
    "journal.after-commit",
    "engine.before-effect",
    "engine.after-effect",
    "server.before-reply",
    # launcher
    "launch.before-attempt-file",
    "launch.before-cgroup",
    "launch.before-limits",
    "launch.before-fork",
    "launch.after-fork",
    "report.before-send",
    "signal.before-signal",
    "signal.after-signal",
    "freeze.before-report",
    "notice.before-fork",
    "notice.after-fork",
    "remove.before-kill",
    "remove.before-rmdir",
    "remove.before-unlink",
    "remove.after-unlink",
    # runner
    "runner.before-child",
    "runner.before-running-record",
    "runner.after-running-record",
    "runner.after-exec",
    "runner.before-end-record",
    "runner.after-end-record",
)

_DIRECTORY = os.environ.get("DRFD_FAILPOINTS", "")


def reach(name: str) -> None:
    """Die here (or kill whom the armed file names) if a test has asked for it."""
    if _DIRECTORY:
        _fire(os.path.join(_DIRECTORY, name))


def _fire(path: str) -> None:
    try:
        with open(path) as armed:
            whom = armed.read().strip()
        os.unlink(path)
    except FileNotFoundError:
        return
    os.kill(os.getpid() if whom == "self" else int(whom), signal.SIGKILL)
