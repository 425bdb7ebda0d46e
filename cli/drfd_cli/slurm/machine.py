"""The machine as Slurm's commands show it: the one node of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from drfd.client.connection import Connection
from drfd_cli import output
from drfd_cli.slurm.batch_script import host_name

#: Short names of states → long ones.
_LONG = {"mix": "mixed", "alloc": "allocated", "drain": "drained", "drng": "draining"}


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

    @property
    def long_state(self) -> str:
        return _LONG.get(self.state, self.state)


def read_machine(client: Connection) -> Machine:
    """Return what the machine has, how much of it is free, and whether jobs start."""
    shares = client.request("shares")
    status = client.request("status", limit=1)
    capacity, free = shares["capacity"], shares["free"]
    cpus, idle = int(capacity["cores"]), max(0, int(free["cores"]))
    state = "idle" if idle == cpus else "mix" if idle > 0 else "alloc"
    if status["draining"]:
        state = "drain" if state == "idle" else "drng"
    reason = output.clean(status["drain"]["reason"] or "none", 200) if "drain" in status else "none"
    return Machine(
        name=host_name(), cpus=cpus, idle=idle, memory_bytes=capacity["memory"],
        free_memory_bytes=max(0, free["memory"]),
        gres=",".join(f"{name}:{count}" for name, count in capacity["gres"].items()) or "(null)",
        state=state, reason=reason,
    )  # fmt: skip
