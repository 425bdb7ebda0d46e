"""The machine's cgroups as tests look at them: the same questions to either version."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement import cgroup_v1, cgroup_v2
from drfd.launcher.confinement.cgroup_files import find_mounts, find_unified
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.protocol import AttemptLimits, Devices


class Kernel:
    def __init__(self) -> None:
        mountinfo = Path("/proc/self/mountinfo").read_text()
        self.v1 = find_mounts(mountinfo, cgroup_v1.USED)
        #: Where jobs have cgroups only if a device is hidden from them.
        self.devices = find_mounts(mountinfo, ["devices"]).values()
        self.v2 = find_unified(mountinfo)
        if self.v2 is not None:
            there = Path(self.v2, "cgroup.controllers").read_text().split()
            if any(name not in there for name in cgroup_v2.REQUIRED):
                self.v2 = None

    def missing(self) -> str | None:
        """What a system test needs and this machine lacks."""
        if os.getuid() != 0:
            return "not root"
        absent = [name for name in cgroup_v1.REQUIRED if name not in self.v1]
        if self.v2 is None and absent:
            return f"no cgroup v2 controllers, and of v1 not {', '.join(absent)}"
        return None

    def top(self, controller: str) -> Path:
        """The root of the hierarchy with this controller, below which a test can have a cgroup."""
        return Path(self.v2 or self.v1[controller])

    def cgroup(self, pid: int, controller: str) -> Path:
        """In which a process is, of the hierarchy with this controller."""
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        found = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
        name = next(each for each in found if self._has(each, controller))
        return Path(f"{self.top(controller)}{found[name]}")

    def _has(self, names: str, controller: str) -> bool:
        return names == "" if self.v2 is not None else controller in names.split(",")

    def groups(self, name: str) -> list[Path]:
        """Where jobs of the instance with this group may have their cgroups."""
        tops = [Path(mount, name) for mount in dict.fromkeys([*self.v1.values(), *self.devices])]
        if self.v2 is not None:
            tops += [Path(place, "jobs") for place in self._scopes(name)]
            tops.append(Path(self.v2, name))
        return tops

    def end_holder(self, name: str) -> None:
        """With it goes the whole tree in which the jobs of the instance with this group were."""
        env = {**os.environ, "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
        for place, command in self._scopes(name).items():
            if place.exists():
                subprocess.run([*command, "stop", place.name], env=env, check=False)

    def _scopes(self, name: str) -> dict[Path, list[str]]:
        """Of the system's manager, and of our own; how either is asked."""
        if self.v2 is None:
            return {}
        uid = os.getuid()
        users = Path(self.v2, "user.slice", f"user-{uid}.slice", f"user@{uid}.service")
        return {
            Path(self.v2, "drfd.slice", holder(name)): ["systemctl"],
            Path(users, "drfd.slice", holder(name)): ["systemctl", "--user"],
        }

    def limits(self, job: dict[str, Any]) -> dict[str, Any]:
        """What the kernel's files say of a running job. Cores in thousandths."""
        if self.v2 is not None:
            place = Path(self.v2, job["cgroup"])
            quota, period = (place / "cpu.max").read_text().split()
            return {
                "cores": int(quota) * 1000 // int(period),
                "memory": int((place / "memory.max").read_text()),
                "swap": _number(place / "memory.swap.max") or 0,
                "processes": int((place / "pids.max").read_text()),
                "disks": (place / "io.max").read_text().split(),
            }
        cpu, memory, pids, blkio = (
            Path(self.v1[name], job["cgroup"]) for name in ("cpu", "memory", "pids", "blkio")
        )
        quota, period = (
            int((cpu / f"cpu.cfs_{what}_us").read_text()) for what in ("quota", "period")
        )
        limit = int((memory / "memory.limit_in_bytes").read_text())
        both = _number(memory / "memory.memsw.limit_in_bytes")
        return {
            "cores": quota * 1000 // period,
            "memory": limit,
            "swap": 0 if both is None else both - limit,
            "processes": int((pids / "pids.max").read_text()),
            "disks": [
                word
                for what in ("read", "write")
                for word in (blkio / f"blkio.throttle.{what}_bps_device").read_text().split()
            ],
        }

    def use(self, job: dict[str, Any]) -> tuple[int, int]:
        """What a job has taken and holds now: processor time in microseconds, memory in bytes."""
        if self.v2 is not None:
            place = Path(self.v2, job["cgroup"])
            used = _keyed(place / "cpu.stat")["usage_usec"]
            return used, int((place / "memory.current").read_text())
        cpu, memory = (Path(self.v1[name], job["cgroup"]) for name in ("cpuacct", "memory"))
        used = int((cpu / "cpuacct.usage").read_text()) // 1000
        return used, int((memory / "memory.usage_in_bytes").read_text())

    def is_frozen(self, job: dict[str, Any]) -> bool:
        """All its processes stand still."""
        if self.v2 is not None:
            return _keyed(Path(self.v2, job["cgroup"], "cgroup.events"))["frozen"] == 1
        place = Path(self.v1["freezer"], job["cgroup"])
        return (place / "freezer.state").read_text() == "FROZEN\n"

    @contextmanager
    def refusing(self, parent: str) -> Iterator[None]:
        """While it lasts, no limit for four cores can be set in this directory of job cgroups."""
        if self.v2 is not None:
            # Without the controller there is no file to write a limit to.
            file, spoilt, whole = "cgroup.subtree_control", "-pids", "+pids"
            place = Path(self.v2, parent, file)
        else:
            # The quota of a child must not be above its parent's.
            file, spoilt, whole = "cpu.cfs_quota_us", "100000", "-1"
            place = Path(self.v1["cpu"], parent, file)
        place.write_text(spoilt)
        try:
            yield
        finally:
            place.write_text(whole)


