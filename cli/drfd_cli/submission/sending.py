"""drf submit and drf run, from the words of the command line to the answer of the daemon.

Scripts submit thousands of jobs, and wait for each start of drf: only modules that Python loads in
a millisecond are imported here; what few jobs need is imported where it is used. `tests/bench`
measures the time.
"""

from __future__ import annotations

import os

from drfd.client.connection import choose
from drfd.client.submission import submission
from drfd.common.errors import Refused
from drfd.payload.submitter import ATTACHED, as_given, capture
from drfd_cli.submission import job_line
from drfd_cli.submission.job_line import WrongWords, say
from drfd_cli.submit_warnings import warnings_about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from drfd.client.connection import Connection
    from drfd.payload.pack import Submission
    from drfd.protocol.replies import JobView, SubmitReply
    from drfd_cli.submission.job_line import JobLine

#: What is printed of the id, and of that of an array.
_SHOWN, _JSON = "submitted job {}", '{{"id": {}}}'
_SHOWN_ARRAY = {
    _SHOWN: "submitted array {} of {} task{}",
    _JSON: '{{"id": {}, "tasks": {}}}',
}


def connect(named: str | None = None) -> Connection:
    """Return a connection to the daemon at this socket, or to the usual one; a user's own daemon is
    started if none is running."""
    return choose(named, start=start_own)


def start_own(socket_path: Path) -> None:
    """Start the user's own daemon, and tell the user."""
    from drfd.client.autostart import start_daemon

    start_daemon(socket_path)
    say(
        "started your own drfd (no system daemon is running here); "
        "drf doctor says what it can enforce"
    )


def request_of(line: JobLine, *, attach: str | None = None) -> dict[str, object]:
    """Return the fields of a submission request; the daemon sets those that are missing."""
    export = line.values.get("export") or ()
    env = capture(as_given(os.environ), (*export, *(ATTACHED if attach is not None else ())))
    if line.script is not None:
        env["DRF_SCRIPT"] = os.path.abspath(line.argv[0])
    for name in export:
        if name not in os.environ:
            say(f"--export {name}: there is no such variable")
    if line.slurm is not None:
        from drfd_cli.slurm.batch_script import variables

        env = variables(env, line.slurm)
    try:
        return submission(
            line.argv, env, line.values, cwd=line.values.get("cwd"), script=line.script,
            attach=attach,
        )  # fmt: skip
    except Refused as error:
        own = [each.place for each in line.settings if each.option == "--notify"]
        if error.code != "no-notice" or not own:
            raise
        raise Refused(error.code, f"{own[0]}: {error.text}", hint=error.hint) from None


def warn(line: JobLine, request: Submission, *, called: str = "drf submit") -> None:
    """Print how its options are read, and what may keep the job of this request from running as its
    submitter means it. `called` is the command that has the options."""
    warnings = [*line.remarks, *warnings_about(request)]
    if line.script is not None and any(word.startswith("-") for word in line.argv[1:]):
        from drfd_cli.submit_warnings import about_script_words

        about = about_script_words(line.script, line.argv, called=called)
        warnings += [] if about is None else [about]
    for text in warnings:
        say(text)


# -- drf submit --------------------------------------------------------------------------------


def submit(words: Sequence[str], client: Connection) -> int:
    """Queue the job of these words, print its id, and return the exit code."""
    line = job_line.read("submit", words, client)
    if line.values["pty"] and line.values["array"] is not None:
        raise WrongWords("--pty is for one job, not for an array")
    if line.values["pty"] and line.values["output_max"] is not None:
        if all(each.option != "--output-max" for each in line.settings):
            raise WrongWords("--output-max does not limit what goes to a terminal")
        line.values["output_max"] = None
    return queue(line, client)


def queue(line: JobLine, client: Connection, *, shown: str | None = None) -> int:
    """Queue the job of this line. `shown` is what Slurm's command prints of the id."""
    values = line.values
    if line.slurm is not None:
        from drfd_cli.slurm.batch_script import resolve

        named = {**values, "name": values["name"] or os.path.basename(line.argv[0])}
        line.values = values = resolve(line.slurm, named, client, line.script)
    if values["dry_run"] or values["pty"]:
        from drfd_cli.commands import submit as rare

        if values["dry_run"]:
            return rare.forecast(line, client)
        request, reply = rare.with_terminal(line, client)
    else:
        request = client.addressed(request_of(line))
        reply = client.submit(**request)
    if not values["no_warnings"]:
        notes = list(reply.get("notes", ()))
        if reply.get("drain") is not None:
            from drfd_cli.output import drain_notices

            notes = [*drain_notices(reply), *notes]
        for text in notes:
            say(text)
        warn(line, request, called="drf submit" if shown is None else "sbatch")
    if values["as_json"]:
        shown = _JSON
    elif shown is None:
        shown = "{}" if values["quiet"] else _SHOWN
    if shown:
        _print_id(shown, reply)
    if not values["wait"]:
        return 0
    from drfd_cli.commands.submit import wait_for_end

    return wait_for_end(client, reply["id"], is_quiet=values["quiet"])


def _print_id(shown: str, reply: SubmitReply) -> None:
    tasks = reply.get("tasks")
    if tasks is not None:
        shown = _SHOWN_ARRAY.get(shown, shown)
    try:
        print(shown.format(reply["id"], tasks, "" if tasks == 1 else "s"), flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe; what would be written at the end has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


# -- drf run -----------------------------------------------------------------------------------


def run(words: Sequence[str], client: Connection) -> int:
    """Run the job of these words, attached to this terminal, and return its exit code."""
    return attached(job_line.read("run", words, client), client)["status"]


def attached(line: JobLine, client: Connection) -> JobView:
    """Submit the job, relay its terminal until it has ended, and return the ended job.

    The request is sent before anything else is loaded that the run needs; meanwhile the daemon
    starts the job.
    """
    from drfd_cli.terminal.pty import AttachSocket, catch_signals

    signals = catch_signals()
    attach_socket = AttachSocket()
    try:
        job = client.addressed(request_of(line, attach=attach_socket.path))
        if not line.values["no_warnings"]:
            warn(line, job)
        reply = client.submit(_load_terminal, **job)
        for text in () if line.values["no_warnings"] else reply.get("notes", ()):
            say(text)
        from drfd_cli.terminal.attached import attend

        return attend(
            client, attach_socket, signals, reply["id"], is_quiet=bool(line.values.get("quiet")),
            escape=line.values.get("escape") or "~",
        )  # fmt: skip
    finally:
        attach_socket.close()


def _load_terminal() -> None:
    """Load what is slow to load, while the daemon starts the job."""
    from drfd_cli.terminal.attached import is_interactive

    if is_interactive():
        import drfd_cli.terminal.relay  # noqa: F401
