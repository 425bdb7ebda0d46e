"""Attending to a job from its submission to its end: its terminal, our signals, its exit code.

The job's own process comes to our counter, as the user, and is given what it reads and writes;
nothing of that goes through the daemon, and a restart of the daemon cuts nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from drfd.client.connection import Connection
from drfd.client.watch import Watch
from drfd.errors import Unavailable
from drfd.paths import at_socket
from drfd.peer import peer_of
from drfd_cli import output
from drfd_cli.detach import detach
from drfd_cli.escape import Order
from drfd_cli.options import connect
from drfd_cli.stage import Stage
from drfd_cli.waiting import WaitingLine

#: How soon it is seen that we are in the foreground again, or that the job has a new terminal.
_POLL_S = 0.5
_HELP = (
    "escapes, after Enter:",
    "  {0}.   hang up: the job is stopped",
    "  {0}d   detach: the job goes on without this terminal",
    "  {0}^Z  suspend drf and the job; fg resumes both",
    "  {0}{0}   the sign itself",
)


class Counter:
    """Where the job's process comes for its descriptors: a socket that only its user can reach."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="drf-run-"))
        self.path = self._directory / "attach"
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with at_socket(self.path) as address:
                self._socket.bind(address)
            self._socket.listen(4)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def serve(self, stage: Stage | None) -> bool:
        """Hand over to the one that has come: the stage's side, or our own descriptors."""
        connection, _ = self._socket.accept()
        with connection:
            # Nobody but a process of our own may have this terminal.
            if peer_of(connection).uid != os.getuid():
                return False
            if stage is not None:
                stage.hand_over(connection)
            else:
                socket.send_fds(connection, [b"+"], [0, 1, 2])
        return True

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class Attendance:
    def __init__(
        self, client: Connection, job_id: int, counter: Counter, stage: Stage | None,
        signals: list[int], *, is_quiet: bool, escape: str,
    ) -> None:  # fmt: skip
        """`stage`: None when the job gets our descriptors as they are. `signals`: those that have
        come; the first of them cancels the job."""
        self._job_id = job_id
        self._counter = counter
        self._stage = stage
        self._signals = signals
        self._escape = escape
        self._watch = Watch(client, job_id, attended=True)
        self._is_cancelled = False
        self._line: WaitingLine | None = None
        if not is_quiet:
            self._line = WaitingLine(connect(), job_id)

    def attend(self) -> dict[str, Any]:
        """Until the job has ended; it, as `wait` tells it."""
        stage = self._stage
        with _bell() as bell:
            while True:
                streams = [self._counter.fileno(), bell, *(stage.reads() if stage else [])]
                writes = stage.writes() if stage else []
                reply, ready = self._watch.poll(_POLL_S, streams, writes)
                if bell in ready:
                    os.read(bell, 4096)
                if self._counter.fileno() in ready:
                    self._welcome()
                self._heed_signals()
                if stage is not None:
                    self._carry(stage, ready)
                if reply is not None and not reply["ended"]:
                    return self._give_up(reply["never"][0])
                if reply is not None:
                    ended: dict[str, Any] = reply["ended"][0]
                    self._finish(ended)
                    return ended
                if self._line is not None:
                    self._line.refresh()

    def _welcome(self) -> None:
        if self._stage is None:
            # In a moment the job itself may write here.
            self._clear_line()
        if self._counter.serve(self._stage):
            # Where we carry its keys, those typed before it was served are lost: the line goes
            # after that, so that who sees it go can type.
            self._clear_line()
            self._line = None
            # From now on, leaving would cut off a job that runs.
            self._watch.is_patient = True

    def _carry(self, stage: Stage, ready: set[int]) -> None:
        if stage.is_open and not stage.terminal.is_raw:
            # In the foreground again, or still not.
            stage.terminal.go_raw(forget_keys=False)
        for order in stage.carry(ready):
            match order:
                case Order.LEAVE:
                    self._leave(stage)
                case Order.SUSPEND:
                    self._suspend(stage)
                case Order.HELP:
                    _announce(*(line.format(self._escape) for line in _HELP))
                case Order.DETACH:
                    self._detach(stage)

    def _leave(self, stage: Stage) -> NoReturn:
        """As if the terminal had been closed."""
        stage.close()
        output.say(f"job {self._job_id}: hung up")
        sys.exit(128 + signal.SIGHUP)

    def _suspend(self, stage: Stage | None) -> None:
        """Stop ourselves, and all that a ^Z in the shell would stop with us, until a SIGCONT."""
        self._clear_line()
        if stage is not None:
            stage.stop_job()
            stage.terminal.restore()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(0, signal.SIGTSTP)
        # Here it is some other time.
        signal.signal(signal.SIGTSTP, before)
        self._go_on()

    def _go_on(self) -> None:
        if self._stage is None:
            return
        if self._stage.is_open:
            self._stage.terminal.go_raw(forget_keys=False)
        else:
            self._stage.terminal.hush()
        self._stage.resize()
        self._stage.continue_job()

    def _detach(self, stage: Stage) -> None:
        try:
            path = detach(stage, self._watch, self._job_id)
        except OSError as error:
            _announce(f"cannot detach: {error.filename}: {error.strerror}")
            return
        stage.terminal.restore()
        job = self._job_id
        output.say(f"job {job} goes on; its output goes to {path}: drf log -f {job}")
        sys.exit(0)

    def _heed_signals(self) -> None:
        # One by one: others may come at any moment.
        for _ in range(len(self._signals)):
            match number := self._signals.pop(0):
                case signal.SIGTSTP:
                    self._suspend(self._stage)
                case signal.SIGCONT:
                    self._go_on()
                case signal.SIGWINCH:
                    if self._stage is not None:
                        self._stage.resize()
                case signal.SIGHUP if self._stage is not None:
                    self._leave(self._stage)
                case _ if not self._is_cancelled:
                    self._is_cancelled = _cancel(self._job_id)
                    if not self._is_cancelled:
                        # The daemon is away: to be tried again, or the job would run on.
                        self._signals.append(number)

    def _give_up(self, job: dict[str, Any]) -> dict[str, Any]:
        """It can never start: with nobody attending to it, it goes."""
        self._clear_line()
        if self._stage is not None:
            self._stage.terminal.restore()
        connect().request("cancel", select={"ids": [self._job_id]})
        output.tell_never(job)
        return job | {"status": output.NEVER_RAN}

    def _finish(self, ended: dict[str, Any]) -> None:
        self._clear_line()
        if self._stage is not None:
            self._stage.drain()
            self._stage.terminal.restore()
            if ended["signal"] == signal.SIGINT:
                # As after any ^C: the shell's prompt does not stand behind it.
                self._stage.end_line()
        code = ended["outcome"]["code"]
        if code not in ("COMPLETED", "FAILED") and not (self._is_cancelled and code == "CANCELLED"):
            output.say(f"job {ended['id']} {output.why_line(ended)}")

    def _clear_line(self) -> None:
        if self._line is not None:
            self._line.clear()


def catch_signals() -> list[int]:
    """Those that come are collected; of those that ask us to end, the second one ends us."""
    caught: list[int] = []
    asked_to_end = False

    def note(number: int, frame: object) -> None:
        caught.append(number)

    def catch(number: int, frame: object) -> None:
        nonlocal asked_to_end
        if asked_to_end:
            sys.exit(128 + number)
        asked_to_end = True
        caught.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, catch)
    for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
        signal.signal(number, note)
    return caught


@contextmanager
def _bell() -> Iterator[int]:
    """A descriptor that becomes readable when a signal has come."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    before = signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    try:
        yield out
    finally:
        signal.set_wakeup_fd(before)
        os.close(out)
        os.close(into)


def _cancel(job_id: int) -> bool:
    """False when the daemon is away."""
    other = connect()
    try:
        other.request("cancel", select={"ids": [job_id]})
    except Unavailable:
        return False
    finally:
        other.close()
    return True


def _announce(*lines: str) -> None:
    """Talk on a raw terminal, where a line end does not go back to the left."""
    for line in lines:
        sys.stderr.write(f"\r\ndrf: {output.clean(line, 1000)}")
    sys.stderr.write("\r\n")
    sys.stderr.flush()
