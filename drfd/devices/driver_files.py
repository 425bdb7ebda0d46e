"""Files whose content a driver asks its device for: read in another process, which may hang.

NVIDIA's driver takes its own locks for that, and may wake the GPU. When a GPU does not answer, a
reader can wait for minutes or for ever, and cannot even be killed
(https://github.com/NVIDIA/open-gpu-kernel-modules/issues/968).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from drfd.common.errors import HostError
from drfd.devices.gpu import GpuFault

#: Seconds until a driver counts as one that does not answer. To wake a GPU takes one or two.
_PATIENCE_S = 5.0
#: Prints one line for each file: its path, its content, and the number of the error if it has none.
_READER = """
import json, sys
for path in sys.argv[1:]:
    text, number = "", 0
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        number = error.errno
    print(json.dumps([path, text, number]), flush=True)
"""


class _StuckReader:
    """The reader that has not answered in time, and is left alone until it does."""

    process: subprocess.Popen[bytes] | None = None


def read_each(paths: Sequence[str]) -> dict[str, str | OSError | GpuFault]:
    """Return the content of each file, or why it cannot be had. Takes some seconds at most, and no
    time while an earlier reader still waits for the driver. Raises HostError if no reader can be
    started, which says nothing of the driver."""
    faults = {path: GpuFault(f"{path}: the driver does not answer") for path in paths}
    found: dict[str, str | OSError | GpuFault] = {**faults}
    if not paths or _is_stuck():
        return found
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _READER, *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise _unread(error.strerror) from None
    try:
        said, _ = process.communicate(timeout=_PATIENCE_S)
        if process.returncode != 0:
            raise _unread(f"it ended with {process.returncode}")
    except subprocess.TimeoutExpired as late:
        said = late.output or b""
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        _StuckReader.process = process
    for line in said.splitlines():
        # The last line may be a part of one.
        with suppress(ValueError):
            path, text, number = json.loads(line)
            found[path] = OSError(number, os.strerror(number), path) if number else text
    return found


def _unread(why: str | None) -> HostError:
    text = f"cannot ask NVIDIA's driver: {sys.executable} does not run as uid {os.getuid()}: {why}"
    return HostError("gpus", text)


def _is_stuck() -> bool:
    if _StuckReader.process is not None and _StuckReader.process.poll() is not None:
        _StuckReader.process = None
    return _StuckReader.process is not None
