"""Connections to a journal's file, and the error that all their errors become."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from drfd.common.errors import HostError, printable


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
