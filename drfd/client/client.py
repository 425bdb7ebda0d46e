"""The Python client: the verbs of `drf` as methods, which return values.

Arguments are Python values or texts as on the command line. A malformed one raises Refused, with
a hint.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from drfd.client.connection import Connection, choose
from drfd.client.option_values import fields_of, taken
from drfd.client.streams import follow, watch
from drfd.client.submission import submission
from drfd.client.values import JobInfo, Shares, Snapshot, UsagePoints
from drfd.client.words import Gres, Ref, parse_id, parse_ids, parse_signal
from drfd.common.errors import DrfdError, Refused, error_of
from drfd.common.units import parse_duration, parse_memory
from drfd.payload.submitter import as_given, capture
from drfd.protocol.job_options import BY_KEY, OPTIONS

if TYPE_CHECKING:
    from drfd.client.option_values import Values

#: Jobs, arrays, and tasks: 42, "42_7", "3-7,9", a `JobInfo`, or several of these.
Ids = int | str | JobInfo | Iterable[int | str | JobInfo]
#: A duration: seconds, "1h30m", or a timedelta.
Span = int | str | timedelta


#: Keywords of `Client.submit` that are no option of the command line: see there.
_MORE = frozenset(("cwd", "env", "script", "gres_memory"))


def connect(socket: str | os.PathLike[str] | None = None, *, may_start: bool = True) -> Client:
    """Return a client of the daemon at `socket`, or else of the one that `drf` would use: that of
    DRFD_SOCKET, the system's, or the user's own, which is started if necessary and `may_start`.

    The connection is made by the first call.
    """
    named = None if socket is None else os.fspath(socket)
    return Client(choose(named, start=_start_own if may_start else None))


class Client:
    """A connection to the daemon, for one thread at a time.

    Every call may raise Refused, NotPermitted or Unavailable of `drfd.client`. Jobs are
    named by id (42), task ("42_7"), range ("3-7,9"), `JobInfo`, or a sequence of these.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._connection.close()

    # -- submitting ---------------------------------------------------------------------------

    def submit(self, argv: Sequence[str | os.PathLike[str]], **options: Any) -> int:
        """Queue a job, or many tasks with `array`, and return its id.

        The keywords are the options of a job, as `drfd.protocol.job_options` lists them: {SUBMIT}.
        Values are texts as on the command line, or Python's own: numbers, and bytes for sizes;
        lists where an option takes several values; {{"gpu": 1}} for gres; a timedelta for time, a
        datetime for begin, ids or `JobInfo` for after, a range for array. None is an option that is
        not given. Further keywords:

        - cwd: the directory, in place of that of this process;
        - env: the environment, in place of that of this process without variables that look secret;
        - script: a text that is run in place of argv[0], through its #! line;
        - gres_memory: memory on each instance of a countable resource, such as {{"gpu": "20G"}}; 0
          for no limit.

        The job is queued exactly once, even if the daemon is restarted meanwhile. Raises Refused
        for a value that cannot be read or that the daemon does not accept.
        """
        fields = self._connection.addressed(job_fields(argv, options))
        return int(self._connection.submit(**fields)["id"])

    def submit_many(self, jobs: Iterable[Mapping[str, object]]) -> list[int | DrfdError]:
        """Queue many jobs, many of them with one request.

        Each of `jobs` has the arguments of `submit`. Return their ids in order, with the refusal in
        place of the id of a job that was refused.
        """
        replies = self._connection.submit_all(
            self._connection.addressed(_submission_of(each)) for each in jobs
        )
        return [each if isinstance(each, DrfdError) else int(each["id"]) for each in replies]

    # -- looking ------------------------------------------------------------------------------

    def get(self, job: int | str | JobInfo) -> JobInfo:
        """Return a job of the caller's, live or ended. Raises Refused for none, or for an array."""
        reply = self._connection.request("show", id=_id(job))
        if "job" not in reply:
            raise Refused("is-array", f"{_id(job)} is an array", hint="status(id) tells its tasks")
        return JobInfo.of(reply["job"])

    def status(
        self,
        ids: Ids | None = None,
        *,
        user: str | None = None,
        name: str | None = None,
        group: str | None = None,
        states: Iterable[str] = (),
        ended: int = 0,
        tasks: bool = False,
    ) -> list[JobInfo]:
        """Return the jobs of the queue, in order of their ids, of all users.

        `name` may be a pattern such as `train-*`; `group` is a group that users make of their own
        jobs. With `ended`, that many of the jobs that ended last are included. Pending tasks of an
        array are one entry, unless `tasks`.
        """
        select = _selection(ids, user, name, group, states)
        found = self._connection.jobs("status", select=select, ended=ended, tasks=tasks)
        return [JobInfo.of(view) for view in found]

    def shares(self) -> Shares:
        """Return the fair-share table: what each pool and user is entitled to, and holds."""
        return Shares.of(self._connection.request("shares"))

    def snapshots(self, every: float = 1.0) -> Iterator[Snapshot]:
        """Yield the state of the service now, and then every `every` seconds (at least 1).

        A slow reader gets the newest snapshot. The stream outlives restarts of the daemon, and uses
        a connection of its own.
        """
        for view in watch(self._connection.another(), every):
            yield Snapshot.of(view)

    def usage(self, job: int | str | JobInfo) -> UsagePoints:
        """Return the use over time of a job. Every user may ask."""
        return UsagePoints.of(self._connection.request("usage", id=_id(job)))

    def wait(
        self, ids: Ids, *, any: bool = False, timeout: Span | float | None = None
    ) -> list[JobInfo]:
        """Wait until these jobs have ended, or one of them if `any`; an array counts as one job.

        Return the jobs that have ended, in the order given. The wait outlives restarts of the
        daemon. Raises TimeoutError after `timeout` (seconds, or a text such as "2h"), and Refused
        when the only jobs left can never start because of how others ended.
        """
        left = timeout if isinstance(timeout, int | float | None) else _seconds(timeout)
        reply = self._connection.wait(_ids(ids), any_one=any, timeout_s=left)
        for view in reply.get("never", ()):
            reason = view["reason"]
            why = "" if reason is None else f": {reason['text']}"
            raise Refused("never-starts", f"job {JobInfo.of(view).label} never starts{why}")
        if not reply["done"]:
            raise TimeoutError(f"{'none has' if any else 'not all have'} ended")
        return [JobInfo.of(view) for view in reply["ended"]]

    def events(
        self,
        ids: Ids | None = None,
        *,
        everybody: bool = False,
    ) -> Iterator[JobInfo]:
        """Yield each job that changes: of `ids`, until all of these have ended; without `ids`, of
        the caller's jobs, or of all users' if `everybody`, without end.

        The jobs as they stand come first (without `ids`, those that have not ended). States that
        follow each other quickly may be reported as the last of them. No end is missed. A state may
        be reported twice after a restart of the daemon, which the stream outlives, and to a reader
        who is ten thousand jobs behind. The stream uses a connection of its own.
        """
        asked = {"ids": [] if ids is None else _ids(ids), "everything": everybody}
        for view in follow(self._connection.another(), asked):
            yield JobInfo.of(view)

    def listen(
        self, take: Callable[[JobInfo], object], lost: Callable[[Exception], object]
    ) -> None:
        """Start a thread that calls `take` with each job of `events()` until `take` returns true,
        and `lost` with an exception that ends the stream. It misses no change after the return."""
        began = threading.Event()

        def run() -> None:
            asked = {"ids": [], "everything": False}
            try:
                for view in follow(self._connection.another(), asked, began.set):
                    if take(JobInfo.of(view)):
                        return
            except Exception as error:  # of this thread's only caller, which cannot raise it
                began.set()
                lost(error)

        # It must not keep the interpreter: nothing ends it where no job follows.
        threading.Thread(target=run, daemon=True).start()
        began.wait()

    # -- acting: the refusal of one job is raised after all have been tried ---------------------

    def cancel(self, ids: Ids) -> list[int]:
        """Cancel pending jobs and stop running ones. Return the ids of the jobs affected."""
        return self._act("cancel", ids)

    def hold(self, ids: Ids) -> list[int]:
        """Keep pending jobs from starting. Return the ids of the jobs affected."""
        return self._act("hold", ids)

    def release(self, ids: Ids) -> list[int]:
        """Let held jobs start. Return the ids of the jobs affected."""
        return self._act("release", ids)

    def suspend(self, ids: Ids) -> list[int]:
        """Freeze running jobs. Return the ids of the jobs affected."""
        return self._act("suspend", ids)

    def resume(self, ids: Ids) -> list[int]:
        """Let suspended jobs go on. Return the ids of the jobs affected."""
        return self._act("resume", ids)

    def signal(self, ids: Ids, signal: int | str) -> list[int]:
        """Send "USR1", 10 or `signal.SIGUSR1` to running jobs. Return the ids of those affected."""
        number = int(signal) if isinstance(signal, int) else parse_signal(signal)
        return self._act("signal", ids, signal=number)

    def set(self, ids: Ids, **changes: Any) -> list[int]:
        """Change what pending jobs request, or the time limit of running ones, which only an
        administrator may lengthen. Return the ids of the jobs affected.

        The keywords are as for `submit`: {SET}, and gres_memory; group may be "" for none.
        """
        _check_names("set", changes, {*_CHANGES, "gres_memory"})
        fields = fields_of(_values(changes))
        if not fields:
            raise Refused("bad-value", "nothing is to be changed", hint="for instance time='4h'")
        return self._act("set", ids, **fields)

    def _act(self, verb: str, ids: Ids, **asked: object) -> list[int]:
        chosen = _ids(ids)
        if not chosen:
            return []
        reply = self._connection.request(verb, select={"ids": chosen}, **asked)
        for failure in reply["failed"]:
            raise error_of(**failure["error"])
        return [int(job_id) for job_id in reply["done"]]


