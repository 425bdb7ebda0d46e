"""One attempt in its runner's hands: the job's process started, waited for and recorded."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from dataclasses import dataclass, field, replace

from drfd.failpoints import reach
from drfd.launcher import attempts, identity, process
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.child import explain, run_child, run_notice
from drfd.launcher.confinement import Confinement, LimitFailed
from drfd.launcher.protocol import Order
from drfd.launcher.shortage import persist

#: So long a job's process may take until its program begins.
_START_S = 120.0
#: … and so long its program may, before the job counts as started all the same.
_EXEC_S = 1.0
#: How long a runner insists on the end of the job's stragglers; the launcher goes on after it.
_SWEEP_S = 10.0
#: After news of an OOM, the kill counter is looked at so often, for so long.
_OOM_LOOK_MS, _OOM_LOOK_S = 5, 30.0


@dataclass
class Used:
    """What our children have used until they were waited for, and theirs."""

    cpu_s: float = 0.0
    #: Of the largest of them.
    peak_kib: int = 0
    read_blocks: int = 0
    written_blocks: int = 0
    #: Some had not died when they were looked at last.
    has_more: bool = False
    #: The wait status of the one that was wanted.
    status: int | None = None

    def reap(self, wanted: int = 0) -> int | None:
        """Collect dead children, up to `wanted`, whose wait status this is once it was among them.
        ChildProcessError: it is gone, and how it ended was not kept."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_more = False
                if wanted and self.status is None:
                    raise
                return self.status
            if pid == 0:
                self.has_more = True
                return self.status
            # First: nobody is told twice.
            if pid == wanted:
                self.status = status
            self.cpu_s += used.ru_utime + used.ru_stime
            self.peak_kib = max(self.peak_kib, used.ru_maxrss)
            self.read_blocks += used.ru_inblock
            self.written_blocks += used.ru_oublock
            if pid == wanted:
                return status


