"""drf submit: queue a command, or a script with options on its #DRF lines."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd.client.option_values import read as read_value
from drfd.client.submission import submission
from drfd.common.errors import Refused
from drfd.payload.environment import ATTACHED, as_given, capture
from drfd_cli import output
from drfd_cli.options import (
    JobCommand,
    call_of,
    connect,
    job_options,
    prints_result,
)
from drfd_cli.output import Result, pick
from drfd_cli.quick import SCRIPT_MAX_BYTES
from drfd_cli.submit_warnings import (
    about_script_words,
    option_lines,
    output_warnings,
    warnings_about,
)

if TYPE_CHECKING:
    from drfd.protocol.job_options import Option
    from drfd.protocol.replies import DryRunReply, SubmitReply
    from drfd_cli.slurm.sbatch_options import Translation
    from drfd_cli.terminal.pty import AttachSocket

#: The name of a script that was read from there.
STANDARD_INPUT = "stdin"


def read_script(name: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(SCRIPT_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(
            "no-script",
            f"cannot read the script {output.clean(name)}: {error.strerror}",
            hint="to run a command, write -- before it: drf submit -- CMD",
        ) from None
    return script_text(data, name)


def read_standard_input() -> str:
    data = b""
    while len(data) <= SCRIPT_MAX_BYTES and (piece := os.read(0, 1 << 16)):
        data += piece
    return script_text(data, STANDARD_INPUT)


def script_text(data: bytes, name: str) -> str:
    """Return the text of a script, with a surrogate for each byte that is not UTF-8. Raises Refused
    for one that cannot be run."""
    shown = output.clean(name)
    if len(data) > SCRIPT_MAX_BYTES:
        raise Refused("too-long", f"the script {shown} has more than {SCRIPT_MAX_BYTES} bytes")
    if b"\0" in data:
        raise Refused(
            "no-script",
            f"{shown} is a program, not a script",
            hint=f"drf submit -- {shlex.quote(name)}",
        )
    if data.startswith(b"\xef\xbb\xbf"):
        raise Refused(
            "bad-value",
            f"the script {shown} begins with a byte order mark, which hides its first line",
            hint=_sed("1s/^\\xef\\xbb\\xbf//", name),
        )
    script = data.decode(errors="surrogateescape")
    refuse_returns(script, f"the script {shown}", hint=_sed("s/\\r$//", name))
    return script


def _sed(change: str, name: str) -> str:
    is_file = name != STANDARD_INPUT
    return f"sed {'-i ' if is_file else ''}'{change}' {shlex.quote(name) if is_file else 'FILE'}"


#: The first line of a script that a shell runs; without any interpreter it is `sh`.
_OF_SHELL = re.compile(r"(?!#!)|#![^\n]*(?:/|[ \t])[a-z]*sh(?:[ \t\r\n]|$)")


def refuse_returns(script: str, what: str, *, hint: str) -> None:
    """Raise Refused for carriage returns that would be a part of the interpreter's path, or of the
    words of a shell. Other interpreters take lines that end with them."""
    lines = f"{script}\n"
    if "\r\n" in (lines if _OF_SHELL.match(script) else lines[: lines.index("\n") + 1]):
        raise Refused("bad-value", f"{what} has the line ends of Windows", hint=hint)


def directives(script: str, name: str, *, check: Callable[[list[str]], None]) -> list[str]:
    """Return the options of the #DRF lines before the script's first command. `check` raises
    UsageError if its words are not valid options."""
    words: list[str] = []
    for number, text in option_lines(script, "#DRF"):
        try:
            options = shlex.split(text, comments=True)
            check(options)
        except (ValueError, click.ClickException) as error:
            fault = error.format_message() if isinstance(error, click.ClickException) else error
            raise Refused("bad-value", f"{name}, line {number}: {fault}") from None
        words += options
    return words


class _SubmitCommand(JobCommand):
    """A command that puts the options of the script's lines before its arguments, which win."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if self.only_reads(ctx):
            return rest
        (name, *_), script = call_of(ctx).program = program(ctx, args)
        if script is None:
            return rest
        of_slurm = [] if ctx.params["ignore_sbatch"] else _of_slurm(ctx, script, name)
        own = directives(script, name, check=check_options)
        # Some releases of click keep a value that is there.
        ctx.params.clear()
        return super().parse_args(ctx, [*of_slurm, *own, *args])


