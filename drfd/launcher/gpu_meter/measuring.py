"""What the process that measures does once it is without root's rights."""

from __future__ import annotations

import os
import sys
import time

from drfd.launcher.gpu_meter import PERIOD_S
from drfd.launcher.gpu_meter.nvidia import NvidiaGpus
from drfd.launcher.gpu_meter.reading import Unmeasured, encode


def measure() -> None:
    """Write a line every PERIOD_S seconds, or why that is not possible."""
    try:
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
