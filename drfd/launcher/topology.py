"""What the machine's processors are made of, from /sys (kernel: admin-guide/cputopology.rst)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from drfd.launcher.placement import Cpu, Cpus

_SYS = Path("/sys/devices/system")
#: Of a node's meminfo: what is free, and what the kernel can drop at once.
_ROOM = ("MemFree:", "Active(file):", "Inactive(file):")


def usable_cpus() -> Cpus:
    """Those that this process may run on: not isolated ones, nor what its service is denied."""
    return frozenset(os.sched_getaffinity(0))


def read_machine(cpus: Iterable[int], sys: Path = _SYS) -> tuple[Cpu, ...]:
    """Where these CPUs are. What /sys does not tell is taken as one node, and a core each."""
    nodes: dict[int, int] = {}
    for place in sys.glob("node/node[0-9]*"):
        node = int(place.name.removeprefix("node"))
        for number in parse_list(_text(place / "cpulist")):
            # Emulated nodes (numa=fake) each have all CPUs.
            nodes[number] = min(node, nodes.get(number, node))
    found = []
    for number in sorted(cpus):
        siblings = parse_list(_text(sys / f"cpu/cpu{number}/topology/thread_siblings_list"))
        found.append(Cpu(number, nodes.get(number, 0), min(siblings, default=number)))
    return tuple(found)


def room_bytes(node: int, sys: Path = _SYS) -> int:
    """Memory of a node that can be had now."""
    total = 0
    for line in _text(sys / f"node/node{node}/meminfo").splitlines():
        # "Node 0 MemFree:  123456 kB"
        words = line.split()
        if len(words) >= 4 and words[2] in _ROOM:
            total += int(words[3]) * 1024
    return total


def parse_list(text: str) -> Cpus:
    """CPUs or nodes as the kernel lists them: "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
