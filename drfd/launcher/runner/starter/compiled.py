"""The start of a job's process by the compiled program (starter.c)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from drfd.launcher.attempt_files import Record
from drfd.launcher.confinement.interface import FORKED
from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.starter import plan, report
from drfd.linux import syscalls
from drfd.linux.syscalls import Capabilities


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
        if confinement.entry()[0] == FORKED:
            pid = confinement.fork(job.key)
            if pid == 0:
                self._execute(argv, job.entry_fd)
        else:
            # Without a copy of this process's page tables, whose pages would all have to be copied
            # again when they are next touched.
            pid = os.posix_spawn(self._path, argv, {})
        try:
            # A signal may cut a write short.
            while data:
                data = data[os.write(job.go_in, data) :]
        except BrokenPipeError:
            # It has died, as its report or its wait status shows.
            pass
        return pid

    def _execute(self, argv: list[str], entry_fd: int) -> None:
        """Execute the program in a process that was forked for it; or report why not, and end."""
        try:
            os.execve(self._path, argv, {})
        except OSError as error:
            os.write(entry_fd, report.encode("setting", error))
        finally:
            os._exit(125)

    def entry_failure(self, job: JobStart, data: bytes) -> Record:
        return report.of_entry(data)

    def failure(self, job: JobStart, data: bytes) -> Record:
        return report.of_job(data, job)
