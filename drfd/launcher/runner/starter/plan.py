"""The plan of a job's process: what root has decided, for the compiled program that carries it out.

    length of the rest, in four bytes
    drfd-plan-2, and the fields in the order of `encode`, each with a NUL after it

Numbers are hexadecimal; a list has its length first, unless that is always the same. starter.c
reads the plan from a pipe that only the runner can write to. It holds nothing of the payload.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterable

from drfd.launcher.confinement.interface import Entrance
from drfd.launcher.runner import identity, inheritance, scripts
from drfd.launcher.runner.child import JobStart
from drfd.launcher.system.private_tmp import COVERED
from drfd.linux import service
from drfd.linux.syscalls import Capabilities
from drfd.payload.environment import (
    DEFAULT_PATH,
    DEFAULTS,
    GRES_PREFIX,
    PASSIVE_WAIT,
    thread_defaults,
)

MAGIC = "drfd-plan-2"
#: Flags of starter.c.
DROPS, JOINS_KEYRING, EMPTIES_OUTPUT, RESETS_OOM_SCORE, SENDS_OUTPUTS = 1, 2, 4, 8, 16
NOTIFIES = 32


def encode(job: JobStart, entrance: Entrance, capabilities: Capabilities) -> bytes:
    """Encode the plan of a job. `capabilities` are the runner's own. Raises ValueError if a text
    contains a NUL."""
    order, user = job.assignment.order, job.user
    is_root = os.getuid() == 0
    joins_keyring = job.has_quota and inheritance.why_no_keyrings() is None
    flags = DROPS * is_root | JOINS_KEYRING * joins_keyring
    flags |= EMPTIES_OUTPUT * order.empties_output
    flags |= SENDS_OUTPUTS * bool(order.output_max_bytes)
    flags |= NOTIFIES * job.is_notice
    flags |= RESETS_OOM_SCORE * (inheritance.oom_score() != "0")
    usual, openmp = (
        thread_defaults(order.threads, order.floor_threads) if order.threads else ({}, {})
    )
    words = [
        MAGIC,
        *_numbers(flags, *capabilities),
        entrance.cgroup or "",
        *_counted(entrance.files),
        *_counted(_numbers(*sorted(entrance.cpus or ()))),
        *_numbers(entrance.processes or 0),
        str(order.uid) if inheritance.may_set_login() else "",
        *_numbers(*inheritance.core_limit()),
        job.place or "",
        f"mode=1777,size={order.limits.memory_bytes}",
        *COVERED,
        *COVERED.values(),
        *_numbers(user.pw_uid, identity.gid_of(user, job.groups, order.gid)),
        *_counted(_numbers(*job.groups)),
        *_signs(job),
        *_removed(order.hidden),
        *_counted(_variables(usual | DEFAULTS | {"PATH": DEFAULT_PATH})),
        *_counted(_variables(openmp)),
        *_counted(_variables(PASSIVE_WAIT if order.may_be_lent_cores else {})),
        *_counted(_variables(identity.account_variables(user) | order.variables)),
        *scripts.PROGRAMS,
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


@functools.lru_cache(maxsize=8)
def _removed(hidden: tuple[str, ...]) -> list[str]:
    """Return the beginnings of the submitter's variables that the job does not get."""
    return _counted((*(f"{name}=" for name in (*hidden, *service.VARIABLES)), GRES_PREFIX))


def _variables(env: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _numbers(*values: int) -> list[str]:
    """Return hexadecimal numbers; RLIM_INFINITY, which is negative here, as the kernel has it."""
    return [f"{value & 0xFFFF_FFFF_FFFF_FFFF:x}" for value in values]


def _counted(words: Iterable[str]) -> list[str]:
    found = list(words)
    return [f"{len(found):x}", *found]
