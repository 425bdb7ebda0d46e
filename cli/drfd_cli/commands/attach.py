"""drf attach: return to a job that goes on without a terminal in front of it."""

from __future__ import annotations

import _signal as signal
import os
import socket
import sys
from typing import Any, NoReturn

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref
from drfd.common.errors import Refused
from drfd.linux.sealed import receive
from drfd.linux.unix_sockets import connect_in_line, peer_of, without_limits
from drfd_cli import output
from drfd_cli.options import GroupedHelp, connect, escape_option, job_id
from drfd_cli.terminal.attached import Attendance, is_interactive, own_terminal, relay_of
from drfd_cli.terminal.attachment import catch_signals
from drfd_cli.terminal.keeper import HANG_UP, LEAVE, MESSAGE_BYTES, TAKEN, place_of
from drfd_cli.terminal.relay import PtyRelay

_ENDING = frozenset((signal.SIGHUP, signal.SIGTERM, signal.SIGINT))
#: Seconds that the keeper may take to answer.
_ANSWER_S = 10


@click.command("attach", cls=GroupedHelp)
@escape_option
@job_id
def command(job_id: Ref, escape: str) -> int:
    """Return to the terminal of a job of yours: one that was detached (~d in drf run), or was
    submitted with --pty.

    All keys are the job's own. After Enter, ~d leaves it again, ~. hangs up, which stops it, and ~?
    lists the escapes. Closing the window leaves it, too. One terminal is attached at a time: the
    last. If the job ends, its exit code becomes the exit code.
    """
    client = connect()
    job, attach_path = _terminal_of(client, job_id)
    if not is_interactive():
        raise Refused(
            "no-terminal", "drf attach needs a terminal", hint=f"drf log -f {job} shows its output"
        )
    keeper, master, seen = _meet(job, place_of(attach_path))
    view = client.request("show", id=job)["job"]
    if view["state"] in output.WAITING:
        output.say(f"job {job} waits: {output.why_line(view)}")
    signals = catch_signals()
    terminal = own_terminal()
    try:
        relay = relay_of(terminal, escape, master)
        relay.remember(seen)
        terminal.go_raw(discard_input=False)
        relay.show_again()
        return int(Visit(client, job, keeper, relay, signals).attend()["status"])
    finally:
        terminal.restore()


def _terminal_of(client: Connection, ref: Ref) -> tuple[int, str]:
    """Return the id of a live job with a terminal of its own, and the path of its attach socket.
    Raises Refused."""
    reply = client.submission(ref)
    label = reply["label"]
    if not reply["live"]:
        raise Refused("has-ended", f"job {label} has ended", hint=f"drf log {label}")
    attach_path = reply["submission"].get("attach")
    if not isinstance(attach_path, str):
        raise Refused(
            "no-terminal",
            f"job {label} has no terminal",
            hint=f"drf log -f {label} shows its output, drf exec {label} opens a shell inside it;"
            " drf submit --pty gives a job a terminal",
        )
    return int(label), attach_path


def _meet(job: int, place: str) -> tuple[socket.socket, int, bytes]:
    """Connect to the job's keeper. Return the connection, our side of the job's pty, and what the
    job has on its terminal. Raises Refused."""
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connect_in_line(keeper, place, _ANSWER_S)
        if peer_of(keeper)[0] != os.getuid():
            raise Refused("other-user", f"{place} is another user's")
        seen, masters, _ = receive(keeper, MESSAGE_BYTES, 1)
    except (FileNotFoundError, ConnectionRefusedError):
        raise Refused(
            "not-detached",
            f"job {job} is not detached: nobody keeps its terminal for drf attach",
            hint="type ~d after Enter where drf run shows it; a job in a pipe has no terminal",
        ) from None
    except OSError as error:
        raise Refused("silent", f"the terminal of job {job}: {error.strerror}") from None
    if not masters:
        raise Refused("has-ended", f"job {job} has just ended", hint=f"drf log {job}")
    without_limits(keeper)
    return keeper, masters[0], seen


class Visit(Attendance):
    """Stays with a job that has another keeper, until the user leaves or the job ends."""

    def __init__(
        self, client: Connection, job_id: int, keeper: socket.socket, relay: PtyRelay,
        signals: list[int],
    ) -> None:  # fmt: skip
        super().__init__(client, job_id, relay, signals, is_quiet=True, is_attended=False)
        self._watch.is_patient = True
        self._keeper: socket.socket | None = keeper

    def _sources(self) -> list[int]:
        return [] if self._keeper is None else [self._keeper.fileno()]

    def _serve(self) -> None:
        """Leave if another terminal takes this one's place. If the keeper is gone, the job is about
        to be cancelled."""
        assert self._keeper is not None
        said = b""
        try:
            said = self._keeper.recv(MESSAGE_BYTES)
        except OSError:
            # As if it had said nothing.
            pass
        if said == TAKEN:
            self._leave(f"job {self._job_id} is attached to another terminal now")
        self._keeper.close()
        self._keeper = None

    def _leave(self, text: str) -> NoReturn:
        relay: Any = self._relay
        self._tell(LEAVE + relay.seen())
        relay.leave_screen()
        relay.terminal.restore()
        output.say(text)
        sys.exit(0)

    def _tell(self, message: bytes) -> None:
        if self._keeper is None:
            return
        try:
            self._keeper.send(message, socket.MSG_NOSIGNAL)
        except OSError:
            # It has been killed.
            pass

    def _goes_on(self) -> str:
        return f"job {self._job_id} goes on; drf attach {self._job_id} returns"

    def _detach(self, relay: PtyRelay) -> None:
        self._leave(self._goes_on())

    def _hang_up(self, relay: PtyRelay) -> NoReturn:
        self._tell(HANG_UP)
        super()._hang_up(relay)

    def _handle_signals(self) -> None:
        """Leave at a signal that asks drf to end: the job goes on."""
        if not _ENDING.isdisjoint(self._signals):
            self._leave(self._goes_on())
        super()._handle_signals()
