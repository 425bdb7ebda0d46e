"""The launcher's side of the process that measures GPUs: it starts, reads and replaces it.

The launcher never waits for it. A process that is silent for SILENT_S seconds, or writes
something that is no line, is killed, and another one is started a while after its end. One that
the kernel cannot kill, because a driver's call does not return, is not replaced until it ends.
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
#: Seconds without a line after which a process is killed.
SILENT_S = 30.0
#: Seconds of pause before a process is replaced: the first, and the longest.
_PAUSE_S, _MAX_PAUSE_S = 1.0, 300.0
#: Seconds that a process must live for the next pause to be short again.
_LONG_LIFE_S = 600.0
#: Seconds until it is looked again whether the driver is loaded.
_LOOK_S = 60.0


class GpuMeter:
    """The process that measures. It runs while it is wanted and there is a driver."""

    def __init__(
        self,
        background: BackgroundWork,
        selector: selectors.BaseSelector,
        send: Callable[[Message], None],
    ) -> None:
        self._background, self._selector, self._send = background, selector, send
        #: When to look again, on the monotonic clock: to start a process, or whether it is silent.
        self._due_s: float | None = None
        self._is_wanted = False
        #: The process, until its end, and its standard output, until it is killed.
        self._pid: int | None = None
        self._out: int | None = None
        self._unread = b""
        self._began_s = self._reported_s = 0.0
        self._pause_s = _PAUSE_S
        self._is_logged = False

    def turn(self, on: bool) -> None:
        if on and self._pid is None and self._due_s is None:
            self._pause_s, self._due_s = _PAUSE_S, time.monotonic()
        elif not on:
            self._kill()
        self._is_wanted = on

    def pause_s(self) -> float | None:
        """Return the seconds until something is due, or None if nothing is."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    def run_due(self) -> None:
        now_s = time.monotonic()
        if self._due_s is None or self._due_s > now_s:
            return
        if self._pid is not None:
            self._replace(f"it was silent for {SILENT_S:.0f} s")
        elif not is_present():
            self._due_s = now_s + _LOOK_S
        else:
            self._start(now_s)

    def _start(self, now_s: float) -> None:
        out, into = os.pipe()
        try:
            self._pid = self._background.start(
                [*PROGRAM, str(os.getpid())], lambda status: self._ended(),
                stdout=into, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            os.close(out)
            self._log(f"it could not be started: {error.strerror}")
            self._put_off(now_s)
            return
        finally:
            os.close(into)
        self._out, self._unread = out, b""
        os.set_blocking(out, False)
        self._selector.register(out, selectors.EVENT_READ, lambda: self._read(out))
        self._began_s, self._due_s = now_s, now_s + SILENT_S

    def _read(self, out: int) -> None:
        try:
            data = os.read(out, MAX_LINE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._replace("it has ended")
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        if max(map(len, (*lines, self._unread))) > MAX_LINE_BYTES:
            self._replace(f"it wrote a line of more than {MAX_LINE_BYTES} bytes")
            return
        now_s = time.monotonic()
        if lines:
            self._due_s = now_s + SILENT_S
        # However much it writes, the controller gets at most a line in half a period.
        if lines and now_s - self._reported_s >= PERIOD_S / 2:
            self._reported_s = now_s
            line = lines[-1].decode(errors="replace")
            self._send({"report": GPUS, "line": line})

    def _ended(self) -> None:
        if self._out is not None:
            # Its last line may say why it has ended.
            self._read(self._out)
            self._replace("it has ended")
        self._pid = None
        if self._is_wanted:
            self._put_off(time.monotonic())

    def _replace(self, why: str) -> None:
        if self._out is not None:
            self._log(why)
        self._kill()

    def _kill(self) -> None:
        """Kill the process without waiting for its end."""
        self._due_s = None
        if self._out is not None:
            self._selector.unregister(self._out)
            os.close(self._out)
            self._out = None
        if self._pid is not None:
            self._background.kill(self._pid)

    def _log(self, why: str) -> None:
        if not self._is_logged:
            self._is_logged = True
            log.warning("event=gpu-meter-replaced error=%s", why)

    def _put_off(self, now_s: float) -> None:
        """Have another process started after a pause."""
        if now_s - self._began_s > _LONG_LIFE_S:
            self._pause_s, self._is_logged = _PAUSE_S, False
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)


def is_present() -> bool:
    """Return whether the driver of the GPUs that are measured is loaded."""
    return os.path.exists(_DRIVER)
