"""drf run: a job attached to this terminal."""

from __future__ import annotations

import os
import stat
from typing import Any

import click

from drfd.client.connection import Connection
from drfd_cli.attend import Attendance, Counter, catch_signals
from drfd_cli.commands.submit import fields
from drfd_cli.options import GroupedHelp, condition_options, connect, demand_options
from drfd_cli.stage import Stage
from drfd_cli.terminal import Terminal


@click.command("run", cls=GroupedHelp, context_settings={"allow_interspersed_args": False})
@demand_options
@condition_options
@click.option("-q", "--quiet", is_flag=True, help="Do not say why it waits.")
@click.option(
    "--escape", metavar="SIGN", default="~", show_default=True,
    callback=lambda context, option, value: _sign(value), help="Begins escapes, or none.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(command: tuple[str, ...], **asked: Any) -> int:
    """Run a job and wait for it: its input and output are this terminal's, its exit code becomes
    the exit code.

    Typed on a terminal, ^C, ^Z and all other keys are the job's own. Before it starts, ^C cancels
    it and other keys are lost. After Enter, ~. hangs up, which stops the job; ~d detaches: the job
    goes on and its output goes to a file; ~? lists these escapes.

    In a pipe the job gets input and output as they are, and ^C stops it.
    """
    status: int = run_attached(connect(), command, **asked)["status"]
    return status


def run_attached(
    client: Connection, command: tuple[str, ...], *, quiet: bool = False, escape: str = "~",
    **asked: Any,
) -> dict[str, Any]:  # fmt: skip
    """Submit the command and attend to it; the job when it has ended, as `wait` tells it."""
    terminal = Terminal(0) if _is_interactive() else None
    signals = catch_signals()
    counter = Counter()
    try:
        job_id = client.submit(**fields(command, attach=str(counter.path), **asked))["id"]
        stage = None
        if terminal is not None:
            terminal.hush()
            stage = Stage(terminal, escape.encode() if escape != "none" else None)
        attendance = Attendance(
            client, job_id, counter, stage, signals, is_quiet=quiet, escape=escape
        )
        return attendance.attend()
    finally:
        if terminal is not None:
            terminal.restore()
        counter.close()


def _is_interactive() -> bool:
    """Does somebody sit there? What is behind a pipe may want the terminal for itself (a pager)."""
    return os.isatty(0) and not stat.S_ISFIFO(os.fstat(1).st_mode)


def _sign(value: str) -> str:
    if value != "none" and (len(value) != 1 or not value.isascii() or not value.isprintable()):
        raise click.BadParameter("one sign such as ~, or none")
    return value
