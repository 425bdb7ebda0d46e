"""AMD's and Intel's GPUs, measured through sysfs and the files of their users.

Of AMD's GPUs sysfs has the memory in use and the utilisation (Documentation/gpu/amdgpu, "GPU
Thermal Controls" and "GPU Power/Thermal"), and KFD the memory of each process that computes
(drivers/gpu/drm/amd/amdkfd/kfd_process.c, `vram_<gpu id>`). Everything else is in the fdinfo of the
processes' open nodes (Documentation/gpu/drm-usage-stats.rst): for Intel also the memory in use, as
the sum of what processes have.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from drfd.devices import amd
from drfd.devices.gpu import GpuFault
from drfd.devices.kernel_files import entries, number
from drfd.launcher.gpu_meter.kinds import INTEL, drm_gpus
from drfd.launcher.gpu_meter.reading import GpuReading, ProcessReading, process_reading, uid_of
from drfd.linux.kernel_files import word_in

#: Units of drm-usage-stats.rst; a number without one is in bytes.
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
#: Regions of memory that lie on the GPU: of amdgpu, xe and i915.
_ON_GPU = ("vram", "local")
#: All processes are searched for open nodes in one of so many readings; between, only those that
#: had one.
_SEARCH_EVERY = 5
#: Most processes and files that are looked at for one user in one reading, some 20 µs each: a flood
#: of either delays no reading of others.
_MOST_LOOKS = 20_000


@dataclass(slots=True)
class _Use:
    """Use of one GPU by one process, or by one client of its driver."""

    memory: int | None = None
    #: Engine → nanoseconds or cycles that it was busy, and the cycles that passed, or None.
    engines: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def add(self, other: _Use) -> None:
        if other.memory is not None:
            self.memory = (self.memory or 0) + other.memory
        for engine, (busy, total) in other.engines.items():
            self.engines[engine] = self.engines.get(engine, (0, None))[0] + busy, total


#: PCI address and number of a client, which an open file of the driver is, through however many
#: descriptors of however many processes.
_Client = tuple[str, str]


class DrmGpus:
    """The GPUs below `root`, which is the machine itself except in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._turn = 0
        self._holders: set[int] = set()
        #: The process for which a client counts: the first that was seen with it, as long as it has
        #: it.
        self._owners: dict[_Client, int] = {}
        self._is_whole = True
        #: (address, pid) → the last use, and when it was read on the monotonic clock.
        self._before: dict[tuple[str, int], tuple[_Use, int]] = {}

    def read(self) -> list[GpuReading]:
        gpus = drm_gpus(self._root)
        uses, is_whole = self._uses()
        self._add_kfd(uses, gpus)
        busy = self._busy(uses)
        return [
            self._reading(pci, vendor, device, uses, busy, is_whole)
            for pci, (vendor, device) in gpus.items()
        ]

    def _reading(
        self,
        pci: str,
        vendor: str,
        device: Path,
        uses: dict[tuple[str, int], _Use],
        busy: dict[tuple[str, int], int | None],
        is_whole: bool,
    ) -> GpuReading:
        own = [(pid, use) for (where, pid), use in sorted(uses.items()) if where == pci]
        processes: list[ProcessReading] = [
            process_reading(pid, use.memory, busy[pci, pid]) for pid, use in own
        ]
        used = _number(f"{device}/mem_info_vram_used")
        known = [use.memory for _, use in own]
        if vendor == INTEL and is_whole and None not in known:
            used = sum(each or 0 for each in known)
        unique = word_in(f"{device}/unique_id")
        return {
            "pci": pci,
            "uuid": f"GPU-{unique}" if unique else None,
            "slice": None,
            "memory_used": used,
            "memory_total": _number(f"{device}/mem_info_vram_total"),
            "utilisation": _number(f"{device}/gpu_busy_percent"),
            "is_lost": False,
            "processes": processes if is_whole or processes else None,
        }

    def _uses(self) -> tuple[dict[tuple[str, int], _Use], bool]:
        """Return what the fdinfo of all processes says, and whether all could be read."""
        everyone = [int(name) for name in os.listdir(self._root / "proc") if name.isdecimal()]
        searches = self._turn % _SEARCH_EVERY == 0
        self._turn += 1
        known = sorted(self._holders.intersection(everyone))
        others: list[int] = []
        if searches:
            others = sorted(set(everyone) - self._holders)
            self._holders.clear()
            self._is_whole = True
        clients: dict[_Client, dict[int, _Use]] = {}
        left: dict[int | None, int] = {}
        for pid in (*known, *others):
            directory = self._root / f"proc/{pid}"
            user = uid_of(directory)
            budget = left.get(user, _MOST_LOOKS)
            try:
                found, looks, is_whole = _clients(directory / "fdinfo", budget)
            except PermissionError:
                self._is_whole = False
                continue
            except OSError:
                continue
            left[user] = budget - looks
            self._is_whole = self._is_whole and is_whole
            if found:
                self._holders.add(pid)
            for client, use in found.items():
                clients.setdefault(client, {})[pid] = use
        return self._owned(clients), self._is_whole

    def _owned(self, clients: dict[_Client, dict[int, _Use]]) -> dict[tuple[str, int], _Use]:
        """Return the use by each process, with each client counted for one of those that have
        it. The kernel does not tell which of them opened it."""
        before, self._owners = self._owners, {}
        uses: dict[tuple[str, int], _Use] = {}
        for client, by_pid in clients.items():
            owner = before.get(client, 0)
            owner = owner if owner in by_pid else min(by_pid)
            self._owners[client] = owner
            uses.setdefault((client[0], owner), _Use()).add(by_pid[owner])
        return uses

    def _add_kfd(
        self, uses: dict[tuple[str, int], _Use], gpus: dict[str, tuple[str, Path]]
    ) -> None:
        """Add the memory of processes that compute on AMD's GPUs, as KFD counts it, for those of
        which fdinfo tells none."""
        ids = _kfd_ids(self._root)
        for process in self._root.glob("sys/class/kfd/kfd/proc/*"):
            if not process.name.isdecimal():
                continue
            for gpu_id, pci in ids.items():
                memory = _number(f"{process}/vram_{gpu_id}")
                if pci not in gpus or not memory:
                    continue
                use = uses.setdefault((pci, int(process.name)), _Use())
                use.memory = max(use.memory or 0, memory)

    def _busy(self, uses: dict[tuple[str, int], _Use]) -> dict[tuple[str, int], int | None]:
        """Return the utilisation of each use since the last reading, or None if it is not known."""
        now_ns = time.monotonic_ns()
        before, self._before = self._before, {key: (use, now_ns) for key, use in uses.items()}
        found: dict[tuple[str, int], int | None] = {}
        for key, use in uses.items():
            last = before.get(key)
            found[key] = None if last is None else _utilisation(last[0], use, now_ns - last[1])
        return found


