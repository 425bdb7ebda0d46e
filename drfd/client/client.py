"""The Python client: the verbs of `drf` as methods, which return values.

Arguments are Python's own types or the texts of the command line. What cannot be read raises
Refused, with what to write instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypedDict, Unpack, cast

from drfd.client.connection import Connection, choose
from drfd.client.streams import follow, watch
from drfd.client.submission import Rates, Submission, demand_fields, dependencies
from drfd.client.values import JobInfo, Shares, Snapshot, UsagePoints
from drfd.client.words import (
    Gres,
    Ref,
    parse_after,
    parse_begin,
    parse_features,
    parse_id,
    parse_ids,
    parse_if_never,
    parse_outcomes,
    parse_signal,
    parse_warning,
)
from drfd.common.errors import BY_KIND, DrfdError, Refused
from drfd.common.indices import read_array
from drfd.common.units import (
    Range,
    is_endless,
    parse_cores_range,
    parse_disk_rates,
    parse_duration,
    parse_memory,
)
from drfd.payload.environment import as_given, capture

#: Jobs, arrays, and tasks: 42, "42_7", "3-7,9", a `JobInfo`, or several of these.
Ids = int | str | JobInfo | Iterable[int | str | JobInfo]
#: A duration: seconds, "1h30m", or a timedelta.
Span = int | str | timedelta


class ChangeOptions(TypedDict, total=False):
    """Keywords of `Client.set`, which `Client.submit` takes, too."""

    #: 4, 0.5 or "4"; "2..8" or "2.." for a range, of which the first is the job's own.
    cores: float | str | None
    #: "16G" or bytes.
    memory: int | str | None
    #: Bandwidth per second and disk, such as "100M/50M", or "50M..200M" for a range.
    io: str | Iterable[str] | None
    #: Countable resources, such as {"gpu": 1}.
    gres: Mapping[str, int] | None
    #: Its own memory on each instance, in bytes or such as {"gpu": "20G"}; 0 for no limit.
    gres_memory: Mapping[str, int | str] | None
    #: The limit of the wall time: "2h", seconds, a timedelta, or "unlimited".
    time: Span | None
    name: str | None
    pool: str | None
    priority: int | None
    #: Jobs to wait for: 41, "41:any", "41:fail", or several of these.
    after: Ids | None
    #: The earliest start: "18:00", "now+2h", a Unix time or a datetime.
    begin: str | float | datetime | None
    #: A group of the user's own jobs: "sweep", or "sweep%2" for two at once.
    group: str | None


class SubmitOptions(ChangeOptions, total=False):
    """Keywords of `Client.submit`; those left out, and None, take the daemon's defaults."""

    #: Of several machines, the only one that will do; and the features that it must have, such as
    #: "ssd,avx512".
    node: str | None
    constraint: str | Iterable[str] | None
    #: Indices of an array: "0-99%5" (five at once), or a range.
    array: str | range | None
    #: Start only after `release`.
    hold: bool
    #: Allow that the job is stopped for others, and run again.
    preemptible: bool
    #: The number of retries, and after which outcomes: "fail", "launch", "lost", "timeout",
    #: "memory", "limit".
    retry: int | None
    retry_on: str | Iterable[str] | None
    #: A signal before the time limit, such as "USR1@60".
    warn: str | None
    #: "keep" or "cancel", if a job that it waits for ends otherwise than required.
    if_never: str | None
    #: Files for the output; "%j" is the id, "%A" and "%a" are the array and the index. Errors go to
    #: that of the output, unless `stderr` is given.
    stdout: str | None
    stderr: str | None
    #: Keep what is in the output files.
    append: bool
    #: How much a run may write to them: "1G", or bytes.
    output_max: int | str | None
    #: When to notify the owner: "start", "end", "fail", joined by commas.
    notify: str | None
    notify_command: str | None
    #: None for the directory of this process.
    cwd: str | os.PathLike[str] | None
    #: None for the environment of this process, without variables that look secret.
    env: Mapping[str, str] | None
    #: Names of variables that are kept although they look secret.
    export: Iterable[str]
    #: Text that is run in place of argv[0], through its #! line.
    script: str | None


def connect(socket: str | os.PathLike[str] | None = None, *, may_start: bool = True) -> Client:
    """Return a client of the daemon at `socket`, or else of the one that `drf` would use: that of
    DRFD_SOCKET, the system's, or the user's own, which is started if necessary and `may_start`.

    The connection is made by the first call.
    """
    named = None if socket is None else os.fspath(socket)
    return Client(choose(named, start=_start_own if may_start else None))


