"""drfd: the controller's commands, and the wiring of its parts."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drfd import __version__, paths
from drfd.daemon import spawn
from drfd.daemon.config import Config, load
from drfd.daemon.controller import Daemon
from drfd.daemon.door import Door
from drfd.daemon.machine import Site, survey
from drfd.errors import DrfdError
from drfd.host.capacity import read_machine

log = logging.getLogger("drfd")


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    logging.basicConfig(format="drfd: %(message)s", level=logging.INFO)
    try:
        if options.command == "check-config":
            for warning in load(options.file).warnings:
                print(f"warning: {warning}", file=sys.stderr)
            print(f"{options.file} is good")
        else:
            _serve(options)
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
        "--idle-exit", type=float, metavar="SECONDS", help="end after so long without jobs"
    )
    check = commands.add_parser("check-config", help="say whether a configuration file is good")
    check.add_argument("file", type=Path)
    return parser.parse_args(argv)


def _serve(options: argparse.Namespace) -> None:
    # Whatever mask we were started with: users must reach the sockets.
    os.umask(0o022)
    config = _find_config(options.config)
    is_system = options.state is None and os.getuid() == 0
    state = options.state or (paths.SYSTEM_STATE if is_system else paths.user_state(os.environ))
    places = spawn.Places(state.absolute())
    lock = spawn.prepare(places)
    site = survey(config, read_machine(), places.state)
    account, warning = spawn.controller_account(config, places)
    if warning:
        site = replace(site, warnings=(*site.warnings, warning))
    owner = os.getuid()
    # A private instance is for whoever started it too, be it root; the system's takes no root.
    allow = [*spawn.system_uids(config), *([] if is_system else [owner])]
    door = Door(options.socket or _default_socket(options, is_system), is_open=owner == 0)
    keep, keeper = spawn.start_launcher(
        places,
        config,
        controller_uid=account.pw_uid if account else owner,
        allow=allow,
        group="drfd/system" if is_system else spawn.group_for(places.state),
    )
    if account is not None:
        spawn.become(account, places)
    for text in site.warnings:
        log.warning("warning: %s", text)

    def reread() -> tuple[Config, Site]:
        fresh = _find_config(options.config)
        return fresh, survey(fresh, read_machine(), places.state)

    daemon = Daemon(
        config,
        site,
        places,
        keeper,
        reread,
        admins=frozenset({0, owner}),
        allow=frozenset(allow),
    )
    log.info("event=ready socket=%s state=%s", door.path, places.state)
    try:
        asyncio.run(daemon.run(door.listener, idle_exit_s=options.idle_exit))
    finally:
        daemon.journal.close()
        door.close()
        os.close(keep)
        os.close(lock)


def _find_config(path: Path | None) -> Config:
    if path is not None:
        return load(path)
    usual = paths.SYSTEM_CONFIG if os.getuid() == 0 else paths.user_config(os.environ)
    return load(usual) if usual.exists() else Config()


def _default_socket(options: argparse.Namespace, is_system: bool) -> Path:
    if options.state is not None:
        return Path(options.state) / "drfd.sock"
    return paths.SYSTEM_SOCKET if is_system else paths.user_socket(os.environ)
