"""Whether an environment may become a service: nobody but root may change a file of it, and all
users must be able to run it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator

_ROOT = frozenset({0})


def problem(
    trees: Iterable[str], places: Iterable[str], owners: Collection[int] = _ROOT, top: str = "/"
) -> str | None:
    """The first reason not to trust them, in a sentence; None: there is none. `trees` are looked
    through to the bottom, `places` (files or directories) are taken alone; the way to each from
    `top` counts too."""
    known: set[str] = set()
    for path in _all(trees, places, top):
        if path not in known:
            known.add(path)
            found = _look(path, owners)
            if found is not None:
                return found
    return None


def _all(trees: Iterable[str], places: Iterable[str], top: str) -> Iterator[str]:
    for place in (*places, *trees):
        for hop in _hops(place):
            yield from _way(hop, top)
    for tree in trees:
        for directory, _, files in os.walk(tree):
            yield directory
            yield from (os.path.join(directory, name) for name in files)


def _hops(path: str) -> Iterator[str]:
    """The path, and what it leads to, link by link."""
    yield path
    for _ in range(40):
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        yield path
    yield os.path.realpath(path)


def _way(path: str, top: str) -> Iterator[str]:
    """From `top` down to the path, both included."""
    parts = os.path.relpath(path, top).split(os.sep)
    yield top
    if parts[0] == os.pardir:
        return
    for part in parts:
        top = os.path.join(top, part)
        yield top


def _look(path: str, owners: Collection[int]) -> str | None:
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if status.st_uid not in owners:
        return f"{path} belongs to uid {status.st_uid}, who could change it"
    if stat.S_ISLNK(status.st_mode):
        return None
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022:
        return f"{path} can be written by others than root (mode {mode:o})"
    needed = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
    # What cannot be read of the compiled modules is no loss: Python takes the sources. It may be of
    # this very run, under a strict umask.
    if mode & needed != needed and not path.endswith((".pyc", "/__pycache__")):
        return f"{path} cannot be read by all users (mode {mode:o})"
    return None
