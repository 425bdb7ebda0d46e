"""drfd: the commands of administrators."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import logging
import os
import pwd
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from drfd import __version__
from drfd.common import failpoints, journald, paths
from drfd.common.errors import ConfigError, DrfdError, HostError, Refused
from drfd.common.units import clock_time, exact_size, show_size
from drfd.core.fairness.rules import pools_and_users
from drfd.core.model.resources import Axes
from drfd.daemon import gpu_report, spawn
from drfd.daemon.calendar import expand_hours
from drfd.daemon.cluster import has_slurm, late_node_changes, node_gres
from drfd.daemon.config import Config, DiskConfig, Site, load, load_if_there, survey
from drfd.daemon.controller import Daemon, Surroundings
from drfd.daemon.countable import device_warnings, shared_memory, with_devices_of
from drfd.daemon.handlers.doctor import InstallContext
from drfd.daemon.metrics.publication import (
    METRICS_FILES,
    metrics_warnings,
    open_outlets,
    shipped_file,
)
from drfd.daemon.pool_warnings import user_warnings
from drfd.daemon.reference import config_schema, reply_schema
from drfd.daemon.server.server import ListeningSocket
from drfd.devices.displays import other_displays
from drfd.devices.gpus import PLACES, find_gpus
from drfd.devices.roster_file import RosterFile, numbers_of
from drfd.host.disks import Location, Speed, locate, measure
from drfd.host.measurements import read_machine
from drfd.journal.journal import Journal
from drfd.journal.pruning import compact
from drfd.launcher.settings import account_of, system_uids
from drfd.linux import own_process, service
from drfd.protocol.requests import REQUESTS
from drfd.slurm.files import MORE_CONF, NAMES, Layout, files
from drfd.slurm.nodes import GivenOut
from drfd.slurm.running import running_differences
from drfd.slurm.settings import DISKS, EVENT, SLURM_CONF

log = logging.getLogger("drfd")

#: Seconds that the user directory has to say which users of the configuration there are.
_DIRECTORY_S = 1.0
#: Directory where logind has a file for each user that lingers.
_LINGER = Path("/var/lib/systemd/linger")


def serve(options: argparse.Namespace) -> None:
    """Run the daemon until it ends."""
    manager = service.take(os.environ)
    journald.set_up("drfd", has_journal=manager.has_journal)
    # With this the watchdog's SIGABRT shows where the daemon hangs.
    faulthandler.enable()
    # Users must reach the sockets, whatever the inherited mask.
    os.umask(0o022)
    own_process.leave_session_keyring()
    own_process.spare()
    own_process.take_cpus()
    _enable_failpoints(options)
    owner = os.getuid()
    is_system = options.launcher is not None or (options.state is None and owner == 0)
    config_file = options.config or _usual_config(is_system)
    config = _read_config(config_file, must_exist=options.config is not None)
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
    spawn.refuse_slurm_without_root(config, is_roots=is_roots)
    site = survey(config, read_machine(), places.state, _gpu_numbers(places.controller))
    account, warning = spawn.controller_account(config, places, as_root=options.as_root)
    if warning:
        site = replace(site, warnings=(*site.warnings, warning))
    # A private instance also runs jobs of its owner, even if that is root. The system's runs none
    # of root.
    own = [] if is_system else [owner]
    allow = [*system_uids(config.launcher), *own]
    listening = ListeningSocket(
        options.socket or _usual_socket(options, is_system), is_open=is_system or not owner
    )
    outlets = open_outlets(config.metrics)
    site = replace(site, warnings=(*site.warnings, *outlets.warnings))
    launcher = slurm_launcher = None
    if options.launcher is None:
        if account is not None:
            spawn.hand_over(places.controller, account)
        command = partial(
            spawn.launcher_command,
            config_file=config_file,
            controller_uid=account.pw_uid if account else owner,
            allow=own,
            failpoints=options.failpoints,
        )
        group = "drfd/system" if is_system else spawn.group_for(places.state)
        launcher = spawn.start_launcher(
            [*command("drfd.launcher", places.launcher), "--group", group]
        )
        if has_slurm(config.nodes):
            account_of(config.launcher.slurm.user, "slurm.user")
            places.slurm_launcher.mkdir(mode=0o711, exist_ok=True)
            words = ["--keys", str(places.launcher)]
            slurm_launcher = spawn.start_launcher(
                [*command("drfd.launcher.slurm", places.slurm_launcher), *words]
            )
    if account is not None:
        spawn.become(account, places)
        listening.listen()
    for text in site.warnings:
        log.warning("warning: %s", text)

    def reread() -> tuple[Config, Site]:
        fresh = _read_config(config_file, must_exist=options.config is not None)
        late = (
            *late_changes(config, fresh),
            *user_warnings(fresh.pools, fresh.members, _DIRECTORY_S),
        )
        spawn.refuse_slurm_without_root(fresh, is_roots=is_roots)
        fresh = replace(fresh, countables=with_devices_of(config.countables, fresh.countables))
        numbers = _gpu_numbers(places.controller)
        found = survey(fresh, read_machine(), places.state, numbers)
        return fresh, replace(found, warnings=(*found.warnings, *late, *outlets.warnings))

    launchers = tuple(each for each in (launcher, slurm_launcher) if each is not None)
    surroundings = Surroundings(
        places,
        launchers,
        manager,
        install_context(owner, is_system=is_system, is_service=options.launcher is not None),
        admins=frozenset({0, owner}),
        allow=frozenset(allow),
        lock=lock,
        outlets=outlets,
    )
    daemon = Daemon(config, site, surroundings, reread)
    spawn.publish(lock, listening.path)
    log.info("event=ready socket=%s state=%s", listening.path, places.state)
    try:
        asyncio.run(daemon.run(listening.listener, idle_exit_s=options.idle_exit))
    finally:
        daemon.journal.close()
        listening.close()
        outlets.close()
        for each in launchers:
            each.release()
        os.close(lock)


def _enable_failpoints(options: argparse.Namespace) -> None:
    """Enable failpoints, for tests. Raises ConfigError for any daemon but a private instance."""
    if options.failpoints is None:
        return
    if options.launcher is not None or options.state is None:
        raise ConfigError("failpoints", "--failpoints is for a private instance: give --state")
    failpoints.enable(str(options.failpoints))


def calibrate(options: argparse.Namespace) -> None:
    """Measure the disks that are named, or those that a daemon would manage with these options, and
    print the results as lines for the configuration."""
    is_system = os.getuid() == 0
    config_file = options.config or _usual_config(is_system)
    config = _read_config(config_file, must_exist=options.config is not None)
    state = paths.SYSTEM_STATE if is_system else paths.user_state(os.environ)
    found = []
    try:
        for disk in _disks_to_measure(options, config, state):
            directory = _directory(disk, is_state=disk.path == str(state))
            location = locate(str(directory))
            _say(f"measuring disk {disk.name} in {directory}; this takes a few seconds")
            speed = measure(directory)
            _warn_of_doubts(disk, location, speed)
            found.append((disk, location, speed))
    except KeyboardInterrupt:
        _say("stopped; nothing is left behind")
        sys.exit(128 + signal.SIGINT)
    if options.json:
        print(json.dumps({"disks": [_measured_view(*each) for each in found]}))
        return
    for disk, _, speed in found:
        print(_config_lines(disk, speed))
    _say(f"with these in place of the [[disk]] lines of {config_file}, drf reload takes them up")


def _disks_to_measure(options: argparse.Namespace, config: Config, state: Path) -> list[DiskConfig]:
    known = config.disks
    if known is None:
        known = (DiskConfig(name="state", path=str(state)),)
    by_name = {disk.name: disk for disk in known}
    for name in options.disk:
        if name not in by_name:
            raise Refused(
                "no-such-disk",
                f"there is no disk {name!r} in the configuration",
                hint=f"disks: {', '.join(by_name)}; or name a directory with --path",
            )
    named = [by_name[name] for name in dict.fromkeys(options.disk)]
    paths = [Path(path).absolute() for path in options.path]
    named += [DiskConfig(name=_name_for(path), path=str(path)) for path in paths]
    return named or list(known)


def _name_for(path: Path) -> str:
    """Return a name for the disk of a path that the configuration does not have."""
    return re.sub(r"[^\w.-]", "-", path.name, flags=re.ASCII) or "root"


def _directory(disk: DiskConfig, *, is_state: bool) -> Path:
    """Return the path, or the directory of a file. A state directory need not be there yet."""
    path = Path(disk.path)
    try:
        if not is_state and not path.exists():
            raise Refused(
                "no-such-path", f"disk {disk.name}: there is no {path}", hint="is it mounted?"
            )
        return next(each for each in (path, *path.parents) if each.is_dir())
    except OSError as error:
        raise HostError(
            "disk",
            f"disk {disk.name}: cannot reach {path}: {error.strerror}",
            hint="name a directory on the same disk that you may write in with --path",
        ) from None


def _warn_of_doubts(disk: DiskConfig, location: Location, speed: Speed) -> None:
    if location.why_none:
        _say(f"disk {disk.name} takes no limits: {location.why_none}")
    if not speed.is_direct:
        _say(f"{disk.path} knows no direct I/O: the page cache may make it look faster than it is")


def _config_lines(disk: DiskConfig, speed: Speed) -> str:
    read, write = exact_size(_rounded(speed.read_bps)), exact_size(_rounded(speed.write_bps))
    return "\n".join(
        (
            "[[disk]]",
            f"name = {json.dumps(disk.name)}",
            f"path = {json.dumps(disk.path, ensure_ascii=False)}",
            f'read = "{read}"',
            f'write = "{write}"',
        )
    )


def _rounded(rate_bps: int) -> int:
    """Round down to whole MiB or KiB per second."""
    step = 1 << 20 if rate_bps >= 1 << 20 else 1 << 10
    return max(step, rate_bps // step * step)


def _measured_view(disk: DiskConfig, location: Location, speed: Speed) -> dict[str, object]:
    return {
        "name": disk.name,
        "path": disk.path,
        "read": _rounded(speed.read_bps),
        "write": _rounded(speed.write_bps),
        "direct": speed.is_direct,
        "device": " ".join(location.devices) or None,
        "filesystem": location.filesystem,
    }


def _say(text: str) -> None:
    """Print to standard error, because standard output is to be copied."""
    print(f"drfd: {text}", file=sys.stderr, flush=True)


def _gpu_numbers(controller: Path) -> dict[str, int]:
    """Return the numbers of the GPUs that the controller with this directory has seen."""
    return numbers_of(RosterFile(controller).read())


def list_gpus(options: argparse.Namespace) -> None:
    """Print the GPUs of this machine, and the lines of the configuration that give them out. Raises
    Refused if there is none, unless JSON is asked for."""
    gpus = find_gpus(numbers=_gpu_numbers(paths.SYSTEM_STATE / "controller"))
    if options.json:
        print(json.dumps({"gpus": [gpu_report.view(gpu) for gpu in gpus]}))
        return
    for text in gpu_report.notes(other_displays({gpu.pci for gpu in gpus})):
        _say(text)
    if not gpus:
        raise Refused("no-gpu", "no GPU found", hint=f"looked at {', '.join(PLACES)}")
    print(gpu_report.table(gpus))
    lines = gpu_report.configuration(gpus)
    if lines:
        print(lines)
    else:
        _say('none of them is for gpu = "auto"; those without a fault may be listed by number')


def slurm_conf(options: argparse.Namespace) -> None:
    """Print the configuration that Slurm needs, or how the running one differs. Exits with 1 if it
    lacks anything."""
    places = (options.dir, options.socket, options.starts)
    layout = Layout(*(place.absolute() for place in places))
    if options.check:
        own = _slurms_nodes(options.config)
        found = running_differences(layout, own.env, own.nodes, own.user)
        for difference in found:
            print(difference)
        if own.lacking:
            _say(own.lacking)
        if not all(difference.is_advice for difference in found):
            sys.exit(1)
        _say("Slurm is configured as drfd needs it")
        return
    texts = files(layout)
    if options.file is not None:
        print(texts[options.file], end="")
        return
    included = layout.directory / MORE_CONF
    heads = {
        SLURM_CONF: f'{included}, for the line "Include {included}" in {SLURM_CONF}',
        **{name: f"{layout.directory / name}, mode 755" for name in (EVENT, DISKS)},
    }
    for name, text in texts.items():
        print(f"### {heads.get(name, layout.directory / name)}\n{text}")


class _SlurmsNodes(NamedTuple):
    """What the configuration says of Slurm's nodes."""

    nodes: list[GivenOut]
    #: Slurm's user; None without nodes.
    user: str | None
    #: The environment for Slurm's commands.
    env: Mapping[str, str]
    #: Why there are no nodes; empty if there are some.
    lacking: str


