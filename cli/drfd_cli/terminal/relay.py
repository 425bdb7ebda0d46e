"""The terminal that drf was started from, and the relay between it and a job's pty."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import time
import tty
from enum import Enum

from drfd_cli.terminal.pty import Pty, write_all
from drfd_cli.terminal.sockets import send_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterator

#: Indices into the list of `termios.tcgetattr`.
_LFLAG, _CC = 3, 6


#: Escape sequences that enter the alternate screen, hide the cursor and cut long lines; and that
#: restore all of it.
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"


class Terminal:
    """The terminal that drf was started from.

    A caller that changes its modes must call `restore` on every way out.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_raw = False
        self._is_changed = False
        #: The modes as the shell sets them for programs in the foreground. None if drf has only
        #: been in the background, where the modes are those of the shell's command line.
        self.modes = termios.tcgetattr(fd) if self.is_ours() else None

    def is_ours(self) -> bool:
        """Return whether drf is in the foreground of its terminal, so that the shell is not."""
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            # This is not the controlling terminal, so no shell shares it with drf.
            return True

    def disable_echo(self) -> None:
        """Stop echoing what is typed; ^C and ^Z keep their meaning."""
        if self.is_ours():
            self._remember()
            quiet = termios.tcgetattr(self.fd)
            quiet[_LFLAG] &= ~termios.ECHO
            termios.tcsetattr(self.fd, termios.TCSANOW, quiet)
            self._is_changed = True

    def go_raw(self, *, discard_input: bool) -> None:
        """Enter raw mode; with `discard_input`, drop what was typed before."""
        if self.is_ours():
            self._remember()
            tty.setraw(self.fd, termios.TCSAFLUSH if discard_input else termios.TCSADRAIN)
            self.is_raw = self._is_changed = True

    def _remember(self) -> None:
        if not self._is_changed:
            self.modes = termios.tcgetattr(self.fd)

    def restore(self) -> None:
        self.is_raw = False
        if not self._is_changed:
            return
        self._is_changed = False
        try:
            if self.is_ours() and self.modes is not None:
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self.modes)
        except (termios.error, OSError):
            # The terminal has been closed.
            pass


def copy_size(source: int, target: int) -> None:
    """Copy rows and columns of a terminal. Programs on the target get SIGWINCH if they change."""
    try:
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
    except OSError:
        return
    # A serial line may not know its size and report 0; programs cannot draw on that.
    if struct.unpack("4H", size)[:2] != (0, 0):
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def suspend_key(fd: int) -> bytes | None:
    """Return the suspend key (^Z), or None while the program on the terminal reads it itself."""
    modes = termios.tcgetattr(fd)
    if not modes[_LFLAG] & termios.ISIG:
        return None
    key: bytes = modes[_CC][termios.VSUSP]
    return None if key == b"\0" else key


# -- keys that are for drf -----------------------------------------------------------------------


class EscapeCommand(Enum):
    """A command for drf, with the key that gives it after an escape character at the beginning of a
    line, as in ssh."""

    HANG_UP = b"."
    DETACH = b"d"
    SUSPEND = b"\x1a"
    HELP = b"?"


_COMMANDS = {each.value: each for each in EscapeCommand}
_LINE_ENDS = (b"\r", b"\n")


class EscapeFilter:
    """Separates the keys for the job from the commands for drf."""

    def __init__(self, sign: bytes | None) -> None:
        """`sign` is the escape character, one byte, or None if every key is for the job."""
        self._sign = sign
        self._at_line_start = True
        self._has_sign = False

    def feed(self, keys: bytes) -> Iterator[bytes | EscapeCommand]:
        """Yield the bytes for the job and the commands for drf, in the order of the keys."""
        plain = bytearray()
        for number in keys:
            key = bytes([number])
            if self._has_sign:
                self._has_sign = False
                command = _COMMANDS.get(key)
                if command is not None:
                    if plain:
                        yield bytes(plain)
                        plain.clear()
                    self._at_line_start = True
                    yield command
                    continue
                assert self._sign is not None
                # The character typed twice is sent once; before other keys it is no escape.
                plain += self._sign if key == self._sign else self._sign + key
                self._at_line_start = key in _LINE_ENDS
            elif key == self._sign and self._at_line_start:
                self._has_sign = True
            else:
                plain += key
                self._at_line_start = key in _LINE_ENDS
        if plain:
            yield bytes(plain)


