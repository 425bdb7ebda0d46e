"""Which cgroup controllers are mounted, and where.

Only mountinfo tells: by the type of the file system, not by where it is usually mounted. Of version
2, only those controllers are of use that version 1 does not have (hybrid machines).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator


def layout(mountinfo: str) -> str:
    """ "unified" (version 2 alone), "legacy" (version 1 alone), "hybrid", or "none"."""
    kinds = {kind for kind, _, _ in _mounts(mountinfo)}
    if kinds == {"cgroup", "cgroup2"}:
        return "hybrid"
    return {"cgroup": "legacy", "cgroup2": "unified"}[kinds.pop()] if kinds else "none"


def find_mounts(mountinfo: str, wanted: Collection[str]) -> dict[str, str]:
    """controller → mount point of the `wanted` ones on v1 hierarchies (proc_pid_mountinfo(5))."""
    return {
        controller: place
        for kind, place, options in _mounts(mountinfo)
        if kind == "cgroup"
        for controller in options
        if controller in wanted
    }


def find_unified(mountinfo: str) -> str | None:
    """The mount point of the v2 hierarchy. Others, such as a container runtime's, come later."""
    places = [place for kind, place, _ in _mounts(mountinfo) if kind == "cgroup2"]
    return places[0] if places else None


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, list[str]]]:
    """(file system, mount point, options of the hierarchy) of each cgroup mount."""
    # Users mount, too, and their directories may be called anything but for what is escaped.
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        places, kinds = before.split(" "), after.split(" ", 2)
        # What is not in the form that is known is none of ours.
        if len(places) > 4 and len(kinds) == 3 and kinds[0] in ("cgroup", "cgroup2"):
            yield kinds[0], _unescape(places[4]), kinds[2].split(",")


def _unescape(path: str) -> str:
    """Blanks and the like are written as \\040 in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)
