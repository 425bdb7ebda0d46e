"""A program of drfd with failpoints: `python -I failing.py DIRECTORY MODULE ARGUMENT...`

No option of drfd's own turns them on. The launchers that such a `drfd serve` starts have them, too,
and the program that begins jobs' processes is the one that the environment names, if any. Run by
its path, since the tests need not be installed where drfd is.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from drfd.common import failpoints

CONTROLLER = (
    *("journal.before-commit", "journal.after-commit"),
    *("engine.some-untold", "engine.before-effect", "engine.after-effect"),
    *("server.before-reply", "reconcile.before-settling"),
)
LAUNCHER = (
    "serve.before-adoption",
    *("launch.before-attempt-file", "launch.before-cgroup", "launch.before-limits"),
    *("launch.before-devices", "launch.before-fork", "launch.after-fork", "report.before-send"),
    *("signal.before-signal", "signal.after-signal", "signals.before-mark", "signals.after-mark"),
    *("freeze.before-report", "thaw.before-thaw"),
    *("exec.before-join", "exec.after-join"),
    *("remove.before-kill", "remove.before-rmdir", "remove.before-unlink", "remove.after-unlink"),
)
RUNNER = (
    *("runner.before-child", "runner.amid-mkdir"),
    *("runner.before-launched-record", "runner.after-launched-record"),
    *("runner.before-exec", "runner.after-exec"),
    *("runner.before-end-record", "runner.after-end-record", "runner.amid-rmdir"),
)
#: What jobs of this machine pass through: a test (tests/torture) requires a scenario that reaches
#: each.
LOCAL = CONTROLLER + LAUNCHER + RUNNER
#: The launcher of Slurm's nodes; a test of it goes through all of them.
SLURM = (
    *("slurm.before-attempt-file", "slurm.before-submission", "slurm.after-submission"),
    *("slurm.before-end-record", "slurm.before-unlink"),
)
#: All failpoints. A test checks this list against the calls of `reach`.
NAMES = LOCAL + SLURM

#: Names the program that begins jobs' processes, with failpoints.
VARIABLE = "DRFD_TESTED_STARTER"


def main(directory: str, module: str, *arguments: str) -> None:
    # The launcher of Slurm's nodes may have a user of its own.
    if module != "drfd.launcher.slurm" or os.stat(directory).st_uid == os.getuid():
        failpoints.enable(directory)
    program = import_module(f"{module}.main")
    if module == "drfd.daemon":
        program.spawn.RUN = (sys.executable, "-I", __file__, directory)
    if module == "drfd.launcher" and VARIABLE in os.environ:
        program.main(arguments, Path(os.environ[VARIABLE]))
    else:
        program.main(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
