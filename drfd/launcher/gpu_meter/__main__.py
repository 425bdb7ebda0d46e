"""The process that measures NVIDIA's GPUs, without root's rights.

    python -m drfd.launcher.gpu_meter

It writes a line every PERIOD_S seconds to standard output, and ends with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from drfd.launcher.gpu_meter.nvidia import NvidiaGpus
from drfd.launcher.gpu_meter.reading import PERIOD_S, Unmeasured, encode
from drfd.linux import syscalls
from drfd.linux.own_process import NOBODY, be_killed_first, drop_rights


def main() -> None:
    parent = os.getppid()
    try:
        with suppress(OSError):
            be_killed_first()
        _give_up_rights()
        # A change of uid has taken the signal away (prctl(2)).
        syscalls.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            return
        # Other parties' code is loaded without root's rights.
        gpus = NvidiaGpus()
        while True:
            _write(encode(gpus.read()))
            time.sleep(PERIOD_S)
    except Unmeasured as error:
        _write(encode(why=str(error)))
    except Exception as error:
        # Whatever a driver's library does: the launcher starts this process again.
        _write(encode(why=f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(sys.stdout.fileno(), line) :]


def _give_up_rights() -> None:
    """Become nobody, with no capability and no way to gain any. Raises OSError.

    An ordinary user's process keeps its uid, which is that of all jobs there."""
    if os.getuid() == 0:
        drop_rights(NOBODY, NOBODY, [])
    syscalls.set_no_new_privileges()
    syscalls.set_dumpable(False)


if __name__ == "__main__":
    main()
