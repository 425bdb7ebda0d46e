"""drfd-launcher: the process that starts jobs. Started by systemd, or by `drfd serve` itself."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from drfd.launcher import startup
from drfd.launcher.attempt_files import read_jobs_stop
from drfd.launcher.confinement import bounds, detect
from drfd.launcher.confinement.interface import Confinement, JobGroupGone
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.port import Port
from drfd.launcher.protocol import SOCKET_NAME
from drfd.launcher.runner import inheritance
from drfd.launcher.runner.starter.program import Unusable, open_starter
from drfd.launcher.runner.starter.sources import PROGRAM
from drfd.launcher.server import Launcher
from drfd.launcher.settings import LauncherSettings
from drfd.launcher.signatures import SigningKeys
from drfd.launcher.system.private_tmp import SPACES, Unsafe
from drfd.linux.kernel_files import get
from drfd.linux.service import Service
from drfd.payload.signature import KEYS_NAME

log = logging.getLogger("drfd.launcher")

_MOUNTINFO = "/proc/self/mountinfo"


def main(argv: Sequence[str] | None = None, program: Path = PROGRAM) -> None:
    """`program` begins jobs' processes."""
    options = _parse(argv)
    # A job's output is put at 1 and 2, which must not be files of the launcher's.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    manager = startup.begin("drfd-launcher")
    with startup.ending_if_wrong("drfd-launcher", manager):
        setup = startup.read_setup(options)
    if setup.settings.use_cgroups and not options.moved:
        detect.move_to_users_manager(get(_MOUNTINFO))
    inheritance.protect(no_new_privileges=setup.settings.no_new_privs)
    startup.run(partial(_serve, options, setup, program), options.keep_fd, manager)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = startup.parser_of("drfd-launcher", __doc__)
    add = parser.add_argument
    add("--group", default="drfd/system", help="what the cgroup for all jobs is called")
    unit = "delegated systemd unit that all jobs live in (cgroup v2)"
    add("--holder", metavar="UNIT", help=unit)
    add(detect.MOVED, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _serve(
    options: argparse.Namespace, setup: startup.Setup, program: Path, manager: Service
) -> None:
    try:
        _run(options, setup, program, manager)
    except Unusable as error:
        sys.exit(f"drfd-launcher: no job can be started: {error}")
    except Unsafe as error:
        sys.exit(f"drfd-launcher: private_tmp_dir: {error}")
    except (detect.DelegationFailed, JobGroupGone) as error:
        sys.exit(f"drfd-launcher: {error}")
    except MemoryError:
        # Nothing is lost with this process, but its present step may be half done.
        sys.exit("drfd-launcher: out of memory: it ends, jobs run on, and the next one goes on")


def _run(
    options: argparse.Namespace, setup: startup.Setup, program: Path, manager: Service
) -> None:
    settings = setup.settings
    if settings.private_tmp and os.getuid() != 0:
        sys.exit("drfd-launcher: enforcement.private_tmp: only root can give jobs a /tmp")
    inheritance.allow_many_files()
    starter = open_starter(program)
    warnings = [text for text in (inheritance.keyring_warning(),) if text is not None]
    if not starter.is_filtered:
        warnings.append("the parents of jobs run without a filter of system calls (seccomp)")
    state: Path = options.state
    attempts_fd = startup.open_attempts(state)
    confinement: Confinement = Unconfined("cgroups are switched off in the configuration")
    if settings.use_cgroups:
        confinement = detect.choose(options.group, options.holder, get(_MOUNTINFO))
    # A controller with the launcher's own uid has all its rights, so it needs no signatures.
    keys = None if setup.controller_uid == os.getuid() else _keys(state)
    for text in warnings:
        log.warning("warning: %s", text)
    spaces = str(state / SPACES)
    launcher = Launcher(
        confinement=confinement,
        processes=_bound_processes(confinement, settings),
        most_running=bounds.read_most_running(get(_MOUNTINFO)),
        policy=setup.policy,
        attempts_fd=attempts_fd,
        port=Port(startup.listen(state / SOCKET_NAME, setup.controller_uid), setup.controller_uid),
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


def _keys(state: Path) -> SigningKeys:
    try:
        return SigningKeys(state)
    except (OSError, ValueError) as error:
        sys.exit(f"drfd-launcher: the secret of signatures cannot be had: {error}")
