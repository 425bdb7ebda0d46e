"""Whether an environment may be a service's: all can read its files, and only root change them."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Collection, Iterable
from importlib.util import find_spec


def distrust() -> str | None:
    """Return why this environment is not fit for a service, or None if it is."""
    packages = [find_spec(name) for name in ("drfd", "drfd_cli")]
    trees = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    trees += [path for spec in packages if spec for path in spec.submodule_search_locations or ()]
    places = [sys.executable, sysconfig.get_path("scripts"), sysconfig.get_path("stdlib")]
    places += [f"{sys.prefix}/pyvenv.cfg"] if sys.prefix != sys.base_prefix else []
    places += [path for path in sys.path if os.path.exists(path)]
    return fault_of_files(trees, places)


def fault_of_files(
    trees: Iterable[str],
    places: Iterable[str],
    owners: Collection[int] = frozenset({0}),
    top: str = "/",
) -> str | None:
    """Return a reason not to trust these files, in a sentence, or None if there is none.

    `trees` are checked with everything below them, `places` (files or directories) without; for
    each, the directories from `top` down to it and the targets of links count too.
    """
    waiting = [*places, *trees]
    for tree in trees:
        for directory, folders, files in os.walk(tree):
            waiting += (os.path.join(directory, name) for name in (*folders, *files))
    known: set[str] = set()
    while waiting:
        path = os.path.normpath(waiting.pop())
        if path in known:
            continue
        known.add(path)
        try:
            fault = _fault_of(path, os.lstat(path), owners)
            if os.path.islink(path):
                waiting.append(os.path.join(os.path.dirname(path), os.readlink(path)))
        except OSError as error:
            fault = f"{path}: {error.strerror}"
        if fault is not None:
            return fault
        if path != top:
            waiting.append(os.path.dirname(path))
    return None


def _fault_of(path: str, status: os.stat_result, owners: Collection[int]) -> str | None:
    if status.st_uid not in owners:
        return f"{path} belongs to uid {status.st_uid}, who could change it"
    if stat.S_ISLNK(status.st_mode):
        return None
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022:
        return f"{path} can be written by others than root (mode {mode:o})"
    needed = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
    # Compiled modules need not be readable: Python takes the sources. This run itself may have
    # written them under a strict umask.
    if mode & needed != needed and not path.endswith((".pyc", "/__pycache__")):
        return f"{path} cannot be read by all users (mode {mode:o})"
    return None
