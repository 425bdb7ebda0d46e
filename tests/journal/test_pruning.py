"""The journal keeps what it must when it is pruned, and when its writer is killed at any moment."""

import random
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.resources import Axes
from drfd.journal.journal import MOST_BYTES
from drfd.journal.pruning import ROWS
from drfd.journal.records import FIRST
from fakes import ALICE, BOB, all_events, happened, payload, tables
from journal.book import LONG, goes


def count(path: Path, what: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"select count(*) from {what}").fetchone()[0])


def test_ids_and_marks_never_go_back(book, open_journal):
    """Also if the newest job has been removed, and the one with the last event."""
    for job_id in (1, 2, 3, 4):
        book.live_and_end(job_id, at_s=float(job_id))
    book.submit(5, at_s=5.0)
    book.submit(6, at_s=6.0)
    book.cancel(6, at_s=7.0)
    book.cancel(5, at_s=8.0)
    book.journal.commit()
    mark, next_id = book.journal.mark(), book.ledger.next_id
    book.prune(before_s=1e12)
    assert [each for each in range(1, 7) if book.journal.job(each)] == []
    again = open_journal()
    assert (again.mark(), again.load(Axes()).next_id) == (mark, next_id)
    book.submit_array(7, 4)
    book.cancel(7, at_s=9.0)
    book.journal.commit()
    book.prune(before_s=1e12)
    again = open_journal()
    assert (again.mark(), again.load(Axes()).next_id) == (mark + 5, 12)


def test_what_lives_stays_whatever_its_age(book, path):
    book.submit(1, at_s=1.0)
    book.live_and_end(2, at_s=2.0)
    book.live_and_end(3, at_s=3.0)
    book.prune(before_s=1e12)
    assert tables(book.journal.load(Axes())) == tables(book.ledger)
    assert count(path, "submissions") == 1


def test_an_array_goes_as_a_whole_when_its_last_task_is_old_enough(book, path):
    """Without its array, a task that has no record would be nobody; without the records of its
    tasks, an array would take them for such."""
    book.submit_array(1, 4, command=LONG, signed=payload({"A": "b"}))
    for job_id in (2, 3):
        book.cancel(job_id, at_s=float(job_id))
    book.live_and_end(6, at_s=3.5)
    book.live_and_end(7, at_s=3.6)
    book.journal.commit()
    book.prune(before_s=10.0)
    assert (count(path, "arrays"), count(path, "jobs")) == (1, 2)
    assert tables(book.journal.load(Axes())) == tables(book.ledger)
    book.cancel(1, at_s=20.0)
    book.live_and_end(8, at_s=21.0)
    book.prune(before_s=15.0)
    assert (count(path, "arrays"), count(path, "jobs")) == (1, 5)
    book.prune(before_s=20.5)
    assert (count(path, "arrays"), count(path, "jobs")) == (0, 1)
    assert count(path, "submissions") == count(path, "blobs where uses = 1") == 1


def test_a_go_is_short_also_where_all_must_be_passed_over(book, path):
    """All ended tasks of an array that goes on were looked at in one go, hundreds of thousands, and
    nobody else was served meanwhile."""
    book.submit_array(1, 2000, actor=BOB)
    book.cancel(*range(2, 2001), at_s=2.0)
    for job_id in range(2002, 2302):
        book.live_and_end(job_id, at_s=3.0, actor=BOB)
    assert book.prune(1e12) == [ROWS, ROWS, ROWS]
    assert count(path, "jobs where id > 2001") == 0
    assert count(path, "jobs where id <= 2001") == 1999


def test_of_one_user_with_too_many(book, path):
    for job_id in range(1, 40):
        book.live_and_end(job_id, at_s=float(job_id), actor=BOB if job_id % 10 == 0 else ALICE)
    assert sum(book.prune(0.0, 3)) == 33
    assert [each for each in range(1, 40) if book.journal.job(each)] == [10, 20, 30, 37, 38, 39]
    assert sum(book.prune(38.5, 2)) == 5
    assert [each for each in range(1, 40) if book.journal.job(each)] == [39]


@pytest.mark.slow
def test_the_file_gets_shorter(book, path):
    """By what was removed, while the journal is in use."""
    for job_id in range(1, 400):
        signed = payload({"A": f"{job_id} " * 5000})
        book.live_and_end(job_id, at_s=float(job_id), signed=signed)
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)").fetchone()
    before = path.stat().st_size
    assert before > 7 << 20
    book.prune(before_s=1e12)
    for _ in range(1000):
        if not book.journal.give_back():
            break
    log = path.with_name(f"{path.name}-wal")
    assert path.stat().st_size + log.stat().st_size < before / 3


