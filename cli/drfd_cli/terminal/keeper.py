"""A job whose terminal nobody looks at: the process in the background that keeps the terminal.

It copies what the job writes into the job's output file, lends the terminal to `drf attach`, and
ends with the job. If it is killed, the job loses its terminal as if drf had hung up.

`drf attach` finds it at a socket beside the one that the job connects to.
"""

from __future__ import annotations

import _signal as signal
import _socket
import os
import select
from contextlib import suppress
from errno import EPERM
from pwd import getpwuid

from drfd.client.connection import Connection
from drfd.client.streams import Watch
from drfd.common.errors import DrfdError
from drfd.linux.unix_sockets import at_socket
from drfd_cli.terminal.pty import Pty, write_all
from drfd_cli.terminal.sockets import accept_own, limit_waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from drfd_cli.terminal.pty import AttachSocket

#: What a visitor says: the job is to be hung up; it leaves, and this is what it has seen.
HANG_UP, LEAVE = b"h", b"l"
#: What a visitor is told when another one takes its place.
TAKEN = b"t"
#: The longest message between the two, in bytes.
MESSAGE_BYTES = 1 << 14
#: Seconds between attempts to read a closed terminal, which may be opened again.
_POLL_S = 5.0
#: Seconds until the next question about a job that can never start as things are.
_NEVER_S = 30.0
#: Seconds that a visitor may take to leave when another one comes.
_ANSWER_S = 1
_BACKLOG = 4
#: Signals by which the kernel tells the processes at a terminal what has become of it.
_OF_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTSTP)
#: Other signals that drf has caught while the terminal was in front of it.
_CAUGHT = (signal.SIGTERM, signal.SIGWINCH, signal.SIGCONT)


def place_of(attach_path: str) -> str:
    """Return the path at which the keeper of a job listens, by that of the job's attach socket."""
    return os.path.join(os.path.dirname(attach_path), "keeper")


def detach(client: Connection, pty: Pty, watch: Watch, job_id: int, entrance: AttachSocket) -> str:
    """Fork a process that keeps the terminal and the entrance, and return the path that the output
    goes to. Raises OSError if the path cannot be written; nothing has changed then."""
    path, file = _open_output(client, job_id)
    _leave(TerminalKeeper(pty.alone(), watch, file, entrance))
    return path


def keep_from_the_start(client: Connection, entrance: AttachSocket, job_id: int) -> None:
    """Fork a process that gives the job a terminal when it starts, and keeps it. Raises OSError."""
    _, file = _open_output(client, job_id)
    watch = Watch(client.another(), job_id, attended=True)
    watch.is_patient = True
    _leave(TerminalKeeper(Pty(), watch, file, entrance))


def _open_output(client: Connection, job_id: int) -> tuple[str, int]:
    """Open the job's output file, which `drf log` reads, as the job would open it. Its name follows
    from what the user has signed: the daemon must not choose what is written to."""
    from drfd.payload.pack import usual_output
    from drfd.payload.signs import output_signs
    from drfd.payload.unpack import is_named_by_id, is_own_file, output_path

    pattern, cwd, name = f"{usual_output(is_array=False)}.out", os.getcwd(), ""
    other = client.another()
    try:
        fields: Any = other.submission(job_id)["submission"]
        pattern, cwd, name = fields["stdout"], fields["cwd"], fields["name"]
    except DrfdError:
        # The job goes on, with the usual name.
        pass
    finally:
        other.close()
    user = getpwuid(os.getuid()).pw_name if "%u" in pattern else ""
    path = output_path(pattern, cwd, output_signs(job_id=job_id, name=name, user=user))
    own = is_named_by_id(pattern)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Without O_NONBLOCK a FIFO that nobody reads, whosever it is, would block this process.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags | (os.O_NOFOLLOW if own else 0), 0o666)
    if own and not is_own_file(os.fstat(file)):
        os.close(file)
        raise PermissionError(EPERM, "it is not an ordinary file of your own", path)
    os.set_blocking(file, True)
    return path, file


def _leave(keeper: TerminalKeeper) -> None:
    """Leave the terminal to a process in the background. Whoever comes from now on is served by it.
    Raises OSError; nothing has changed then."""
    try:
        keeper.listen()
        if _fork_apart():
            _run(keeper)
    except OSError:
        keeper.stop_listening()
        raise
    finally:
        keeper.release()


