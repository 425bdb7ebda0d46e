"""The process that prepares a submission: it becomes the job's user and reads what the user has
written. What it leaves in files in memory is handed to sbatch: the script, the environment, and the
paths. sbatch is root's, so that Slurm can refuse all submissions but drfd's, and gets the user's
variables as data alone. The node opens the output files, as the user.
"""

from __future__ import annotations

import json
import os
import shlex
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from drfd.launcher.accounts import Denied, ask_once
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner import identity
from drfd.launcher.runner.failures import of_error, unreadable
from drfd.launcher.slurm.mapping import without_slurms
from drfd.launcher.system import process
from drfd.linux.sealed import read_sealed
from drfd.payload import scripts
from drfd.payload.environment import DEVICE_LISTS
from drfd.payload.unpack import LaunchPayload, decode

#: Descriptor of a submitted script, in the job.
_SCRIPT_FD = 9


@dataclass(frozen=True, slots=True)
class Prepared:
    """Descriptors of the files in memory that the process writes to, besides those of `Commands`:
    its output are the paths of the job's output and error output, each before a NUL, and its
    complaint is a `launch_failed` record, which the user can have cut off (RLIMIT_FSIZE). The
    holder closes them."""

    #: The gid of the job, written with root's rights.
    gid_fd: int
    #: Variables with a NUL after each, and the script, both at their beginning.
    env_fd: int
    script_fd: int

    @classmethod
    def new(cls) -> Prepared:
        return cls(*(os.memfd_create(name) for name in ("gid", "env", "script")))

    @property
    def fds(self) -> tuple[int, int, int]:
        return self.gid_fd, self.env_fd, self.script_fd

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def prepare(assignment: Assignment, into: Prepared, paths_fd: int, complaint_fd: int) -> None:
    """Write all that sbatch needs, as the job's user. Called in a process of its own."""
    launcher = os.getppid()
    try:
        order = assignment.order
        answer = ask_once("account", order.uid, order.user, [])
        user, groups = identity.found_in(answer, order.uid)
        _write(into.gid_fd, str(identity.gid_of(user, groups, order.gid)).encode())
        identity.become(user, groups, order.gid)
        # From here on the process has only the user's rights, and the user may stop it.
        process.die_with(launcher)
        payload = _read(assignment)
        if payload.attach is not None:
            raise Denied("`drf run` and its terminal are on this machine, and its node is not")
        env = without_slurms(identity.environment(user, order, payload))
        if any(count for _, count in order.gres):
            # Slurm chooses them on the node, and names them there.
            for name in DEVICE_LISTS:
                env.pop(name, None)
        outputs = [
            order.output_path(each, payload.cwd) for each in (payload.stdout, payload.stderr)
        ]
        _write(into.env_fd, _with_nuls(f"{name}={text}" for name, text in env.items()))
        _write(into.script_fd, script_of(payload))
        for fd in (into.env_fd, into.script_fd):
            # sbatch reads them from where they stand, which is shared.
            os.lseek(fd, 0, os.SEEK_SET)
        # Last, so that all is there if these are.
        _write(paths_fd, _with_nuls(outputs))
    except Exception as error:
        os.write(complaint_fd, json.dumps(of_error(error)).encode())


def script_of(payload: LaunchPayload) -> bytes:
    """Return the shell script that Slurm keeps a copy of and runs on the node.

    Its first line after the interpreter's is no comment, so sbatch reads no options in it."""
    directory = shlex.quote(payload.cwd)
    lines = ["#!/bin/sh", f"umask {payload.umask:o}", f"cd -- {directory} || exit 125"]
    argv = payload.argv
    if not argv or not argv[0]:
        raise Denied(unreadable("it names no program"))
    path = argv[0]
    if payload.script is not None:
        path, argv = scripts.command(payload.script, payload.interpreter, argv, _SCRIPT_FD)
        text = b64encode(payload.script.encode(errors="surrogateescape")).decode()
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


def _with_nuls(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\0" for text in texts).encode(errors="surrogateescape")


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _read(assignment: Assignment) -> LaunchPayload:
    try:
        return decode(bytes(read_sealed(assignment.payload_fd)))
    except ValueError as error:
        raise Denied(unreadable(error)) from None


def is_there(programs: Path) -> bool:
    """Return whether Slurm's commands are in this directory."""
    return all((programs / name).exists() for name in ("sbatch", "squeue", "scancel", "scontrol"))