def _slurms_nodes(config_file: Path | None) -> _SlurmsNodes:
    """Read what the configuration says of Slurm's nodes. Raises ConfigError if it cannot be read
    and `config_file` is given."""
    file = config_file or paths.SYSTEM_CONFIG
    try:
        # The system's: only root's daemon has Slurm's nodes.
        config = load(file) if config_file else load_if_there(file)
    except ConfigError as error:
        if config_file is not None:
            raise
        return _SlurmsNodes([], None, os.environ, f"the nodes are not compared: {error}")
    nodes = [
        GivenOut(
            name=node.name,
            cores=node.capacity.cores_milli // 1000,
            memory_bytes=node.capacity.memory_bytes,
            gres=node.capacity.gres,
            partition=config.launcher.slurm.partition,
        )
        for node in config.nodes
        if not node.is_local
    ]
    named = {} if config.launcher.slurm.conf is None else {"SLURM_CONF": config.launcher.slurm.conf}
    env = {**named, **os.environ}
    if nodes:
        return _SlurmsNodes(nodes, config.launcher.slurm.user, env, "")
    why = "has none of Slurm's" if file.exists() else "is not there"
    return _SlurmsNodes([], None, env, f"no nodes are compared: {file} {why} (or give --config)")


def print_metrics(options: argparse.Namespace) -> None:
    """Print a shipped file, or the metrics of the running daemon. Raises Unavailable if there is no
    daemon, and Refused if it counts nothing."""
    if options.file is not None:
        print(shipped_file(options.file), end="")
        return
    from drfd.client.connection import choose

    named = None if options.socket is None else str(options.socket)
    print(choose(named, start=None).request("metrics")["text"], end="")


