"""The launcher's side of the process that measures GPUs: its start, its lines, which the controller
gets, and its end. The controller orders start and end, also those of one that is silent.

The launcher never waits for it. One that the kernel cannot kill, because a driver's call does not
return, is not replaced until it ends.
"""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import time
from collections.abc import Callable

from drfd.launcher.gpu_meter import MAX_LINE_BYTES, PERIOD_S
from drfd.launcher.protocol import GPUS, Message
from drfd.launcher.system.background import BackgroundWork
from drfd.launcher.system.nobody import without_rights

log = logging.getLogger("drfd.launcher")

PROGRAM = without_rights("drfd.launcher.gpu_meter.measuring")
#: There while NVIDIA's driver is loaded.
_DRIVER = "/proc/driver/nvidia/version"


class GpuMeter:
    """The process that measures, of which there is one at most."""

    def __init__(
        self,
        background: BackgroundWork,
        selector: selectors.BaseSelector,
        send: Callable[[Message], None],
    ) -> None:
        self._background, self._selector, self._send = background, selector, send
        #: The process, until its end, and its standard output, until it is killed.
        self._pid: int | None = None
        self._out: int | None = None
        self._unread = b""
        self._reported_s = 0.0

    def turn(self, on: bool) -> None:
        """Start the process, unless there is one, or no driver; or kill it, without waiting for its
        end."""
        if on and self._pid is None and is_present():
            self._start()
        elif not on:
            self._kill()

    def _start(self) -> None:
        out, into = os.pipe()
        try:
            self._pid = self._background.start(
                [*PROGRAM, str(os.getpid())], lambda status: self._ended(),
                stdout=into, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            os.close(out)
            log.warning("event=gpu-meter-not-started error=%s", error.strerror)
            return
        finally:
            os.close(into)
        self._out, self._unread = out, b""
        os.set_blocking(out, False)
        self._selector.register(out, selectors.EVENT_READ, lambda: self._read(out))

    def _read(self, out: int) -> None:
        try:
            data = os.read(out, MAX_LINE_BYTES)
        except BlockingIOError:
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        if not data or max(map(len, (*lines, self._unread))) > MAX_LINE_BYTES:
            self._kill()
            return
        now_s = time.monotonic()
        # However much it writes, the controller gets at most a line in half a period.
        if lines and now_s - self._reported_s >= PERIOD_S / 2:
            self._reported_s = now_s
            line = lines[-1].decode(errors="replace")
            self._send({"report": GPUS, "line": line})

    def _ended(self) -> None:
        if self._out is not None:
            # Its last line may say why it has ended.
            self._read(self._out)
            self._kill()
        self._pid = None

    def _kill(self) -> None:
        if self._out is not None:
            self._selector.unregister(self._out)
            os.close(self._out)
            self._out = None
        if self._pid is not None:
            self._background.kill(self._pid)


def is_present() -> bool:
    """Return whether the driver of the GPUs that are measured is loaded."""
    return os.path.exists(_DRIVER)
