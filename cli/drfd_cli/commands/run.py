"""drf run: a job attached to this terminal."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from drfd.errors import Unavailable
from drfd.paths import at_socket
from drfd.peer import peer_of
from drfd_cli import output
from drfd_cli.client import Client, Watch
from drfd_cli.commands.submit import fields
from drfd_cli.options import condition_options, connect, demand_options

#: Waiting longer than this is explained.
_PATIENCE_S = 1.0
#: So often it is looked whether it has come to wait in vain.
_AGAIN_S = 60.0
_IN_VAIN = "DEPENDENCY_NEVER"
#: How soon a signal is acted upon at the latest.
_POLL_S = 0.2


@click.command("run", context_settings={"allow_interspersed_args": False})
@demand_options
@condition_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(command: tuple[str, ...], **asked: Any) -> int:
    """Run a job and wait for it: its input and output are this terminal's, its exit code becomes
    the exit code. ^C stops the job."""
    ended = run_attached(connect(), command, **asked)
    status: int = ended["status"]
    return status


def run_attached(client: Client, command: tuple[str, ...], **asked: Any) -> dict[str, Any]:
    """Submit the command with our own descriptors for its input and output; the job when it has
    ended, as `wait` tells it."""
    directory = Path(tempfile.mkdtemp(prefix="drf-run-"))
    try:
        with socket.socket(socket.AF_UNIX) as counter:
            path = directory / "attach"
            with at_socket(path) as address:
                counter.bind(address)
            counter.listen(4)
            signals = _catch_signals()
            job_id = client.submit(**fields(command, attach=str(path), **asked))
            return _attend(client, job_id, counter, signals)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _attend(
    client: Client, job_id: int, counter: socket.socket, signals: list[int]
) -> dict[str, Any]:
    """Hand our descriptors to the job when it asks for them; the job when it has ended.
    `signals`: those that have come; the first of them cancels the job."""
    is_cancelled = False
    explain_at: float | None = time.monotonic() + _PATIENCE_S
    explained = ""
    watch = Watch(client, job_id)
    while True:
        reply, ready = watch.poll(_POLL_S, counter.fileno())
        if ready:
            _hand_over(counter)
            explain_at = None
        if signals and not is_cancelled:
            is_cancelled = _cancel(job_id)
        if reply is not None:
            ended: dict[str, Any] = reply["ended"][0]
            _report(ended, is_cancelled=is_cancelled)
            return ended
        if explain_at is not None and time.monotonic() >= explain_at:
            explain_at = time.monotonic() + _AGAIN_S
            explained = _explain(job_id, explained)


def _hand_over(counter: socket.socket) -> None:
    connection, _ = counter.accept()
    with connection:
        # Nobody but a process of our own may have this terminal.
        if peer_of(connection).uid == os.getuid():
            socket.send_fds(connection, [b"+"], [0, 1, 2])


def _catch_signals() -> list[int]:
    """^C, a hang-up and SIGTERM are collected; the second one leaves at once."""
    caught: list[int] = []

    def catch(number: int, frame: object) -> None:
        if caught:
            sys.exit(128 + number)
        caught.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, catch)
    return caught


def _cancel(job_id: int) -> bool:
    """False when the daemon is away: to be tried again, or the job would run on unattended."""
    other = connect()
    try:
        other.request("cancel", select={"ids": [job_id]})
    except Unavailable:
        return False
    finally:
        other.close()
    return True


def _explain(job_id: int, before: str) -> str:
    """Say why it waits, once, and once more if it waits in vain; the code of what has been said."""
    other = connect()
    try:
        job = other.request("why", id=job_id)["job"]
    except Unavailable:
        return before
    finally:
        other.close()
    code = before if job["reason"] is None else str(job["reason"]["code"])
    if code == before or (before and code != _IN_VAIN):
        return before
    output.say(f"job {job_id} waits: {output.why_line(job)}")
    return code


def _report(ended: dict[str, Any], *, is_cancelled: bool) -> None:
    code = ended["outcome"]["code"]
    if code not in ("COMPLETED", "FAILED") and not (is_cancelled and code == "CANCELLED"):
        output.say(f"job {ended['id']} {output.why_line(ended)}")
