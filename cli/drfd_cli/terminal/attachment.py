"""What must be there before an attached job is submitted: the socket that it will connect to, and
the handlers of signals.

`drf run` loads this module before it sends its request. Therefore it imports neither `socket` nor
`signal`, which take longer to load than a submission lasts, but their parts that are written in C.
"""

from __future__ import annotations

import _signal
import _socket
import os
import sys

from drfd.linux.unix_sockets import accept_own, at_socket, send_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from drfd_cli.terminal.pty import Pty

#: Signals that ask drf to end, and those that it acts on and goes on.
_ENDING = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
_OTHERS = (_signal.SIGTSTP, _signal.SIGCONT, _signal.SIGWINCH)
#: `st_mode` of a directory that is open to its owner alone.
_PRIVATE = 0o040700
#: Connections that may wait to be accepted.
_BACKLOG = 4


class AttachSocket:
    """The socket from which the job's process receives its standard descriptors.

    Its directory is open to the user alone.
    """

    def __init__(self, above: str | None = None) -> None:
        """`above`: where to make its directory, if not where it may disappear with the login.
        Raises OSError."""
        self._is_left = False
        self._directory = _new_directory() if above is None else _directory_in(above)
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
    """Make a directory for this user alone: where nobody else can make one of the same name when
    it is gone, else where temporary files are kept."""
    usual = "/tmp"  # noqa: S108  # a private directory is made in it
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    if not _is_own(named):
        named = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), usual)
    path = os.path.join(os.path.abspath(named), f"drf-run-{os.urandom(6).hex()}")
    try:
        os.mkdir(path, 0o700)
    except OSError:
        # Loaded here because it takes long: it knows other places.
        import tempfile

        return tempfile.mkdtemp(prefix="drf-run-")
    return path


def _directory_in(above: str) -> str:
    os.makedirs(above, 0o700, exist_ok=True)
    path = os.path.join(above, f"drf-run-{os.urandom(6).hex()}")
    os.mkdir(path, 0o700)
    return path


def _is_own(directory: str) -> bool:
    """Return whether this is a directory that only this user can enter."""
    if not os.path.isabs(directory):
        return False
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and found.st_mode == _PRIVATE


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
        caught.append(number)

    for number in (*_ENDING, *_OTHERS):
        _signal.signal(number, catch)
    return caught
