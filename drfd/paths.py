"""Where things are when nobody says otherwise. Shared by the daemon and the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SYSTEM_SOCKET = Path("/run/drfd/drfd.sock")
SYSTEM_STATE = Path("/var/lib/drfd")
SYSTEM_CONFIG = Path("/etc/drfd/drfd.toml")

#: Longest path that fits a unix socket address.
_SOCKET_PATH_MAX = 107


def user_state(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(base, "drfd")


def user_socket(env: Mapping[str, str]) -> Path:
    runtime = env.get("XDG_RUNTIME_DIR")
    return Path(runtime, "drfd.sock") if runtime else user_state(env) / "drfd.sock"


def user_config(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base, "drfd", "drfd.toml")


def socket_address(path: Path) -> tuple[str, int | None]:
    """An address for the socket `path`, however long it is, and a descriptor to close after use."""
    text = str(path)
    if len(os.fsencode(text)) <= _SOCKET_PATH_MAX:
        return text, None
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{directory}/{path.name}", directory


@contextmanager
def at_socket(path: Path) -> Iterator[str]:
    """The address of the socket `path`, good as long as the block lasts."""
    address, directory = socket_address(path)
    try:
        yield address
    finally:
        if directory is not None:
            os.close(directory)
