"""Long command lines, environments and scripts: each text of one user is stored once.

A user's jobs come from a few shells and repeat a few command lines, so thousands of them have equal
texts. A long command line has a row, and one object in memory, until no job in the journal has it;
an environment or a script has a row until the last live job that has it has ended; then it is kept
for a while in `drfd.journal.past`, for `drf retry`.
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
from drfd.journal.past import PastPayloads
from drfd.journal.records import Payload, StoredWords

#: Length in bytes above which a command line has a row of its own.
INLINE_BYTES = LONG_BYTES
#: Row numbers of environments and scripts that are kept in memory, at most.
_MOST_NUMBERS = 1024


class Commands:
    """The table of long command lines; writes belong to the journal's open transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: Command lines in use in memory, by uid and text, and by row number.
        self._by_text: WeakValueDictionary[tuple[int, bytes], StoredWords] = WeakValueDictionary()
        self._by_number: WeakValueDictionary[int, StoredWords] = WeakValueDictionary()
        #: Bytes of the long command lines of live jobs and arrays, by uid.
        self.live_bytes: Counter[int] = Counter()
        self.count()

    def count(self) -> None:
        """Count again, after a rollback."""
        self._by_text.clear()
        self._by_number.clear()
        query = "select uid, sum(bytes) from commands where live > 0 group by uid"
        self.live_bytes = Counter(dict(self._db.rows(query)))

    def stored(self, spec: JobSpec) -> JobSpec:
        """Store the long command lines of a new job or array, and return its specification.

        They must be released once, when the job is removed.
        """
        with self._db.reported("write"):
            return _mapped(spec, lambda words: self._add(spec.uid, words))

    def find(self, number: int) -> Words:
        """Return the command line with this row number. Raises ValueError if there is none."""
        known = self._by_number.get(number)
        if known is not None:
            return known
        query = "select uid, data from commands join command_lines using (id) where id = ?"
        row = self._db.execute(query, (number,)).fetchone()
        if row is None:
            raise ValueError(f"there is no command line {number}")
        return self._remember(row[0], StoredWords(row[1], number))

    def ended(self, spec: JobSpec) -> None:
        """Count a job or array with this specification as ended; the journal keeps its record."""
        with self._db.reported("write"):
            for words in _long(spec):
                if isinstance(words, StoredWords):
                    query = "update commands set live = live - 1 where id = ? returning live, uid"
                    live, uid = self._db.execute(query, (words.number,)).fetchone()
                    self._count_live(uid, -len(words.data) if live == 0 else 0)

    def release(self, spec: JobSpec) -> int:
        """Release the command lines of a job or array that is removed from the journal.

        `spec` must have been read from the journal. Returns the number of bytes freed.
        """
        freed = 0
        with self._db.reported("write"):
            for words in (spec.argv, None if spec.notify is None else spec.notify.argv):
                if isinstance(words, StoredWords):
                    freed += self._release(words.number)
        return freed

    def _add(self, uid: int, words: Words) -> StoredWords:
        known, data = self._by_text.get((uid, words.data)), words.data
        if known is not None:
            query = (
                "update commands set uses = uses + 1, live = live + 1 where id = ? returning live"
            )
            (live,) = self._db.execute(query, (known.number,)).fetchone()
        else:
            number, uses, live = self._db.execute(
                "insert into commands (uid, digest, bytes, uses, live) values (?, ?, ?, 1, 1)"
                " on conflict (uid, digest, bytes)"
                " do update set uses = uses + 1, live = live + 1 returning id, uses, live",
                (uid, _digest(data), len(data)),
            ).fetchone()
            if uses == 1:
                self._db.execute("insert into command_lines values (?, ?)", (number, data))
            known = self._remember(uid, StoredWords(data, number))
        self._count_live(uid, len(data) if live == 1 else 0)
        return known

    def _remember(self, uid: int, words: StoredWords) -> StoredWords:
        self._by_text[uid, words.data] = self._by_number[words.number] = words
        return words

    def _release(self, number: int) -> int:
        query = "update commands set uses = uses - 1 where id = ? returning uid, bytes, uses"
        uid, size, uses = self._db.execute(query, (number,)).fetchone()
        if uses > 0:
            return 0
        self._db.execute("delete from commands where id = ?", (number,))
        self._db.execute("delete from command_lines where id = ?", (number,))
        words = self._by_number.pop(number, None)
        if words is not None:
            self._by_text.pop((uid, words.data), None)
        return int(size)

    def _count_live(self, uid: int, change: int) -> None:
        self.live_bytes[uid] += change
        if not self.live_bytes[uid]:
            del self.live_bytes[uid]


def _long(spec: JobSpec) -> list[Words]:
    notify = () if spec.notify is None else (spec.notify.argv,)
    return [words for words in (spec.argv, *notify) if len(words.data) > INLINE_BYTES]


def _mapped(spec: JobSpec, change: Callable[[Words], Words]) -> JobSpec:
    """Return the specification with each long command line replaced by `change` of it."""
    if len(spec.argv.data) > INLINE_BYTES:
        spec = structs.replace(spec, argv=change(spec.argv))
    if spec.notify is not None and len(spec.notify.argv.data) > INLINE_BYTES:
        spec = structs.replace(spec, notify=replace(spec.notify, argv=change(spec.notify.argv)))
    return spec


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


