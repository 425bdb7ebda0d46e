"""The last step of a runner: it becomes a small compiled program that waits for the end of its job.

A runner that waits for a job of hours is a process of root's that does hardly anything. So when its
job has run for a while, it executes the program (starter/wait.h), which takes a few pages of
memory, keeps only the right to kill, and refuses itself all system calls but a dozen. The pid, the
children and the lock on the attempt file stay. Short jobs are over before that, and share a runner.

The program opens no file: it gets descriptors, and knows nothing of the kinds of cgroups.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from drfd.common import failpoints
from drfd.launcher.confinement.interface import Killing
from drfd.launcher.runner.starter.program import Starter

MAGIC = "drfd-wait-1"
#: Flag of wait.h: root's rights are dropped.
_DROPS = 1


@dataclass(slots=True)
class Used:
    """The resource use of a runner's children, and of theirs, until they were waited for."""

    cpu_s: float = 0.0
    #: Peak memory of the largest process.
    peak_kib: int = 0
    read_blocks: int = 0
    written_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What the program has to know."""

    #: The record that it writes: "ended", or "notified".
    record: str
    job_id: int
    #: The process whose end is recorded.
    pid: int
    attempt_fd: int
    killing: Killing
    #: Seconds for which the remaining processes are killed.
    sweep_s: float
    #: When the process is killed (monotonic clock); None for never.
    deadline_s: float | None = None
    #: The process with which the program ends; None for none.
    parent: int | None = None
    #: Readable when the kernel has killed for memory; None if this machine has no such descriptor.
    oom_fd: int | None = None
    #: The output files that have a limit → their sizes at the start, and the limit in bytes.
    outputs: Mapping[int, int] = field(default_factory=dict)
    most_output: int = 0
    used: Used = field(default_factory=Used)
    #: A peak of no more than this may be drfd's own.
    own_kib: int = 0


def encode(wait: Wait, opened: Mapping[str, int]) -> bytes:
    """Encode the plan of a wait, in the order of `read_wait` in wait.h. `opened`: the descriptors
    of the files that `wait.killing` names."""
    killing, used = wait.killing, wait.used
    files = (killing.kill, killing.freezer, killing.state, killing.members, killing.populated)
    fds = (wait.attempt_fd, wait.oom_fd, opened.get(killing.oom_control or ""))
    deadline_ms = 0 if wait.deadline_s is None else round(wait.deadline_s * 1000)
    words = [
        *(MAGIC, f"{_DROPS * (os.getuid() == 0):x}", wait.record),
        *_numbers(wait.job_id, wait.pid, deadline_ms, round(wait.sweep_s * 1000), wait.parent or 0),
        *map(_descriptor, fds),
        *(_descriptor(opened.get(file or "")) for file in files),
        _descriptor(opened.get(_children())),
        *(killing.freeze, killing.thaw, killing.frozen, killing.empty),
        *_numbers(round(used.cpu_s * 1e6), used.peak_kib, used.read_blocks, used.written_blocks),
        *_numbers(wait.own_kib, wait.most_output, len(wait.outputs)),
        *(word for fd, size in wait.outputs.items() for word in (_descriptor(fd), f"{size:x}")),
        failpoints.directory() or "",
    ]
    data = "\0".join((*words, "")).encode(errors="surrogateescape")
    return struct.pack("=I", len(data)) + data


def become(starter: Starter, wait: Wait) -> None:
    """Become the program. Returns if that cannot be done now, for a shortage; nothing is changed
    then."""
    opened: dict[str, int] = {}
    plan_fd = -1
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        for path, flags in _files(wait.killing).items():
            # A cgroup that is gone has no processes to be killed.
            with suppress(FileNotFoundError):
                opened[path] = os.open(path, flags | os.O_CLOEXEC)
        plan_fd = os.memfd_create("plan", os.MFD_CLOEXEC)
        os.write(plan_fd, encode(wait, opened))
        os.lseek(plan_fd, 0, os.SEEK_SET)
        given = (wait.attempt_fd, *opened.values(), *wait.outputs, plan_fd)
        for fd in given if wait.oom_fd is None else (*given, wait.oom_fd):
            os.set_inheritable(fd, True)
        starter.execute(str(plan_fd))
    except OSError:
        return
    finally:
        for fd in (*opened.values(), plan_fd):
            if fd != -1:
                os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _files(killing: Killing) -> dict[str, int]:
    """Return path → flags of the files that the program reads or writes."""
    found = dict.fromkeys(
        filter(None, (killing.state, killing.members, killing.populated, killing.oom_control)),
        os.O_RDONLY,
    )
    found |= dict.fromkeys(filter(None, (killing.kill, killing.freezer)), os.O_RDWR)
    return found | {_children(): os.O_RDONLY}


def _children() -> str:
    return f"/proc/self/task/{os.getpid()}/children"


def _numbers(*values: int) -> list[str]:
    return [f"{value:x}" for value in values]


def _descriptor(fd: int | None) -> str:
    """Return the number of a descriptor for wait.h, which has 0 for none."""
    return "0" if fd is None else f"{fd + 1:x}"