class Client:
    """A connection to the daemon, for one thread at a time.

    Every call may raise Refused, NotPermitted or Unavailable of `drfd.common.errors`. Jobs are
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

    def submit(
        self, argv: Sequence[str | os.PathLike[str]], **options: Unpack[SubmitOptions]
    ) -> int:
        """Queue a job, or many tasks with `array`, and return its id.

        `SubmitOptions` lists the keywords: cores, memory, io, gres, time, name, pool, priority,
        node, constraint, array, after, begin, group, hold, preemptible, retry, retry_on, warn,
        stdout, stderr, append, output_max, notify, notify_command, cwd, env, export, script. Values
        are as on the command line. The job is queued exactly once, even if the daemon is restarted
        meanwhile.

        Raises Refused for a value that cannot be read or that the daemon does not accept.
        """
        fields = self._connection.addressed(_submission(argv, options))
        return int(self._connection.submit(**fields)["id"])

    def submit_many(self, jobs: Iterable[Mapping[str, object]]) -> list[int | DrfdError]:
        """Queue many jobs, without waiting for the reply to one before the next is sent.

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
        pages = self._connection.pages("status", select=select, ended=ended, tasks=tasks)
        return [JobInfo.of(view) for page in pages for view in page["jobs"]]

    def shares(self) -> Shares:
        """Return the fair-share table: what each pool and user is promised, and uses."""
        return Shares.of(self._connection.request("shares"))

    def snapshots(self, every: float = 1.0) -> Iterator[Snapshot]:
        """Yield the state of the service now, and then every so many seconds (at least 1).

        A slow reader gets the newest snapshot. The stream outlives restarts of the daemon, and uses
        a connection of its own.
        """
        for view in watch(self._connection.another(), every):
            yield Snapshot.of(view)

    def usage(
        self, job: int | str | JobInfo | None = None, *, user: str | None = None
    ) -> UsagePoints:
        """Return the use over time of a job, or of a user's jobs together. Every user may ask."""
        about = {"user": user} if job is None else {"id": _id(job), "user": user}
        return UsagePoints.of(self._connection.request("usage", **_given(about)))

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

    def events(self, ids: Ids | None = None, *, everybody: bool = False) -> Iterator[JobInfo]:
        """Yield a job whenever one has changed: one of `ids`, until all of these have ended, or
        else one of the caller's, or of all users if `everybody`, without end.

        The jobs as they stand come first (without `ids`, those that have not ended). States that
        follow each other quickly may be reported as the last of them. No end is missed. A state may
        be reported twice after a restart of the daemon, which the stream outlives, and to a reader
        who is ten thousand jobs behind. The stream uses a connection of its own.
        """
        asked = {"ids": [] if ids is None else _ids(ids), "everything": everybody}
        for view in follow(self._connection.another(), asked):
            yield JobInfo.of(view)

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

    def set(self, ids: Ids, **changes: Unpack[ChangeOptions]) -> list[int]:
        """Change what pending jobs request, or the time limit of running ones, which only an
        administrator may lengthen. Return the ids of the jobs affected.

        `ChangeOptions` lists the keywords: cores, memory, io, gres, time, name, pool, priority,
        after, begin, and group ("" for none).
        """
        _check_names("set", changes, ChangeOptions)
        after = changes.get("after")
        fields = _given(
            {
                "demand": demand_fields(**_demand(changes)) or None,
                "time_limit_s": _limit(changes.get("time")),
                "name": changes.get("name"),
                "pool": changes.get("pool"),
                "priority": changes.get("priority"),
                "after": None if after is None else dependencies(_after(after)),
                "begin_s": _begin(changes.get("begin")),
                "group": changes.get("group"),
            }
        )
        if not fields:
            raise Refused("bad-value", "nothing is to be changed", hint="for instance time='4h'")
        return self._act("set", ids, **fields)

    def _act(self, verb: str, ids: Ids, **asked: object) -> list[int]:
        chosen = _ids(ids)
        if not chosen:
            return []
        reply = self._connection.request(verb, select={"ids": chosen}, **asked)
        for failure in reply["failed"]:
            error = failure["error"]
            kind = BY_KIND.get(error["kind"], DrfdError)
            raise kind(error["code"], error["text"], hint=error["hint"])
        return [int(job_id) for job_id in reply["done"]]


def _start_own(socket_path: Path) -> None:
    # Imported here: it is slow to load and seldom needed.
    from drfd.client.autostart import start_daemon

    start_daemon(socket_path)


