"""Scripts written for Slurm in `drf submit`: their options, and what is said of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from drfd.client.connection import Connection
from drfd.client.submission import find_notice
from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.slurm.sbatch_options import Translation, environment, missing_commands


def host_name() -> str:
    return os.uname().nodename.partition(".")[0]


def resolve(
    made: Translation, asked: Mapping[str, Any], client: Connection, script: str | None
) -> dict[str, Any]:
    """Return the options of `drf submit` in `asked` with those that Slurm's options ask for, and
    print in one warning what has no effect. Raises Refused for a directory that is not there."""
    found = dict(asked)
    if found["pool"] is None and made.partitions:
        found["pool"] = pool_of(made.partitions, client)
        if found["pool"] is None:
            made.unsupported.append(f"--partition={','.join(made.partitions)} (no such pool)")
    if made.is_singleton:
        found["after"] = (*(found["after"] or ()), *_namesakes(found["name"], client))
    if made.mail_on and found["notify"] is None:
        events = ",".join(dict.fromkeys(made.mail_on))
        try:
            find_notice(events, found["notify_command"], os.environ)
            found["notify"] = events
        except Refused:
            made.unsupported.append("--mail-type (no mail here, and no ~/.config/drfd/notify)")
    if made.directory is not None:
        if not os.path.isdir(made.directory):
            raise Refused("cwd", f"--chdir: there is no directory {made.directory}")
        found["cwd"] = made.directory
    if made.unsupported:
        output.say(f"without effect here: {', '.join(made.unsupported)}")
    missing = [] if script is None else missing_commands(script, os.environ, shutil.which)
    for name in missing:
        output.say(f"the script calls {name}, and there is no such command here{_cure(name)}")
    return found


def _cure(name: str) -> str:
    if name == "srun":
        return " (drf slurm-names DIR makes one)"
    if name in ("module", "ml"):
        return "; what it loads must be in your PATH"
    return ""


def variables(env: Mapping[str, str], made: Translation) -> dict[str, str]:
    """Return the job's variables, with Slurm's."""
    return environment(env, made, directory=os.getcwd(), host=host_name())


def pool_of(names: list[str], client: Connection) -> str | None:
    """Return the first of the names that a pool has, or None."""
    paths = [node["path"] for node in client.request("shares")["nodes"]]
    known = {path.rsplit(".", 1)[-1] for path in paths if "." in path} | set(paths)
    return next((name for name in names if name in known), None)


def _namesakes(name: str | None, client: Connection) -> list[tuple[int, str]]:
    """Return the caller's live jobs of the same name, as what is to be waited for."""
    user = client.request("hello")["user"]
    if name is None:
        return []
    ids = {
        job["array_id"] or job["id"]
        for page in client.pages("status", select={"user": user, "ids": [], "states": []})
        for job in page["jobs"]
        if job["name"] == name
    }
    return [(each, "any") for each in sorted(ids)]


def read_standard_input(most_bytes: int) -> bytes:
    """Return what standard input holds, up to one byte more than `most_bytes`."""
    data = b""
    while len(data) <= most_bytes:
        piece = os.read(0, most_bytes + 1 - len(data))
        if not piece:
            break
        data += piece
    return data


def is_typed() -> bool:
    """Return whether standard input is a terminal, or missing."""
    return sys.stdin is None or os.isatty(0)
