"""Which disk a path is on, and where on that disk the kernel takes limits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: Assumed until the administrator says or measures better: a slow disk, so that nobody is promised
#: what the disk cannot give.
GUESS_READ_BPS, GUESS_WRITE_BPS = 200 << 20, 200 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A managed disk. `device` is "major:minor" of the whole disk, None where there is none."""

    name: str
    path: str
    read_bps: int
    write_bps: int
    device: str | None
    is_guess: bool = False
    #: Why `device` is None, for people.
    why_none: str = ""


def find_device(path: str, sys_dev_block: str = "/sys/dev/block") -> tuple[str | None, str]:
    """("major:minor" of the whole disk that holds `path`, or None; why None).

    A limit on a partition is refused by the kernel, so a partition is traced to its disk.
    """
    try:
        number = os.stat(path).st_dev
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    major, minor = os.major(number), os.minor(number)
    if major == 0:
        return None, f"{path} is on no block device of its own (overlay, btrfs, network or memory)"
    entry = Path(sys_dev_block, f"{major}:{minor}")
    if not entry.exists():
        return None, f"{path} is on device {major}:{minor}, which the kernel does not list"
    real = entry.resolve()
    if (real / "partition").exists():
        real = real.parent
    return (real / "dev").read_text().strip(), ""