def _start_own(socket_path: Path) -> None:
    # Imported here: it is slow to load and seldom needed.
    from drfd.client.autostart import start_daemon

    start_daemon(socket_path)


_CHANGES = tuple(each.key for each in OPTIONS if each.in_set)
for method, keys in ((Client.submit, tuple(BY_KEY)), (Client.set, _CHANGES)):
    names = ", ".join(keys)
    method.__doc__ = (method.__doc__ or "").format(SUBMIT=names, SET=names)


def job_fields(
    argv: Sequence[str | os.PathLike[str]], options: Mapping[str, Any], *, function: str = "submit"
) -> dict[str, object]:
    """Return the fields of a submit request with the arguments of `Client.submit`, or of another
    function that takes the options of jobs."""
    _check_names(function, options, {*BY_KEY, *_MORE})
    if isinstance(argv, str):
        raise Refused("bad-value", "argv is a list of words, not a text", hint="argv.split()")
    env, cwd, values = options.get("env"), options.get("cwd"), _values(options)
    return submission(
        [os.fspath(word) for word in argv],
        _own_environment(values.get("export") or ()) if env is None else env,
        values,
        cwd=None if cwd is None else os.fspath(cwd),
        script=options.get("script"),
    )


def _values(options: Mapping[str, Any]) -> Values:
    """Return the values of the options that are given, by key."""
    found = {
        option.key: taken(option, options[option.key])
        for option in OPTIONS
        if options.get(option.key) is not None
    }
    memory: Mapping[str, int | str] = options.get("gres_memory") or {}
    if memory:
        more = [
            Gres(name, None, parse_memory(size, what="gres_memory") if size else 0)
            for name, size in memory.items()
        ]
        found["gres"] = [*found.get("gres", ()), *more]
    return found


