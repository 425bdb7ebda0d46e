"""What users declare of a job: the options that `drf set` changes, in one table, and ranges of
cores.

A demand is what a job holds. The upper end of a range is what a running job may use beyond that:
it is kept as declared, may be above what the machine has, and is never booked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from drfd.common.errors import Refused
from drfd.common.units import ALL, AXES, Most, show_cores, show_duration, show_range
from drfd.core.model.job import LINE, Comment, Dependency, UserGroup
from drfd.core.model.resources import Resources


class ChangeableOption(NamedTuple):
    #: The field of the specification, of `Altered`, and of `Change`.
    name: str
    #: What it is called in the text of a change.
    label: str
    show: Callable[[Any], str] = str
    #: The value that removes what the job has, where None leaves it as it is.
    none: Any = None
    #: Whether it may be changed while the job runs.
    is_of_running: bool = False
    #: Whether the job waits for it anew when it is set, even to what it was.
    is_condition: bool = False


def _show_limit(time_limit_s: int | None) -> str:
    return "unlimited" if time_limit_s is None else show_duration(time_limit_s)


#: In the order of their texts. The amounts of `demand` have the options of
#: `drfd.common.units.AXES`, and `--gres`.
OPTIONS = (
    ChangeableOption("name", "name"),
    ChangeableOption("comment", "comment", lambda text: text or "none", "", is_of_running=True),
    ChangeableOption("pool", "pool"),
    ChangeableOption("priority", "priority"),
    ChangeableOption("time_limit_s", "time limit", _show_limit, none=0, is_of_running=True),
    ChangeableOption("demand", ""),
    ChangeableOption("cores_max_milli", ""),
    ChangeableOption("group", "group", lambda group: str(group or "none"), none=UserGroup("")),
    ChangeableOption("after", "after", is_condition=True),
    ChangeableOption("begin_s", "begin time", none=0, is_condition=True),
)


#: A name, and an amount, as requests have them.
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=LINE)]
Amount = Annotated[int, Meta(ge=0, le=1 << 60)]
_FEW = Meta(max_length=64)


class Rates(Struct, forbid_unknown_fields=True, frozen=True):
    """Declared rates of one disk, in bytes per second."""

    read_bps: Amount
    write_bps: Amount


class Demand(Struct, forbid_unknown_fields=True, frozen=True):
    """Requested resources. Fields left out take the daemon's defaults, or stay as they are."""

    cores_milli: Annotated[int, Meta(ge=10, le=1 << 40)] | None = None
    memory_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 60)] | None = None
    #: Rates of the disk of the working directory, if the machine has several.
    read_bps: Amount | None = None
    write_bps: Amount | None = None
    #: Rates by the disk's name. It and the next two are gone through for each job of a request.
    disks: Annotated[dict[Name, Rates], _FEW] = {}
    #: Countable resources by name; 0 for none.
    gres: Annotated[dict[Name, Annotated[int, Meta(ge=0, le=1 << 20)]], _FEW] = {}
    #: Bytes of its own memory on each instance of a countable resource; 0 for no limit.
    gres_memory: Annotated[dict[Name, Amount], _FEW] = {}
    #: Upper end of a range: the most cores that the job may use while others leave them idle. "all"
    #: for all that the machine has, 0 for none, as is one left out where the lower end is given.
    cores_max_milli: Annotated[int, Meta(ge=0, le=1 << 40)] | Literal["all"] | None = None

    @property
    def amounts(self) -> dict[str, int]:
        """The amounts by axis. Rates without a disk's name are those of the only disk."""
        found = {
            f"{name}:{disk}" if disk else name: getattr(part, axis.field, None)
            for disk, part in {"": self, **self.disks}.items()
            for name, axis in AXES.items()
        }
        return {axis: value for axis, value in found.items() if value is not None}


class Changes(Struct, frozen=True, kw_only=True):
    """What of a job `drf set` changes, in the request and in what is decided on. What is None, or
    an axis that is not named, stays as it is."""

    name: Name | None = None
    #: An empty one removes it.
    comment: Comment | None = None
    pool: Name | None = None
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None = None
    #: Seconds; 0 removes the limit.
    time_limit_s: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None
    #: A new amount without an upper end is a single figure, and so is one with 0. A count of 0
    #: removes a resource.
    demand: Demand = Demand()
    #: Unix time; 0 removes the begin time.
    begin_s: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None


class Change(Changes, frozen=True, kw_only=True):
    after: tuple[Dependency, ...] | None = None
    #: One without a name takes the job out of its group.
    group: UserGroup | None = None


def changed_fields(source: object) -> dict[str, object]:
    """Return the new values in a `Change` or in an `Altered`, by field of the specification."""
    values = ((option, getattr(source, option.name, None)) for option in OPTIONS)
    return {
        option.name: None if value == option.none else value
        for option, value in values
        if value is not None and not isinstance(value, Demand)
    }


# -- ranges ----------------------------------------------------------------------------------------


def cores_end(least: int, most: Most, capacity: int) -> int:
    """Return the upper end of a range that begins with `least`, or 0 if it is none. An open one
    ends at the capacity. Raises Refused for one below the lower end."""
    end = max(least, capacity) if most == ALL else most
    if 0 < end < least:
        raise Refused(
            "bad-value",
            f"-c: the range ends at {show_cores(end)}, below the {show_cores(least)} that the job "
            "holds",
            hint="write -c LEAST..MOST",
        )
    return end if end > least else 0


def amount_words(
    amounts: Mapping[str, int], cores_max_milli: int = 0, *, is_exact: bool = True
) -> dict[tuple[str, str], str]:
    """Return what the options say that declare these amounts and this upper end, by option and name
    of the disk: {("-c", ""): "2..8", ("--io", "data"): "data=50M/20M"}; not exact, for people."""
    parts: dict[tuple[str, str], list[str]] = {}
    for name, amount in amounts.items():
        kind, _, disk = name.partition(":")
        axis = AXES[kind]
        word = (axis.exact(amount) if is_exact else axis.show(amount)).replace("/s", "")
        if kind == "cores" and cores_max_milli:
            word = show_range(word, show_cores(cores_max_milli))
        parts.setdefault((axis.option, disk), []).append(word)
    return {key: f"{key[1] and key[1] + '='}{'/'.join(some)}" for key, some in parts.items()}


def changed_amounts(
    before: Resources, demand: Resources, cores_max_milli: int
) -> list[tuple[str, str]]:
    """Return the options, with their values, that change what is declared to this demand. A range
    keeps its upper end."""
    amounts = demand.amounts
    old = amount_words({axis: before.amount(axis) for axis in amounts})
    new, words = amount_words(amounts), amount_words(amounts, cores_max_milli)
    return [(key[0], word) for key, word in words.items() if old[key] != new[key]]
