"""The log: lines on standard error, or entries of systemd's journal with fields for jobs and users.

`journalctl DRFD_JOB=42` finds records logged with `extra=about(job=42)`. The native protocol of the
journal takes one datagram for each entry (systemd, JOURNAL_NATIVE_PROTOCOL).
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
from collections.abc import Iterable, Iterator

SOCKET = "/run/systemd/journal/socket"
#: How long an entry may wait for a journal that does not read, as a timeval: 10 ms.
_MOST_WAIT = struct.pack("@ll", 0, 10_000)

_PRIORITY = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


def about(
    *, job: int | None = None, jobs: Iterable[int] = (), user: str | None = None
) -> dict[str, object]:
    """Return the `extra` of a log record about these jobs and this user."""
    ids = [*jobs, *([] if job is None else [job])]
    fields: list[tuple[str, str]] = [("DRFD_JOB", str(each)) for each in ids]
    if user is not None:
        fields.append(("DRFD_USER", user))
    return {"fields": fields}


def set_up(program: str, *, has_journal: bool) -> None:
    """Log to standard error, or to the journal itself if standard error goes there."""
    # Not collected, since no line shows them (Python's Logging HOWTO, Optimization).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter(f"{program}: %(message)s"))
    handler = Entries(program, lines) if has_journal else lines
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class Entries(logging.Handler):
    """Sends each record to the journal, or to `otherwise` if the journal does not take it."""

    def __init__(self, program: str, otherwise: logging.Handler, path: str = SOCKET) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self._program = program
        self._otherwise = otherwise
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _MOST_WAIT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(entry(self._fields(record)), self._path)
        except BlockingIOError:
            # The journal is stopped, and standard error leads to it, too: the entry is lost.
            pass
        except OSError:
            # No journal, or an entry too long for a datagram.
            self._otherwise.handle(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        yield "MESSAGE", self.format(record)
        yield "PRIORITY", str(_PRIORITY.get(record.levelno, 6))
        yield "SYSLOG_IDENTIFIER", self._program
        yield from getattr(record, "fields", [])


def entry(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encode an entry. A field may occur more than once."""
    return b"".join(_field(name.encode(), value.encode(errors="replace")) for name, value in fields)


def _field(name: bytes, value: bytes) -> bytes:
    if b"\n" in value:
        # A value of several lines is preceded by its length.
        return name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name + b"=" + value + b"\n"