@click.command("submit", cls=_SubmitCommand, context_settings={"allow_interspersed_args": False})
@job_options("submit")
@click.option("--dry-run", is_flag=True, help="Only say when it would start, and why.")
@click.option("--pty", is_flag=True, help="Give it a terminal, to which `drf attach` goes.")
@click.option("-w", "--wait", is_flag=True, help="Wait for its end; exit with its exit code.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the id.")
@click.option("--wrap", metavar="LINE", help="Run this line of the shell: 'CMD | CMD'.")
@click.option("--ignore-sbatch", is_flag=True, help="Leave out a script's #SBATCH lines.")
@prints_result()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, /, wait: bool, quiet: bool, dry_run: bool, no_warnings: bool,
    pty: bool, wrap: str | None, ignore_sbatch: bool, command: tuple[str, ...], **asked: Any,
) -> Result | int:  # fmt: skip
    """Queue a job: `drf submit [OPTIONS] -- CMD...`, or `drf submit [OPTIONS] script.sh [ARGS]`
    with #DRF or #SBATCH lines of options in the script. The script - is standard input."""
    call = call_of(ctx)
    command, script = call.program
    if pty and asked["array"] is not None:
        raise click.UsageError("--pty is for one job, not for an array", ctx)
    if pty and asked["output_max"] is not None:
        if all(each.option != "--output-max" for each in call.personal):
            raise click.UsageError("--output-max does not limit what goes to a terminal", ctx)
        asked["output_max"] = None
    client = connect()
    if call.slurm is not None:
        from drfd_cli.slurm.batch_script import resolve

        asked["slurm"] = call.slurm
        named = {**asked, "name": asked["name"] or os.path.basename(command[0])}
        asked = resolve(asked["slurm"], named, client, script)
    attach_socket = None
    if pty and not dry_run:
        from drfd_cli.terminal.pty import AttachSocket

        attach_socket = AttachSocket()
    attach = None if attach_socket is None else attach_socket.path
    request = client.addressed(fields(command, script=script, attach=attach, **asked))
    if attach_socket is not None:
        for text in output_warnings(request):
            # This process writes it, so that no job is queued that would be cancelled at once.
            attach_socket.close()
            raise Refused("no-output", text)
    if dry_run:
        forecast = client.forecast(**request)
        for setting in call.personal:
            output.say(f"{setting.word} is from {setting.place}")
        if not no_warnings:
            warn(request)
        return Result(show=lambda: _tell_forecast(forecast), view=lambda: forecast)
    reply = _submitted(client, request, attach_socket)
    if not no_warnings:
        for text in output.drain_notices(reply):
            output.say(text)
        for text in reply.get("notes", ()):
            output.say(output.clean(text, 1000))
        warn(request)
    job_id, shown = reply["id"], call.shown
    if shown is None:
        shown = "{}" if quiet else f"submitted {output.submitted(reply)}"
    return Result(
        show=lambda: click.echo(shown.format(job_id)) if shown else None,
        view=lambda: pick(reply, ("id", "tasks")),
        finish=(lambda: _wait(client, job_id, is_quiet=quiet)) if wait else None,
    )


def _submitted(
    client: Connection, request: dict[str, object], attach_socket: AttachSocket | None
) -> SubmitReply:
    """Submit the job; if it is to have a terminal, leave a process that keeps it."""
    if attach_socket is None:
        return client.submit(**request)
    from drfd_cli.terminal.keeper import keep_from_the_start

    try:
        reply = client.submit(**request)
    except BaseException:
        attach_socket.close()
        raise
    try:
        keep_from_the_start(client, attach_socket, reply["id"])
    except OSError as error:
        attach_socket.close()
        client.request("cancel", select={"ids": [reply["id"]]})
        what = f"cannot write {error.filename}" if error.filename else "cannot open a terminal"
        raise Refused("no-output", f"{what}: {error.strerror}; the job is cancelled") from None
    return reply


