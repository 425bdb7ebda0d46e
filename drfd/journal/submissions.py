"""What users have signed of their jobs and arrays, stored as it was signed.

The launcher gets these bytes for each launch. The part that jobs have in common (see
`drfd.payload.pack`) is a blob, which is stored once for all of a user's jobs that have it, by its
digest. The rest stays as long as the job, but for a long one, which is a part of the blob: the
commands of ended jobs could fill the disk. A blob of ended jobs, with which their user may submit
them again, counts against nobody's budget: those of a user that ended first are dropped when they
take more than `MOST_OF_USER_BYTES`, and those of the user who has the most when all together take
more than `MOST_BYTES`. They are counted in memory, where an end writes nothing for it. Triggers of
the schema remove a blob with the last job that names it. The first event of a job or array, with
its specification, stands in the same row.

All writes belong to the journal's open transaction.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

from drfd.core.model import events as ev
from drfd.journal import records
from drfd.journal.files import Database
from drfd.payload import unpack

#: Bound on the bytes of blobs of ended jobs of one user, and of all users.
MOST_OF_USER_BYTES, MOST_BYTES = 8 << 20, 64 << 20
#: Bytes that each of these counts as at least: of so many each is in a table in memory.
_LEAST_BYTES = 1 << 10
#: Bytes that a job has for itself at most, beside its blob.
_MOST_OWN_BYTES = 4 << 10
#: Blobs dropped for the end of one job, at most; if that makes too little room, its own goes. A
#: large one may take as much as thousands of others, and a turn may have many ends.
_MOST_DROPPED = 128
#: Tells this connection of every blob that is removed, also with old jobs.
_TELL = """
    create temp trigger if not exists blob_gone after delete on blobs
    begin select forget_blob(old.uid, old.id); end
"""


class Payload(NamedTuple):
    """The bytes of a submission; never shown, never logged."""

    #: Up to the arguments; stored in the other part if it is long.
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

    def __init__(self, db: Database, live: Counter[int]) -> None:
        """`live` has how many live jobs and arrays name each blob, by its id."""
        self._db, self._live = db, live
        #: Bytes of the blobs that live jobs and arrays name, by uid.
        self.live_bytes = Counter[int]()
        #: Bytes of each other blob by uid and id, those that ended first before the others, and the
        #: sums by uid.
        self._past: dict[int, dict[int, int]] = {}
        self._past_bytes = Counter[int]()
        for uid, blob, size in db.rows("select uid, id, bytes from blobs order by id"):
            if blob in live:
                self.live_bytes[uid] += size
            else:
                self._keep(uid, blob, size)
        db.create_function("forget_blob", 2, self._forget)
        with db.reported("open"):
            db.execute(_TELL)

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
            if len(own) > _MOST_OWN_BYTES:
                own, shared = b"", own + shared
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
        query = "update blobs set uses = uses + 1 where uid = ? and digest = ? returning id"
        row = self._db.execute(query, (uid, digest)).fetchone()
        if row is None:
            query = "insert into blobs (uid, digest, bytes, uses) values (?, ?, ?, 1) returning id"
            row = self._db.execute(query, (uid, digest, len(data))).fetchone()
            self._db.execute("insert into blob_data values (?, ?)", (row[0], data))
        blob = int(row[0])
        if not self._live[blob]:
            self._forget(uid, blob)
            self.live_bytes[uid] += len(data)
        self._live[blob] += 1
        return blob

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
            "select blobs.uid, blobs.id, bytes from submissions join blobs on blobs.id = blob"
            " where job_id = ?"
        )
        for uid, blob, size in self._db.execute(query, (job_id,)).fetchall():
            self._live[blob] -= 1
            if self._live[blob]:
                continue
            del self._live[blob]
            self.live_bytes[uid] -= size
            self._keep(uid, blob, size)
            for _ in range(_MOST_DROPPED):
                whose = self._who_has_too_much(uid)
                if whose is None:
                    return
                self._drop(next(iter(self._past[whose])))
            if self._who_has_too_much(uid) is not None:
                self._drop(blob)

    def _keep(self, uid: int, blob: int, size: int) -> None:
        """Count a blob that no live job names."""
        self._past.setdefault(uid, {})[blob] = counted = max(size, _LEAST_BYTES)
        self._past_bytes[uid] += counted

    def _drop(self, blob: int) -> None:
        self._db.execute("delete from blobs where id = ?", (blob,))

    def _forget(self, uid: int, blob: int) -> None:
        """Count a blob no more as one that no live job names."""
        self._past_bytes[uid] -= self._past.get(uid, {}).pop(blob, 0)

    def _who_has_too_much(self, uid: int) -> int | None:
        """Return whose oldest blob is to be dropped after an end of this user's, or None."""
        if self._past_bytes[uid] > MOST_OF_USER_BYTES:
            return uid
        if self._past_bytes.total() > MOST_BYTES:
            return max(self._past_bytes, key=self._past_bytes.__getitem__)
        return None
