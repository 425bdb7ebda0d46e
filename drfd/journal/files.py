"""The journal's files: the database, opened or refused, connections to it, and a reserve of disk
space.

The reserve is a file that is released in parts when the disk is full, so that the ends of jobs and
cancellations can still be written, and the next daemon can start. It is not released at once,
because the program that filled the disk would take the unused rest.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from drfd.common.errors import HostError, printable
from drfd.linux.kernel_files import opened


class reported:
    """Turns errors of SQLite and of the system in its block into a HostError with one line naming
    the file. A class, because a generator takes three times as long, and each job meets thirty of
    them."""

    __slots__ = ("_path", "_verb")

    def __init__(self, path: Path, verb: str) -> None:
        self._path = path
        self._verb = verb

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, sqlite3.Error | OSError | ValueError):
            return
        # SQLite may quote text from a damaged file.
        text = printable(str(error))
        raise HostError(
            "journal",
            f"cannot {self._verb} the journal {self._path}: {text}",
            hint="the file was left as it is; free space, mend its access rights, "
            "or restore it from a copy",
        ) from error


class Database(sqlite3.Connection):
    """A connection to a journal. The methods declared here raise HostError."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Database:
        """Open a connection that reads and writes. Transactions begin where they are begun."""
        db = sqlite3.connect(path, isolation_level=None, timeout=10, factory=cls)
        db.path = path
        return db

    def reported(self, verb: str) -> reported:
        return reported(self.path, verb)

    def row(self, query: str, values: Any = ()) -> Any:
        """Return the first row of the result, or None if it is empty."""
        with self.reported("read"):
            return self.execute(query, values).fetchone()

    def rows(self, query: str, values: Any = ()) -> list[Any]:
        with self.reported("read"):
            return self.execute(query, values).fetchall()

    def write(self, query: str, values: Any = ()) -> None:
        """Execute a statement in the open transaction, or in a new one."""
        with self.reported("write"):
            self.begin()
            self.execute(query, values)

    def begin(self) -> None:
        """Begin a transaction, unless one is open. Raises sqlite3.Error."""
        if not self.in_transaction:
            self.execute("begin immediate")


@contextmanager
def open_snapshot(path: Path) -> Iterator[Database]:
    """Open a connection that sees the journal as it is now, until it is closed. Raises HostError,
    also for an error in the block."""
    with reported(path, "read"):
        uri = f"{path.as_uri()}?mode=ro"
        database = sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=10, factory=Database
        )
        with closing(database) as db:
            db.path = path
            db.execute("begin")
            yield db


#: `PRAGMA user_version` of the schema that this code writes.
VERSION = 1
#: `PRAGMA application_id`: "drfd".
_APPLICATION = 0x64726664
#: Largest file whose integrity is checked at each start, which takes 4 ms per MiB. Damage of a
#: larger one is found when it is read.
_CHECKED_BYTES = 64 << 20
#: Bytes of a page. A commit writes each page that it changes, and a job's events change about ten
#: in as many places: with SQLite's usual 4096, twice as much is written.
_PAGE_BYTES = 1024
#: Length in bytes of a log that is written back, and to which a longer one is truncated when SQLite
#: restarts it.
_WRITTEN_BACK_BYTES, _LOG_BYTES = 4 << 20, 16 << 20
#: A shorter file is no database: SQLite's least page.
_LEAST_BYTES = 512
#: Read before the process may become a user who cannot enter the directory of the program.
_SCHEMA = files("drfd.journal").joinpath("schema.sql").read_text()


def open_database(path: Path) -> Database:
    """Open or create the journal. Raises HostError, and leaves the file as it was, if it cannot be
    read or has another version."""
    _refuse_unreadable(path)
    with reported(path, "open"):
        # Created with its final mode: it holds the users' environments.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = Database.open(path)
        try:
            _set_up(db)
        except BaseException:
            db.close()
            raise
    return db


def _set_up(db: Database) -> None:
    is_new = db.execute("pragma user_version").fetchone()[0] == 0
    if is_new and db.execute("select 1 from sqlite_master").fetchone():
        raise ValueError("it is not a drfd journal")
    if is_new:
        # These must precede the first write; the second lets the file shrink.
        db.execute(f"pragma page_size = {_PAGE_BYTES}")
        db.execute("pragma auto_vacuum = incremental")
    db.execute("pragma journal_mode = wal")
    db.execute(f"pragma wal_autocheckpoint = {_WRITTEN_BACK_BYTES // _PAGE_BYTES}")
    db.execute("pragma synchronous = full")
    # Truncate a log that a long read of the journal has let grow, once SQLite restarts it.
    db.execute(f"pragma journal_size_limit = {_LOG_BYTES}")
    if is_new:
        _create(db)


def _create(db: sqlite3.Connection) -> None:
    db.executescript(
        f"begin; {_SCHEMA} pragma application_id = {_APPLICATION};"
        f" pragma user_version = {VERSION}; commit;"
    )


