"""A daemon's client in Python: what `drf` does, with values in place of screens."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from drfd.client import plain
from drfd.client.connection import Connection, choose
from drfd.client.events import follow
from drfd.client.plain import Ids, Span
from drfd.client.snapshots import Snapshot, Usage, watch
from drfd.client.submission import compose, demand_fields, dependencies
from drfd.client.values import Job, Shares
from drfd.client.words import parse_outcomes, parse_signal, parse_warning
from drfd.environment import as_given, capture, not_text
from drfd.errors import BY_KIND, DrfdError, Refused


def connect(socket: str | os.PathLike[str] | None = None, *, may_start: bool = True) -> Client:
    """A client of the daemon at `socket`, else of the one that `drf` would talk to: DRFD_SOCKET's,
    the system's, or the user's own, which is started if need be and `may_start`. Nothing is asked
    before the first call."""
    named = None if socket is None else os.fspath(socket)
    return Client(choose(named, start=_start_own if may_start else None))


class Client:
    """One connection; for one thread at a time. Every call may raise Refused, NotPermitted or
    Unavailable of `drfd.errors`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    # -- submitting ---------------------------------------------------------------------------

    def submit(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        cores: float | str | None = None,
        memory: int | str | None = None,
        io: str | Iterable[str] | None = None,
        gres: Mapping[str, int] | None = None,
        time: Span | None = None,
        name: str | None = None,
        pool: str | None = None,
        priority: int = 0,
        array: str | range | None = None,
        after: Ids | None = None,
        begin: str | float | datetime | None = None,
        hold: bool = False,
        preemptible: bool = False,
        retry: int | None = None,
        retry_on: str | Iterable[str] | None = None,
        warn: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        notify: str | None = None,
        notify_command: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        export: Iterable[str] = (),
        script: str | None = None,
    ) -> int:
        """Queue a job, or with `array` many tasks; the id. Values are as on the command line: 4,
        "16G" or bytes, "2h" or seconds. It is accepted once, also if the daemon is restarted
        meanwhile.

        `env`: None takes this process's, less what looks secret and is not named in `export`.
        `script`: text that runs in place of argv[0], through its #! line.
        """
        if isinstance(argv, str):
            raise Refused("bad-value", "argv is a list of words, not a text", hint="argv.split()")
        if retry_on is not None and retry is None:
            raise Refused("bad-value", "retry_on says when to try again; retry how often")
        on = None if retry_on is None else _joined(retry_on)
        fields = compose(
            [os.fspath(word) for word in argv],
            env=_surroundings(export) if env is None else dict(env),
            cwd=None if cwd is None else os.fspath(cwd),
            **plain.demand(cores, memory, io, gres),
            time=plain.limit(time),
            name=name,
            pool=pool,
            priority=priority,
            after=None if after is None else plain.after(after),
            begin=plain.begin(begin),
            retry=retry,
            retry_on=None if on is None else parse_outcomes(on),
            warn=None if warn is None else parse_warning(warn),
            script=script,
            array=plain.array(array),
            hold=hold,
            preemptible=preemptible,
            stdout=stdout,
            stderr=stderr,
            notify=notify,
            notify_command=notify_command,
        )
        return int(self._connection.submit(**fields)["id"])

    def submit_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[int | DrfdError]:
        """Queue many jobs, each with the arguments of `submit`, without waiting for the answer to
        one before the next is sent. The ids in their order; in place of one, what refused it."""
        replies = self._connection.submit_all(_composed(jobs))
        return [each if isinstance(each, DrfdError) else int(each["id"]) for each in replies]

    # -- looking ------------------------------------------------------------------------------

    def get(self, job: int | str | Job) -> Job:
        """Any job of the caller's, ended ones too."""
        reply = self._connection.request("show", id=plain.one(job))
        if "job" not in reply:
            raise Refused(
                "is-array", f"{plain.one(job)} is an array", hint="status(id) tells its tasks"
            )
        return Job.of(reply["job"])

    def status(
        self,
        ids: Ids | None = None,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Iterable[str] = (),
        ended: int = 0,
        tasks: bool = False,
    ) -> list[Job]:
        """The queue now, everybody's; `ended`: with so many of the jobs that ended last. Waiting
        tasks of an array are one row, unless `tasks`."""
        select = plain.selection(ids, user, name, states)
        pages = self._connection.pages("status", select=select, ended=ended, tasks=tasks)
        return [Job.of(view) for page in pages for view in page["jobs"]]

    def shares(self) -> Shares:
        return Shares.of(self._connection.request("shares"))

    def snapshots(self, every: float = 1.0) -> Iterator[Snapshot]:
        """Everything as it stands: at once, and then every so many seconds, one at least. Who takes
        the next one late gets the newest then. Outlives restarts of the daemon; uses a connection
        of its own."""
        return watch(self._connection.another(), every)

    def usage(self, job: int | str | Job | None = None, *, user: str | None = None) -> Usage:
        """How the use of a job, or of a user's running jobs together, went: anybody's."""
        about = {"user": user} if job is None else {"id": plain.one(job), "user": user}
        given = {name: value for name, value in about.items() if value is not None}
        return Usage.of(self._connection.request("usage", **given))

    def wait(
        self, ids: Ids, *, any: bool = False, timeout: Span | float | None = None
    ) -> list[Job]:
        """Until these jobs have ended, or one of them if `any`: those that have, in the order
        given; an array as one. Outlives restarts of the daemon. Raises TimeoutError when they have
        not ended after `timeout` (seconds), and Refused when one of them can never start because of
        how others ended and that is all that is left to wait for."""
        left = timeout if isinstance(timeout, int | float | None) else plain.span(timeout)
        reply = self._connection.wait(plain.ids(ids), any_one=any, timeout_s=left)
        for view in reply.get("never", ()):
            text = f"job {Job.of(view).label} never starts: {view['reason']['text']}"
            raise Refused("never-starts", text)
        if not reply["done"]:
            raise TimeoutError(f"{'none has' if any else 'not all have'} ended")
        return [Job.of(view) for view in reply["ended"]]

    def events(self, ids: Ids | None = None, *, everybody: bool = False) -> Iterator[Job]:
        """A job whenever one has changed: of these, which ends when all of them have ended; or of
        all of the caller's, or of everybody, without end.

        First come these jobs as they stand (of all: those that live). States that follow each other
        quickly may be told as the last of them, and one state twice after a restart of the daemon,
        which is outlived; no end is missed. Uses a connection of its own.
        """
        asked = {"ids": [] if ids is None else plain.ids(ids), "everything": everybody}
        for view in follow(self._connection.another(), asked):
            yield Job.of(view)

    # -- acting -------------------------------------------------------------------------------

    def cancel(self, ids: Ids) -> list[int]:
        """Cancel waiting jobs, stop running ones; the ids of those that it was done to. As all
        verbs here: a refusal of some is raised when all have been tried."""
        return self._act("cancel", ids)

    def hold(self, ids: Ids) -> list[int]:
        return self._act("hold", ids)

    def release(self, ids: Ids) -> list[int]:
        return self._act("release", ids)

    def suspend(self, ids: Ids) -> list[int]:
        return self._act("suspend", ids)

    def resume(self, ids: Ids) -> list[int]:
        return self._act("resume", ids)

    def signal(self, ids: Ids, signal: int | str) -> list[int]:
        """To every process of running jobs: "USR1", 10 or `signal.SIGUSR1`."""
        number = int(signal) if isinstance(signal, int) else parse_signal(signal)
        return self._act("signal", ids, signal=number)

    def set(
        self,
        ids: Ids,
        *,
        cores: float | str | None = None,
        memory: int | str | None = None,
        io: str | Iterable[str] | None = None,
        gres: Mapping[str, int] | None = None,
        time: Span | None = None,
        name: str | None = None,
        pool: str | None = None,
        priority: int | None = None,
        after: Ids | None = None,
        begin: str | float | datetime | None = None,
    ) -> list[int]:
        """Change what waiting jobs ask for; of running ones, make the time limit shorter."""
        demand = plain.demand(cores, memory, io, gres)
        asked = {
            "demand": demand_fields(**demand) or None,
            "time_limit_s": plain.limit(time),
            "name": name,
            "pool": pool,
            "priority": priority,
            "after": None if after is None else dependencies(plain.after(after)),
            "begin_s": plain.begin(begin),
        }
        changes = {key: value for key, value in asked.items() if value is not None}
        if not changes:
            raise Refused("bad-value", "nothing is to be changed", hint="for instance time='4h'")
        return self._act("set", ids, **changes)

    def _act(self, verb: str, ids: Ids, **asked: Any) -> list[int]:
        chosen = plain.ids(ids)
        if not chosen:
            return []
        reply = self._connection.request(verb, select={"ids": chosen}, **asked)
        for failure in reply["failed"]:
            error = failure["error"]
            kind = BY_KIND.get(error["kind"], DrfdError)
            raise kind(error["code"], error["text"], hint=error["hint"])
        return [int(job_id) for job_id in reply["done"]]


def _start_own(socket_path: Path) -> None:
    # Seldom needed, and slow to load.
    from drfd.client.autostart import start_daemon

    start_daemon(socket_path)


def _joined(texts: str | Iterable[str]) -> str:
    return texts if isinstance(texts, str) else ",".join(texts)


def _surroundings(export: Iterable[str]) -> dict[str, str]:
    env = capture(as_given(os.environ), list(export))
    for name in not_text(env):
        # No message can carry it.
        del env[name]
    return env


class _Notes(Connection):
    """What would be submitted."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.fields: dict[str, Any] = {}

    def submit(self, **fields: Any) -> dict[str, Any]:
        self.fields = fields
        return {"id": 0}


def _composed(jobs: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    notes = _Notes()
    composing = Client(notes)
    for each in jobs:
        composing.submit(**each)
        yield notes.fields
