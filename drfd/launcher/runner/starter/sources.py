"""Where the compiled program and its sources are: beside this module.

A program that was compiled from other sources than those beside it is not used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).parent
#: The compiled program.
PROGRAM = HERE / "drfd-starter"
SOURCES = (
    *("starter.c", "calls.h", "texts.h", "layout.py", "record.h", "root.h", "user.h"),
    *("script.h", "wait.h", "start.h", "step.h"),
)


def fingerprint(directory: Path = HERE) -> str:
    """Return what a program compiled from these sources says of itself. Raises OSError."""
    found = hashlib.sha256()
    for name in SOURCES:
        found.update((directory / name).read_bytes())
    return found.hexdigest()
