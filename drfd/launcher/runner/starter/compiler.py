"""How the compiled program is made of its sources: by the build (hatch_build.py), and by tests."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import util
from pathlib import Path

from drfd.launcher.runner.starter.layout import header
from drfd.launcher.runner.starter.sources import HERE, fingerprint

#: Architectures whose system calls calls.h knows, by the number in a program's header (elf(5)).
MACHINES = {62: "x86_64", 183: "aarch64"}
#: A program without a C library: see calls.h.
FLAGS = (
    *("-std=gnu11", "-O2", "-nostdlib", "-ffreestanding", "-s"),
    *("-Wl,-z,noexecstack", "-Wl,-z,norelro", "-Wl,--build-id=none"),
)
#: Against a fault in it that a user could make use of: the program is anywhere in memory, and ends
#: when an array overflows. The first that is possible: ZIG has no protector without a C library.
HARDENINGS = (
    ("-fPIE", "-static-pie", "-fstack-protector-strong", "-mstack-protector-guard=global"),
    ("-fPIE", "-static-pie", "-fno-stack-protector"),
    ("-fno-pie", "-static", "-no-pie", "-fno-stack-protector"),
)
#: The package of PyPI that has a C compiler, for machines without one.
ZIG = "ziglang"


class NotCompiled(Exception):
    """The program cannot be compiled; the text says why."""


def machine_of(program: Path) -> str:
    """Return the architecture that a compiled program is for: $CC may be a cross compiler."""
    return MACHINES[int.from_bytes(program.read_bytes()[18:20], "little")]


def compile_starter(
    target: Path,
    *,
    flags: tuple[str, ...] = FLAGS,
    hardenings: tuple[tuple[str, ...], ...] = HARDENINGS,
    directory: Path = HERE,
) -> None:
    """Compile the program with $CC or cc, or else with the compiler of ZIG, and with the first of
    the hardenings that is possible. Raises NotCompiled."""
    if os.uname().machine not in MACHINES.values():
        raise NotCompiled(f"the program that starts jobs is not written for {os.uname().machine}")
    try:
        compiler = shlex.split(os.environ.get("CC") or "cc")
        if shutil.which(compiler[0]) is None:
            raise NotCompiled(f"there is no C compiler: {compiler[0]}")
        # One page less to be read in.
        compiler.append("-Wl,-z,noseparate-code")
        _compile_hardened(target, compiler, flags, hardenings, directory)
    except NotCompiled:
        zig = util.find_spec(ZIG)
        if zig is None or zig.origin is None:
            raise
        compiler = [sys.executable, "-m", ZIG, "cc", *_headers(zig.origin)]
        _compile_hardened(target, compiler, flags, hardenings, directory)


def _headers(zig: str) -> list[str]:
    """Name ZIG's own headers, which it leaves out without a C library; a machine may have none."""
    machine = os.uname().machine
    kernel = machine.partition("_")[0]  # x86 has one directory for 32 and 64 bits
    headers = Path(zig).parent / "lib/libc/include"
    names = (f"{machine}-linux-musl", "generic-musl", f"{kernel}-linux-any", "any-linux-any")
    found = [f"-isystem{headers / name}" for name in names]
    return ["-target", f"{machine}-linux-musl", *found]


def _compile_hardened(
    target: Path,
    compiler: list[str],
    flags: tuple[str, ...],
    hardenings: tuple[tuple[str, ...], ...],
    directory: Path,
) -> None:
    *better, last = hardenings
    for each in better:
        with suppress(NotCompiled):
            return _compile(target, compiler, (*flags, *each), directory)
    return _compile(target, compiler, (*flags, *last), directory)


def _compile(target: Path, compiler: list[str], flags: tuple[str, ...], directory: Path) -> None:
    define = f'-DSOURCES="{fingerprint(directory)}"'
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            made = Path(place, target.name)
            Path(place, "plan.h").write_text(header())
            command = [*compiler, *flags, define, f"-I{place}", "-o", str(made)]
            command.append(str(directory / "starter.c"))
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                lines = ended.stderr.strip().splitlines() or ["no reason given"]
                text = f"{compiler[0]} cannot compile the program that starts jobs: {lines[0]}"
                raise NotCompiled(text)
            made.chmod(0o755)
            if _crashes(made):
                raise NotCompiled(f"the program that {compiler[0]} makes crashes")
            # In one step: a launcher that is running keeps the file that it has opened.
            made.replace(target)
    except OSError as error:
        text = f"the program that starts jobs cannot be compiled: {error}"
        raise NotCompiled(text) from error


def _crashes(program: Path) -> bool:
    try:
        return subprocess.run([program], stdout=subprocess.DEVNULL, check=False).returncode < 0
    except OSError:
        # It is for another architecture, or nothing can be executed there.
        return False
