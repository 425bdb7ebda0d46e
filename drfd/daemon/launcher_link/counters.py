"""What the kernel's counters of an attempt's cgroup say of its end: what it has used, and whether
it was killed for memory. The launcher passes on the numbers that its runner has put on record
(`drfd.launcher.confinement.cgroup_files` has their names).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: Largest distance, in bytes, from its limit at which the kernel kills a job for that limit.
_NEAR_BYTES = 1 << 20


class Ended(NamedTuple):
    #: Whether a process was killed for memory, and whether by the job's own limit.
    oom_killed: bool
    over_limit: bool
    #: Fields of `core.model.job.Usage`, and the bytes left in use. What the kernel lacks is left
    #: out, so that it is not taken for zero.
    counted: dict[str, int]


def judge(numbers: Mapping[str, int]) -> Ended:
    """Return what counters of either version of cgroups say."""
    counted = dict(numbers)
    for name in ("throttled", "cpu"):
        if (ns := counted.pop(f"{name}_ns", None)) is not None:
            counted[f"{name}_us"] = ns // 1000
    is_v1 = "limit_bytes" in counted or "hits" in counted
    killed, over_limit, counted = (_judge_v1 if is_v1 else _judge_v2)(counted)
    if not counted.get("left_bytes", 1):
        del counted["left_bytes"]
    return Ended(killed, over_limit, counted)


def _judge_v1(counted: dict[str, int]) -> Ended:
    """That of kills includes those by a machine-wide shortage, in which case the limit was not
    hit."""
    hits = max(counted.pop("hits", -1), counted.pop("swap_hits", -1))
    limit, peak = counted.pop("limit_bytes", None), counted.get("memory_peak_bytes", 0)
    # With swap accounting, the limit of memory and swap is the same and is hit first, and newer
    # kernels (seen on 6.18) do not count that.
    if hits > 0 or (hits == 0 and (limit is None or peak < limit)):
        counted["limit_hits"] = hits
    killed = counted.get("oom_kills", 0) > 0
    return Ended(killed, killed and limit is not None and peak >= limit - _NEAR_BYTES, counted)


def _judge_v2(counted: dict[str, int]) -> Ended:
    # A limit that the job has set on a cgroup of its own, further in, does not count here.
    own_ooms, own_kills = counted.pop("own_ooms", 0), counted.pop("own_oom_kills", 0)
    oomd_kills = counted.pop("oomd_ooms", 0)
    # "oom_kill" also counts kills by a shortage further out, which "oom" does not.
    over_limit = own_ooms > 0 and counted.get("oom_kills", 0) > 0
    return Ended(over_limit or own_kills > 0 or oomd_kills > 0, over_limit, counted)
