"""The start of a job's process by the compiled program (starter.c)."""

from __future__ import annotations

import os
import select
import sys
from dataclasses import dataclass, field

from drfd.launcher.attempt_files import Record
from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.starter import plan, report
from drfd.launcher.system import process
from drfd.linux import syscalls
from drfd.linux.syscalls import Capabilities

#: The program writes its id as an int of C.
_PID_BYTES = 4
#: Seconds that its process in a cgroup may take to write it: in a frozen cgroup it never does.
_TELL_S = 120.0


@dataclass
class Compiled:
    """Starts jobs' processes by the program that is open as `program_fd`."""

    program_fd: int
    about = "it is begun by a compiled program"
    _capabilities: Capabilities | None = field(default=None, init=False)

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.program_fd,)

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self.program_fd}"

    def warm_up(self) -> None:
        # An exec as root gives the program all capabilities; it goes back to these.
        self._capabilities = syscalls.capabilities()

    def start(self, job: JobStart, others: tuple[int, ...]) -> int:
        assert self._capabilities is not None
        confinement, order = job.confinement, job.assignment.order
        entrance = confinement.entrance(job.key, order.limits, order.uid)
        data = plan.encode(job, entrance, self._capabilities)
        given = (job.entry_fd, job.report_fd, job.go_fd, job.assignment.payload_fd)
        for fd in given:
            os.set_inheritable(fd, True)
        argv = ["drfd-starter", *map(str, given)]
        # What fits into the empty pipe in any case is there before the program, which need not
        # wait for it.
        at = os.write(job.go_in, data[: select.PIPE_BUF])
        # This copies no page tables, whose pages would all have to be copied at the next touch.
        pid = os.posix_spawn(self._path, argv, {})
        # Else nothing would show here that the process has died.
        job.close_its_ends()
        try:
            # A signal may cut a write short.
            while at < len(data):
                at += os.write(job.go_in, data[at:])
        except BrokenPipeError:
            # It has died, as its report or its wait status shows.
            return pid
        return pid if entrance.cgroup is None else self._successor(pid, job.entry_out)

    def _successor(self, first: int, entry_out: int) -> int:
        """Return the pid of the process in the cgroup that the program goes on as, and reap its
        first one. Returns `first` itself if there is none, as its report or its wait status shows.
        """
        ended = os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_code == os.CLD_EXITED and ended.si_status != 0:
            return first
        told = os.read(entry_out, _PID_BYTES) if process.is_readable(entry_out, _TELL_S) else b""
        if len(told) == _PID_BYTES:
            pid = int.from_bytes(told, sys.byteorder)
        else:
            # It was killed, for memory for instance, or is frozen. This runner has no other child.
            pid = next((one for one in process.children(os.getpid()) if one != first), first)
        if pid != first:
            os.waitpid(first, 0)
        return pid

    def entry_failure(self, job: JobStart, data: bytes) -> Record:
        return report.of_entry(data)

    def failure(self, job: JobStart, data: bytes) -> Record:
        return report.of_job(data, job)