def _utilisation(before: _Use, after: _Use, span_ns: int) -> int | None:
    """Return the per cent of the time that the busiest engine worked for a process."""
    shares = []
    for engine, (busy, total) in after.engines.items():
        if engine not in before.engines:
            continue
        old_busy, old_total = before.engines[engine]
        span = span_ns if total is None or old_total is None else total - old_total
        if span > 0:
            shares.append(min(100, max(0, round(100 * (busy - old_busy) / span))))
    return max(shares, default=None)


def _clients(directory: Path, most: int) -> tuple[dict[_Client, _Use], int, bool]:
    """Return the use by each client that one process has open, how many looks that took, and
    whether `most` sufficed. Raises OSError if its files cannot be read."""
    found: dict[_Client, _Use] = {}
    looks = 1
    if most < looks:
        return found, 0, False
    with os.scandir(directory) as files:
        for file in files:
            looks += 1
            if looks > most:
                return found, most, False
            try:
                text = Path(file.path).read_text(errors="replace")
            except PermissionError:
                raise
            except OSError:
                continue
            if "drm-driver:" not in text:
                continue
            pairs = (line.partition(":") for line in text.splitlines())
            facts = {name.strip(): value.strip() for name, _, value in pairs}
            pci = facts.get("drm-pdev")
            client = facts.get("drm-client-id")
            if pci is not None and client is not None and (pci, client) not in found:
                found[pci, client] = _use(facts)
    return found, looks, True


def _use(facts: dict[str, str]) -> _Use:
    use = _Use(_on_gpu(facts))
    for name, value in facts.items():
        busy = _amount(value)
        total: int | None = None
        if name.startswith("drm-cycles-"):
            total = _amount(facts.get(name.replace("drm-", "drm-total-", 1), ""))
            is_use = total is not None
        else:
            is_use = name.startswith("drm-engine-") and not name.startswith("drm-engine-capacity-")
        if busy is not None and is_use:
            use.engines[name.removeprefix("drm-")] = busy, total
    return use


def _on_gpu(facts: dict[str, str]) -> int | None:
    """Return the bytes that a client has on the GPU, or None if its driver does not tell.

    Where a driver writes both, `drm-memory-` is the old name of `drm-resident-`."""
    for prefix in ("drm-resident-", "drm-memory-", "drm-total-"):
        amounts = [
            _amount(value)
            for name, value in facts.items()
            if name.startswith(prefix) and name.removeprefix(prefix).startswith(_ON_GPU)
        ]
        if amounts:
            return sum(each or 0 for each in amounts)
    return None


def _amount(value: str) -> int | None:
    """Return a number, in bytes if it has a unit of memory, else as it is."""
    words = value.split()
    if not words or not words[0].isdecimal():
        return None
    return int(words[0]) * _UNITS.get(words[1] if len(words) > 1 else "", 1)


def _kfd_ids(root: Path) -> dict[str, str]:
    """Return KFD's number of each GPU → PCI address."""
    found: dict[str, str] = {}
    above = f"{root}/{amd.NODES}"
    for node in entries(above):
        gpu_id = word_in(f"{above}/{node}/gpu_id")
        if gpu_id in ("", "0"):
            continue
        with suppress(OSError, GpuFault):
            found[gpu_id] = amd.address(amd.properties(f"{above}/{node}"))[0]
    return found


def _number(path: str) -> int | None:
    return number(word_in(path))
