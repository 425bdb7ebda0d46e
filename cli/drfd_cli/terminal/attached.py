"""An attached job, from its submission to its end: `drf run`, and the run of `drf profile`.

The job's process connects to a socket of drf, as its user, and receives its descriptors there. No
input or output goes through the daemon, so a restart of the daemon interrupts nothing.

`drf run` loads this module while the daemon starts the job. What only some jobs need is imported
where it is used: terminals, messages.
"""

from __future__ import annotations

import _signal as signal
import os
import stat
import sys
import time
from abc import ABC, abstractmethod

from drfd.client.connection import Connection
from drfd.client.streams import Watch
from drfd.common.errors import DrfdError, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from drfd.protocol.replies import JobView
    from drfd_cli.output import StatusLine
    from drfd_cli.terminal.pty import AttachSocket
    from drfd_cli.terminal.relay import EscapeCommand, PtyRelay

#: Seconds between two checks whether drf is in the foreground and the job's terminal is open.
_POLL_S = 0.5
#: Seconds until the reason of a wait is shown, and between two updates.
_PATIENCE_S, _REFRESH_S = 1.0, 2.0
#: Signals after which a failed job is not mentioned, as in a shell; None if it exited.
_SILENT_SIGNALS = (None, signal.SIGINT, signal.SIGPIPE)
_HELP = (
    "escapes, after Enter:",
    "  {0}.   hang up: the job is stopped",
    "  {0}d   detach: the job goes on without this terminal",
    "  {0}^Z  suspend drf and the job; fg resumes both",
    "  {0}{0}   the sign itself",
)


def is_interactive() -> bool:
    """Return whether input is a terminal and output is no pipe: the reader of a pipe, such as a
    pager, may use the terminal itself."""
    return os.isatty(0) and not stat.S_ISFIFO(os.fstat(1).st_mode)


def attend(
    client: Connection,
    attach_socket: AttachSocket,
    signals: list[int],
    job_id: int,
    *,
    is_quiet: bool,
    escape: str,
) -> JobView:
    """Relay the terminal of a job until it has ended, and return the ended job.

    The job connects to `attach_socket`, which is closed at the end. `signals`: the list to which
    arriving signals are added; the first that asks drf to end cancels the job.
    """
    terminal = relay = None
    try:
        if is_interactive():
            from drfd_cli.terminal.relay import PtyRelay, Terminal

            terminal = Terminal(0)
            terminal.disable_echo()
            relay = PtyRelay(terminal, escape)
        attached_run = AttachedRun(client, job_id, attach_socket, relay, signals, is_quiet=is_quiet)
        return attached_run.attend()
    finally:
        if terminal is not None:
            terminal.restore()
        attach_socket.close()


