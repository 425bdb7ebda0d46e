"""Environments and scripts of jobs that are not over, each text of one user once.

The jobs of a user come from a few shells, so thousands of them have the same environment.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import msgspec

from drfd.journal.records import Payload, decode_payload

_encoder = msgspec.json.Encoder()


class _Refs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands in the place of a payload: the numbers of its texts. In older journals it is the
    payload itself."""

    env: int | dict[str, str] | None = None
    script: int | str | None = None

    @property
    def numbers(self) -> list[int]:
        return [each for each in (self.env, self.script) if isinstance(each, int)]


_refs = msgspec.json.Decoder(_Refs)


class Payloads:
    """Writes inside the journal's open transaction."""

    def __init__(
        self, db: sqlite3.Connection, reported: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """`reported`: the journal's own way to complain; the word says what could not be done."""
        self._db = db
        self._reported = reported
        #: How long the texts of each user are together.
        self._bytes: Counter[int] = Counter()
        self.count()

    def count(self) -> None:
        """Anew, after what was written has been taken back."""
        with self._reported("read"):
            query = "select uid, sum(bytes) from texts group by uid"
            self._bytes = Counter(dict(self._db.execute(query)))

    def bytes_with(self, uid: int, payload: Payload) -> int:
        """How long the texts of the user would be together if this came to them."""
        new = 0
        with self._reported("read"):
            for text in _texts(payload):
                query = "select 1 from texts where uid = ? and digest = ? and bytes = ?"
                if not self._db.execute(query, (uid, _digest(text), len(text))).fetchone():
                    new += len(text)
        return self._bytes[uid] + new

    def put(self, job_id: int, payload: Payload) -> None:
        """Of a job, or an array, that has been entered."""
        with self._reported("write"):
            uid = self._uid_of(job_id)
            env = self._add(uid, _env_text(payload)) if payload.env else None
            script = None if payload.script is None else self._add(uid, payload.script.encode())
            self._db.execute(
                "insert into payloads (job_id, data) values (?, ?)",
                (job_id, _encoder.encode(_Refs(env, script))),
            )

    def get(self, job_id: int) -> Payload:
        """An empty one if it has none, or is over."""
        with self._reported("read"):
            query = "select data from payloads where job_id = ?"
            row = self._db.execute(query, (job_id,)).fetchone()
            if row is None:
                return Payload()
            refs = _refs.decode(row[0])
            if not refs.numbers:
                return decode_payload(row[0])
            env = self._text(refs.env)
            script = self._text(refs.script)
            return Payload(
                env={} if env is None else msgspec.json.decode(env, type=dict[str, str]),
                script=None if script is None else script.decode(),
            )

    def drop(self, job_id: int) -> None:
        """Its job, or the last task of its array, is over."""
        with self._reported("write"):
            query = "delete from payloads where job_id = ? returning data"
            for (data,) in self._db.execute(query, (job_id,)).fetchall():
                for number in _refs.decode(data).numbers:
                    self._release(number)

    def _add(self, uid: int, text: bytes) -> int:
        number, uses = self._db.execute(
            "insert into texts (uid, digest, bytes, uses, data) values (?, ?, ?, 1, ?)"
            " on conflict (uid, digest, bytes) do update set uses = uses + 1 returning id, uses",
            (uid, _digest(text), len(text), text),
        ).fetchone()
        if uses == 1:
            self._bytes[uid] += len(text)
        return int(number)

    def _release(self, number: int) -> None:
        query = "update texts set uses = uses - 1 where id = ? returning uid, bytes, uses"
        uid, size, uses = self._db.execute(query, (number,)).fetchone()
        if uses == 0:
            self._db.execute("delete from texts where id = ?", (number,))
            self._bytes[uid] -= size
            if not self._bytes[uid]:
                del self._bytes[uid]

    def _text(self, number: object) -> bytes | None:
        query = "select data from texts where id = ?"
        return None if number is None else bytes(self._db.execute(query, (number,)).fetchone()[0])

    def _uid_of(self, job_id: int) -> int:
        query = (
            "select uid from jobs where id = :id union all select uid from arrays where id = :id"
        )
        return int(self._db.execute(query, {"id": job_id}).fetchone()[0])


def _texts(payload: Payload) -> Iterable[bytes]:
    if payload.env:
        yield _env_text(payload)
    if payload.script is not None:
        yield payload.script.encode()


def _env_text(payload: Payload) -> bytes:
    return _encoder.encode(payload.env)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
