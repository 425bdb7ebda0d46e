"""Log entries with fields, in the journal's own protocol; lines where there is no journal."""

from __future__ import annotations

import io
import logging
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.common.journald import Entries, about, entry


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "journal"))
        listener.settimeout(5)
        yield listener


@pytest.fixture
def lines() -> io.StringIO:
    """Standard error."""
    return io.StringIO()


@pytest.fixture
def log(tmp_path: Path, lines: io.StringIO) -> Iterator[logging.Logger]:
    log = logging.Logger("test")
    handler = Entries("drfd", logging.StreamHandler(lines), str(tmp_path / "journal"))
    log.addHandler(handler)
    yield log
    handler.close()


def test_a_line_about_a_job_can_be_found_by_it(
    journal: socket.socket, log: logging.Logger, lines: io.StringIO
) -> None:
    log.warning("job=%d event=%s", 41, "Exited", extra=about(job=41, user="alice"))
    assert journal.recv(1000) == (
        b"MESSAGE=job=41 event=Exited\nPRIORITY=4\nSYSLOG_IDENTIFIER=drfd\n"
        b"DRFD_JOB=41\nDRFD_USER=alice\n"
    )
    assert lines.getvalue() == ""


def test_a_line_about_nothing_has_no_such_fields(
    journal: socket.socket, log: logging.Logger
) -> None:
    log.info("event=ready")
    assert journal.recv(1000) == b"MESSAGE=event=ready\nPRIORITY=6\nSYSLOG_IDENTIFIER=drfd\n"


def test_standard_error_is_the_journal_or_gets_lines() -> None:
    """In a process of its own: it sets up the log of all of it."""
    program = (
        "import logging; from drfd.common import journald\n"
        "journald.set_up('drfd', has_journal={})\n"
        "logging.getLogger('drfd').info('event=%s', 'ready')\n"
        "print(type(logging.getLogger().handlers[0]).__name__)"
    )
    for has_journal, handler in ((False, "StreamHandler"), (True, "Entries")):
        command = [sys.executable, "-c", program.format(has_journal)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{handler}\n"
        assert has_journal or done.stderr == "drfd: event=ready\n"


def test_a_line_about_several_jobs_is_found_by_each() -> None:
    assert about(jobs=[4, 7], user="bob") == {
        "fields": [("DRFD_JOB", "4"), ("DRFD_JOB", "7"), ("DRFD_USER", "bob")]
    }


def test_no_value_can_pretend_to_be_a_field() -> None:
    """A name with a newline in it: its length says where it ends."""
    value = b"x\nDRFD_USER=root"
    assert entry([("MESSAGE", value.decode())]) == (
        b"MESSAGE\n" + struct.pack("<Q", len(value)) + value + b"\n"
    )


def test_without_a_journal_the_line_is_not_lost(log: logging.Logger, lines: io.StringIO) -> None:
    log.error("event=stuck", extra=about(job=3))
    assert lines.getvalue() == "event=stuck\n"


def test_an_entry_too_long_for_a_datagram_becomes_a_line(
    journal: socket.socket, log: logging.Logger, lines: io.StringIO
) -> None:
    log.info("x" * 10_000_000)
    assert len(lines.getvalue()) == 10_000_001


def test_text_that_is_not_unicode_is_no_end(journal: socket.socket, log: logging.Logger) -> None:
    log.info("cwd=\udcff")
    assert journal.recv(100).startswith(b"MESSAGE=cwd=?\n")
