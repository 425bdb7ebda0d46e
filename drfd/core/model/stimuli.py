"""What inputs of the core consist of: times, the user who asks, and changes (see
`core.decisions.stimuli`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drfd.common.units import Most
from drfd.core.model.job import Dependency, UserGroup


@dataclass(frozen=True, slots=True)
class Now:
    at_s: float
    mono_s: float


@dataclass(frozen=True, slots=True)
class Actor:
    """The user who makes a request, authenticated by the kernel."""

    user: str
    uid: int
    is_admin: bool
    #: Whether the uid has an account; if not, `user` is the number.
    has_account: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The changes that `drf set` asks for; a field that is None stays as it is."""

    name: str | None = None
    pool: str | None = None
    priority: int | None = None
    #: Seconds; 0 removes the limit.
    time_limit_s: int | None = None
    cores_milli: int | None = None
    memory_bytes: int | None = None
    read_bps: int | None = None
    write_bps: int | None = None
    #: Name, read rate and write rate of each disk, in bytes per second.
    disks: tuple[tuple[str, int, int], ...] | None = None
    #: Upper ends of ranges. A new amount without one is a single figure, and so is one with 0.
    cores_max_milli: Most | None = None
    read_max_bps: Most | None = None
    write_max_bps: Most | None = None
    #: Name, and upper ends of reads and writes, of each of `disks`.
    disks_max: tuple[tuple[str, Most, Most], ...] = ()
    #: Name and count of each countable resource; a count of 0 removes it.
    gres: tuple[tuple[str, int], ...] | None = None
    #: Name and bytes on each instance of it; 0 removes the limit.
    gres_memory: tuple[tuple[str, int], ...] | None = None
    after: tuple[Dependency, ...] | None = None
    #: Unix time; 0 removes the begin time.
    begin_s: int | None = None
    #: One without a name takes the job out of its group.
    group: UserGroup | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """Since when launchers take orders, on the monotonic clock; None while one takes none."""

    #: That of the controller's own node, and of all that are not named.
    mono_s: float | None = 0.0
    by_node: Mapping[str, float | None] = field(default_factory=dict)

    def since_mono_s(self, node: str) -> float | None:
        return self.by_node.get(node, self.mono_s)