@dataclass
class Errand:
    """Of one attempt."""

    order: Order
    confinement: Confinement
    created: attempts.Record
    attempt_fd: int
    bell_fd: int
    #: Our pid and start time.
    me: attempts.Record
    #: Readable when a child has died.
    children_fd: int
    directory: identity.Directory
    #: Nothing of the attempt is left that we know of.
    is_clean: bool = True
    #: The job's program may run, or have run: only its end is left to be told.
    is_let_go: bool = False
    #: Readable when the kernel has killed for memory; None: no such news here.
    _oom_fd: int | None = None
    #: Until when the kill counter is looked at.
    _look_until_s: float = 0.0
    _used: Used = field(default_factory=Used)

    @property
    def key(self) -> Key:
        return self.order.id, self.order.attempt

    def run(self, channel_fd: int) -> None:
        # First, so that a successor of the launcher can find us at once.
        attempts.append(self.attempt_fd, "runner", self.me)
        reach("runner.before-child")
        try:
            self._run(channel_fd)
        finally:
            if self._oom_fd is not None:
                os.close(self._oom_fd)

    def _run(self, channel_fd: int) -> None:
        pid, failure = self._start_child(channel_fd)
        if failure is not None:
            attempts.append(self.attempt_fd, "failed", {"text": failure})
            return
        reach("runner.after-exec")
        self._ring()
        if self.order.on_start:
            self._tell_start(channel_fd)
        status = persist(self.key, self._await_end, pid)
        at_s, mono_s = time.time(), time.monotonic()
        persist(self.key, self._record_end, status, at_s, mono_s)

    def _start_child(self, channel_fd: int) -> tuple[int, str | None]:
        """Fork the job's process and let it go once that is on record; (pid, what went wrong)."""
        try:
            user, groups = self.directory.look_up(self.order.uid)
        except identity.Denied as error:
            return 0, str(error)
        env = identity.environment(user, self.order)
        report_out, report_in = os.pipe()
        go_out, go_in = os.pipe()
        pid = process.fork()
        if pid == 0:
            # With the lock and the channel, which say that the runner lives.
            others = (report_out, go_in, self.attempt_fd, channel_fd)
            run_child(self.order, user, groups, env, report_in, go_out, others)
        os.close(report_in)
        os.close(go_out)
        try:
            return pid, self._see_off(pid, report_out, go_in)
        finally:
            os.close(report_out)

    def _see_off(self, pid: int, report_fd: int, go_fd: int) -> str | None:
        """Put the child in its place and let it become the job's program; what went wrong."""
        try:
            self.confinement.enter(self.key, self.order.limits, self.order.uid, pid)
        except (LimitFailed, OSError) as error:
            os.close(go_fd)
            os.waitpid(pid, 0)
            return explain(error)
        _write_go(go_fd)
        if not process.is_readable(report_fd, _START_S):
            os.close(go_fd)
            return self._give_up(pid)
        ready = os.read(report_fd, 1)
        if ready == b"+":
            reach("runner.before-running-record")
            job = {"pid": pid, "start_ticks": process.start_ticks(pid)}
            attempts.append(self.attempt_fd, "running", job)
            reach("runner.after-running-record")
            self._oom_fd = self.confinement.oom_descriptor(self.key)
            self.is_let_go = True
            _write_go(go_fd)
            if not process.is_readable(report_fd, _EXEC_S):
                # It comes from a mount that hangs, or its user keeps it: it runs, as is on record,
                # and so does its time.
                self._ring()
        os.close(go_fd)
        # End of file is what exec leaves; anything else says why there was none.
        problem = ready.replace(b"+", b"") + persist(self.key, _read_all, report_fd)
        if ready == b"+" and not problem:
            return None
        os.waitpid(pid, 0)
        return json.loads(problem)["text"] if problem else "the job's process died before exec"

    def _give_up(self, pid: int) -> str:
        """It hangs where its user has sent it, or he has stopped it: its time limit does not count
        yet, and so what is given to it would be for nobody else for ever."""
        self.is_clean = False
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _SWEEP_S
        while self._used.reap(pid) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        where = f"entering {self.order.cwd} and opening its output files"
        return f"{where} took longer than {_START_S:.0f} s"

    def _tell_start(self, channel_fd: int) -> None:
        """Run the owner's command beside the job, as a part of it; it ends with the job."""
        variables = {**self.order.variables, "DRF_STATE": "RUNNING"}
        try:
            order = replace(self.order, argv=self.order.on_start, variables=variables)
            pid = process.fork()
        except (OSError, MemoryError):
            # The machine is short of processes. The job runs, and that is what counts.
            return
        if pid == 0:
            # The lock says that the runner lives, and so does the channel.
            os.close(self.attempt_fd)
            os.close(channel_fd)
            run_notice(order, self.confinement, os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC))

    def _await_end(self, pid: int) -> int:
        """Reap until `pid` is gone; its wait status. An OOM kill meanwhile takes the whole tree.
        May be called again where it broke off."""
        poll = select.poll()
        poll.register(self.children_fd, select.POLLIN)
        if self._oom_fd is not None:
            poll.register(self._oom_fd, select.POLLIN)
        # Before any waiting: news that was read may not have been heeded.
        while (status := self._used.reap(pid)) is None:
            is_looking = time.monotonic() < self._look_until_s
            for fd, _ in poll.poll(_OOM_LOOK_MS if is_looking else None):
                os.read(fd, 4096)
                if fd == self._oom_fd:
                    # The kernel tells before it kills: the counter follows a moment later.
                    is_looking, self._look_until_s = True, time.monotonic() + _OOM_LOOK_S
            if is_looking and self.confinement.oom_kills(self.key)[0]:
                # Whatever survives this dies with the job's first process, in the sweep.
                self._kill_all()
                self._look_until_s = 0.0
        return status

    def _kill_all(self) -> bool:
        ours = Attempt(created=self.created, runner=self.me)
        return self.confinement.kill_pass(self.key, ours)

    def _sweep(self) -> None:
        """Kill until nothing of the job is left, or for `_SWEEP_S`. All that it has forked is, or
        will be, a child of ours: a look through /proc can miss what is just being forked."""
        deadline = time.monotonic() + _SWEEP_S
        while True:
            is_empty = self._kill_all()
            self._used.reap()
            self.is_clean = is_empty and not self._used.has_more
            if self.is_clean or time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def _record_end(self, status: int, at_s: float, mono_s: float) -> None:
        """May be called again where it broke off."""
        oom_killed, over_limit = self.confinement.oom_kills(self.key)
        self._sweep()
        code = os.waitstatus_to_exitcode(status)
        used = self._used
        counted = self.confinement.counted(self.key)
        # Until exec each of them was one of us: what is about as large as we are says nothing.
        if used.peak_kib > 2 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
            counted["largest_process_bytes"] = used.peak_kib * 1024
        reach("runner.before-end-record")
        attempts.end_cut_line(self.attempt_fd)
        attempts.append(
            self.attempt_fd,
            "ended",
            {
                "at_s": at_s,
                "mono_s": mono_s,
                "exit_code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "oom_killed": oom_killed,
                "over_limit": over_limit,
                "cpu_s": used.cpu_s,
                "peak_bytes": used.peak_kib * 1024,
                "read_bytes": used.read_blocks * 512,
                "written_bytes": used.written_blocks * 512,
                "counted": counted,
            },
        )
        reach("runner.after-end-record")

    def _ring(self) -> None:
        try:
            os.write(self.bell_fd, attempts.file_name(self.key).encode() + b"\n")
        except (BrokenPipeError, BlockingIOError):
            # The launcher is gone, or so busy that it will read all files anyway.
            pass


def _write_go(fd: int) -> None:
    try:
        os.write(fd, b"+")
    except BrokenPipeError:
        # It has died; its end says so.
        pass


def _read_all(fd: int) -> bytes:
    data = b""
    while piece := os.read(fd, 4096):
        data += piece
    return data
