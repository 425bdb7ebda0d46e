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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from drfd.common import failpoints, journald
from drfd.devices.roster import Roster
from drfd.devices.roster_file import RosterFile
from drfd.launcher.attempt_files import read_jobs_stop
from drfd.launcher.confinement import bounds, detect
from drfd.launcher.confinement.interface import NOT_HIDDEN, Confinement, JobGroupGone
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.device_table import DeviceTable
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import (
    SOCKET_NAME,
    BadMessage,
    DeviceSettings,
    read_device_settings,
)
from drfd.launcher.runner import inheritance, privileges
from drfd.launcher.runner.starter.choice import choose
from drfd.launcher.runner.starter.forked import Forked
from drfd.launcher.runner.starter.interface import JobStarter
from drfd.launcher.server import Launcher
from drfd.launcher.signatures import SigningKeys
from drfd.launcher.system.files import get
from drfd.launcher.system.private_tmp import SPACES, Unsafe
from drfd.linux import service
from drfd.linux.service import Service
from drfd.linux.unix_sockets import at_socket
from drfd.payload.signature import KEY_SOCKET_NAME

log = logging.getLogger("drfd.launcher")

_MOUNTINFO = "/proc/self/mountinfo"
_PREDECESSOR_WAIT_S = 10.0
_TESTED_STARTER = "DRFD_TESTED_STARTER"
_RESPAWN_PAUSE_S, _RESPAWN_PAUSE_MAX_S = 0.02, 2.0


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    # A job's output is put at 1 and 2, which must not be files of the launcher's.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    manager = service.take(os.environ)
    journald.set_up("drfd-launcher", has_journal=manager.has_journal)
    if not options.no_cgroups and not options.moved:
        detect.move_to_users_manager(get(_MOUNTINFO))
    if options.failpoints is not None:
        failpoints.enable(options.failpoints)
    inheritance.protect(no_new_privileges=options.no_new_privs)
    if options.keep_fd is None:
        _serve(options, manager)
    else:
        supervise(options.keep_fd, lambda: _serve(options, Service()))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drfd-launcher", description=__doc__)
    add = parser.add_argument
    add("--state", type=Path, required=True, help="directory for attempt files and the socket")
    add("--controller-uid", type=int, required=True, help="the uid whose orders are taken")
    add("--group", default="drfd/system", help="what the cgroup for all jobs is called")
    unit = "delegated systemd unit that all jobs live in (cgroup v2)"
    add("--delegated-unit", "--holder", dest="delegated_unit", metavar="UNIT", help=unit)
    add("--min-uid", type=int, default=1000, help="refuse jobs of system accounts below this uid")
    add("--allow-uid", type=int, action="append", default=[], help="take jobs of this uid anyway")
    add("--no-cgroups", action="store_true", help="measure limits even where cgroups can be had")
    add("--private-tmp", nargs="?", const="", metavar="DIR", help="a /tmp for each job, below DIR")
    add("--keep-ipc", action="store_true", help="leave IPC of users alone who have no more jobs")
    add("--no-new-privs", action="store_true", help="jobs gain no rights by set-uid programs")
    add("--processes-total", type=int, metavar="N", help="of all jobs together; less by the kernel")
    add("--processes-per-user", type=int, metavar="N", help="half of the total")
    add("--devices", metavar="JSON", default="", help="nodes of devices that jobs are given")
    add("--keep-fd", type=int, help="restart the launcher until this descriptor reaches its end")
    add("--failpoints", metavar="DIR", help=argparse.SUPPRESS)
    add(detect.MOVED, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def supervise(keep_fd: int, serve: Callable[[], None]) -> NoReturn:
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


def _serve(options: argparse.Namespace, manager: Service) -> None:
    try:
        _run(options, manager)
    except Unsafe as error:
        sys.exit(f"drfd-launcher: private_tmp_dir: {error}")
    except JobGroupGone as error:
        sys.exit(f"drfd-launcher: {error}")
    except MemoryError:
        # Nothing is lost with this process, but its present step may be half done.
        sys.exit("drfd-launcher: out of memory: it ends, jobs run on, and the next one goes on")


def _run(options: argparse.Namespace, manager: Service) -> None:
    if options.private_tmp is not None and os.getuid() != 0:
        sys.exit("drfd-launcher: only root can give jobs a /tmp of their own: --private-tmp")
    inheritance.allow_many_files()
    # The controller must be able to read the files of the jobs' cgroups.
    os.umask(0o022)
    # SIGINT from a terminal is for the controller, which ends the launcher in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings = [
        text for text in (inheritance.keyring_warning(), *privileges.warnings()) if text is not None
    ]
    state: Path = options.state
    lock_state(state)
    attempts_dir = state / "attempts"
    attempts_dir.mkdir(mode=0o700, exist_ok=True)
    confinement = _confinement(options)
    # A controller with the launcher's own uid has all its rights, so it needs no signatures.
    keys = None if options.controller_uid == os.getuid() else _keys(state)
    for text in warnings:
        log.warning("warning: %s", text)
    launcher = Launcher(
        confinement=confinement,
        processes=_bound_processes(confinement, options),
        bounds=bounds.read_launcher_bounds(get(_MOUNTINFO)),
        policy=Policy(min_uid=options.min_uid, allowed_uids=frozenset(options.allow_uid)),
        attempts_fd=os.open(attempts_dir, os.O_RDONLY | os.O_DIRECTORY),
        port=Port(listen(state, options.controller_uid), options.controller_uid),
        keep_fd=options.keep_fd,
        keys=keys,
        key_listener=None if keys is None else _bind(state, KEY_SOCKET_NAME, 0o666, backlog=1024),
        jobs_stop=read_jobs_stop(state),
        warnings=warnings,
        devices=_devices(options.devices, confinement, RosterFile(state)),
        gpus_dir=state,
        starter=_starter(options),
        space_home=options.private_tmp if options.private_tmp != "" else str(state / SPACES),
        usual_space_home=str(state / SPACES),
        # An ordinary user's launcher is itself one of the user's processes.
        removes_ipc=os.getuid() == 0 and not options.keep_ipc,
    )
    manager.notify("READY=1")
    # A collection writes to every object, so memory shared with the runners would be copied.
    gc.freeze()
    launcher.serve()


