"""The machine of a simulation: what it has, and whether that is all that a workload asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drfd.core.resources import Axes, Resources, Vector, kind_of
from drfd.core.rules import Rules
from drfd.errors import Refused
from drfd.sim.workload import SimJob
from drfd.units import exact_size, parse_cores, parse_size, show_amount

_EXAMPLE = "write cores=900,memory=6T, and read=, write= and countable things like gpu=4 if needed"
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
#: More of a countable thing than any machine has.
_MOST_COUNT = 100_000


def parse_capacity(text: str) -> Resources:
    """Of "cores=900,memory=6T,read=2G,write=1G,gpu=4"; what is not named, there is none of."""
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, sign, amount = (each.strip() for each in part.partition("="))
        if not sign or not _NAME.fullmatch(name):
            raise Refused("bad-value", f"capacity: {part!r} is not NAME=AMOUNT", hint=_EXAMPLE)
        if name in amounts:
            raise Refused("bad-value", f"capacity: {name} is given twice", hint=_EXAMPLE)
        amounts[name] = _amount(name, amount)
    return Resources(
        cores_milli=amounts.pop("cores", 0),
        memory_bytes=amounts.pop("memory", 0),
        read_bps=amounts.pop("read", 0),
        write_bps=amounts.pop("write", 0),
        gres=tuple(sorted(amounts.items())),
    )


def _amount(name: str, amount: str) -> int:
    what = f"capacity: {name}"
    if name == "cores":
        return parse_cores(amount, what=what)
    if name in ("memory", "read", "write"):
        return parse_size(amount, what=what)
    if not amount.isdecimal() or not 0 < int(amount) <= _MOST_COUNT:
        raise Refused("bad-value", f"{what}: {amount!r} is not a count", hint=_EXAMPLE)
    return int(amount)


def rules_of(capacity: Resources) -> Rules:
    """Everybody alike on this machine."""
    instances = tuple((name, tuple(map(str, range(count)))) for name, count in capacity.gres)
    axes = Axes(gres=tuple(name for name, _ in capacity.gres), instances=instances)
    return Rules(axes=axes, capacity=capacity)


def check(jobs: Sequence[SimJob], capacity: Resources) -> None:
    """Refuse a machine that lacks a kind of thing which jobs ask for: that is no job too large, but
    a word forgotten."""
    asked, most = _asked(jobs)
    there = dict(zip(asked.names, asked.vector(capacity), strict=True))
    for name, amount in zip(asked.names, most, strict=True):
        if amount and not there[name]:
            raise Refused(
                "bad-value",
                f"capacity: jobs of this trace ask for {name}, up to "
                f"{show_amount(name, amount)} each, and none is given",
                hint=f"add {name}=… to --capacity; on average {_mean(jobs, name)} is in use",
            )


def suggestion(jobs: Sequence[SimJob]) -> str:
    """A --capacity in which the trace would keep the machine busy by three quarters."""
    axes, most = _asked(jobs)
    words = []
    for name, largest in zip(axes.names, most, strict=True):
        if largest:
            amount = max(largest, round(_held(jobs, axes, name) / 0.75))
            words.append(f"{name}={_round(name, amount)}")
    return ",".join(words)


def _round(name: str, amount: int) -> str:
    """Two digits, rounded up, as it is typed."""
    kind = kind_of(name)
    if kind == "cores":
        return str(_two_digits(-(-amount // 1000)))
    if kind not in ("memory", "read", "write"):
        return str(_two_digits(amount))
    for unit in (1 << 40, 1 << 30, 1 << 20):
        if amount >= unit:
            return exact_size(_two_digits(-(-amount // unit)) * unit)
    return "1M"


def _two_digits(number: int) -> int:
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit


def _asked(jobs: Sequence[SimJob]) -> tuple[Axes, Vector]:
    """The axes of all that is asked for, and the most that one job asks for on each."""
    demands = {job.demand for job in jobs}
    axes = Axes(gres=tuple(sorted({name for demand in demands for name, _ in demand.gres})))
    vectors = [axes.vector(demand) for demand in demands]
    return axes, tuple(max(column) for column in zip(*vectors, strict=True))


def _mean(jobs: Sequence[SimJob], name: str) -> str:
    return show_amount(name, round(_held(jobs, _asked(jobs)[0], name)))


def _held(jobs: Sequence[SimJob], axes: Axes, name: str) -> float:
    """What jobs would hold on average if none had to wait."""
    at = axes.names.index(name)
    span_s = max(1.0, max(job.submit_s + job.run_s for job in jobs) - jobs[0].submit_s)
    return sum(axes.vector(job.demand)[at] * job.run_s for job in jobs) / span_s
