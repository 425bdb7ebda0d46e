"""The upper ends of ranges: what a running job may be lent beyond its demand.

A demand is what a job holds. The upper end of a range is a wish: it is kept as declared, may be
above what the machine has, and is never booked.
"""

from __future__ import annotations

from collections.abc import Mapping

from drfd.common.errors import Refused
from drfd.common.units import ALL, Most, show_amount
from drfd.core.amounts.resources import NOTHING, Resources
from drfd.core.model.job import JobSpec

#: The option that declares an axis.
_OPTIONS = {"cores": "-c", "read": "--io", "write": "--io"}


def most_of(
    demand: Resources,
    cores: Most,
    rates: Mapping[str, tuple[Most, Most]],
    capacity: Resources,
) -> Resources | None:
    """Return the upper ends for this demand, as `JobSpec.most` has them.

    `rates` has upper ends of reads and writes by the disk's name, and 0 stands for none. An open
    range ends at the machine's capacity. Raises Refused for an upper end below the demand.
    """

    def ends(disk: str) -> tuple[int, int]:
        asked, there = demand.rates(disk), capacity.rates(disk)
        read, write = rates.get(disk, (0, 0))
        return _end("read", asked[0], read, there[0]), _end("write", asked[1], write, there[1])

    disks: tuple[tuple[str, int, int], ...] = ()
    read_bps, write_bps = 0, 0
    if demand.disks:
        found = [(name, *ends(name)) for name, _, _ in demand.disks]
        disks = tuple(each for each in found if any(each[1:]))
    elif rates:
        read_bps, write_bps = ends(next(iter(rates)))
    most = Resources(
        cores_milli=_end("cores", demand.cores_milli, cores, capacity.cores_milli),
        read_bps=read_bps,
        write_bps=write_bps,
        disks=disks,
    )
    return None if most == NOTHING else most


def most_here(spec: JobSpec, capacity: Resources) -> Resources | None:
    """Return the upper ends of a job's ranges, cut down to what the machine has now; None if
    nothing can be lent to it. Ends without a range are 0, as in `JobSpec.most`."""
    if spec.most is None:
        return None
    demand, most = spec.demand, spec.most

    def rates(disk: str) -> tuple[int, int]:
        triples = zip(demand.rates(disk), most.rates(disk), capacity.rates(disk), strict=True)
        read, write = (_cut(*each) for each in triples)
        return read, write

    read_bps, write_bps = (0, 0) if most.disks else rates("")
    disks = tuple((name, *rates(name)) for name, _, _ in most.disks)
    found = Resources(
        cores_milli=most_cores_here(spec, capacity),
        read_bps=read_bps,
        write_bps=write_bps,
        disks=tuple(each for each in disks if any(each[1:])),
    )
    return None if found == NOTHING else found


def most_cores_here(spec: JobSpec, capacity: Resources) -> int:
    """Return the upper end of a job's cores alone, as `most_here` has it, in thousandths."""
    if spec.most is None:
        return 0
    return _cut(spec.demand.cores_milli, spec.most.cores_milli, capacity.cores_milli)


def _cut(least: int, end: int, there: int) -> int:
    """Return the upper end of one range, cut down to what there is; 0 without a range."""
    amount = min(end, there)
    return amount if amount > least else 0


def _end(axis: str, least: int, most: Most, capacity: int) -> int:
    """Return the upper end of one range, or 0 if it is not above the lower end."""
    amount = capacity if most == ALL else most
    if most == ALL or not amount:
        return amount if least and amount > least else 0
    if not least:
        raise Refused(
            "bad-value",
            f"{_OPTIONS[axis]}: a range of {axis}s has no lower end, which is what the job holds",
            hint=f"write {_OPTIONS[axis]} LEAST..MOST",
        )
    if amount < least:
        raise Refused(
            "bad-value",
            f"{_OPTIONS[axis]}: the range ends at {show_amount(axis, amount)}, below the "
            f"{show_amount(axis, least)} that the job holds",
            hint=f"write {_OPTIONS[axis]} LEAST..MOST",
        )
    return amount if amount > least else 0
