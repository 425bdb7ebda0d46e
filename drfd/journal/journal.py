"""The journal: one SQLite file that outlives every process.

An event counts only once `commit` has returned; then it is on disk (WAL, synchronous=FULL).
One writer: the daemon, which holds the state directory's lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from drfd.common.errors import HostError
from drfd.common.failpoints import reach
from drfd.core.ledger.ledger import End, Ledger
from drfd.core.ledger.queue import ArrayState
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Outcome
from drfd.core.model.resources import Axes
from drfd.core.scheduling.backfill import KeptReservation
from drfd.core.scheduling.kept_free import SeenLoad
from drfd.core.scheduling.scheduler import PastRuns
from drfd.core.usage import Curve
from drfd.journal import records
from drfd.journal.arrays import Arrays
from drfd.journal.database import Database
from drfd.journal.files import Reserve, open_database
from drfd.journal.pruning import EventCount, EventTally, Pruning
from drfd.journal.submissions import StoredSubmissions

#: Write the row of a job. The indices of live and of ended jobs are not written again while a job
#: is live.
_WRITE_LIVE = (
    "insert into jobs (id, uid, user, live, array_id, state, ended_at, data, events, event_bytes,"
    " events_dropped) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do update set"
    " state = excluded.state, ended_at = excluded.ended_at, data = excluded.data,"
    " events = excluded.events, event_bytes = excluded.event_bytes,"
    " events_dropped = excluded.events_dropped"
)
_WRITE_ENDED = f"{_WRITE_LIVE}, live = excluded.live"


class Journal:
    """Appends inside one open transaction; `commit` makes them durable together. Until then the
    rows of live jobs are those of the last commit."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises HostError, and changes nothing, if it cannot be read."""
        self.path = path
        self.reserve = Reserve(path.with_name("journal.reserve"))
        self._db = self._open()
        self._take_up()
        #: Random id, created with the journal. Job ids are unique within one journal only.
        self.id = self._fact("id") or ""

    def _take_up(self) -> None:
        """Begin with what the file has: the counts and caches of its parts."""
        self.submissions = StoredSubmissions(self._db)
        self.arrays = Arrays(self._db)
        self._pruning = Pruning(self._db)
        #: Live jobs whose rows the open transaction writes at its end, once for all their events.
        self._unwritten: dict[int, tuple[Job, EventCount]] = {}
        with self._db.reported("read"):
            self._tally = EventTally(self._db)

    def _fact(self, name: str) -> str | None:
        row = self._db.row("select value from facts where name = ?", (name,))
        return None if row is None else str(row[0])

    def reservations(self) -> tuple[KeptReservation, ...]:
        """Return what the last daemon has kept for big jobs."""
        value = self._fact("reservations")
        with self._db.reported("read"):
            return tuple([KeptReservation(*each) for each in json.loads(value or "[]")])

    def put_reservations(self, kept: Sequence[KeptReservation]) -> None:
        """Store what is kept for big jobs, in the open transaction."""
        query = "insert or replace into facts values ('reservations', ?)"
        self._db.write(query, (json.dumps(kept),))

    def external_load(self) -> SeenLoad:
        """Return what the last daemon saw of the external load."""
        value = self._fact("external_load")
        return SeenLoad() if value is None else msgspec.json.decode(value, type=SeenLoad)

    def put_external_load(self, load: SeenLoad) -> None:
        """Store the external load, in the open transaction."""
        query = "insert or replace into facts values ('external_load', ?)"
        self._db.write(query, (msgspec.json.encode(load).decode(),))

    def past_runs(self, rules: str) -> tuple[PastRuns, list[Job]] | None:
        """Return what a daemon has stored of ended runs under the rules with this digest, and the
        jobs that have ended since, oldest first; None if there is nothing."""
        value = self._fact("past_runs")
        with self._db.reported("read"):
            stored = json.loads(value or "{}")
            if stored.get("rules") != rules:
                return None
            query = (
                "select data from jobs where live = 0 and id in (select job_id from events"
                " where seq > ? and kind = 'Cleaned') order by ended_at, id"
            )
            rows = self._db.execute(query, (stored["seq"],))
            return msgspec.convert(stored["runs"], PastRuns), [
                records.decode_job(data) for (data,) in rows
            ]

    def put_past_runs(self, rules: str, runs: PastRuns) -> None:
        """Store what is known of ended runs, those of the open transaction included."""
        (seq,) = self._db.row("select ifnull(max(seq), 0) from events")
        data = json.dumps({"rules": rules, "seq": seq, "runs": runs})
        self._db.write("insert or replace into facts values ('past_runs', ?)", (data,))

    def _open(self) -> Database:
        while True:
            try:
                return open_database(self.path)
            except HostError as error:
                if not self.release_reserve(error):
                    raise

    def release_reserve(self, error: HostError) -> bool:
        """Release a part of the reserve if the disk is full; return whether it was released."""
        return self.reserve.is_called_for(error) and self.reserve.give_up()

    def close(self) -> None:
        self._db.close()

    def append(self, event: ev.Event, job: Job | None, array_state: ArrayState | None) -> None:
        """Add the event to the open transaction, with the job that `Ledger.apply` returned for it.
        `array_state` is the ledger's `latest_array` after the event."""
        if isinstance(event, ev.Submitted | ev.ArraySubmitted) and event.spec.again is not None:
            assert job is not None
            query = "insert or ignore into repeats values (?, ?)"
            self._db.write(query, (event.spec.again.of, job.id))
        if job is not None and array_state is not None and job.id == array_state.array.id:
            self._append_for_array(event, array_state)
            return
        self._append_for_job(event, job)
        if isinstance(event, ev.IdsRaised):
            query = "insert or replace into facts values ('next_id', ?)"
            self._db.write(query, (str(event.next_id),))
        if job is not None and array_state is not None and array_state.is_over:
            self.arrays.end(array_state.array.id, event.at_s)
            self._tally.forget(array_state.array.id, job.spec.uid)
            self.submissions.end(array_state.array.id)

    def _append_for_array(self, event: ev.Event, array_state: ArrayState) -> None:
        """Add an event of all tasks of the array that have no record of their own."""
        array, is_over = array_state.array, array_state.is_over
        with self._db.reported("write"):
            size = self._append_event(event, array.id)
            events = self._tally.added(array.id, array.spec, size, live=not is_over)
        self.arrays.put(array, events, ended_at=event.at_s if is_over else None)
        if is_over:
            self.submissions.end(array.id)

    def _append_for_job(self, event: ev.Event, job: Job | None) -> None:
        with self._db.reported("write"):
            size = self._append_event(event, job.id if job else None)
            if job is None:
                return
            live = job.state is not JobState.ENDED
            events = self._tally.added(job.id, job.spec, size, live=live)
            if live:
                self._unwritten[job.id] = job, events
                return
            self._unwritten.pop(job.id, None)
            self._write_row(job, events)
            if job.array_id is None:
                self.submissions.end(job.id)

    def _write_row(self, job: Job, events: EventCount) -> None:
        """Write a job as it stands."""
        live, data = job.state is not JobState.ENDED, records.encode(job)
        self._db.execute(
            _WRITE_LIVE if live else _WRITE_ENDED,
            (
                *(job.id, job.spec.uid, job.spec.user, live, job.array_id),
                *(job.shown_state, job.ended_at, data, *events),
            ),
        )

    def last_event_at(self) -> float | None:
        """Return the Unix time of the last event of any kind, or None if the journal is new."""
        row = self._db.row("select at_s from events order by seq desc limit 1")
        return None if row is None else float(row[0])

    def _append_event(self, event: ev.Event, job_id: int | None) -> int:
        """Append the event and return its length in bytes."""
        self._db.begin()
        data = records.encode(event)
        self._db.execute(
            "insert into events (at_s, job_id, kind, data) values (?, ?, ?, ?)",
            (event.at_s, job_id, type(event).__name__, data),
        )
        return len(data)

    def repeats_of(self, job_id: int, *, limit: int) -> list[int]:
        """Return the jobs and arrays that repeat this one, the latest first."""
        query = "select job_id from repeats where of_id = ? order by job_id desc limit ?"
        return [each for (each,) in self._db.rows(query, (job_id, limit))]

    def put_curve(self, job_id: int, curve: Curve) -> None:
        """Store the job's usage curve in place of an earlier one."""
        query = "insert or replace into curves (job_id, data) values (?, ?)"
        self._db.write(query, (job_id, records.encode_curve(curve)))

    def curve(self, job_id: int) -> Curve | None:
        query = "select data from curves where job_id = ?"
        with self._db.reported("read"):
            row = self._db.execute(query, (job_id,)).fetchone()
            return None if row is None else records.decode_curve(row[0])

    def commit(self) -> None:
        """Make all appended events durable; do nothing if there are none."""
        if not self._db.in_transaction:
            return
        with self._db.reported("write"):
            for job, events in self._unwritten.values():
                self._write_row(job, events)
        self._unwritten.clear()
        reach("journal.before-commit")
        with self._db.reported("write"):
            self._db.execute("commit")
        reach("journal.after-commit")

    def rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")
        # Also if SQLite has rolled back by itself.
        self._take_up()

    def load(self, axes: Axes) -> Ledger:
        """Return the ledger as of the last commit, from the job table."""
        with self._db.reported("read"):
            rows = self._db.execute("select data from jobs where live = 1 order by id")
            jobs = [records.decode_job(data) for (data,) in rows]
            last_id = self._db.execute("select max(id) from jobs").fetchone()[0] or 0
            drains = self._drains()
            try:
                return Ledger.of_jobs(
                    axes,
                    jobs,
                    arrays=self.arrays.live(),
                    next_id=max(
                        last_id + 1, self.arrays.last_id() + 1, int(self._fact("next_id") or 1)
                    ),
                    drains=drains,
                    ended=self._ended,
                )
            except (TypeError, LookupError, AssertionError) as error:
                # Each record can be read, but they contradict each other.
                raise ValueError(f"its jobs contradict each other: {error!r}") from error

    def _drains(self) -> dict[str, ev.Drained]:
        """Return the drains that last, by node; that of all nodes under ""."""
        rows = self._db.execute(
            "select data from events where job_id is null and kind = 'Drained' order by seq"
        )
        found: dict[str, ev.Drained] = {}
        for (data,) in rows:
            event = records.decode_event("Drained", data)
            assert isinstance(event, ev.Drained)
            found.pop(event.node, None)
            if event.on:
                found[event.node] = event
        return found

    def _ended(self, ids: Sequence[int]) -> dict[int, End]:
        """Return the ends of these jobs, tasks and arrays. A killed daemon may not have reported
        them to all jobs that wait for them."""
        found = {}
        for job_id in ids:
            query = (
                "select ifnull((select max(at_s) from events where job_id = :id), ended_at), user"
                " from jobs where id = :id union all select ended_at, user from arrays"
                " where id = :id or id < :id and :id <= last_id"
            )
            row = self._db.execute(query, {"id": job_id}).fetchone()
            at_s, user = row or (None, "")
            if at_s is None:
                at_s = self.last_event_at() or 0.0
            # A job without a record has been removed from the history meanwhile.
            found[job_id] = End(self.outcome(job_id) or Outcome.LOST, at_s, user)
        return found

    def events(self, job_id: int | None = None) -> Iterator[ev.Event]:
        """Yield the ledger's events in order: those of one job or array, or all. The events of a
        task include those of its array from before it had a record of its own."""
        query = "select kind, data from events order by seq"
        array = None
        if job_id is not None:
            array = self.arrays.of_task(job_id)
            query = (
                "select kind, data from events where job_id = :job or job_id = :array and seq <"
                " ifnull((select min(seq) from events where job_id = :job), 1 << 62) order by seq"
            )
        ids = {"job": job_id, "array": None if array is None else array.id}
        with self._db.reported("read"):
            for kind, data in self._db.execute(query, ids):
                yield records.decode_event(kind, data)

    def live_bytes(self, uid: int) -> int:
        """Return the bytes stored for the user's live jobs and arrays, and for their tasks with a
        record of their own. They are submissions and events, and some for each record. What several
        submissions have in common counts once."""
        return self.submissions.live_bytes(uid) + self._tally.bytes[uid]

    def live_bytes_in_total(self) -> int:
        """Return the bytes stored for live jobs and arrays of all users."""
        return self.submissions.live_bytes() + self._tally.bytes.total()

    def remove_ended(self, before_s: float, user: str | None = None) -> int | None:
        """Remove some jobs that ended before that Unix time, the oldest first, and commit. With
        `user`, only that user's jobs. Returns the number of removed jobs and arrays, or None if
        there is nothing more to remove."""
        try:
            removed = self._pruning.remove(before_s, user)
            self.commit()
        except HostError:
            self.rollback()
            raise
        return removed

    def give_back(self) -> bool:
        """Return some unused pages to the file system, and truncate a long log. Returns whether
        there are more pages to return."""
        self._pruning.cut_log(self.path.with_name(f"{self.path.name}-wal"))
        return self._pruning.give_back()

    def mark(self) -> int:
        """Return the sequence number of the last event, or 0."""
        return int(self._db.row("select max(seq) from events")[0] or 0)

    def changed(
        self, *, after: int, limit: int, user: str | None = None
    ) -> tuple[list[tuple[int, int | None]], int]:
        """Return the jobs and arrays of the next `limit` events after `after`, or the user's among
        them, and the last event read. Each has the id of its array, an array its own; they are in
        the order of their last event."""
        query = (
            "select max(seq), job_id, coalesce(array_id, arrays.id),"
            " coalesce(jobs.user, arrays.user) from (select seq, job_id from events where seq > ?"
            " order by seq limit ?) left join jobs on jobs.id = job_id"
            " left join arrays on arrays.id = job_id group by job_id order by 1"
        )
        rows = self._db.rows(query, (after, limit))
        found = [
            (job_id, array_id)
            for _, job_id, array_id, own in rows
            if own is not None and user in (None, own)
        ]
        return found, rows[-1][0] if rows else after

    def has_changed(self, job_id: int, *, after: int) -> bool:
        """Return whether an event after `after` is about the job."""
        query = "select 1 from events where job_id = ? and seq > ? limit 1"
        return self._db.row(query, (job_id, after)) is not None

    def job(self, job_id: int) -> Job | None:
        """Return any job or task that is in the journal, live or ended, or None."""
        with self._db.reported("read"):
            row = self._db.execute("select data from jobs where id = ?", (job_id,)).fetchone()
            if row is not None:
                return records.decode_job(row[0])
        array = self.arrays.of_task(job_id)
        return None if array is None else array.task(job_id)

    def outcome(self, job_id: int) -> Outcome | None:
        """Return the outcome of a job, task or array, or None if it is live or not known."""
        return self.outcomes([job_id]).get(job_id)

    def outcomes(self, ids: list[int]) -> dict[int, Outcome]:
        """Return the outcomes of those of the jobs, tasks and arrays that have ended, in few
        queries, because a turn may ask for many thousands. The outcome of an array is COMPLETED if
        that of all its tasks is, else that of the first task that is not."""
        query = "select id, live, state from jobs where id in (select value from json_each(?))"
        rows = {job_id: row for job_id, *row in self._db.rows(query, (json.dumps(ids),))}
        found = self.arrays.outcomes([each for each in ids if each not in rows])
        return found | {
            job_id: Outcome(state) for job_id, (is_live, state) in rows.items() if not is_live
        }

    def ended_since(self, at_s: float) -> Iterator[Job]:
        """Yield the jobs that ended after the Unix time `at_s`, oldest first."""
        query = "select data from jobs where live = 0 and ended_at > ? order by ended_at, id"
        with self._db.reported("read"):
            for (data,) in self._db.execute(query, (at_s,)):
                yield records.decode_job(data)


def digest(text: str) -> str:
    """Return the digest by which events refer to a text of rules: SHA-256 in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
