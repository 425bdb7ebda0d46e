"""SIGKILL at any moment: what was acknowledged is there, whole, and the journal opens."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import Ledger
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import tables

#: Submits three jobs a turn and prints their ids, as the daemon answers its askers: after the
#: commit. Every other turn cancels one, so that jobs end and payloads go too.
WRITER = """
import sys
from pathlib import Path
from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec
from drfd.core.amounts.resources import Axes, Resources
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from drfd.core.model.job import Words

journal = Journal(Path(sys.argv[1]))
ledger = journal.load(Axes())
spec = JobSpec(name="job", user="alice", uid=1001, gid=1001, pool="root.alice",
               demand=Resources(cores_milli=1000, memory_bytes=1 << 30), time_limit_s=None,
               argv=Words.of(("true",)), cwd="/", stdout="o", stderr="e")
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    ids = []
    for _ in range(3):
        event = ev.Submitted(job_id=ledger.next_id, at_s=1.0, spec=spec)
        journal.append(event, ledger.apply(event), None)
        journal.put_payload(event.job_id, Payload(env={"BULK": "x" * 2000}))
        ids.append(event.job_id)
    if turn % 2:
        event = ev.Cancelled(job_id=ids[0], at_s=2.0, by="alice")
        journal.append(event, ledger.apply(event), None)
    journal.commit()
    print(*ids, flush=True)
"""


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(
    path: Path, open_journal: Callable[[], Journal]
) -> None:
    chance = random.Random(1)
    acknowledged: set[int] = set()
    for _ in range(5):
        acknowledged |= killed_while_writing(path, turns=chance.randrange(1, 60))
    journal = open_journal()
    events = list(journal.events())
    assert tables(journal.load(Axes())) == tables(Ledger.of_events(Axes(), events))
    submitted = [event.job_id for event in events if type(event).__name__ == "Submitted"]
    assert submitted == list(range(1, len(submitted) + 1)), "an id is missing, or given out twice"
    assert acknowledged <= set(submitted)
    assert len(submitted) % 3 == 0, "a turn was written in part"
    live = journal.load(Axes()).jobs
    kept = {job_id for job_id in submitted if journal.payload(job_id) != Payload()}
    assert kept == set(live)


#: Removes what is over, a little at a time, as the daemon does it, and says so after each go; goes
#: on with new jobs, so that there is always more.
REMOVER = """
import sys
from dataclasses import replace
from pathlib import Path
from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec
from drfd.core.amounts.resources import Axes, Resources
from drfd.core.model.job import Words
from drfd.journal.journal import Journal
from drfd.journal.records import Payload

journal = Journal(Path(sys.argv[1]))
ledger = journal.load(Axes())
spec = JobSpec(name="job", user="alice", uid=1001, gid=1001, pool="root.alice",
               demand=Resources(cores_milli=1000, memory_bytes=1 << 30), time_limit_s=None,
               argv=Words.of(("x" * 3000,)), cwd="/", stdout="o", stderr="e")

def apply_and_append(journal, event, ledger):
    event = journal.store_command_lines(event)
    journal.append(event, ledger.apply(event), ledger.latest_array)

print("ready", flush=True)
while True:
    for number in range(30):
        here = replace(spec, argv=Words.of((f"{ledger.next_id // 7} " + "x" * 3000,)))
        job_id, at_s = ledger.next_id, float(ledger.next_id)
        if number % 5:
            apply_and_append(journal, ev.Submitted(job_id=job_id, at_s=at_s, spec=here), ledger)
        else:
            spans = ((0, 9, 1),)
            array = ev.ArraySubmitted(array_id=job_id, at_s=at_s, spec=here, spans=spans,
                                      at_once=None)
            apply_and_append(journal, array, ledger)
            task = ev.Cancelled(job_id=job_id + 3, at_s=at_s, by="alice")
            apply_and_append(journal, task, ledger)
        journal.put_payload(job_id, Payload(env={"BULK": f"{job_id}" * 2000}))
        journal.put_submission(1001, f"key-{job_id}", job_id)
        if number % 10:
            apply_and_append(journal, ev.Cancelled(job_id=job_id, at_s=at_s, by="alice"), ledger)
    journal.commit()
    while journal.remove_ended(1e12, "alice" if ledger.next_id % 2 else None) is not None:
        journal.give_back()
        print(ledger.next_id, flush=True)
"""


@pytest.mark.slow
def test_history_that_is_being_removed_is_whole_when_the_remover_is_killed(
    path: Path, open_journal: Callable[[], Journal]
) -> None:
    """A job is there with all that belongs to it, or gone with it, but for events, of which some
    may have gone before; what lives is untouched, and the next one goes on."""
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
    while journal.remove_ended(1e12) is not None:
        journal.give_back()
    with closing(sqlite3.connect(path)) as db:
        check_records(db)
        live = {job_id for (job_id,) in db.execute("select id from jobs where live = 1")}
        live |= {each for (each,) in db.execute("select id from arrays where live = 1")}
        assert live == {*books.jobs, *books.arrays}
        (ended,) = db.execute(
            "select count(*) from jobs where live = 0 and array_id not in"
            " (select id from arrays) or live = 0 and array_id is null"
        ).fetchone()
        # The last one stays.
        assert ended <= 1


def check_records(db: sqlite3.Connection) -> None:
    """Each belongs to something, and what is counted is there so often."""
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    known = "(select id from jobs union all select id from arrays)"
    for table in ("submissions", "payloads", "curves"):
        query = f"select count(*) from {table} where job_id not in {known}"
        assert db.execute(query).fetchone() == (0,), table
    query = f"select count(*) from events where job_id is not null and job_id not in {known}"
    assert db.execute(query).fetchone() == (0,)
    lines = db.execute("select id from command_lines order by id").fetchall()
    assert lines == db.execute("select id from commands order by id").fetchall()
    # The tasks of an array have its command line, which counts once for all.
    used: Counter[int] = Counter()
    for job_id, array_id, data in db.execute("select id, array_id, data from jobs"):
        used[json.loads(data)["spec"]["argv"], array_id or job_id] = 1
    for array_id, data in db.execute("select id, data from arrays"):
        used[json.loads(data)["common"]["spec"]["argv"], array_id] = 1
    counts = Counter(number for number, _ in used)
    assert dict(db.execute("select id, uses from commands")) == counts


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
