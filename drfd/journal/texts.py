"""Long command lines, environments and scripts: each text of one user is stored once.

A user's jobs come from a few shells and repeat a few command lines, so thousands of them have equal
texts. A long command line is stored, and one object in memory, until no job in the journal has it.
An environment or a script is stored with its job, too, but those of ended jobs, with which their
user may submit them again, count against nobody's budget: the oldest of a user are dropped when
they take more than `MOST_OF_USER_BYTES`, and those of the user who has the most when all together
take more than `MOST_BYTES`.

All writes belong to the journal's open transaction.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

import msgspec
from msgspec import structs

from drfd.core.model.job import LONG_BYTES, JobSpec, Words
from drfd.journal.database import Database
from drfd.journal.records import Payload, StoredWords

#: Bound on the stored bytes of payloads of ended jobs of one user, and of all users.
MOST_OF_USER_BYTES, MOST_BYTES = 8 << 20, 64 << 20
#: Payloads dropped for the end of one job, at most; if that makes too little room, its own goes. A
#: large one may take as much as thousands of others, and a turn may have many ends.
_MOST_DROPPED = 128
#: Bytes that such a payload counts for besides its texts.
ROW_BYTES = 128

#: What the texts are: command lines, or parts of payloads.
_WORDS, _PART = 0, 1


class Texts:
    """The table of texts. Each is in use by a number of jobs, arrays and payloads, of which some
    are live. Methods raise sqlite3.Error."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: Bytes of the texts that are in use by live jobs and arrays, and of the other ones that
        #: are parts of payloads, by uid.
        self.live_bytes: Counter[int] = Counter()
        self.past_bytes: Counter[int] = Counter()
        query = "select uid, live > 0, kind, sum(bytes) from texts group by uid, live > 0, kind"
        for uid, is_live, kind, size in self._db.rows(query):
            self._count(uid, kind, size if is_live else 0, 0 if is_live else size)

    def add(self, uid: int, kind: int, data: bytes) -> int:
        """Store a text of the user's for a live job, and return its number."""
        digest = hashlib.blake2b(data, digest_size=16, salt=bytes([kind])).digest()
        number, uses, live = self._db.execute(
            "insert into texts (uid, kind, digest, bytes, uses, live) values (?, ?, ?, ?, 1, 1)"
            " on conflict (uid, digest, bytes)"
            " do update set uses = uses + 1, live = live + 1 returning id, uses, live",
            (uid, kind, digest, len(data)),
        ).fetchone()
        if uses == 1:
            self._db.execute("insert into text_data values (?, ?)", (number, data))
        if live == 1:
            self._count(uid, kind, len(data), -len(data) if uses > 1 else 0)
        return int(number)

    def end(self, number: int | None) -> None:
        """Count the job of a use as ended."""
        if number is None:
            return
        query = "update texts set live = live - 1 where id = ? returning uid, kind, bytes, live"
        uid, kind, size, live = self._db.execute(query, (number,)).fetchone()
        if live == 0:
            self._count(uid, kind, -size, size)

    def release(self, number: int | None) -> int:
        """Remove a use of which the job has ended. Returns the number of bytes freed."""
        if number is None:
            return 0
        query = "update texts set uses = uses - 1 where id = ? returning uid, kind, bytes, uses"
        uid, kind, size, uses = self._db.execute(query, (number,)).fetchone()
        if uses:
            return 0
        for table in ("texts", "text_data"):
            # Only constants of this module are put into the statement.
            self._db.execute(f"delete from {table} where id = ?", (number,))  # noqa: S608
        self._count(uid, kind, 0, -size)
        return int(size)

    def read(self, number: int | None) -> bytes | None:
        query = "select data from text_data where id = ?"
        row = self._db.execute(query, (number,)).fetchone()
        return None if row is None else bytes(row[0])

    def _count(self, uid: int, kind: int, live: int, past: int) -> None:
        add_to(self.live_bytes, uid, live)
        if kind == _PART:
            add_to(self.past_bytes, uid, past)


def add_to(counts: Counter[int], uid: int, change: int) -> None:
    """Add to a user's count, which is absent where it is zero."""
    counts[uid] += change
    if not counts[uid]:
        del counts[uid]


