"""The journal: one SQLite file that outlives every process.

An event counts only once `commit` has returned; then it is on disk (WAL, synchronous=FULL).
One writer: the daemon, which holds the state directory's lock.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from drfd.common.errors import HostError
from drfd.common.failpoints import reach
from drfd.core.ledger.ledger import End, Ledger
from drfd.core.ledger.queue import ArrayState
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Outcome
from drfd.core.model.resources import Axes
from drfd.core.scheduling.scheduler import PastRuns
from drfd.core.usage import Curve
from drfd.journal import records
from drfd.journal.arrays import Arrays
from drfd.journal.files import Database, Reserve, open_database
from drfd.journal.history import story
from drfd.journal.pruning import Pruning
from drfd.journal.submissions import Payload, StoredSubmissions

T = TypeVar("T")

#: Maximum number of bytes of the events in the row of a live job or array, and how many of them
#: stay when there are more.
MOST_BYTES, LEFT_BYTES = 32 << 10, 24 << 10
#: Bytes that a live job or array takes in memory and in the journal besides events and submission.
JOB_BYTES = 1400
#: Bytes that a task of an array takes in memory from its submission on.
TASK_BYTES = 520
#: Write the row of a job. The indices of live and of ended jobs are not written again while a job
#: is live.
_WRITE_LIVE = (
    "insert into jobs (id, uid, user, live, array_id, state, ended_at, data, seq, events, spec)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " on conflict (id) do update set state = excluded.state, ended_at = excluded.ended_at,"
    " data = excluded.data, seq = excluded.seq, spec = ifnull(excluded.spec, spec),"
    " events = cast(events || excluded.events as blob)"
)
_WRITE_ENDED = f"{_WRITE_LIVE}, live = excluded.live"


class _StoredRuns(msgspec.Struct, frozen=True):
    """What is known of ended runs, up to an event."""

    #: Digest of the rules.
    rules: str
    seq: int
    runs: PastRuns


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
        self.id: str = self._db.row("select value from facts where name = 'id'")[0]

    def _take_up(self) -> None:
        """Begin with what the file has: the counts and caches of its parts."""
        self.arrays = Arrays(self._db)
        self._pruning = Pruning(self._db)
        #: Live jobs whose rows the open transaction writes at its end, once for all their events.
        self._changes: dict[int, tuple[Job, int, bytes, bytes | None]] = {}
        #: Bytes that each live job or array takes without its blob, and those of each uid.
        self._bytes_of: dict[int, int] = {}
        self._bytes = Counter[int]()
        query = (
            "select id, live.uid, ? * tasks + length(events)"
            " + ifnull(length(event) + length(spec) + ifnull(length(own), 0), 0), blob from ("
            "select id, uid, events, 0 as tasks from jobs where live = 1 union all"
            " select id, uid, events, last_id - id from arrays where live = 1) as live"
            " left join submissions on job_id = id"
        )
        blobs = Counter[int]()
        for job_id, uid, size, blob in self._db.rows(query, (TASK_BYTES,)):
            self._count(job_id, uid, size)
            if blob is not None:
                blobs[blob] += 1
        self.submissions = StoredSubmissions(self._db, blobs)
        query = (
            "select max(ifnull((select max(seq) from jobs), 0), ifnull((select max(seq) from"
            " arrays), 0), ifnull((select max(seq) from general_events), 0))"
        )
        #: Number of the last event. Those of removed jobs may have had higher ones.
        self._seq = max(int(self._db.row(query)[0]), self.fact("seq", int) or 0)

    def fact(self, name: str, kind: type[T]) -> T | None:
        """Return the fact of this name, which is of this type, or None."""
        row = self._db.row("select value from facts where name = ?", (name,))
        with self._db.reported("read"):
            return None if row is None else msgspec.json.decode(row[0], type=kind)

    def put_fact(self, name: str, value: object) -> None:
        """Store a fact for the next daemon, in the open transaction."""
        query = "insert or replace into facts values (?, ?)"
        self._db.write(query, (name, records.encode(value).decode()))

    def past_runs(self, rules: str) -> tuple[PastRuns, list[Job]] | None:
        """Return what a daemon has stored of ended runs under the rules with this digest, and the
        jobs that have ended since, oldest first; None if there is nothing."""
        stored = self.fact("past_runs", _StoredRuns)
        if stored is None or stored.rules != rules:
            return None
        query = "select data, spec from records where +live = 0 and seq > ? order by ended_at, id"
        with self._db.reported("read"):
            rows = self._db.execute(query, (stored.seq,))
            return stored.runs, [records.decode_job(*row) for row in rows]

    def put_past_runs(self, rules: str, runs: PastRuns) -> None:
        """Store what is known of ended runs, those of the open transaction included."""
        self.put_fact("past_runs", _StoredRuns(rules, self._seq, runs))

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

    def append(
        self,
        event: ev.Event,
        job: Job | None,
        array_state: ArrayState | None,
        payload: Payload | None = None,
    ) -> None:
        """Add the event to the open transaction, with the job that `Ledger.apply` returned for it.
        `array_state` is the ledger's `latest_array` after the event, `payload` what was signed of a
        new job or array."""
        with self._db.reported("write"):
            self._db.begin()
            self._seq += 1
            if job is None:
                values = type(event).__name__, getattr(event, "node", ""), self._seq
                query = "insert or replace into general_events values (?, ?, ?, ?)"
                self._db.execute(query, (*values, records.encode(event)))
                return
            line, size = b"", 0
            if isinstance(event, ev.Submitted | ev.ArraySubmitted):
                size = self.submissions.add(job.id, self._seq, event, payload)
                if array_state is not None:
                    size += TASK_BYTES * array_state.array.size
            else:
                line = records.event_line(self._seq, event)
                size = len(line)
            spec = records.encode(job.spec) if isinstance(event, ev.Altered) else None
            self._count(job.id, job.spec.uid, size)
            ended = set[int]()
            if array_state is not None and job.id == array_state.array.id:
                self.arrays.put(array_state.array, self._seq, line)
                self._thin("arrays", job)
                return
            _, _, lines, altered = self._changes.pop(job.id, (job, 0, b"", None))
            self._changes[job.id] = job, self._seq, lines + line, spec or altered
            if job.state is JobState.ENDED:
                self._write(*self._changes.pop(job.id))
                ended.add(job.id)
            if array_state is not None and array_state.is_over:
                self.arrays.end(array_state.array.id, event.at_s)
                ended.add(array_state.array.id)
            for each in ended:
                self._bytes[job.spec.uid] -= self._bytes_of.pop(each)
                if each == job.submission_id:
                    self.submissions.end(each)

    def _count(self, job_id: int, uid: int, size: int) -> None:
        """Count the bytes of a new event of a live job or array."""
        if job_id not in self._bytes_of:
            size += JOB_BYTES
        self._bytes_of[job_id] = self._bytes_of.get(job_id, 0) + size
        self._bytes[uid] += size

    def _write(self, job: Job, seq: int, events: bytes, spec: bytes | None) -> None:
        """Write the row of a job, with its new events, and its specification if it was altered."""
        live = job.state is not JobState.ENDED
        self._db.execute(
            _WRITE_LIVE if live else _WRITE_ENDED,
            (
                *(job.id, job.spec.uid, job.spec.user, live, job.array_id, job.shown_state),
                *(job.ended_at, records.without_spec(job), seq, events, spec),
            ),
        )
        self._thin("jobs", job)

    def _write_changes(self) -> None:
        for change in self._changes.values():
            self._write(*change)
        self._changes.clear()

    def _thin(self, table: str, job: Job) -> None:
        """Give up some events of a live job or array that has very many: a user can cause events
        without end by holding and releasing, signals and changes."""
        if self._bytes_of[job.id] <= MOST_BYTES:
            return
        # Only constants of this module are put into the statements.
        query = f"select events from {table} where id = ?"  # noqa: S608
        (events,) = self._db.execute(query, (job.id,)).fetchone()
        if len(events) <= MOST_BYTES:
            return  # what was submitted is long
        left, number = records.thinned(events, LEFT_BYTES)
        query = f"update {table} set events = ?, dropped = dropped + ? where id = ?"  # noqa: S608
        self._db.execute(query, (left, number, job.id))
        self._count(job.id, job.spec.uid, len(left) - len(events))

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
            self._write_changes()
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
            rows = self._db.execute("select data, spec from records where live = 1 order by id")
            jobs = [records.decode_job(*row) for row in rows]
            last_id = self._db.execute("select max(id) from jobs").fetchone()[0] or 0
            general = [event for _, event in self._general_events()]
            raised = [each.next_id for each in general if isinstance(each, ev.IdsRaised)]
            drains = {
                each.node: each for each in general if isinstance(each, ev.Drained) and each.on
            }
            try:
                return Ledger.of_jobs(
                    axes,
                    jobs,
                    arrays=self.arrays.live(),
                    next_id=max(
                        *(last_id + 1, self.arrays.last_id() + 1, *raised),
                        self.fact("next_id", int) or 1,
                    ),
                    drains=drains,
                    ended=self._ended,
                )
            except (TypeError, LookupError, AssertionError) as error:
                # Each record can be read, but they contradict each other.
                raise ValueError(f"its jobs contradict each other: {error!r}") from error

    def _general_events(self) -> list[tuple[int, ev.Event]]:
        """Return the last events of each kind that are about no job, with their numbers."""
        rows = self._db.execute("select seq, kind, data from general_events order by seq")
        return [(seq, records.decode_event(kind, data)) for seq, kind, data in rows]

    def _ended(self, ids: Sequence[int]) -> dict[int, End]:
        """Return the ends of these jobs, tasks and arrays. A killed daemon may not have reported
        them to all jobs that wait for them."""
        found = {}
        query = (
            "select events, ended_at from jobs where id = :id"
            " union all select x'', ended_at from arrays where id = :id"
        )
        for job_id in ids:
            row = self._db.execute(query, {"id": job_id}).fetchone()
            lines, at_s = row or (b"", None)
            if lines:
                at_s = records.decode_events(lines)[-1][1].at_s
            if at_s is None:
                (at_s,) = self._db.execute("select max(ended_at) from jobs").fetchone()
            # A job without a row has been removed from the history meanwhile.
            found[job_id] = End(self.outcome(job_id) or Outcome.LOST, at_s or 0.0)
        return found

    def events(self, job_id: int) -> list[ev.Event]:
        """Return the committed events of a job or array in order."""
        job = self.job(job_id)
        with self._db.reported("read"):
            return story(self._db, job_id, None if job is None else job.array_id).events

    def live_bytes(self, uid: int) -> int:
        """Return the bytes stored for the user's live jobs and arrays: submissions and events, and
        some for each job. What several submissions have in common counts once."""
        return self.submissions.live_bytes[uid] + self._bytes[uid]

    def live_bytes_in_total(self) -> int:
        """Return the bytes stored for live jobs and arrays of all users."""
        return self.submissions.live_bytes.total() + self._bytes.total()

    def remove_ended(self, due: deque[tuple[str, int]]) -> None:
        """Remove some of the jobs and arrays that `read_removable` has found, and commit."""
        try:
            self._pruning.remove(due)
            self.commit()
        except HostError:
            self.rollback()
            raise

    def give_back(self) -> bool:
        """Return some unused pages to the file system, and truncate a long log. Returns whether
        there are more pages to return."""
        self._pruning.cut_log(self.path.with_name(f"{self.path.name}-wal"))
        return self._pruning.give_back()

    def mark(self) -> int:
        """Return the number of the last event, or 0."""
        return self._seq

    def changed(
        self, *, after: int, limit: int, user: str | None = None
    ) -> tuple[list[tuple[int, int | None]], int]:
        """Return the first `limit` jobs and arrays whose last event came after `after`, or the
        user's among them, and the number of the last of these events. Each has the id of its array,
        an array its own; they are in the order of their last events."""
        query = (
            "select * from (select seq, id, array_id, user from jobs where seq > :after"
            " order by seq limit :limit) union all select * from (select seq, id, id, user"
            " from arrays where seq > :after order by seq limit :limit) order by 1 limit :limit"
        )
        rows = self._db.rows(query, {"after": after, "limit": limit})
        found = [(job_id, array_id) for _, job_id, array_id, own in rows if user in (None, own)]
        return found, rows[-1][0] if rows else after

    def has_changed(self, job_id: int, *, after: int) -> bool:
        """Return whether an event after `after` is about the job."""
        query = (
            "select 1 from jobs where id = :id and seq > :after"
            " union all select 1 from arrays where id = :id and seq > :after"
        )
        return self._db.row(query, {"id": job_id, "after": after}) is not None

    def job(self, job_id: int) -> Job | None:
        """Return any job or task with a row in the journal, live or ended, or None."""
        row = self._db.row("select data, spec from records where id = ?", (job_id,))
        return None if row is None else records.decode_job(*row)

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
        query = (
            "select data, spec from records where live = 0 and ended_at > ? order by ended_at, id"
        )
        with self._db.reported("read"):
            for row in self._db.execute(query, (at_s,)):
                yield records.decode_job(*row)


def digest(text: str) -> str:
    """Return the digest by which events refer to a text of rules: SHA-256 in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
