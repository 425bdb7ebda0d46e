"""The configuration file that `drfd init` writes: this machine's facts, and examples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from drfd.common.units import show_size
from drfd.devices.gpus import Gpu
from drfd.host.disks import GUESS_READ_BPS, GUESS_WRITE_BPS, known_disks
from drfd.host.measurements import Machine, default_reserve

#: The column of comments.
_COLUMN = 28
_HEAD = """\
# The configuration of drfd, written by drfd init. Each key is explained in drfd.toml(5).
# drfd check-config explains what this file means; drf reload applies a change of it.
# A line that begins with # and a letter or a bracket can be uncommented.
"""
_DISKS = """\
# Disks. A job that declares rates (--io) is limited to them, and their sum to these. The rates are
# a GUESS: run drfd calibrate while the disks are idle, and put in the lines that it prints.
# Without a [[disk]], drfd has only the first of these.
"""
_DEFAULTS = """\
[defaults]                  # what a job gets that does not say what it needs
#cores = 1
#memory = "2G"
#time = "24h"               # or "unlimited"
"""
_POOLS = """\
# Pools divide the machine among groups of users, by weight, while they have jobs. A user in no pool
# counts as a pool of weight 1. Three examples:
"""


def initial_config(machine: Machine, state: Path, gpus: Sequence[Gpu]) -> str:
    """Return the text for a machine, on which drfd keeps its state in a directory. As it is
    written, it says what drfd does without a configuration."""
    cores, memory_mib = machine.cores_milli // 1000, machine.memory_bytes >> 20
    reserve_mib = default_reserve(machine.memory_bytes) >> 20
    capacity = [
        "[capacity]",
        _line(f"#cores = {cores}", "what this machine has; fewer leave the rest to others"),
        _line(f'#memory = "{memory_mib}M"', "what this machine has; reserve_memory comes off"),
        _line(f'reserve_memory = "{reserve_mib}M"', "kept for the system"),
    ]
    parts = [
        _HEAD,
        "\n".join(capacity) + "\n",
        _DISKS + "".join(_disk_lines(state)),
        "".join(_gpu_lines(gpus)),
        _DEFAULTS,
        _POOLS + _pool_lines(max(1, cores // 2)),
    ]
    return "\n".join(part for part in parts if part)


def _line(text: str, about: str) -> str:
    return f"{text:<{_COLUMN - 1}} # {about}"


def _disk_lines(state: Path) -> Iterator[str]:
    rates = (("read", GUESS_READ_BPS), ("write", GUESS_WRITE_BPS))
    for name, path, location in known_disks(state):
        yield f"#[[disk]]\n#name = {json.dumps(name)}\n"
        about = location.why_none or "any path on the disk"
        yield _line(f"#path = {json.dumps(path, ensure_ascii=False)}", about) + "\n"
        for key, rate_bps in rates:
            yield _line(f'#{key} = "{show_size(rate_bps)}"', "bytes per second: a guess") + "\n"


def _gpu_lines(gpus: Sequence[Gpu]) -> Iterator[str]:
    if gpus:
        yield "# GPUs, each for one job at a time, and hidden from others; drfd gpus lists them.\n"
        yield "#[gres]\n" + _line('#gpu = "auto"', f"this machine has {len(gpus)}") + "\n"


def _pool_lines(half: int) -> str:
    lines = [
        _line("#[pools.staff]", "twice as much as each other pool or user"),
        "#weight = 2",
        '#users = ["alice", "bob"]',
        "",
        _line("#[pools.students]", "together never more than half of the cores"),
        '#users = ["carol", "dave"]',
        f"#limit = {{cores = {half}}}",
        "",
        _line("#[pools.night]", "for each user's jobs with -p night, which start at night only"),
        "#[[pools.night.hours]]",
        '#when = "08:00-20:00"',
        "#limit = {cores = 0}",
    ]
    return "\n".join(lines) + "\n"