def program(ctx: click.Context, args: list[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the words of the command, and the text of the script that they name, if they do."""
    command, wrap = ctx.params["command"], ctx.params["wrap"]
    if wrap is not None:
        if command or not wrap.strip():
            fault = "has a command in its line; leave out the other" if command else "is empty"
            raise click.UsageError(f"--wrap {fault}", ctx)
        refuse_returns(wrap, "--wrap", hint="leave out the carriage returns")
        return ("sh", "-c", wrap), None
    if command and _is_command(ctx, args, command):
        return command, None
    if command and command[0] != "-":
        return command, read_script(command[0])
    is_typed = sys.stdin is None or os.isatty(0)
    text = read_standard_input() if command or not (is_typed or args[-1:] == ["--"]) else ""
    if not text and not command:
        raise click.UsageError("Missing argument 'COMMAND...'.", ctx)
    if not text:
        raise Refused("no-script", "standard input has no script")
    return (STANDARD_INPUT, *command[1:]), text


def _of_slurm(ctx: click.Context, script: str, name: str) -> list[str]:
    """Return the options that the script's #SBATCH lines ask for; the rest is kept in the call."""
    if "#SBATCH" not in script:
        return []
    from drfd_cli.slurm.batch_script import host_name
    from drfd_cli.slurm.sbatch_options import in_slurms_words, read_lines, translate

    options = read_lines(script, name)
    if options is None:
        return []
    made = translate(options, host_name())
    try:
        check_options(made.words)
    except click.ClickException as error:
        hint = "drf submit --ignore-sbatch leaves out these lines"
        raise Refused(
            "bad-value", f"{name}: #SBATCH {in_slurms_words(error.format_message())}", hint=hint
        ) from None
    call_of(ctx).slurm = made
    return made.words


def _wait(client: Connection, job_id: int, *, is_quiet: bool) -> int:
    """Wait until the job has ended, and return the exit code."""
    from drfd_cli.commands.wait import tell_ends, wait_for

    sys.stdout.flush()
    try:
        waited = wait_for(client, [job_id], is_quiet=is_quiet)
    except KeyboardInterrupt:
        output.say(f"job {job_id} goes on (drf cancel {job_id} stops it)")
        return 130
    if not waited["ended"]:
        output.tell_never(waited["never"][0])
        return output.NEVER_RAN
    tell_ends(client, waited["ended"])
    return int(waited["ended"][0]["status"])


def _tell_forecast(forecast: DryRunReply) -> None:
    reason = forecast["reason"]
    missing = output.clean(forecast["no_estimate"]["text"]) if "no_estimate" in forecast else None
    if reason is None:
        unknown = f"it would be accepted; nobody can say when it would start: {missing}"
        output.tell("it would start now" if missing is None else unknown)
        return
    if missing is not None:
        output.tell(f"it would wait; nobody can say for how long: {missing}")
    else:
        line = output.start_line(forecast, verb="would start")
        output.tell(line or "it would wait; no start is in sight")
    code, text = output.clean(reason["code"]), output.clean(reason["text"], 1000)
    output.tell(f"until then it waits: {code}: {text}")


def fields(
    argv: tuple[str, ...],
    *,
    script: str | None = None,
    attach: str | None = None,
    cwd: str | None = None,
    slurm: Translation | None = None,
    **values: Any,
) -> dict[str, object]:
    """Return the fields of a submission request; the daemon sets those that are missing. The
    options of a preset are among those that are given."""
    if values.get("retry_on") is not None and values.get("retry") is None:
        raise click.UsageError("--retry-on says when to try again; --retry N how often")
    export = values.get("export") or ()
    kept = ATTACHED if attach is not None else ()
    env = capture(as_given(os.environ), (*export, *kept))
    if script is not None:
        env["DRF_SCRIPT"] = os.path.abspath(argv[0])
    for name in export:
        if name not in os.environ:
            output.say(f"--export {name}: there is no such variable")
    if slurm is not None:
        from drfd_cli.slurm.batch_script import variables

        env = variables(env, slurm)
    return submission(argv, env, values, cwd=cwd, script=script, attach=attach)


def can_be(option: Option, text: str) -> bool:
    """Return whether the text is a value of the option."""
    try:
        read_value(option, text)
    except Refused:
        return False
    return True


def warn(request: Mapping[str, Any]) -> None:
    """Print what may keep the job of this request from running as its submitter means it."""
    warnings = warnings_about(request)
    if request.get("script") is not None:
        is_slurms = click.get_current_context().info_name == "sbatch"
        called = "sbatch" if is_slurms else "drf submit"
        about = about_script_words(request["script"], request["argv"], can_be, called=called)
        warnings += [] if about is None else [about]
    for text in warnings:
        output.say(text)


def _is_command(ctx: click.Context, args: list[str], words: tuple[str, ...]) -> bool:
    """Return whether the words follow a `--` that is not the value of an option."""
    at = len(args) - len(words) - 1
    if at < 0 or args[at] != "--":
        return False
    try:
        ctx.command.make_parser(ctx).parse_args(args[:at])
    except click.UsageError:
        return False
    return True


def check_options(options: list[str]) -> None:
    """Raise UsageError unless all words are options with valid values."""
    context_of(options, "only options can stand here")


def context_of(options: list[str], complaint: str) -> click.Context:
    """Return the context of a call with these options and some command. Raises UsageError, with the
    complaint if not all words are options."""
    parent = click.get_current_context(silent=True)
    context = command.make_context("submit", [*options, "--", "x"], parent=parent)
    if context.params["command"] != ("x",):
        raise click.UsageError(complaint)
    return context
