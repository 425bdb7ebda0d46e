"""drf submit: its help, and what few submissions need; `drfd_cli.submission` has the rest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from drfd.client.connection import Connection
from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.options import JobCommand, connect, job_options
from drfd_cli.submission import sending
from drfd_cli.submit_warnings import output_warnings

if TYPE_CHECKING:
    from drfd.protocol.replies import DryRunReply, SubmitReply
    from drfd_cli.submission.job_line import JobLine


@click.command("submit", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options("submit")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(words: Sequence[str]) -> int:
    """Queue a job: `drf submit [OPTIONS] -- CMD...`, or `drf submit [OPTIONS] script.sh [ARGS]`
    with #DRF or #SBATCH lines of options in the script. The script - is standard input."""
    return sending.submit(words, connect())


def forecast(line: JobLine, client: Connection) -> int:
    request = client.addressed(sending.request_of(line))
    found = client.forecast(**request)
    for setting in line.settings:
        output.say(f"{setting.word} is from {setting.place}")
    if not line.values["no_warnings"]:
        sending.warn(line, request)
    result = output.Result(show=lambda: _tell_forecast(found), view=lambda: found)
    return output.render(result, output.Form(as_json=line.values["as_json"]), {})


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


def with_terminal(line: JobLine, client: Connection) -> tuple[dict[str, object], SubmitReply]:
    """Submit a job that has a terminal, and leave a process that keeps it. Return the request and
    the reply."""
    from drfd_cli.terminal.keeper import keep_from_the_start
    from drfd_cli.terminal.pty import AttachSocket

    attach_socket = AttachSocket()
    try:
        request = client.addressed(sending.request_of(line, attach=attach_socket.path))
        for text in output_warnings(request):
            # This process writes it, so that no job is queued that would be cancelled at once.
            raise Refused("no-output", text)
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
    return request, reply


def wait_for_end(client: Connection, job_id: int, *, is_quiet: bool) -> int:
    from drfd_cli.commands.wait import wait_and_tell

    sys.stdout.flush()
    try:
        return wait_and_tell(client, [job_id], is_quiet=is_quiet)
    except KeyboardInterrupt:
        output.say(f"job {job_id} goes on (drf cancel {job_id} stops it)")
        return 130
