"""The executor: calls are submitted as jobs, and the ends of the jobs complete the futures.

A thread listens to the events of the user's jobs while there are calls that have not ended. Its
stream is open before the first of them is submitted, so that no end is missed, and a job that ends
before its submitter knows its id waits for the lock.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import copy
import fcntl
import os
import pickle
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from drfd.client.client import Client, connect, job_fields
from drfd.client.outputs import last_bytes
from drfd.client.values import JobInfo
from drfd.common import paths
from drfd.common.errors import Refused
from drfd.futures import call
from drfd.futures.call import PLACE_BYTES, by_value, own_directory, own_file
from drfd.protocol.job_options import BY_KEY

try:
    import cloudpickle  # noqa: F401  # for `by_value`
except ModuleNotFoundError as error:
    error.add_note("pip install 'drfd[futures]'")
    raise

P = ParamSpec("P")
T = TypeVar("T")

#: Options of a job that the executor itself needs.
_OWN = ("array", "script")
#: Of a job's error output in the exception that says how it ended.
_LINES, _BYTES = 5, 2000
#: A file that an executor has locked, in its directory.
_LOCK = "lock"


class JobFailed(Exception):
    """A job has ended without a result of its call."""

    def __init__(self, job_id: int | str, state: str, text: str) -> None:
        super().__init__(job_id, state, text)
        self.job_id = job_id
        #: As `drf status` names it.
        self.state = state
        #: How it ended, what to ask for next time, and the last lines of its output.
        self.text = text

    def __str__(self) -> str:
        return f"job {self.job_id} {self.state}: {self.text}"


class OutOfMemory(JobFailed):
    """A job needed more than its memory limit. The text says what to ask for."""


class OutOfTime(JobFailed):
    """A job reached its time limit. The text says what to ask for."""


_FAILURES = {"OUT_OF_MEMORY": OutOfMemory, "TIMEOUT": OutOfTime}


class RemoteTraceback(Exception):
    """The cause of an exception that was raised in a job: where, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Future(concurrent.futures.Future[T]):
    """A call that is a job."""

    #: The job's id, or `42_7` for the task of an array.
    job_id: int | str

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self._calls = calls
        #: As it was last reported, or None if it has not been reported yet.
        self.job: JobInfo | None = None

    def cancel(self) -> bool:
        """Cancel the job, or stop it if it runs. Return False if it has ended."""
        return self._calls.cancel(self)

    def running(self) -> bool:
        return self.job is not None and self.job.state == "RUNNING" and not self.done()

    def log(self) -> str:
        """Return what the job has printed so far. Without the option stdout, the file goes when the
        executor is shut down."""
        path = None if self.job is None else self.job.stdout
        with suppress(FileNotFoundError):
            return "" if path is None else Path(path).read_text(errors="replace")
        return ""

    def _end(self) -> None:
        """Note that the job was cancelled."""
        if super().cancel():
            self.set_running_or_notify_cancel()


