"""What users have signed of their jobs and arrays, stored as it was signed.

The launcher gets these bytes for each launch. The part that jobs have in common (see
`drfd.payload.pack`) is a blob, which is stored once for all of a user's jobs that have it, by its
digest. A blob of ended jobs, with which their user may submit them again, counts against nobody's
budget: the oldest of a user are dropped when they take more than `MOST_OF_USER_BYTES`, and those of
the user who has the most when all together take more than `MOST_BYTES`. Triggers of the schema
count these, and remove a blob with the last job that names it. The first event of a job or array,
with its specification, stands in the same row.

All writes belong to the journal's open transaction.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

from drfd.core.model import events as ev
from drfd.journal import records
from drfd.journal.database import Database
from drfd.payload import unpack

#: Bound on the bytes of blobs of ended jobs of one user, and of all users.
MOST_OF_USER_BYTES, MOST_BYTES = 8 << 20, 64 << 20
#: Blobs dropped for the end of one job, at most; if that makes too little room, its own goes. A
#: large one may take as much as thousands of others, and a turn may have many ends.
_MOST_DROPPED = 128
#: In place of a uid: the sum of all users.
_ALL = -1


class Payload(NamedTuple):
    """The bytes of a submission; never shown, never logged."""

    own: bytes = b""
    #: None if it is not kept any more.
    shared: bytes | None = b""
    #: Signature by which the launcher verifies them; see `drfd.payload.signature`.
    proof: str | None = None
    #: The key by which a client may repeat its submission.
    key: str | None = None

    @property
    def data(self) -> bytes:
        return self.own + (self.shared or b"")

    def content(self) -> unpack.LaunchPayload:
        return unpack.decode(self.data)


class StoredSubmissions:
    """The tables of submissions and blobs. Methods raise HostError."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: Bytes of the blobs that live jobs and arrays name, by uid.
        self.live_bytes = Counter[int](
            dict(db.rows("select uid, sum(bytes) from blobs where live group by uid"))
        )

    def add(
        self,
        job_id: int,
        seq: int,
        event: ev.Submitted | ev.ArraySubmitted,
        payload: Payload | None,
    ) -> int:
        """Store the first event of a job or array, which has this number, and what was signed of
        it. Return the bytes of what it shares with no other."""
        uid, blob = event.spec.uid, None
        own, proof, key = None, None, None
        if payload is not None:
            own, shared, proof, key = payload
            assert shared is not None
            blob = self._name_blob(uid, shared)
        head, spec = records.without_spec(event), records.encode(event.spec)
        self._db.execute(
            "insert into submissions (job_id, uid, seq, key, proof, blob, event, spec, own)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (job_id, uid, seq, key, proof, blob, head, spec, own),
        )
        if event.spec.again is not None:
            query = "insert or ignore into repeats values (?, ?)"
            self._db.execute(query, (event.spec.again.of, job_id))
        return len(head) + len(spec) + len(own or b"")

    def _name_blob(self, uid: int, data: bytes) -> int:
        """Return the id of the user's blob with these data, which one more live job names."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        blob, uses, live = self._db.execute(
            "insert into blobs (uid, digest, bytes, uses, live) values (?, ?, ?, 1, 1)"
            " on conflict (uid, digest) do update set uses = uses + 1, live = live + 1"
            " returning id, uses, live",
            (uid, digest, len(data)),
        ).fetchone()
        if uses == 1:
            self._db.execute("insert into blob_data values (?, ?)", (blob, data))
        if live == 1:
            self.live_bytes[uid] += len(data)
        return int(blob)

    def get(self, job_id: int) -> Payload | None:
        """Return what was signed of a live or ended job or array, or None."""
        query = (
            "select own, data, proof from submissions left join blob_data on id = blob"
            " where job_id = ? and own is not null"
        )
        row = self._db.row(query, (job_id,))
        return None if row is None else Payload(*row)

    def job_of(self, uid: int, key: str) -> int | None:
        """Return the job of the last submission with this key, or None. It may be that of another
        account that had the same uid."""
        query = "select max(job_id) from submissions where uid = ? and key = ?"
        job_id: int | None = self._db.row(query, (uid, key))[0]
        return job_id

    def end(self, job_id: int) -> None:
        """Keep the submission of a job or array that has ended for its user's next one."""
        query = (
            "update blobs set live = live - 1 where id = (select blob from submissions"
            " where job_id = ?) returning uid, id, live, bytes"
        )
        for uid, blob, live, size in self._db.execute(query, (job_id,)).fetchall():
            if live:
                continue
            self.live_bytes[uid] -= size
            for _ in range(_MOST_DROPPED):
                has_too_much = self._has_too_much(uid)
                if has_too_much is None:
                    return
                self._db.execute(
                    "delete from blobs where id ="
                    " (select id from blobs where uid = ? and live = 0 order by id limit 1)",
                    (has_too_much,),
                )
            if self._has_too_much(uid) is not None:
                self._db.execute("delete from blobs where id = ?", (blob,))

    def _has_too_much(self, uid: int) -> int | None:
        """Return whose oldest blob is to be dropped after an end of this user's, or None."""
        query = "select bytes from past_blobs where uid in (?, ?) order by uid"
        (in_total,), (own,) = self._db.execute(query, (_ALL, uid)).fetchall()
        if own > MOST_OF_USER_BYTES:
            return uid
        if in_total > MOST_BYTES:
            query = "select uid from past_blobs where uid != ? order by bytes desc limit 1"
            return int(self._db.execute(query, (_ALL,)).fetchone()[0])
        return None
