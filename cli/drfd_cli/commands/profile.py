"""drf profile: run a command once with ample resources, and print the demand that fits it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from drfd.client.connection import Connection
from drfd.common.errors import Refused
from drfd.common.units import Range, show_duration, show_need, show_size
from drfd_cli import output
from drfd_cli.commands.run import run_attached
from drfd_cli.commands.submit import fields
from drfd_cli.options import connect, job_options

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView

#: Returns the fields of the submission with these cores and memory.
_FieldsWith = Callable[..., dict[str, object]]
#: Most attempts to find a demand with which the job would start now; each halves the last one.
_TRIES = 8
#: Least demand that is tried: thousandths of a core, and bytes.
_LEAST_CORES, _LEAST_MEMORY = 1000, 1 << 30
#: Bytes of which the memory that is tried is a multiple.
_STEP = 16 << 20


@click.command("profile", context_settings={"allow_interspersed_args": False})
@job_options("profile")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    command: tuple[str, ...], *, cores: int | Range | None, memory: int | None, no_warnings: bool,
    **asked: Any,
) -> int:  # fmt: skip
    """Run a command once as a job, attached as `drf run` does it, with all that is free for you
    now, or what -c and -m say; then print, among its errors, the `drf submit` line that fits it."""
    client = connect()
    # As with its terminal, it runs on the daemon's own machine, if there are several.
    with_terminal = partial(fields, command, attach="/", **asked)
    asked |= _generous(client, with_terminal, cores, memory)
    ended = run_attached(client, command, no_warnings=no_warnings, **asked)
    _tell(client, ended, command)
    return ended["status"]


def _generous(
    client: Connection,
    fields_with: _FieldsWith,
    asked_cores: int | Range | None,
    asked_mem: int | None,
) -> dict[str, Any]:
    """Return cores and memory as asked for or, where a job does not declare them, chosen: all that
    is free is tried first, then a half, a quarter, …, until the job would start now, because limits
    of pools and reservations may forbid more."""
    free = client.request("shares")["free"]
    cores = max(_LEAST_CORES, round(free["cores"]) * 1000)
    memory = max(_LEAST_MEMORY, free["memory"] // _STEP * _STEP)
    found: dict[str, Any] = {}
    if round(free["cores"]) > free["cores"]:
        cores = max(_LEAST_CORES, cores - 1000)
    for _ in range(_TRIES):
        found = {
            "cores": cores if asked_cores is None else asked_cores,
            "memory": memory if asked_mem is None else asked_mem,
        }
        is_least = (cores, memory) == (_LEAST_CORES, _LEAST_MEMORY)
        if is_least or _starts_now(client, fields_with, found):
            break
        cores = max(_LEAST_CORES, cores // 2000 * 1000)
        memory = max(_LEAST_MEMORY, memory // (2 * _STEP) * _STEP)
    least = found["cores"].least if isinstance(found["cores"], Range) else found["cores"]
    shown = (show_need("cores", least), show_need("memory", found["memory"]))
    output.say(f"measured with {' and '.join(shown)}")
    return found


def _starts_now(client: Connection, fields_with: _FieldsWith, found: dict[str, int]) -> bool:
    try:
        forecast = client.forecast(**fields_with(**found))
    except Refused:
        return False
    return forecast["reason"] is None


def _tell(client: Connection, ended: JobView, command: tuple[str, ...]) -> None:
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
