"""Run by `rig.Driver`: starts runners on request, one JSON line each. Single-threaded, as the
launcher is, and with a few habits that a job must not inherit."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from drfd.launcher import attempt_files
from drfd.launcher.confinement.cgroup_v2 import killing_in
from drfd.launcher.confinement.interface import Entrance, Killing, LimitFailed
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import Assignment, Devices, read_order
from drfd.launcher.runner import attempt_process, privileges
from drfd.launcher.runner.attempt_process import FINISHED, read_notifications
from drfd.launcher.runner.runner import fork_runner, hand_over
from drfd.launcher.runner.starter import program
from drfd.launcher.runner.starter.program import open_starter
from drfd.launcher.system import process
from drfd.linux.sealed import seal


class Closed(Unconfined):
    """A place that cannot be entered."""

    def entrance(self, key: object, limits: object, uid: object) -> Entrance:
        return Entrance(files=("/dev/full",))


class NoMemory(Unconfined):
    """A place that the kernel has no memory for."""

    def entrance(self, key: object, limits: object, uid: object) -> Entrance:
        raise LimitFailed("/tasks: no memory") from OSError(errno.ENOMEM, "no memory")


class Short(Unconfined):
    """A place where the kernel runs out of memory once a line comes through the FIFO `shortage`
    of the job's directory, and has killed unless the file `killed` says "oom_kill 0"."""

    def __init__(self, directory: str) -> None:
        super().__init__("a test")
        self._fifo = f"{directory}/shortage"
        self._proof = f"{directory}/killed"

    def oom_descriptor(self, key: object) -> int:
        return os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK)

    def oom_kills(self, key: object) -> tuple[bool, bool]:
        try:
            with open(self._proof) as file:
                return file.read() != "oom_kill 0\n", False
        except FileNotFoundError:
            return False, False

    def killing(self, key: object) -> Killing:
        return Killing(oom_control=self._proof)


class Sticky(Unconfined):
    """A place that never gets empty, as far as can be seen."""

    def kill_pass(self, key: object, attempt: object) -> bool:
        return False


STARTER = open_starter(Path(sys.argv[2]))
CAPABILITIES = privileges.needed(enters_spaces=True, serves_root=True)
#: How long a runner insists on an end.
SWEEP_S = attempt_process._SWEEP_S


class Unified(Unconfined):
    """A cgroup of version 2, whose directory is named in the file `cgroup` of the job's."""

    def __init__(self, directory: str) -> None:
        super().__init__("a test")
        with open(f"{directory}/cgroup") as file:
            self._directory = file.read()

    def entrance(self, key: object, limits: object, uid: object) -> Entrance:
        return Entrance(cgroup=self._directory)

    def killing(self, key: object) -> Killing:
        return killing_in(self._directory)


class Old(Unified):
    """The same, on a kernel without cgroup.kill."""

    def killing(self, key: object) -> Killing:
        return replace(killing_in(self._directory), kill=None)


class Stopped(Unconfined):
    """A place that takes for ever to enter, as if a user stopped each process: a FIFO that nobody
    reads."""

    def __init__(self, directory: str) -> None:
        super().__init__("a test")
        self._fifo = f"{directory}/stopped"
        os.mkfifo(self._fifo)

    def entrance(self, key: object, limits: object, uid: object) -> Entrance:
        return Entrance(files=(self._fifo,))


# Else a runner rings twice where a pause of the machine keeps a job from its exec.
attempt_process._EXEC_S = 60.0
#: Runners that are given another attempt after the present one: the launcher's ends of the channel
#: and of the pipe for notifications.
kept: dict[int, tuple[socket.socket, int]] = {}


def start(request: dict) -> int:
    _, order = read_order(request["order"])
    order = replace(order, variables=order.variables | request["forged"])
    is_hurried = request["place"] in ("stopped", "frozen")
    attempt_process._START_S = program._TELL_S = 1.0 if is_hurried else 120.0
    places = {
        "plain": Unconfined,
        "closed": Closed,
        "no memory": NoMemory,
        "short": lambda _: Short(request["cwd"]),
        "sticky": Sticky,
        "unified": lambda _: Unified(request["cwd"]),
        "old": lambda _: Old(request["cwd"]),
        # The same, for a cgroup where no process gets on.
        "frozen": lambda _: Unified(request["cwd"]),
        "stopped": lambda _: Stopped(request["cwd"]),
        # The same, for a test that reads the FIFO.
        "gate": lambda _: Stopped(request["cwd"]),
    }
    attempt_process.BECOME_AFTER_S = request["waits_after_s"]
    confinement = places[request["place"]]("a test")
    # In vain is not tried for long.
    attempt_process._SWEEP_S = 0.05 if request["place"] == "sticky" else SWEEP_S
    created = {
        "uid": order.uid,
        "boot_id": process.boot_id(),
        "cgroup": None,
        "at_s": 1000.0,
        "mono_s": 10.0,
        "space": request["space"],
    }
    directory = os.open(request["attempts"], os.O_RDONLY)
    confinement.create((order.id, order.attempt), order.limits, Devices())
    attempt_fd = attempt_files.create(directory, (order.id, order.attempt), created)
    os.close(directory)
    pid = request["runner"]
    if pid is None:
        bell_out, bell_in = os.pipe()
        if request["bell"] is not None:
            os.close(bell_in)
            bell_in = os.open(request["bell"], os.O_WRONLY | os.O_NONBLOCK)
        pid, channel = fork_runner(confinement, bell_in, CAPABILITIES, STARTER)
        os.close(bell_in)
    else:
        channel, bell_out = kept.pop(pid)
        while FINISHED not in [what for _, what in read_notifications(os.read(bell_out, 1 << 16))]:
            pass
    payload_fd = seal(bytes.fromhex(request["payload"]))
    hand_over(channel, Assignment(order, payload_fd), created, attempt_fd)
    os.close(payload_fd)
    if request["keep"]:
        kept[pid] = channel, bell_out
    else:
        channel.close()
        os.close(bell_out)
    os.close(attempt_fd)
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
