"""drf run: a job attached to this terminal, from its submission to its end.

An ordinary `drf run` takes a shorter way (`drfd_cli.quick_run`), and does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd_cli import output
from drfd_cli.commands.submit import fields, warn
from drfd_cli.options import JobCommand, connect, escape_option, job_options
from drfd_cli.terminal.attached import attend
from drfd_cli.terminal.attachment import AttachSocket, catch_signals

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView


@click.command("run", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options("run")
@click.option("-q", "--quiet", is_flag=True, help="Do not say why it waits.")
@escape_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(command: tuple[str, ...], **asked: Any) -> int:
    """Run a job and wait for it: its input and output are this terminal's, its exit code becomes
    the exit code.

    Typed on a terminal, ^C, ^Z and all other keys are the job's own. Before it starts, ^C cancels
    it and other keys are lost. After Enter, ~. hangs up, which stops the job; ~d detaches: the job
    goes on and its output goes to a file; ~? lists these escapes.

    In a pipe the job gets input and output as they are, and ^C stops it.
    """
    return run_attached(connect(), command, **asked)["status"]


def run_attached(
    client: Connection, command: tuple[str, ...], *, quiet: bool = False, escape: str = "~",
    no_warnings: bool = False, **asked: Any,
) -> JobView:  # fmt: skip
    """Submit the command, relay its terminal until it has ended, and return the ended job."""
    signals = catch_signals()
    attach_socket = AttachSocket()

    def submit() -> int:
        request = client.addressed(fields(command, attach=attach_socket.path, **asked))
        if not no_warnings:
            warn(request)
        reply = client.submit(**request)
        for text in () if no_warnings else reply.get("notes", ()):
            output.say(output.clean(text, 1000))
        return reply["id"]

    return attend(client, attach_socket, signals, submit, is_quiet=quiet, escape=escape)
