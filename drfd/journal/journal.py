"""The journal: one SQLite file that outlives every process.

An event counts only once `commit` has returned; then it is on disk (WAL, synchronous=FULL).
One writer: the daemon, which holds the state directory's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from drfd.core import events as ev
from drfd.core.curve import Curve
from drfd.core.job import Job, JobState, Outcome
from drfd.core.ledger import Ledger
from drfd.core.resources import Axes
from drfd.failpoints import reach
from drfd.journal import records
from drfd.journal.arrays import Arrays
from drfd.journal.database import open_database, reported
from drfd.journal.past import Past, query
from drfd.journal.payloads import Payloads
from drfd.journal.records import Payload


class Journal:
    """Appends inside one open transaction; `commit` makes them durable together."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises HostError, leaving the file as it was, when it cannot be read."""
        self._path = path
        self._reported = partial(reported, path)
        self._db = open_database(path)
        self.payloads = Payloads(self._db, self._reported)
        self.arrays = Arrays(self._db, self._reported)

    @property
    def path(self) -> Path:
        return self._path

    def close(self) -> None:
        self._db.close()

    def enter(self, event: ev.Event, ledger: Ledger) -> Job | None:
        """Apply the event to the books, and append it with what it has made of its job or array."""
        roster = ledger.arrays.get(getattr(event, "job_id", 0))
        job = ledger.apply(event)
        if isinstance(event, ev.ArraySubmitted):
            roster = ledger.arrays[event.array_id]
        if roster is not None:
            with self._reported("write"):
                self._append_event(event, roster.array.id)
            self.arrays.put(roster.array, is_live=not roster.is_over)
            if roster.is_over:
                self.payloads.drop(roster.array.id)
            return job
        self.append(event, job)
        array_id = None if job is None or job.state is not JobState.ENDED else job.array_id
        if array_id is not None and array_id not in ledger.arrays:
            self.arrays.end(array_id)
            self.payloads.drop(array_id)
        return job

    def append(self, event: ev.Event, job: Job | None) -> None:
        """Add the event, and the job as it is after it, to the open transaction."""
        with self._reported("write"):
            self._append_event(event, job.id if job else None)
            if job is None:
                return
            live = job.state is not JobState.ENDED
            self._db.execute(
                "insert or replace into jobs"
                " (id, uid, user, state, live, ended_at, data, array_id)"
                " values (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(job.id, job.spec.uid, job.spec.user, job.shown_state, live, job.ended_at),
                    *(records.encode(job), job.array_id),
                ),
            )
            if not live:
                self.payloads.drop(job.id)

    def _append_event(self, event: ev.Event, job_id: int | None) -> None:
        self._begin()
        self._db.execute(
            "insert into events (at_s, job_id, kind, data) values (?, ?, ?, ?)",
            (event.at_s, job_id, type(event).__name__, records.encode(event)),
        )

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("begin immediate")

    def put_payload(self, job_id: int, payload: Payload) -> None:
        self.payloads.put(job_id, payload)

    def put_submission(self, uid: int, key: str, job_id: int) -> None:
        with self._reported("write"):
            self._db.execute("insert into submissions values (?, ?, ?)", (uid, key, job_id))

    def submission(self, uid: int, key: str) -> int | None:
        """The job that came of an earlier submission with this key."""
        query = "select job_id from submissions where uid = ? and key = ?"
        with self._reported("read"):
            row = self._db.execute(query, (uid, key)).fetchone()
        return None if row is None else int(row[0])

    def put_curve(self, job_id: int, curve: Curve) -> None:
        """How its use went, in place of what was kept of it before."""
        with self._reported("write"):
            self._begin()
            self._db.execute(
                "insert or replace into curves (job_id, data) values (?, ?)",
                (job_id, records.encode(curve)),
            )

    def curve(self, job_id: int) -> Curve | None:
        query = "select data from curves where job_id = ?"
        with self._reported("read"):
            row = self._db.execute(query, (job_id,)).fetchone()
            return None if row is None else records.decode_curve(row[0])

    def commit(self) -> None:
        """Make all that was appended durable; nothing to do when nothing was."""
        if not self._db.in_transaction:
            return
        reach("journal.before-commit")
        with self._reported("write"):
            self._db.execute("commit")
        reach("journal.after-commit")

    def rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")
        # Also when SQLite has rolled back by itself.
        self.payloads.count()

    def load(self, axes: Axes) -> Ledger:
        """The books as of the last commit, from the job table."""
        with self._reported("read"):
            rows = self._db.execute("select data from jobs where live = 1 order by id")
            jobs = [records.decode_job(data) for (data,) in rows]
            last_id = self._db.execute("select max(id) from jobs").fetchone()[0] or 0
            drained = self._db.execute(
                "select data from events where kind = 'Drained' order by seq desc limit 1"
            ).fetchone()
            draining = False
            if drained is not None:
                event = records.decode_event("Drained", drained[0])
                draining = isinstance(event, ev.Drained) and event.on
            try:
                return Ledger.of_jobs(
                    axes,
                    jobs,
                    arrays=self.arrays.live(),
                    next_id=max(last_id, self.arrays.last_id()) + 1,
                    draining=draining,
                )
            except (TypeError, LookupError, AssertionError) as error:
                # Each record can be read, and they do not fit together.
                raise ValueError(f"its jobs contradict each other: {error!r}") from error

    def events(self, job_id: int | None = None) -> Iterator[ev.Event]:
        """Events in the order in which they happened: of one job or array, or all. Of a task also
        what happened to its whole array while it had no record of its own."""
        query = "select kind, data from events order by seq"
        array = None
        if job_id is not None:
            array = self.arrays.of_task(job_id)
            query = (
                "select kind, data from events where job_id = :job or job_id = :array and seq <"
                " ifnull((select min(seq) from events where job_id = :job), 1 << 62) order by seq"
            )
        ids = {"job": job_id, "array": None if array is None else array.id}
        with self._reported("read"):
            for kind, data in self._db.execute(query, ids):
                yield records.decode_event(kind, data)

    def mark(self) -> int:
        """The place of the last event."""
        with self._reported("read"):
            return int(self._db.execute("select max(seq) from events").fetchone()[0] or 0)

    def job(self, job_id: int) -> Job | None:
        """Any job ever submitted, or task."""
        with self._reported("read"):
            row = self._db.execute("select data from jobs where id = ?", (job_id,)).fetchone()
            if row is not None:
                return records.decode_job(row[0])
        array = self.arrays.of_task(job_id)
        return None if array is None else array.task(job_id)

    def outcome(self, job_id: int) -> Outcome | None:
        """Of a job, task or array that has ended: of an array COMPLETED if all its tasks are, else
        that of the first that is not."""
        array = self.arrays.get(job_id)
        if array is not None:
            bad = self.arrays.first_bad(array)
            return Outcome.COMPLETED if bad is None else bad.outcome
        job = self.job(job_id)
        return None if job is None or job.state is not JobState.ENDED else job.outcome

    def payload(self, job_id: int) -> Payload:
        return self.payloads.get(job_id)

    def ended(
        self, *, limit: int, user: str | None = None, states: Sequence[str] = ()
    ) -> list[Job]:
        """The jobs that ended last, newest first; of one user, in some of the end states."""
        with self._reported("read"):
            rows = self._db.execute(*query(Past(user=user, states=tuple(states), limit=limit)))
            return [records.decode_job(data) for (data,) in rows]

    def ended_since(self, at_s: float) -> Iterator[Job]:
        """Jobs that ended after `at_s`, oldest first."""
        query = "select data from jobs where live = 0 and ended_at > ? order by ended_at, id"
        for (data,) in self._db.execute(query, (at_s,)):
            yield records.decode_job(data)
