"""A submission as the wire has it, from values that have been read already.

The one place that knows what a job takes along from whoever submits it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from drfd.client.notice import find_notice
from drfd.client.words import Ref
from drfd.environment import not_text
from drfd.errors import Refused

#: The disk's name, if one is given, and bytes read and written per second.
Rates = tuple[str | None, int, int]


def compose(
    argv: list[str],
    *,
    env: dict[str, str],
    cwd: str | None = None,
    cores: int | None = None,
    mem: int | None = None,
    io: tuple[Rates, ...] = (),
    gres: tuple[tuple[str, int], ...] = (),
    time: int | None = None,
    name: str | None = None,
    pool: str | None = None,
    priority: int = 0,
    after: tuple[tuple[Ref, str], ...] | None = None,
    begin: int | None = None,
    retry: int | None = None,
    retry_on: list[str] | None = None,
    warn: tuple[int, int] | None = None,
    script: str | None = None,
    array: str | None = None,
    hold: bool = False,
    preemptible: bool = False,
    stdout: str | None = None,
    stderr: str | None = None,
    attach: str | None = None,
    notify: str | None = None,
    notify_command: str | None = None,
) -> dict[str, Any]:
    """The request's fields; what is None is left to the daemon. `cores` in thousandths, `mem` in
    bytes, times in seconds. `cwd`: None is the directory of this process."""
    if not_text(dict.fromkeys(argv, "")):
        raise Refused("bad-value", "an argument of the command is not UTF-8 text")
    texts = (name, pool, stdout, stderr, notify_command, cwd)
    if not_text(dict.fromkeys((word for word in texts if word), "")):
        raise Refused("bad-value", "the value of an option is not UTF-8 text")
    if name is not None and not 1 <= len(name) <= 256:
        raise Refused("bad-value", "a name has 1 to 256 signs")
    umask = os.umask(0o077)
    os.umask(umask)
    given = {
        "argv": argv,
        "cwd": _working_directory() if cwd is None else os.path.abspath(cwd),
        "demand": demand_fields(cores, mem, io, gres),
        "name": name or (None if script is None else Path(argv[0]).name),
        "pool": pool,
        "time_limit_s": time,
        "priority": priority,
        "umask": umask,
        "env": env,
        "stdout": stdout,
        "stderr": stderr,
        "script": script,
        "attach": attach,
        "notify": find_notice(notify, notify_command, os.environ),
        "array": array,
        "held": hold,
        "preemptible": preemptible,
        "after": dependencies(after),
        "begin_s": begin,
        "retry": None if retry is None else {"times": retry, "on": retry_on or []},
        "warn": None if warn is None else {"signal": warn[0], "before_s": warn[1]},
    }
    return {key: value for key, value in given.items() if value is not None}


def demand_fields(
    cores: int | None,
    mem: int | None,
    io: tuple[Rates, ...],
    gres: tuple[tuple[str, int], ...],
) -> dict[str, Any]:
    """The demand on the wire: what was said of it. Of each disk and countable that is what was said
    last: the command line comes after a script's own lines."""
    by_disk = {disk: {"read_bps": read, "write_bps": write} for disk, read, write in io}
    demand: dict[str, Any] = {"cores_milli": cores, "memory_bytes": mem}
    demand |= by_disk.pop(None, {})
    demand["disks"] = by_disk or None
    demand["gres"] = dict(gres) or None
    return {key: value for key, value in demand.items() if value is not None}


def dependencies(after: tuple[tuple[Ref, str], ...] | None) -> list[dict[str, Any]] | None:
    return None if after is None else [{"id": job_id, "want": want} for job_id, want in after]


def _working_directory() -> str:
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise Refused("cwd", f"the current directory cannot be used: {error.strerror}") from None
    if not os.access(cwd, os.X_OK):
        raise Refused(
            "cwd", f"you may not enter the current directory {cwd}, so a job could not start in it"
        )
    return cwd