def _number(file: Path) -> int | None:
    """None: this kernel does not account for swap."""
    return int(file.read_text()) if file.exists() else None


def _keyed(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in file.read_text().splitlines())
    return {key: int(value) for key, value in pairs}


def is_removed(cgroup: Path) -> bool:
    """Remove it with those below, if it is still there and can be."""
    for place, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):
            os.rmdir(place)
    return not cgroup.exists()


def holder(name: str) -> str:
    """The service of the jobs of the instance with this group."""
    return f"{name.replace('/', '-')}.service"


#: So long a close waits of what `lingering` makes.
LINGER_S = 90


def lingering(stack: ExitStack) -> int:
    """A descriptor whose last close takes `LINGER_S`: of TCP, and its other end reads nothing."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    sender = socket.create_connection(listener.getsockname())
    stack.enter_context(listener.accept()[0])
    sender.setblocking(False)
    try:
        while True:
            sender.send(b"x" * (1 << 16))
    except BlockingIOError:
        pass
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    return sender.detach()


def send_lingering(connection: socket.socket, stack: ExitStack) -> None:
    """Leave whoever has the other end with the last close of such a descriptor."""
    fd = lingering(stack)
    socket.send_fds(connection, [b"x"], [fd])
    os.close(fd)


_UNIFIED = find_unified(Path("/proc/self/mountinfo").read_text())


@contextmanager
def empty_cgroup(purpose: str) -> Iterator[Path]:
    """Make a cgroup without controllers; skip where there can be none."""
    if _UNIFIED is None:
        pytest.skip("no cgroup v2 is mounted here")
    made = Path(_UNIFIED, f"drfd-test-{purpose}-{os.getpid()}")
    made.mkdir()
    try:
        yield made
    finally:
        if made.exists():
            made.rmdir()


def enter(place: Confinement, key: Key) -> None:
    """Put the calling process into the cgroup of an attempt, as starter.c does or by a move."""
    limits = AttemptLimits(cores_milli=1000, memory_bytes=1 << 30, pids=100)
    plan = place.plan(key, limits, Devices(), is_pinned=False)
    moved = (f"{plan.cgroup}/cgroup.procs",) if plan.cgroup else ()
    for file in (*moved, *plan.entries):
        Path(file).write_text("0")
