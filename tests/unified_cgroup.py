"""An empty cgroup of version 2, for tests that begin processes in one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drfd.launcher.confinement.cgroup_files import find_unified
from drfd.linux import syscalls

_UNIFIED = find_unified(Path("/proc/self/mountinfo").read_text())


@contextmanager
def empty_cgroup(purpose: str) -> Iterator[Path]:
    """Make a cgroup, which needs no controllers, and which the test may remove. The test skips
    where no process can be forked into one. `purpose` becomes a part of its name."""
    if _UNIFIED is None:
        pytest.skip("no cgroup v2 is mounted here")
    if (why := syscalls.why_no_fork_into()) is not None:
        pytest.skip(why)
    made = Path(_UNIFIED, f"drfd-test-{purpose}-{os.getpid()}")
    made.mkdir()
    try:
        yield made
    finally:
        if made.exists():
            made.rmdir()
