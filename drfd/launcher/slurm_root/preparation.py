"""The program that prepares a submission: it reads what the job's user has written. It is `nobody`,
runs for one submission, and has no copy of the helper's memory. What it leaves in files in memory
is handed to sbatch: the script, the environment, the paths. sbatch is root's, so that Slurm can
refuse all submissions but drfd's, and gets the user's variables as data only. The node opens the
output files, as the user.

    python -m drfd.launcher.system.nobody drfd.launcher.slurm_root.preparation \\
        PAYLOAD_FD ENV_FD SCRIPT_FD <ORDER
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NoReturn

from drfd.launcher.protocol import LaunchOrder, read_order
from drfd.launcher.runner import identity
from drfd.launcher.runner.shortage import DIRECTORY, JOB, Shortage, failure
from drfd.launcher.system.accounts import Denied, DirectoryFailed
from drfd.launcher.system.answers import account, groups_of
from drfd.linux.sealed import read_sealed
from drfd.payload import scripts, unpack
from drfd.payload.environment import DEVICE_LISTS, OPENMP, WAIT_POLICY
from drfd.payload.unpack import LaunchPayload, output_path

#: Descriptor of a submitted script, in the job.
_SCRIPT_FD = 9


def main(words: Sequence[str], own: tuple[int, int]) -> None:
    """`own` is the uid and gid of the process that has the submission prepared."""
    payload_fd, env_fd, script_fd = map(int, words)
    try:
        order = read_order(bytes(read_sealed(0)))
        assert isinstance(order, LaunchOrder)
        user = account(order.uid, order.user, own)
        gid = identity.gid_of(user, groups_of(user, [order.gid]), order.gid)
        payload = unpack.decode(bytes(read_sealed(payload_fd)))
        if payload.attach is not None:
            raise Denied("`drf run` and its terminal are on this machine, and its node is not")
        env = without_slurms(environment(user, order, payload))
        if any(count for _, count in order.gres):
            # Slurm chooses them on the node, and names them there.
            for name in DEVICE_LISTS:
                env.pop(name, None)
        _write(env_fd, "".join(f"{name}={text}\0" for name, text in env.items()))
        _write(script_fd, script_of(payload))
        outputs = payload.stdout, payload.stderr
        paths = (output_path(each, payload.cwd, order.output_signs) for each in outputs)
        _write(1, "\0".join((str(gid), *paths, "")))
    except Denied as error:
        _fail(str(error))
    except DirectoryFailed as error:
        _fail(str(error), Shortage(JOB, DIRECTORY))
    except ValueError as error:
        _fail(f"what it is to run cannot be read: {error}")


def _fail(text: str, short: Shortage | None = None) -> NoReturn:
    _write(2, json.dumps(failure(text, short)))
    sys.exit(1)


def script_of(payload: LaunchPayload) -> str:
    """Return the shell script that Slurm keeps a copy of and runs on the node.

    Its first line after the interpreter's is no comment, so sbatch reads no options in it."""
    directory = shlex.quote(payload.cwd)
    lines = ["#!/bin/sh", f"umask {payload.umask:o}", f"cd -- {directory} || exit 125"]
    argv = payload.argv
    if not argv or not argv[0]:
        raise ValueError("it names no program")
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
    return "\n".join([*lines, ""])


def environment(
    user: pwd.struct_passwd, order: LaunchOrder, payload: LaunchPayload
) -> dict[str, str]:
    """Return the job's environment, as `environment` of user.h does."""
    rules = identity.variables_of(order)
    given = {
        name: text for name, text in payload.env.items() if not f"{name}=".startswith(rules.hidden)
    }
    openmp = {} if OPENMP in given else rules.openmp
    wait = {} if WAIT_POLICY in given else rules.wait
    own = {"PWD": payload.cwd} | identity.own_variables(user, order)
    return rules.defaults | openmp | wait | given | own


def without_slurms(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that Slurm's commands would take for options."""
    return {name: text for name, text in env.items() if not name.startswith(("SBATCH_", "SLURM_"))}


def _write(fd: int, text: str) -> None:
    """Write a text at the beginning of a file. It does not move the shared offset, at which sbatch
    begins to read."""
    left, done = memoryview(text.encode(errors="surrogateescape")), 0
    while done < len(left):
        done += os.pwrite(fd, left[done:], done)