# -- the pty of an attached job ---------------------------------------------------------------


#: Most bytes of input that wait until the job reads; beyond them no keys are read.
_BACKLOG_BYTES = 1 << 16
#: Seconds to read the rest of an ended job's output from the kernel's queue.
_DRAIN_S = 2.0
#: Seconds that a program has to stop by itself when it is suspended: one that has the whole screen,
#: and any other.
_SCREEN_STOP_S, _STOP_S = 0.2, 0.02
#: Seconds between two looks whether it has stopped.
_STOP_STEP_S = 0.005
#: Rows and columns for a moment, so that a program sees a new size after it, and for how long.
_OTHER_SIZE, _REDRAW_S = (23, 79), 0.1
#: ^Z, and for how many seconds a program that reads it as a key may take to stop itself.
_SUSPEND_KEY, _SUSPEND_S = b"\x1a", 1.5


class PtyRelay(Pty):
    """Relays bytes between the terminal of drf and the pty of an attached job."""

    def __init__(self, terminal: Terminal, escape: str, master: int | None = None) -> None:
        """`escape`: the escape character, or `none`. `master`: our side of a pty that another
        process has opened, instead of a new one."""
        super().__init__(master)
        self.terminal = terminal
        #: The escape character, or None if there are no escapes.
        self.escape = None if escape == "none" else escape.encode()
        self._keys = EscapeFilter(self.escape)
        self._to_job = b""
        self._stopped_group: int | None = None
        #: Whether the group has stopped by itself, so that it draws its screen when it goes on.
        self._has_stopped_itself = False
        #: Until when the program may stop itself after a ^Z that it has read as a key (monotonic
        #: clock), and how often it had left the alternate screen before.
        self._may_stop_until_s = 0.0
        self._left_before = 0
        #: The descriptor of the terminal that shows the job's output.
        self._screen = next((fd for fd in (1, 2) if os.isatty(fd)), terminal.fd)

    def hand_over(self, connection: socket) -> None:
        """Send the job its standard descriptors: the pty in place of each that is a terminal."""
        slave = self._open_slave()
        try:
            if self.terminal.modes is not None:
                termios.tcsetattr(slave, termios.TCSANOW, self.terminal.modes)
            copy_size(self.terminal.fd, slave)
            fds = [slave, *(slave if os.isatty(fd) else fd for fd in (1, 2))]
            send_descriptors(connection, b"t", fds)
        finally:
            os.close(slave)
        self.is_open = self._was_open = True
        self.terminal.go_raw(discard_input=True)

    def reads(self) -> list[int]:
        """Return the descriptors to read from. In the background, keys are for the shell."""
        takes_keys = self.terminal.is_raw and len(self._to_job) < _BACKLOG_BYTES
        return [*([self.terminal.fd] if takes_keys else []), *self.outputs()]

    def writes(self) -> list[int]:
        return [self._master] if self.is_open and self._to_job else []

    def transfer(self, ready: set[int]) -> Iterator[EscapeCommand]:
        """Relay bytes in both directions; yield the user's commands for drf."""
        if self.terminal.fd in ready:
            yield from self._read_keys()
        if self._to_job:
            self._feed_job()
        self.look_again()
        if self.is_open:
            self._show_output()
        if self._may_stop_until_s and self._wants_to_stop():
            self._may_stop_until_s = 0.0
            yield EscapeCommand.SUSPEND

    def _wants_to_stop(self) -> bool:
        """Return whether the program has suspended itself after a ^Z, or has tried to: it has left
        the screen and is back, since the kernel does not carry out its SIGTSTP (`stop_job`)."""
        if time.monotonic() > self._may_stop_until_s:
            self._may_stop_until_s = 0.0
            return False
        group = self._leading_group()
        modes = self._screen_modes
        is_back = modes.is_alternate and modes.times_left > self._left_before
        return group is not None and (is_back or _is_stopped(group))

    def _read_keys(self) -> Iterator[EscapeCommand]:
        try:
            keys = os.read(self.terminal.fd, 4096)
        except OSError:
            keys = b""
        if not keys:
            # The terminal is gone.
            yield EscapeCommand.HANG_UP
            return
        for part in self._keys.feed(keys):
            if isinstance(part, EscapeCommand):
                yield part
                continue
            while part:
                before, key, part = self._split_at_suspend(part)
                self._to_job += before
                if key:
                    self._feed_job()
                    yield EscapeCommand.SUSPEND

    def _split_at_suspend(self, keys: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the keys before a ^Z that is for drf, that key, and the keys after it.

        ^Z does not stop an orphaned process group, one without a shell in its session
        (setpgid(2)). The group of the job's first process is orphaned, so drf stops it.
        """
        if not self.is_open or self._leading_group() is None:
            return keys, b"", b""
        key = suspend_key(self._master)
        if key is not None:
            return keys.partition(key)
        if _SUSPEND_KEY in keys:
            self._may_stop_until_s = time.monotonic() + _SUSPEND_S
            self._left_before = self._screen_modes.times_left
        return keys, b"", b""

    def _leading_group(self) -> int | None:
        """Return the foreground process group if it is that of the job's first process, or None."""
        try:
            group = os.tcgetpgrp(self._master)
            return group if group > 0 and os.getsid(group) == group else None
        except OSError:
            return None

    def stop_job(self) -> None:
        """Stop the job's foreground group, as ^Z stops a program that a shell started, and give the
        terminal its usual modes back.

        The kernel carries SIGTSTP out only where a program handles it, because the group is
        orphaned. Some of these programs stop then with SIGSTOP; others clean up the screen, are not
        stopped by a second SIGTSTP and go on. So SIGSTOP follows for all.
        """
        self._stopped_group = group = self._leading_group()
        if group is not None:
            self._signal(group, signal.SIGTSTP)
            self._has_stopped_itself = self._stops(group)
            self._signal(group, signal.SIGSTOP)
            # What it has written before.
            while self.is_open and select.select([self._master], [], [], 0)[0]:
                self._show_output()
        self.leave_screen()

    def _stops(self, group: int) -> bool:
        """Show what the group writes until it has stopped, and return whether it has in time."""
        seconds = _SCREEN_STOP_S if self._screen_modes.is_alternate else _STOP_S
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if _is_stopped(group):
                return True
            select.select(self.outputs(), [], [], _STOP_STEP_S)
            if self.is_open:
                self._show_output()
        return _is_stopped(group)

    def leave_screen(self) -> None:
        """Give the terminal the modes that it had before the job's program took the screen."""
        self._write_screen(self._screen_modes.leave())

    def continue_job(self) -> None:
        """Let the group go on where `stop_job` has stopped it, with its screen drawn again."""
        group, self._stopped_group = self._stopped_group, None
        if group is None:
            return
        self._write_screen(self._screen_modes.enter())
        self._signal(group, signal.SIGCONT)
        if self._has_stopped_itself or not self._screen_modes.is_alternate:
            return
        # Somebody else's text is on the screen. A program that handles SIGTSTP draws all of its
        # screen after it; others do at a new size.
        self._signal(group, signal.SIGTSTP)
        if self._stops(group):
            self._signal(group, signal.SIGCONT)
        self._signal(group, signal.SIGWINCH)

    def _signal(self, group: int, number: int) -> None:
        try:
            os.killpg(group, number)
        except OSError:
            # The group has just ended, or runs as another user (su).
            pass

    def show_again(self) -> None:
        """Show what the job has on its terminal: the last output, or let a program that has the
        whole screen draw it at a new size."""
        self._write_screen(self._screen_modes.enter())
        if not self._screen_modes.is_alternate:
            self._write_screen(self._last)
            self.resize()
            return
        # A program draws when the size changes; it may be the same as before.
        size = struct.pack("4H", *_OTHER_SIZE, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        time.sleep(_REDRAW_S)
        self.resize()

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

    def _write_screen(self, data: bytes) -> None:
        try:
            write_all(self._screen, data)
        except OSError:
            # The terminal has been closed.
            pass

    def end_line(self) -> None:
        write_all(self._screen, b"\n")

    def drain(self) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while self.is_open and time.monotonic() < deadline:
            select.select([self._master], [], [], _DRAIN_S)
            self._show_output()

    def close(self) -> None:
        os.close(self._master)
        self.terminal.restore()


def _is_stopped(pid: int) -> bool:
    """Return whether a process has been stopped by a signal."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].startswith(b"T")
    except OSError:
        return False


def end_by_signal(number: int, frame: object) -> None:
    """Handle a signal by leaving the program, so that the terminal is restored on the way out."""
    raise SystemExit(128 + number)
