"""The attempts that this launcher knows, each with its file, and whose jobs are its own."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from drfd.common.failpoints import reach
from drfd.common.owner import read_owner
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key, Record, Records
from drfd.launcher.protocol import Assignment
from drfd.launcher.slurm.mapping import Name
from drfd.linux.descriptors import opened

#: The file with the journals whose jobs are this launcher's.
_JOURNALS = "instances"


class Attempts(dict[Key, Records]):
    """The known attempts. Unlike a local job, one on a node outlives a power cut of this machine:
    therefore each record is on the disk before anything follows from it."""

    def __init__(self, state: Path, fd: int, boot_id: str) -> None:
        """`state` is the directory of the file with the journals, and `fd` the descriptor of that
        of attempt files."""
        super().__init__()
        self.state, self.fd, self.boot_id = state, fd, boot_id
        self.journals: set[str] = set()

    def load(self) -> None:
        """Read what an earlier launcher has left."""
        with suppress(FileNotFoundError):
            self.journals.update((self.state / _JOURNALS).read_text().split())
        for key in attempt_files.keys(self.fd):
            self._read(key)

    def name(self, key: Key) -> Name:
        """Return the name by which Slurm's jobs tell that they are this attempt."""
        return Name(read_owner(self[key].created).journal or "", key)

    def create(self, key: Key, assignment: Assignment) -> None:
        """Make the attempt file. Raises OSError; there is none then."""
        order = assignment.order
        reach("slurm.before-attempt-file")
        created = attempt_files.created_record(order.owner, self.boot_id, None) | {
            "node": order.node
        }
        try:
            fd = attempt_files.create(self.fd, key, created)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            os.fsync(self.fd)
            self._read(key)
        except OSError:
            attempt_files.remove(self.fd, key)
            raise

    def remember_journal(self, journal: str) -> None:
        """Take the jobs of this journal for this launcher's from now on. Raises OSError."""
        if journal in self.journals:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with opened(self.state / _JOURNALS, flags, 0o600) as fd:
            os.write(fd, f"{journal}\n".encode())
            os.fsync(fd)
        self.journals.add(journal)

    def append(self, key: Key, kind: str, record: Record) -> None:
        """Add a record to the file of an attempt."""
        attempt_files.add(self.fd, key, kind, record, is_synced=True)
        self._read(key)

    def note_submitted(self, key: Key, slurm_id: int) -> None:
        """Record that Slurm has a job of an attempt, under this id."""
        self.append(key, "submitted", {"slurm_id": slurm_id, "at_s": time.time()})

    def note_launched(self, key: Key) -> None:
        """Record that an attempt has begun."""
        self.append(key, "launched", {"at_s": time.time()})

    def note_signals(self, key: Key, count: int) -> None:
        """Record how many signals were sent to an attempt in all."""
        attempt_files.note_signals(self.fd, key, count)
        self._read(key)

    def remove(self, key: Key) -> None:
        reach("slurm.before-unlink")
        attempt_files.remove(self.fd, key)
        del self[key]

    def start(self, key: Key) -> dict[str, float]:
        """Return when an attempt began. The file may be of an earlier boot of this machine, which
        the node has outlived."""
        created, now_s = self[key].created, time.time()
        at_s = created["at_s"]
        if created["boot_id"] == self.boot_id:
            return {"at_s": at_s, "mono_s": created["mono_s"]}
        return {"at_s": at_s, "mono_s": time.monotonic() - max(0.0, now_s - at_s)}

    def _read(self, key: Key) -> None:
        attempt = attempt_files.read(self.fd, key)
        if attempt is None:
            # Its creation was interrupted, so nothing was submitted.
            attempt_files.remove(self.fd, key)
        else:
            self[key] = attempt
