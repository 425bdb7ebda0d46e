"""drf exec: a command, or a shell, inside a running job."""

from __future__ import annotations

import _socket
import os
import select
import time
from base64 import b64encode
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref
from drfd.common.errors import DrfdError, Refused, Unavailable
from drfd.payload.pack import MAX_COMMAND_BYTES, encode
from drfd.payload.signature import exec_digest, proof_of
from drfd_cli import output
from drfd_cli.attached import (
    AttachedRun,
    SignalWakeup,
    announce,
    is_interactive,
    own_terminal,
    relay_of,
)
from drfd_cli.attachment import AttachSocket, catch_signals
from drfd_cli.options import GroupedHelp, connect, escape_option, job_id
from drfd_cli.words import which_job

if TYPE_CHECKING:
    from drfd_cli.relay.escapes import EscapeCommand
    from drfd_cli.terminal import PtyRelay

#: Seconds between two checks whether drf is in the foreground, that the command may take to connect
#: once it is said to run, and that the daemon may take to say why it has not begun or has ended.
_POLL_S, _CONNECT_S, _ANSWER_S = 0.5, 5.0, 3.0
#: Seconds between two looks whether the job has ended.
_STEP_S = 0.1
#: Variables about the terminal, which is not that of the job.
_OF_TERMINAL = ("TERM", "COLORTERM")
#: States in which a command inside the job is not killed with it.
_RUNNING = ("RUNNING", "SUSPENDED")
#: The exit code of a command that could not be begun.
_NOT_BEGUN = 125
_HELP = (
    "escapes, after Enter:",
    "  {0}.   hang up: the command is stopped, the job goes on",
    "  {0}^Z  suspend drf and the command; fg resumes both",
    "  {0}{0}   the sign itself",
)


class _ExecCommand(GroupedHelp):
    """The verb, which takes `drf exec -- CMD` for the latest running job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = 0
        while at < len(args) and args[at].startswith("--escape"):
            at += 1 if "=" in args[at] else 2
        if args[at : at + 1] == ["--"] and not ctx.resilient_parsing:
            found = which_job.latest_running(connect)
            if found is None:
                raise click.UsageError("name the job: drf exec ID -- CMD", ctx)
            args = [*args[:at], str(found), *args[at:]]
        return super().parse_args(ctx, args)


@click.command("exec", cls=_ExecCommand, context_settings={"allow_interspersed_args": False})
@escape_option
@job_id
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(job_id: Ref, command: tuple[str, ...], escape: str) -> int:
    """Run a command inside a running job of yours: in its directory, with its environment and
    within its limits. Without a command, your shell.

    It is counted to the job, and ends with it. Its input and output are this terminal's, its exit
    code becomes the exit code. On a terminal, ^C, ^Z and all other keys are the command's own;
    after Enter, ~. hangs up and ~? lists the escapes.
    """
    # The first word that is no option ends the options, so click leaves this sign to the verb.
    command = command[1:] if command[:1] == ("--",) else command
    client = connect()
    reply = client.request("show", id=job_id)
    if "job" not in reply:
        raise Refused("is-array", f"{job_id} is an array: name a task", hint=f"as in {job_id}_1")
    view = reply["job"]
    if job_id not in (view["id"], output.label(view)):
        # What is signed below is for this job, whatever the reply says.
        raise Refused(
            "other-job", f"the daemon answered about job {output.label(view)}, not {job_id}"
        )
    signals = catch_signals()
    attach_socket = AttachSocket()
    terminal = None
    try:
        relay = None
        if is_interactive():
            terminal = own_terminal()
            relay = relay_of(terminal, escape)
        words = encode(
            argv=command,
            cwd="",
            umask=0,
            stdout="",
            stderr="",
            env=_variables() if relay is not None else {},
            script=None,
            attach=attach_socket.path,
            notify=(),
        )
        if len(words) > MAX_COMMAND_BYTES:
            raise Refused(
                "too-long",
                f"the command has {len(words)} bytes, and {MAX_COMMAND_BYTES} are the most",
                hint="put it into a script, and run that",
            )
        client.send(
            "exec",
            id=view["id"],
            attempt=view["attempt"],
            command=b64encode(words).decode(),
            **_proof(client, view["id"], view["attempt"], words),
        )
        return InsideRun(client, view["id"], attach_socket, relay, signals).attend_inside()
    finally:
        if terminal is not None:
            terminal.restore()
        attach_socket.close()


def _variables() -> dict[str, str]:
    return {name: os.environ[name] for name in _OF_TERMINAL if name in os.environ}


def _proof(client: Connection, job_id: int, attempt: int, words: bytes) -> dict[str, str]:
    """Return the field with the user's signature, where commands are signed."""
    key = client.fetch_key()
    return {"proof": proof_of(key, exec_digest(job_id, attempt, words))} if key else {}


