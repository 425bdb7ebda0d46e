"""What `drf doctor --nodes` finds out on the nodes of Slurm's by a short job on each: whether the
clock, the user and the present directory are there as they are here, and disk rates are kept."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drfd.client.client import Client
from drfd.client.values import JobInfo
from drfd.common.errors import DrfdError, Refused
from drfd.common.units import show_duration

if TYPE_CHECKING:
    from drfd.client.connection import Connection
    from drfd.protocol.replies import MachineView

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
    token = secrets.token_hex(8)
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
