"""The journal's files: the database, opened or refused, and the room on its disk."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from drfd.common.errors import HostError
from drfd.journal.database import Database, reported

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


def free_bytes(path: Path) -> int:
    """Return the free bytes of the path's file system that ordinary users may use."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def total_bytes(path: Path) -> int:
    """Return the size of the path's file system."""
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize
