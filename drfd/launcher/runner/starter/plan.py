"""The plan of an attempt: what root has decided, for the compiled program that carries it out.

starter.c reads it from a file in memory that only the launcher has (layout.py).
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field
from itertools import chain

from drfd.common import failpoints
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.interface import Confinement, Prepared
from drfd.launcher.protocol import NOTICE_S, Assignment
from drfd.launcher.runner import identity, inheritance
from drfd.launcher.runner.starter import layout
from drfd.launcher.runner.starter.layout import OwnPlan, SharedPlan
from drfd.launcher.system.private_tmp import COVERED

#: Seconds that a job's process may take until its program begins.
START_S = 120.0
#: Seconds that exec of the program may take before the job counts as started in any case.
EXEC_S = 1.0
#: Seconds that a runner kills the job's remaining processes for; then the launcher goes on.
SWEEP_S = 10.0
#: Number of kinds of attempts whose text is kept.
_MOST_SHARED = 1000


@dataclass(frozen=True, slots=True)
class JobStart:
    """What the program runs: a job, or the command that notifies its owner."""

    assignment: Assignment
    user: pwd.struct_passwd
    groups: list[int]
    #: Parent of the directories of the attempt's private temporary space; None if it has none.
    place: str | None

    @property
    def key(self) -> Key:
        return self.assignment.order.key


@dataclass
class Plans:
    """The plans of attempts with one confinement. The text that alike attempts share is made for
    the first of them."""

    confinement: Confinement
    #: Those with which a runner begins, as bits.
    capabilities: int
    _shared: dict[tuple[object, ...], list[str]] = field(default_factory=dict)

    def encoded(self, job: JobStart, prepared: Prepared) -> bytes:
        """Return the plan of an attempt. Raises LimitFailed, and ValueError if a text contains a
        NUL."""
        order, name = job.assignment.order, attempt_files.cgroup_name(job.key)
        kind = (
            *(job.user, tuple(job.groups), job.assignment.order.is_notice),
            *(order.uid, order.gid, order.limits, order.devices, prepared),
            *(order.threads, order.hidden),
            *(order.tells_start, order.empties_output, order.output_max_bytes),
        )
        if (shared := self._shared.get(kind)) is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            shared = layout.encode_shared(self.shared_by(job, prepared), name)
            self._shared[kind] = shared
        return layout.encode(self.own_of(job), shared, name)

    def own_of(self, job: JobStart) -> OwnPlan:
        order = job.assignment.order
        cpus, processes = self.confinement.process_limits(job.key, order.limits, order.uid)
        return OwnPlan(
            name=attempt_files.file_name(job.key),
            cpus=tuple(sorted(cpus)),
            processes=processes,
            place=job.place or "",
            signs=order.output_signs,
            own=_pairs(identity.own_variables(job.user, order)),
        )

    def shared_by(self, job: JobStart, prepared: Prepared) -> SharedPlan:
        order, user = job.assignment.order, job.user
        is_notice = order.is_notice
        cgroups = self.confinement.plan(
            job.key, order.limits, order.devices, is_pinned=prepared.is_pinned
        )
        is_root = os.getuid() == 0
        has_keyrings = inheritance.why_no_keyrings() is None
        variables = identity.variables_of(order)
        first, second = COVERED
        return SharedPlan(
            makes=prepared.makes,
            settings=[*chain.from_iterable(cgroups.settings)],
            cgroup=cgroups.cgroup,
            entries=[*cgroups.entries],
            drops=is_root,
            effective=self.capabilities,
            permitted=self.capabilities,
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
            pids_max=cgroups.pids_max,
            freezer=cgroups.freezer,
            oom_control=cgroups.oom_control,
            event_control=cgroups.event_control,
            counters=[*chain.from_iterable(cgroups.counters)],
            directories=[*cgroups.directories],
            failpoints=failpoints.directory() or "",
            login=str(order.uid) if inheritance.may_set_login() else "",
            shm=f"mode=1777,size={order.limits.memory_bytes}",
            names=(first, second),
            targets=(COVERED[first], COVERED[second]),
            uid=user.pw_uid,
            gid=identity.gid_of(user, job.groups, order.gid),
            groups=tuple(job.groups),
            hidden=[*variables.hidden],
            defaults=_pairs(variables.defaults),
            openmp_defaults=_pairs(variables.openmp),
            wait_defaults=_pairs(variables.wait),
        )


def _pairs(env: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
