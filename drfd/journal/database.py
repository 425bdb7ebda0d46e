"""The journal's file: created, brought to today's tables, or refused."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path

from drfd.errors import HostError
from drfd.journal.damage import loses_commits
from drfd.journal.migrations import STEPS

#: `PRAGMA user_version` of the schema that this code writes.
VERSION = 4
#: `PRAGMA application_id`: "drfd".
_APPLICATION = 0x64726664
#: A larger file is not looked through at each start, which takes 4 ms for each MiB: its damage
#: shows when it is read.
_CHECKED_BYTES = 64 << 20
#: Where SQLite keeps user_version and application_id in its header, big-endian.
_VERSION_BYTES, _APPLICATION_BYTES = slice(60, 64), slice(68, 72)


def open_database(path: Path) -> sqlite3.Connection:
    """With the tables of today's version. Raises HostError, leaving the file as it was, when it
    cannot be read."""
    _refuse_foreign(path)
    _refuse_damaged(path)
    with reported(path, "open"):
        # Created with its final mode: it holds the users' environments.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, isolation_level=None, timeout=10)
        try:
            _set_up(db)
        except BaseException:
            db.close()
            raise
    return db


@contextmanager
def reported(path: Path, verb: str) -> Iterator[None]:
    """SQLite's and the system's complaints as one line that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        # SQLite quotes from what may be damaged.
        text = "".join(sign if sign.isprintable() else "?" for sign in str(error))
        raise HostError(
            "journal",
            f"cannot {verb} the journal {path}: {text}",
            hint="the file was left as it is; free space, mend its access rights, "
            "or restore it from a copy",
        ) from error


def _set_up(db: sqlite3.Connection) -> None:
    version = db.execute("pragma user_version").fetchone()[0]
    is_new = version == 0
    if is_new and db.execute("select 1 from sqlite_master").fetchone():
        raise ValueError("it is not a drfd journal")
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    # So that nothing stands in the log behind what will be written next (`loses_commits`).
    db.execute("pragma wal_checkpoint(truncate)").fetchone()
    if is_new:
        _create(db)
    elif version < VERSION:
        _migrate(db, version)
    for name in ("texts.sql", "indexes.sql"):
        db.executescript(files("drfd.journal").joinpath(name).read_text())


def _create(db: sqlite3.Connection) -> None:
    schema = files("drfd.journal").joinpath("schema.sql").read_text()
    db.executescript(
        f"begin; {schema} pragma application_id = {_APPLICATION};"
        f" pragma user_version = {VERSION}; commit;"
    )
    _show_version(db)


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """All steps or none."""
    steps = "".join(STEPS[each] for each in range(version, VERSION))
    try:
        db.executescript(f"begin; {steps} pragma user_version = {VERSION}; commit;")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("rollback")
        raise
    _show_version(db)


def _show_version(db: sqlite3.Connection) -> None:
    # The version must stand in the file itself, where an older drfd looks before it opens it.
    db.execute("pragma wal_checkpoint(truncate)")


def _refuse_foreign(path: Path) -> None:
    """Look at the file before SQLite does: one that is not ours, or newer, stays untouched."""
    try:
        header = path.read_bytes()[:100] if path.stat().st_size < 100 else _head(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError("journal", f"cannot read the journal {path}: {error.strerror}") from error
    if not header:
        return
    version = int.from_bytes(header[_VERSION_BYTES], "big")
    ours = int.from_bytes(header[_APPLICATION_BYTES], "big") == _APPLICATION
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0") or not ours:
        # A creation that was cut short leaves a database without any version: SQLite repairs it.
        if header.startswith(b"SQLite format 3\0") and version == 0 and not any(header[68:72]):
            return
        raise _damaged(path)
    _refuse_newer(path, version)


def _refuse_damaged(path: Path) -> None:
    """Look at what is in it, and at what was written last and may not stand in the file itself
    yet. Who may only read leaves the log alone, which others put into the file when they leave."""
    log = path.with_name(f"{path.name}-wal")
    with reported(path, "open"):
        if not path.exists():
            return
        has_log = log.exists() and log.stat().st_size > 0
        if path.stat().st_size == 0:
            if has_log:
                # Not a creation that was cut short: that makes the file first. SQLite would begin
                # with an empty one, and remove the log.
                raise _damaged(path)
            return
        # Without a log nobody else has it open; then SQLite is to lay nothing beside it either.
        how = "mode=ro" if has_log else "mode=ro&immutable=1"
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as db:
            version = db.execute("pragma user_version").fetchone()[0]
            if has_log and loses_commits(log, path.with_name(f"{path.name}-shm")):
                raise HostError(
                    "journal",
                    f"{log} is damaged: jobs and ends that had been acknowledged cannot be read",
                    hint="it was left as it is; restore it with the journal from a copy, or move "
                    "it away to go on without what happened last",
                )
            _refuse_newer(path, version)
            if path.stat().st_size <= _CHECKED_BYTES:
                problem = db.execute("pragma integrity_check(1)").fetchone()[0]
                if problem != "ok":
                    raise sqlite3.DatabaseError(f"it is damaged: {problem}")


def _refuse_newer(path: Path, version: int) -> None:
    if version > VERSION:
        raise HostError(
            "journal-version",
            f"the journal {path} has version {version}; this drfd knows versions up to {VERSION}",
            hint="it was left as it is; install the newer drfd again",
        )


def _damaged(path: Path) -> HostError:
    return HostError(
        "journal",
        f"{path} is not a drfd journal, or is damaged",
        hint="it was left as it is; restore it from a copy, or move it away to start empty",
    )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)