class Attachment(ABC):
    """Stays with a submitted job until it ends: relays its terminal and forwards signals."""

    def __init__(
        self, client: Connection, job_id: int, relay: PtyRelay | None, signals: list[int], *,
        is_quiet: bool, is_attended: bool,
    ) -> None:  # fmt: skip
        """`relay` is None if the job has the descriptors of drf itself. `signals` is the list to
        which arriving signals are added; the first that asks drf to end cancels the job. If it
        `is_attended`, so does the end of drf."""
        self._client = client
        self._job_id = job_id
        self._relay = relay
        self._signals = signals
        self._watch = Watch(client, job_id, attended=is_attended)
        self._is_cancelled = False
        self._line: WaitingLine | None = None
        if not is_quiet:
            self._line = WaitingLine(client.another(), job_id)

    def attend(self) -> JobView:
        relay = self._relay
        with SignalWakeup() as wakeup:
            while True:
                streams = [*self._sources(), wakeup, *(relay.reads() if relay else [])]
                writes = relay.writes() if relay else []
                reply, ready = self._watch.poll(_POLL_S, streams, writes)
                if reply is None and not ready:
                    # The job may outlast this release of drf: its messages are loaded now.
                    import drfd_cli.output  # noqa: F401
                if wakeup in ready:
                    os.read(wakeup, 4096)
                if not ready.isdisjoint(self._sources()):
                    self._serve()
                self._handle_signals()
                if relay is not None:
                    if relay.is_open and not relay.terminal.is_raw:
                        # Take the terminal back if we are in the foreground again.
                        relay.terminal.go_raw(discard_input=False)
                    for command in relay.transfer(ready):
                        self._obey(command, relay)
                if reply is not None and not reply["ended"]:
                    return self._give_up(reply["never"][0])
                if reply is not None:
                    # It is no array.
                    view: Any = reply["ended"][0]
                    ended: JobView = view
                    self._finish(ended)
                    return ended
                if self._line is not None:
                    self._line.refresh()

    @abstractmethod
    def _sources(self) -> list[int]:
        """Return the descriptors that are readable when there is somebody to `_serve`."""

    @abstractmethod
    def _serve(self) -> None:
        """Serve whoever is there."""

    @abstractmethod
    def _detach(self, relay: PtyRelay) -> None:
        """Leave the job, which goes on, and exit."""

    def _obey(self, command: EscapeCommand, relay: PtyRelay) -> None:
        from drfd_cli.terminal.relay import EscapeCommand

        match command:
            case EscapeCommand.HANG_UP:
                self._hang_up(relay)
            case EscapeCommand.SUSPEND:
                self._suspend(relay)
            case EscapeCommand.HELP:
                sign = (relay.escape or b"").decode()
                announce(*(line.format(sign) for line in _HELP))
            case EscapeCommand.DETACH:
                self._detach(relay)

    def _hang_up(self, relay: PtyRelay) -> NoReturn:
        """Close the pty, as if the terminal had been closed, and exit."""
        from drfd_cli import output

        relay.close()
        relay.leave_screen()
        output.say(f"job {self._job_id}: hung up")
        sys.exit(128 + signal.SIGHUP)

    def _suspend(self, relay: PtyRelay | None) -> None:
        """Stop the process group of drf until a SIGCONT, as the shell expects of ^Z."""
        self._clear_line()
        if relay is not None:
            relay.stop_job()
            relay.terminal.restore()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(0, signal.SIGTSTP)
        # Execution continues here after the SIGCONT.
        signal.signal(signal.SIGTSTP, before)
        self._resume()

    def _resume(self) -> None:
        if self._relay is None:
            return
        if self._relay.is_open:
            self._relay.terminal.go_raw(discard_input=False)
        else:
            self._relay.terminal.disable_echo()
        self._relay.resize()
        self._relay.continue_job()

    def _handle_signals(self) -> None:
        # One at a time: more may arrive at any moment.
        for _ in range(len(self._signals)):
            match number := self._signals.pop(0):
                case signal.SIGTSTP:
                    self._suspend(self._relay)
                case signal.SIGCONT:
                    self._resume()
                case signal.SIGWINCH:
                    if self._relay is not None:
                        self._relay.resize()
                case signal.SIGHUP if self._relay is not None:
                    self._hang_up(self._relay)
                case signal.SIGUSR1 | signal.SIGUSR2:
                    from drfd.common.signals import FIRST

                    self._request(number, "signal", signal=FIRST | number)
                case _ if not self._is_cancelled:
                    self._is_cancelled = self._request(number, "cancel")

    def _request(self, number: int, verb: str, **fields: object) -> bool:
        """Have the daemon do this to the job because of this signal. If the daemon is away, return
        False, and try again later: the job would run on."""
        other = self._client.another()
        try:
            other.request(verb, select={"ids": [self._job_id]}, **fields)
        except Unavailable:
            self._signals.append(number)
            return False
        finally:
            other.close()
        return True

    def _give_up(self, job: JobView) -> JobView:
        """Cancel a job that can never start, and return it with an exit status."""
        from drfd_cli import output

        self._clear_line()
        if self._relay is not None:
            self._relay.terminal.restore()
        self._client.another().request("cancel", select={"ids": [self._job_id]})
        output.tell_never(job)
        return {**job, "status": output.NEVER_RAN}

    def _finish(self, ended: JobView) -> None:
        self._clear_line()
        if self._relay is not None:
            self._relay.drain()
            self._relay.leave_screen()
            self._relay.terminal.restore()
            if ended["signal"] == signal.SIGINT:
                # The shell's prompt begins on a new line, as after any ^C.
                self._relay.end_line()
        code = "" if ended["outcome"] is None else ended["outcome"]["code"]
        # What the job said itself has been seen; a shell would say which signal killed a program.
        is_silent = code == "COMPLETED" or (code == "FAILED" and ended["signal"] in _SILENT_SIGNALS)
        was_asked = self._is_cancelled and code == "CANCELLED"
        if was_asked and ended["started_at"] is None:
            from drfd_cli import output

            output.say(f"job {ended['id']} is cancelled before it has started")
        elif not is_silent and not was_asked:
            from drfd_cli import output

            output.say(f"job {ended['id']} {output.why_line(ended)}")

    def _clear_line(self) -> None:
        if self._line is not None:
            self._line.clear()


