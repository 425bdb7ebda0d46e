"""A terminal as somebody sits at it: a program runs in it, keys are typed, and a screen is seen."""

import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable
from fcntl import ioctl
from typing import Any

import pyte

from instance import patient

#: Nothing that is waited for takes so long, unless it never comes.
_WAIT_S = 60.0
#: Takes the terminal that it was started with for its own, as a login does.
_LOGIN = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)


class Emulator:
    """80 columns and 24 lines. `close` hangs up, and ends the program if that did not."""

    def __init__(self, *command: object, **options: Any) -> None:
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        #: Everything that the program has sent.
        self.sent = b""
        self.fd, slave = os.openpty()
        self._set_size(24, 80)
        self.modes_before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _LOGIN, *map(str, command)],
            **{"stdin": slave, "stdout": slave, "stderr": slave, **options},
            start_new_session=True,
        )
        os.close(slave)

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def resize(self, rows: int, columns: int) -> None:
        self._set_size(rows, columns)
        self.screen.resize(rows, columns)

    def lines(self) -> list[str]:
        """What is seen, without what is empty below and behind."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip().split("\n")

    def modes(self) -> Any:
        """How the terminal is set now."""
        return termios.tcgetattr(self.fd)

    def until(self, what: str, is_so: Callable[[], Any]) -> None:
        deadline = time.monotonic() + patient(_WAIT_S)
        while not is_so():
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.lines()}"
            self._look(0.02)

    def sees(self, *texts: str) -> None:
        for text in texts:
            self.until(repr(text), lambda text=text: text in "\n".join(self.lines()))

    def ends(self) -> int:
        """The exit code, once the program has ended."""
        self.until("the program's end", lambda: self.process.poll() is not None)
        while self._look(0):
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def _look(self, seconds: float) -> bool:
        """Take in what the program has sent; False when there was nothing."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self.fd, 1 << 16)
        except OSError:
            # Nobody has the other side open.
            time.sleep(seconds)
            return False
        self.sent += piece
        self._stream.feed(piece)
        return bool(piece)

    def _set_size(self, rows: int, columns: int) -> None:
        ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def close_all(emulators: Iterable[Emulator]) -> None:
    for emulator in emulators:
        emulator.close()
