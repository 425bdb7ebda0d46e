"""SIGKILL at any moment: what was acknowledged is there, whole, and the journal opens."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from drfd.core.ledger import Ledger
from drfd.core.resources import Axes
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import tables

#: Submits three jobs a turn and prints their ids, as the daemon answers its askers: after the
#: commit. Every other turn cancels one, so that jobs end and payloads go too.
WRITER = """
import sys
from pathlib import Path
from drfd.core import events as ev
from drfd.core.job import JobSpec
from drfd.core.resources import Axes, Resources
from drfd.journal.journal import Journal
from drfd.journal.records import Payload

journal = Journal(Path(sys.argv[1]))
ledger = journal.load(Axes())
spec = JobSpec(name="job", user="alice", uid=1001, gid=1001, pool="root.alice",
               demand=Resources(cores_milli=1000, memory_bytes=1 << 30), time_limit_s=None,
               argv=("true",), cwd="/", stdout="o", stderr="e")
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    ids = []
    for _ in range(3):
        event = ev.Submitted(job_id=ledger.next_id, at_s=1.0, spec=spec)
        journal.append(event, ledger.apply(event))
        journal.put_payload(event.job_id, Payload(env={"BULK": "x" * 2000}))
        ids.append(event.job_id)
    if turn % 2:
        event = ev.Cancelled(job_id=ids[0], at_s=2.0, by="alice")
        journal.append(event, ledger.apply(event))
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


def killed_while_writing(path: Path, *, turns: int) -> set[int]:
    """Ids that the writer had printed when it was killed, at some moment after `turns` turns."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        lines = [writer.stdout.readline() for _ in range(turns)]
        writer.kill()
        lines += writer.stdout.readlines()
    # The last line may have been cut off in the middle: it does not count.
    return {int(word) for line in lines if line.endswith("\n") for word in line.split()}
