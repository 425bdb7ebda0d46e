"""The pty of an attached job: the job has one side as its terminal, we carry bytes on the other.

It belongs to the submitter, and so does everything that passes through it; when our side is
closed, however that happens, the kernel hangs up on the job.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import termios
import time
from collections.abc import Iterator

from drfd_cli.escape import EscapeFilter, Order
from drfd_cli.terminal import Terminal, copy_size, suspend_key

#: With so many bytes of input that the job does not take, no more is read.
_BACKLOG_BYTES = 1 << 16
#: What a job has written before its end is there at once, but for the kernel's own queue.
_DRAIN_S = 2.0


class Stage:
    def __init__(self, terminal: Terminal, escape: bytes | None) -> None:
        self.terminal = terminal
        self._master, slave = os.openpty()
        self._name = os.ttyname(slave)
        os.close(slave)
        os.set_blocking(self._master, False)
        self._escape = EscapeFilter(escape)
        self._to_job = b""
        #: A program has the other side open, as far as we know.
        self.is_open = False
        self._was_open = False
        self._stopped_group: int | None = None
        #: Where its output is shown: where the user looks.
        self._screen = next((fd for fd in (1, 2) if os.isatty(fd)), terminal.fd)

    def hand_over(self, connection: socket.socket) -> None:
        """The job's side, for all descriptors that would have been our terminal."""
        slave = os.open(self._name, os.O_RDWR | os.O_NOCTTY)
        try:
            if self.terminal.found is not None:
                termios.tcsetattr(slave, termios.TCSANOW, self.terminal.found)
            copy_size(self.terminal.fd, slave)
            fds = [slave, *(slave if os.isatty(fd) else fd for fd in (1, 2))]
            socket.send_fds(connection, [b"t"], fds)
        finally:
            os.close(slave)
        self.is_open = self._was_open = True
        self.terminal.go_raw(forget_keys=True)

    def reads(self) -> list[int]:
        """What to wait for. In the background, what is typed is for the shell."""
        takes_keys = self.terminal.is_raw and len(self._to_job) < _BACKLOG_BYTES
        return [*([self.terminal.fd] if takes_keys else []), *self.outputs()]

    def outputs(self) -> list[int]:
        return [self._master] if self.is_open else []

    def writes(self) -> list[int]:
        return [self._master] if self.is_open and self._to_job else []

    def carry(self, ready: set[int]) -> Iterator[Order]:
        """Bytes in both directions; yields what the user tells drf itself."""
        if self.terminal.fd in ready:
            yield from self._take_keys()
        if self._to_job:
            self._feed_job()
        # A program may close its terminal and open it again, which nothing tells us.
        self.is_open = self._was_open
        if self.is_open:
            self._show_output()

    def _take_keys(self) -> Iterator[Order]:
        try:
            keys = os.read(self.terminal.fd, 4096)
        except OSError:
            keys = b""
        if not keys:
            # The terminal has gone away.
            yield Order.LEAVE
            return
        for part in self._escape.feed(keys):
            if isinstance(part, Order):
                yield part
                continue
            while part:
                before, key, part = self._split_at_suspend(part)
                self._to_job += before
                if key:
                    self._feed_job()
                    yield Order.SUSPEND

    def _split_at_suspend(self, keys: bytes) -> tuple[bytes, bytes, bytes]:
        """At ^Z, if nobody but us can mean anything by it.

        The kernel stops no process group without a parent in its session, which would be a shell
        (setpgid(2), orphaned groups): that of the job's first program is such a one.
        """
        if not self.is_open or self._leading_group() is None:
            return keys, b"", b""
        key = suspend_key(self._master)
        return (keys, b"", b"") if key is None else keys.partition(key)

    def _leading_group(self) -> int | None:
        """The process group in the foreground, if it is that of the job's first process."""
        try:
            group = os.tcgetpgrp(self._master)
            return group if group > 0 and os.getsid(group) == group else None
        except OSError:
            return None

    def stop_job(self) -> None:
        """As ^Z does for a program that a shell has started."""
        self._stopped_group = self._leading_group()
        if self._stopped_group is not None:
            self._signal(self._stopped_group, signal.SIGSTOP)

    def continue_job(self) -> None:
        if self._stopped_group is not None:
            self._signal(self._stopped_group, signal.SIGCONT)
            self._stopped_group = None

    def _signal(self, group: int, number: int) -> None:
        try:
            os.killpg(group, number)
        except OSError:
            # It has just ended, or has become another user (su).
            pass

    def resize(self) -> None:
        copy_size(self.terminal.fd, self._master)

    def _feed_job(self) -> None:
        try:
            sent = os.write(self._master, self._to_job)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._to_job)
        self._to_job = self._to_job[sent:]

    def _show_output(self) -> None:
        piece = self.read()
        if piece:
            write_all(self._screen, piece)

    def end_line(self) -> None:
        write_all(self._screen, b"\n")

    def read(self) -> bytes:
        """What the job has written; empty when that is nothing now, or it has closed its side."""
        try:
            return os.read(self._master, 1 << 16)
        except BlockingIOError:
            return b""
        except OSError:
            self.is_open = False
            return b""

    def drain(self) -> None:
        """Show all that is left of a job that has ended."""
        deadline = time.monotonic() + _DRAIN_S
        while self.is_open and time.monotonic() < deadline:
            select.select([self._master], [], [], _DRAIN_S)
            self._show_output()

    def close(self) -> None:
        os.close(self._master)
        self.terminal.restore()


def write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            # Somebody has made our terminal non-blocking.
            select.select([], [fd], [])
