"""drf doctor: which limits are enforced on this machine, problems, and remedies."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from drfd.common.units import clock_time, show_size
from drfd_cli import output
from drfd_cli.options import connect, prints_result
from drfd_cli.output import Result

if TYPE_CHECKING:
    from drfd.protocol.replies import CoresAndMemory, DoctorReply, StrayView


#: Seconds that the launcher is waited for.
LAUNCHER_S = 2.0


@click.command("doctor")
@click.option(
    "--end-stray",
    "stray",
    metavar="ID.ATTEMPT",
    help="End the processes of an attempt that the journal does not know (administrators).",
)
@prints_result()
def command(stray: str | None) -> Result | int:
    """What is enforced on this machine, what is only measured, and how to change that."""
    if stray is not None:
        parts = stray.split(".")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
            raise click.UsageError("--end-stray takes a number that drf doctor shows, such as 12.1")
        connect().request("end_stray", id=int(parts[0]), attempt=int(parts[1]))
        output.tell(f"ended {stray}")
        return 0
    client, until_s = connect(), time.monotonic() + LAUNCHER_S
    reply: DoctorReply = client.request("doctor")
    # A daemon that has just been started may answer before its launcher is there.
    while reply["launcher"] != "connected" and time.monotonic() < until_s:
        time.sleep(0.05)
        reply = client.request("doctor")
    return Result(show=lambda: _show(reply), view=lambda: reply)


def _show(reply: DoctorReply) -> None:
    output.tell(f"drfd {reply['version']}, launcher {reply['launcher']}")
    disks = [text for disk in reply["disks"] for text in disk["control"].values()]
    why = _shared_reason([*reply["controls"].values(), *disks])
    kind = reply["enforcement"] or "unknown: the launcher is away"
    output.tell(f"enforcement by {kind}{output.clean(why)}")
    for name, control in reply["controls"].items():
        output.tell(f"  {name:<10} {output.clean(control.removesuffix(why))}")
    for name, text in reply.get("private", {}).items():
        output.tell(f"  {name:<10} {output.clean(text)}")
    for disk in reply["disks"]:
        kind = f", {disk['filesystem']}" if disk["filesystem"] else ""
        where = f"disk {disk['name']} ({disk['path']}{kind})"
        rates = f"read {show_size(disk['read'])}/s, write {show_size(disk['write'])}/s"
        guess = "; a guess" if disk["guess"] else ""
        output.tell(f"  {where}, device {disk['device'] or '-'}: {rates}{guess}")
        for direction, control in disk["control"].items():
            output.tell(f"    {direction:<8} {output.clean(control.removesuffix(why))}")
    for name, instances in reply.get("gres", {}).items():
        output.tell(f"  {len(instances)} {name} to give out: {', '.join(instances) or '-'}")
    external = reply["external"]
    if external:
        use, kept = _amount(external), _amount(external["kept"])
        output.tell(
            f"processes outside drfd use {use}; {kept} of what is for jobs is left to them "
            "(not with respect_external_load = false in [scheduling])"
        )
    for notice in output.drain_notices(reply):
        output.tell(notice)
    for window in reply["windows"]:
        times = f"{clock_time(window['start'])} to {clock_time(window['end'])}"
        week = ", each week" if window["weekly"] else ""
        about = f": {window['reason']}" if window["reason"] else ""
        output.tell(f"maintenance window {window['name']} ({times}{week}){about}")
    for hourly in reply["limit_hours"]:
        output.tell(hourly["text"])
    for warning in reply["warnings"]:
        output.tell(f"warning: {output.clean(warning)}")
    for job_id in reply["stuck_jobs"]:
        output.tell(f"warning: job {job_id} cannot be killed and keeps its resources")
    for each in reply["strays"]:
        output.tell(f"warning: {output.clean(_stray(each))}")
    for cure in reply["cures"]:
        output.tell(f"cure: {output.clean(cure)}")


def _shared_reason(controls: list[str]) -> str:
    """Return the reason that most limits have in common, "; " before it, or "" if none is repeated.
    It is told once."""
    ends = Counter(each[at.start() :] for each in controls for at in re.finditer("; ", each))
    shared = [end for end, count in ends.items() if count > max(2, len(controls) / 2)]
    return max(shared, key=len, default="")


def _stray(stray: StrayView) -> str:
    name, uid, user = f"{stray['id']}.{stray['attempt']}", stray["uid"], stray["user"]
    whose = user or ("somebody unknown" if uid is None else f"uid {uid}")
    origin = "another journal" if stray["is_foreign"] else "an unknown past of this journal"
    return (
        f"processes of {whose} may run as attempt {name} from {origin}, outside all jobs; "
        f"drf doctor --end-stray {name} ends them"
    )


def _amount(use: CoresAndMemory) -> str:
    """Return the words for cores and memory; zero amounts are left out."""
    parts = [f"{output.number(use['cores'])} cores"] * bool(use["cores"])
    parts += [f"{show_size(use['memory'])} of memory"] * bool(use["memory"])
    return " and ".join(parts)
