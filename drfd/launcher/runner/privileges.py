"""Capabilities that a runner gives up at its start.

When its job has run for a while, the runner becomes a program that gives up all but the right to
kill (`waiting.py`). The bounding set is never reduced, so set-user-id programs work in jobs.
"""

from __future__ import annotations

import os

from drfd.linux import syscalls
from drfd.linux.syscalls import Capabilities

#: Numbers of capabilities(7).
DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SETGID, SETUID = 1, 2, 5, 6, 7
SYS_ADMIN, SYS_RESOURCE, AUDIT_CONTROL = 21, 24, 30


def needed(*, enters_spaces: bool, serves_root: bool) -> int:
    """Return the capabilities of a runner at its start, as bits. `enters_spaces` is set if jobs
    have a /tmp of their own, and `serves_root` if root's own jobs run here, whose directories and
    output files may belong to any user."""
    found = [KILL, SETGID, SETUID, SYS_RESOURCE, AUDIT_CONTROL]
    found += [SYS_ADMIN] * enters_spaces + [DAC_OVERRIDE, DAC_READ_SEARCH] * serves_root
    return sum(1 << number for number in found)


def limit_capabilities(bits: int) -> None:
    """Give up all capabilities but these, for good. None is added that the process lacks."""
    if os.getuid() != 0:
        return
    try:
        kept = syscalls.capabilities().permitted & bits
        syscalls.set_capabilities(Capabilities(kept, kept, 0))
    except OSError:
        # The numbers of this machine's system calls are unknown.
        return
