"""What of a job's ranges is lent on this machine.

Cores move between the two ends of a range only with `enforcement.cores = "share"`, disk rates
wherever the kernel limits them; both only where the launcher says that it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drfd.core.model.job import JobSpec
from drfd.daemon.monitoring.lender import CORES, DISKS
from drfd.host.disks import Disk
from drfd.launcher.protocol import SHARE, WEIGHT, Message

#: What the owner should know of a running job that began in another mode.
ENTRENCHED = (
    "it is lent no cores, because it began before enforcement.cores was share; "
    "it keeps the limits with which it began"
)


def lends(hello: Message, cores_by: str) -> frozenset[str]:
    """Return what is lent here, of CORES and DISKS; nothing while the launcher, which knows, has
    not said. `cores_by` is the configured mode, and `hello` what the launcher said."""
    found = frozenset(hello.get("lendable", ()))
    return found if cores_by == SHARE else found - {CORES}


def unlent_text(
    spec: JobSpec, hello: Message, cores_by: str, disks: Sequence[Disk] = ()
) -> str | None:
    """Return what the owner of a job should know of ranges of which nothing is lent, or None if all
    of them count."""
    reasons = dict(_reasons(spec, hello, cores_by, disks))
    if not reasons:
        return None
    if len(set(reasons.values())) == 1:
        text = f"no {' or '.join(reasons)} are lent here ({next(iter(reasons.values()))})"
    else:
        (first, why), (second, why_second) = reasons.items()
        text = f"no {first} are lent here ({why}), and no {second} ({why_second})"
    text = f"{text}; the job has the lower end"
    is_by_weight = cores_by == WEIGHT and "cores" in reasons
    return f"{text}, and of cores what others leave idle" if is_by_weight else text


def _reasons(
    spec: JobSpec, hello: Message, cores_by: str, disks: Sequence[Disk]
) -> Iterator[tuple[str, str]]:
    """Yield what of the job's ranges is not lent, and why."""
    most, lent = spec.most, lends(hello, cores_by)
    if most is None:
        return
    if most.cores_milli:
        if cores_by != SHARE:
            yield "cores", f"enforcement.cores is {cores_by}"
        elif hello and CORES not in lent:
            yield "cores", "the kernel gives no way"
    if any(most.rate_sums):
        wanted = [disk for disk in disks if any(most.rates(disk.name))]
        unlimited = [disk.why_none for disk in wanted if not disk.devices]
        if hello and DISKS not in lent:
            yield "disk rates", "the kernel gives no way"
        elif unlimited and len(unlimited) == len(wanted):
            yield "disk rates", unlimited[0]
