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
from pathlib import Path

from drfd.common import failpoints, journald
from drfd.launcher.main import listen, lock_state, supervise
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import SECRET_NAME
from drfd.launcher.runner import inheritance
from drfd.launcher.signatures import SigningKeys
from drfd.launcher.slurm.records.start_notes import StartNotes
from drfd.launcher.slurm.server import SlurmLauncher
from drfd.launcher.slurm.submitting.preparation import is_there
from drfd.linux import service
from drfd.linux.service import Service
from drfd.linux.unix_sockets import at_socket

log = logging.getLogger("drfd.launcher")

EVENTS_NAME = "events.sock"
STARTS_NAME = "started"
#: Seconds that the local launcher has to make the secret of signatures.
_SECRET_WAIT_S = 10.0


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    manager = service.take(os.environ)
    journald.set_up("drfd-slurm-launcher", has_journal=manager.has_journal)
    if options.failpoints is not None:
        failpoints.enable(options.failpoints)
    inheritance.protect(no_new_privileges=False)
    inheritance.allow_many_files()
    os.umask(0o022)
    # SIGINT from a terminal is for the controller, which ends the launcher in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.keep_fd is None:
        _serve(options, manager)
    else:
        supervise(options.keep_fd, lambda: _serve(options, Service()))


def _serve(options: argparse.Namespace, manager: Service) -> None:
    if not is_there(options.programs):
        sys.exit(f"drfd-slurm-launcher: Slurm's commands are not in {options.programs}")
    state: Path = options.state
    lock_state(state)
    attempts_dir = state / "attempts"
    attempts_dir.mkdir(mode=0o700, exist_ok=True)
    starts = StartNotes(options.starts or state / STARTS_NAME)
    try:
        starts.prepare(options.slurm_uid)
    except OSError as error:
        sys.exit(f"drfd-slurm-launcher: {starts.directory} cannot be made: {error.strerror}")
    launcher = SlurmLauncher(
        state=state,
        policy=Policy(min_uid=options.min_uid, allowed_uids=frozenset(options.allow_uid)),
        attempts_fd=os.open(attempts_dir, os.O_RDONLY | os.O_DIRECTORY),
        port=Port(listen(state, options.controller_uid), options.controller_uid),
        events=_listen_for_events(options.events or state / EVENTS_NAME, options.slurm_uid),
        starts=starts,
        programs=options.programs,
        conf=options.slurm_conf,
        partition=options.partition,
        keys=_keys(options),
        keep_fd=options.keep_fd,
        poll_s=options.poll,
        most_s=options.timeout,
        nudges=not options.no_nudge,
        patience_s=options.patience,
    )
    manager.notify("READY=1")
    launcher.serve()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drfd-slurm-launcher", description=__doc__)
    add = parser.add_argument
    add("--state", type=Path, required=True, help="directory for attempt files and the sockets")
    add("--controller-uid", type=int, required=True, help="the uid whose orders are taken")
    add("--keys", type=Path, metavar="DIR", help="state directory of the local launcher")
    add("--min-uid", type=int, default=1000, help="refuse jobs of system accounts below this uid")
    add("--allow-uid", type=int, action="append", default=[], help="take jobs of this uid anyway")
    add("--events", type=Path, metavar="SOCKET", help="for Slurm's scripts; else in the state")
    add("--starts", type=Path, metavar="DIR", help="for its notes of starts; else in the state")
    add("--slurm-uid", type=int, default=0, help="SlurmUser, which sends events and notes starts")
    add("--partition", help="Slurm's partition; its default without this")
    add("--slurm-conf", type=Path, metavar="FILE", help="where Slurm's configuration is")
    add("--programs", type=Path, metavar="DIR", default=Path("/usr/bin"), help="Slurm's commands")
    add("--poll", type=float, metavar="S", default=30.0, help="ask Slurm at least so often")
    add("--timeout", type=float, metavar="S", default=5.0, help="how long a command may take")
    add("--no-nudge", action="store_true", help="do not tell slurmctld of each submission")
    add("--patience", type=float, metavar="S", default=60.0, help="how long a job may wait there")
    add("--keep-fd", type=int, help="restart the launcher until this descriptor reaches its end")
    add("--failpoints", metavar="DIR", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _keys(options: argparse.Namespace) -> SigningKeys | None:
    """Return the keys of users' signatures: those of the local launcher, which hands them out."""
    if options.controller_uid == os.getuid():
        return None
    if options.keys is None:
        sys.exit("drfd-slurm-launcher: --keys must name the local launcher's directory")
    # The local launcher makes the secret: two that make one at once would have two.
    deadline = time.monotonic() + _SECRET_WAIT_S
    while not (options.keys / SECRET_NAME).exists():
        if time.monotonic() > deadline:
            sys.exit(f"drfd-slurm-launcher: no launcher has made the secret in {options.keys}")
        time.sleep(0.05)
    try:
        return SigningKeys(options.keys)
    except (OSError, ValueError) as error:
        sys.exit(f"drfd-slurm-launcher: the secret of signatures cannot be had: {error}")


def _listen_for_events(path: Path, slurm_uid: int) -> socket.socket:
    """Return the socket for datagrams of Slurm's scripts, which only SlurmUser can send."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    before = os.umask(0o177)
    with at_socket(path) as address:
        listener.bind(address)
    os.umask(before)
    if os.getuid() == 0:
        os.chown(path, slurm_uid, -1)
    return listener
