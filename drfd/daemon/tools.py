"""The commands of `drfd` that do not run the daemon: they measure, check, print or install."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from drfd.common import paths
from drfd.common.errors import ConfigError, DrfdError, HostError, Refused
from drfd.common.units import clock_time, exact_size
from drfd.core.fairness.rules import pools_and_users
from drfd.core.model.resources import Axes
from drfd.daemon import spawn
from drfd.daemon.calendar import expand
from drfd.daemon.cluster import node_gres
from drfd.daemon.config import Config, DiskConfig, load, load_if_there, survey
from drfd.daemon.countable import device_warnings, shared_memory
from drfd.daemon.explanation import doubts, explain
from drfd.daemon.first_config import initial_config
from drfd.daemon.metrics.publication import metrics_warnings
from drfd.devices.gpus import PLACES, Gpu, automatic, find_gpus
from drfd.host.disks import Location, Speed, locate, measure, name_for
from drfd.host.measurements import read_machine
from drfd.linux.device_nodes import show_node
from drfd.slurm.files import Layout, files


def calibrate(options: argparse.Namespace) -> None:
    """Measure the disks that are named, or those that a daemon would manage with these options, and
    print the results as lines for the configuration."""
    is_system = os.getuid() == 0
    config_file = options.config or spawn.usual_config(is_system)
    config = spawn.read_config(config_file, must_exist=options.config is not None)
    state = paths.SYSTEM_STATE if is_system else paths.user_state(os.environ)
    found = []
    try:
        for disk in _disks_to_measure(options, config, state):
            directory = _directory(disk, is_state=disk.path == str(state))
            location = locate(str(directory))
            _say(f"measuring disk {disk.name} in {directory}; this takes a few seconds")
            speed = measure(directory)
            _warn_of_doubts(disk, location, speed)
            found.append((disk, speed))
    except KeyboardInterrupt:
        _say("stopped; nothing is left behind")
        sys.exit(128 + signal.SIGINT)
    for disk, speed in found:
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
    named += [DiskConfig(name=name_for(path), path=str(path)) for path in paths]
    return named or list(known)


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


def _say(text: str) -> None:
    """Print to standard error, because standard output is to be copied."""
    print(f"drfd: {text}", file=sys.stderr, flush=True)


def list_gpus(options: argparse.Namespace) -> None:
    """Print the GPUs of this machine, and the lines of the configuration that give them out. Raises
    Refused if there is none, unless JSON is asked for."""
    gpus = find_gpus()
    if options.json:
        print(json.dumps({"gpus": [_gpu_view(gpu) for gpu in gpus]}))
        return
    if not gpus:
        raise Refused("no-gpu", "no GPU found", hint=f"looked at {', '.join(PLACES)}")
    print(_gpu_table(gpus))
    lines = _gpu_lines(gpus)
    if lines:
        print(lines)
    else:
        _say('none of them is for gpu = "auto"; those without a fault may be listed by number')


def slurm_conf(options: argparse.Namespace) -> None:
    """Print a file of the configuration that Slurm needs."""
    places = (options.dir, options.socket, options.starts)
    layout = Layout(*(place.absolute() for place in places))
    print(files(layout)[options.file], end="")


def print_metrics(options: argparse.Namespace) -> None:
    """Print the metrics of the running daemon. Raises Unavailable if there is no daemon, and
    Refused if it counts nothing."""
    from drfd.client.connection import choose

    named = None if options.socket is None else str(options.socket)
    print(choose(named, start=None).request("metrics")["text"], end="")


#: TimeoutStopSec of drfd-jobs.service.
STOP_S = 30


def init(options: argparse.Namespace) -> None:
    """Write a configuration file with what this machine has. Raises Refused if it is there, and
    HostError."""
    is_system = os.getuid() == 0
    path: Path = options.file or spawn.usual_config(is_system)
    state = paths.SYSTEM_STATE if is_system else paths.user_state(os.environ)
    text = initial_config(read_machine(), state, find_gpus())
    # The controller, which is another user, reads it.
    os.umask(0o022)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A path may contain bytes that are not UTF-8.
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except FileExistsError:
        hint = f"drfd init FILE writes another one; drfd check-config {path} explains this one"
        raise Refused("exists", f"{path} is there already", hint=hint) from None
    except OSError as error:
        raise HostError("init", f"cannot write {path}: {error.strerror}") from None
    print(f"{path} is written: read it, then drfd check-config {path}")


def check_config(options: argparse.Namespace) -> None:
    config = load(options.file)
    print(f"{options.file} is good")
    warnings = [*device_warnings(config.countables)]
    warnings += metrics_warnings(config.metrics)
    warnings += _unit_warnings(config)
    warnings += doubts(config)
    now_s = time.time()
    axes = Axes(
        gres=tuple(sorted({*(each.name for each in config.countables), *node_gres(config.nodes)})),
        disks=tuple(disk.name for disk in config.disks or ()),
        shared=shared_memory(config.countables),
    )
    nodes = pools_and_users(config.pools, config.members)
    calendar = expand(config.windows, nodes, axes, now_s)
    # A file for another machine may ask for more than this one has.
    with suppress(DrfdError):
        site = survey(config, read_machine(), paths.SYSTEM_STATE)
        warnings += site.warnings
        for text in explain(site, calendar):
            print(text)
    for text in warnings:
        print(f"drfd: warning: {text}", file=sys.stderr)
    for path, steps in sorted(calendar.steps.items()):
        print(steps.text(path, now_s, clock_time))


def _unit_warnings(config: Config) -> list[str]:
    """Return what the units of systemd/ keep from being as this configuration says."""
    found = []
    if config.grace_s > STOP_S:
        found.append(
            f"enforcement.grace: at a shutdown of the machine jobs have {STOP_S} s, unless "
            "systemctl edit drfd-jobs has set another TimeoutStopSec"
        )
    if not config.launcher.use_cgroups:
        found.append(
            "enforcement.cgroups: under systemd half of the machine's memory is for all jobs "
            "together, unless systemctl edit drfd-launcher has set MemoryMax and TasksMax to "
            "infinity"
        )
    return found


def install(options: argparse.Namespace) -> None:
    from drfd.install import command

    target = command.Target(options.root.absolute(), options.dry_run)
    # The configuration is checked first: with a wrong one the services would not start.
    config = load_if_there(target.at(command.CONFIG))
    command.install(target, options.prefix)
    for text in _unit_warnings(config):
        _say(f"warning: {text}")


def uninstall(options: argparse.Namespace) -> None:
    from drfd.install import command

    target = command.Target(options.root.absolute(), options.dry_run)
    try:
        grace_s = load(target.at(command.CONFIG)).grace_s
    except ConfigError:
        # A wrong or missing configuration must not prevent the removal.
        grace_s = Config().grace_s
    command.uninstall(target, kill_jobs=options.kill_jobs, purge=options.purge, grace_s=grace_s)


_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD"}
_LEFT_OUT = "part of the processor: not taken by auto"


def _gpu_table(gpus: Sequence[Gpu]) -> str:
    """Return one line for each GPU below a line of titles. Columns that would be empty are left
    out."""
    titles = ("GPU", "VENDOR", "MODEL", "UUID", "PCI ADDRESS", "NUMA", "NODES", "LINKS", "NOTE")
    rows = [titles, *(_gpu_cells(gpu) for gpu in gpus)]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    )


def _gpu_cells(gpu: Gpu) -> tuple[str, ...]:
    nodes = sorted((node.major, node.minor) for node in gpu.nodes)
    return (
        gpu.name,
        _VENDORS[gpu.vendor],
        gpu.model,
        gpu.uuid or "",
        gpu.pci,
        "" if gpu.numa_node is None else str(gpu.numa_node),
        " ".join(f"{major}:{minor}" for major, minor in nodes),
        ",".join(sorted(gpu.links, key=_by_number)),
        gpu.fault or (_LEFT_OUT if gpu.is_integrated else ""),
    )


def _by_number(name: str) -> tuple[int, str]:
    number, _, rest = name.partition(":")
    return int(number), rest


def _gpu_lines(gpus: Sequence[Gpu]) -> str:
    """Return the lines that give out the GPUs which can be used and are not integrated, or nothing
    if there are none."""
    names = [int(gpu.name) if gpu.name.isdigit() else gpu.name for gpu in automatic(gpus)]
    return f'\n[gres]\ngpu = "auto"              # now: gpu = {json.dumps(names)}' if names else ""


def _gpu_view(gpu: Gpu) -> dict[str, object]:
    """Return the GPU as JSON for programs."""
    return {
        "name": gpu.name,
        "vendor": gpu.vendor,
        "model": gpu.model,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "numa_node": gpu.numa_node,
        "nodes": [show_node(node) for node in sorted(gpu.nodes)],
        "links": sorted(gpu.links, key=_by_number),
        "integrated": gpu.is_integrated,
        "fault": gpu.fault or None,
    }
