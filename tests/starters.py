"""The compiled program that begins jobs' processes, for tests."""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from drfd.launcher.runner.starter.compiler import FLAGS, NotCompiled, compile_starter
from drfd.launcher.runner.starter.sources import PROGRAM
from failing import VARIABLE


@functools.cache
def compiled_starter() -> Path:
    """The program with failpoints, of the environment or compiled once; or that installed."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    place = tempfile.mkdtemp(prefix="drfd-starter-")
    atexit.register(_remove, place, os.getpid())
    program = Path(place, "drfd-starter")
    try:
        compile_starter(program, flags=(*FLAGS, "-DFAILPOINTS"))
    except NotCompiled:
        if PROGRAM.exists():
            return PROGRAM
        raise
    return program


def _remove(place: str, owner: int) -> None:
    """Not in a process that a test has forked."""
    if os.getpid() == owner:
        shutil.rmtree(place, ignore_errors=True)
