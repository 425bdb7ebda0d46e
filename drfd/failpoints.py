"""Named places where a test may kill a process, to prove that nothing is lost there.

Off unless the environment variable DRFD_FAILPOINTS names a directory.
A file in it called like the point arms the point once: its content, "self" or a pid, says whom
SIGKILL goes to. With "stop" whoever comes there writes its pid into `POINT.reached` and stops, so
that a test may kill anybody at that moment and let the rest go on (SIGCONT). The file is taken away
first, so a process that is started again passes.
"""

from __future__ import annotations

import os
import signal

CONTROLLER = (
    "journal.before-commit",
    "journal.after-commit",
    "engine.before-effect",
    "engine.after-effect",
    "server.before-reply",
    "reconcile.before-settling",
)
LAUNCHER = (
    "serve.before-adoption",
    "launch.before-attempt-file",
    "launch.before-cgroup",
    "launch.before-limits",
    "launch.before-fork",
    "launch.after-fork",
    "report.before-send",
    "signal.before-signal",
    "signal.after-signal",
    "signals.before-mark",
    "signals.after-mark",
    "freeze.before-report",
    "thaw.before-thaw",
    "notice.before-fork",
    "notice.after-fork",
    "remove.before-kill",
    "remove.before-rmdir",
    "remove.before-unlink",
    "remove.after-unlink",
)
RUNNER = (
    "runner.before-child",
    "runner.before-running-record",
    "runner.after-running-record",
    "runner.after-exec",
    "runner.before-end-record",
    "runner.after-end-record",
)
#: The process that tells a job's owner of its end.
NOTIFIER = (
    "notifier.before-mark",
    "notifier.after-mark",
    "notifier.before-record",
)
#: Every failpoint of the product; a test checks this list against the calls of `reach`, and another
#: one (tests/torture) wants to know when each is reached.
NAMES = CONTROLLER + LAUNCHER + RUNNER + NOTIFIER

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
    if whom == "stop":
        with open(f"{path}.reached", "w") as reached:
            reached.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid() if whom == "self" else int(whom), signal.SIGKILL)