class InsideRun(AttachedRun):
    """Stays with a command inside a job until it ends."""

    def __init__(
        self, client: Connection, job_id: int, attach_socket: AttachSocket, relay: PtyRelay | None,
        signals: list[int],
    ) -> None:  # fmt: skip
        """`client` has sent the request, whose answer has not been read."""
        super().__init__(client, job_id, attach_socket, relay, signals, is_quiet=True)
        self._is_answered = False
        self._give_up_at_s: float | None = None
        #: The connection to the process that waits for the command.
        self._session: _socket.socket | None = None
        self._said = b""

    def attend_inside(self) -> int:
        """Relay until the command has ended, and return its exit code."""
        relay = self._relay
        with SignalWakeup() as wakeup:
            while True:
                streams = [wakeup, *(relay.reads() if relay else []), *self._waited_for()]
                writes = relay.writes() if relay else []
                readable, writable, _ = select.select(streams, writes, [], _POLL_S)
                ready = {*readable, *writable}
                if wakeup in ready:
                    os.read(wakeup, 4096)
                if self._session is None and self._attach_socket.fileno() in ready:
                    self._session = self._attach_socket.serve_on(relay)
                elif self._session is not None and self._session.fileno() in ready:
                    code = self._read_end()
                    if code is not None:
                        return code
                self._handle_signals()
                if relay is not None:
                    self._relay_bytes(relay, ready)
                if not self._is_answered and self._client.fileno() in ready:
                    self._read_answer()
                self._insist_on_session()

    def _waited_for(self) -> list[int]:
        source = self._attach_socket if self._session is None else self._session
        return [source.fileno(), *([] if self._is_answered else [self._client.fileno()])]

    def _read_answer(self) -> None:
        """Read the daemon's answer. Raises its refusal; but once the command has its descriptors,
        the daemon may go away."""
        try:
            self._client.receive()
        except Unavailable:
            if self._session is None:
                raise
        self._is_answered = True
        self._give_up_at_s = time.monotonic() + _CONNECT_S

    def _insist_on_session(self) -> None:
        is_late = self._give_up_at_s is not None and time.monotonic() > self._give_up_at_s
        if self._session is None and is_late:
            raise Unavailable("silent", "the command does not ask for this terminal")

    def _read_end(self) -> int | None:
        """Return the exit code if the command has ended."""
        assert self._session is not None
        try:
            piece = self._session.recv(64)
        except OSError:
            piece = b""
        self._said += piece
        if piece and not self._said.endswith(b"\n"):
            return None
        number = int(self._said) if self._said else -9
        # A command that could not be begun has told the daemon why.
        is_told = number == _NOT_BEGUN and not self._is_answered
        if is_told and select.select([self._client.fileno()], [], [], _ANSWER_S)[0]:
            self._read_answer()
        if self._relay is not None:
            self._relay.drain()
            self._relay.leave_screen()
            self._relay.terminal.restore()
        if number == -9:
            self._tell_of_job()
        return number if number >= 0 else 128 - number

    def _tell_of_job(self) -> None:
        """Say if the command was killed because the job has ended, which the daemon learns a moment
        later."""
        other = self._client.another()
        give_up_s = time.monotonic() + _ANSWER_S
        try:
            while (
                state := other.request("show", id=self._job_id)["job"]["state"]
            ) in output.STARTED and time.monotonic() < give_up_s:
                time.sleep(_STEP_S)
        except DrfdError:
            return
        finally:
            other.close()
        if state in _RUNNING:
            return
        # A job that is to run again has not ended.
        what = "was stopped" if state in output.WAITING else "has ended"
        if state not in output.LIVE:
            what += f" ({output.clean(state)})"
        output.say(f"job {self._job_id} {what}, and the command was killed with it")

    def _cancel(self, number: int) -> bool:
        """Pass a signal on to the command; before it has begun, leave."""
        if self._session is None:
            raise SystemExit(128 + number)
        self._session.send(bytes([number]), _socket.MSG_NOSIGNAL)
        return True

    def _obey(self, command: EscapeCommand, relay: PtyRelay) -> None:
        from drfd_cli.relay.escapes import EscapeCommand

        match command:
            case EscapeCommand.HELP:
                sign = (relay.escape or b"").decode()
                announce(*(line.format(sign) for line in _HELP))
            case EscapeCommand.DETACH:
                announce("a command inside a job cannot be detached")
            case _:
                super()._obey(command, relay)
