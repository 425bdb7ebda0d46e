"""The compiled program and its sources: where they are, and how it is compiled.

Used when drfd is built (hatch_build.py) and by tests. It is installed beside this module. A program
that was compiled from other sources than those beside it is not used.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
#: The compiled program.
PROGRAM = HERE / "drfd-starter"
SOURCES = ("starter.c", "calls.h", "texts.h", "plan.h", "root.h", "user.h", "script.h")
#: Architectures whose system calls calls.h knows.
MACHINES = ("x86_64", "aarch64")
#: A program without a C library: see calls.h.
FLAGS = (
    *("-std=gnu11", "-O2", "-static", "-nostdlib", "-nostartfiles", "-ffreestanding"),
    # Both need what the C library sets up.
    *("-fno-stack-protector", "-fno-pie", "-no-pie"),
    # Else the compiler makes memcpy of calls.h a call of memcpy.
    *("-fno-tree-loop-distribute-patterns", "-Wl,-z,noexecstack", "-Wl,--build-id=none"),
    # One page less to be read in.
    "-Wl,-z,noseparate-code",
)


class NotCompiled(Exception):
    """There is no compiled program; the text says why."""


def fingerprint(directory: Path = HERE) -> str:
    """Return what a program compiled from these sources says of itself. Raises OSError."""
    found = hashlib.sha256()
    for name in SOURCES:
        found.update((directory / name).read_bytes())
    return found.hexdigest()


def compile_starter(
    target: Path, *, flags: tuple[str, ...] = FLAGS, directory: Path = HERE
) -> None:
    """Compile the program with $CC or cc. Raises NotCompiled."""
    if os.uname().machine not in MACHINES:
        raise NotCompiled(f"the compiled starter is not written for {os.uname().machine}")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise NotCompiled(f"there is no C compiler: {compiler[0]}")
    define = f'-DSOURCES="{fingerprint(directory)}"'
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            made = Path(place, target.name)
            command = [*compiler, *flags, define, "-o", str(made), str(directory / "starter.c")]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                lines = ended.stderr.strip().splitlines() or ["no reason given"]
                raise NotCompiled(f"{compiler[0]} cannot compile the starter: {lines[0]}")
            made.chmod(0o755)
            # In one step: a launcher that is running keeps the file that it has opened.
            made.replace(target)
    except OSError as error:
        raise NotCompiled(f"the starter cannot be compiled: {error}") from error
