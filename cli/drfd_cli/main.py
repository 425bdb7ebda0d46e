"""drf: what is typed becomes a verb; what goes wrong becomes one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

import click

from drfd.errors import DrfdError
from drfd_cli.output import clean, say

#: Every verb, in the order of the help; its module is imported when it is used.
VERBS = {
    "submit": "queue a job",
    "run": "run a job and wait for it, attached to this terminal",
    "profile": "run a command once, and learn what to ask for",
    "status": "the queue now, with reasons",
    "show": "everything about one job",
    "why": "why a job waits, or how it ended",
    "wait": "wait until jobs have ended",
    "cancel": "cancel waiting jobs, stop running ones",
    "hold": "keep waiting jobs from starting",
    "release": "let held jobs start",
    "suspend": "freeze running jobs",
    "resume": "let suspended jobs go on",
    "signal": "send running jobs a signal",
    "set": "change what waiting jobs ask for",
    "log": "a job's output",
    "history": "jobs that have ended, and what they used",
    "report": "what ended jobs declared, what they used, what to ask for next time",
    "shares": "who holds how much, and who is entitled to it",
    "drain": "stop launching jobs (administrators)",
    "undrain": "launch jobs again (administrators)",
    "shutdown": "end the daemon; jobs run on, or are stopped first (administrators)",
    "reload": "read the configuration again (administrators)",
    "doctor": "what is enforced on this machine, and what is not",
    "simulate": "what policies would do, without running anything",
    "demo": "half a minute of fair scheduling on this machine",
}


#: Not for users: what `drfd install` calls.
_HIDDEN = ("man",)


class _Verbs(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # `drf status | head`: the reader has what it wants. Nothing may be flushed at exit.
            _to_nowhere(1)
            return 0

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS and name not in _HIDDEN:
            return None
        command: click.Command = import_module(f"drfd_cli.commands.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table above: the help needs no verb's module.
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--socket", metavar="PATH", help="Talk to the daemon at this socket.")
@click.version_option(package_name="drfd", prog_name="drf")
@click.pass_context
def cli(ctx: click.Context, socket: str | None) -> None:
    """Fair, enforced, explained batch jobs for one shared machine."""
    ctx.obj = socket
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    _fill_missing_descriptors()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets another, not a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = cli.main(prog_name="drf", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        about = getattr(error, "ctx", None)
        where = about.command_path if about is not None else "drf"
        click.echo(clean(f"{where}: {error.format_message()}", 1000), err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except DrfdError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        # A full disk, a directory that cannot be made: the system's word, in one line.
        _to_nowhere(1)
        say(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
        sys.exit(1)


def _to_nowhere(fd: int) -> None:
    """What is still to be written there goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _fill_missing_descriptors() -> None:
    """`drf … <&-`: or our own files would take the places of input, output and errors."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
