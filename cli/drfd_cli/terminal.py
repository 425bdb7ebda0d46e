"""The terminal that drf was started from: how it was found, and how it is given back."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty

_LFLAG, _CC = 3, 6


class Terminal:
    """Whoever changes it must call `restore` on every way out."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_raw = False
        self._is_changed = False
        #: As it was when it was last ours and unchanged; None: it never was, and what a shell sets
        #: while it reads a command line is good for no program.
        self.found = termios.tcgetattr(fd) if self.is_ours() else None

    def is_ours(self) -> bool:
        """Whether we are in the foreground: in the background it is the shell's."""
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            # It controls no session of ours, so no shell can be using it with us.
            return True

    def hush(self) -> None:
        """Nothing that is typed is shown; ^C and ^Z mean what they mean."""
        if self.is_ours():
            self._remember()
            quiet = termios.tcgetattr(self.fd)
            quiet[_LFLAG] &= ~termios.ECHO
            termios.tcsetattr(self.fd, termios.TCSANOW, quiet)
            self._is_changed = True

    def go_raw(self, *, forget_keys: bool) -> None:
        """Every key comes as it is typed. `forget_keys`: those that were typed before are lost."""
        if self.is_ours():
            self._remember()
            tty.setraw(self.fd, termios.TCSAFLUSH if forget_keys else termios.TCSADRAIN)
            self.is_raw = self._is_changed = True

    def _remember(self) -> None:
        if not self._is_changed:
            self.found = termios.tcgetattr(self.fd)

    def restore(self) -> None:
        self.is_raw = False
        if not self._is_changed:
            return
        self._is_changed = False
        try:
            if self.is_ours() and self.found is not None:
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self.found)
        except (termios.error, OSError):
            # It has been closed: nobody is left to see it.
            pass


def copy_size(source: int, target: int) -> None:
    """Rows and columns; whoever runs on the target gets a SIGWINCH if they are new."""
    try:
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
    except OSError:
        return
    # A serial line may not know its size, and then says 0; nobody can draw on that.
    if struct.unpack("4H", size)[:2] != (0, 0):
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def suspend_key(fd: int) -> bytes | None:
    """The key that stops the program on the terminal; None while the program reads it itself."""
    modes = termios.tcgetattr(fd)
    if not modes[_LFLAG] & termios.ISIG:
        return None
    key: bytes = modes[_CC][termios.VSUSP]
    return None if key == b"\0" else key
