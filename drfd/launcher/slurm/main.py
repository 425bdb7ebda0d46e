"""drfd-slurm-launcher: the process that gives jobs to Slurm. One for all of Slurm's nodes."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from drfd.common import journald
from drfd.launcher import startup
from drfd.launcher.port import Port
from drfd.launcher.protocol import SECRET_NAME, SOCKET_NAME
from drfd.launcher.runner import inheritance
from drfd.launcher.settings import account_of
from drfd.launcher.signatures import SigningKeys
from drfd.launcher.slurm.records.start_notes import StartNotes
from drfd.launcher.slurm.server import SlurmLauncher
from drfd.launcher.slurm.submitting.preparation import is_there
from drfd.linux import service
from drfd.linux.service import Service

log = logging.getLogger("drfd.launcher")

EVENTS_NAME = "events.sock"
STARTS_NAME = "started"
#: Seconds that the local launcher has to make the secret of signatures.
_SECRET_WAIT_S = 10.0


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    manager = service.take(os.environ)
    journald.set_up("drfd-slurm-launcher", has_journal=manager.has_journal)
    with startup.ending_if_wrong("drfd-slurm-launcher", manager):
        setup = startup.read_setup(options)
        slurm_uid = account_of(setup.settings.slurm.user, "slurm.user").pw_uid
    inheritance.protect(no_new_privileges=False)
    inheritance.allow_many_files()
    os.umask(0o022)
    # SIGINT from a terminal is for the controller, which ends the launcher in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    startup.run(partial(_serve, options, setup, slurm_uid), options.keep_fd, manager)


def _serve(
    options: argparse.Namespace, setup: startup.Setup, slurm_uid: int, manager: Service
) -> None:
    slurm = setup.settings.slurm
    if not is_there(Path(slurm.programs)):
        sys.exit(f"drfd-slurm-launcher: Slurm's commands are not in {slurm.programs}")
    state: Path = options.state
    attempts_fd = startup.open_attempts(state)
    starts = StartNotes(state / STARTS_NAME)
    try:
        starts.prepare(slurm_uid)
    except OSError as error:
        sys.exit(f"drfd-slurm-launcher: {starts.directory} cannot be made: {error.strerror}")
    launcher = SlurmLauncher(
        state=state,
        policy=setup.policy,
        attempts_fd=attempts_fd,
        port=Port(startup.listen(state / SOCKET_NAME, setup.controller_uid), setup.controller_uid),
        # For datagrams of Slurm's scripts.
        events=startup.listen(state / EVENTS_NAME, slurm_uid, socket.SOCK_DGRAM),
        starts=starts,
        programs=Path(slurm.programs),
        conf=None if slurm.conf is None else Path(slurm.conf),
        partition=slurm.partition,
        keys=None if setup.controller_uid == os.getuid() else _keys(options.keys),
        keep_fd=options.keep_fd,
        poll_s=options.poll,
        most_s=options.timeout,
        patience_s=options.patience,
    )
    manager.notify("READY=1")
    launcher.serve()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = startup.parser_of("drfd-slurm-launcher", __doc__)
    add = parser.add_argument
    add("--keys", type=Path, metavar="DIR", help="state directory of the local launcher")
    add("--poll", type=float, metavar="S", default=30.0, help="ask Slurm at least so often")
    add("--timeout", type=float, metavar="S", default=5.0, help="how long a command may take")
    add("--patience", type=float, metavar="S", default=60.0, help="how long a job may wait there")
    return parser.parse_args(argv)


def _keys(directory: Path | None) -> SigningKeys:
    """Return the keys of users' signatures: those of the local launcher, which hands them out."""
    if directory is None:
        sys.exit("drfd-slurm-launcher: --keys must name the local launcher's directory")
    # The local launcher makes the secret: two that make one at once would have two.
    deadline = time.monotonic() + _SECRET_WAIT_S
    while not (directory / SECRET_NAME).exists():
        if time.monotonic() > deadline:
            sys.exit(f"drfd-slurm-launcher: no launcher has made the secret in {directory}")
        time.sleep(0.05)
    try:
        return SigningKeys(directory)
    except (OSError, ValueError) as error:
        sys.exit(f"drfd-slurm-launcher: the secret of signatures cannot be had: {error}")
