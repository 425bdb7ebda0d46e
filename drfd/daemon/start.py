"""From the options of `drfd serve` to the loop, of `drfd launcher` to the launcher, of
`drfd calibrate` to the disks."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import pwd
from dataclasses import replace
from pathlib import Path

from drfd import journald, paths, service
from drfd.daemon import spawn
from drfd.daemon.calibrate import calibrate
from drfd.daemon.config import Config, load
from drfd.daemon.controller import Daemon
from drfd.daemon.cures import Standing
from drfd.daemon.door import Door
from drfd.daemon.machine import Site, survey
from drfd.host.capacity import read_machine

log = logging.getLogger("drfd")

#: Where logind has a file for each user that lingers.
_LINGER = Path("/var/lib/systemd/linger")


def serve(options: argparse.Namespace) -> None:
    """Until the daemon ends."""
    manager = service.take(os.environ)
    journald.set_up("drfd", has_journal=manager.has_journal)
    # The watchdog's SIGABRT tells where we hang.
    faulthandler.enable()
    # Whatever mask we were started with: users must reach the sockets.
    os.umask(0o022)
    owner = os.getuid()
    is_system = options.launcher is not None or (options.state is None and owner == 0)
    config_file = options.config or _usual_config(is_system)
    config = _read_config(config_file, must_exist=options.config is not None)
    state = options.state or (paths.SYSTEM_STATE if is_system else paths.user_state(os.environ))
    places = spawn.Places(state.absolute(), options.launcher)
    lock = spawn.prepare(places)
    site = survey(config, read_machine(), places.state)
    account, warning = spawn.controller_account(config, places)
    if warning:
        site = replace(site, warnings=(*site.warnings, warning))
    # A private instance is for whoever started it too, be it root; the system's takes no root.
    allow = [*spawn.system_uids(config), *([] if is_system else [owner])]
    door = Door(options.socket or _usual_socket(options, is_system), is_open=is_system or not owner)
    launcher = None
    if options.launcher is None:
        launcher = spawn.start_launcher(
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
        fresh = _read_config(config_file, must_exist=options.config is not None)
        return fresh, survey(fresh, read_machine(), places.state)

    daemon = Daemon(
        config,
        site,
        places,
        launcher,
        reread,
        manager,
        _standing(is_system, is_service=options.launcher is not None),
        admins=frozenset({0, owner}),
        allow=frozenset(allow),
    )
    log.info("event=ready socket=%s state=%s", door.path, places.state)
    try:
        asyncio.run(daemon.run(door.listener, idle_exit_s=options.idle_exit))
    finally:
        daemon.journal.close()
        door.close()
        if launcher is not None:
            launcher.let_go()
        os.close(lock)


def become_launcher(options: argparse.Namespace) -> None:
    """Replace this process by the launcher, run as the configuration says."""
    config_file = options.config or paths.SYSTEM_CONFIG
    config = _read_config(config_file, must_exist=options.config is not None)
    command = spawn.launcher_command(
        options.state,
        config,
        controller_uid=spawn.account_of(options.controller, "--controller").pw_uid,
        allow=spawn.system_uids(config),
        group="drfd/system",
    )
    if options.holder is not None:
        command += ["--holder", options.holder]
    # Our own words, and no shell.
    os.execv(command[0], command)  # noqa: S606


def measure_disks(options: argparse.Namespace) -> None:
    """Those that a daemon would manage with these options, or the ones that are named."""
    is_system = os.getuid() == 0
    config_file = options.config or _usual_config(is_system)
    config = _read_config(config_file, must_exist=options.config is not None)
    state = paths.SYSTEM_STATE if is_system else paths.user_state(os.environ)
    calibrate(options, config, config_file, state)


def _standing(is_system: bool, *, is_service: bool) -> Standing:
    uid = os.getuid()
    try:
        lingers = _LINGER.joinpath(pwd.getpwuid(uid).pw_name).exists()
    except KeyError:
        lingers = False
    return Standing(
        uid=uid,
        is_systems=is_system,
        is_service=is_service,
        has_systemd=service.has_systemd(),
        lingers=lingers,
    )


def _read_config(path: Path, *, must_exist: bool) -> Config:
    return load(path) if must_exist or path.exists() else Config()


def _usual_config(is_system: bool) -> Path:
    is_roots = is_system or os.getuid() == 0
    return paths.SYSTEM_CONFIG if is_roots else paths.user_config(os.environ)


def _usual_socket(options: argparse.Namespace, is_system: bool) -> Path:
    if options.state is not None and options.launcher is None:
        return Path(options.state) / "drfd.sock"
    return paths.SYSTEM_SOCKET if is_system else paths.user_socket(os.environ)
