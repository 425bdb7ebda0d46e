"""Attempt files: what is known of each attempt, written where it survives every process.

One file per attempt, `ID.ATTEMPT`, to which JSON lines are only ever appended; the runner holds an
flock on it as long as it runs, so the kernel knows whether a runner is alive. The records, in
order:

    created        the launcher is about to start a runner: when, for whom, in which cgroup, and
                   whether for the job or for the notification of its end, which has its records
                   in place of the job's
    runner         the runner has started: its pid and start time
    submitted      Slurm has the job, under this number of its own; in place of `runner`, where the
                   attempt is on a node of Slurm's
    launched       the job's program is about to be released; from here on it is never launched
                   again
    launch_failed  its program could not be run, and why
    exited         its first process is gone, and how; and what the kernel has counted until then

A line that cannot be read counts as not written: within one boot its writer got an error for it.
After a power cut it may have been any record, so an attempt of another boot counts as one that has
run, because a program must never be released a second time.

Among these records, the launcher writes how many signals it has been ordered to send, before it
sends them, so that a repeated order sends nothing twice. This one record is overwritten in place,
because a job may be sent any number of signals.

There is no fsync: the records serve processes that start after a crash of drfd, not of the machine.
After a power cut the job is gone anyway, and an attempt that the journal does not know to have
ended becomes LOST.

`JobsStopRecord` tells when systemd stopped the unit of all jobs, as at a shutdown of the machine.
An end recorded after that time says nothing about the job: a stopped job may have exited 0.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drfd.common.owner import Owner, read_owner
from drfd.linux.kernel_files import opened

#: Written by drfd-jobs.service when it is stopped: the boot's id, and the time in seconds.
JOBS_STOP_FILE = "jobs-stopped"


@dataclass(frozen=True, slots=True)
class JobsStopRecord:
    boot_id: str
    at_s: float

    def affected(self, attempt: Records) -> bool:
        """Return whether the attempt was alive when the jobs were stopped."""
        created, exited = attempt.created, attempt.exited
        if created["boot_id"] != self.boot_id or created["at_s"] > self.at_s:
            return False
        return exited is None or bool(exited["at_s"] >= self.at_s)


def read_jobs_stop(directory: Path) -> JobsStopRecord | None:
    """Return the latest record, or None if there is none, or only a part of one: the machine may
    have gone down while it was written."""
    try:
        boot_id, at_s = (directory / JOBS_STOP_FILE).read_text().split()
        return JobsStopRecord(boot_id, float(at_s))
    except (FileNotFoundError, ValueError):
        return None


Key = tuple[int, int]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Records:
    """The contents of an attempt file. A record that is not written yet is None."""

    created: Record
    runner: Record | None = None
    submitted: Record | None = None
    launched: Record | None = None
    launch_failed: Record | None = None
    exited: Record | None = None
    signalled: Record | None = None

    @property
    def owner(self) -> Owner:
        return read_owner(self.created)

    @property
    def is_notice(self) -> bool:
        """Whether what runs is the command that notifies the owner of the job's end."""
        return "is_notice" in self.created

    @property
    def is_over(self) -> bool:
        return self.launch_failed is not None or self.exited is not None

    def unsent(self, count: int, signals: tuple[int, ...]) -> list[int]:
        """Return which of the last `signals`, of `count` in all that have been ordered, are still
        to be sent, each once."""
        sent = self.signalled["count"] if self.signalled is not None else 0
        return list(dict.fromkeys(signals[-(count - sent) :])) if count > sent else []

    @property
    def may_have_run(self) -> bool:
        """Return whether the job's program may have been released."""
        return self.is_over or self.launched is not None


_PIECE_BYTES = 1 << 16
_KINDS = "created", "runner", "submitted", "launched", "launch_failed", "exited", "signalled"
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode
#: The start of the record that is overwritten, and the digits reserved for its count.
_SIGNALLED, _COUNT_WIDTH = '{"record":"signalled"', 18
#: A job or attempt number in a name: as `str` writes it, so that each key has exactly one name.
_NUMBER = "([1-9][0-9]{0,17})"
_KEY = re.compile(rf"{_NUMBER}\.{_NUMBER}")
_CGROUP = re.compile(rf"job-{_NUMBER}-{_NUMBER}")


def file_name(key: Key) -> str:
    return f"{key[0]}.{key[1]}"


