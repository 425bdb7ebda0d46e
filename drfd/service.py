"""What a service manager tells a service in its environment, and what it wants to hear back.

The protocol of sd_notify(3). What is found in the environment is taken out of it: nothing that we
start may take it for its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

_SAY_S = 1.0

#: Variables that describe one process, the one that systemd has started (systemd.exec(5)).
VARIABLES = (
    "INVOCATION_ID",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "LISTEN_FDNAMES",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "JOURNAL_STREAM",
    "MAINPID",
    "MANAGERPID",
    "SYSTEMD_EXEC_PID",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "FDSTORE",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "CACHE_DIRECTORY",
    "LOGS_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
)


@dataclass(frozen=True, slots=True)
class Service:
    """What we were told. Without a manager nobody listens, and every word goes nowhere."""

    notify_socket: str | None = None
    #: We are killed when we are silent for so long; None: nobody watches.
    watchdog_s: float | None = None
    #: Standard error goes to the journal, which also takes entries with fields.
    has_journal: bool = False

    @property
    def is_heard(self) -> bool:
        return self.notify_socket is not None

    def say(self, *words: str) -> None:
        """Tell the manager, such as `READY=1`. One who does not listen is no reason to stop, and
        one who is slow to listen none to wait for long."""
        if self.notify_socket is None:
            return
        address = self.notify_socket
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SAY_S)
                sender.sendto("\n".join(words).encode(), address)
        except OSError:
            return


def take(env: MutableMapping[str, str]) -> Service:
    """What is in the environment for us, which is taken out of it with all of its kind."""
    told = {name: env.pop(name) for name in VARIABLES if name in env}
    watchdog_s = None
    if told.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        microseconds = told.get("WATCHDOG_USEC", "")
        watchdog_s = int(microseconds) / 1e6 if microseconds.isdecimal() else None
    return Service(
        notify_socket=told.get("NOTIFY_SOCKET") or None,
        watchdog_s=watchdog_s,
        has_journal=told.get("JOURNAL_STREAM") == _device_and_inode(2),
    )


def has_systemd() -> bool:
    """Whether systemd is what runs this system: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


def _device_and_inode(fd: int) -> str | None:
    """As JOURNAL_STREAM has it, so that a redirection is noticed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return f"{status.st_dev}:{status.st_ino}"
