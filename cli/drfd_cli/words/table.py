"""The verbs and options of drf as a table for completion, kept in the user's cache.

The complete program makes the table in a quarter of a second; reading it takes a millisecond.
"""

from __future__ import annotations

import os

from drfd import __version__
from drfd.common.quick_json import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Verb → what it does, its options with the kind of their value and their help, and the kinds of
#: its arguments. The empty verb is the program itself.
Table = dict[str, "Any"]
#: The module below `drfd_cli` whose change makes a stored table invalid, besides all verbs.
_OPTIONS = "options.py"


def load(make: Callable[[], Table]) -> Table:
    """Return the table from the cache, or make and store it."""
    path = _path()
    try:
        with open(path, encoding="utf-8", opener=_open_own) as file:
            found = decode(file.read().encode())
        if isinstance(found, dict) and found.get("stamp") == _stamp():
            table: Table = found["table"]
            return table
    except (OSError, ValueError):
        pass
    return _store(path, make())


def _open_own(path: str, flags: int) -> int:
    """Open a file of the caller's. Raises OSError if another user may have written it."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(path)
    return fd


def _is_own(folder: str) -> bool:
    """Return whether the folder, and the cache that it is in, are the caller's, or will be. With
    HOME still that of another user, as a `sudo` may leave it, links may stand in their places."""
    cache = os.path.dirname(folder)
    try:
        owners = [os.lstat(cache).st_uid]
    except FileNotFoundError:
        owners = [os.stat(os.path.dirname(cache)).st_uid]
    try:
        owners.append(os.lstat(folder).st_uid)
    except FileNotFoundError:
        pass
    return all(uid == os.geteuid() for uid in owners)


def _path() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "drfd", "completion.json")


def _stamp() -> str:
    """Return a text that changes with the version and with every change of a verb's module."""
    here = os.path.dirname(os.path.dirname(__file__))
    with os.scandir(os.path.join(here, "commands")) as found:
        times = [each.stat().st_mtime_ns for each in found if each.name.endswith(".py")]
    for name in ("main.py", _OPTIONS):
        times.append(os.stat(os.path.join(here, name)).st_mtime_ns)
    return f"{__version__} {here} {len(times)} {max(times)}"


def _store(path: str, table: Table) -> Table:
    import json

    folder_fd = -1
    try:
        folder, name = os.path.split(path)
        if not _is_own(folder):
            return table
        os.makedirs(folder, mode=0o700, exist_ok=True)
        folder_fd = _open_own(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # The name is the process's own, so that two shells do not write into one file.
        new = f"{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600, dir_fd=folder_fd), "w", encoding="utf-8") as file:
            json.dump({"stamp": _stamp(), "table": table}, file)
        os.replace(new, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except OSError:
        pass
    finally:
        if folder_fd != -1:
            os.close(folder_fd)
    return table
