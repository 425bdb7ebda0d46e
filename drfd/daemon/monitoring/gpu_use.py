"""The use of each GPU, and by which jobs: the latest line of the launcher's process that measures.

`launcher.gpu_meter.reading` describes a line. A process belongs to a job by its cgroup, or, where
jobs have none, by the runner that it descends from. Everything here was said by a process without
rights, about processes that may be gone: it is shown and compared, and never acted on alone. A job
is stopped for its memory on a GPU only after two readings in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import msgspec

from drfd.common.units import show_size
from drfd.core.decisions.outcome import GPU_READINGS
from drfd.core.decisions.reconciliation import AttemptKey
from drfd.core.model.job import Job
from drfd.daemon.monitoring.meter import GPUS_STALE_S, PERIOD_S, GpuShare, Meter, Owners
from drfd.devices.gpu import GPU, NVIDIA, Gpu
from drfd.launcher.gpu_meter.reading import GpuReading, ProcessReading, lost_reading
from drfd.linux.user_database import LocalAccounts

log = logging.getLogger("drfd")

#: From so much on a GPU counts as used outside drfd: bytes of memory, and the part of all of its
#: memory, whichever is more; or percent of its time.
_LEAST_BYTES, _LEAST_PART, _LEAST_PERCENT = 1 << 30, 10, 25


class NamedReading(GpuReading, total=False):
    #: As in the configuration; missing if discovery does not know it.
    name: str


class _Line(TypedDict):
    gpus: list[NamedReading]
    why: str | None


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """A GPU with its users."""

    reading: NamedReading
    #: Attempts that use it, and None for the processes outside drfd → those processes. None if its
    #: processes are not known.
    users: Mapping[AttemptKey | None, list[ProcessReading]] | None

    @property
    def jobs_memory(self) -> int | None:
        """Bytes that jobs have on it, or None if they are not known."""
        if self.users is None:
            return None
        shares = [self.share(key).memory_bytes for key in self.users if key is not None]
        return None if None in shares else sum(each or 0 for each in shares)

    @property
    def outside_memory(self) -> int | None:
        """Bytes in use that are no job's, or None if they are not known."""
        used, jobs = self.reading["memory_used"], self.jobs_memory
        return None if used is None or jobs is None else max(0, used - jobs)

    @property
    def outside(self) -> list[ProcessReading]:
        """The processes of no job that use it, as far as they are known."""
        return [] if self.users is None else self.users.get(None, [])

    @property
    def is_used_outside(self) -> bool:
        """Whether processes of no job use more of it than a screen takes."""
        if not self.outside:
            return False
        total, memory = self.reading["memory_total"], self.outside_memory
        least = _LEAST_BYTES if total is None else max(_LEAST_BYTES, total // _LEAST_PART)
        percent = sum(each["utilisation"] or 0 for each in self.outside)
        return (memory or 0) >= least or percent >= _LEAST_PERCENT

    @property
    def names(self) -> frozenset[str]:
        """The names by which the configuration may call it."""
        known = (self.reading.get("name"), self.reading["uuid"])
        return frozenset(name for name in known if name is not None)

    def memory_of(self, key: AttemptKey) -> int | None:
        """Return the memory that one attempt's processes have, or None if the driver does not tell
        it for each of them: the use of the whole GPU says nothing sure of one job."""
        if self.users is None:
            return None
        return _sum([each["memory"] for each in self.users.get(key, [])])

    def share(self, key: AttemptKey) -> GpuShare:
        """Return the use by one attempt."""
        if self.users is None:
            return GpuShare(None, None)
        own = self.users.get(key)
        if own is None:
            return GpuShare(0, 0)
        # Of a slice, and of some drivers, only the whole is known.
        is_alone = len(self.users) == 1
        memory = _sum([each["memory"] for each in own])
        if memory is None and is_alone:
            memory = self.reading["memory_used"]
        percent = _sum([each["utilisation"] for each in own])
        if percent is None and is_alone:
            percent = self.reading["utilisation"]
        return GpuShare(memory, None if percent is None else min(100, percent))


def _sum(amounts: list[int | None]) -> int | None:
    return None if None in amounts else sum(each or 0 for each in amounts)


class GpuUse:
    """The latest readings."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._accounts = LocalAccounts()
        #: When the GPUs were read, on the monotonic clock.
        self._read_s = 0.0
        self._latest: list[MeasuredGpu] = []
        #: Why nothing is measured, in a sentence, or "".
        self.why = ""
        #: UUID or name of each GPU that was ever read → bytes that it has in all.
        self._sizes: dict[str, int] = {}
        self._has_logged = False

    def take(self, line: str, jobs: Mapping[int, Job], known: Sequence[Gpu] = ()) -> None:
        """Take a line, and note the use of each attempt that is watched. `known` are the GPUs of
        this machine."""
        try:
            found = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError as error:
            if not self._has_logged:
                log.error("event=gpus-not-understood error=%s", error)
            self._has_logged = True
            return
        self.why = found["why"] or ""
        now_s = self._meter.mono()
        owners = Owners(self._meter)
        readings = found["gpus"] if found["why"] else named(found["gpus"], known)
        measured = [_measured(each, owners) for each in readings]
        self._read_s, self._latest = now_s, measured
        for gpu in measured:
            if gpu.reading["memory_total"] is not None:
                self._sizes.update(dict.fromkeys(gpu.names, gpu.reading["memory_total"]))
        gpus = self.gpus()
        if not gpus:
            return
        for key, _, _ in owners.attempts:
            job = jobs.get(key[0])
            if job is None:
                continue
            self._meter.note_gpus(key, _share(job, key, gpus), now_s)
            for gpu in measured if job.attempt == key[1] else ():
                for name in gpu.names.intersection(dict(job.instances).get(GPU, ())):
                    memory, total = gpu.memory_of(key), gpu.reading["memory_total"]
                    self._meter.note_gpu(key, name, memory, total)

    def gpus(self) -> list[MeasuredGpu]:
        """Return the GPUs whose present use is known, in the order of their addresses."""
        if not self._latest or self._read_s < self._meter.mono() - GPUS_STALE_S:
            return []
        return sorted(
            self._latest, key=lambda gpu: (gpu.reading["pci"], gpu.reading["slice"] or "")
        )

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Return the memory of each of the GPUs with these names, None where it is not known."""
        return {name: self._sizes.get(name) for name in names}

    def largest(self, names: Iterable[str]) -> int | None:
        """Return the memory of the largest of the GPUs with these names, or None if there is none,
        or one of which it is not known."""
        sizes = self.sizes(names).values()
        return None if None in sizes else max((each or 0 for each in sizes), default=None)

    def used_outside(self, instances: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return which of these instances of `gpu` processes outside drfd use so much that no job
        should be given them, each with the names of their users; and those which the driver does
        not reach any more, without names. A job would end there at once, and so would the next. A
        little is no use: each process with a window has some memory on the screen's GPU."""
        by_name = {name: gpu for gpu in self.gpus() for name in gpu.names}
        found: dict[str, tuple[str, ...]] = {}
        for each in instances:
            gpu = by_name.get(each)
            if gpu is not None and gpu.reading["is_lost"]:
                found[each] = ()
            elif gpu is not None and gpu.is_used_outside:
                found[each] = tuple(sorted({self._name_of(other["uid"]) for other in gpu.outside}))
        return found

    def _name_of(self, uid: int | None) -> str:
        if uid is None:
            return "somebody"
        return self._accounts.name_of(uid) or f"uid {uid}"


def named(readings: list[NamedReading], gpus: Sequence[Gpu]) -> list[NamedReading]:
    """Return the readings with the names and UUIDs by which the configuration may call the GPUs.
    GPUs of NVIDIA that cannot be used count as lost."""
    known = {(gpu.pci, gpu.name.partition(":")[2]): gpu for gpu in gpus}
    found: list[NamedReading] = []
    for each in readings:
        gpu = known.get((each["pci"], each["slice"] or ""))
        if gpu is None:
            found.append(each)
        else:
            is_lost, uuid = each["is_lost"] or gpu.fault != "", gpu.uuid or each["uuid"]
            found.append({**each, "name": gpu.name, "uuid": uuid, "is_lost": is_lost})
    read = {each["pci"] for each in readings}
    for gpu in gpus:
        is_whole = gpu.vendor == NVIDIA and ":" not in gpu.name
        if gpu.fault and is_whole and gpu.pci not in read:
            found.append({**lost_reading(gpu.pci, gpu.uuid), "name": gpu.name})
    return found


def _measured(reading: NamedReading, owners: Owners) -> MeasuredGpu:
    if reading["processes"] is None:
        return MeasuredGpu(reading, None)
    users: dict[AttemptKey | None, list[ProcessReading]] = {}
    for each in reading["processes"]:
        users.setdefault(owners.owner_of(each["pid"], each["cgroups"]), []).append(each)
    return MeasuredGpu(reading, users)


def _share(job: Job, key: AttemptKey, gpus: list[MeasuredGpu]) -> GpuShare:
    """Return the attempt's use of all GPUs together, None where it is not known on one that it may
    use."""
    own = set(dict(job.instances).get(GPU, ()))
    shares = []
    for gpu in gpus:
        if gpu.users is None and (not own or (gpu.names and not own & gpu.names)):
            continue
        shares.append(gpu.share(key))
    return GpuShare(
        _sum([each.memory_bytes for each in shares]), _sum([each.percent for each in shares])
    )


# -- how the memory that jobs declare on each GPU is kept ----------------------------------------


#: The way of a GPU of which the kernel limits the memory of each cgroup.
KERNEL = "kernel (dmem)"
#: The way of a GPU of which the driver tells how much memory each process has.
MEASURED = f"measured every {PERIOD_S:.0f} s, job stopped after {GPU_READINGS} readings above"


class Keeping(NamedTuple):
    """How the declared memory of one GPU is kept."""

    #: Why it is not kept, or "".
    why_not: str = ""
    by_kernel: bool = False

    @property
    def text(self) -> str:
        if self.by_kernel:
            return KERNEL
        return f"not kept: {self.why_not}" if self.why_not else MEASURED


def keepings(
    names: Iterable[str],
    gpus: Sequence[MeasuredGpu],
    why: str,
    by_kernel: Collection[str] = (),
) -> dict[str, Keeping]:
    """Return how it is kept on each of the GPUs with these names. `why` says why nothing is
    measured, as `GpuUse` does; `by_kernel` are the GPUs whose memory the kernel limits."""
    by_name = {name: gpu for gpu in gpus for name in gpu.names}
    silent = why or f"nothing has been read of it in the last {GPUS_STALE_S:.0f} s"

    def keeping(name: str) -> Keeping:
        if name in by_kernel:
            return Keeping(by_kernel=True)
        return Keeping(_why_not(by_name[name]) if name in by_name else silent)

    return {name: keeping(name) for name in names}


def _why_not(gpu: MeasuredGpu) -> str:
    if gpu.reading["is_lost"]:
        return "its driver says that it is lost"
    if gpu.users is None:
        return "its driver does not say which processes use it"
    if any(each["memory"] is None for users in gpu.users.values() for each in users):
        return "its driver does not say how much memory each process has"
    return ""


def keepings_text(found: Mapping[str, Keeping]) -> str:
    """Return the ways of all GPUs in a sentence, which names them where they differ."""
    names: dict[str, list[str]] = {}
    for name, each in found.items():
        names.setdefault(each.text, []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{','.join(some)} {text}" for text, some in names.items())


def shared_text(size: int, sizes: Mapping[str, int | None]) -> str:
    """Return that jobs share GPUs by their declared memory, of which each GPU has `size` bytes to
    give; and which GPUs have less, as far as their sizes are known."""
    small = [
        f"{name} has {show_size(each)}" for name, each in sizes.items() if each and each < size
    ]
    beside = f", but {' and '.join(small)}: lower gres.{GPU}.memory" if small else ""
    return f"jobs share each GPU's {show_size(size)}{beside}"


def unkept_text(found: Mapping[str, Keeping]) -> str | None:
    """Return what a job's owner should know of GPUs on which its declared memory is not kept, or
    None if it is kept on all."""
    bad = {name: each for name, each in found.items() if each.why_not}
    if not bad:
        return None
    where = "" if len(bad) == len(found) else f" on GPU {','.join(bad)}"
    reasons = dict.fromkeys(each.why_not for each in bad.values())
    return f"not watched{where}: {'; '.join(reasons)}"