def print_schema(options: argparse.Namespace) -> None:
    is_config = options.name == "config"
    found = config_schema() if is_config else reply_schema(options.name)
    print(json.dumps(found, indent=2))


def compact_journal(options: argparse.Namespace) -> str:
    """Shorten the journal of a daemon that does not run, and return a line about that. Raises
    HostError if it runs, or there is no journal."""
    state = paths.SYSTEM_STATE if os.getuid() == 0 else paths.user_state(os.environ)
    # With a given launcher no directory is made for one. Only the controller's lock is needed.
    places = spawn.Places((options.state or state).absolute(), given_launcher=Path("/nonexistent"))
    try:
        places.journal.stat()
    except FileNotFoundError:
        raise HostError("journal", f"there is no journal {places.journal}") from None
    except OSError as error:
        raise HostError(
            "journal",
            f"cannot reach the journal {places.journal}: {error.strerror}",
            hint="run this as the user who started that daemon, or as root",
        ) from None
    lock = spawn.prepare(places)
    try:
        # Opening it refuses a broken journal.
        Journal(places.journal).close()
        before, after = compact(places.journal)
    finally:
        os.close(lock)
    return f"{places.journal}: {show_size(before)} before, {show_size(after)} now"


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
    known, wanted = (
        {each.name: each.devices for each in config.countables if each.devices}
        for config in (before, now)
    )
    for name in sorted({*known, *wanted}):
        if known.get(name) != wanted.get(name):
            yield (
                f"gres.{name}.devices has changed: that takes a restart of drfd; until then "
                f"{'they are' if name in known else 'none is'} given out"
                f"{' as before' if name in known else ''}"
            )
    yield from late_node_changes((before.nodes, old.slurm), (now.nodes, new.slurm))


