"""One attempt in its runner: the start of the job's process, the wait for its end, the records."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from errno import errorcode

from drfd.common.failpoints import reach
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement, LimitFailed
from drfd.launcher.protocol import Assignment, LaunchOrder
from drfd.launcher.runner import identity, inheritance, privileges, waiting
from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.failures import MAX_REPORT_BYTES, describe
from drfd.launcher.runner.output_limit import OutputLimit, take_ready
from drfd.launcher.runner.shortage import (
    DIRECTORY,
    MEMORY,
    USER,
    Shortage,
    failure,
    read_failure,
    retry_while_exhausted,
)
from drfd.launcher.runner.starter import report
from drfd.launcher.runner.starter.program import Starter
from drfd.launcher.runner.waiting import Used
from drfd.launcher.system import process

#: Seconds that a job's process may take until its program begins.
_START_S = 120.0
#: Seconds that exec of the program may take before the job counts as started in any case.
_EXEC_S = 1.0
#: Seconds that a job runs before its runner becomes the program that waits. Another runner has to
#: be forked then, which costs as much as a short job.
BECOME_AFTER_S = 1.0
#: Seconds that a runner kills the job's remaining processes for; then the launcher goes on.
_SWEEP_S = 10.0
#: After an OOM event, the kill counter is read at this interval (milliseconds), for this long
#: (seconds).
_OOM_POLL_MS, _OOM_POLL_S = 5, 30.0
#: Seconds between two looks at the size of output files that have a limit.
_OUTPUT_POLL_S = 1.0
#: Why a job with a limit of its output does not start: a limit that cannot hold is none.
_UNSEEN = (
    "--output-max cannot be kept, because drfd may not see the size of the output files; write "
    "them to another file system, or leave the limit out"
)


#: What a runner tells the launcher of its attempt.
STARTED, FINISHED = "started", "finished"


def notification(key: Key, what: str) -> bytes:
    """Return a line for the pipe to the launcher."""
    return f"{attempt_files.file_name(key)} {what}\n".encode()


def read_notifications(lines: bytes) -> Iterator[tuple[Key, str]]:
    """Yield what runners have told of their attempts, in order. Each line is whole, as a short
    write to a pipe is (pipe(7), PIPE_BUF)."""
    for line in lines.decode().splitlines():
        name, what = line.split()
        number, _, count = name.partition(".")
        yield (int(number), int(count)), what


@dataclass
class UsageAtEnd(Used):
    #: Whether children were alive at the last look.
    has_more: bool = False
    #: The wait status of the wanted child.
    status: int | None = None

    def reap(self, wanted: int = 0) -> int | None:
        """Reap dead children, up to `wanted`. Returns the wait status of `wanted`, or None while it
        is alive. Raises ChildProcessError if it is gone and its status is lost."""
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
            # Stored first, because the kernel reports a status only once.
            if pid == wanted:
                self.status = status
            self.cpu_s += used.ru_utime + used.ru_stime
            self.peak_kib = max(self.peak_kib, used.ru_maxrss)
            self.read_blocks += used.ru_inblock
            self.written_blocks += used.ru_oublock
            if pid == wanted:
                return status


@dataclass
class AttemptProcess:
    """The job's process of one attempt, as its runner starts it and waits for it."""

    assignment: Assignment
    confinement: Confinement
    created: attempt_files.Record
    attempt_fd: int
    notify_fd: int
    #: The runner's pid and start time.
    me: attempt_files.Record
    #: Readable when a child has died.
    children_fd: int
    directory: identity.Directory
    starter: Starter
    #: False if processes of the attempt may be left.
    is_clean: bool = True
    #: True once the job's program may run or have run: only its end is left to be recorded.
    is_released: bool = False
    #: True once the runner has given up rights that another attempt would need.
    is_last: bool = False
    #: When the runner becomes the program that waits, unless the job is over by then (monotonic
    #: clock).
    _become_at_s: float = 0.0
    #: Readable when the kernel has killed for memory; None if this machine has no such descriptor.
    _oom_fd: int | None = None
    #: The limit of its output files, if there is one, and what the job has written beyond it.
    _output: OutputLimit | None = None
    _output_bytes: int | None = None
    #: When the output files are looked at next (monotonic clock).
    _look_at_s: float = 0.0
    #: Until when the kill counter is read (monotonic clock).
    _poll_until_s: float = 0.0
    _used: UsageAtEnd = field(default_factory=UsageAtEnd)

    @property
    def order(self) -> LaunchOrder:
        return self.assignment.order

    @property
    def key(self) -> Key:
        return self.order.id, self.order.attempt

    def run(self) -> None:
        # Written first, so that the next launcher can find this runner at once.
        attempt_files.append(self.attempt_fd, "runner", self.me)
        reach("runner.before-child")
        try:
            self._run()
        finally:
            if self._oom_fd is not None:
                os.close(self._oom_fd)
            if self._output is not None:
                self._output.close()

    def _run(self) -> None:
        pid, failure = self._start_child()
        if failure is not None:
            self.assignment.close()
            attempt_files.append(self.attempt_fd, "failed", failure)
            return
        reach("runner.after-exec")
        self._notify_launcher()
        if self.order.tells_start:
            self._tell_start()
        # The payload is not read any more.
        self.assignment.close()
        self._become_at_s = time.monotonic() + BECOME_AFTER_S
        status = retry_while_exhausted(self.key, self._await_end, pid)
        at_s, mono_s = time.time(), time.monotonic()
        retry_while_exhausted(self.key, self._record_end, status, at_s, mono_s)

    def _start_child(self) -> tuple[int, attempt_files.Record | None]:
        """Start the job's process and release it once that is on record. Returns its pid, and the
        `failed` record if the program could not be run."""
        try:
            order = self.order
            user, groups = self.directory.look_up(order.uid, order.user, order.gid)
            identity.insist_on_root_for(user)
            # Done here and not in the job's process, whose cgroup is charged for each page that it
            # touches.
            inheritance.leave_keyring()
            has_quota = inheritance.has_key_quota(order.uid)
        except identity.Denied as error:
            return 0, failure(str(error), None)
        except identity.DirectoryFailed as error:
            # The shortage is this user's alone: other users may be in local files, which answer.
            number = errorcode.get(error.errno, str(error.errno))
            return 0, failure(str(error), Shortage(USER, DIRECTORY, number))
        except OSError as error:
            return 0, describe(error)
        entry_out, entry_in = os.pipe()
        report_out, report_in = _socket_pair() if order.output_max_bytes else os.pipe()
        go_out, go_in = os.pipe()
        start = JobStart(
            self.assignment, user, groups, self.confinement, entry_in, entry_out, report_in, go_out,
            go_in, has_quota, place=self.created.get("space"),
        )  # fmt: skip
        pid = self.starter.start(start)
        try:
            return pid, self._release(pid, start, report_out)
        finally:
            os.close(entry_out)
            os.close(report_out)

    def _release(self, pid: int, start: JobStart, report_fd: int) -> attempt_files.Record | None:
        """Let the child become the job's program once that is on record. Returns the `failed`
        record, or None if the program runs."""
        go_fd = start.go_in
        # Done while the child prepares itself.
        job = {"pid": pid, "start_ticks": process.start_ticks(pid)}
        self._oom_fd = self.confinement.oom_descriptor(self.key)
        if not process.is_readable(report_fd, _START_S):
            os.close(go_fd)
            return failure(self._kill_hung_start(pid), None)
        if self.order.output_max_bytes:
            ready, outputs = take_ready(report_fd)
            try:
                self._output = OutputLimit(outputs, self.order.output_max_bytes)
            except OSError as error:
                os.close(go_fd)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return failure(f"{_UNSEEN} ({error.strerror})", None)
        else:
            ready = os.read(report_fd, 1)
        if ready == b"+":
            reach("runner.before-running-record")
            attempt_files.append(self.attempt_fd, "running", job)
            reach("runner.after-running-record")
            self.is_released = True
            _write_go(go_fd)
            if not process.is_readable(report_fd, _EXEC_S):
                # The program is on a mount that hangs, or its user delays it. The job counts as
                # running, as is on record, and so does its time limit.
                self._notify_launcher()
        os.close(go_fd)
        # exec closes the pipe; anything read from it is the reason why exec failed.
        problem = ready.replace(b"+", b"") + retry_while_exhausted(self.key, _read_all, report_fd)
        if ready == b"+" and not problem:
            return None
        os.waitpid(pid, 0)
        if entry_problem := _read_all(start.entry_out):
            return self._attributed(report.of_entry(entry_problem))
        return self._attributed(report.of_job(problem, start))

    def _attributed(self, reported: attempt_files.Record) -> attempt_files.Record:
        """Return the record of a reported failure. A shortage of memory becomes a final failure if
        the job has hit its own limit, because it would hit it again."""
        short = read_failure(reported)
        is_own = short is not None and short["resource"] == MEMORY
        if is_own and self.confinement.counted(self.key).get("limit_hits"):
            return failure(reported["text"], None)
        return reported

    def _kill_hung_start(self, pid: int) -> str:
        """Kill a child that hangs before exec, and return the reason for the user. Its time limit
        does not count yet, so a directory that hangs, or a SIGSTOP by the user, could otherwise
        keep the job's resources for an unlimited time."""
        self.is_clean = False
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _SWEEP_S
        while self._used.reap(pid) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        where = "entering its directory and opening its output files"
        return f"{where} took longer than {_START_S:.0f} s"

    def _tell_start(self) -> None:
        """Run the owner's notification command in the job's cgroup; it ends with the job."""
        order = self.order
        variables = {**order.variables, "DRF_STATE": "RUNNING"}
        place = self.created.get("space")
        try:
            user, groups = self.directory.look_up(order.uid, order.user, order.gid)
            # Nobody reads its reports.
            ends = [os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC) for _ in range(2)]
            go_out, go_in = os.pipe()
            start = JobStart(
                replace(self.assignment, order=replace(order, variables=variables)), user, groups,
                self.confinement, ends[0], -1, ends[1], go_out, go_in,
                inheritance.has_key_quota(order.uid), place, is_notice=True,
            )  # fmt: skip
            self.starter.start(start)
            os.close(go_in)
        except (identity.Denied, identity.DirectoryFailed, LimitFailed, OSError, MemoryError):
            # The machine is short of something. The job runs without the notification.
            return

    def _await_end(self, pid: int) -> int:
        """Reap until `pid` is gone, and return its wait status. After an OOM kill all processes of
        the job are killed. When the job has run for `BECOME_AFTER_S`, the runner becomes the
        program that waits, which closes its channel: that tells the launcher that it takes no
        further attempt. May be called again after an error."""
        poll = select.poll()
        poll.register(self.children_fd, select.POLLIN)
        if self._oom_fd is not None:
            poll.register(self._oom_fd, select.POLLIN)
        # Reap before waiting: an event that was read before an error may not have been handled.
        while (status := self._used.reap(pid)) is None:
            now_s = time.monotonic()
            if now_s >= max(self._become_at_s, self._poll_until_s):
                self._become_waiting(pid)
                # The machine is short of something. The rights go in any case.
                privileges.limit_capabilities(1 << privileges.KILL)
                self.is_last, self._become_at_s = True, now_s + BECOME_AFTER_S
            if self._output is not None and now_s >= self._look_at_s:
                self._insist_on_output_limit(self._output)
                self._look_at_s = now_s + _OUTPUT_POLL_S
            is_polling = now_s < self._poll_until_s
            for fd, _ in poll.poll(_OOM_POLL_MS if is_polling else self._pause_ms(now_s)):
                os.read(fd, 4096)
                if fd == self._oom_fd:
                    # The kernel signals before it kills: the counter follows a moment later.
                    is_polling, self._poll_until_s = True, time.monotonic() + _OOM_POLL_S
            if is_polling and self.confinement.oom_kills(self.key)[0]:
                # Survivors are killed after the job's first process, by `_sweep`.
                self._kill_all()
                self._poll_until_s = 0.0
        return status

    def _become_waiting(self, pid: int) -> None:
        """Become the program that waits for the end of `pid`; return if that fails."""
        output = self._output
        wait = waiting.Wait(
            record="ended",
            job_id=self.order.id,
            pid=pid,
            attempt_fd=self.attempt_fd,
            killing=self.confinement.killing(self.key),
            sweep_s=_SWEEP_S,
            oom_fd=self._oom_fd,
            outputs={} if output is None else output.sizes,
            most_output=0 if output is None else output.most_bytes,
            used=self._used,
            own_kib=_own_kib(),
        )
        waiting.become(self.starter, wait)

    def _pause_ms(self, now_s: float) -> float:
        """Return for how long nothing but an event needs the runner."""
        times = [max(self._become_at_s, self._poll_until_s)]
        if self._output is not None:
            times.append(self._look_at_s)
        return (min(times) - now_s) * 1000 + 1

    def _insist_on_output_limit(self, output: OutputLimit) -> None:
        """Kill the job if its output files have grown too large."""
        if self._output_bytes is None:
            self._output_bytes = output.exceeded()
        if self._output_bytes is not None:
            self._kill_all()

    def _kill_all(self) -> bool:
        ours = Attempt(created=self.created, runner=self.me)
        return self.confinement.kill_pass(self.key, ours)

    def _sweep(self) -> None:
        """Kill until no process of the job is left, or for `_SWEEP_S`. All its processes are, or
        become, children of this runner; a walk through /proc can miss one that is being forked."""
        deadline = time.monotonic() + _SWEEP_S
        while True:
            is_empty = self._kill_all()
            self._used.reap()
            self.is_clean = is_empty and not self._used.has_more
            if self.is_clean or time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def _record_end(self, status: int, at_s: float, mono_s: float) -> None:
        """Record the end of the job. May be called again after an error."""
        self._sweep()
        code = os.waitstatus_to_exitcode(status)
        used = self._used
        why = {} if self._output_bytes is None else {"output_bytes": self._output_bytes}
        reach("runner.before-end-record")
        attempt_files.end_partial_line(self.attempt_fd)
        attempt_files.append(
            self.attempt_fd,
            "ended",
            {
                "at_s": at_s,
                "mono_s": mono_s,
                "exit_code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "cpu_s": used.cpu_s,
                "peak_bytes": used.peak_kib * 1024 if used.peak_kib > _own_kib() else 0,
                "read_bytes": used.read_blocks * 512,
                "written_bytes": used.written_blocks * 512,
                **why,
            },
        )
        reach("runner.after-end-record")

    def _notify_launcher(self) -> None:
        try:
            os.write(self.notify_fd, notification(self.key, STARTED))
        except (BrokenPipeError, BlockingIOError):
            # The launcher is gone, or so far behind that it reads all attempt files anyway.
            pass


def _own_kib() -> int:
    """Return a peak of memory that may be drfd's own: until exec each child has the size of the
    runner, which the kernel counts, too."""
    return 2 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _socket_pair() -> tuple[int, int]:
    """Return the ends of a channel that takes descriptors, too."""
    out, into = socket.socketpair()
    return out.detach(), into.detach()


def _write_go(fd: int) -> None:
    try:
        os.write(fd, b"+")
    except BrokenPipeError:
        # The child has died, as its wait status shows.
        pass


def _read_all(fd: int) -> bytes:
    data = b""
    while piece := os.read(fd, MAX_REPORT_BYTES):
        # The user may control the writer by now: no more is kept than drfd's code would write.
        data = (data + piece)[:MAX_REPORT_BYTES]
    return data