class CommandLines:
    """Long command lines."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        #: Command lines in use in memory, by number.
        self._known: WeakValueDictionary[int, StoredWords] = WeakValueDictionary()

    def stored(self, spec: JobSpec) -> JobSpec:
        """Store the long command lines of a new job or array, and return its specification. They
        must be released once, when the job is removed."""

        def store(words: Words) -> StoredWords:
            number = self._texts.add(spec.uid, _WORDS, words.data)
            return self._known.get(number) or self._remember(StoredWords(words.data, number))

        return _mapped(spec, store)

    def find(self, number: int) -> Words:
        """Return the command line with this number. Raises ValueError if there is none."""
        known = self._known.get(number)
        if known is not None:
            return known
        data = self._texts.read(number)
        if data is None:
            raise ValueError(f"there is no command line {number}")
        return self._remember(StoredWords(data, number))

    def ended(self, spec: JobSpec) -> None:
        """Count a job or array with this specification as ended; the journal keeps its record."""
        for words in _stored(spec):
            self._texts.end(words.number)

    def release(self, spec: JobSpec) -> int:
        """Release the command lines of a job or array that is removed from the journal. `spec` must
        have been read from the journal. Returns the number of bytes freed."""
        return sum(self._texts.release(words.number) for words in _stored(spec))

    def _remember(self, words: StoredWords) -> StoredWords:
        self._known[words.number] = words
        return words


def _stored(spec: JobSpec) -> list[StoredWords]:
    notify = () if spec.notify is None else (spec.notify.argv,)
    return [words for words in (spec.argv, *notify) if isinstance(words, StoredWords)]


def _mapped(spec: JobSpec, change: Callable[[Words], Words]) -> JobSpec:
    """Return the specification with each long command line replaced by `change` of it."""
    if len(spec.argv.data) > LONG_BYTES:
        spec = structs.replace(spec, argv=change(spec.argv))
    if spec.notify is not None and len(spec.notify.argv.data) > LONG_BYTES:
        spec = structs.replace(spec, notify=replace(spec.notify, argv=change(spec.notify.argv)))
    return spec


class Payloads:
    """Environments, scripts and signatures of jobs and arrays."""

    def __init__(self, db: Database, texts: Texts) -> None:
        self._db, self._texts = db, texts
        query = f"select uid, {ROW_BYTES} * count(*) from payloads where live = 0 group by uid"  # noqa: S608
        #: Bytes of the rows of ended jobs and arrays, by uid.
        self._row_bytes: Counter[int] = Counter(dict(db.rows(query)))

    @property
    def past_bytes(self) -> Counter[int]:
        """Bytes of payloads of ended jobs and arrays, by uid."""
        return self._row_bytes + self._texts.past_bytes

    def put(self, job_id: int, uid: int, payload: Payload) -> None:
        """Store the payload of this user's job or array."""
        with self._db.reported("write"):
            env = msgspec.json.encode(payload.env) if payload.env else None
            script = None if payload.script is None else payload.script.encode()
            numbers = [
                None if data is None else self._texts.add(uid, _PART, data)
                for data in (env, script)
            ]
            query = "insert into payloads values (?, ?, 1, ?, ?, ?)"
            self._db.execute(query, (job_id, uid, *numbers, payload.proof))

    def get(self, job_id: int) -> Payload | None:
        """Return the payload of a live or ended job or array; None if there is none, or it is not
        kept any more."""
        with self._db.reported("read"):
            query = (
                "select envs.data, scripts.data, proof from payloads"
                " left join text_data as envs on envs.id = env"
                " left join text_data as scripts on scripts.id = script where job_id = ?"
            )
            row = self._db.execute(query, (job_id,)).fetchone()
            if row is None:
                return None
            env, script, proof = row
            return Payload(
                env={} if env is None else msgspec.json.decode(env, type=dict[str, str]),
                script=None if script is None else script.decode(),
                proof=proof,
            )

    def end(self, job_id: int) -> None:
        """Keep the payload of a job or array that has ended for its user's next one."""
        with self._db.reported("write"):
            query = "update payloads set live = 0 where job_id = ? returning uid, env, script"
            for uid, env, script in self._db.execute(query, (job_id,)).fetchall():
                self._texts.end(env)
                self._texts.end(script)
                self._row_bytes[uid] += ROW_BYTES
                dropped = 0
                while (has_too_much := self._has_too_much(uid)) is not None:
                    if dropped == _MOST_DROPPED:
                        self.drop(job_id)
                        break
                    self._drop_oldest(has_too_much)
                    dropped += 1

    def _has_too_much(self, uid: int) -> int | None:
        """Return whose oldest payload is to be dropped after an end of this user's, or None."""
        if self._row_bytes[uid] + self._texts.past_bytes[uid] > MOST_OF_USER_BYTES:
            return uid
        if self._row_bytes.total() + self._texts.past_bytes.total() > MOST_BYTES:
            return self.past_bytes.most_common(1)[0][0]
        return None

    def drop(self, job_id: int) -> None:
        """Remove the payload of an ended job or array. Raises sqlite3.Error."""
        query = "delete from payloads where job_id = ? returning uid, env, script"
        for uid, env, script in self._db.execute(query, (job_id,)).fetchall():
            self._texts.release(env)
            self._texts.release(script)
            add_to(self._row_bytes, uid, -ROW_BYTES)

    def _drop_oldest(self, uid: int) -> None:
        query = "select job_id from payloads where live = 0 and uid = ? order by job_id limit 1"
        self.drop(self._db.execute(query, (uid,)).fetchone()[0])