def install_context(uid: int, *, is_system: bool, is_service: bool) -> InstallContext:
    try:
        lingers = _LINGER.joinpath(pwd.getpwuid(uid).pw_name).exists()
    except KeyError:
        lingers = False
    return InstallContext(
        uid=uid,
        is_systems=is_system,
        is_service=is_service,
        has_systemd=service.has_systemd(),
        lingers=lingers,
    )


def _read_config(path: Path, *, must_exist: bool) -> Config:
    return load(path) if must_exist else load_if_there(path)


def _usual_config(is_system: bool) -> Path:
    is_roots = is_system or os.getuid() == 0
    return paths.SYSTEM_CONFIG if is_roots else paths.user_config(os.environ)


def _usual_socket(options: argparse.Namespace, is_system: bool) -> Path:
    if options.state is not None and options.launcher is None:
        return Path(options.state) / "drfd.sock"
    return paths.SYSTEM_SOCKET if is_system else paths.user_socket(os.environ)


#: TimeoutStopSec of drfd-jobs.service.
_STOP_S = 30

_PARTLY = "interrupted: what is printed above is done, and the same command does the rest"
_INTERRUPTED = {"install": _PARTLY, "uninstall": _PARTLY}


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    try:
        _COMMANDS[options.command](options)
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
    serve.add_argument("--failpoints", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    serve.add_argument(
        "--as-root",
        action="store_true",
        help="let the controller run as root where there is no user drfd for it to become",
    )

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

    disks = commands.add_parser(
        "calibrate",
        help="measure how fast the disks are, best while they are idle, "
        "and print the lines for the configuration",
    )
    disks.add_argument("--config", type=Path, help="configuration file")
    disks.add_argument(
        "--disk", action="append", default=[], metavar="NAME", help="only this one of the file"
    )
    disks.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="DIR",
        help="the disk of this directory, which need not be in the file",
    )
    disks.add_argument("--json", action="store_true", help="print JSON for programs")

    gpus = commands.add_parser(
        "gpus",
        help="list the GPUs of this machine with their device nodes, "
        "and print the lines for the configuration",
    )
    gpus.add_argument("--json", action="store_true", help="print JSON for programs")

    slurm = commands.add_parser(
        "slurm-conf",
        help="print the configuration of a Slurm that starts jobs for drfd, "
        "or compare that of one which runs",
    )
    either = slurm.add_mutually_exclusive_group()
    either.add_argument(
        "file", nargs="?", choices=NAMES, help="print only this file, as it is to be stored"
    )
    either.add_argument(
        "--check",
        action="store_true",
        help="instead, print each setting and node of the running Slurm that differs, and why it "
        "matters",
    )
    slurm.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"drfd's configuration, whose nodes --check compares (default {paths.SYSTEM_CONFIG})",
    )
    slurm.add_argument(
        "--dir",
        type=Path,
        default=Path("/etc/slurm"),
        help="directory of slurm.conf (default /etc/slurm)",
    )
    slurm.add_argument(
        "--socket",
        type=Path,
        default=paths.SYSTEM_SLURM_SOCKET,
        metavar="PATH",
        help=f"socket that drfd hears of jobs at (default {paths.SYSTEM_SLURM_SOCKET})",
    )
    slurm.add_argument(
        "--starts",
        type=Path,
        default=paths.SYSTEM_SLURM_STARTS,
        metavar="DIR",
        help="directory in which Slurm notes which jobs it has started "
        f"(default {paths.SYSTEM_SLURM_STARTS})",
    )

    metrics = commands.add_parser(
        "metrics", help="print the metrics of the running daemon once, or files for monitoring"
    )
    metrics.add_argument(
        "file",
        nargs="?",
        choices=sorted(METRICS_FILES),
        help="print this file instead: rules for Prometheus, or a dashboard for Grafana",
    )
    metrics.add_argument("--socket", type=Path, metavar="PATH", help="the daemon's socket")

    schema = commands.add_parser(
        "schema", help="print a JSON schema, of the configuration or of the reply to a verb"
    )
    schema.add_argument("name", choices=["config", *sorted(REQUESTS)], metavar="config|VERB")

    shorten = commands.add_parser(
        "compact", help="make the journal of a stopped daemon as short as it can be"
    )
    shorten.add_argument("--state", type=Path, metavar="DIR", help="state directory")

    check = commands.add_parser("check-config", help="say whether a configuration file is good")
    check.add_argument("file", type=Path)
    return parser.parse_args(argv)


