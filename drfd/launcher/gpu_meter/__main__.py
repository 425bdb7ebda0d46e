"""The process that measures NVIDIA's GPUs, without root's rights.

    python -m drfd.launcher.gpu_meter

It writes a line every PERIOD_S seconds to standard output, and ends with its parent. What this
module imports is all that it runs before it has given up its rights, but for that of reading files.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from drfd.linux import syscalls
from drfd.linux.own_process import NOBODY, be_killed_first, drop_rights


def main() -> None:
    parent = os.getppid()
    with suppress(OSError):
        be_killed_first()
    try:
        _give_up_rights()
    except OSError as error:
        # A line as `reading` describes it.
        line = {"gpus": [], "why": f"{type(error).__name__}: {error}"}
        sys.stdout.write(f"{json.dumps(line)}\n")
        raise SystemExit(1) from None
    # A change of uid has taken the signal away (prctl(2)).
    syscalls.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        return
    _measuring().measure()


def _measuring() -> ModuleType:
    return import_module("drfd.launcher.gpu_meter.measuring")


def _give_up_rights() -> None:
    """Become nobody, with no capability and no way to gain any. Raises OSError.

    An ordinary user's process keeps its uid, which is that of all jobs there."""
    if os.getuid() == 0:
        drop_rights(NOBODY, NOBODY, [], _measuring)
    syscalls.set_no_new_privileges()
    syscalls.set_dumpable(False)


if __name__ == "__main__":
    main()
