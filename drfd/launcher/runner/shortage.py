"""Temporary shortages of the machine: memory, processes, descriptors, room on a disk.

Before a job's program runs, a shortage postpones the launch and does not end the job;
`machine_shortage` tells it from a failure. Once the program runs, its runner waits until the
shortage is over (`record_end` in record.h).
"""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, dataclass

from drfd.launcher.attempt_files import Record, cgroup_key
from drfd.launcher.confinement.interface import LimitFailed

#: Whom a shortage keeps from starting: all jobs, or a single one.
MACHINE, JOB = "machine", "job"
#: The resource that is short.
MEMORY, PROCESSES, DESCRIPTORS = "memory", "processes", "descriptors"
SPACE, QUOTA, LAUNCHER, DIRECTORY = "space", "quota", "launcher", "directory"

RESOURCES = {
    errno.ENOMEM: MEMORY,
    errno.ENOBUFS: MEMORY,
    errno.EAGAIN: PROCESSES,
    errno.EMFILE: DESCRIPTORS,
    errno.ENFILE: DESCRIPTORS,
    errno.ENOSPC: SPACE,
    errno.EFBIG: SPACE,
    errno.EDQUOT: QUOTA,
}
#: Resource → its name in sentences.
SHORT_OF = {
    MEMORY: "memory",
    PROCESSES: "processes",
    DESCRIPTORS: "descriptors of open files",
    SPACE: "room on a disk",
    QUOTA: "quota on a disk",
}


@dataclass(frozen=True, slots=True)
class Shortage:
    """Whose and what it is, as an attempt file and a report say it."""

    whose: str
    resource: str


def machine_shortage(error: BaseException) -> Shortage | None:
    """Return the machine's shortage behind an error of a launch, or None if it is not temporary."""
    is_cause = isinstance(error, (OSError, MemoryError))
    cause = error if is_cause else error.__cause__ or error.__context__
    if isinstance(cause, MemoryError):
        return Shortage(MACHINE, MEMORY)
    if not isinstance(cause, OSError) or cause.errno not in RESOURCES:
        return None
    name = os.path.basename(os.fsdecode(cause.filename or ""))
    if cause.errno == errno.ENOSPC and isinstance(error, LimitFailed) and cgroup_key(name) is None:
        # Of a file of an attempt's cgroup, as of a cpuset, it means that it can never be set.
        return None
    return Shortage(MACHINE, RESOURCES[cause.errno])


def failure(text: str, shortage: Shortage | None) -> Record:
    """Return the `launch_failed` record and report: why the program could not be run."""
    return {"text": text} if shortage is None else {"text": text, **asdict(shortage)}


def machine_text(short: Shortage, error: BaseException) -> str:
    """Return what the machine is short of, by the error that was met."""
    why = error if isinstance(error, LimitFailed) else getattr(error, "strerror", None)
    return short_of_machine(short.resource, str(why or "out of memory"))


def short_of_machine(resource: str, why: str) -> str:
    """Return what the machine is short of, in a sentence that every user may see."""
    return f"the machine is short of {SHORT_OF[resource]}: {why}"
