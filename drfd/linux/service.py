"""The protocol between a service manager and a service: sd_notify(3) and its variables.

The variables are removed from the environment, so that no process that we start uses them.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

#: Directory in which logind has a file for each user that lingers.
LINGER = "/var/lib/systemd/linger"
#: Longest time to wait for the service manager to take a message.
_SAY_S = 1.0

#: Variables that describe one process, the one that systemd has started (systemd.exec(5)).
VARIABLES = (
    *("INVOCATION_ID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "JOURNAL_STREAM"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES", "FDSTORE"),
    *("MAINPID", "MANAGERPID", "SYSTEMD_EXEC_PID"),
    *("MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"),
    *("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "CACHE_DIRECTORY", "LOGS_DIRECTORY"),
    *("CONFIGURATION_DIRECTORY", "CREDENTIALS_DIRECTORY"),
)


@dataclass(frozen=True, slots=True)
class Service:
    """The service manager's settings for this process. Without a manager, messages are dropped."""

    notify_socket: str | None = None
    #: The manager kills us after so long without a message, or None if it does not watch.
    watchdog_s: float | None = None
    #: Whether standard error goes to systemd's journal, which also takes entries with fields.
    has_journal: bool = False

    @property
    def is_heard(self) -> bool:
        return self.notify_socket is not None

    def notify(self, *words: str) -> None:
        """Send the manager messages such as `READY=1`. Errors are ignored, and a slow manager is
        waited for at most a second."""
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
    """Read our settings, and remove all variables of this kind from the environment."""
    given = {name: env.pop(name) for name in VARIABLES if name in env}
    watchdog_s = None
    if given.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        microseconds = given.get("WATCHDOG_USEC", "")
        watchdog_s = int(microseconds) / 1e6 if microseconds.isdecimal() else None
    return Service(
        notify_socket=given.get("NOTIFY_SOCKET") or None,
        watchdog_s=watchdog_s,
        has_journal=given.get("JOURNAL_STREAM") == _device_and_inode(2),
    )


def has_systemd() -> bool:
    """Return whether systemd is the init system: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


def lingers(uid: int) -> bool:
    """Return whether the user's manager, and all below it, keeps running without a session of the
    user. `loginctl` tells this only for users that logind knows at the moment."""
    try:
        return Path(LINGER, pwd.getpwuid(uid).pw_name).exists()
    except KeyError:
        return False


def _device_and_inode(fd: int) -> str | None:
    """Return what JOURNAL_STREAM would be for this descriptor, to notice a redirection."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return f"{status.st_dev}:{status.st_ino}"
