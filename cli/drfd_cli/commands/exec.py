"""drf exec: a command, or a shell, inside a running job.

The command is this process itself. At its user's signed request the launcher moves it into the
job's cgroup. There it takes directory, environment and limits from the job's first process, which
has the same uid, and executes the command.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from drfd.client.connection import Connection
from drfd.client.words import Ref
from drfd.common.errors import Refused
from drfd.linux import syscalls
from drfd.payload.signature import exec_digest, proof_of
from drfd_cli import output, which_job
from drfd_cli.options import KnowingOthers, connect, job_id

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView

#: Variables about the terminal, which is not that of the job.
_OF_TERMINAL = (b"TERM", b"COLORTERM")
#: Marks the environment of a drf that has been started again.
_BELOW_MANAGER = "DRF_EXEC_BELOW_MANAGER"
#: Signals that Python ignores.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


class _ExecCommand(KnowingOthers):
    """The verb, which takes `drf exec -- CMD` for the latest running job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["--"] and not ctx.resilient_parsing:
            found = which_job.latest_in(connect, ("RUNNING",), "runs")
            if found is None:
                raise click.UsageError("name the job: drf exec ID -- CMD", ctx)
            args = [str(found), *args]
        return super().parse_args(ctx, args)


@click.command("exec", cls=_ExecCommand, context_settings={"allow_interspersed_args": False})
@job_id
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(job_id: Ref, command: tuple[str, ...]) -> NoReturn:
    """Run a command inside a running job of yours: in its directory, with its environment and
    within its limits. Without a command, your shell.

    It counts towards the job's limits, and is killed when the job ends. It is a process of your
    terminal, with the groups and keys of your login. Jobs with a private /tmp
    (enforcement.private_tmp) take no commands.
    """
    # The first word that is no option ends the options, so click leaves this sign to the verb.
    command = command[1:] if command[:1] == ("--",) else command
    client = connect()
    reply = client.request("show", id=job_id)
    if "job" not in reply:
        raise Refused("is-array", f"{job_id} is an array: name a task", hint=f"as in {job_id}_1")
    view = reply["job"]
    label = output.label(view)
    if job_id not in (view["id"], label):
        # What is signed below is for this job, whatever the reply says.
        raise Refused("other-job", f"the daemon answered about job {label}, not {job_id}")
    try:
        _move_into(client, view)
    except Refused as error:
        if error.code == "out-of-reach" and _BELOW_MANAGER not in os.environ:
            _start_again_below_manager()
        raise
    client.close()
    first = _first_process(view["id"], view["attempt"])
    try:
        env = _become_like(first)
    except OSError as error:
        raise _refusal(label, f"its first process cannot be read: {error.strerror}") from None
    argv = list(command) or [os.fsdecode(env.get(b"SHELL") or b"/bin/sh")]
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        raise _refusal(label, f"there is no command {argv[0]} in the job's PATH") from None
    except (OSError, ValueError) as error:
        raise _refusal(label, f"{argv[0]}: {getattr(error, 'strerror', error)}") from None


def _refusal(label: int | str, why: str) -> Refused:
    return Refused("not-begun", f"not run inside job {output.clean(str(label))}: {why}")


def _start_again_below_manager() -> None:
    """Execute this command once more in a scope of the user's own systemd, below which the user may
    move processes (cgroup-v2.rst, Delegation Containment). Returns if there is no systemd."""
    words = ["systemd-run", "--user", "--scope", "--quiet", "--", *sys.orig_argv]
    with suppress(OSError):
        os.execvpe(words[0], words, {**os.environ, _BELOW_MANAGER: "1"})


def _move_into(client: Connection, job: JobView) -> None:
    """Have this process moved into the job's cgroup. Raises the daemon's refusal."""
    job_id, attempt, submitted_us = job["id"], job["attempt"], round(job["submitted_at"] * 1e6)
    pid, start_ticks = os.getpid(), _start_ticks(os.getpid())
    if start_ticks is None:
        raise _refusal(job_id, "/proc cannot be read here")
    key, proof = client.fetch_key(), dict[str, str]()
    if key:
        boot_id = _read("sys/kernel", "random/boot_id").strip()
        digest = exec_digest(job_id, attempt, submitted_us, pid, start_ticks, boot_id)
        proof = {"proof": proof_of(key, digest)}
    client.request("exec", id=job_id, attempt=attempt, pid=pid, start_ticks=start_ticks, **proof)


def _start_ticks(pid: int) -> int | None:
    """Return when the process started, in ticks since the boot, or None if it has ended."""
    try:
        words = _read(pid, "stat").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in ("Z", "X") else int(words[19])


def _first_process(job_id: int, attempt: int) -> int:
    """Return the oldest process of this uid in the cgroup into which this process has been moved,
    and in the namespaces of this process: one in a container has an environment of its own.
    Raises Refused if it is in none of the job's: the daemon's word does not suffice."""
    name = f"job-{job_id}-{attempt}"
    own = [line for line in _read("self", "cgroup").splitlines() if name in line.split("/")]
    if not own:
        raise _refusal(job_id, "the launcher has not moved this process into its cgroup")
    found, here = [], _namespaces("self")
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        # A process may end meanwhile, or be one that its user may not look at.
        with suppress(OSError):
            is_mine = os.stat(f"/proc/{pid}").st_uid == os.geteuid() and pid != os.getpid()
            is_outside = is_mine and _namespaces(pid) == here
            is_inside = is_outside and own[0] in _read(pid, "cgroup").splitlines()
            if is_inside and (start_ticks := _start_ticks(pid)) is not None:
                found.append((start_ticks, pid))
    if not found:
        raise _refusal(job_id, "it has no process of yours that can be read")
    return min(found)[1]


def _namespaces(pid: int | str) -> list[str]:
    return [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("user", "mnt")]


def _become_like(pid: int) -> dict[bytes, bytes]:
    """Take over directory, umask, priority, CPUs and resource limits of a process, as far as one
    may, and that it gains no rights. Returns its environment. Raises OSError."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    env = dict(each.split(b"=", 1) for each in variables if b"=" in each)
    if os.isatty(0):
        env |= {name: os.environb[name] for name in _OF_TERMINAL if name in os.environb}
    os.chdir(f"/proc/{pid}/cwd")
    status = dict(line.split(":\t", 1) for line in _read(pid, "status").splitlines())
    os.umask(int(status.get("Umask", "022"), 8))
    if status.get("NoNewPrivs") == "1":
        syscalls.set_no_new_privileges()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, pid))
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    for limit in (getattr(resource, name) for name in dir(resource) if name[:7] == "RLIMIT_"):
        # One may lower the hard limits of one's login, and not raise them.
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, resource.prlimit(pid, limit))
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    return env


def _read(pid: int | str, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(errors="surrogateescape")
