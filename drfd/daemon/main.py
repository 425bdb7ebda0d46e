"""drfd: the commands of administrators."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from drfd import __version__
from drfd.common import journald, paths
from drfd.common.errors import ConfigError, DrfdError
from drfd.daemon import spawn, tools
from drfd.daemon.cluster import has_slurm
from drfd.daemon.config import Config, Site, survey
from drfd.daemon.controller import Daemon, Surroundings
from drfd.daemon.handlers.doctor import InstallContext
from drfd.daemon.metrics.publication import open_port
from drfd.host.measurements import read_machine
from drfd.launcher.settings import account_of, system_uids
from drfd.linux import own_process, service, syscalls
from drfd.linux.listening import ListeningSocket
from drfd.payload.submitter import user_socket
from drfd.slurm.files import NAMES

log = logging.getLogger("drfd")


def serve(options: argparse.Namespace) -> None:
    """Run the daemon until it ends."""
    manager = service.take(os.environ)
    journald.set_up("drfd", has_journal=manager.has_journal)
    # With this the watchdog's SIGABRT shows where the daemon hangs.
    faulthandler.enable()
    # Users must reach the sockets, whatever the inherited mask.
    os.umask(0o022)
    _leave_session_keyring()
    own_process.spare()
    own_process.take_cpus()
    owner = os.getuid()
    is_system = options.launcher is not None or (options.state is None and owner == 0)
    config_file = options.config or spawn.usual_config(is_system)
    config = spawn.read_config(config_file, must_exist=options.config is not None)
    if config.launcher.private_tmp and owner != 0 and not is_system:
        raise ConfigError(
            "config",
            "enforcement.private_tmp: only root can give jobs a /tmp of their own",
            hint="leave it out: jobs of your own daemon are all yours",
        )
    state = options.state or (paths.SYSTEM_STATE if is_system else paths.user_state(os.environ))
    places = spawn.Places(state.absolute(), options.launcher)
    lock = spawn.prepare(places)
    is_roots = owner == 0 or options.launcher is not None
    # `drf` has started one that ends by itself: for its user, who in a container is root.
    is_for_one = not is_roots or options.idle_exit is not None
    apply = partial(survey, is_for_one=is_for_one)
    spawn.refuse_slurm_without_root(config, is_roots=is_roots)
    site = apply(config, read_machine(), places.state)
    account, warning = spawn.controller_account(config, places, as_root=options.as_root)
    if warning:
        site = replace(site, warnings=(*site.warnings, warning))
    # A private instance also runs jobs of its owner, even if that is root. The system's runs none
    # of root.
    own = [] if is_system else [owner]
    allow = [*system_uids(config.launcher), *own]
    listening = ListeningSocket(
        options.socket or _usual_socket(options, is_system),
        0o666 if is_system or not owner else 0o600,
    )
    metrics_port, port_warnings = open_port(config.metrics)
    site = replace(site, warnings=(*site.warnings, *port_warnings))
    launchers: list[spawn.OwnLauncher] = []
    if options.launcher is None:
        if account is not None:
            spawn.hand_over(places.controller, account)
        command = partial(
            spawn.launcher_command,
            config_file=config_file,
            controller_uid=account.pw_uid if account else owner,
            allow=own,
        )
        group = "drfd/system" if is_system else spawn.group_for(places.state)
        launchers.append(
            spawn.start_launcher([*command("drfd.launcher", places.launcher), "--group", group])
        )
        if has_slurm(config.nodes):
            account_of(config.launcher.slurm.user, "slurm.user")
            places.slurm_launcher.mkdir(mode=0o711, exist_ok=True)
            as_root = command("drfd.launcher.slurm_root", places.slurm_launcher)
            launchers += spawn.start_slurm_launcher(as_root, places, account)
    if account is not None:
        spawn.become(account, places)
        listening.listen()
    for text in site.warnings:
        log.warning("warning: %s", text)

    def reread() -> tuple[Config, Site]:
        fresh = spawn.read_config(config_file, must_exist=options.config is not None)
        late = late_changes(config, fresh)
        spawn.refuse_slurm_without_root(fresh, is_roots=is_roots)
        found = apply(fresh, read_machine(), places.state)
        return fresh, replace(found, warnings=(*found.warnings, *late, *port_warnings))

    surroundings = Surroundings(
        places,
        tuple(launchers),
        manager,
        InstallContext(
            uid=owner,
            config_file=config_file.absolute(),
            is_systems=is_system,
            is_service=options.launcher is not None,
            has_systemd=service.has_systemd(),
            lingers=service.lingers(owner),
        ),
        admins=frozenset({0, owner}),
        allow=frozenset(allow),
        lock=lock,
        metrics_port=metrics_port,
    )
    daemon = Daemon(config, site, surroundings, reread)
    spawn.publish(lock, listening.path)
    log.info("event=ready socket=%s state=%s", listening.path, places.state)
    try:
        asyncio.run(daemon.run(listening.listener, idle_exit_s=options.idle_exit))
    finally:
        daemon.journal.close()
        listening.close()
        if metrics_port is not None:
            metrics_port.close()
        for each in launchers:
            each.release()
        os.close(lock)


def late_changes(before: Config, now: Config) -> Iterator[str]:
    """Yield a warning for each changed key that a reload does not bring into effect."""
    old, new = before.launcher, now.launcher
    for key, is_same in (
        ("daemon.system_users", old.system_users == new.system_users),
        ("metrics", before.metrics == now.metrics),
        ("enforcement.no_new_privs", old.no_new_privs == new.no_new_privs),
        ("enforcement.cgroups", old.use_cgroups == new.use_cgroups),
    ):
        if not is_same and key == "metrics":
            yield "[metrics] has changed: that takes a restart of drfd"
        elif not is_same:
            # That of Slurm's nodes leaves privileges to Slurm.
            is_of_both = key == "daemon.system_users" and has_slurm(now.nodes)
            launchers = "launchers" if is_of_both else "launcher"
            yield f"{key} has changed: that takes a restart of drfd and its {launchers}"
    if has_slurm(now.nodes) and not has_slurm(before.nodes):
        yield (
            "nodes: these are the first ones of Slurm's: their launcher starts with a restart of "
            "drfd; until then they count as away"
        )
    elif old.slurm != new.slurm:
        yield "slurm has changed: that takes a restart of drfd and its launchers"


def _usual_socket(options: argparse.Namespace, is_system: bool) -> Path:
    if options.state is not None and options.launcher is None:
        return Path(options.state) / "drfd.sock"
    return paths.SYSTEM_SOCKET if is_system else Path(user_socket(os.environ))


_PARTLY = "interrupted: what is printed above is done, and the same command does the rest"
_INTERRUPTED = {"install": _PARTLY, "uninstall": _PARTLY}


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    try:
        COMMANDS[options.command](options)
        sys.stdout.flush()
    except BrokenPipeError:
        if options.command == "serve":
            raise
        # The reader has closed the pipe, as in `drfd metrics | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except DrfdError as error:
        print(f"drfd: {error}", file=sys.stderr)
        if options.command == "serve":
            leave(error.exit_code)
        sys.exit(error.exit_code)
    except PermissionError as error:
        if options.command == "serve":
            # Paths that a user has named are checked before, so this is a fault of the program.
            raise
        where = f"{error.filename}: " if error.filename else ""
        cure = "run this as the user whom it belongs to, or as root"
        print(f"drfd: {where}{error.strerror} ({cure})", file=sys.stderr)
        sys.exit(os.EX_NOPERM)
    except KeyboardInterrupt:
        print(f"drfd: {_INTERRUPTED.get(options.command, 'interrupted')}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except MemoryError:
        print("drfd: out of memory; jobs run on, and the next drfd finds them", file=sys.stderr)
        sys.exit(os.EX_OSERR)
    if options.command == "serve":
        leave(0)


def leave(code: int) -> NoReturn:
    """End the process without waiting for its threads, as Python would."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drfd", description=__doc__)
    parser.add_argument("--version", action="version", version=f"drfd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return what adds arguments with a value, and flags: both take a name and a help."""
        about = f"{text[0].upper()}{text[1:]}."
        of: Any = commands.add_parser(name, help=text, description=about)
        return (
            lambda name, text, kind=Path, **more: of.add_argument(
                name, type=kind, help=text, **more
            ),
            lambda name, text: of.add_argument(name, action="store_true", help=text),
        )

    path, flag = command("serve", "run the daemon in the foreground")
    path("--config", "configuration file")
    path("--state", "state directory of a private daemon")
    path("--socket", "socket for drf to connect to")
    text = "use the launcher that runs with this directory, instead of starting one: "
    path("--launcher", f"{text}the system's daemon under systemd", metavar="DIR")
    path("--idle-exit", "end after so long without jobs", float, metavar="SECONDS")
    text = "let the controller run as root where there is no user drfd for it to become"
    flag("--as-root", text)

    for name, text in (
        ("install", "make this environment the system's daemon, or upgrade it"),
        ("uninstall", "remove the system's daemon; state and configuration stay"),
    ):
        path, flag = command(name, text)
        if name == "install":
            path("--prefix", "for commands and man pages (default /usr/local)", str)
        else:
            flag("--kill-jobs", "stop running jobs first")
            flag("--purge", "remove state, configuration and user too")
        flag("--dry-run", "only print each step")
        text = "work on the files of a system that is not running"
        path("--root", text, default=Path("/"), metavar="DIR")

    lines = "and print the lines for the configuration"
    text = f"measure how fast the disks are, best while they are idle, {lines}"
    path, _ = command("calibrate", text)
    path("--config", "configuration file")
    several = {"action": "append", "default": []}
    path("--disk", "only this one of the file", str, metavar="NAME", **several)
    text = "the disk of this directory, which need not be in the file"
    path("--path", text, str, metavar="DIR", **several)

    text = f"list the GPUs of this machine with their device nodes, {lines}"
    _, flag = command("gpus", text)
    flag("--json", "print JSON for programs")

    text = "print a file of the configuration of a Slurm that starts jobs for drfd"
    path, _ = command("slurm-conf", text)
    path("file", "the file to print", str, choices=NAMES)
    for name, text, default, kind in (
        ("--dir", "directory of slurm.conf", Path("/etc/slurm"), "DIR"),
        ("--socket", "socket that drfd hears of jobs at", paths.SYSTEM_SLURM_SOCKET, "PATH"),
        (
            *("--starts", "directory in which Slurm notes which jobs it has started"),
            *(paths.SYSTEM_SLURM_STARTS, "DIR"),
        ),
    ):
        path(name, f"{text} (default {default})", default=default, metavar=kind)

    path, _ = command("metrics", "print the metrics of the running daemon once")
    path("--socket", "the daemon's socket", metavar="PATH")

    text = "write a configuration file with what this machine has, and with examples"
    path, _ = command("init", text)
    path("file", f"default: {paths.SYSTEM_CONFIG}, or that of your own daemon", nargs="?")

    text = "say whether a configuration file is good, and what it means on this machine"
    path, _ = command("check-config", text)
    path("file", "configuration file")
    return parser.parse_args(argv)


COMMANDS = {
    "serve": serve,
    "calibrate": tools.calibrate,
    "check-config": tools.check_config,
    "init": tools.init,
    "gpus": tools.list_gpus,
    "slurm-conf": tools.slurm_conf,
    "metrics": tools.print_metrics,
    "install": tools.install,
    "uninstall": tools.uninstall,
}


def _leave_session_keyring() -> None:
    """Join a new session keyring: drfd, and what it starts, must not have the keys of the session
    that it was started from."""
    try:
        syscalls.join_session_keyring()
    except OSError:
        # The kernel has no keyrings, or the quota is used up; the launcher reports it for jobs.
        return
