"""How the configuration of a running Slurm, with its scripts, differs from what drfd needs."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from drfd.common.errors import HostError, Unavailable
from drfd.slurm.files import Layout, scripts
from drfd.slurm.nodes import SHOW_NODES, GivenOut, all_node_differences, read_nodes
from drfd.slurm.settings import (
    BETWEEN,
    EVENT,
    GATE_FILE,
    SCRIPTS,
    Difference,
    differences,
    read_config,
    user_difference,
)

#: Seconds that slurmctld has to answer. The command itself would wait for minutes.
_ANSWER_S = 10.0


def running_differences(
    layout: Layout,
    env: Mapping[str, str],
    nodes: Sequence[GivenOut] = (),
    user: str | None = None,
) -> list[Difference]:
    """Return how the running Slurm differs from what drfd needs, also of these nodes, and that its
    user is this one, if it is given.

    `env` may say by PATH where scontrol is, and by SLURM_CONF which Slurm is meant. Raises
    HostError if there is no scontrol, and Unavailable if slurmctld does not answer.
    """
    running = read_config(_show(("scontrol", "show", "config"), env))
    if "SLURM_VERSION" not in running:
        raise HostError(
            "no-slurm",
            "the scontrol in PATH is not Slurm's: it shows no SLURM_VERSION",
            hint="set PATH to where Slurm's commands are",
        )
    gate_path = str(Path(running.get("SLURM_CONF", layout.directory / "x")).parent / GATE_FILE)
    named = {name: running.get(name, "") for name in SCRIPTS}
    texts: dict[str, str] = {}
    for value in {gate_path, *named.values()}:
        for path in _paths(value):
            with suppress(OSError, UnicodeDecodeError):
                texts[value] = texts.get(value, "") + Path(path).read_text(encoding="utf-8")
    slurms_user = running.get("SlurmUser", "")
    # The nodes run theirs as root.
    users = {name: slurms_user if each.name == EVENT else "root" for name, each in SCRIPTS.items()}
    stuck = {
        name
        for name, value in named.items()
        if not all(_may_execute(path, users[name]) for path in _paths(value))
    }
    found = list(
        differences(running, texts, scripts=scripts(layout), gate_path=gate_path, stuck=stuck)
    )
    if user is not None:
        found += user_difference(slurms_user, user)
    if nodes:
        shown = read_nodes(_show(SHOW_NODES, env))
        found += all_node_differences(nodes, shown, running.get("GresTypes", ""))
    # What is needed comes first.
    return sorted(found, key=lambda difference: difference.is_advice)


def _paths(value: str) -> list[str]:
    """Return the files that a setting names. Slurm takes a pattern for several scripts."""
    return [path for each in value.split(BETWEEN) for path in sorted(glob.glob(each))]


def _may_execute(path: str, user: str) -> bool:
    """Return whether a user, shown as "slurm(64030)", can execute a script that is there. Of a user
    without account it is not known."""
    try:
        status = os.stat(path)
        account = pwd.getpwnam(user.partition("(")[0])
    except (OSError, KeyError):
        return True
    if account.pw_uid == 0:
        return bool(status.st_mode & 0o111)
    if status.st_uid == account.pw_uid:
        bits = status.st_mode >> 6
    elif status.st_gid in os.getgrouplist(account.pw_name, account.pw_gid):
        bits = status.st_mode >> 3
    else:
        bits = status.st_mode
    # The interpreter of a script reads it.
    return bits & 0o5 == 0o5


def _show(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return what this command of scontrol's prints."""
    path = env.get("PATH", os.defpath)
    program = shutil.which("scontrol", path=path)
    if program is None:
        raise HostError(
            "no-slurm",
            "there is no scontrol on this machine",
            hint="install Slurm, or set PATH to where its commands are",
        )
    # Variables of the caller change what Slurm's commands print.
    clean = {"PATH": path, "LC_ALL": "C"}
    clean |= {name: env[name] for name in ("SLURM_CONF",) if name in env}
    try:
        done = subprocess.run(
            [program, *words[1:]],
            env=clean,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            "no-slurmctld", f"slurmctld has not answered for {_ANSWER_S:.0f} s", hint="does it run?"
        ) from None
    except OSError as error:
        raise HostError("no-slurm", f"cannot start {program}: {error.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise Unavailable("no-slurmctld", f"slurmctld does not answer: {said}")
    return done.stdout