class Executor(concurrent.futures.Executor):
    """Runs each call as a job of drfd.

    The keywords are the options of a job, with the values that `Client.submit` takes: {OPTIONS};
    and cwd, env and gres_memory. It may be used by many threads.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        socket: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        """`max_workers`: the most calls that run at a time; without it, as many as the daemon
        starts. `socket`: the daemon's, as for `connect`. `directory`: where calls and results lie
        until they are read, in a directory of the executor's own; by default that of the user's
        state. Jobs must find it at the same path."""
        if max_workers is not None and max_workers < 1:
            raise ValueError("max_workers must be greater than 0")
        self._max_workers = max_workers
        self._options = options
        self._check("Executor", options)
        place = paths.user_state(os.environ) / "futures" if directory is None else Path(directory)
        self._calls = _Calls(connect(socket), place, max_workers)

    def options(self, **options: Any) -> Executor:
        """Return an executor whose jobs have these options besides those of this one. Both are shut
        down together."""
        other = copy.copy(self)
        other._options = {**self._options, **options}
        self._check("Executor.options", other._options)
        return other

    def _check(self, function: str, options: Mapping[str, object]) -> None:
        """Raise TypeError or Refused for what is no option."""
        for name in _OWN:
            if name in options:
                raise TypeError(f"{function}() has no option {name}")
        if self._max_workers is not None and options.get("group"):
            raise TypeError("max_workers needs the group: give it as group='NAME%N' alone")
        job_fields([sys.executable], options, function=function)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit one call as a job. Raises `drfd.client.DrfdError` if it is not accepted."""
        [future] = self._calls.submit(function, [(args, kwargs)], self._options, is_array=False)
        return future

    def map(
        self,
        function: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Submit calls with one argument of each iterable, as an array in which a task makes
        `chunksize` of them, and return an iterator of their values in order.

        The iterator raises the exception of a call, or TimeoutError after `timeout` seconds; what
        has not ended is then cancelled.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1")
        until_s = None if timeout is None else time.monotonic() + timeout
        given = zip(*iterables, strict=False)
        chunks = list(iter(lambda: list(islice(given, chunksize)), []))
        futures = self._calls.submit(function, chunks, self._options, is_array=True)
        return _values(futures, until_s)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            self._calls.cancel_all()
        elif kind is not None:
            self._calls.tell(f"{kind.__name__} in the with block of the executor")
        try:
            self.shutdown()
        except KeyboardInterrupt:
            self._calls.cancel_all()
            self.shutdown()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. `wait`: until all have ended. `cancel_futures`: cancel those that
        have not started."""
        self._calls.close(wait=wait, cancels=cancel_futures)


Executor.__doc__ = (Executor.__doc__ or "").format(
    OPTIONS=", ".join(key for key in BY_KEY if key not in _OWN)
)


class _Calls:
    """The calls of an executor, and of those made by its `options`, that have not ended."""

    def __init__(self, client: Client, place: Path, most: int | None) -> None:
        # The user's state, as the daemon would make it: a mode is for the last directory only.
        for directory in place.parent, place:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = _own_place(place.absolute())
        _remove_left(place, client)
        new = Path(tempfile.mkdtemp(prefix="new-calls-", dir=place))
        # The kernel unlocks the file when this process ends.
        self._lock_file = (new / _LOCK).open("wb")
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        self._directory = new.rename(new.with_name(new.name.removeprefix("new-")))
        self._fd = own_directory(str(self._directory))
        self._group = {} if most is None else {"group": f"{self._directory.name}%{most}"}
        self._pid = os.getpid()
        # As other executors do, wait for the calls of one that nobody shuts down.
        self._at_exit = atexit.register(self.close, wait=True, cancels=False)
        self._client = client
        self._numbers = count()
        #: Guards the client and all below. A callback of a future may submit and cancel.
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        #: By the label of the job.
        self._live: dict[str, tuple[Future[Any], _Batch, int]] = {}
        self._is_listening = False
        self._is_closed = False

    def submit(
        self,
        function: Callable[..., Any],
        calls: Sequence[object],
        options: Mapping[str, Any],
        *,
        is_array: bool,
    ) -> list[Future[Any]]:
        """Submit the calls as a job, or as an array. Return their futures."""
        if not calls:
            return []
        if self._is_forked():
            raise RuntimeError("an executor takes no calls in a forked child: make another there")
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            path = self._directory / f"batch-{next(self._numbers)}"
            asked = {
                "name": getattr(function, "__name__", type(function).__name__),
                "stdout": f"{self._directory}".replace("%", "%%") + "/%j.out",
                **options,
                **self._group,
            }
            argv = [sys.executable, "-P", call.__file__, str(path)]
            if is_array:
                asked["array"] = range(len(calls))
            else:
                argv.append("0")
            try:
                batch = _Batch(path, self._fd, function, calls)
                self._listen()
                job = self._client.submit(argv, **asked)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            futures: list[Future[Any]] = []
            for number in range(len(calls)):
                future: Future[Any] = Future(self)
                future.job_id = f"{job}_{number}" if is_array else job
                self._live[str(future.job_id)] = future, batch, number
                futures.append(future)
        return futures

    def cancel(self, future: Future[Any]) -> bool:
        if self._is_forked():
            return False
        with self._lock:
            if str(future.job_id) in self._live and not future.done():
                try:
                    self._client.cancel(future.job_id)
                except Refused:
                    return False  # it has ended; its event comes
                future._end()
        return future.cancelled()

    def cancel_all(self, futures: Iterable[Future[Any]] | None = None) -> None:
        """Cancel the jobs of these calls, or of all, with one request. The futures are cancelled
        when they have ended."""
        if self._is_forked():
            return
        with self._lock, suppress(Refused):  # of those that have ended
            if futures is None:
                futures = [future for future, _, _ in self._live.values()]
            self._client.cancel([future.job_id for future in futures if not future.done()])

    def tell(self, what: str) -> None:
        """Say on stderr which jobs the end of the executor waits for, if it waits."""
        with self._lock:
            left = [(future.job_id, future.job) for future, _, _ in self._live.values()]
        if left:
            names = [f"{label} ({job.state})" if job else str(label) for label, job in left[:5]]
            more = f" and {len(left) - 5} more" if left[5:] else ""
            words = f"drfd: {what}: it waits for jobs {', '.join(names)}{more}; ^C cancels them"
            sys.stderr.write(f"{words}\n")

    def close(self, *, wait: bool, cancels: bool) -> None:
        if self._is_forked():
            return
        with self._lock:
            self._is_closed = True
            if cancels:
                futures = [future for future, _, _ in self._live.values()]
                self.cancel_all(future for future in futures if not future.running())
            if wait:
                self._ended.wait_for(lambda: not self._live)
            self._leave()

    def _leave(self) -> None:
        """Remove what is not needed any more. With the lock."""
        if self._is_closed and not self._live and self._fd >= 0:
            self._client.close()
            self._lock_file.close()
            os.close(self._fd)
            self._fd = -1
            with suppress(OSError):
                # By its name a job could still add to it, whose submission was interrupted.
                gone = self._directory.rename(f"{self._directory}-gone")
                # A file that was being made under the old name comes after the first listing.
                shutil.rmtree(gone, ignore_errors=True)
                shutil.rmtree(gone)
            atexit.unregister(self._at_exit)

    def _is_forked(self) -> bool:
        """Whether this is a child of the process whose calls, connection and files these are."""
        return os.getpid() != self._pid

    # -- the ends of jobs ---------------------------------------------------------------------

    def _listen(self) -> None:
        """Have a thread take events until all calls have ended. With the lock."""
        if not self._is_listening:
            self._is_listening = True
            self._client.listen(self._take, self._lose)

    def _lose(self, error: Exception) -> None:
        with self._lock:
            lost, self._live, self._is_listening = self._live, {}, False
            self._ended.notify_all()
        for future, _, _ in lost.values():
            if not future.done():
                future.set_exception(error)

    def _take(self, job: JobInfo) -> bool:
        """Take a change of a job, and return whether all calls have ended."""
        with self._lock:
            found = self._live.get(job.label)
        if found is not None:
            future, batch, number = found
            future.job = job
            if job.has_ended:
                _complete(future, job, batch.take(number))
        with self._lock:
            if found is not None and job.has_ended:
                del self._live[job.label]
            if self._live:
                return False
            self._is_listening = False
            self._ended.notify_all()
            self._leave()
            return True


def _own_place(place: Path) -> Path:
    """Return the directory, or one of the user's own in it, which stays, where all may write: else
    others could put their pickles, which run code, in the place of an executor's. Raises
    Refused."""
    user, found = os.geteuid(), place.stat()
    if found.st_mode & stat.S_ISVTX and found.st_mode & 0o022 and found.st_uid in (0, user):
        place /= f"drfd-futures-{user}"
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        fault = "others may write" if found.st_uid == user else "which is not yours"
        raise Refused(
            "bad-value",
            f"directory: {place}, {fault}: they could have their own code run in your jobs",
            hint=f"choose another one, or chmod go-w {place}",
        )
    return place


def _remove_left(place: Path, client: Client) -> None:
    """Remove the files of executors that were killed, unless jobs of theirs are left. A directory
    without a lock was made again by a job that started late, for its output."""
    for directory in place.glob("calls-*"):
        with suppress(OSError), ExitStack() as stack:
            where = own_directory(str(directory))
            stack.callback(os.close, where)
            with suppress(FileNotFoundError):
                lock = stack.enter_context(own_file(_LOCK, where))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            words = (word for job in client.status() for word in job.raw["argv"] or ())
            if str(directory) not in map(os.path.dirname, words):
                shutil.rmtree(directory)


class _Batch:
    """The files of one submission, as `drfd.futures.call` describes them."""

    def __init__(self, path: Path, where: int, function: object, calls: Sequence[object]) -> None:
        """`where`: the directory of the path, open."""
        self.path = path
        self._where = where
        self._left = len(calls)
        pickled = list(map(by_value, calls))
        places = accumulate(map(len, pickled), initial=0)
        first = by_value(function)
        with path.open("xb") as file:
            table = b"".join((len(first) + place).to_bytes(PLACE_BYTES, "big") for place in places)
            file.write(pickle.dumps((sys.path, table)))
            file.writelines((first, *pickled))

    def take(self, number: int) -> tuple[str | None, Any] | None:
        """Return the traceback of a call, or None, and its value or exception. Return None if there
        is no result. Remove what is not needed any more."""
        result, text, found = f"{self.path.name}.{number}", None, None
        if os.access(result, os.F_OK, dir_fd=self._where, follow_symlinks=False):
            try:
                with own_file(result, self._where) as file:
                    text = pickle.load(file)  # noqa: S301  # of the user's own job
                    found = text, pickle.load(file)  # noqa: S301  # likewise
            except BaseException as error:  # also SystemExit: this thread completes other calls too
                found = text or "what the call has returned cannot be loaded here", error
            os.unlink(result, dir_fd=self._where)
        self._left -= 1
        if not self._left:
            self.path.unlink(missing_ok=True)
        return found


def _complete(future: Future[Any], job: JobInfo, found: tuple[str | None, Any] | None) -> None:
    """Complete a future with the result of its call, or with how its job ended."""
    assert job.outcome is not None
    state = job.outcome.code
    if future.done():
        return  # `cancel` does not wait for the end
    if state == "CANCELLED":
        future._end()
    elif found is None or state not in ("COMPLETED", "FAILED"):
        what = "ended before the call had returned: " if state == "COMPLETED" else ""
        how = "\n".join((what + job.outcome.text, *(f"  | {line}" for line in _last_errors(job))))
        future.set_exception(_FAILURES.get(state, JobFailed)(job.label, state, how))
    else:
        text, value = found
        if text is None:
            future.set_result(value)
        else:
            # Not by an assignment, which a frozen class refuses.
            BaseException.__setattr__(value, "__cause__", RemoteTraceback(text))
            future.set_exception(value)


def _last_errors(job: JobInfo) -> list[str]:
    """Return the last lines of a job's error output, as far as it can be read."""
    # A job that never started has written nothing: what its path holds is from another one.
    if job.stderr is not None and job.started_at is not None:
        with suppress(OSError, Refused):
            data = last_bytes(job.stderr, os.getuid(), _BYTES) or b""
            return data.decode(errors="replace").splitlines()[-_LINES:]
    return []


def _values(futures: list[Future[Any]], until_s: float | None) -> Iterator[Any]:
    """Yield the values of calls in order. What is left when nobody asks any more is cancelled."""
    futures.reverse()
    try:
        while futures:
            left_s = None if until_s is None else until_s - time.monotonic()
            yield from futures[-1].result(left_s)
            futures.pop()
    finally:
        if futures:
            futures[0]._calls.cancel_all(futures)
