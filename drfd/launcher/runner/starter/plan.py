"""The plan of an attempt: what root has decided, for the compiled program that carries it out.

    length of the rest, in four bytes
    drfd-plan-6, and the fields in the order of `encode`, each with a NUL after it

Numbers are hexadecimal; a list has its length first, unless that is always the same. starter.c
reads the plan from a file in memory that only the launcher has. It holds nothing of the payload.
"""

from __future__ import annotations

import os
import pwd
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from drfd.common import failpoints
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.interface import CgroupSetting, Confinement
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner import identity, inheritance
from drfd.launcher.system.private_tmp import COVERED

MAGIC = "drfd-plan-6"
#: Flags of plan.h.
DROPS, JOINS_KEYRING, EMPTIES_OUTPUT, RESETS_OOM_SCORE, SENDS_OUTPUTS = 1, 2, 4, 8, 16
NOTIFIES, LEAVES_KEYRING, TELLS_START = 32, 64, 128
#: Seconds that a job's process may take until its program begins.
START_S = 120.0
#: Seconds that exec of the program may take before the job counts as started in any case.
EXEC_S = 1.0
#: Seconds that a runner kills the job's remaining processes for; then the launcher goes on. And
#: those of a notification.
SWEEP_S, NOTICE_SWEEP_S = 10.0, 5.0


@dataclass(frozen=True, slots=True)
class JobStart:
    """What the program runs: a job, or the command that notifies its owner."""

    assignment: Assignment
    user: pwd.struct_passwd
    groups: list[int]
    confinement: Confinement
    #: Parent of the directories of the attempt's private temporary space; None if it has none.
    place: str | None
    #: Seconds that the command that notifies the owner may take; None for the job itself.
    notice_s: float | None = None

    @property
    def key(self) -> Key:
        return self.assignment.order.key


def encode(job: JobStart, settings: list[CgroupSetting], capabilities: int) -> bytes:
    """Encode the plan of an attempt. `settings` are limits to be set first, and `capabilities`
    those of its runner, as bits. Raises LimitFailed, ValueError if a text contains a NUL."""
    order, user, is_notice = job.assignment.order, job.user, job.notice_s is not None
    entrance = job.confinement.entrance(job.key, order.limits, order.uid)
    killing = job.confinement.killing(job.key)
    is_root = os.getuid() == 0
    has_keyrings = inheritance.why_no_keyrings() is None
    flags = DROPS * is_root | LEAVES_KEYRING * (is_root and has_keyrings)
    flags |= JOINS_KEYRING * has_keyrings
    flags |= EMPTIES_OUTPUT * order.empties_output
    flags |= SENDS_OUTPUTS * bool(order.output_max_bytes)
    flags |= NOTIFIES * is_notice | TELLS_START * order.tells_start
    flags |= RESETS_OOM_SCORE * (inheritance.oom_score() != "0")
    variables = identity.variables_of(user, order)
    words = [
        MAGIC,
        *_numbers(flags, capabilities, capabilities),
        attempt_files.file_name(job.key),
        *_counted(_numbers(*inheritance.policy())),
        *_numbers(inheritance.TIMER_SLACK_NS),
        *_milliseconds(
            START_S, EXEC_S, NOTICE_SWEEP_S if is_notice else SWEEP_S, job.notice_s or 0.0
        ),
        *_numbers(os.getpid() if is_notice else 0),
        *(killing.pids_max, killing.freezer, killing.oom_control, killing.event_control),
        *_numbers(order.output_max_bytes),
        failpoints.directory() or "",
        *_counted(chain.from_iterable(settings)),
        entrance.cgroup or "",
        *_counted(entrance.files),
        *_counted(_numbers(*sorted(entrance.cpus or ()))),
        *_numbers(entrance.processes or 0),
        str(order.uid) if inheritance.may_set_login() else "",
        job.place or "",
        f"mode=1777,size={order.limits.memory_bytes}",
        *COVERED,
        *COVERED.values(),
        *_numbers(user.pw_uid, identity.gid_of(user, job.groups, order.gid)),
        *_counted(_numbers(*job.groups)),
        *_signs(job),
        *_counted(variables.hidden),
        *_counted(_pairs(variables.defaults)),
        *_counted(_pairs(variables.openmp)),
        *_counted(_pairs(variables.wait)),
        *_counted(_pairs(variables.own)),
    ]
    text = "\0".join((*words, ""))
    if text.count("\0") != len(words):
        raise ValueError("a text holds a NUL")
    data = text.encode(errors="surrogateescape")
    return struct.pack("=I", len(data)) + data


def _signs(job: JobStart) -> tuple[str, ...]:
    """Return what %j, %A, %a, %x and %u stand for (`unpack.output_path`)."""
    order = job.assignment.order
    array_id, name, user = order.array_id or order.id, order.name, order.user
    numbers = str(order.id), str(array_id), str(order.array_index)
    return *numbers, name.replace("/", "_"), user.replace("/", "_")


def _pairs(env: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _milliseconds(*seconds: float) -> list[str]:
    return _numbers(*(round(1000 * each) for each in seconds))


def _numbers(*values: int) -> list[str]:
    """Return hexadecimal numbers; RLIM_INFINITY, which is negative here, as the kernel has it."""
    return [f"{value & 0xFFFF_FFFF_FFFF_FFFF:x}" for value in values]


def _counted(words: Iterable[str]) -> list[str]:
    found = list(words)
    return [f"{len(found):x}", *found]