def _refuse_unreadable(path: Path) -> None:
    """Raise HostError for a file that is no journal of this version, or is damaged. The file is
    opened read-only, because another connection would write the log back to the file when it is
    closed."""
    log = path.with_name(f"{path.name}-wal")
    with reported(path, "open"):
        if path.exists() and not path.is_file():
            raise _damaged(path)
        size = path.stat().st_size if path.exists() else 0
        has_log = path.exists() and log.exists() and log.stat().st_size > 0
        if not size and not has_log:
            return
        if size < _LEAST_BYTES:
            # SQLite would take it for an empty file, and remove the log. An interrupted creation
            # makes the file first.
            raise _damaged(path)
        # Without a log no other process has it open, and SQLite must not create one.
        how = "mode=ro" if has_log else "mode=ro&immutable=1"
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as db:
            version, application = [
                db.execute(f"pragma {name}").fetchone()[0]
                for name in ("user_version", "application_id")
            ]
            # An interrupted creation has neither, and SQLite repairs it.
            if application != _APPLICATION and (application or version):
                raise _damaged(path)
            if version not in (0, VERSION):
                raise HostError(
                    "journal-version",
                    f"the journal {path} has version {version}; this drfd reads version {VERSION}",
                    hint="it was left as it is; install the drfd that wrote it, or move it away to "
                    "start empty",
                )
            if size <= _CHECKED_BYTES:
                problem = db.execute("pragma integrity_check(1)").fetchone()[0]
                if problem != "ok":
                    raise sqlite3.DatabaseError(f"it is damaged: {problem}")


def _damaged(path: Path) -> HostError:
    return HostError(
        "journal",
        f"{path} is not a drfd journal, or is damaged",
        hint="it was left as it is; restore it from a copy, or move it away to start empty",
    )


log = logging.getLogger("drfd")

#: Size of the reserve in bytes, and the divisor of the file system's size that bounds it.
RESERVE_BYTES, _RESERVE_PART = 16 << 20, 16
#: Number of parts in which the reserve is released.
RESERVE_PIECES = 8
#: Ratio of free to missing bytes from which on the reserve is filled up.
_PLENTY = 4
#: Free bytes below which an unspecific error of SQLite counts as a full disk.
_FULL_BYTES = 64 << 10

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Low bytes of SQLite's error codes: "full"; "I/O error" and "cannot open", which may mean full.
_SQLITE_FULL, _SQLITE_UNSPECIFIC = 13, (10, 14)


class Reserve:
    """The file that reserves disk space for the journal."""

    def __init__(self, path: Path, most_bytes: int = RESERVE_BYTES) -> None:
        self.path = path
        self._most_bytes = most_bytes

    def size_bytes(self) -> int:
        """Return the present length of the file."""
        try:
            return os.lstat(self.path).st_size
        except OSError:
            return 0

    def wanted_bytes(self) -> int:
        """Return the length that the file should have on this file system."""
        return min(self._most_bytes, total_bytes(self.path.parent) // _RESERVE_PART)

    def is_whole(self) -> bool:
        return self.size_bytes() >= self.wanted_bytes()

    def make(self) -> bool:
        """Create the file or fill it up if there is plenty of room; return whether it has grown.
        This may take a moment on file systems that cannot allocate without writing."""
        wanted, have = self.wanted_bytes(), self.size_bytes()
        if have >= wanted or free_bytes(self.path.parent) < _PLENTY * (wanted - have):
            return False
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with opened(self.path, flags, 0o600) as fd:
            before = os.fstat(fd).st_size
            try:
                os.posix_fallocate(fd, 0, wanted)
            except OSError as error:
                os.ftruncate(fd, before)
                if error.errno not in _DISK_FULL:
                    raise
                return False
        log.info("event=reserve-made bytes=%d path=%s", wanted, self.path)
        return True

    def give_up(self) -> bool:
        """Release a part of the reserve; return False if nothing is left of it."""
        try:
            with opened(self.path, os.O_RDWR | os.O_NOFOLLOW) as fd:
                size = os.fstat(fd).st_size
                left = max(0, size - max(1, self.wanted_bytes() // RESERVE_PIECES))
                if not size:
                    return False
                os.ftruncate(fd, left)
                # Some file systems reuse freed blocks only after this.
                os.fsync(fd)
        except OSError:
            return False
        log.warning("event=reserve-given-up bytes=%d left_bytes=%d", size - left, left)
        return True

    def is_called_for(self, error: HostError) -> bool:
        """Return whether the cause of the journal's error is a full disk."""
        cause = error.__cause__
        if isinstance(cause, OSError):
            return cause.errno in _DISK_FULL
        if not isinstance(cause, sqlite3.Error):
            return False
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code in _SQLITE_UNSPECIFIC:
            return free_bytes(self.path.parent) < _FULL_BYTES
        return code == _SQLITE_FULL


def free_bytes(path: Path) -> int:
    """Return the free bytes of the path's file system that ordinary users may use."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def total_bytes(path: Path) -> int:
    """Return the size of the path's file system."""
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize
