"""Environments, scripts and signatures of ended jobs, with which their user may submit them again.

They are kept apart from those of live jobs, because they count against nobody's budget: the oldest
of a user are dropped when they take more than `MOST_OF_USER_BYTES`, and those of the user who has
the most when all together take more than `MOST_BYTES`. They go with their job at the latest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from drfd.journal.database import Database
from drfd.journal.records import Payload

#: Bound on the stored bytes of ended jobs of one user, and of all users.
MOST_OF_USER_BYTES, MOST_BYTES = 8 << 20, 64 << 20
#: Bytes that a row counts for besides its texts.
ROW_BYTES = 128
#: Row numbers of texts that are kept in memory, at most.
_MOST_NUMBERS = 1024


class PastPayloads:
    """The tables of payloads of ended jobs; writes belong to the journal's open transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: Row numbers of some stored texts, by uid, digest and length.
        self._numbers: dict[tuple[int, bytes, int], int] = {}
        #: Bytes of texts and rows, by uid.
        self.bytes: Counter[int] = Counter()
        self.count()

    def count(self) -> None:
        """Count again, after a rollback."""
        self._numbers.clear()
        self.bytes = Counter(dict(self._db.rows(BYTES_BY_UID)))

    def add(
        self, job_id: int, uid: int, env: int | None, script: int | None, proof: str | None
    ) -> None:
        """Keep the payload of a job or array that has ended; `env` and `script` are numbers that
        `number_of` has given for it. Raises sqlite3.Error."""
        query = "insert into past_payloads values (?, ?, ?, ?, ?)"
        self._db.execute(query, (job_id, uid, env, script, proof))
        self.bytes[uid] += ROW_BYTES
        while self.bytes[uid] > MOST_OF_USER_BYTES:
            self._drop_oldest(uid)
        while self.bytes.total() > MOST_BYTES:
            self._drop_oldest(self.bytes.most_common(1)[0][0])

    def get(self, job_id: int) -> Payload | None:
        """Return the payload of an ended job or array, or None if it is not kept."""
        with self._db.reported("read"):
            query = "select env, script, proof from past_payloads where job_id = ?"
            row = self._db.execute(query, (job_id,)).fetchone()
            if row is None:
                return None
            env, script = map(self._text, row[:2])
            return Payload(
                env={} if env is None else msgspec.json.decode(env, type=dict[str, str]),
                script=None if script is None else script.decode(),
                proof=row[2],
            )

    def drop(self, job_id: int) -> None:
        """Remove the payload of a job that is removed. Raises sqlite3.Error."""
        query = "delete from past_payloads where job_id = ? returning uid, env, script"
        for uid, *numbers in self._db.execute(query, (job_id,)).fetchall():
            for number in numbers:
                if number is not None:
                    self._release(number)
            self._count(uid, -ROW_BYTES)

    def _drop_oldest(self, uid: int) -> None:
        query = "select job_id from past_payloads where uid = ? order by job_id limit 1"
        self.drop(self._db.execute(query, (uid,)).fetchone()[0])

    def number_of(self, uid: int, digest: bytes, size: int, read: Callable[[], bytes]) -> int:
        """Store a text of the user's, or count another use, and return its row number. `read`
        returns the text, and is called if it is not stored yet. Raises sqlite3.Error."""
        key = uid, digest, size
        number = self._numbers.get(key)
        if number is None:
            query = "select id from past_texts where uid = ? and digest = ? and bytes = ?"
            row = self._db.execute(query, key).fetchone()
            number = None if row is None else row[0]
        if number is not None:
            self._db.execute("update past_texts set uses = uses + 1 where id = ?", (number,))
        else:
            query = "insert into past_texts (uid, digest, bytes, uses, data) values (?, ?, ?, 1, ?)"
            number = self._db.execute(query, (*key, read())).lastrowid
            self.bytes[uid] += size
        assert number is not None
        if len(self._numbers) >= _MOST_NUMBERS:
            self._numbers.clear()
        self._numbers[key] = number
        return number

    def _release(self, number: int) -> None:
        query = (
            "update past_texts set uses = uses - 1 where id = ? returning uid, bytes, uses, digest"
        )
        uid, size, uses, digest = self._db.execute(query, (number,)).fetchone()
        if uses == 0:
            self._db.execute("delete from past_texts where id = ?", (number,))
            # The number may be given to another text.
            self._numbers.pop((uid, digest, size), None)
            self._count(uid, -size)

    def _count(self, uid: int, change: int) -> None:
        self.bytes[uid] += change
        if not self.bytes[uid]:
            del self.bytes[uid]

    def _text(self, number: object) -> bytes | None:
        query = "select data from past_texts where id = ?"
        return None if number is None else bytes(self._db.execute(query, (number,)).fetchone()[0])


#: Bytes of texts and rows of each user. Only a constant is put into the statement.
BYTES_BY_UID = f"""
    select uid, sum(bytes) from (
        select uid, bytes from past_texts
        union all
        select uid, {ROW_BYTES} * count(*) from past_payloads group by uid
    ) group by uid
"""  # noqa: S608
