"""Child processes that compute for the controller while its event loop goes on.

A thread that computes would hold Python's global lock, and delay all requests. A child is a fork of
the controller, so it has the whole state of one moment, and nothing is encoded, sent or kept up to
date. It writes its answers to a pipe and ends; it never returns to the loop.

SQLite must not be used in a fork: it would take the locks of the controller's connections for its
own. Work that reads the journal is therefore a `Program`, for which the child executes a new
interpreter. A fork has only the thread that forked, so its work may wait for no lock of another
one: it computes, and uses no log, user directory or local time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import msgspec

from drfd.common.errors import Unavailable, error_of
from drfd.daemon.children.answers import ChildAnswer, write_answers
from drfd.linux import own_process, syscalls

log = logging.getLogger("drfd")

#: Yields what is known so far, more each time. It runs in the child.
Work = Callable[[], Iterable[object]]

#: The part (1/n) of the machine's memory that a child may use more than the controller, and the
#: least such limit in bytes.
_MEMORY_PART, _LEAST_MEMORY_BYTES = 10, 512 << 20
#: How many times as long as a fork has held the loop no other child begins.
_RESTS = 50


@dataclass(frozen=True, slots=True)
class Program:
    """Work that `answers` of a module does in a new interpreter. The module calls `run_program`
    when it is executed."""

    module: str
    task: msgspec.Struct

    def __call__(self) -> Iterable[object]:
        task = os.memfd_create("task")
        with open(task, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(self.task))
        os.lseek(task, 0, os.SEEK_SET)
        os.dup2(task, 0)
        # Only the time zone matters.
        environment = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
        words = (*own_process.RUN_MODULE, self.module)
        os.execve(words[0], words, environment)


class WorkKind(NamedTuple):
    """One kind of work, and what it may take."""

    #: In messages: "the estimate".
    what: str
    #: Codes of the errors when no process can be started, when it fails, and when there is no
    #: answer in time.
    absent: str
    failed: str
    busy: str
    #: Niceness, and seconds of processor time.
    nice: int
    cpu_s: int
    #: Children at a time.
    limit: int = 2


class Children:
    """The children that do one kind of work."""

    def __init__(self, kind: WorkKind, *, patience_s: float) -> None:
        """A caller waits for `patience_s` seconds at most."""
        self.kind = kind
        self.patience_s = patience_s
        self._turns = asyncio.Semaphore(kind.limit)
        #: When the next child may begin, by the loop's clock.
        self._rested_s = 0.0
        #: Process ids of the children that have not ended.
        self.pids: set[int] = set()
        self._is_closed = False

    async def ask(self, prepare: Callable[[], Work], answer: Any = Any) -> Any:
        """Return the last answer of a child, of the type `answer`, to the work that `prepare`
        returns when its turn has come. A child for which nobody waits any longer is killed. Raises
        the DrfdError that the work raises, and Unavailable if there is no process, no answer in
        time or a failure."""
        what = self.kind.what
        try:
            async with asyncio.timeout(self.patience_s):
                status, lines = await self._run(prepare)
        except TimeoutError:
            raise Unavailable(
                self.kind.busy,
                f"no answer within {self.patience_s:.0f} s for {what}: too much to do at once",
                hint="try again in a moment",
            ) from None
        if self._is_closed:
            raise _ending()
        last = lines.rpartition(b"\n")[0].rpartition(b"\n")[2]
        # The kernel ends a child whose processor time is used up: what is known by then counts.
        is_ended = status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
        found = (
            msgspec.json.decode(last, type=ChildAnswer)
            if last and is_ended
            else ChildAnswer(bug="none")
        )
        if found.failure is not None:
            raise error_of(**found.failure)
        if found.bug:
            log.error("event=bug in=child work=%r status=%d\n%s", what, status, found.bug)
            raise Unavailable(self.kind.failed, f"{what} has failed; drfd's log says how")
        return msgspec.convert(found.found, answer)

    def close(self) -> None:
        """Kill all children, and start no more."""
        self._is_closed = True
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)

    async def _run(self, prepare: Callable[[], Work]) -> tuple[int, bytes]:
        """Return the status of a child and what it has written."""
        loop = asyncio.get_running_loop()
        await self._turns.acquire()
        try:
            while (left_s := self._rested_s - loop.time()) > 0:
                await asyncio.sleep(left_s)
            if self._is_closed:
                raise _ending()
            begin_s = time.thread_time()
            pid, pipe = self._start(prepare())
            self._rested_s = loop.time() + _RESTS * (time.thread_time() - begin_s)
        except BaseException:
            self._turns.release()
            raise
        self.pids.add(pid)
        ended: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        lines = bytearray()

        def read() -> None:
            part = os.read(pipe, 1 << 16)
            if part:
                lines.extend(part)
                return
            # The kernel closes the pipe after it has freed the child's memory, which takes a while.
            loop.remove_reader(pipe)
            os.close(pipe)
            self.pids.discard(pid)
            self._turns.release()
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if not ended.done():
                ended.set_result((status, bytes(lines)))

        loop.add_reader(pipe, read)
        try:
            return await ended
        finally:
            if pid in self.pids:
                os.kill(pid, signal.SIGKILL)

    def _start(self, work: Work) -> tuple[int, int]:
        """Return the pid of a new child, and the end of the pipe from which its answers come."""
        try:
            return _fork(work, self.kind)
        except (OSError, MemoryError) as error:
            cause = getattr(error, "strerror", None) or "Cannot allocate memory"
            raise Unavailable(
                self.kind.absent,
                f"drfd cannot start the process for {self.kind.what} ({cause})",
                hint="everything else goes on; try again in a moment",
            ) from None


def _ending() -> Unavailable:
    return Unavailable("ending", "the daemon ends", hint="try again in a moment")


def _fork(work: Work, kind: WorkKind) -> tuple[int, int]:
    parent, (reading, writing) = os.getpid(), os.pipe()
    # A signal must not reach the controller's handlers in the child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Newer versions of Python warn of a fork beside threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _compute(work, writing, parent, kind)
    except BaseException:
        os.close(reading)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
    return pid, reading


def _compute(work: Work, pipe: int, parent: int, kind: WorkKind) -> NoReturn:
    """Do the work, and end."""
    status = os.EX_SOFTWARE
    try:
        # A full collection would touch, and so copy, all of the controller's memory.
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(pipe, 1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 2)
        # A client whose connection the controller closes must not wait for the child, too.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        become_helper(
            nice=kind.nice,
            cpu_s=kind.cpu_s,
            more_bytes=part_of_memory(_MEMORY_PART, _LEAST_MEMORY_BYTES),
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # Else it would outlive a controller that ended before it could notice.
        if os.getppid() == parent:
            write_answers(work)
            status = os.EX_OK
    finally:
        os._exit(status)


def become_helper(*, nice: int, cpu_s: int, more_bytes: int) -> None:
    """Give precedence to the process that has started this one, and end with it: lower the own
    priority for the scheduler and for the OOM killer, and bound the processor time and the memory
    beside what it has. Steps that a sandbox does not allow are skipped."""
    asked: tuple[Callable[[], object], ...] = (
        lambda: syscalls.set_parent_death_signal(signal.SIGKILL),
        lambda: os.setpriority(os.PRIO_PROCESS, 0, nice),
        lambda: resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1)),
        lambda: resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + more_bytes,) * 2),
        lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        syscalls.set_no_new_privileges,
        # A process that has dropped root's rights may not write its own score before.
        lambda: syscalls.set_dumpable(True),
        own_process.be_killed_first,
    )
    for ask in asked:
        try:
            ask()
        except (OSError, ValueError):
            continue


def _data_bytes() -> int:
    """Return what counts by RLIMIT_DATA of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def part_of_memory(part: int, least_bytes: int) -> int:
    """Return 1/part of the machine's memory in bytes, or the least if that is more."""
    return max(least_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // part)