def test_of_drains_the_newest_stays(book, path):
    for number in range(5):
        book.enter(ev.Drained(at_s=100.0 * number, on=number % 2 == 0, by="root"))
    book.live_and_end(1, at_s=900.0)
    book.prune(before_s=350.0)
    assert [event.at_s for event in all_events(book.journal)] == [400.0, 900.0, 900.0]
    assert book.journal.load(Axes()).draining


def test_a_failed_go_takes_nothing_away(book):
    for job_id in (1, 2, 3):
        book.live_and_end(job_id, at_s=float(job_id))

    book.journal._db.execute(
        "create temp trigger fail before delete on jobs when old.id = 2"
        " begin select raise(abort, 'disk I/O error'); end"
    )
    with pytest.raises(HostError, match="cannot write the journal"):
        book.prune(before_s=10.0)
    book.journal._db.execute("drop trigger fail")
    assert book.journal.job(1) is not None
    assert len(all_events(book.journal)) == 6
    book.prune(before_s=2.5)
    assert book.journal.job(1) is None


def test_what_has_happened_to_its_attempts_stays_while_there_is_else_to_give_up(book, path):
    """And a stream of changes goes on from its mark over what was given up."""
    book.submit(1)
    marks = []
    for number in range(1000):
        book.enter(happened(ev.Altered, priority=number))
        book.journal.commit()
        marks.append(book.journal.mark())
        if number == 100:
            book.enter(happened(ev.Admitted), happened(ev.Launched))
    assert marks == [*range(2, 103), *range(105, 1004)]
    for _ in range(1000):
        book.enter(happened(ev.SignalRequested))
        book.journal.commit()
    kinds = Counter(type(event) for event in book.journal.events(1))
    assert (kinds[ev.Submitted], kinds[ev.Admitted], kinds[ev.Launched]) == (1, 1, 1)
    assert kinds[ev.Altered] == FIRST
    with closing(sqlite3.connect(path)) as db:
        ((size, dropped),) = db.execute("select length(events), dropped from jobs")
    assert size <= MOST_BYTES
    assert dropped + kinds.total() == 2003


# -- SIGKILL at any moment: what was acknowledged is there, whole ------------------------------


#: How both programs below begin.
OPEN = """
import sys
from msgspec.structs import replace
from pathlib import Path
from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec, command_text
from drfd.core.model.resources import Axes, Resources
from drfd.journal.journal import Journal
from drfd.journal.pruning import read_removable
from drfd.journal.submissions import Payload

journal = Journal(Path(sys.argv[1]))
ledger = journal.load(Axes())
spec = JobSpec(name="job", user="alice", uid=1001, gid=1001, pool="root.alice",
               demand=Resources(cores_milli=1000, memory_bytes=1 << 30), time_limit_s=None,
               command="true", cwd="/", stdout="o", stderr="e")
print("ready", flush=True)
"""
#: Submits three jobs a turn and prints their ids, as the daemon answers its askers: after the
#: commit. Every other turn cancels one, so that jobs end and payloads go too.
WRITER = (
    OPEN
    + """
turn = 0
while True:
    turn += 1
    ids = []
    for _ in range(3):
        event = ev.Submitted(job_id=ledger.next_id, at_s=1.0, spec=spec)
        journal.append(event, ledger.apply(event), None, Payload(b"true", b"x" * 2000))
        ids.append(event.job_id)
    if turn % 2:
        event = ev.Cancelled(job_id=ids[0], at_s=2.0, by="alice")
        journal.append(event, ledger.apply(event), None)
    journal.commit()
    print(*ids, flush=True)
"""
)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_a_kill(path, open_journal):
    chance = random.Random(1)
    acknowledged: set[int] = set()
    for _ in range(5):
        acknowledged |= killed_while_writing(path, turns=chance.randrange(1, 60))
    journal = open_journal()
    events = all_events(journal)
    assert tables(journal.load(Axes())) == tables(Ledger.of_events(Axes(), events))
    submitted = [event.job_id for event in events if type(event).__name__ == "Submitted"]
    assert submitted == list(range(1, len(submitted) + 1)), "an id is missing, or given out twice"
    assert acknowledged <= set(submitted)
    assert len(submitted) % 3 == 0, "a turn was written in part"
    live = journal.load(Axes()).jobs
    with closing(sqlite3.connect(path)) as db:
        kept = db.execute("select id from jobs where live order by id").fetchall()
        check_records(db)
    assert [job_id for (job_id,) in kept] == sorted(live)
    assert all(journal.submissions.get(job_id) for job_id in submitted)


