"""Connections to a journal's file, and the error that all their errors become."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from drfd.common.errors import HostError


@contextmanager
def reported(path: Path, verb: str) -> Iterator[None]:
    """Turn errors of SQLite and of the system into a HostError with one line naming the file."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        # SQLite may quote text from a damaged file.
        text = "".join(sign if sign.isprintable() else "?" for sign in str(error))
        raise HostError(
            "journal",
            f"cannot {verb} the journal {path}: {text}",
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

    def reported(self, verb: str) -> AbstractContextManager[None]:
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
