"""Whose processes outside drfd use most of the machine, for the sentence of a job that waits."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from drfd.common.errors import printable
from drfd.core.model.resources import Resources
from drfd.core.scheduling.kept_free import OutsideUse
from drfd.daemon.monitoring.meter import Meter, Owners
from drfd.linux.kernel_files import cgroups_of
from drfd.linux.user_database import LocalAccounts

#: Seconds between two looks at all processes.
_PAUSE_S = 10.0
#: Of so many programs, those that use most, it is found out whether they are outside drfd.
_MOST = 30
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Process(NamedTuple):
    uid: int
    program: str
    #: When it began, which tells it from a later one with the same pid.
    began: str
    cpu_ticks: int
    memory_bytes: int


class OutsideUsers:
    """Who uses most outside drfd, by two looks at all processes."""

    def __init__(self, meter: Meter, proc: Path = Path("/proc")) -> None:
        self._meter, self._proc = meter, proc
        self._accounts = LocalAccounts()
        self._before: dict[int, _Process] = {}
        self._read_at_s = 0.0
        self._found: tuple[OutsideUse, ...] = ()

    def read(self) -> tuple[OutsideUse, ...]:
        """Return what the largest users use, as it was seen less than `_PAUSE_S` ago; nothing
        before the second look."""
        now_s = self._meter.mono()
        span_s = now_s - self._read_at_s
        if span_s < _PAUSE_S and self._found:
            return self._found
        before, self._before = self._before, self._look()
        self._read_at_s = now_s
        is_first = not before or span_s > 3 * _PAUSE_S
        self._found = () if is_first else self._compare(before, max(span_s, 1.0))
        return self._found

    def _look(self) -> dict[int, _Process]:
        found = {}
        for name in filter(str.isdecimal, os.listdir(self._proc)):
            try:
                uid = os.stat(self._proc / name).st_uid
                text = (self._proc / name / "stat").read_text("utf-8", "replace")
            except OSError:
                continue
            head, _, rest = text.rpartition(")")
            words, program = rest.split(), head.partition("(")[2]
            # Niced processes get only time that no other wants.
            ticks = 0 if int(words[16]) > 0 else int(words[11]) + int(words[12])
            found[int(name)] = _Process(
                uid, printable(program), words[19], ticks, int(words[21]) * _PAGE_BYTES
            )
        return found

    def _compare(self, before: dict[int, _Process], span_s: float) -> tuple[OutsideUse, ...]:
        used: dict[int, Resources] = {}
        for pid, now in self._before.items():
            earlier = before.get(pid)
            ticks = now.cpu_ticks
            if earlier is not None and earlier.began == now.began:
                ticks = max(0, ticks - earlier.cpu_ticks)
            used[pid] = Resources(
                cores_milli=round(ticks * 10 / _TICKS_PER_S / span_s) * 100,
                memory_bytes=now.memory_bytes,
            )
        by_cores = sorted(used, key=lambda pid: -used[pid].cores_milli)[:_MOST]
        by_memory = sorted(used, key=lambda pid: -used[pid].memory_bytes)[:_MOST]
        owners = Owners(self._meter)
        sums: dict[tuple[int, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        for pid in {*by_cores, *by_memory} - {os.getpid()}:
            if owners.owner_of(pid, cgroups_of(f"{self._proc}/{pid}")) is None:
                key, use = self._before[pid][:2], used[pid]
                sums[key] = sums[key][0] + use.cores_milli, sums[key][1] + use.memory_bytes
        return tuple(
            OutsideUse(
                self._accounts.name_of(uid) or f"uid {uid}",
                program,
                Resources(cores_milli=cores, memory_bytes=memory),
            )
            for (uid, program), (cores, memory) in sums.items()
        )