def _check_config(options: argparse.Namespace) -> None:
    config = load(options.file)
    print(f"{options.file} is good")
    warnings = user_warnings(config.pools, config.members, _DIRECTORY_S)
    warnings += device_warnings(config.countables)
    warnings += metrics_warnings(config.metrics)
    warnings += _unit_warnings(config)
    # A file for another machine may ask for more than this one has.
    with suppress(DrfdError):
        numbers = _gpu_numbers(paths.SYSTEM_STATE / "controller")
        warnings += survey(config, read_machine(), paths.SYSTEM_STATE, numbers).warnings
    for text in warnings:
        print(f"drfd: warning: {text}", file=sys.stderr)
    now_s = time.time()
    axes = Axes(
        gres=tuple(sorted({*(each.name for each in config.countables), *node_gres(config.nodes)})),
        disks=tuple(disk.name for disk in config.disks or ()),
        shared=shared_memory(config.countables),
    )
    hours = expand_hours(pools_and_users(config.pools, config.members), axes, now_s)
    for path, steps in sorted(hours.steps.items()):
        print(steps.text(path, now_s, clock_time))


def _unit_warnings(config: Config) -> list[str]:
    """Return what the units of systemd/ keep from being as this configuration says."""
    found = []
    if config.grace_s > _STOP_S:
        found.append(
            f"enforcement.grace: at a shutdown of the machine jobs have {_STOP_S} s, unless "
            "systemctl edit drfd-jobs has set another TimeoutStopSec"
        )
    if not config.launcher.use_cgroups:
        found.append(
            "enforcement.cgroups: under systemd half of the machine's memory is for all jobs "
            "together, unless systemctl edit drfd-launcher has set MemoryMax and TasksMax to "
            "infinity"
        )
    return found


def _install(options: argparse.Namespace) -> None:
    from drfd.install import command

    target = command.Target(options.root.absolute(), options.dry_run)
    # The configuration is checked first: with a wrong one the services would not start.
    config = load_if_there(target.at(command.CONFIG))
    command.install(target, options.prefix)
    for text in _unit_warnings(config):
        _say(f"warning: {text}")


def _uninstall(options: argparse.Namespace) -> None:
    from drfd.install import command

    target = command.Target(options.root.absolute(), options.dry_run)
    try:
        grace_s = load(target.at(command.CONFIG)).grace_s
    except ConfigError:
        # A wrong or missing configuration must not prevent the removal.
        grace_s = Config().grace_s
    command.uninstall(target, kill_jobs=options.kill_jobs, purge=options.purge, grace_s=grace_s)


_COMMANDS = {
    "serve": serve,
    "calibrate": calibrate,
    "check-config": _check_config,
    "gpus": list_gpus,
    "slurm-conf": slurm_conf,
    "metrics": print_metrics,
    "schema": print_schema,
    "compact": lambda options: print(compact_journal(options)),
    "install": _install,
    "uninstall": _uninstall,
}