def _fork_apart() -> bool:
    """Fork a process that no signal of this one's terminal ends, and return whether this is it.

    The kernel hangs up the terminal's whole foreground process group when its session leader ends
    (setsid(2), tty_ioctl(4)). That may be this process, as in a window that was opened for one
    command, and it may end before the other one has run at all. Therefore the signals are blocked
    until the other process has left the session.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_OF_TERMINALS, *_CAUGHT))
    try:
        if os.fork():
            return False
        signal.set_wakeup_fd(-1)
        os.setsid()
        for number in _CAUGHT:
            signal.signal(number, signal.SIG_DFL)
        for number in _OF_TERMINALS:
            # Also one that has been sent to it meanwhile.
            signal.signal(number, signal.SIG_IGN)
        return True
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(keeper: TerminalKeeper) -> NoReturn:
    """Keep the terminal in this process, which has just been forked, and end it."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):
            os.dup2(null, each)
        keeper.keep()
    finally:
        keeper.close()
        os._exit(0)


class TerminalKeeper:
    """Keeps the terminal of a job until the job has ended."""

    def __init__(self, pty: Pty, watch: Watch, file: int, entrance: AttachSocket) -> None:
        """`file` takes the output. `entrance`: where each run of the job asks for its terminal."""
        self._pty = pty
        self._watch = watch
        self._file = file
        self._entrance = entrance
        self._place = place_of(entrance.path)
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        #: The `drf attach` that has the terminal now.
        self._visitor: _socket.socket | None = None

    def listen(self) -> None:
        with at_socket(self._place) as address:
            self._listener.bind(address)
        self._listener.listen(_BACKLOG)

    def keep(self) -> None:
        reply = None
        while reply is None or not reply["ended"]:
            if reply is not None:
                # It waits for what may still be changed.
                select.select(self._reads(), [], [], _NEVER_S)
                self._watch.repeat()
            reply, ready = self._watch.poll(_POLL_S, self._reads())
            if self._entrance.fileno() in ready:
                # A run of the job: it may run again, after a failure or when it was preempted. Its
                # process may just have been killed.
                with suppress(OSError):
                    self._entrance.serve(self._pty)
            if self._listener.fileno() in ready:
                self._admit()
            elif self._visitor is not None and self._visitor.fileno() in ready:
                self._hear(self._visitor)
            if self._visitor is None:
                self._pty.look_again()
                while piece := self._pty.read():
                    # On a full disk the output is lost, but the job does not block.
                    with suppress(OSError):
                        write_all(self._file, piece)

    def _reads(self) -> list[int]:
        others = self._pty.outputs() if self._visitor is None else [self._visitor.fileno()]
        return [self._entrance.fileno(), self._listener.fileno(), *others]

    def _admit(self) -> None:
        """Lend the terminal to a visitor, instead of the one that has it."""
        visitor = accept_own(self._listener)
        if visitor is None:
            return
        if self._visitor is not None:
            self._send_away(self._visitor)
        try:
            self._pty.lend(visitor)
        except OSError:
            visitor.close()
            return
        self._visitor = visitor

    def _send_away(self, visitor: _socket.socket) -> None:
        """Take the terminal from a visitor, who says what it has seen unless it stands still."""
        limit_waits(visitor, _ANSWER_S)
        # It may have just gone.
        with suppress(OSError):
            visitor.send(TAKEN, _socket.MSG_NOSIGNAL)
        self._hear(visitor)

    def _hear(self, visitor: _socket.socket) -> None:
        """Read what a visitor says. Without a word it has been killed."""
        try:
            said = visitor.recv(MESSAGE_BYTES)
        except OSError:
            said = b""
        visitor.close()
        self._visitor = None
        if said[:1] == HANG_UP:
            raise SystemExit
        if said[:1] == LEAVE:
            self._pty.remember(said[1:])

    def release(self) -> None:
        """Close what another process has open, too, and goes on with."""
        os.close(self._file)
        self._pty.release()
        self._listener.close()

    def stop_listening(self) -> None:
        with suppress(OSError):
            os.unlink(self._place)

    def close(self) -> None:
        self.stop_listening()
        self._entrance.close()
