"""What `drfd gpus` prints: a table of the machine's GPUs, and lines for the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from drfd.devices.displays import Display
from drfd.devices.gpus import Gpu, automatic
from drfd.linux.device_nodes import show_node

_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
_LEFT_OUT = "part of the processor: not taken by auto"


def table(gpus: Sequence[Gpu]) -> str:
    """Return one line for each GPU below a line of titles. Columns that would be empty are left
    out."""
    titles = ("GPU", "VENDOR", "MODEL", "UUID", "PCI ADDRESS", "NUMA", "NODES", "LINKS", "NOTE")
    rows = [titles, *(_cells(gpu) for gpu in gpus)]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    )


def _cells(gpu: Gpu) -> tuple[str, ...]:
    nodes = sorted((node.major, node.minor) for node in gpu.nodes)
    return (
        gpu.name,
        _NAMES[gpu.vendor],
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


def configuration(gpus: Sequence[Gpu]) -> str:
    """Return the lines that give out the GPUs which can be used and are not integrated, or nothing
    if there are none."""
    names = [int(gpu.name) if gpu.name.isdigit() else gpu.name for gpu in automatic(gpus)]
    return f'\n[gres]\ngpu = "auto"              # now: gpu = {json.dumps(names)}' if names else ""


def notes(displays: Sequence[Display]) -> Iterator[str]:
    """Yield a sentence about each graphics device that is no GPU for jobs as it is now."""
    for display in displays:
        driver = f"the driver {display.driver}" if display.driver else "no driver"
        yield (
            f"the graphics device of {_NAMES[display.vendor]} at {display.pci} has {driver}; "
            f"jobs could use it with the driver {display.wanted}"
        )


def view(gpu: Gpu) -> dict[str, object]:
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
