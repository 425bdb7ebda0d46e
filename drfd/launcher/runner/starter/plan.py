"""The plan of an attempt: what root has decided, for the compiled program that carries it out.

starter.c reads it from a file in memory that only the launcher has (layout.py).
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from itertools import chain

from drfd.common import failpoints
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.interface import CgroupSetting, Confinement
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner import identity, inheritance
from drfd.launcher.runner.starter.layout import AttemptPlan
from drfd.launcher.system.private_tmp import COVERED

#: Seconds that a job's process may take until its program begins.
START_S = 120.0
#: Seconds that exec of the program may take before the job counts as started in any case.
EXEC_S = 1.0
#: Seconds that a runner kills the job's remaining processes for; then the launcher goes on.
SWEEP_S = 10.0
#: Seconds that a notification may take in all.
NOTICE_S = 30.0


@dataclass(frozen=True, slots=True)
class JobStart:
    """What the program runs: a job, or the command that notifies its owner."""

    assignment: Assignment
    user: pwd.struct_passwd
    groups: list[int]
    confinement: Confinement
    #: Parent of the directories of the attempt's private temporary space; None if it has none.
    place: str | None

    @property
    def key(self) -> Key:
        return self.assignment.order.key


def plan_of(job: JobStart, settings: list[CgroupSetting], capabilities: int) -> AttemptPlan:
    """Return the plan of an attempt. `settings` are limits to be set first, and `capabilities`
    those of its runner, as bits. Raises LimitFailed."""
    order, user, is_notice = job.assignment.order, job.user, job.assignment.is_notice
    entrance = job.confinement.entrance(job.key, order.limits, order.uid)
    killing = job.confinement.killing(job.key)
    is_root = os.getuid() == 0
    has_keyrings = inheritance.why_no_keyrings() is None
    variables = identity.variables_of(user, order)
    first, second = COVERED
    return AttemptPlan(
        drops=is_root,
        effective=capabilities,
        permitted=capabilities,
        name=attempt_files.file_name(job.key),
        notifies=is_notice,
        tells_start=order.tells_start,
        leaves_keyring=is_root and has_keyrings,
        joins_keyring=has_keyrings,
        resets_oom_score=inheritance.oom_score() != "0",
        empties_output=order.empties_output,
        sends_outputs=bool(order.output_max_bytes),
        most_output=order.output_max_bytes,
        limits=inheritance.policy(),
        timer_slack_ns=inheritance.TIMER_SLACK_NS,
        start_ms=_ms(NOTICE_S if is_notice else START_S),
        exec_ms=_ms(EXEC_S),
        sweep_ms=_ms(SWEEP_S),
        whole_ms=_ms(NOTICE_S * is_notice),
        pids_max=killing.pids_max,
        freezer=killing.freezer,
        oom_control=killing.oom_control,
        event_control=killing.event_control,
        counters=[*chain.from_iterable(job.confinement.counters(job.key))],
        directories=job.confinement.directories(job.key),
        failpoints=failpoints.directory() or "",
        settings=[*chain.from_iterable(settings)],
        cgroup=entrance.cgroup or "",
        entries=[*entrance.files],
        cpus=tuple(sorted(entrance.cpus or ())),
        processes=entrance.processes or 0,
        login=str(order.uid) if inheritance.may_set_login() else "",
        place=job.place or "",
        shm=f"mode=1777,size={order.limits.memory_bytes}",
        names=(first, second),
        targets=(COVERED[first], COVERED[second]),
        uid=user.pw_uid,
        gid=identity.gid_of(user, job.groups, order.gid),
        groups=tuple(job.groups),
        signs=order.output_signs,
        hidden=[*variables.hidden],
        defaults=_pairs(variables.defaults),
        openmp_defaults=_pairs(variables.openmp),
        wait_defaults=_pairs(variables.wait),
        own=_pairs(variables.own),
    )


def _pairs(env: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
