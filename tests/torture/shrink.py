"""Less that goes wrong in the same way: the steps of a run, without those that do not matter."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from torture.claims import Broken
from torture.life import run
from torture.script import Step
from torture.world import Trace, World


def attempt(seed: int, steps: list[Step], trace: Trace | None = None) -> World | Exception:
    """The world at its end, or what went wrong."""
    with TemporaryDirectory(prefix="drfd-torture-", dir=_memory()) as directory:
        try:
            return run(seed, steps, Path(directory), trace)
        except Exception as failure:
            return failure


def shrink(seed: int, steps: list[Step], failure: Exception) -> list[Step]:
    """Leave out halves, quarters, … single steps, as long as the same goes wrong."""
    size = max(1, len(steps) // 2)
    while True:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            found = attempt(seed, fewer)
            if isinstance(found, Exception) and kind_of(found) == kind_of(failure):
                steps = fewer
            else:
                at += size
        if size == 1:
            return steps
        size //= 2


def kind_of(failure: Exception) -> str:
    """What two runs share that have found the same."""
    if isinstance(failure, Broken):
        return failure.what
    at = failure.__traceback__
    assert at is not None
    while at.tb_next is not None:
        at = at.tb_next
    return f"{type(failure).__name__} in {at.tb_frame.f_code.co_qualname}"


def _memory() -> str | None:
    """A disk would only be in the way."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
