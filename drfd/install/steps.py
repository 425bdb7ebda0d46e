"""The steps of an installation: their descriptions, and their execution.

Each step makes one change to the system, and may be repeated.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drfd.common.errors import HostError

#: Default timeout of a program, in seconds: longer than systemd waits for the start of a service
#: with a long journal, which is ten minutes.
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    path: str

    @property
    def text(self) -> str:
        return f"make the directory {self.path}"


@dataclass(frozen=True, slots=True)
class WriteFile:
    path: str
    content: str

    @property
    def text(self) -> str:
        return f"write {self.path}"


@dataclass(frozen=True, slots=True)
class MakeLink:
    path: str
    target: str

    @property
    def text(self) -> str:
        return f"link {self.path} to {self.target}"


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Removes a file, a link, or a directory with its contents."""

    path: str

    @property
    def text(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class RemoveEmpty:
    path: str

    @property
    def text(self) -> str:
        return f"remove {self.path} if it is empty"


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Runs a program that acts on the running system."""

    command: tuple[str, ...]
    #: The timeout: nothing that an administrator starts may hang.
    limit_s: float = LIMIT_S
    #: The remedy if it fails or does not end in time.
    hint: str = ""

    @property
    def text(self) -> str:
        return f"run {shlex.join(self.command)}"


@dataclass(frozen=True, slots=True)
class Note:
    """Does nothing but inform the administrator."""

    words: str

    @property
    def text(self) -> str:
        return f"note: {self.words}"


Step = MakeDirectory | WriteFile | MakeLink | RemoveFile | RemoveEmpty | RunProgram | Note


def perform(step: Step, root: Path, say: Callable[[str], None]) -> None:
    """Perform a step on the system below `root`. Raises HostError."""
    say(step.text)
    try:
        _perform(step, root)
    except OSError as error:
        raise HostError("install", f"cannot {step.text}: {error.strerror}") from None


def below(root: Path, path: str) -> Path:
    return Path(f"{root}{path}") if str(root) != "/" else Path(path)


def _perform(step: Step, root: Path) -> None:
    match step:
        case MakeDirectory(path):
            below(root, path).mkdir(mode=0o755, parents=True, exist_ok=True)
        case WriteFile(path, content):
            _replace(below(root, path), lambda new: _write(new, content))
        case MakeLink(path, target):
            _replace(below(root, path), lambda new: new.symlink_to(target))
        case RemoveFile(path):
            _remove(below(root, path))
        case RemoveEmpty(path):
            _remove_empty(below(root, path))
        case RunProgram():
            _run(step)
        case Note():
            pass


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    """Replace a file atomically by what `make` creates."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    make(new)
    os.replace(new, path)


def _write(path: Path, content: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o644)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR):
            raise


def _run(step: RunProgram) -> None:
    command = shlex.join(step.command)
    try:
        done = subprocess.run(
            step.command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=step.limit_s,
        )
    except subprocess.TimeoutExpired:
        text = f"{command} is not over after {step.limit_s:.0f} s"
        raise HostError("install", text, hint=step.hint) from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().partition("\n")[0]
        text = f"{command} failed: {words or f'status {done.returncode}'}"
        raise HostError("install", text, hint=step.hint)
