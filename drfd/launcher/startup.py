"""What both launchers do when they are started: options, configuration, lock and socket, and their
replacement where no systemd does that."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from drfd.common import journald
from drfd.common.errors import ConfigError
from drfd.launcher.port import Policy
from drfd.launcher.settings import LauncherSettings, account_of, load_settings, system_uids
from drfd.linux import service
from drfd.linux.service import Service
from drfd.linux.unix_sockets import at_socket

log = logging.getLogger("drfd.launcher")

_PREDECESSOR_WAIT_S = 10.0
#: Seconds that a launcher with a wrong configuration waits before it ends.
_WRONG_PAUSE_S = 5.0
_RESPAWN_PAUSE_S, _RESPAWN_PAUSE_MAX_S = 0.02, 2.0


def begin(program: str) -> Service:
    """Take what a service manager has set, and set up the log. Returns the manager."""
    manager = service.take(os.environ)
    journald.set_up(program, has_journal=manager.has_journal)
    # The controller must be able to read the files of the jobs' cgroups.
    os.umask(0o022)
    # SIGINT from a terminal is for the controller, which ends its launchers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return manager


def parser_of(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that both launchers have."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    add = parser.add_argument
    add("--state", type=Path, required=True, help="directory for attempt files and the socket")
    add("--controller", required=True, metavar="USER", help="name or uid whose orders are taken")
    add("--config", type=Path, metavar="FILE", help="configuration of drfd; need not exist")
    add("--min-uid", type=int, default=1000, help="refuse jobs of system accounts below this uid")
    add("--allow-uid", type=int, action="append", default=[], help="take jobs of this uid anyway")
    add("--keep-fd", type=int, help="restart the launcher until this descriptor reaches its end")
    return parser


@dataclass(frozen=True, slots=True)
class Setup:
    """What a launcher has read of its configuration when it was started."""

    settings: LauncherSettings
    controller_uid: int
    policy: Policy


def read_setup(options: argparse.Namespace) -> Setup:
    """Return what the configuration and the user database say. Raises ConfigError."""
    settings = load_settings(options.config)
    allowed = frozenset((*options.allow_uid, *system_uids(settings)))
    user: str = options.controller
    uid = int(user) if user.isdecimal() else account_of(user, "--controller").pw_uid
    return Setup(settings, uid, Policy(min_uid=options.min_uid, allowed_uids=allowed))


@contextmanager
def ending_if_wrong(program: str, manager: Service) -> Iterator[None]:
    """End the process with one line if the configuration is wrong."""
    try:
        yield
    except ConfigError as error:
        os.write(2, f"{program}: {error}\n".encode())
        if manager.is_heard:
            # The service manager starts us again at once for as long as there is a controller.
            time.sleep(_WRONG_PAUSE_S)
        sys.exit(error.exit_code)


def run(serve: Callable[[Service], None], keep_fd: int | None, manager: Service) -> None:
    """Run the launcher by `serve`, which notifies its service manager: here, or if there is a
    `keep_fd` in a child."""
    if keep_fd is None:
        serve(manager)
    else:
        _supervise(keep_fd, lambda: serve(Service()))


def _supervise(keep_fd: int, serve: Callable[[], None]) -> NoReturn:
    """Run the launcher in a child by `serve`, and again whenever it dies, for a controller that has
    dropped its rights and cannot do so. Ends when the controller, which holds the other end of the
    pipe `keep_fd`, is gone."""
    pause_s = _RESPAWN_PAUSE_S
    is_short = False
    while True:
        started = time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            # The machine is short of processes or memory. Jobs continue, and this is tried again.
            if not is_short:
                log.error("event=launcher-not-started error=%s", error.strerror)
            is_short = True
            if select.select([keep_fd], [], [], _RESPAWN_PAUSE_MAX_S)[0]:
                os._exit(0)
            continue
        is_short = False
        if pid == 0:
            serve()
            os._exit(0)
        pidfd = os.pidfd_open(pid)
        ready = select.select([pidfd, keep_fd], [], [])[0]
        if keep_fd in ready:
            # The launcher sees the same end of file and exits in order.
            os.waitpid(pid, 0)
            os._exit(0)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        log.warning("event=launcher-died status=%d", status)
        # A launcher that dies at its start is restarted after longer and longer pauses.
        lived_s = time.monotonic() - started
        pause_s = _RESPAWN_PAUSE_S if lived_s > 1 else min(pause_s * 2, _RESPAWN_PAUSE_MAX_S)
        time.sleep(pause_s)


def open_attempts(state: Path) -> int:
    """Return the directory of attempt files, open. An earlier launcher of the state directory is
    waited for, and its lock held for life."""
    _lock(state)
    attempts = state / "attempts"
    attempts.mkdir(mode=0o700, exist_ok=True)
    return os.open(attempts, os.O_RDONLY | os.O_DIRECTORY)


def _lock(state: Path) -> None:
    try:
        fd = os.open(state / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        sys.exit(
            f"drfd-launcher: cannot use the directory {state}: {error.strerror} "
            "(run this as the user whom it belongs to, or as root)"
        )
    deadline = time.monotonic() + _PREDECESSOR_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                sys.exit(f"drfd-launcher: another launcher holds {state}")
            time.sleep(0.01)


def listen(path: Path, uid: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket for this user and root. It is created for root alone, and then given to the
    user."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    with at_socket(path) as address:
        listener.bind(address)
    os.umask(before)
    if kind != socket.SOCK_DGRAM:
        listener.listen(8)
    if os.getuid() == 0:
        os.chown(path, uid, -1)
    return listener
