"""Amounts of what jobs compete for, as exact integers.

`Resources` is what people declare; `Vector` is the same amounts in the order of `Axes`, which is
what the arithmetic works on. Fairness knows only vectors, so it holds for any number of axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Amounts in the order of `Axes.names`.
Vector = tuple[int, ...]
#: Countable things one by one, by what they are: (("gpu", ("0", "1")),).
Instances = tuple[tuple[str, tuple[str, ...]], ...]

#: The resources that a process uses only while it runs, by kind.
_RATES = frozenset({"cores", "read", "write"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A demand, a limit or a capacity. A zero rate means: none declared."""

    cores_milli: int = 0
    memory_bytes: int = 0
    #: Of a machine with one disk; where there are several, a demand of them holds on each.
    read_bps: int = 0
    write_bps: int = 0
    #: Countable things by name, sorted; counts are above zero.
    gres: tuple[tuple[str, int], ...] = ()
    #: Of a machine with several disks, in place of the two rates: name, reads and writes of each.
    disks: tuple[tuple[str, int, int], ...] = ()

    def rates(self, disk: str) -> tuple[int, int]:
        """Bytes read and written per second on this disk."""
        if not self.disks:
            return self.read_bps, self.write_bps
        return next(((read, write) for name, read, write in self.disks if name == disk), (0, 0))

    @property
    def rate_sums(self) -> tuple[int, int]:
        """The rates of all disks together."""
        _, reads, writes = zip(("", self.read_bps, self.write_bps), *self.disks, strict=True)
        return sum(reads), sum(writes)

    @property
    def used_disks(self) -> frozenset[str]:
        """Those that are named, with a rate."""
        return frozenset(name for name, read, write in self.disks if read or write)


NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class Axes:
    """The order of a machine's resources in its vectors."""

    gres: tuple[str, ...] = ()
    #: The machine's disks. One (or none, or one without a name) has the axes "read" and "write",
    #: several have "read:NAME" and "write:NAME" each.
    disks: tuple[str, ...] = ()
    #: Disks that the machine has no more, and jobs still name: they have axes, and no capacity.
    lost: tuple[str, ...] = ()
    #: What there is to give out of each of `gres`, in the order in which it is given out. Of one
    #: that the machine has no more, and jobs still name, there is none.
    instances: Instances = ()

    @property
    def names(self) -> tuple[str, ...]:
        rates = _of_each(self.disks) if len(self.disks) > 1 else ("read", "write")
        return ("cores", "memory", *rates, *self.gres, *_of_each(self.lost))

    def vector(self, amount: Resources) -> Vector:
        """The amounts in order, without countables that have no axis."""
        counts = dict(amount.gres)
        rates: tuple[int, ...] = (amount.read_bps, amount.write_bps)
        lost: tuple[int, ...] = ()
        if len(self.disks) > 1 or amount.disks:
            rates = tuple([rate for disk in self.disks or ("",) for rate in amount.rates(disk)])
        if self.lost:
            named = {name: rates for name, *rates in amount.disks}
            lost = tuple([rate for disk in self.lost for rate in named.get(disk, (0, 0))])
        return (
            amount.cores_milli,
            amount.memory_bytes,
            *rates,
            *(counts.get(name, 0) for name in self.gres),
            *lost,
        )

    def resources(self, vector: Vector) -> Resources:
        split = len(self.disks) > 1
        first_gres = 2 + 2 * (len(self.disks) if split else 1)
        end_gres = first_gres + len(self.gres)
        counts = zip(self.gres, vector[first_gres:end_gres], strict=True)
        disks: tuple[tuple[str, int, int], ...] = ()
        if split:
            pairs = zip(vector[2:first_gres:2], vector[3:first_gres:2], strict=True)
            disks = tuple((name, *pair) for name, pair in zip(self.disks, pairs, strict=True))
        return Resources(
            cores_milli=vector[0],
            memory_bytes=vector[1],
            read_bps=0 if split else vector[2],
            write_bps=0 if split else vector[3],
            gres=tuple((name, count) for name, count in counts if count),
            disks=disks,
        )

    def released(self, demand: Vector) -> Vector:
        """What of a demand a frozen job gives back: time and rates, not what it stores or owns."""
        names = zip(self.names, demand, strict=True)
        return tuple([amount if kind_of(name) in _RATES else 0 for name, amount in names])

    def retired(self, held: Instances) -> Vector:
        """How many of these instances the machine has no more: they are nobody's share of it."""
        there = {name: frozenset(each) for name, each in self.instances}
        gone = {name: len(set(each).difference(there.get(name, ()))) for name, each in held}
        return self.vector(Resources(gres=tuple(gone.items())))

    def unknown_disk(self, amount: Resources) -> str | None:
        return min(amount.used_disks.difference(self.disks), default=None)


def kind_of(axis: str) -> str:
    """ "read" for "read:data"."""
    return axis.partition(":")[0]


def _of_each(disks: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{kind}:{disk}" for disk in disks for kind in ("read", "write"))


def plus(left: Vector, right: Vector) -> Vector:
    return tuple([a + b for a, b in zip(left, right, strict=True)])


def minus(left: Vector, right: Vector) -> Vector:
    return tuple([a - b for a, b in zip(left, right, strict=True)])


def total(vectors: Iterable[Vector], zero: Vector) -> Vector:
    for vector in vectors:
        zero = plus(zero, vector)
    return zero


def fits(demand: Vector, room: Vector) -> bool:
    """What is not asked for fits even where more is booked than there is."""
    # `all` over a generator would cost three times as much on the hottest path of a pass.
    for asked, there in zip(demand, room, strict=True):  # noqa: SIM110
        if asked > there and asked:
            return False
    return True


def short_axes(demand: Vector, room: Vector) -> list[int]:
    """The axes on which `demand` does not fit into `room`."""
    pairs = enumerate(zip(demand, room, strict=True))
    return [axis for axis, (asked, there) in pairs if asked > there and asked]
