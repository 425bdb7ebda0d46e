"""drfd-launcher: the process that starts jobs. Started by systemd, or by `drfd serve` itself."""

from __future__ import annotations

import argparse
import fcntl
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from drfd import journald, service
from drfd.launcher import choice
from drfd.launcher.confinement import Confinement, PlaceGone
from drfd.launcher.cut import read_cut
from drfd.launcher.files import get
from drfd.launcher.identity import allow_many_files
from drfd.launcher.policy import Policy
from drfd.launcher.port import Port
from drfd.launcher.protocol import SOCKET_NAME
from drfd.launcher.server import Launcher
from drfd.launcher.unconfined import Unconfined
from drfd.service import Service

log = logging.getLogger("drfd.launcher")

_MOUNTINFO = "/proc/self/mountinfo"
_PREDECESSOR_WAIT_S = 10.0
_RESPAWN_PAUSE_S, _RESPAWN_PAUSE_MAX_S = 0.02, 2.0


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    manager = service.take(os.environ)
    journald.set_up("drfd-launcher", has_journal=manager.has_journal)
    if not options.no_cgroups and not options.moved:
        choice.move_to_users_manager(get(_MOUNTINFO))
    if options.keep_fd is None:
        _serve(options, manager)
    else:
        _keep(options)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drfd-launcher", description=__doc__)
    add = parser.add_argument
    add("--state", type=Path, required=True, help="directory for attempt files and the socket")
    add("--controller-uid", type=int, required=True, help="the uid whose orders are taken")
    add("--group", default="drfd/system", help="what the cgroup for all jobs is called")
    add("--holder", metavar="UNIT", help="delegated systemd unit that all jobs live in (cgroup v2)")
    add("--min-uid", type=int, default=1000, help="refuse jobs of system accounts below this uid")
    add("--allow-uid", type=int, action="append", default=[], help="take jobs of this uid anyway")
    add("--no-cgroups", action="store_true", help="measure limits even where cgroups can be had")
    add("--keep-fd", type=int, help="restart the launcher until this descriptor reaches its end")
    add(choice.MOVED, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _keep(options: argparse.Namespace) -> NoReturn:
    """Restart the launcher whenever it dies, for a controller that has dropped its rights and
    could not; ends when the controller, which holds the other end of the pipe, is gone."""
    pause_s = _RESPAWN_PAUSE_S
    is_short = False
    while True:
        started = time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            # Short of processes, or of memory. Jobs run on, and it is tried again.
            if not is_short:
                log.error("event=launcher-not-started error=%s", error.strerror)
            is_short = True
            if select.select([options.keep_fd], [], [], _RESPAWN_PAUSE_MAX_S)[0]:
                sys.exit(0)
            continue
        is_short = False
        if pid == 0:
            _serve(options, Service())
            os._exit(0)
        pidfd = os.pidfd_open(pid)
        ready = select.select([pidfd, options.keep_fd], [], [])[0]
        if options.keep_fd in ready:
            # The launcher sees the same end of file and leaves in order.
            os.waitpid(pid, 0)
            sys.exit(0)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        log.warning("event=launcher-died status=%d", status)
        # One that dies at its start is not tried without end as fast as can be.
        lived_s = time.monotonic() - started
        pause_s = _RESPAWN_PAUSE_S if lived_s > 1 else min(pause_s * 2, _RESPAWN_PAUSE_MAX_S)
        time.sleep(pause_s)


def _serve(options: argparse.Namespace, manager: Service) -> None:
    try:
        _run(options, manager)
    except PlaceGone as error:
        sys.exit(f"drfd-launcher: {error}")
    except MemoryError:
        # Nothing is lost with this process; what it was doing may be half done.
        sys.exit("drfd-launcher: out of memory: it ends, jobs run on, and the next one goes on")


def _run(options: argparse.Namespace, manager: Service) -> None:
    allow_many_files()
    # SIGINT from a terminal is for the controller; it ends us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state: Path = options.state
    _only_one(state)
    attempts_dir = state / "attempts"
    attempts_dir.mkdir(mode=0o700, exist_ok=True)
    launcher = Launcher(
        confinement=_confinement(options),
        policy=Policy(
            min_uid=options.min_uid,
            allowed_uids=frozenset(options.allow_uid),
        ),
        attempts_fd=os.open(attempts_dir, os.O_RDONLY | os.O_DIRECTORY),
        port=Port(_listen(state, options.controller_uid), options.controller_uid),
        keep_fd=options.keep_fd,
        cut=read_cut(state),
    )
    manager.say("READY=1")
    # A collection writes to all it looks at, and what the runners share would be copied for each.
    gc.freeze()
    launcher.serve()


def _only_one(state: Path) -> None:
    """Wait until an earlier launcher of this directory is gone, then hold its lock for life."""
    fd = os.open(state / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _PREDECESSOR_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                sys.exit(f"drfd-launcher: another launcher holds {state}")
            time.sleep(0.01)


def _confinement(options: argparse.Namespace) -> Confinement:
    if options.no_cgroups:
        return Unconfined("cgroups are switched off in the configuration")
    try:
        return choice.choose(options.group, options.holder, get(_MOUNTINFO))
    except choice.HolderFailed as error:
        sys.exit(f"drfd-launcher: {error}")


def _listen(state: Path, controller_uid: int) -> socket.socket:
    # Through a descriptor: the path itself may be too long for a socket address.
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    path = f"/proc/self/fd/{directory}/{SOCKET_NAME}"
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX)
    # Created closed to all, then given to the one who may use it.
    before = os.umask(0o177)
    listener.bind(path)
    os.umask(before)
    if os.getuid() == 0:
        os.chown(path, controller_uid, -1)
    listener.listen(8)
    os.close(directory)
    return listener
