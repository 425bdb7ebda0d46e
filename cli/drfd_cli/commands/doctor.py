"""drf doctor: which limits are enforced on this machine, problems, and remedies."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from drfd.common.errors import DrfdError, Refused
from drfd.common.units import clock_time, show_duration, show_size
from drfd_cli import output
from drfd_cli.options import connect, prints_result
from drfd_cli.output import Result

if TYPE_CHECKING:
    from pathlib import Path

    from drfd.client.client import Client
    from drfd.client.connection import Connection
    from drfd.client.values import JobInfo
    from drfd.protocol.replies import (
        CoresAndMemory,
        DoctorReply,
        MachineView,
        StrayView,
        WindowView,
    )


#: Seconds that the launcher is waited for.
LAUNCHER_S = 2.0
#: Whether a node of Slurm's keeps jobs to their disk rates → what is said of it.
_DISK_RATES = {
    True: "jobs are kept to their disk rates",
    False: "disk rates are counted, and no job is kept to them: that takes cgroup v2 there, and "
    "drfd-disks as Slurm's Prolog (drfd slurm-conf)",
}


@click.command("doctor")
@click.option(
    "--end-stray",
    "stray",
    metavar="ID.ATTEMPT",
    help="End processes that are of no job here (administrators).",
)
@click.option(
    "--nodes", "tries_nodes", is_flag=True,
    help="Also run a short job of yours on each node of Slurm's: is its clock right, are you and "
    "this directory the same there, and are disk rates kept?",
)  # fmt: skip
@prints_result()
def command(stray: str | None, tries_nodes: bool) -> Result | int:
    """What is enforced on this machine, what is only measured, and how to change that."""
    if stray is not None:
        _end(stray)
        return 0
    connection = connect()
    reply = _asked(connection)
    if not tries_nodes:
        return Result(show=lambda: _show(reply), view=lambda: reply)
    nodes = [node for node in connection.request("nodes")["nodes"] if node["engine"] == "slurm"]
    found = try_nodes(connection, nodes)

    def show() -> None:
        _show(reply)
        _show_trials(found)

    return Result(
        show=show,
        view=lambda: {**reply, "tried": [asdict(each) for each in found]},
        finish=lambda: int(any(each.problems for each in found)),
    )


def _asked(client: Connection) -> DoctorReply:
    """Ask the daemon. A daemon that has just been started may answer before its launcher is there,
    so that is waited for."""
    until_s = time.monotonic() + LAUNCHER_S
    while True:
        reply: DoctorReply = client.request("doctor")
        if reply["launcher"] == "connected" or time.monotonic() > until_s:
            return reply
        time.sleep(0.05)


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
        output.tell(f"maintenance window {output.clean(_window(window))}")
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


def _show_trials(found: list[NodeTrial]) -> None:
    for each in found:
        name = output.clean(each.node)
        for problem in each.problems:
            output.tell(f"warning: node {name}: {output.clean(problem)}")
        if not each.problems:
            output.tell(f"node {name}: its clock, you and this directory are the same there")
        if each.keeps_disk_rates is not None:
            output.tell(f"node {name}: {_DISK_RATES[each.keeps_disk_rates]}")
    if not found:
        output.tell("there is no node of Slurm's to try")


def _window(window: WindowView) -> str:
    times = f"{clock_time(window['start'])} to {clock_time(window['end'])}"
    week = ", each week" if window["weekly"] else ""
    about = f": {window['reason']}" if window["reason"] else ""
    return f"{window['name']} ({times}{week}){about}"


def _shared_reason(controls: list[str]) -> str:
    """Return the reason that most limits have in common, "; " before it, or "" if none is repeated.
    It is told once."""
    ends = Counter(each[at.start() :] for each in controls for at in re.finditer("; ", each))
    shared = [end for end, count in ends.items() if count > max(2, len(controls) / 2)]
    return max(shared, key=len, default="")


def _end(stray: str) -> None:
    parts = stray.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise click.UsageError("--end-stray takes the number that drf doctor shows, such as 12.1")
    job_id, attempt = map(int, parts)
    connect().request("end_stray", id=job_id, attempt=attempt)
    output.tell(f"ended {stray}")


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
    parts = [f"{use['cores']:g} cores"] * bool(use["cores"])
    parts += [f"{show_size(use['memory'])} of memory"] * bool(use["memory"])
    return " and ".join(parts)


# -- a trial on another machine ----------------------------------------------------------------


#: Seconds that all the jobs together may take, and that an output may take to arrive: a network
#: file system shows new files late.
_PATIENCE_S, ARRIVAL_S = 60.0, 10.0
#: Seconds by which clocks may differ. drfd believes Slurm's times of ends only within a job's life.
_CLOCK_S = 1.0
#: The disk rates of the jobs where such a rate is counted, in bytes per second.
_RATE_BPS = 16 << 20
#: Slurm's cgroup of a job has those of its steps in it (`drfd.slurm.files`).
_SCRIPT = r"""
date +%s.%N
id -un
group=$(sed -n 's/^0:://p' /proc/self/cgroup)
if [ "$2" = 0 ]; then
    echo none
elif grep -qs "[rw]bps=$2" "/sys/fs/cgroup${group%%/step_*}/io.max"; then
    echo kept
else
    echo counted
