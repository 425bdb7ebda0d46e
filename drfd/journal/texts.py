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
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

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

    def bytes_with(self, uid: int, spec: JobSpec) -> int:
        """Return the bytes of the user's long command lines if this job were added."""
        new = {words.data: len(words.data) for words in _long(spec)}
        query = "select live from commands where uid = ? and digest = ? and bytes = ?"
        for data in list(new):
            row = self._db.row(query, (uid, _digest(data), len(data)))
            if row is not None and row[0] > 0:
                del new[data]
        return self.live_bytes[uid] + sum(new.values())

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
        spec = replace(spec, argv=change(spec.argv))
    if spec.notify is not None and len(spec.notify.argv.data) > INLINE_BYTES:
        spec = replace(spec, notify=replace(spec.notify, argv=change(spec.notify.argv)))
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


class _Text(NamedTuple):
    data: bytes
    digest: bytes

    @classmethod
    def of(cls, data: bytes) -> _Text:
        return cls(data, _digest(data))


class _Texts(NamedTuple):
    """What is stored of a payload apart from it; None for what it does not have."""

    env: _Text | None
    script: _Text | None


class Payloads:
    """The tables of payloads and texts; writes belong to the journal's open transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: Row numbers of some stored texts, by uid, digest and length: a user's jobs repeat them.
        self._numbers: dict[tuple[int, bytes, int], int] = {}
        #: The payload that was encoded last and is not stored yet, and its texts.
        self._encoded: tuple[Payload, _Texts] | None = None
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

    def bytes_with(self, uid: int, payload: Payload) -> int:
        """Return the bytes of the user's texts if this payload were added."""
        texts = self._texts(payload)
        new = sum(
            len(text.data)
            for text in (texts.env, texts.script)
            if text is not None and self._number(uid, text) is None
        )
        return self.bytes[uid] + new

    def put(self, job_id: int, payload: Payload) -> None:
        """Store the payload of a job or array that has been appended."""
        with self._db.reported("write"):
            uid = self._uid_of(job_id)
            texts, self._encoded = self._texts(payload), None
            env = None if texts.env is None else self._add(uid, texts.env)
            script = None if texts.script is None else self._add(uid, texts.script)
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

    def _texts(self, payload: Payload) -> _Texts:
        """Return the texts of a payload, encoded once for all who ask before it is stored."""
        if self._encoded is None or self._encoded[0] is not payload:
            env = _Text.of(_encoder.encode(payload.env)) if payload.env else None
            script = None if payload.script is None else _Text.of(payload.script.encode())
            self._encoded = payload, _Texts(env, script)
        return self._encoded[1]

    def _number(self, uid: int, text: _Text) -> int | None:
        """Return the row number of a text of the user's, or None if it is not stored."""
        number = self._numbers.get((uid, text.digest, len(text.data)))
        if number is None:
            query = "select id from texts where uid = ? and digest = ? and bytes = ?"
            row = self._db.row(query, (uid, text.digest, len(text.data)))
            number = None if row is None else self._remember(uid, text, row[0])
        return number

    def _remember(self, uid: int, text: _Text, number: int) -> int:
        if len(self._numbers) >= _MOST_NUMBERS:
            self._numbers.clear()
        self._numbers[uid, text.digest, len(text.data)] = number
        return number

    def _add(self, uid: int, text: _Text) -> int:
        number = self._number(uid, text)
        if number is not None:
            self._db.execute("update texts set uses = uses + 1 where id = ?", (number,))
            return number
        size = len(text.data)
        query = "insert into texts (uid, digest, bytes, uses, data) values (?, ?, ?, 1, ?)"
        new = self._db.execute(query, (uid, text.digest, size, text.data)).lastrowid
        assert new is not None
        self.bytes[uid] += size
        return self._remember(uid, text, new)

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
