"""drf run: a job attached to this terminal."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from typing import Any

import click

from drfd.errors import Unavailable
from drfd_cli import output
from drfd_cli.client import Client
from drfd_cli.commands.submit import fields
from drfd_cli.options import connect, demand_options

#: Waiting longer than this is explained.
_PATIENCE_S = 1.0


@click.command("run", context_settings={"allow_interspersed_args": False})
@demand_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(command: tuple[str, ...], **asked: Any) -> int:
    """Run a job and wait for it: its input and output are this terminal's, its exit code becomes
    the exit code. ^C stops the job."""
    client = connect()
    directory = tempfile.mkdtemp(prefix="drf-run-")
    try:
        with socket.socket(socket.AF_UNIX) as counter:
            path = os.path.join(directory, "attach")
            counter.bind(path)
            counter.listen(4)
            job_id = client.request("submit", **fields(command, attach=path, **asked))["id"]
            return _attend(client, job_id, counter)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _attend(client: Client, job_id: int, counter: socket.socket) -> int:
    """Hand our descriptors to the job when it asks for them; its status when it has ended."""
    stopped = _cancel_on_signals(job_id)
    explain_at: float | None = time.monotonic() + _PATIENCE_S
    client.send("wait", ids=[job_id])
    while True:
        timeout = None if explain_at is None else max(0.0, explain_at - time.monotonic())
        ready = select.select([client.fileno(), counter.fileno()], [], [], timeout)[0]
        if counter.fileno() in ready:
            _hand_over(counter)
            explain_at = None
        if client.fileno() in ready:
            try:
                ended = client.receive()["ended"][0]
            except Unavailable:
                # The daemon is being restarted: our job runs on.
                ended = client.wait([job_id], any_one=False, timeout_s=None)["ended"][0]
            _report(ended, is_cancelled=bool(stopped))
            status: int = ended["status"]
            return status
        if explain_at is not None and time.monotonic() >= explain_at:
            explain_at = None
            _explain(job_id)


def _hand_over(counter: socket.socket) -> None:
    connection, _ = counter.accept()
    with connection:
        _, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        # Nobody but a process of our own may have this terminal.
        if uid == os.getuid():
            socket.send_fds(connection, [b"+"], [0, 1, 2])


def _cancel_on_signals(job_id: int) -> list[int]:
    """^C, a hang-up or SIGTERM cancels the job; the second one leaves at once."""
    stopped: list[int] = []

    def cancel(number: int, frame: object) -> None:
        if stopped:
            sys.exit(128 + number)
        stopped.append(number)
        other = connect()
        other.request("cancel", select={"ids": [job_id]})
        other.close()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, cancel)
    return stopped


def _explain(job_id: int) -> None:
    other = connect()
    job = other.request("why", id=job_id)["job"]
    other.close()
    if job["reason"] is not None:
        output.say(f"job {job_id} waits: {output.why_line(job)}")


def _report(ended: dict[str, Any], *, is_cancelled: bool) -> None:
    code = ended["outcome"]["code"]
    if code not in ("COMPLETED", "FAILED") and not (is_cancelled and code == "CANCELLED"):
        output.say(f"job {ended['id']} {output.why_line(ended)}")
