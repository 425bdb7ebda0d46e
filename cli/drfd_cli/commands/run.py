"""drf run: a job attached to this terminal, from its submission to its end. drf profile: such a run
with ample resources, and the demand that fits it. drf attach: back to the terminal of a job.
"""

from __future__ import annotations

import _signal as signal
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref
from drfd.common.errors import Refused
from drfd.common.units import Range, show_duration, show_need, show_size
from drfd.linux.sealed import receive
from drfd.linux.unix_sockets import peer_of
from drfd_cli import output
from drfd_cli.options import JobCommand, KnowingOthers, connect, escape_option, job_id, job_options
from drfd_cli.submission import job_line, sending
from drfd_cli.submission.job_line import JobLine
from drfd_cli.terminal.attached import Attachment, is_interactive
from drfd_cli.terminal.keeper import HANG_UP, LEAVE, MESSAGE_BYTES, TAKEN, place_of
from drfd_cli.terminal.pty import catch_signals
from drfd_cli.terminal.relay import PtyRelay, Terminal
from drfd_cli.terminal.sockets import connect_in_line, without_limits

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView


@click.command("run", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options("run")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(words: Sequence[str]) -> int:
    """Run a job and wait for it, with its input and output on this terminal. drf exits with the
    job's exit code.

    On a terminal, ^C, ^Z and all other keys go to the job. Before it starts, ^C cancels it and
    other keys are lost. After Enter, ~. hangs up, which stops the job; ~d detaches: the job
    continues and its output goes to a file; ~? lists these escapes.

    In a pipe the job reads and writes the pipe, and ^C stops it.
    """
    return sending.run(words, connect())


# -- drf profile -------------------------------------------------------------------------------


#: Most attempts to find a demand with which the job would start now; each halves the last one.
_TRIES = 8
#: Least demand that is tried: thousandths of a core, and bytes.
_LEAST_CORES, _LEAST_MEMORY = 1000, 1 << 30
#: Bytes of which the memory that is tried is a multiple.
_STEP = 16 << 20


@click.command("profile", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options("profile")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def profile(words: Sequence[str]) -> int:
    """Run a command once, as `drf run` does, with all cores and memory that are free for you now,
    or with -c and -m. Then print to stderr the `drf submit` line that fits it."""
    client = connect()
    line = job_line.read("profile", words, client)
    _choose_demand(line, client)
    ended = sending.attached(line, client)
    _tell(client, ended, line.argv)
    return ended["status"]


def _choose_demand(line: JobLine, client: Connection) -> None:
    """Choose cores and memory where the job does not declare them: all that is free is tried first,
    then a half, a quarter, …, until the job would start now, because limits of pools and
    reservations may forbid more."""
    asked_cores, asked_mem = line.values["cores"], line.values["memory"]
    free = client.request("shares")["free"]
    cores = max(_LEAST_CORES, round(free["cores"]) * 1000)
    memory = max(_LEAST_MEMORY, free["memory"] // _STEP * _STEP)
    if round(free["cores"]) > free["cores"]:
        cores = max(_LEAST_CORES, cores - 1000)
    for _ in range(_TRIES):
        line.values["cores"] = cores if asked_cores is None else asked_cores
        line.values["memory"] = memory if asked_mem is None else asked_mem
        if (cores, memory) == (_LEAST_CORES, _LEAST_MEMORY):
            break
        with suppress(Refused):
            # As with its terminal, it runs on the daemon's own machine, if there are several.
            if client.forecast(**sending.request_of(line, attach="/"))["reason"] is None:
                break
        cores = max(_LEAST_CORES, cores // 2000 * 1000)
        memory = max(_LEAST_MEMORY, memory // (2 * _STEP) * _STEP)
    chosen = line.values["cores"]
    least = chosen.least if isinstance(chosen, Range) else chosen
    shown = (show_need("cores", least), show_need("memory", line.values["memory"]))
    output.say(f"measured with {' and '.join(shown)}")


def _tell(client: Connection, ended: JobView, command: Sequence[str]) -> None:
    past = {"ids": [ended["id"]]}
    reply = client.request("report", by="job", least=1, past=past)
    if not reply["rows"]:
        output.say("it never ran, so nothing is known of what it needs")
        return
    row = reply["rows"][0]
    cores, ran_s = row["cores"], row["run_ms"] / 1000
    if cores["declared"] and ran_s:
        output.say(
            f"it ran for {show_duration(ran_s)}, with {cores['used'] / row['run_ms'] / 1000:.2f} "
            f"cores on average and {show_size(row['peak_max'] or 0)} of memory at its peak"
        )
    advice = row["advice"]
    if advice is None:
        code = "" if ended["outcome"] is None else ended["outcome"]["code"]
        if code == "COMPLETED":
            output.say("it was over before its use was measured; profile a run of some seconds")
        else:
            output.say(f"it ended as {code}: only a run that has done its work shows what it needs")
        return
    if "cores_note" in advice:
        output.say(f"it {advice['cores_note']}")
    if advice["short_jobs"]:
        output.say("it was cut short: this is a guess, profile it again with")
    words = shlex.join(command)
    if output.clean(words, 800) != words:
        # It has characters that cannot be typed.
        words = "(the same command)"
    output.say(f"drf submit {' '.join(advice['options'])} -- {words}")


# -- drf attach --------------------------------------------------------------------------------


_ENDING = frozenset((signal.SIGHUP, signal.SIGTERM, signal.SIGINT))
#: Seconds that the keeper may take to answer.
_ANSWER_S = 10


@click.command("attach", cls=KnowingOthers)
@escape_option
@job_id
def attach(job_id: Ref, escape: str) -> int:
    """Return to the terminal of a job of yours: one that was detached (~d in drf run), or was
    submitted with --pty.

    All keys are the job's own. After Enter, ~d leaves it again, ~. hangs up, which stops it, and ~?
    lists the escapes. Closing the window leaves it, too. Only one terminal is attached at a
    time: the latest. When the job ends, drf exits with its exit code.
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
    terminal = Terminal(0)
    try:
        relay = PtyRelay(terminal, escape, master)
        relay.remember(seen)
        terminal.go_raw(discard_input=False)
        relay.show_again()
        return int(Reattachment(client, job, keeper, relay, signals).attend()["status"])
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


class Reattachment(Attachment):
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
        # One that was killed says nothing.
        with suppress(OSError):
            said = self._keeper.recv(MESSAGE_BYTES)
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
        # It may have been killed.
        with suppress(OSError):
            self._keeper.send(message, socket.MSG_NOSIGNAL)

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
