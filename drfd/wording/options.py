"""Options of `drf submit` that declare a demand, as words of a command line."""

from __future__ import annotations

from drfd.common.units import exact_duration, exact_size, show_cores, show_gres_word, show_range
from drfd.core.amounts.resources import NOTHING
from drfd.core.explain.ended_jobs import Advice
from drfd.core.model.job import JobSpec


def advice_options(advice: Advice) -> list[str]:
    """Return the options that declare the advised demand."""
    words = ["-c", _cores(advice.cores_milli, advice.most_cores_milli)]
    words += ["-m", exact_size(advice.memory_bytes), "-t", exact_duration(advice.time_limit_s)]
    if advice.read_bps or advice.write_bps:
        disk = f"{advice.disk}=" if advice.disk else ""
        rates = (advice.read_bps, advice.write_bps), (advice.most_read_bps, advice.most_write_bps)
        words += ["--io", f"{disk}{_rates(*rates)}"]
    memory = dict(advice.gres_memory)
    for name, count in advice.gres:
        words += ["--gres", show_gres_word(name, count, memory.get(name))]
    return words


def cores_note(advice: Advice) -> str | None:
    """Return why a range of cores is advised or its lower end raised, as a part of a sentence:
    "used 1.6 of 8 cores on average, at times all of them: a range books 2 and is lent up to 8"."""
    reason = advice.cores_reason
    if reason is None:
        return None
    used, declared = show_cores(round(reason.mean_milli, -1)), show_cores(reason.declared_milli)
    floor, most = show_cores(advice.cores_milli), show_cores(advice.most_cores_milli)
    if reason.is_above_floor:
        return f"used {used} of {declared} declared on average: asking for {floor} guarantees it"
    if not advice.most_cores_milli:
        return None
    seen = f"used {used} of {declared} cores on average, at times all of them"
    return f"{seen}: a range books {floor} and is lent up to {most}"


def changed_options(asked: JobSpec, changed: JobSpec) -> list[str]:
    """Return the options for the changed amounts and the changed time limit. A range keeps its
    upper end."""
    words = []
    before, after, most = asked.demand, changed.demand, changed.most or NOTHING
    if after.cores_milli != before.cores_milli:
        words += ["-c", _cores(after.cores_milli, most.cores_milli)]
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


def _cores(least_milli: int, most_milli: int) -> str:
    return show_range(show_cores(least_milli), show_cores(most_milli) if most_milli else None)


def _rates(least: tuple[int, int], most: tuple[int, int]) -> str:
    ends = [exact_size(rate) if rate else None for rate in most]
    return "/".join(map(show_range, map(exact_size, least), ends))