class AttachedRun(Attachment):
    """Stays with a job that was submitted here, and gives it its descriptors."""

    def __init__(
        self, client: Connection, job_id: int, attach_socket: AttachSocket, relay: PtyRelay | None,
        signals: list[int], *, is_quiet: bool,
    ) -> None:  # fmt: skip
        super().__init__(client, job_id, relay, signals, is_quiet=is_quiet, is_attended=True)
        self._attach_socket = attach_socket

    def _sources(self) -> list[int]:
        return [self._attach_socket.fileno()]

    def _serve(self) -> None:
        if self._relay is None:
            # The job may write here as soon as it is served.
            self._clear_line()
        if self._attach_socket.serve(self._relay):
            # A pty discards keys that were typed before this moment, so the line disappears only
            # now: a user who sees that can type.
            self._clear_line()
            self._line = None
            # From now on drf waits for a daemon that is away: to exit would hang up the job.
            self._watch.is_patient = True

    def _detach(self, relay: PtyRelay) -> None:
        from drfd_cli import output
        from drfd_cli.terminal.keeper import detach

        try:
            path = detach(self._client, relay, self._watch, self._job_id, self._attach_socket)
        except OSError as error:
            announce(f"cannot detach: {error.filename}: {error.strerror}")
            return
        self._attach_socket.leave()
        relay.leave_screen()
        relay.terminal.restore()
        job = self._job_id
        output.say(f"job {job} goes on; its output goes to {path}; drf attach {job} returns")
        sys.exit(0)


class WaitingLine:
    """The line that says why an attached job waits; on a terminal it is kept up to date."""

    def __init__(self, client: Connection, job_id: int) -> None:
        """`client` is a connection that is used for nothing else."""
        self._client = client
        self._job_id = job_id
        self._next = time.monotonic() + _PATIENCE_S
        self._status: StatusLine | None = None
        self._code = ""

    def refresh(self) -> None:
        """Update the line if `_REFRESH_S` have passed since the last time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REFRESH_S
        try:
            job = self._client.request("status", select={"ids": [self._job_id]})["jobs"][0]
        except DrfdError:
            # The daemon is being restarted, or is busy.
            self._client.close()
            return
        if job["reason"] is not None:
            self._show(job)

    def _show(self, job: JobView) -> None:
        from drfd_cli import output

        text = f"job {self._job_id} waits: {output.why_line(job)}"
        self._status = self._status or output.StatusLine()
        if self._status.is_live:
            self._status.show(f"drf: {text}")
        elif job["reason"] is not None and job["reason"]["code"] != self._code:
            # In a log, a line is added only if the code of the reason changes.
            output.say(text)
            self._code = job["reason"]["code"]

    def clear(self) -> None:
        """Erase the line, because the job has started or another message follows."""
        if self._status is not None:
            self._status.show("")


class SignalWakeup:
    """`with SignalWakeup() as fd`: a descriptor that becomes readable when a signal has arrived.

    This is no generator of contextlib, which takes long to load.
    """

    def __enter__(self) -> int:
        self._out, self._into = os.pipe()
        os.set_blocking(self._into, False)
        self._before = signal.set_wakeup_fd(self._into, warn_on_full_buffer=False)
        return self._out

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._out)
        os.close(self._into)


def announce(*lines: str) -> None:
    """Print messages on a raw terminal, where a newline does not return to the left margin."""
    from drfd_cli import output

    for line in lines:
        sys.stderr.write(f"\r\ndrf: {output.clean(line, 1000)}")
    sys.stderr.write("\r\n")
    sys.stderr.flush()
