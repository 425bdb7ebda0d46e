"""What of a job's ranges is lent on this machine.

Only with `enforcement.cores = "share"` does anything move between the two ends of a range, and only
where the launcher says that it can.
"""

from __future__ import annotations

from drfd.core.model.job import JobSpec
from drfd.launcher.protocol import SHARE, Message

#: What a range may be of, for people, and what of it the controller lends.
_WORDS = {"cores": "cores", "disks": "disk rates"}
_LENT = frozenset({"cores"})
#: What the owner should know of a running job that began in another mode.
ENTRENCHED = (
    "it is lent no cores, because it began before enforcement.cores was share; "
    "it has the lower end until it ends"
)


def lends(hello: Message, cores_by: str) -> frozenset[str] | None:
    """Return what is lent here, some of "cores" and "disks"; None while the launcher, which knows,
    has not said. `cores_by` is the configured mode, and `hello` what the launcher said."""
    if cores_by != SHARE:
        return frozenset()
    if not hello:
        return None
    return _LENT.intersection(hello.get("lendable", _WORDS) if hello.get("lends") else ())


def unlent_text(spec: JobSpec, hello: Message, cores_by: str) -> str | None:
    """Return what the owner of a job should know of ranges of which nothing is lent, or None if all
    of them count."""
    lent, most = lends(hello, cores_by), spec.most
    if lent is None or most is None:
        return None
    ranges = {"cores": most.cores_milli, "disks": sum(most.rate_sums)}
    idle = [name for name, amount in ranges.items() if amount and name not in lent]
    if not idle:
        return None
    what = " or ".join(_WORDS[name] for name in idle)
    why = "drfd lends cores alone" if _LENT.isdisjoint(idle) else "the kernel gives no way"
    if cores_by != SHARE:
        why = f"enforcement.cores is {cores_by}"
    return f"no {what} are lent here ({why}); the job has the lower end"
