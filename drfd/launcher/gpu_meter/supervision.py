"""The launcher's side of the processes that measure GPUs: it starts, reads and replaces them.

The launcher never waits for one of them. A process that is silent for SILENT_S seconds, or writes
something that is no line, is killed, and another one is started after a pause. One that the kernel
cannot kill, because a driver's call does not return, is left behind.
"""

from __future__ import annotations

import logging
import os
import selectors
import sys
import time
from collections.abc import Callable
from functools import partial

from drfd.launcher.gpu_meter import drm, nvidia
from drfd.launcher.gpu_meter.reading import DRM, MAX_LINE_BYTES, NVIDIA, PERIOD_S
from drfd.launcher.protocol import GPUS, Message
from drfd.launcher.system.background import BackgroundWork

log = logging.getLogger("drfd.launcher")

#: Seconds without a line after which a process is killed.
SILENT_S = 30.0
#: Seconds of pause before a process is replaced: the first, and the longest.
_PAUSE_S, _MAX_PAUSE_S = 1.0, 300.0
#: Seconds that a process must live for the next pause to be short again.
_LONG_LIFE_S = 600.0
#: Seconds until it is looked again whether the machine has such a GPU.
_LOOK_S = 60.0
#: Seconds that a process still runs after its controller has gone: another may want it.
_LINGER_S = 20.0
#: Largest number of killed processes of one kind that may be left behind.
MOST_STUCK = 3

_IS_PRESENT = {NVIDIA: nvidia.is_present, DRM: drm.is_present}


class GpuMeters:
    """The processes of all kinds of GPUs that the machine has. They run while they are wanted."""

    def __init__(
        self,
        background: BackgroundWork,
        selector: selectors.BaseSelector,
        send: Callable[[Message], None],
    ) -> None:
        self._meters = [_Meter(kind, background, selector, self._report) for kind in _IS_PRESENT]
        self._send = send
        self._is_on = False
        #: When the processes end, on the monotonic clock, or None if they are wanted.
        self._end_s: float | None = None

    def turn(self, on: bool) -> None:
        """Report from now on, or stop doing so: then the processes end a while later."""
        if on:
            self._end_s = None
            for meter in self._meters:
                meter.want()
        elif self._is_on:
            self._end_s = time.monotonic() + _LINGER_S
        self._is_on = on

    def pause_s(self) -> float | None:
        """Return the seconds until something is due, or None if nothing is."""
        times = [self._end_s, *(meter.due_s for meter in self._meters)]
        due = min((each for each in times if each is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def run_due(self) -> None:
        if self._end_s is not None and self._end_s <= time.monotonic():
            self._end_s = None
            for meter in self._meters:
                meter.stop()
        for meter in self._meters:
            meter.run_due()

    def _report(self, driver: str, line: str) -> None:
        if self._is_on:
            self._send({"report": GPUS, "driver": driver, "line": line})


class _Meter:
    """The process of one kind of GPU."""

    def __init__(
        self,
        kind: str,
        background: BackgroundWork,
        selector: selectors.BaseSelector,
        report: Callable[[str, str], None],
    ) -> None:
        self._kind = kind
        self._background = background
        self._selector = selector
        self._report = report
        #: When to look again, on the monotonic clock: to start a process, or whether it is silent.
        self.due_s: float | None = None
        self._pid: int | None = None
        #: Number of the present process, or of the last one.
        self._number = 0
        self._out = -1
        self._unread = b""
        self._began_s = 0.0
        self._reported_s = 0.0
        self._pause_s = _PAUSE_S
        #: Numbers of the processes that have been left and have not ended.
        self._left: set[int] = set()
        self._is_wanted = False
        self._is_logged = False

    def want(self) -> None:
        if not self._is_wanted:
            self._is_wanted = True
            self._pause_s = _PAUSE_S
            self._start_at(time.monotonic())

    def stop(self) -> None:
        self._is_wanted = False
        self._leave()
        self.due_s = None

    def run_due(self) -> None:
        now_s = time.monotonic()
        if self.due_s is None or self.due_s > now_s:
            return
        if self._pid is not None:
            self._replace(f"it was silent for {SILENT_S:.0f} s")
        elif not _IS_PRESENT[self._kind]():
            self.due_s = now_s + _LOOK_S
        else:
            self._start(now_s)

    def _start(self, now_s: float) -> None:
        self._number += 1
        out, into = os.pipe()
        try:
            self._pid = self._background.start(
                lambda: _become(self._kind, into),
                partial(self._ended, self._number),
                into,
            )
        except OSError as error:
            os.close(out)
            self._put_off(f"it could not be started: {error.strerror}")
            return
        finally:
            os.close(into)
        self._out, self._unread = out, b""
        os.set_blocking(out, False)
        self._selector.register(out, selectors.EVENT_READ, self._read)
        self._began_s, self.due_s = now_s, now_s + SILENT_S

    def _read(self) -> None:
        try:
            data = os.read(self._out, MAX_LINE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._replace("it has ended")
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        if max(map(len, (*lines, self._unread))) > MAX_LINE_BYTES:
            self._replace(f"it wrote a line of more than {MAX_LINE_BYTES} bytes")
            return
        if not lines:
            return
        now_s = time.monotonic()
        self.due_s = now_s + SILENT_S
        # However much it writes, the controller gets at most a line in half a period.
        if now_s - self._reported_s >= PERIOD_S / 2:
            self._reported_s = now_s
            self._report(self._kind, lines[-1].decode(errors="replace"))

    def _ended(self, number: int) -> None:
        self._left.discard(number)
        if self._pid is not None and number == self._number:
            # Its last line may say why it has ended.
            self._read()
            if self._pid is not None:
                self._replace("it has ended")
            self._left.discard(number)
        elif self._is_wanted and self._pid is None and self.due_s is None:
            self._start_at(time.monotonic() + self._pause_s)

    def _replace(self, why: str) -> None:
        self._leave()
        self._put_off(why)

    def _leave(self) -> None:
        """Kill the process without waiting for its end."""
        if self._pid is None:
            return
        self._selector.unregister(self._out)
        os.close(self._out)
        self._background.kill(self._pid)
        self._left.add(self._number)
        self._pid = None

    def _put_off(self, why: str) -> None:
        """Have another process started after a pause, and log once why."""
        now_s = time.monotonic()
        if now_s - self._began_s > _LONG_LIFE_S:
            self._pause_s, self._is_logged = _PAUSE_S, False
        if not self._is_logged:
            self._is_logged = True
            log.warning("event=gpu-meter-replaced kind=%s error=%s", self._kind, why)
        self._start_at(now_s + self._pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)

    def _start_at(self, time_s: float) -> None:
        """Start a process then, unless too many have been killed without effect."""
        if len(self._left) < MOST_STUCK:
            self.due_s = time_s
            return
        self.due_s = None
        count = len(self._left)
        log.error("event=gpu-meters-stuck kind=%s processes=%d", self._kind, count)


def _become(kind: str, into: int) -> None:
    """Execute the program that measures, with `into` as its standard output."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(into, 1)
    os.dup2(nothing, 2)
    command = [sys.executable, "-I", "-m", "drfd.launcher.gpu_meter", kind]
    os.chdir("/")
    os.execv(sys.executable, command)
