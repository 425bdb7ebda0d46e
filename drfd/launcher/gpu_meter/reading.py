"""The line that the process that measures writes, and the facts about the users of a GPU in it.

A line is a JSON object of this shape:

    gpus   the GPUs, and the MIG slices in place of a GPU that is divided; each with
             pci, uuid            the address as in /sys/bus/pci/devices, and the lasting name
             slice                "GI:CI" of a MIG slice
             memory_used, memory_total   bytes
             utilisation          per cent of the time
             is_lost              whether it does not answer its driver, or has gone
             processes            each with pid, uid, cgroups (paths), memory, utilisation
    why    a sentence: why nothing is measured

A value is null where the driver does not tell it. `processes` is null where they are not known, so
that an empty list always says that nobody uses the GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from heapq import nlargest
from typing import TypedDict

from drfd.launcher.gpu_meter import MAX_LINE_BYTES
from drfd.linux.kernel_files import cgroups_of, word_in

#: Sums of the processes of each user on a GPU in a line that would be too long with all of them:
#: the largest number that fits.
_SUMS = (1024, 64, 4, 1)
#: The first pid namespace of a machine (PROC_PID_INIT_INO, include/linux/proc_ns.h): drivers count
#: pids there, which in any other namespace name other processes.
_FIRST_PIDS = "pid:[4026531836]"


class ProcessReading(TypedDict):
    pid: int
    uid: int | None
    cgroups: list[str]
    memory: int | None
    utilisation: int | None


class GpuReading(TypedDict):
    pci: str
    uuid: str | None
    slice: str | None
    memory_used: int | None
    memory_total: int | None
    utilisation: int | None
    is_lost: bool
    processes: list[ProcessReading] | None


class Unmeasured(Exception):
    """Nothing can be measured; the message says why, in a sentence."""


def names_processes() -> bool:
    """Return whether a pid that a driver names is that of the same process here."""
    return os.readlink("/proc/self/ns/pid") == _FIRST_PIDS


def process_reading(pid: int, memory: int | None, utilisation: int | None) -> ProcessReading:
    return {
        "pid": pid,
        "uid": uid_of(f"/proc/{pid}"),
        "cgroups": cgroups_of(f"/proc/{pid}"),
        "memory": memory,
        "utilisation": utilisation,
    }


def uid_of(directory: str | os.PathLike[str]) -> int | None:
    """Return the real uid of the process with this directory in /proc, or None if it is gone or
    hidden. The owner of the directory is root where a process forbids that it is inspected."""
    for line in word_in(f"{directory}/status").split("\n"):
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def lost_reading(pci: str, uuid: str | None) -> GpuReading:
    """Return what is said of a GPU that cannot be used."""
    return {
        "pci": pci,
        "uuid": uuid,
        "slice": None,
        "memory_used": None,
        "memory_total": None,
        "utilisation": None,
        "is_lost": True,
        "processes": None,
    }


def encode(gpus: Iterable[GpuReading] = (), why: str | None = None) -> bytes:
    """Return the line, with its end.

    Where it would be too long, the processes of a user on a GPU that are in the same cgroups are
    summed up, with the pid of one of them; where even that is too long, of each user only the
    largest of these sums are left. So a flood by one user hides no use by others."""
    found = list(gpus)
    line = _encode(found, why)
    for most in _SUMS:
        if len(line) > MAX_LINE_BYTES:
            found = [
                {**gpu, "processes": gpu["processes"] and _summed(gpu["processes"], most)}
                for gpu in found
            ]
            line = _encode(found, why)
    if len(line) > MAX_LINE_BYTES:
        line = _encode([{**gpu, "processes": None} for gpu in found], why)
    return line


def _summed(processes: list[ProcessReading], most: int) -> list[ProcessReading]:
    """Return one process in place of those of one user in the same cgroups: of each user the `most`
    that have the most memory."""
    places: dict[int | None, dict[tuple[str, ...], list[ProcessReading]]] = {}
    for each in processes:
        own = places.setdefault(each["uid"], {})
        own.setdefault(tuple(each["cgroups"]), []).append(each)
    return [
        each
        for own in places.values()
        for each in nlargest(most, map(_sum, own.values()), key=lambda each: each["memory"] or 0)
    ]


def _sum(same: list[ProcessReading]) -> ProcessReading:
    return {
        **same[0],
        "memory": _total([each["memory"] for each in same]),
        "utilisation": _total([each["utilisation"] for each in same]),
    }


def _total(amounts: list[int | None]) -> int | None:
    return None if None in amounts else sum(each or 0 for each in amounts)


def _encode(gpus: list[GpuReading], why: str | None) -> bytes:
    return json.dumps({"gpus": gpus, "why": why}, separators=(",", ":")).encode() + b"\n"
