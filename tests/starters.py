"""Both ways to begin a job's process, for tests: by the compiled program, and by Python."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from drfd.launcher.runner.starter.sources import PROGRAM, NotCompiled, compile_starter

WAYS = COMPILED, FORKED = "compiled", "forked"
#: Names the program that a launcher with failpoints uses; empty for none.
VARIABLE = "DRFD_TESTED_STARTER"


def compiled_starter() -> Path | None:
    """The program, compiled once in this run, or without a compiler the one that was installed;
    None where there is neither (`why_not_compiled`)."""
    return _compiled()[0]


def why_not_compiled() -> str:
    return _compiled()[1]


@functools.cache
def _compiled() -> tuple[Path | None, str]:
    place = tempfile.mkdtemp(prefix="drfd-starter-")
    atexit.register(_remove, place, os.getpid())
    program = Path(place, "drfd-starter")
    try:
        compile_starter(program)
    except NotCompiled as error:
        return (PROGRAM, "") if PROGRAM.exists() else (None, str(error))
    return program, ""


def _remove(place: str, owner: int) -> None:
    """Not in a process that a test has forked."""
    if os.getpid() == owner:
        shutil.rmtree(place, ignore_errors=True)
