"""Attempt files: what is known of each attempt, written where it survives every process.

One file per attempt, `ID.ATTEMPT`, to which JSON lines are only ever appended; the runner holds an
flock on it as long as it lives, so the kernel knows whether there is one. The records, in order:

    created   the launcher is about to start a runner: when, for whom, in which cgroup
    runner    the runner lives: its pid and start time
    running   the job's program is about to be let go; from here on it is never launched again
    failed    its program could not be run, and why
    ended     its first process is gone, and how
    notifying its owner's command that tells of the end is about to be run, and never again
    notified  what became of that

Each line ends with a checksum of itself, so that no damage to the file is taken for news: what is
damaged counts as "may have run", because a program must never be let go a second time. Only a last
line that was cut short counts as not written, for its writer has heard that it was not. Lines
without a checksum are those of older versions.

Between them the launcher writes how many signals it has been told to send, before it sends them:
what is told again is not sent again. This one record is written over, for there may be any number.

No fsync: the records matter to processes that come after a crash of drfd, not of the machine. After
a power cut the job is gone anyway, and what the journal does not know by then ends as LOST.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
import zlib
from dataclasses import dataclass
from typing import Any

Key = tuple[int, int]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt file says. A record that is not there yet is None."""

    created: Record
    runner: Record | None = None
    running: Record | None = None
    failed: Record | None = None
    ended: Record | None = None
    signalled: Record | None = None
    notifying: Record | None = None
    notified: Record | None = None
    #: A line of the file cannot be read: any record may have been there. If it was `created`, that
    #: says UNKNOWN.
    is_damaged: bool = False

    @property
    def is_over(self) -> bool:
        return self.failed is not None or self.ended is not None

    @property
    def may_have_run(self) -> bool:
        """Whether the job's program may have been let go."""
        return self.is_over or self.running is not None or self.is_damaged


_KINDS = (
    *("created", "runner", "running", "failed", "ended"),
    *("signalled", "notifying", "notified"),
)
#: In the place of a first record that cannot be read. Nobody's uid, and any boot.
UNKNOWN: Record = {"uid": None, "boot_id": None, "cgroup": None, "at_s": None, "mono_s": None}
_CHECKED = re.compile(rb'(.*),"crc":"([0-9a-f]{8})"\}', re.DOTALL)
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode
#: The record that is written over begins so, and keeps room for a count of so many digits.
_SIGNALLED, _COUNT_WIDTH = '{"record":"signalled"', 18
#: How an attempt is written: numbers as `str` gives them, so that each key has one name.
_NUMBER = "([1-9][0-9]{0,17})"
_KEY = re.compile(rf"{_NUMBER}\.{_NUMBER}")
_CGROUP = re.compile(rf"job-{_NUMBER}-{_NUMBER}")


def file_name(key: Key) -> str:
    return f"{key[0]}.{key[1]}"


def cgroup_name(key: Key) -> str:
    return f"job-{key[0]}-{key[1]}"


def cgroup_key(name: str) -> Key | None:
    """The attempt whose cgroup is called so, if it is one of ours."""
    match = _CGROUP.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def born(uid: int, boot_id: str, cgroup: str | None) -> Record:
    """The first record of an attempt that begins now."""
    return {
        "uid": uid,
        "boot_id": boot_id,
        "cgroup": cgroup,
        "at_s": time.time(),
        "mono_s": time.monotonic(),
    }


def create(dir_fd: int, key: Key, created: Record) -> int:
    """A new attempt file, locked by the returned descriptor. FileExistsError: there is one."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(file_name(key), flags, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        append(fd, "created", created)
    except BaseException:
        os.close(fd)
        raise
    return fd


def append(fd: int, kind: str, record: Record) -> None:
    _write(fd, _checked(_encode({"record": kind, **record})))


def end_cut_line(fd: int) -> None:
    """If what was written last was cut short, what comes next begins a line of its own."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        _write(fd, b"\n")


def _checked(text: str) -> bytes:
    """The line of a record, given as JSON."""
    return f'{text[:-1]},"crc":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def _write(fd: int, line: bytes) -> None:
    written = os.write(fd, line)
    if written != len(line):
        # Nothing else cuts a write to a file short.
        raise OSError(errno.ENOSPC, f"attempt file: {written} of {len(line)} bytes written")


def note_signals(dir_fd: int, key: Key, count: int) -> None:
    """Write how many signals have been asked for, over what was written of them before."""
    line = _checked(f'{_SIGNALLED},"count":{count:<{_COUNT_WIDTH}}}}')
    fd = os.open(file_name(key), os.O_RDWR | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        at = data.rfind(_SIGNALLED.encode())
        # An older drfd wrote lines of any length, one for each time.
        if at >= 0 and data.find(b"\n", at) + 1 - at == len(line):
            os.pwrite(fd, line, at)
            return
    finally:
        os.close(fd)
    fd = os.open(file_name(key), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        _write(fd, line)
    finally:
        os.close(fd)


def read(dir_fd: int, key: Key) -> Attempt | None:
    """None: no such file, or one whose creation was cut short (nothing was started then)."""
    try:
        fd = os.open(file_name(key), os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    try:
        return parse(b"".join(iter(lambda: os.read(fd, 1 << 16), b"")))
    finally:
        os.close(fd)


def parse(data: bytes) -> Attempt | None:
    """The records in `data`. What comes after a damaged line counts; a last line that was cut short
    does not. None: not even the first one was written whole."""
    records: dict[str, Record] = {}
    is_damaged = False
    *lines, last = data.split(b"\n")
    # Whole but for its end: that is damage too, for half a line is never written with more to it.
    lines += [each for each in (last, last[:-1]) if _read_line(each) is not None][:1]
    for line in lines:
        record = _read_line(line)
        if record is None:
            is_damaged = True
            continue
        kind = record.pop("record")
        if kind in _KINDS:
            records[kind] = record
    created = records.pop("created", None)
    if created is None:
        if not is_damaged and not records:
            return None
        created, is_damaged = UNKNOWN, True
    return Attempt(created, **records, is_damaged=is_damaged)


def _read_line(line: bytes) -> Record | None:
    """None: it is not what was written."""
    checked = _CHECKED.fullmatch(line)
    if checked is not None:
        line = checked[1] + b"}"
        if zlib.crc32(line) != int(checked[2], 16):
            return None
    try:
        record = _decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("record"), str) else None


def exists(dir_fd: int, key: Key) -> bool:
    """Whether there is a file, whatever it says: it is made before all else of an attempt, and
    removed after all else."""
    try:
        os.stat(file_name(key), dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def is_locked(dir_fd: int, key: Key) -> bool:
    """Does a runner live for this attempt?"""
    try:
        fd = os.open(file_name(key), os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def keys(dir_fd: int) -> list[Key]:
    """Every attempt that has a file."""
    names = (_KEY.fullmatch(name) for name in os.listdir(dir_fd))
    return sorted((int(name[1]), int(name[2])) for name in names if name)


def remove(dir_fd: int, key: Key) -> None:
    try:
        os.unlink(file_name(key), dir_fd=dir_fd)
    except FileNotFoundError:
        pass
