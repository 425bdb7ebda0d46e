"""The process that submits a job: it becomes the job's user, reads what the user has written, and
executes sbatch, so that Slurm itself learns who submits.

Root parses nothing of the user's. The node opens the output files, as the user.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
from base64 import b64encode
from pathlib import Path
from typing import NoReturn

from drfd.launcher.protocol import Assignment, LaunchOrder
from drfd.launcher.runner import identity, inheritance, scripts
from drfd.launcher.runner.failures import MAX_TEXT, StepFailed, describe_in_job, unreadable
from drfd.launcher.slurm.commands import Commands
from drfd.launcher.slurm.mapping import submit_words, without_slurms
from drfd.launcher.system import process
from drfd.linux import syscalls
from drfd.linux.sealed import read_sealed
from drfd.payload.environment import DEVICE_LISTS
from drfd.payload.unpack import LaunchPayload, decode, output_path

#: Descriptor of a submitted script, in the job.
_SCRIPT_FD = 9
#: The signals that Python ignores, which a program would inherit.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)


def fork_submission(
    assignment: Assignment, commands: Commands, partition: str | None
) -> tuple[int, int, int, int]:
    """Start the process. Returns its pid, and descriptors of files in memory: what sbatch prints
    and complains of, and why sbatch was not executed, as a `failed` record. Raises OSError."""
    fds: list[int] = []
    try:
        for name in ("output", "complaint", "report"):
            fds.append(os.memfd_create(name))
        output_fd, complaint_fd, report_fd = fds
        pid = syscalls.fork()
    except OSError:
        for fd in fds:
            os.close(fd)
        raise
    if pid == 0:
        _submit(assignment, commands, partition, output_fd, complaint_fd, report_fd)
    return pid, output_fd, complaint_fd, report_fd


def _submit(
    assignment: Assignment, commands: Commands, partition: str | None,
    output_fd: int, complaint_fd: int, report_fd: int,
) -> NoReturn:  # fmt: skip
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        os.setsid()
        process.close_all_but(assignment.payload_fd, output_fd, complaint_fd, report_fd)
        order = assignment.order
        user = identity.account(order.uid, order.user)
        groups = identity.groups_of(user)
        inheritance.leave_keyring()
        identity.become(user, groups, order.gid)
        # From here on the process has only the user's rights.
        payload = _read(assignment)
        if payload.attach is not None:
            raise StepFailed("`drf run` and its terminal are on this machine, and its node is not")
        words = submit_words(
            order,
            partition=partition,
            cwd=payload.cwd,
            stdout=_output(order, payload, payload.stdout),
            stderr=_output(order, payload, payload.stderr),
        )
        env = without_slurms(identity.environment(user, order, payload)) | commands.conf_variable
        if any(grant.given for grant in order.grants):
            # Slurm chooses them on the node, and names them there.
            for name in DEVICE_LISTS:
                env.pop(name, None)
        os.dup2(_in_memory(script_of(payload)), 0)
        os.dup2(output_fd, 1)
        os.dup2(complaint_fd, 2)
        os.chdir("/")
        os.umask(payload.umask)
        for number in _RESTORED:
            signal.signal(number, signal.SIG_DFL)
        os.execve(commands.programs / words[0], words, env)
    except BaseException as error:
        record = describe_in_job(error)
        os.write(report_fd, json.dumps(record | {"text": record["text"][:MAX_TEXT]}).encode())
    finally:
        os._exit(125)


def script_of(payload: LaunchPayload) -> bytes:
    """Return the shell script that Slurm keeps a copy of and runs on the node.

    Its first line after the interpreter's is no comment, so sbatch reads no options in it."""
    lines = ["#!/bin/sh", f"umask {payload.umask:o}"]
    argv = list(payload.argv)
    if not argv or not argv[0]:
        raise unreadable("it names no program")
    path = argv[0]
    if payload.script is not None:
        start = scripts.start_of(payload.script, payload.env.get(scripts.VARIABLE))
        path, argv = start.command(_SCRIPT_FD, argv)
        text = b64encode(start.text.encode(errors="surrogateescape")).decode()
        lines += [
            'drfd_script=$(mktemp "${TMPDIR:-/tmp}/drfd.XXXXXX") || exit 125',
            "base64 -d > \"$drfd_script\" <<'end' || exit 125",
            *(text[at : at + 76] for at in range(0, len(text), 76)),
            "end",
            'chmod 700 "$drfd_script"',
            f'exec {_SCRIPT_FD}< "$drfd_script"',
            'rm "$drfd_script"',
            "unset drfd_script",
        ]
    # The interpreter of a script gets its own name for argv[0], which sh cannot set.
    lines.append("exec " + " ".join(map(shlex.quote, [path, *argv[1:]])))
    return "\n".join([*lines, ""]).encode(errors="surrogateescape")


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("script")
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read(assignment: Assignment) -> LaunchPayload:
    try:
        return decode(read_sealed(assignment.payload_fd))
    except ValueError as error:
        raise unreadable(error) from None


def _output(order: LaunchOrder, payload: LaunchPayload, pattern: str) -> str:
    return output_path(
        pattern,
        cwd=payload.cwd,
        job_id=order.id,
        array_id=order.array_id,
        index=order.array_index,
        name=order.name,
        user=order.user,
    )


def is_there(programs: Path) -> bool:
    """Return whether Slurm's commands are in this directory."""
    return all((programs / name).exists() for name in ("sbatch", "squeue", "scancel", "scontrol"))
