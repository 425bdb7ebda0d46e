"""The machine as Slurm's commands show it: the one node of a cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

from drfd.client.connection import Connection
from drfd.client.counted import count_resources
from drfd_cli import output
from drfd_cli.slurm.batch_script import host_name
from drfd_cli.slurm.fields import moment

#: Short names of states → long ones.
_LONG = {"mix": "mixed", "alloc": "allocated", "drain": "drained", "drng": "draining"}


#: Fields of `sinfo -O` → their signs; others are signs of their own.
WORDS = {
    "available": "a", "cpus": "c", "cpusload": "O", "cpusstate": "C", "disk": "d", "features": "f",
    "features_act": "f", "freemem": "e", "gres": "G", "memory": "m", "nodeai": "A",
    "nodeaiot": "F", "nodehost": "n", "nodelist": "N", "nodes": "D", "partition": "P",
    "partitionname": "R", "prioritytier": "p", "reason": "E", "statecompact": "t",
    "statelong": "T", "time": "l", "timestamp": "H", "user": "u",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    #: Cores that jobs can have, and those that none has.
    cpus: int
    idle: int
    memory_bytes: int
    free_memory_bytes: int
    #: What is counted here, such as `gpu:2`, or `(null)`.
    gres: str
    #: The short name of the state.
    state: str
    #: Why no job starts, or `none`.
    reason: str
    #: Who has stopped it, and since when in Unix seconds; None while jobs start.
    by: str | None
    since_s: float | None
    #: What processes outside drfd use of the cores that jobs could have.
    outside: int

    @property
    def long_state(self) -> str:
        return _LONG.get(self.state, self.state)

    def is_in(self, words: Iterable[str]) -> bool:
        """Return whether the machine is in one of these states, short or long."""
        own = {"all", self.state, self.long_state}
        if self.by is not None:
            own |= {"drain"}
        return any(word.lower().rstrip("*~#") in own for word in words)

    def signs(self, partition: str, *, is_default: bool) -> dict[str, tuple[str, str]]:
        """Return the fields of `sinfo -o` for the machine in a partition: head and value."""
        used = self.cpus - self.idle - self.outside
        idle, other = (0, self.idle + self.outside) if self.by else (self.idle, self.outside)
        nodes = "0/0/1" if self.by else "0/1/0" if self.state == "idle" else "1/0/0"
        since = "Unknown" if self.since_s is None else moment(self.since_s)
        return {
            "P": ("PARTITION", f"{partition}*" if is_default else partition),
            "R": ("PARTITION", partition), "a": ("AVAIL", "up"), "l": ("TIMELIMIT", "infinite"),
            "D": ("NODES", "1"), "t": ("STATE", self.state), "T": ("STATE", self.long_state),
            "N": ("NODELIST", self.name), "n": ("HOSTNAMES", self.name),
            "c": ("CPUS", str(self.cpus)), "m": ("MEMORY", str(self.memory_bytes >> 20)),
            "C": ("CPUS(A/I/O/T)", f"{used}/{idle}/{other}/{self.cpus}"),
            "G": ("GRES", self.gres), "e": ("FREE_MEM", str(self.free_memory_bytes >> 20)),
            "A": ("NODES(A/I)", nodes[:3]), "F": ("NODES(A/I/O/T)", f"{nodes}/1"),
            "E": ("REASON", self.reason), "u": ("USER", self.by or "Unknown"),
            "H": ("TIMESTAMP", since), "O": ("CPU_LOAD", f"{os.getloadavg()[0]:.2f}"),
            "f": ("AVAIL_FEATURES", "(null)"), "d": ("TMP_DISK", "0"), "p": ("PRIO_TIER", "1"),
            "{allocmem}": ("ALLOCMEM", str(self.memory_bytes - self.free_memory_bytes >> 20)),
        }  # fmt: skip


def read_machine(client: Connection) -> Machine:
    """Return what the machine has, how much of it is free, and whether jobs start."""
    shares = client.request("shares")
    status = client.request("status", limit=1)
    capacity, free = shares["capacity"], shares["free"]
    counts = count_resources(client, capacity["gres"])
    cpus = int(capacity["cores"])
    external = shares.get("external")
    outside = 0 if external is None else math.ceil(external["cores"] - external["kept"]["cores"])
    unused = max(0, int(free["cores"]))
    outside = min(unused, max(0, outside))
    idle = unused - outside
    state = "idle" if idle == cpus else "mix" if idle > 0 else "alloc"
    if status["draining"]:
        state = "drain" if state == "idle" else "drng"
    drain = status.get("drain")
    reason = "none" if drain is None else output.clean(drain["reason"] or "none", 200)
    return Machine(
        name=host_name(), cpus=cpus, idle=idle, memory_bytes=capacity["memory"],
        free_memory_bytes=max(0, free["memory"]),
        gres=",".join(f"{name}:{count}" for name, count in counts.items()) or "(null)",
        state=state, reason=reason, outside=outside,
        by=output.clean(drain["by"]) if drain is not None else "root" if state[0] == "d" else None,
        since_s=None if drain is None else drain["since"],
    )  # fmt: skip
