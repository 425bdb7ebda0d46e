"""drfd: the commands of administrators."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from drfd import __version__
from drfd.daemon import start
from drfd.daemon.config import Config, load
from drfd.errors import DrfdError


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    try:
        _COMMANDS[options.command](options)
    except DrfdError as error:
        print(f"drfd: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except MemoryError:
        print("drfd: out of memory; jobs run on, and the next drfd finds them", file=sys.stderr)
        sys.exit(os.EX_OSERR)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drfd", description=__doc__)
    parser.add_argument("--version", action="version", version=f"drfd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument("--config", type=Path, help="configuration file")
    serve.add_argument("--state", type=Path, help="state directory: a private instance")
    serve.add_argument("--socket", type=Path, help="socket for drf to connect to")
    serve.add_argument(
        "--launcher",
        type=Path,
        metavar="DIR",
        help="use the launcher that runs with this directory, instead of one of our own: "
        "the system's daemon under systemd",
    )
    serve.add_argument(
        "--idle-exit", type=float, metavar="SECONDS", help="end after so long without jobs"
    )

    launcher = commands.add_parser(
        "launcher", help="run the launcher for a daemon that is started with --launcher"
    )
    launcher.add_argument("--config", type=Path, help="configuration file")
    launcher.add_argument("--state", type=Path, required=True, metavar="DIR", help="its directory")
    launcher.add_argument(
        "--controller", required=True, metavar="USER", help="the user whose orders are taken"
    )
    launcher.add_argument("--holder", metavar="UNIT", help="systemd unit that all jobs live in")

    install = commands.add_parser(
        "install", help="make this environment the system's daemon, or upgrade it"
    )
    install.add_argument("--prefix", help="for commands and man pages (default /usr/local)")
    uninstall = commands.add_parser("uninstall", help="undo that; state and configuration stay")
    uninstall.add_argument("--kill-jobs", action="store_true", help="stop running jobs first")
    uninstall.add_argument(
        "--purge", action="store_true", help="remove state, configuration and user too"
    )
    for command in (install, uninstall):
        command.add_argument("--dry-run", action="store_true", help="only print each step")
        command.add_argument(
            "--root",
            type=Path,
            default=Path("/"),
            metavar="DIR",
            help="work on the files of a system that is not running",
        )

    measure = commands.add_parser(
        "calibrate",
        help="measure how fast the disks are, best while they are idle, "
        "and print the lines for the configuration",
    )
    measure.add_argument("--config", type=Path, help="configuration file")
    measure.add_argument(
        "--disk", action="append", default=[], metavar="NAME", help="only this one of the file"
    )
    measure.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="DIR",
        help="the disk of this directory, which need not be in the file",
    )
    measure.add_argument("--json", action="store_true", help="print JSON for programs")

    check = commands.add_parser("check-config", help="say whether a configuration file is good")
    check.add_argument("file", type=Path)
    return parser.parse_args(argv)


def _check_config(options: argparse.Namespace) -> None:
    load(options.file)
    print(f"{options.file} is good")


def _install(options: argparse.Namespace) -> None:
    from drfd.install import command
    from drfd.install.layout import CONFIG
    from drfd.install.steps import below

    # First: what the services would not start with must not be installed.
    config_file = below(options.root, CONFIG)
    config = load(config_file) if config_file.exists() else Config()
    where = command.Where(options.root.absolute(), options.dry_run)
    command.install(where, prefix=options.prefix, grace_s=config.grace_s)


def _uninstall(options: argparse.Namespace) -> None:
    from drfd.install import command

    where = command.Where(options.root.absolute(), options.dry_run)
    command.uninstall(where, kill_jobs=options.kill_jobs, purge=options.purge)


_COMMANDS = {
    "serve": start.serve,
    "launcher": start.become_launcher,
    "calibrate": start.measure_disks,
    "check-config": _check_config,
    "install": _install,
    "uninstall": _uninstall,
}
