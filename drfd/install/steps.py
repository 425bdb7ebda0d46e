"""The steps of an installation: their descriptions, and their execution.

Each step makes one change to the system, and may be repeated.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import ClassVar

from drfd.common.errors import HostError

#: Default timeout of a program, in seconds: longer than systemd waits for the start of a service
#: with a long journal, which is ten minutes.
LIMIT_S = 900.0


class _Described:
    """A step with a text that says what it does; `_form` has the step's fields in braces."""

    __slots__ = ()
    _form: ClassVar[str]

    @property
    def text(self) -> str:
        return self._form.format(self)


@dataclass(frozen=True, slots=True)
class MakeDirectory(_Described):
    path: str
    _form: ClassVar = "make the directory {0.path}"


@dataclass(frozen=True, slots=True)
class WriteFile(_Described):
    path: str
    content: str
    _form: ClassVar = "write {0.path}"


@dataclass(frozen=True, slots=True)
class MakeLink(_Described):
    path: str
    target: str
    _form: ClassVar = "link {0.path} to {0.target}"


@dataclass(frozen=True, slots=True)
class RemoveFile(_Described):
    """Removes a file, a link, or a directory with its contents."""

    path: str
    _form: ClassVar = "remove {0.path}"


@dataclass(frozen=True, slots=True)
class RemoveEmpty(_Described):
    path: str
    _form: ClassVar = "remove {0.path} if it is empty"


@dataclass(frozen=True, slots=True)
class RunProgram(_Described):
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
class Note(_Described):
    """Does nothing but inform the administrator."""

    words: str
    _form: ClassVar = "note: {0.words}"


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


def run(command: Sequence[str], limit_s: float, hint: str = "") -> CompletedProcess[str]:
    """Run a program to its end. Raises HostError with this hint if it takes too long."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        text = f"{shlex.join(command)} is not over after {limit_s:.0f} s"
        raise HostError("install", text, hint=hint) from None


def _run(step: RunProgram) -> None:
    done = run(step.command, step.limit_s, step.hint)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().partition("\n")[0]
        text = f"{shlex.join(step.command)} failed: {words or f'status {done.returncode}'}"
        raise HostError("install", text, hint=step.hint)