#: Removes what is over, a little at a time, as the daemon does it, and says so after each go; goes
#: on with new jobs, so that there is always more.
REMOVER = (
    OPEN
    + """
def apply_and_append(journal, event, ledger, signed=None):
    journal.append(event, ledger.apply(event), ledger.latest_array, signed)

while True:
    for number in range(30):
        here = replace(spec, command=command_text([f"{ledger.next_id // 7} " + "x" * 3000]))
        job_id, at_s = ledger.next_id, float(ledger.next_id)
        shared = b"%d" % (job_id // 3) * 2000
        signed = Payload(b"true", shared, key=f"key-{job_id}")
        if number % 5:
            event = ev.Submitted(job_id=job_id, at_s=at_s, spec=here)
            apply_and_append(journal, event, ledger, signed)
        else:
            spans = ((0, 9, 1),)
            array = ev.ArraySubmitted(array_id=job_id, at_s=at_s, spec=here, spans=spans,
                                      at_once=None)
            apply_and_append(journal, array, ledger, signed)
            task = ev.Cancelled(job_id=job_id + 3, at_s=at_s, by="alice")
            apply_and_append(journal, task, ledger)
        if number % 10:
            ids = range(job_id, job_id + 12)
            tasks = [each for each in ids if each in ledger.jobs]
            for each in tasks:
                apply_and_append(journal, ev.Cancelled(job_id=each, at_s=at_s, by="alice"), ledger)
    journal.commit()
    while due := read_removable(journal.path, 1e12, None):
        while due:
            journal.remove_ended(due)
            journal.give_back()
            print(ledger.next_id, flush=True)
"""
)


@pytest.mark.slow
def test_history_that_is_being_removed_is_whole_when_the_remover_is_killed(path, open_journal):
    """A job is there with all that belongs to it, or gone with it; what lives is untouched, and the
    next one goes on."""
    chance = random.Random(2)
    next_id = 0
    for _ in range(6):
        next_id = max(
            next_id, *killed_while_writing(path, turns=chance.randrange(2, 60), by=REMOVER)
        )
        journal = open_journal()
        books = journal.load(Axes())
        books.check()
        assert books.next_id >= next_id, "an id would be given out twice"
        with closing(sqlite3.connect(path)) as db:
            check_records(db)
        journal.close()
    journal = open_journal()
    for _ in goes(journal, 1e12):
        journal.give_back()
    with closing(sqlite3.connect(path)) as db:
        check_records(db)
        live = {job_id for (job_id,) in db.execute("select id from jobs where live = 1")}
        live |= {each for (each,) in db.execute("select id from arrays where live = 1")}
        assert {*books.arrays} <= live <= {*books.jobs, *books.arrays}
        (ended,) = db.execute(
            "select count(*) from jobs where live = 0 and array_id not in"
            " (select id from arrays) or live = 0 and array_id is null"
        ).fetchone()
        assert ended == 0


def check_records(db: sqlite3.Connection) -> None:
    """Each belongs to something, and what is counted is there so often."""
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    known = "(select id from jobs union all select id from arrays)"
    query = f"select count(*) from curves where job_id not in {known}"
    assert db.execute(query).fetchone() == (0,)
    needed = "select ifnull(array_id, id) from jobs union select id from arrays order by 1"
    submissions = "select job_id from submissions order by 1"
    assert db.execute(submissions).fetchall() == db.execute(needed).fetchall()
    blobs = db.execute("select id from blobs order by id").fetchall()
    assert blobs == db.execute("select id from blob_data order by id").fetchall()
    named = (
        "select blob, count(*) from submissions where blob is not null group by blob order by blob"
    )
    counts = db.execute("select id, uses from blobs order by id").fetchall()
    assert [each for each in db.execute(named) if (each[0],) in blobs] == counts


def killed_while_writing(path: Path, *, turns: int, by: str = WRITER) -> set[int]:
    """Ids that the writer had printed when it was killed, at some moment after `turns` turns."""
    with subprocess.Popen(
        [sys.executable, "-c", by, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        lines = [writer.stdout.readline() for _ in range(turns)]
        writer.kill()
        lines += writer.stdout.readlines()
    # The last line may have been cut off in the middle: it does not count.
    return {int(word) for line in lines if line.endswith("\n") for word in line.split()}
