"""The user database: /etc/passwd, /etc/subuid, and the directory service behind getpwuid(3).

A change of /etc/passwd shows at once that a uid has another name, as when an account is deleted and
its uid given to the next one. A directory service gives no such sign: only a new answer shows it.

Names are returned as drfd writes them everywhere (`written_name`), since a name may be any bytes,
and the journal, replies and metrics are UTF-8.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from drfd.linux import syscalls

T = TypeVar("T")

#: Device, inode, times of changes in ns, and size in bytes, which differ between two versions of a
#: file, or None if there is no such file.
Version: TypeAlias = tuple[int, ...] | None


def version_of(file: Path) -> Version:
    """Return the present version of a file, by a single stat(2)."""
    try:
        seen = os.stat(file)
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size)


class ParsedFile(Generic[T]):
    """A small file of the system, parsed again when it has changed. A file that cannot be read, or
    is longer than `most_bytes`, counts as empty. Threads may share an instance."""

    def __init__(self, file: Path, parse: Callable[[bytes], T], most_bytes: int) -> None:
        self._file = file
        self._parse = parse
        self._most_bytes = most_bytes
        #: Replaced as a whole, so that no thread sees the content of another version.
        self._read: tuple[Version, T] = (None, parse(b""))

    def content(self) -> T:
        """Return what `parse` makes of the present file."""
        now = version_of(self._file)
        version, content = self._read
        if now != version:
            try:
                content = self._parse(self._bytes())
            except OSError:
                # Not remembered: it may be readable the next time, as after a lack of descriptors.
                return self._parse(b"")
            # The version was taken before the reading, so a change in between is not missed.
            self._read = now, content
        return content

    def _bytes(self) -> bytes:
        with self._file.open("rb") as opened:
            found = opened.read(self._most_bytes + 1)
        return found if len(found) <= self._most_bytes else b""


PASSWD = Path("/etc/passwd")
#: Accounts of a longer file, in bytes, are treated as those of a directory service: reading it
#: would keep the caller for more than some hundredths of a second.
_MOST_PASSWD_BYTES = 2 << 20


class LocalAccounts:
    """The accounts in /etc/passwd. Threads may share an instance."""

    def __init__(self, file: Path = PASSWD) -> None:
        self._file = ParsedFile(file, _names, _MOST_PASSWD_BYTES)

    def name_of(self, uid: int) -> str | None:
        """Return the name that the present file gives a uid, or None if the uid is not in it."""
        return self._file.content().get(uid)


def _names(content: bytes) -> dict[int, str]:
    names: dict[int, str] = {}
    for line in content.split(b"\n"):
        fields = line.split(b":", 3)
        if len(fields) == 4 and fields[2].isdigit():
            # The first of several entries counts, as in getpwuid(3).
            names.setdefault(int(fields[2]), written_name(os.fsdecode(fields[0])))
    return names


def written_name(name: str) -> str:
    """Return a user name, as `pwd` gives it, with \\xNN for each byte that is not UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


_SUBUID = Path("/etc/subuid")
#: A longer file, in bytes, counts as empty.
_MOST_SUBUID_BYTES = 16 << 20


class Subordinates:
    """Subordinate uids (subuid(5)): users may have many of them besides their own. They have no
    account. Their requests must not delay those of people."""

    def __init__(self, file: Path = _SUBUID) -> None:
        self._ranges = ParsedFile(file, _ranges, _MOST_SUBUID_BYTES)

    def has(self, uid: int) -> bool:
        return any(uid in each for _, each in self._ranges.content())

    def are_of(self, owner: int, name: str, uid: int) -> bool:
        """Return whether `uid` is a subordinate one of this user."""
        return any(
            uid in each and whose in (name, str(owner)) for whose, each in self._ranges.content()
        )


def _ranges(content: bytes) -> list[tuple[str, range]]:
    """Parse the lines NAME:FIRST:COUNT, where NAME may be a uid, and ignore others."""
    found = []
    for line in content.splitlines():
        fields = line.split(b":")
        if len(fields) == 3 and all(each.isdigit() for each in fields[1:]):
            first, count = int(fields[1]), int(fields[2])
            owner = written_name(os.fsdecode(fields[0]))
            found.append((owner, range(first, first + count)))
    return found


def look_up_name(uid: int) -> str | None:
    """Return the user name of a uid, or None if there is no such account. Raises OSError if the
    directory could not be asked."""
    try:
        return written_name(pwd.getpwuid(uid).pw_name)
    except KeyError:
        # Python raises KeyError for some errors of the directory as well.
        if syscalls.has_account(uid):
            raise OSError(f"the answer for uid {uid} has just changed") from None
        return None
