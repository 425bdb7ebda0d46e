"""drf profile: one run with room to spare, and the demand that fits it."""

from __future__ import annotations

import shlex
from typing import Any

import click

from drfd.client.connection import Connection
from drfd.errors import Refused
from drfd.units import show_duration, show_need, show_size
from drfd_cli import output
from drfd_cli.commands.run import run_attached
from drfd_cli.commands.submit import fields
from drfd_cli.options import connect, demand_options

#: What is asked for is halved so often, until it would start now.
_TRIES = 8
_LEAST_CORES, _LEAST_MEMORY = 1000, 1 << 30
_STEP = 16 << 20


@click.command("profile", context_settings={"allow_interspersed_args": False})
@demand_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(command: tuple[str, ...], **asked: Any) -> int:
    """Run a command once as a job, attached as `drf run` does it, with all that is free for you
    now, or what -c and -m say; then print, among its errors, the `drf submit` line that fits it."""
    client = connect()
    asked |= _generous(client, command, asked)
    ended = run_attached(client, command, **asked)
    _tell(client, ended, command)
    status: int = ended["status"]
    return status


def _generous(
    client: Connection, command: tuple[str, ...], asked: dict[str, Any]
) -> dict[str, Any]:
    """Cores and memory, where nobody said: all that is free, or the half, or the quarter, … until
    a dry run would start now; limits of pools and places kept for others count, too."""
    free = client.request("shares")["free"]
    cores = max(_LEAST_CORES, round(free["cores"]) * 1000)
    memory = max(_LEAST_MEMORY, free["memory"] // _STEP * _STEP)
    found: dict[str, Any] = {}
    if round(free["cores"]) > free["cores"]:
        cores = max(_LEAST_CORES, cores - 1000)
    for _ in range(_TRIES):
        found = {
            "cores": cores if asked["cores"] is None else asked["cores"],
            "mem": memory if asked["mem"] is None else asked["mem"],
        }
        is_least = (cores, memory) == (_LEAST_CORES, _LEAST_MEMORY)
        if is_least or _starts_now(client, command, asked | found):
            break
        cores = max(_LEAST_CORES, cores // 2000 * 1000)
        memory = max(_LEAST_MEMORY, memory // (2 * _STEP) * _STEP)
    shown = (show_need(what, found[key]) for what, key in (("cores", "cores"), ("memory", "mem")))
    output.say(f"measured with {' and '.join(shown)}")
    return found


def _starts_now(client: Connection, command: tuple[str, ...], asked: dict[str, Any]) -> bool:
    try:
        forecast = client.request("submit", dry_run=True, **fields(command, **asked))
    except Refused:
        return False
    return forecast["reason"] is None


def _tell(client: Connection, ended: dict[str, Any], command: tuple[str, ...]) -> None:
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
            f"cores on average and {show_size(row['peak_max'])} of memory at its peak"
        )
    advice = row["advice"]
    if advice is None:
        code = ended["outcome"]["code"]
        output.say(f"it ended as {code}: only a run that has done its work shows what it needs")
        return
    if advice["short_jobs"]:
        output.say("it was cut short: this is a guess, profile it again with")
    words = shlex.join(command)
    if output.clean(words, 800) != words:
        # A line that cannot be typed would be of no use.
        words = "(the same command)"
    output.say(f"drf submit {' '.join(advice['options'])} -- {words}")