def _submission(
    argv: Sequence[str | os.PathLike[str]], options: SubmitOptions
) -> dict[str, object]:
    """Return the fields of a submit request."""
    _check_names("submit", options, SubmitOptions)
    if isinstance(argv, str):
        raise Refused("bad-value", "argv is a list of words, not a text", hint="argv.split()")
    if options.get("retry_on") is not None and options.get("retry") is None:
        raise Refused("bad-value", "retry_on says when to try again; retry how often")
    env, cwd, after = options.get("env"), options.get("cwd"), options.get("after")
    on, warn, never = options.get("retry_on"), options.get("warn"), options.get("if_never")
    most, features = options.get("output_max"), options.get("constraint") or ()
    return Submission(
        argv=[os.fspath(word) for word in argv],
        env=_own_environment(options.get("export", ())) if env is None else dict(env),
        cwd=None if cwd is None else os.fspath(cwd),
        **_demand(options),
        node=options.get("node"),
        constraint=tuple(parse_features(features) if isinstance(features, str) else features),
        time=_limit(options.get("time")),
        name=options.get("name"),
        pool=options.get("pool"),
        priority=options.get("priority") or 0,
        after=None if after is None else _after(after),
        begin=_begin(options.get("begin")),
        retry=options.get("retry"),
        retry_on=None
        if on is None
        else parse_outcomes(on if isinstance(on, str) else ",".join(on)),
        warn=None if warn is None else parse_warning(warn),
        if_never=None if never is None else parse_if_never(never),
        script=options.get("script"),
        group=options.get("group"),
        array=_array(options.get("array")),
        hold=options.get("hold", False),
        preemptible=options.get("preemptible", False),
        stdout=options.get("stdout"),
        stderr=options.get("stderr"),
        append=options.get("append", False),
        output_max=None if most is None else parse_memory(most, what="output_max"),
        notify=options.get("notify"),
        notify_command=options.get("notify_command"),
    ).fields()


def _submission_of(job: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a submit request from all arguments of `submit`."""
    options = dict(job)
    argv = options.pop("argv", None)
    if argv is None:
        raise TypeError("submit() missing 1 required argument: 'argv'")
    return _submission(cast(Sequence[str], argv), cast(SubmitOptions, options))


def _check_names(function: str, given: Mapping[str, object], known: type) -> None:
    """Raise TypeError for a keyword that the function does not have."""
    for name in given.keys() - known.__annotations__.keys():
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


class _DemandValues(TypedDict):
    """The demand of a `Submission`."""

    #: In thousandths of a core, and in bytes.
    cores: int | Range | None
    mem: int | None
    io: tuple[Rates, ...]
    gres: tuple[tuple[Gres, ...], ...]


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


def _after(given: Ids) -> tuple[tuple[Ref, str], ...]:
    """Return each job with what is awaited: "42" is `ok`, "42:any" and "42:fail" name it."""
    each_of = [given] if isinstance(given, int | str | JobInfo) else given
    text = ",".join(str(each.id if isinstance(each, JobInfo) else each) for each in each_of)
    return tuple(parse_after(text))


def _demand(options: ChangeOptions) -> _DemandValues:
    cores, memory = options.get("cores"), options.get("memory")
    io = options.get("io")
    rates: tuple[Rates, ...] = ()
    if io is not None:
        rates = tuple(map(parse_disk_rates, [io] if isinstance(io, str) else io))
    return {
        "cores": None if cores is None else parse_cores_range(cores),
        "mem": None if memory is None else parse_memory(memory),
        "io": rates,
        "gres": (_gres(options.get("gres") or {}, options.get("gres_memory") or {}),),
    }


def _gres(counts: Mapping[str, int], memory: Mapping[str, int | str]) -> tuple[Gres, ...]:
    return tuple(Gres(name, count) for name, count in counts.items()) + tuple(
        Gres(name, None, parse_memory(size, what="gres_memory") if size else 0)
        for name, size in memory.items()
    )


def _limit(given: Span | None) -> int | None:
    """Return a time limit in seconds, 0 for "unlimited", or None if none was given."""
    return 0 if is_endless(given) else _seconds(given)


def _seconds(given: Span | None) -> int | None:
    """Return a duration in seconds, or None if none was given."""
    if given is None:
        return None
    if isinstance(given, timedelta):
        given = int(given.total_seconds())
    return parse_duration(given)


def _begin(given: str | float | datetime | None) -> int | None:
    """Return the Unix time of "18:00", "now+2h", a Unix time or a datetime, or None if none was
    given. A datetime without a time zone is local."""
    if given is None:
        return None
    if isinstance(given, str):
        return parse_begin(given)
    at_s = given.timestamp() if isinstance(given, datetime) else given
    if at_s <= time.time():
        raise Refused("bad-value", f"begin: {given!r} is over already")
    return int(at_s)


def _array(given: str | range | None) -> str | None:
    """Return the indices of an array, such as "0-99%5", or None if none were given."""
    if isinstance(given, range):
        if not given or given.step < 0:
            raise Refused("bad-value", f"array: {given!r} has no index", hint="write range(100)")
        given = f"{given[0]}-{given[-1]}:{given.step}"
    if given is not None:
        read_array(given)
    return given
