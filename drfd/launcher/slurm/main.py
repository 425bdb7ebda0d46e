"""drfd-slurm-launcher: the process that gives jobs to Slurm. One for all of Slurm's nodes.

It has no rights: what root must do is done by its helper (`drfd.launcher.slurm_root`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from drfd.launcher import startup
from drfd.launcher.port import Port
from drfd.launcher.protocol import SOCKET_NAME
from drfd.launcher.runner import inheritance
from drfd.launcher.slurm import commands
from drfd.launcher.slurm.server import SlurmLauncher
from drfd.launcher.slurm.start_notes import StartNotes
from drfd.launcher.slurm_root.requests import OWN_NAME, STARTS_NAME
from drfd.linux.service import Service


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    manager = startup.begin("drfd-slurm-launcher")
    inheritance.protect(no_new_privileges=True)
    startup.run(partial(_serve, options), options.keep_fd, manager)


def _serve(options: argparse.Namespace, manager: Service) -> None:
    connection, controllers, events = commands.connect(options.state)
    own = options.state / OWN_NAME
    launcher = SlurmLauncher(
        state=own,
        attempts_fd=startup.open_attempts(own),
        # The helper has made it the controller's.
        port=Port(controllers, (options.state / SOCKET_NAME).stat().st_uid),
        helper=connection,
        events=events,
        starts=StartNotes(options.state / STARTS_NAME),
        keep_fd=options.keep_fd,
        poll_s=options.poll,
        patience_s=options.patience,
    )
    manager.notify("READY=1")
    launcher.serve()
    sys.exit(launcher.exit_code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drfd-slurm-launcher", description=__doc__)
    add = parser.add_argument
    add("--state", type=Path, required=True, help="directory with the helper's socket")
    add("--keep-fd", type=int, help="restart the launcher until this descriptor reaches its end")
    add("--poll", type=float, metavar="S", default=30.0, help="ask Slurm at least so often")
    add("--patience", type=float, metavar="S", default=60.0, help="how long a job may wait there")
    return parser.parse_args(argv)
