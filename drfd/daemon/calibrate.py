"""`drfd calibrate`: how fast the disks are, as lines for the configuration."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

from drfd.daemon.config import Config, DiskConfig
from drfd.errors import Refused
from drfd.host.disks import Location, locate
from drfd.host.speed import Speed, measure
from drfd.units import exact_size


def calibrate(options: argparse.Namespace, config: Config, config_file: Path, state: Path) -> None:
    """`state`: the directory whose disk is managed when the configuration names none."""
    found = []
    try:
        for disk in _wanted(options, config, state):
            directory = _directory(disk, is_state=disk.path == str(state))
            location = locate(str(directory))
            _say(f"measuring disk {disk.name} in {directory}; this takes a few seconds")
            speed = measure(directory)
            _tell_doubts(disk, location, speed)
            found.append((disk, location, speed))
    except KeyboardInterrupt:
        _say("stopped; nothing is left behind")
        sys.exit(128 + signal.SIGINT)
    if options.json:
        print(json.dumps({"disks": [_view(*each) for each in found]}))
        return
    for disk, _, speed in found:
        print(_lines(disk, speed))
    _say(f"with these in place of the [[disk]] lines of {config_file}, drf reload takes them up")


def _wanted(options: argparse.Namespace, config: Config, state: Path) -> list[DiskConfig]:
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
    """A name for the disk of a path that the configuration does not know."""
    return re.sub(r"[^\w.-]", "-", path.name, flags=re.ASCII) or "root"


def _directory(disk: DiskConfig, *, is_state: bool) -> Path:
    """The path, or the directory of a file. A state directory may have to be made yet."""
    path = Path(disk.path)
    if not is_state and not path.exists():
        raise Refused(
            "no-such-path", f"disk {disk.name}: there is no {path}", hint="is it mounted?"
        )
    return next(each for each in (path, *path.parents) if each.is_dir())


def _tell_doubts(disk: DiskConfig, location: Location, speed: Speed) -> None:
    if location.why_none:
        _say(f"disk {disk.name} takes no limits: {location.why_none}")
    if not speed.is_direct:
        _say(f"{disk.path} knows no direct I/O: the page cache may make it look faster than it is")


def _lines(disk: DiskConfig, speed: Speed) -> str:
    read, write = exact_size(_round(speed.read_bps)), exact_size(_round(speed.write_bps))
    return "\n".join(
        (
            "[[disk]]",
            f"name = {json.dumps(disk.name)}",
            f"path = {json.dumps(disk.path, ensure_ascii=False)}",
            f'read = "{read}"',
            f'write = "{write}"',
        )
    )


def _round(rate_bps: int) -> int:
    """Down, to what a person would write."""
    step = 1 << 20 if rate_bps >= 1 << 20 else 1 << 10
    return max(step, rate_bps // step * step)


def _view(disk: DiskConfig, location: Location, speed: Speed) -> dict[str, Any]:
    return {
        "name": disk.name,
        "path": disk.path,
        "read": _round(speed.read_bps),
        "write": _round(speed.write_bps),
        "direct": speed.is_direct,
        "device": " ".join(location.devices) or None,
        "filesystem": location.filesystem,
    }


def _say(text: str) -> None:
    """Talk, which is no part of what is to be copied."""
    print(f"drfd: {text}", file=sys.stderr, flush=True)
