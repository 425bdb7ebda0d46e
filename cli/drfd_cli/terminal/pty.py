"""The pty of a job: the job has one side as its terminal, drf reads and writes the other; and what
must be there before an attached job is submitted, which the job connects to.

It belongs to the submitter: when the last process that has our side open closes it, for whatever
reason, the kernel hangs up the job's side.

`drf run` loads this module before it sends its request. Therefore it imports neither `socket` nor
`signal`, which take longer to load than a submission lasts, but their parts that are written in C.
"""

from __future__ import annotations

import _signal
import _socket
import os
import select
import sys

from drfd.linux.unix_sockets import at_socket
from drfd_cli.terminal.sockets import accept_own, send_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket


#: Private modes (DECSET, `CSI ? n h` and `CSI ? n l`) that are followed, in the order in which they
#: are switched on again. First the alternate screens, then cursor keys, mouse, focus and paste.
_ALTERNATE = (b"1049", b"1047", b"47")
_USUALLY_OFF = (
    *_ALTERNATE, b"1", b"9", b"1000", b"1002", b"1003", b"1004", b"1005", b"1006", b"1015",
    b"2004",
)  # fmt: skip
#: Modes that are on unless a program switches them off: cut long lines, show the cursor.
_USUALLY_ON = (b"7", b"25")
_CSI = b"\x1b[?"
#: Keypad for programs, and for numbers (DECKPAM, DECKPNM).
_KEYPAD_ON, _KEYPAD_OFF = b"\x1b=", b"\x1b>"
#: A sequence that changes modes, perhaps several, or the keypad; and the begin of one at the end.
_SEQUENCE = rb"\x1b(?:\[\?([0-9;]{1,60})([hl])|([=>]))"
_BEGUN = rb"\x1b(?:\[(?:\?[0-9;]{0,60})?)?\Z"


class ScreenModes:
    """The modes of a terminal that a full-screen program has switched on, as seen in its output.

    When drf leaves a program that still has the screen (it was suspended or detached), the shell
    needs the terminal without these modes, and the program needs them again when it comes back.
    """

    def __init__(self) -> None:
        #: Modes that are not as usual.
        self._changed: set[bytes] = set()
        self._has_keypad = False
        #: How often a program has left the alternate screen.
        self.times_left = 0
        #: The begin of a sequence whose rest has not come yet.
        self._rest = b""

    @property
    def is_alternate(self) -> bool:
        """Whether the program has the alternate screen, so that it draws all of it."""
        return not self._changed.isdisjoint(_ALTERNATE)

    def feed(self, piece: bytes) -> None:
        """Note the modes that a piece of output changes."""
        if not self._rest and b"\x1b" not in piece:
            return
        # Imported here: it is slow to load, and a job in a pipe needs none of it.
        import re

        data = self._rest + piece
        for modes, final, keypad in re.findall(_SEQUENCE, data):
            for mode in modes.split(b";"):
                self._set(mode, is_on=final == b"h")
            self._has_keypad = keypad == b"=" if keypad else self._has_keypad
        begun = re.search(_BEGUN, data)
        self._rest = begun[0] if begun else b""

    def _set(self, mode: bytes, *, is_on: bool) -> None:
        if mode in _ALTERNATE and not is_on:
            self.times_left += self.is_alternate
            self._changed.difference_update(_ALTERNATE)
        elif (is_on and mode in _USUALLY_OFF) or (not is_on and mode in _USUALLY_ON):
            self._changed.add(mode)
        else:
            self._changed.discard(mode)

    def leave(self) -> bytes:
        """Return what gives the terminal its usual modes back; `enter` undoes it."""
        parts = [_CSI + mode + b"h" for mode in _USUALLY_ON if mode in self._changed]
        parts += [
            _CSI + mode + b"l"
            for mode in reversed(_USUALLY_OFF)
            if mode in self._changed and mode not in _ALTERNATE
        ]
        if self._has_keypad:
            parts.append(_KEYPAD_OFF)
        if self.is_alternate:
            # Usual colours, and the whole screen scrolls (SGR, DECSTBM).
            parts.append(b"\x1b[0m\x1b[r")
            parts += [_CSI + mode + b"l" for mode in _ALTERNATE if mode in self._changed]
        return b"".join(parts)

    def enter(self) -> bytes:
        """Return what gives the program the modes that it has switched on."""
        parts = [_CSI + mode + b"h" for mode in _USUALLY_OFF if mode in self._changed]
        parts += [_CSI + mode + b"l" for mode in _USUALLY_ON if mode in self._changed]
        if self._has_keypad:
            parts.append(_KEYPAD_ON)
        return b"".join(parts)


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


# -- what an attached job connects to ----------------------------------------------------------


#: Signals that ask drf to end, and those that it acts on and goes on.
_ENDING = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
_OTHERS = (_signal.SIGTSTP, _signal.SIGCONT, _signal.SIGWINCH, _signal.SIGUSR1, _signal.SIGUSR2)
#: Connections that may wait to be accepted.
_BACKLOG = 4


class AttachSocket:
    """The socket from which the job's process receives its standard descriptors.

    Its directory is open to the user alone.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self._is_left = False
        self._directory = _new_directory()
        self.path = os.path.join(self._directory, "attach")
        self._socket = _socket.socket(_socket.AF_UNIX)
        try:
            with at_socket(self.path) as address:
                self._socket.bind(address)
            self._socket.listen(_BACKLOG)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def serve(self, relay: Pty | None) -> bool:
        """Send descriptors to one process: those of the `relay`, or the ones of drf. Returns False
        if the process belongs to another user."""
        # Only a process of the same user may have this terminal.
        connection = accept_own(self._socket)
        if connection is None:
            return False
        try:
            if relay is not None:
                relay.hand_over(connection)
            else:
                send_descriptors(connection, b"+", (0, 1, 2))
        finally:
            connection.close()
        return True

    def leave(self) -> None:
        """Leave the socket to another process that has it open."""
        self._is_left = True

    def close(self) -> None:
        self._socket.close()
        if self._is_left:
            return
        for remove, path in ((os.unlink, self.path), (os.rmdir, self._directory)):
            try:
                remove(path)
            except OSError:
                # Somebody has removed it, or put something beside it.
                pass


def _new_directory() -> str:
    """Make a directory for this user alone where temporary files are kept. Who makes another of its
    name when it is gone gets nothing: the job's process asks the kernel who listens."""
    usual = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  # a private directory is made in it
    path = os.path.join(os.path.abspath(usual), f"drf-run-{os.urandom(6).hex()}")
    try:
        os.mkdir(path, 0o700)
    except OSError:
        # Loaded here because it takes long: it knows other places.
        import tempfile

        return tempfile.mkdtemp(prefix="drf-run-")
    return path


def catch_signals() -> list[int]:
    """Collect signals in the returned list. The second signal that asks drf to end does end it."""
    caught: list[int] = []
    asked_to_end = False

    def catch(number: int, frame: object) -> None:
        nonlocal asked_to_end
        if number in _ENDING:
            if asked_to_end:
                sys.exit(128 + number)
            asked_to_end = True
        if number not in caught:
            caught.append(number)

    for number in (*_ENDING, *_OTHERS):
        _signal.signal(number, catch)
    return caught