def _devices(text: str, confinement: Confinement, seen: RosterFile) -> DeviceTable:
    try:
        settings = read_device_settings(text) if text else DeviceSettings()
    except BadMessage:
        sys.exit(f"drfd-launcher: --devices: {text!r} is not what drfd writes")
    can_hide = confinement.hiding()[0] != NOT_HIDDEN
    return DeviceTable(settings, can_hide, find=Roster(file=seen, keeps=True).look_up)


def _starter(options: argparse.Namespace) -> JobStarter:
    """Return how jobs' processes are started. Only tests may name another compiled program, or
    none, by a variable of the environment."""
    if options.failpoints is None or _TESTED_STARTER not in os.environ:
        return choose()
    named = os.environ[_TESTED_STARTER]
    return choose(Path(named)) if named else Forked("a test wants it so")


def _bound_processes(confinement: Confinement, options: argparse.Namespace) -> bounds.ProcessBounds:
    """Limit the processes of jobs, in place of limits that an earlier launcher has set."""
    limit = bounds.kernel_limit(confinement.ancestors())
    found = bounds.process_bounds(limit, options.processes_total, options.processes_per_user)
    try:
        confinement.limit_processes(found.total)
    except OSError as error:
        # The limits of each job and of each user still hold.
        log.warning("event=processes-not-bound total=%d error=%s", found.total, error)
    if os.getuid() == 0:
        # For an ordinary user it would limit the runners, too.
        inheritance.bound_processes(found.per_user)
    return found


def lock_state(state: Path) -> None:
    """Wait until an earlier launcher of this directory is gone, then hold its lock for life."""
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


def _confinement(options: argparse.Namespace) -> Confinement:
    if options.no_cgroups:
        return Unconfined("cgroups are switched off in the configuration")
    try:
        return detect.choose(options.group, options.delegated_unit, get(_MOUNTINFO))
    except detect.DelegationFailed as error:
        sys.exit(f"drfd-launcher: {error}")


def _keys(state: Path) -> SigningKeys:
    try:
        return SigningKeys(state)
    except (OSError, ValueError) as error:
        sys.exit(f"drfd-launcher: the secret of signatures cannot be had: {error}")


def listen(state: Path, controller_uid: int) -> socket.socket:
    # The socket is created for root alone, and then given to the controller's user.
    listener = _bind(state, SOCKET_NAME, 0o600, backlog=8)
    if os.getuid() == 0:
        os.chown(state / SOCKET_NAME, controller_uid, -1)
    return listener


def _bind(state: Path, name: str, mode: int, *, backlog: int) -> socket.socket:
    (state / name).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o777 & ~mode)
    with at_socket(state / name) as address:
        listener.bind(address)
    os.umask(before)
    listener.listen(backlog)
    return listener
