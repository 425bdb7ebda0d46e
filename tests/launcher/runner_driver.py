"""Run by `rig.Driver`: starts runners on request, one JSON line each. A few of its habits no job
must inherit."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from msgspec.structs import replace

from drfd.launcher import attempt_files
from drfd.launcher.confinement.interface import CgroupPlan, Prepared
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import Assignment, AttemptLimits, Devices, read_order
from drfd.launcher.runner import identity
from drfd.launcher.runner.starter import plan
from drfd.launcher.runner.starter.plan import JobStart, Plans
from drfd.launcher.runner.starter.program import needed_capabilities, open_starter
from drfd.launcher.system import answers, process
from drfd.linux import syscalls
from drfd.linux.sealed import seal


class Closed(Unconfined):
    """A place that cannot be entered."""

    def plan(self, *of: object, is_pinned: bool) -> CgroupPlan:
        return CgroupPlan(entries=["/dev/full"])


class Short(Unconfined):
    """Short of memory when the descriptor that the file `events` names is written to; `killed`
    tells what the kernel did."""

    def __init__(self, directory: str) -> None:
        super().__init__("a test")
        self._events = f"{directory}/events"
        self._proof = f"{directory}/killed"

    def plan(self, *of: object, is_pinned: bool) -> CgroupPlan:
        return CgroupPlan(
            pids_max=f"{self._events}.pids.max",
            freezer=f"{self._events}.freezer.state",
            oom_control=self._proof,
            event_control=self._events,
        )


STARTER = open_starter(Path(sys.argv[2]))
CAPABILITIES = needed_capabilities(enters_spaces=True, serves_root=True)


class Unified(Unconfined):
    """A cgroup of version 2, whose directory is named in the file `cgroup` of the job's."""

    def __init__(self, directory: str) -> None:
        super().__init__("a test")
        with open(f"{directory}/cgroup") as file:
            self._directory = file.read()

    def plan(self, *of: object, is_pinned: bool) -> CgroupPlan:
        return CgroupPlan(cgroup=self._directory)


class Made(Unconfined):
    """Cgroups that the runner makes, one in the other, below the directory that `top` names."""

    def __init__(self, directory: str) -> None:
        super().__init__("a test")
        with open(f"{directory}/top") as file:
            self._top = file.read()

    def create(
        self,
        key: object,
        limits: AttemptLimits,
        devices: Devices,
        is_made: bool = False,
    ) -> Prepared:
        return Prepared(makes=2)

    def plan(self, *of: object, is_pinned: bool) -> CgroupPlan:
        inner = "not-made", "one/two", "one"
        return CgroupPlan(directories=[f"{self._top}/{name}" for name in inner])


class Stopped(Unconfined):
    """A place that takes for ever to enter: a FIFO that nobody reads."""

    def __init__(self, directory: str) -> None:
        super().__init__("a test")
        self._fifo = f"{directory}/stopped"
        os.mkfifo(self._fifo)

    def plan(self, *of: object, is_pinned: bool) -> CgroupPlan:
        return CgroupPlan(entries=[self._fifo])


# Else a runner rings twice where a pause of the machine keeps a job from its exec.
plan.EXEC_S = 60.0


def start(request: dict) -> int:
    order = read_order(request["order"].encode())
    order = replace(order, variables=order.variables | request["forged"])
    plan.START_S = 1.0 if request["place"] in ("stopped", "frozen") else 120.0
    places = {
        "plain": Unconfined,
        "closed": Closed,
        "short": lambda _: Short(request["cwd"]),
        "made": lambda _: Made(request["cwd"]),
        "unified": lambda _: Unified(request["cwd"]),
        # The same, for a cgroup where no process gets on.
        "frozen": lambda _: Unified(request["cwd"]),
        "stopped": lambda _: Stopped(request["cwd"]),
        # The same, for a test that reads the FIFO.
        "gate": lambda _: Stopped(request["cwd"]),
    }
    confinement = places[request["place"]]("a test")
    created = {
        "uid": order.uid,
        "user": order.user,
        "boot_id": process.boot_id(),
        "cgroup": None,
        "at_s": 1000.0,
        "mono_s": 10.0,
        "space": request["space"],
    }
    directory = os.open(request["attempts"], os.O_RDONLY)
    key = (order.id, order.attempt)
    prepared = confinement.create(key, order.limits, Devices())
    attempt_fd = attempt_files.create(directory, key, created)
    os.close(directory)
    bell = request["bell"] or "/dev/null"
    bell_fd = os.open(bell, os.O_WRONLY | os.O_NONBLOCK)
    os.set_inheritable(bell_fd, True)
    payload_fd = seal(bytes.fromhex(request["payload"]))
    asked = 0, "account", order.uid, order.user, []
    who = identity.found_in(answers.answer_to(asked, (os.getuid(), os.getgid())), order.uid)
    job = JobStart(Assignment(order, payload_fd), *who, request["space"])
    capabilities = CAPABILITIES & syscalls.capabilities().permitted
    encoded = Plans(confinement, capabilities).encoded(job, prepared)
    pid = STARTER.spawn(attempt_fd, bell_fd, encoded, payload_fd)
    for fd in (attempt_fd, bell_fd, payload_fd):
        os.close(fd)
    return pid


def reap(request: dict) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])


def main() -> None:
    # None of these is to reach a job.
    os.set_inheritable(os.open("/", os.O_RDONLY), True)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    os.environ["SECRET_OF_THE_LAUNCHER"] = "1"
    for line in sys.stdin:
        request = json.loads(line)
        print({"start": start, "reap": reap}[request["do"]](request), flush=True)


main()
