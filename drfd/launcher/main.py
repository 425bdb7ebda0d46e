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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from drfd.common import failpoints, journald
from drfd.common.errors import ConfigError
from drfd.launcher.attempt_files import read_jobs_stop
from drfd.launcher.confinement import bounds, detect
from drfd.launcher.confinement.interface import Confinement, JobGroupGone
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import SOCKET_NAME
from drfd.launcher.runner import inheritance
from drfd.launcher.runner.starter.program import Starter, Unusable, open_starter
from drfd.launcher.server import Launcher
from drfd.launcher.settings import LauncherSettings, account_of, load_settings, system_uids
from drfd.launcher.signatures import SigningKeys
from drfd.launcher.system.private_tmp import SPACES, Unsafe
from drfd.linux import service
from drfd.linux.kernel_files import get
from drfd.linux.service import Service
from drfd.linux.unix_sockets import at_socket
from drfd.payload.signature import KEYS_NAME

log = logging.getLogger("drfd.launcher")

_MOUNTINFO = "/proc/self/mountinfo"
_PREDECESSOR_WAIT_S = 10.0
#: Seconds that a launcher with a wrong configuration waits before it ends.
_WRONG_PAUSE_S = 5.0
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
    with ending_if_wrong("drfd-launcher", manager):
        setup = read_setup(options)
        if options.failpoints is not None:
            failpoints.enable(options.failpoints)
    if setup.settings.use_cgroups and not options.moved:
        detect.move_to_users_manager(get(_MOUNTINFO))
    inheritance.protect(no_new_privileges=setup.settings.no_new_privs)
    if options.keep_fd is None:
        _serve(options, setup, manager)
    else:
        supervise(options.keep_fd, lambda: _serve(options, setup, Service()))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("drfd-launcher", __doc__)
    add = parser.add_argument
    add("--group", default="drfd/system", help="what the cgroup for all jobs is called")
    unit = "delegated systemd unit that all jobs live in (cgroup v2)"
    add("--holder", metavar="UNIT", help=unit)
    add(detect.MOVED, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


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
    add("--failpoints", metavar="DIR", help=argparse.SUPPRESS)
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


def _serve(options: argparse.Namespace, setup: Setup, manager: Service) -> None:
    try:
        _run(options, setup, manager)
    except Unsafe as error:
        sys.exit(f"drfd-launcher: private_tmp_dir: {error}")
    except JobGroupGone as error:
        sys.exit(f"drfd-launcher: {error}")
    except MemoryError:
        # Nothing is lost with this process, but its present step may be half done.
        sys.exit("drfd-launcher: out of memory: it ends, jobs run on, and the next one goes on")


def _run(options: argparse.Namespace, setup: Setup, manager: Service) -> None:
    settings = setup.settings
    if settings.private_tmp and os.getuid() != 0:
        sys.exit("drfd-launcher: enforcement.private_tmp: only root can give jobs a /tmp")
    inheritance.allow_many_files()
    # The controller must be able to read the files of the jobs' cgroups.
    os.umask(0o022)
    # SIGINT from a terminal is for the controller, which ends the launcher in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    starter = _starter(options)
    warnings = [text for text in (inheritance.keyring_warning(),) if text is not None]
    if not starter.is_filtered:
        warnings.append("the parents of jobs run without a filter of system calls (seccomp)")
    state: Path = options.state
    lock_state(state)
    attempts_dir = state / "attempts"
    attempts_dir.mkdir(mode=0o700, exist_ok=True)
    confinement = _confinement(options, settings)
    # A controller with the launcher's own uid has all its rights, so it needs no signatures.
    keys = None if setup.controller_uid == os.getuid() else _keys(state)
    for text in warnings:
        log.warning("warning: %s", text)
    spaces = str(state / SPACES)
    launcher = Launcher(
        confinement=confinement,
        processes=_bound_processes(confinement, settings),
        bounds=bounds.read_launcher_bounds(get(_MOUNTINFO)),
        policy=setup.policy,
        attempts_fd=os.open(attempts_dir, os.O_RDONLY | os.O_DIRECTORY),
        port=Port(listen(state / SOCKET_NAME, setup.controller_uid), setup.controller_uid),
        keep_fd=options.keep_fd,
        keys=keys,
        keys_dir=state / KEYS_NAME,
        jobs_stop=read_jobs_stop(state),
        warnings=warnings,
        starter=starter,
        space_home=settings.private_tmp_dir or spaces if settings.private_tmp else None,
        usual_space_home=spaces,
        # An ordinary user's launcher is itself one of the user's processes.
        removes_ipc=os.getuid() == 0 and settings.remove_ipc,
    )
    manager.notify("READY=1")
    # A collection writes to every object, so memory shared with the runners would be copied.
    gc.freeze()
    launcher.serve()


def _starter(options: argparse.Namespace) -> Starter:
    """Return the program that begins jobs' processes. Only tests may name another one, by a
    variable of the environment."""
    is_test = options.failpoints is not None and _TESTED_STARTER in os.environ
    try:
        return open_starter(Path(os.environ[_TESTED_STARTER])) if is_test else open_starter()
    except Unusable as error:
        sys.exit(f"drfd-launcher: no job can be started: {error}")


def _bound_processes(confinement: Confinement, settings: LauncherSettings) -> bounds.ProcessBounds:
    """Limit the processes of jobs, in place of limits that an earlier launcher has set."""
    limit = bounds.kernel_limit(confinement.ancestors())
    total, per_user = settings.processes_total, settings.processes_per_user
    found = bounds.process_bounds(limit, total, per_user)
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


def _confinement(options: argparse.Namespace, settings: LauncherSettings) -> Confinement:
    if not settings.use_cgroups:
        return Unconfined("cgroups are switched off in the configuration")
    try:
        return detect.choose(options.group, options.holder, get(_MOUNTINFO))
    except detect.DelegationFailed as error:
        sys.exit(f"drfd-launcher: {error}")


def _keys(state: Path) -> SigningKeys:
    try:
        return SigningKeys(state)
    except (OSError, ValueError) as error:
        sys.exit(f"drfd-launcher: the secret of signatures cannot be had: {error}")


def listen(path: Path, uid: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket for this user and root. It is created for root alone, and then given to the
    user."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    with at_socket(path) as address:
        listener.bind(address)
    os.umask(before)
    if kind == socket.SOCK_STREAM:
        listener.listen(8)
    if os.getuid() == 0:
        os.chown(path, uid, -1)
    return listener
