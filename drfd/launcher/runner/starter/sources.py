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
import sys
import tempfile
from importlib import util
from pathlib import Path

HERE = Path(__file__).parent
#: The compiled program.
PROGRAM = HERE / "drfd-starter"
SOURCES = (
    *("starter.c", "calls.h", "texts.h", "plan.h", "record.h", "root.h", "user.h"),
    *("script.h", "wait.h", "start.h"),
)
#: Architectures whose system calls calls.h knows, by the number in a program's header (elf(5)).
MACHINES = {62: "x86_64", 183: "aarch64"}
#: A program without a C library: see calls.h.
FLAGS = (
    *("-std=gnu11", "-O2", "-static", "-nostdlib", "-ffreestanding", "-s"),
    # Both need what the C library sets up.
    *("-fno-stack-protector", "-fno-pie", "-no-pie"),
    *("-Wl,-z,noexecstack", "-Wl,--build-id=none"),
)
#: The package of PyPI that has a C compiler, for machines without one.
ZIG = "ziglang"


class NotCompiled(Exception):
    """The program cannot be compiled; the text says why."""


def fingerprint(directory: Path = HERE) -> str:
    """Return what a program compiled from these sources says of itself. Raises OSError."""
    found = hashlib.sha256()
    for name in SOURCES:
        found.update((directory / name).read_bytes())
    return found.hexdigest()


def machine_of(program: Path) -> str:
    """Return the architecture that a compiled program is for: $CC may be a cross compiler."""
    return MACHINES[int.from_bytes(program.read_bytes()[18:20], "little")]


def compile_starter(
    target: Path, *, flags: tuple[str, ...] = FLAGS, directory: Path = HERE
) -> None:
    """Compile the program with $CC or cc, or else with the compiler of ZIG. Raises NotCompiled."""
    if os.uname().machine not in MACHINES.values():
        raise NotCompiled(f"the program that starts jobs is not written for {os.uname().machine}")
    try:
        compiler = shlex.split(os.environ.get("CC") or "cc")
        if shutil.which(compiler[0]) is None:
            raise NotCompiled(f"there is no C compiler: {compiler[0]}")
        # One page less to be read in.
        _compile(target, [*compiler, "-Wl,-z,noseparate-code"], flags, directory)
    except NotCompiled:
        zig = util.find_spec(ZIG)
        if zig is None or zig.origin is None:
            raise
        _compile(target, [sys.executable, "-m", ZIG, "cc", *_headers(zig.origin)], flags, directory)


def _headers(zig: str) -> list[str]:
    """Name ZIG's own headers, which it leaves out without a C library; a machine may have none."""
    machine = os.uname().machine
    kernel = machine.partition("_")[0]  # x86 has one directory for 32 and 64 bits
    headers = Path(zig).parent / "lib/libc/include"
    names = (f"{machine}-linux-musl", "generic-musl", f"{kernel}-linux-any", "any-linux-any")
    found = [f"-isystem{headers / name}" for name in names]
    return ["-target", f"{machine}-linux-musl", *found]


def _compile(target: Path, compiler: list[str], flags: tuple[str, ...], directory: Path) -> None:
    define = f'-DSOURCES="{fingerprint(directory)}"'
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            made = Path(place, target.name)
            command = [*compiler, *flags, define, "-o", str(made), str(directory / "starter.c")]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                lines = ended.stderr.strip().splitlines() or ["no reason given"]
                text = f"{compiler[0]} cannot compile the program that starts jobs: {lines[0]}"
                raise NotCompiled(text)
            made.chmod(0o755)
            # In one step: a launcher that is running keeps the file that it has opened.
            made.replace(target)
    except OSError as error:
        text = f"the program that starts jobs cannot be compiled: {error}"
        raise NotCompiled(text) from error