fi
cat "$1"
"""
#: What the job says of its disk rates → whether it is kept to them; None where it has none.
_SAID_OF_RATES = {"kept": True, "counted": False, "none": None}


@dataclass
class NodeTrial:
    """What was found on a node."""

    node: str
    #: Seconds by which its clock is ahead of this machine's, 0 if no difference was seen; None if
    #: that is not known.
    clock_ahead_s: float | None = None
    #: Whether jobs are kept to their disk rates there; None where none are counted, or if that is
    #: not known.
    keeps_disk_rates: bool | None = None
    #: What differs, each in a line.
    problems: list[str] = field(default_factory=list)


def try_nodes(connection: Connection, nodes: Sequence[MachineView]) -> list[NodeTrial]:
    """Run a job on each of these nodes, in the present directory as the present user. Raises
    Refused if nothing can be written there."""
    # Imported here: without --nodes, none of it is needed.
    import shutil
    import tempfile
    from pathlib import Path

    from drfd.client.client import Client

    here = os.getcwd()
    try:
        place = Path(tempfile.mkdtemp(prefix=".drf-doctor-", dir=here))
    except OSError as error:
        raise Refused(
            "no-directory",
            f"cannot write in {here}: {error.strerror}",
            hint="the nodes are tried from a directory that all machines have, such as your home",
        ) from None
    try:
        return _try_from(place, Client(connection), nodes)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _try_from(place: Path, client: Client, nodes: Sequence[MachineView]) -> list[NodeTrial]:
    token = os.urandom(8).hex()
    (place / "token").write_text(token)
    found = {node["name"]: NodeTrial(node["name"]) for node in nodes}
    jobs: dict[str, int] = {}
    rates = {node["name"]: _rates(node) for node in nodes}
    begin_s = time.time()
    for node in nodes:
        name = node["name"]
        if node["state"] != "up":
            about = f": {node['text']}" if node["text"] else ""
            found[name].problems.append(f"not tried, because it is {node['state']}{about}")
            continue
        try:
            jobs[name] = client.submit(
                ["sh", "-c", _SCRIPT, "sh", str(place / "token"), str(max(rates[name]))],
                cores=1, memory="64M", time="5m", io="{}/{}".format(*rates[name]),
                node=name, name="drf-doctor", stdout=str(place / name), cwd=str(place),
                env={"PATH": os.defpath},
            )  # fmt: skip
        except DrfdError as error:
            found[name].problems.append(str(error))
    if jobs:
        _await(client, list(jobs.values()))
        span = begin_s, time.time()
        for name, job_id in jobs.items():
            judge(found[name], client.get(job_id), place / name, token, span)
    return list(found.values())


def _rates(node: MachineView) -> tuple[int, int]:
    """Return the disk rates of the job that tries a node, 0 where none are counted."""
    has = node["capacity"]
    return min(_RATE_BPS, has["read"]), min(_RATE_BPS, has["write"])


def _await(client: Client, ids: list[int]) -> None:
    """Wait for the ends of the jobs, and cancel those that do not end."""
    with suppress(TimeoutError):
        client.wait(ids, timeout=_PATIENCE_S)
        return
    late = [each for each in ids if not client.get(each).has_ended]
    for job_id in late:
        with suppress(DrfdError):
            client.cancel(job_id)


def judge(
    trial: NodeTrial, job: JobInfo, output: Path, token: str, span: tuple[float, float]
) -> None:
    """Compare what a job has printed with what is so here. It ran in this span, by this machine's
    clock: the job's own times are Slurm's, in whole seconds."""
    if job.state == "CANCELLED" or not job.has_ended:
        why = "" if job.started_at is not None or job.reason is None else f": {job.reason.text}"
        trial.problems.append(f"no job ended there within {show_duration(_PATIENCE_S)}{why}")
        return
    if not job.is_completed:
        why = job.state if job.outcome is None else job.outcome.text
        trial.problems.append(f"a job in {output.parent.parent} fails there: {why}")
        return
    lines = _arrived(output)
    there_s = _seconds(lines)
    if there_s is None or len(lines) < 3 or lines[2] not in _SAID_OF_RATES:
        trial.problems.append(
            f"what a job writes in {output.parent.parent} there does not arrive here: the "
            "directory is not the same one on both machines"
        )
        return
    begin_s, end_s = span
    ahead_s = min(0.0, there_s - begin_s) + max(0.0, there_s - end_s)
    trial.clock_ahead_s = round(ahead_s, 3)
    if abs(ahead_s) > _CLOCK_S:
        how = "ahead of" if ahead_s > 0 else "behind"
        trial.problems.append(f"its clock is {abs(ahead_s):.1f} s {how} this machine's")
    own = own_name()
    if lines[1] != own:
        trial.problems.append(f"the uid {os.getuid()} is {lines[1]} there, and {own} here")
    trial.keeps_disk_rates = _SAID_OF_RATES[lines[2]]
    if lines[3:] != [token]:
        trial.problems.append(f"a job there cannot read what is written in {output.parent.parent}")


def _seconds(lines: list[str]) -> float | None:
    try:
        return float(lines[0])
    except (IndexError, ValueError):
        return None


def own_name() -> str:
    """Return what `id -un` prints here."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _arrived(output: Path) -> list[str]:
    """Return the lines of an output once it is there; none if it does not come."""
    deadline = time.monotonic() + ARRIVAL_S
    while True:
        with suppress(OSError):
            lines = output.read_text(errors="replace").splitlines()
            if len(lines) > 3 or time.monotonic() > deadline:
                return lines
        if time.monotonic() > deadline:
            return []
        time.sleep(0.1)