_encoder = msgspec.json.Encoder()


class _Refs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a payload: the row numbers of its texts, and its signature."""

    env: int | None = None
    script: int | None = None
    proof: str | None = None


_refs = msgspec.json.Decoder(_Refs)


class Payloads:
    """The tables of payloads and texts; writes belong to the journal's open transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: Row numbers of some stored texts, by uid, digest and length: a user's jobs repeat them.
        self._numbers: dict[tuple[int, bytes, int], int] = {}
        #: Payloads of ended jobs.
        self.past = PastPayloads(db)
        #: Bytes of the stored texts, by uid.
        self.bytes: Counter[int] = Counter()
        self.count()

    def count(self) -> None:
        """Count again, after a rollback."""
        self._numbers.clear()
        query = "select uid, sum(bytes) from texts group by uid"
        self.bytes = Counter(dict(self._db.rows(query)))
        self.past.count()

    def put(self, job_id: int, payload: Payload) -> None:
        """Store the payload of a job or array that has been appended."""
        with self._db.reported("write"):
            uid = self._uid_of(job_id)
            env = self._add(uid, _encoder.encode(payload.env)) if payload.env else None
            script = None if payload.script is None else self._add(uid, payload.script.encode())
            self._db.execute(
                "insert into payloads (job_id, data) values (?, ?)",
                (job_id, _encoder.encode(_Refs(env, script, payload.proof))),
            )

    def get(self, job_id: int) -> Payload:
        """Return the payload; an empty one if the job has none or has ended."""
        with self._db.reported("read"):
            query = "select data from payloads where job_id = ?"
            row = self._db.execute(query, (job_id,)).fetchone()
            if row is None:
                return Payload()
            refs = _refs.decode(row[0])
            env = self._text(refs.env)
            script = self._text(refs.script)
            return Payload(
                env={} if env is None else msgspec.json.decode(env, type=dict[str, str]),
                script=None if script is None else script.decode(),
                proof=refs.proof,
            )

    def end(self, job_id: int, uid: int) -> None:
        """Move the payload of a user's job or array that has ended to those of ended jobs."""
        with self._db.reported("write"):
            query = "delete from payloads where job_id = ? returning data"
            for (data,) in self._db.execute(query, (job_id,)).fetchall():
                refs = _refs.decode(data)
                env, script = (
                    None if number is None else self.past.number_of(uid, *self._head(number))
                    for number in (refs.env, refs.script)
                )
                self.past.add(job_id, uid, env, script, refs.proof)
                for number in (refs.env, refs.script):
                    if number is not None:
                        self._release(number)

    def again(self, job_id: int) -> Payload | None:
        """Return the payload of a live or ended job or array; None if it is not kept any more."""
        row = self._db.row("select 1 from payloads where job_id = ?", (job_id,))
        return self.past.get(job_id) if row is None else self.get(job_id)

    def _head(self, number: int) -> tuple[bytes, int, Callable[[], bytes]]:
        """Return digest and length of a stored text, and a function that reads it."""
        query = "select digest, bytes from texts where id = ?"
        digest, size = self._db.execute(query, (number,)).fetchone()
        return digest, size, lambda: self._text(number) or b""

    def _add(self, uid: int, data: bytes) -> int:
        """Store a text of the user's, once, and return its row number."""
        key = uid, _digest(data), len(data)
        number = self._numbers.get(key)
        if number is None:
            query = "select id from texts where uid = ? and digest = ? and bytes = ?"
            row = self._db.row(query, key)
            number = None if row is None else int(row[0])
        if number is not None:
            self._db.execute("update texts set uses = uses + 1 where id = ?", (number,))
        else:
            query = "insert into texts (uid, digest, bytes, uses, data) values (?, ?, ?, 1, ?)"
            number = self._db.execute(query, (*key, data)).lastrowid
            assert number is not None
            self.bytes[uid] += len(data)
        if len(self._numbers) >= _MOST_NUMBERS:
            self._numbers.clear()
        self._numbers[key] = number
        return number

    def _release(self, number: int) -> None:
        query = "update texts set uses = uses - 1 where id = ? returning uid, bytes, uses, digest"
        uid, size, uses, digest = self._db.execute(query, (number,)).fetchone()
        if uses == 0:
            self._db.execute("delete from texts where id = ?", (number,))
            # The number may be given to another text.
            self._numbers.pop((uid, digest, size), None)
            self.bytes[uid] -= size
            if not self.bytes[uid]:
                del self.bytes[uid]

    def _text(self, number: int | None) -> bytes | None:
        query = "select data from texts where id = ?"
        return None if number is None else bytes(self._db.execute(query, (number,)).fetchone()[0])

    def _uid_of(self, job_id: int) -> int:
        query = (
            "select uid from jobs where id = :id union all select uid from arrays where id = :id"
        )
        return int(self._db.execute(query, {"id": job_id}).fetchone()[0])
