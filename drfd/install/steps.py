"""The steps of an installation: what each says of itself, and how it is done.

Each is one thing that happens to the system, and may be repeated.
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

from drfd.errors import HostError


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
class Remove:
    """A file, a link, or a directory with all that is in it."""

    path: str

    @property
    def text(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class RemoveEmpty:
    """A directory, if nothing is in it."""

    path: str

    @property
    def text(self) -> str:
        return f"remove {self.path} if it is empty"


@dataclass(frozen=True, slots=True)
class Run:
    """A program that acts on the running system."""

    command: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"run {shlex.join(self.command)}"


@dataclass(frozen=True, slots=True)
class Note:
    """Nothing is done; the administrator should know."""

    words: str

    @property
    def text(self) -> str:
        return f"note: {self.words}"


Step = MakeDirectory | WriteFile | MakeLink | Remove | RemoveEmpty | Run | Note


def perform(step: Step, root: Path, say: Callable[[str], None]) -> None:
    """Do it to the system below `root`. Raises HostError."""
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
        case Remove(path):
            _remove(below(root, path))
        case RemoveEmpty(path):
            _remove_empty(below(root, path))
        case Run(command):
            _run(command)
        case Note():
            pass


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    """Whoever looks sees the old one or the new one, whole."""
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


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise HostError(
            "install", f"{shlex.join(command)} failed: {words or f'status {done.returncode}'}"
        )
