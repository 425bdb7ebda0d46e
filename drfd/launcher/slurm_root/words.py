"""Every command of Slurm's that the helper runs as root, word for word."""

from __future__ import annotations

from collections.abc import Sequence

from drfd.launcher.protocol import EVERY_DISK, LaunchOrder
from drfd.launcher.slurm_root import requests
from drfd.launcher.slurm_root.requests import RootRequest

_MEBI = 1 << 20


def _squeue(states: str, fields: Sequence[str]) -> tuple[str, ...]:
    return ("squeue", "-h", "-a", "-t", states, "-O", ",".join(f"{name}:|" for name in fields))


#: Commands that are always the same.
FIXED = {
    requests.JOBS: (_squeue("all", requests.JOB_FIELDS),),
    requests.NODES: (
        ("sinfo", "-h", "-a", "-N", "-o", "|".join(requests.NODE_FIELDS)),
        ("scontrol", "show", "config"),
    ),
    requests.REGISTER: (("scontrol", "reconfigure"),),
}
PROGRAMS = ("sbatch", "squeue", "sinfo", "scancel", "scontrol")


def control_words(request: RootRequest) -> tuple[str, ...]:
    """Return the command for one of Slurm's jobs. scancel compares the name itself: it may wait for
    a slurmctld that has given the id to another job when it comes back. scontrol does not."""
    name, number = f"--name={title_of(request.job)}", str(request.slurm_id)
    match request.do:
        case requests.END:
            return "scancel", name, number
        case requests.KILL:
            return "scancel", "--signal=KILL", name, number
        case requests.SIGNAL:
            return "scancel", f"--signal={request.signal}", "--full", name, number
    return "scontrol", request.do, number


def title_words(request: RootRequest) -> tuple[str, ...]:
    """Return the command that prints the name of a job."""
    return "squeue", "-h", "-a", "-t", "all", "-j", str(request.slurm_id), "-o", "%j"


def title_of(job_id: int) -> str:
    """Return the name in Slurm of each job that the helper submits; users cannot change it."""
    return f"drfd-{job_id}"


def submit_words(order: LaunchOrder, *, partition: str | None, gid: str, env_fd: int) -> list[str]:
    """Return the command that submits an attempt for its user. The script is its standard input,
    and the environment is in the descriptor `env_fd`."""
    limits = order.limits
    gres = ",".join(f"{name}:{count}" for name, count in order.gres if count)
    return [
        *("sbatch", "--parsable", "--no-requeue", f"--comment={comment_of(order)}"),
        *(f"--job-name={title_of(order.id)}", f"--nodelist={order.node}", "--nodes=1"),
        *("--ntasks=1", f"--cpus-per-task={max(1, -(-limits.cores_milli // 1000))}"),
        f"--mem={max(1, -(-limits.memory_bytes // _MEBI))}M",
        *("--chdir=/", "--input=/dev/null"),
        f"--open-mode={'truncate' if order.empties_output else 'append'}",
        # With --export other than ALL, Slurm would run a login shell on the node.
        *(f"--export-file={env_fd}", f"--uid={order.uid}", f"--gid={gid}"),
        *([f"--gres={gres}"] if gres else ()),
        *([] if partition is None else [f"--partition={partition}"]),
    ]


def submit_env(stdout: str, stderr: str) -> dict[str, str]:
    """Return the variables for that command which name the job's output files: everybody can read
    the words of root's processes. Slurm replaces nothing in these paths."""
    return {"SBATCH_OUTPUT": stdout.replace("%", "%%"), "SBATCH_ERROR": stderr.replace("%", "%%")}


def comment_of(order: LaunchOrder) -> str:
    """Return the comment of an attempt: its name and, if it has any, the disk rates that the node
    is to limit (`drfd.slurm.files`)."""
    every = next((each for each in order.limits.disks if each.device == EVERY_DISK), None)
    rates = "" if every is None else f".{every.read_bps}.{every.write_bps}"
    return f"{order.journal}.{order.id}.{order.attempt}{rates}"
