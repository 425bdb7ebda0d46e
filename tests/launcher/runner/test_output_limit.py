"""How much a job has written to its output files."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from drfd.launcher.runner import output_limit
from drfd.launcher.runner.output_limit import OutputLimit, take_ready
from drfd.linux.syscalls import KnownStatus, known_status
from drfd.linux.unix_sockets import send_descriptors


def opened(path: Path, text: str = "") -> int:
    path.write_text(text)
    return os.open(path, os.O_WRONLY | os.O_APPEND)


def test_what_is_written_since_the_start_counts_in_both_files(tmp_path: Path) -> None:
    out, err = opened(tmp_path / "out", "before"), opened(tmp_path / "err")
    limit = OutputLimit((os.dup(out), os.dup(err)), 10)
    os.write(out, b"12345")
    os.write(err, b"12345")
    assert limit.exceeded() is None
    os.write(err, b"6")
    assert limit.exceeded() == 11
    limit.close()
    for fd in (out, err):
        os.close(fd)


def test_one_file_for_both_counts_once_and_may_be_emptied(tmp_path: Path) -> None:
    out = opened(tmp_path / "out", "before")
    limit = OutputLimit((os.dup(out), os.dup(out)), 10)
    os.write(out, b"1234567890")
    assert limit.exceeded() is None
    os.write(out, b"1")
    assert limit.exceeded() == 11
    os.truncate(tmp_path / "out", 0)
    assert limit.exceeded() is None
    # Who removes the file frees nothing of the disk while the job runs.
    (tmp_path / "out").unlink()
    os.write(out, b"x" * 30)
    assert limit.exceeded() == 24
    limit.close()
    os.close(out)


def test_pipes_and_devices_have_no_limit() -> None:
    out, into = os.pipe()
    null = os.open("/dev/null", os.O_WRONLY)
    limit = OutputLimit((into, null), 1)
    assert limit.exceeded() is None
    limit.close()
    # They are closed.
    assert os.read(out, 1) == b""
    os.close(out)


def test_of_a_file_whose_size_is_hidden_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a FUSE mount, which only its user may look into."""
    seen = []

    def status(fd: int) -> KnownStatus:
        seen.append(fd)
        if len(seen) > 1:
            raise PermissionError(errno.EACCES, "Permission denied")
        return known_status(fd)

    monkeypatch.setattr(output_limit, "known_status", status)
    fds = opened(tmp_path / "out"), opened(tmp_path / "err")
    with pytest.raises(PermissionError):
        OutputLimit(fds, 10)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_the_kernel_knows_of_a_file_is_what_fstat_says(tmp_path: Path) -> None:
    fd = opened(tmp_path / "out", "text")
    known, full = known_status(fd), os.fstat(fd)
    assert known.mode == full.st_mode
    assert (known.inode, known.size) == (full.st_ino, 4)
    assert os.makedev(*known.device) == full.st_dev
    os.close(fd)


def test_outputs_come_with_the_first_byte_of_the_report(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    out = opened(tmp_path / "out")
    send_descriptors(theirs, b"+", (out, out))
    theirs.send(b"more")
    ready, fds = take_ready(ours.fileno())
    assert ready == b"+"
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(out).st_ino] * 2
    assert not any(map(os.get_inheritable, fds))
    assert ours.recv(10) == b"more"
    theirs.close()
    assert take_ready(ours.fileno()) == (b"", [])
    for fd in (*fds, out):
        os.close(fd)
    ours.close()