def cgroup_name(key: Key) -> str:
    return f"job-{key[0]}-{key[1]}"


def cgroup_key(name: str) -> Key | None:
    """Return the attempt whose cgroup has this name, or None if drfd gives no such name."""
    match = _CGROUP.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def created_record(
    owner: Owner,
    boot_id: str,
    cgroup: str | None,
    space: str | None = None,
    *,
    is_notice: bool = False,
) -> Record:
    """Return the first record of an attempt, or of its notification, that begins now. `space` is
    the parent of the directories of its private temporary space, or None if it has none."""
    record = {
        **owner.facts(),
        "boot_id": boot_id,
        "cgroup": cgroup,
        "at_s": time.time(),
        "mono_s": time.monotonic(),
    }
    if space is not None:
        record["space"] = space
    if is_notice:
        record["is_notice"] = True
    return record


def create(dir_fd: int, key: Key, created: Record) -> int:
    """Create an attempt file and return a descriptor that holds its lock. Raises FileExistsError
    if the attempt has a file already."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(file_name(key), flags, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        append(fd, "created", created)
    except BaseException:
        os.close(fd)
        raise
    return fd


def append(fd: int, kind: str, record: Record) -> None:
    _write(fd, _line(kind, record))


def _line(kind: str, record: Record) -> bytes:
    return f"{_encode({'record': kind, **record})}\n".encode()


def _write(fd: int, line: bytes) -> None:
    written = os.write(fd, line)
    if written != len(line):
        # Only a full disk makes a write to a file partial.
        raise OSError(errno.ENOSPC, f"attempt file: {written} of {len(line)} bytes written")


def note_signals(dir_fd: int, key: Key, count: int) -> None:
    """Write how many signals have been ordered, in place of the earlier record of them."""
    line = f'{_SIGNALLED},"count":{count:<{_COUNT_WIDTH}}}}\n'.encode()
    with opened(file_name(key), os.O_RDWR, dir_fd=dir_fd) as fd:
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        at = data.rfind(_SIGNALLED.encode())
        if at >= 0:
            os.pwrite(fd, line, at)
            return
    with opened(file_name(key), os.O_WRONLY | os.O_APPEND, dir_fd=dir_fd) as fd:
        _write(fd, b"\n" + line)


def add(dir_fd: int, key: Key, kind: str, record: Record, *, is_synced: bool = False) -> None:
    """Append a record to the file of an attempt, after a line feed, because its last line may be a
    partial one. Raises OSError."""
    with opened(file_name(key), os.O_WRONLY | os.O_APPEND, dir_fd=dir_fd) as fd:
        _write(fd, b"\n" + _line(kind, record))
        if is_synced:
            os.fsync(fd)


def read(dir_fd: int, key: Key) -> Records | None:
    """Read an attempt file. Returns None if there is none, or if its creation was interrupted, in
    which case nothing was started, or a power cut has taken its first record."""
    try:
        with opened(file_name(key), os.O_RDONLY, dir_fd=dir_fd) as fd:
            data = os.read(fd, _PIECE_BYTES)
            # The last piece of a file is short; nearly every file has only one.
            while len(data) % _PIECE_BYTES == 0 and (piece := os.read(fd, _PIECE_BYTES)):
                data += piece
            return parse(data)
    except FileNotFoundError:
        return None


def parse(data: bytes) -> Records | None:
    """Parse the records in `data`. Returns None if the first one cannot be read."""
    records: dict[str, Record] = {}
    for line in filter(None, data.split(b"\n")):
        record = _read_line(line)
        if record is not None:
            records[record.pop("record")] = record
    return Records(**records) if "created" in records else None


def _read_line(line: bytes) -> Record | None:
    """Return the record in a line, or None if the line is not what drfd wrote."""
    try:
        record = _decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("record") in _KINDS else None


def is_locked(dir_fd: int, key: Key) -> bool:
    """Return whether a runner of this attempt is alive."""
    try:
        with opened(file_name(key), os.O_RDONLY, dir_fd=dir_fd) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def keys(dir_fd: int) -> list[Key]:
    """Return every attempt that has a file, in ascending order."""
    names = (_KEY.fullmatch(name) for name in os.listdir(dir_fd))
    return sorted((int(name[1]), int(name[2])) for name in names if name)


def remove(dir_fd: int, key: Key) -> None:
    try:
        os.unlink(file_name(key), dir_fd=dir_fd)
    except FileNotFoundError:
        pass
