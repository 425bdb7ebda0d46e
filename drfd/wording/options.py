"""Options of `drf submit` that declare a demand, as words of a command line."""

from __future__ import annotations

from drfd.common.units import exact_duration, exact_size, show_cores, show_gres_word, show_range
from drfd.core.explain.ended_jobs import Advice
from drfd.core.model.job import JobSpec
from drfd.core.model.resources import NOTHING


def advice_options(advice: Advice) -> list[str]:
    """Return the options that declare the advised demand."""
    words = ["-c", show_cores(advice.cores_milli), "-m", exact_size(advice.memory_bytes)]
    words += ["-t", exact_duration(advice.time_limit_s)]
    if advice.read_bps or advice.write_bps:
        disk = f"{advice.disk}=" if advice.disk else ""
        words += ["--io", f"{disk}{exact_size(advice.read_bps)}/{exact_size(advice.write_bps)}"]
    memory = dict(advice.gres_memory)
    for name, count in advice.gres:
        words += ["--gres", show_gres_word(name, count, memory.get(name))]
    return words


def changed_options(asked: JobSpec, changed: JobSpec) -> list[str]:
    """Return the options for the changed amounts and the changed time limit. A range keeps its
    upper end."""
    words = []
    before, after, most = asked.demand, changed.demand, changed.most or NOTHING
    if after.cores_milli != before.cores_milli:
        end = show_cores(most.cores_milli) if most.cores_milli else None
        words += ["-c", show_range(show_cores(after.cores_milli), end)]
    if after.memory_bytes != before.memory_bytes:
        words += ["-m", exact_size(after.memory_bytes)]
    if (after.read_bps, after.write_bps) != (before.read_bps, before.write_bps):
        words += ["--io", _rates((after.read_bps, after.write_bps), most.rates(""))]
    for name, read, write in after.disks:
        if (read, write) != before.rates(name):
            words += ["--io", f"{name}={_rates((read, write), most.rates(name))}"]
    if changed.time_limit_s is not None and changed.time_limit_s != asked.time_limit_s:
        words += ["-t", exact_duration(changed.time_limit_s)]
    return words


def _rates(least: tuple[int, int], most: tuple[int, int]) -> str:
    ends = [exact_size(rate) if rate else None for rate in most]
    return "/".join(map(show_range, map(exact_size, least), ends))
