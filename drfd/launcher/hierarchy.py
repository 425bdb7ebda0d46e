"""Which cgroup controllers are mounted, and where."""

from __future__ import annotations

import re
from collections.abc import Collection


def find_mounts(mountinfo: str, wanted: Collection[str]) -> dict[str, str]:
    """controller → mount point of the `wanted` ones on v1 hierarchies (proc_pid_mountinfo(5))."""
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup":
            for controller in options.split(","):
                if controller in wanted:
                    found[controller] = _unescape(before.split(" ")[4])
    return found


def _unescape(path: str) -> str:
    """Blanks and the like are written as \\040 in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)
