"""drfd: the commands of administrators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drfd import __version__
from drfd.daemon import start
from drfd.daemon.config import load
from drfd.errors import DrfdError


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    try:
        _COMMANDS[options.command](options)
    except DrfdError as error:
        print(f"drfd: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


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

    check = commands.add_parser("check-config", help="say whether a configuration file is good")
    check.add_argument("file", type=Path)
    return parser.parse_args(argv)


def _check_config(options: argparse.Namespace) -> None:
    for warning in load(options.file).warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{options.file} is good")


_COMMANDS = {
    "serve": start.serve,
    "launcher": start.become_launcher,
    "check-config": _check_config,
}
