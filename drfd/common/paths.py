"""Default paths, shared by the daemon and the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SYSTEM_SOCKET = Path("/run/drfd/drfd.sock")
SYSTEM_STATE = Path("/var/lib/drfd")
#: Where Slurm's scripts send a datagram when a job starts or ends.
SYSTEM_SLURM_SOCKET = SYSTEM_STATE / "slurm-launcher" / "events.sock"
#: Where Slurm's script notes the first start of each attempt.
SYSTEM_SLURM_STARTS = SYSTEM_STATE / "slurm-launcher" / "started"
SYSTEM_CONFIG = Path("/etc/drfd/drfd.toml")

#: Directories that are private to each job if the configuration sets private_tmp.
PRIVATE_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # names alone


def private_place(path: str) -> str | None:
    """Return the private directory that would hide `path` from a job, or None if none would."""
    plain = os.path.normpath(path)
    return next((place for place in PRIVATE_PLACES if plain.startswith(f"{place}/")), None)


def user_state(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(base, "drfd")


def user_config(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base, "drfd", "drfd.toml")
