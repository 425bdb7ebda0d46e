"""The pty of a job: the job has one side as its terminal, drf reads and writes the other.

It belongs to the submitter: when the last process that has our side open closes it, for whatever
reason, the kernel hangs up the job's side.
"""

from __future__ import annotations

import os
import select

from drfd.linux.unix_sockets import send_descriptors
from drfd_cli.relay.screen_modes import ScreenModes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

#: Bytes of output that are kept to be shown to who comes later: about one screen.
_LAST_BYTES = 4096
#: Between the terminal modes and the output in what `seen` returns; in neither of the modes.
_BETWEEN = b"\0"


class Pty:
    """Our side of a job's pty."""

    def __init__(self, master: int | None = None, name: str = "") -> None:
        """Open a new pty, or take over a side that is open already; `name` is the path of the job's
        side, if it is to be handed over."""
        #: Whether some program has had the job's side open, and has it now, as far as is known.
        self._was_open = self.is_open = master is not None
        if master is None:
            master, slave = os.openpty()
            name = os.ttyname(slave)
            os.close(slave)
        os.set_blocking(master, False)
        self._master, self._name = master, name
        self._screen_modes = ScreenModes()
        self._last = b""

    def hand_over(self, connection: socket) -> None:
        """Send the job its standard descriptors: the pty, all three."""
        slave = self._open_slave()
        try:
            send_descriptors(connection, b"t", [slave] * 3)
        finally:
            os.close(slave)
        self.is_open = self._was_open = True

    def alone(self) -> Pty:
        """Return the same pty without the terminal in front of it."""
        found = Pty(os.dup(self._master), self._name)
        found.remember(self.seen())
        return found

    def release(self) -> None:
        """Close this process's side; the job goes on as long as another has it open."""
        os.close(self._master)

    def _open_slave(self) -> int:
        return os.open(self._name, os.O_RDWR | os.O_NOCTTY)

    def lend(self, connection: socket) -> None:
        """Send our side to another process of the user, which reads what the job writes from now
        on, with `seen`. Raises OSError."""
        send_descriptors(connection, self.seen(), [self._master])

    def outputs(self) -> list[int]:
        return [self._master] if self.is_open else []

    def read(self) -> bytes:
        """Return the job's new output; empty if there is none, or the job's side is closed."""
        try:
            piece = os.read(self._master, 1 << 16)
        except BlockingIOError:
            return b""
        except OSError:
            self.is_open = False
            return b""
        self._screen_modes.feed(piece)
        self._last = (self._last + piece)[-_LAST_BYTES:]
        return piece

    def look_again(self) -> None:
        """A program may close its terminal and open it again, of which drf is not notified."""
        self.is_open = self._was_open

    def seen(self) -> bytes:
        """Return the modes of the terminal and the last output, for `remember`."""
        return self._screen_modes.enter() + _BETWEEN + self._last

    def remember(self, seen: bytes) -> None:
        """Take the state that another process has seen last."""
        modes, _, self._last = seen.partition(_BETWEEN)
        self._screen_modes = ScreenModes()
        self._screen_modes.feed(modes)


def write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            # Another program has made the terminal non-blocking.
            select.select([], [fd], [])