def _submission_of(job: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a submit request from all arguments of `submit`."""
    options = dict(job)
    argv = options.pop("argv", None)
    if argv is None:
        raise TypeError("submit() missing 1 required argument: 'argv'")
    return job_fields(cast(Sequence[str], argv), options)


def _check_names(function: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise TypeError for a keyword that the function does not have."""
    for name in given:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value is not None}


#: The latest choice of `_own_environment`: from which variables, with which names, and the result.
_chosen: tuple[dict[bytes, bytes], tuple[str, ...], dict[str, str]] | None = None


def _own_environment(export: Iterable[str]) -> dict[str, str]:
    """Return those of this process's variables that a job gets. They seldom change between two
    submissions, and choosing them takes longer than the rest of a request."""
    global _chosen
    # As bytes, because decoding them would take twice the time of all else here.
    present, names, known = dict(os.environb), tuple(export), _chosen
    if known is None or known[:2] != (present, names):
        known = _chosen = present, names, _passed_on(names)
    return dict(known[2])


def _passed_on(export: tuple[str, ...]) -> dict[str, str]:
    return capture(as_given(dict(os.environ)), export)


# -- reading arguments ---------------------------------------------------------------------------


def _ids(given: Ids) -> list[Ref]:
    """Return each job once, in the order given."""
    each_of = [given] if isinstance(given, int | str | JobInfo) else given
    found: list[Ref] = []
    for each in each_of:
        found += parse_ids(str(each.id if isinstance(each, JobInfo) else each))
    return list(dict.fromkeys(found))


def _id(job: int | str | JobInfo) -> Ref:
    """Return the id of one job, or a task's name."""
    return job.id if isinstance(job, JobInfo) else parse_id(str(job))


def _selection(
    given: Ids | None,
    user: str | None,
    name: str | None,
    group: str | None,
    states: Iterable[str],
) -> dict[str, object]:
    """Return the `select` of a request: the jobs of these ids, or that pass the filters."""
    select = {
        "ids": [] if given is None else _ids(given),
        "user": user,
        "name": name,
        "group": group,
        "states": [state.upper() for state in states],
    }
    return {key: value for key, value in select.items() if value}


def _seconds(given: Span) -> int:
    """Return a duration in seconds."""
    if isinstance(given, timedelta):
        given = int(given.total_seconds())
    return parse_duration(given)
