"""The process that measures NVIDIA's GPUs, without root's rights.

    python -m drfd.launcher.system.nobody drfd.launcher.gpu_meter.measuring LAUNCHER

It writes a line every PERIOD_S seconds to standard output, and ends with the launcher, whose pid is
given.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from drfd.launcher.gpu_meter import PERIOD_S
from drfd.launcher.gpu_meter.nvidia import NvidiaGpus
from drfd.launcher.gpu_meter.reading import Unmeasured, encode
from drfd.launcher.system import process


def main(words: Sequence[str], own: tuple[int, int]) -> None:
    process.die_with(int(words[0]))
    try:
        if os.getuid() == 0:
            raise PermissionError("a driver's library does not run as root")
        gpus = NvidiaGpus()
        while True:
            _write(encode(gpus.read()))
            time.sleep(PERIOD_S)
    except Unmeasured as error:
        _write(encode(why=str(error)))
    except Exception as error:
        # Whatever a driver's library does: the controller has another process started later.
        _write(encode(why=f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(sys.stdout.fileno(), line) :]
