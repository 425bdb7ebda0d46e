"""The journals of earlier versions are read for ever.

`tests/data/journal_v1.sql` is the dump of a journal that 0.1.0 wrote, `journal_v2.sql` one of the
version that knows conditions, retries and changes, `journal_v3.sql` one of that with arrays,
`journal_v4.sql` one of that with the curves of what jobs used, `journal_v5.sql` one of that which
stores long command lines once. They are never edited: a change of the schema or of an event kind
gets a new version and a new golden journal beside them. Until version 5 is released, `python
tests/journal/test_golden.py` writes its journal anew.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from drfd.core.amounts.resources import Axes, Resources
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import (
    Dependency,
    Job,
    JobState,
    Notify,
    Outcome,
    Postponed,
    RequiredOutcome,
    Retry,
    Stop,
    Usage,
    Warn,
    Whose,
    Words,
)
from drfd.core.usage import Curve, GpuTally, LentTally
from drfd.journal import records
from drfd.journal.files import VERSION
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import apply_and_append, spec, tables

DATA = Path(__file__).parent.parent / "data"
DUMP = (DATA / "journal_v1.sql").read_text()
V2_DUMP = (DATA / "journal_v2.sql").read_text()
V3_DUMP = (DATA / "journal_v3.sql").read_text()
V4_DUMP = (DATA / "journal_v4.sql").read_text()
LAST = DATA / "journal_v5.sql"
ASKS = Resources(cores_milli=1500, memory_bytes=1 << 33, read_bps=1000, write_bps=2000)
USAGE = Usage(
    cores_milli=0, memory_bytes=0, memory_peak_bytes=3, read_bytes=4, written_bytes=5, cpu_s=6.5
)
SPEC = spec(asks=ASKS, priority=7, name="train")
PREEMPTIBLE = replace(SPEC, preemptible=True)
EVENTS: list[ev.Event] = [
    ev.Submitted(job_id=1, at_s=1.5, spec=SPEC, held=True),
    ev.Released(job_id=1, at_s=2.5, by="alice"),
    ev.Held(job_id=1, at_s=3.5, by="root"),
    ev.Cancelled(job_id=1, at_s=4.5, by="root"),
    ev.Submitted(job_id=2, at_s=5.5, spec=SPEC),
    ev.Admitted(job_id=2, at_s=6.5, attempt=1),
    ev.Launched(job_id=2, at_s=7.5, attempt=1, mono_s=70.5, cgroup="drfd/0123456789/job-2.1"),
    ev.Exited(
        job_id=2, at_s=8.5, attempt=1, exit_code=None, signal=9, outcome=Outcome.OUT_OF_MEMORY,
        text="needed more than its memory limit of 8G", usage=USAGE,
    ),
    ev.Cleaned(job_id=2, at_s=9.5, attempt=1),
    ev.Submitted(job_id=3, at_s=10.5, spec=SPEC),
    ev.Admitted(job_id=3, at_s=11.5, attempt=1),
    ev.LaunchFailed(
        job_id=3, at_s=12.5, attempt=1, text="there is no command x in the job's PATH",
        outcome=Outcome.LAUNCH_FAILED,
    ),
    ev.Submitted(job_id=4, at_s=13.5, spec=SPEC),
    ev.Admitted(job_id=4, at_s=14.5, attempt=1),
    ev.Launched(job_id=4, at_s=15.5, attempt=1, mono_s=150.5, cgroup=None),
    ev.StopRequested(
        job_id=4, at_s=16.5, mono_s=160.5, outcome=Outcome.TIMEOUT,
        text="ran for its whole time limit of 1h00m",
    ),
    ev.Escalated(job_id=4, at_s=17.5),
    ev.Submitted(job_id=5, at_s=18.5, spec=PREEMPTIBLE),
    ev.Admitted(job_id=5, at_s=19.5, attempt=1),
    ev.Launched(job_id=5, at_s=20.5, attempt=1, mono_s=200.5, cgroup=None),
    ev.PreemptRequested(
        job_id=5, at_s=21.5, mono_s=210.5, for_job=4,
        text="stopped for job 4 (alice): root.lab has far less than it is entitled to",
    ),
    ev.Exited(
        job_id=5, at_s=22.5, attempt=1, exit_code=None, signal=15, outcome=None,
        text="stopped for job 4 (alice): root.lab has far less than it is entitled to",
        usage=USAGE,
    ),
    ev.Requeued(job_id=5, at_s=23.5, attempt=1),
    ev.Admitted(job_id=5, at_s=24.5, attempt=2),
    ev.Launched(job_id=5, at_s=25.5, attempt=2, mono_s=250.5, cgroup=None),
    ev.SuspendRequested(job_id=5, at_s=26.5, by=None, text="suspended for job 4 (alice)"),
    ev.Suspended(job_id=5, at_s=27.5, attempt=2, mono_s=270.5),
    ev.Resumed(job_id=5, at_s=28.5, mono_s=280.5),
    ev.SuspendRequested(job_id=5, at_s=29.5, by="alice", text="suspended by alice"),
    ev.ResumeRequested(job_id=5, at_s=30.5, by="root"),
    ev.Suspended(job_id=5, at_s=31.5, attempt=2, mono_s=310.5),
    ev.Submitted(job_id=6, at_s=32.5, spec=SPEC),
    ev.Admitted(job_id=6, at_s=33.5, attempt=1),
    ev.Launched(job_id=6, at_s=34.5, attempt=1, mono_s=340.5, cgroup=None),
    ev.SuspendRequested(job_id=6, at_s=35.5, by="root", text="suspended by root"),
    ev.Drained(at_s=36.5, on=True, by="root"),
    ev.Submitted(job_id=7, at_s=37.5, spec=SPEC),
]  # fmt: skip

ASKING = replace(
    SPEC, name="evaluate", after=(Dependency(7), Dependency(6, RequiredOutcome.ANY)), begin_s=50,
    retry=Retry(3, (Outcome.FAILED, Outcome.LOST)), warn=Warn(10, 60),
)  # fmt: skip
#: What version 2 has beside the history of version 1.
V2_EVENTS: list[ev.Event] = [
    *EVENTS,
    ev.Submitted(job_id=8, at_s=38.5, spec=ASKING),
    ev.Cancelled(job_id=7, at_s=39.5, by="alice"),
    ev.DependencySettled(job_id=8, at_s=39.5, on=7, outcome=Outcome.CANCELLED, is_met=False),
    ev.Changed(
        job_id=8, at_s=40.5, by="alice", spec=replace(ASKING, after=()), sets_after=True,
        sets_begin=False, text="after 7:ok,6:any → nothing",
    ),
    ev.BeginReached(job_id=8, at_s=50.5),
    ev.Admitted(job_id=8, at_s=51.5, attempt=1),
    ev.Launched(job_id=8, at_s=52.5, attempt=1, mono_s=520.5, cgroup=None),
    ev.Warned(job_id=8, at_s=53.5, signal=10),
    ev.SignalRequested(job_id=8, at_s=54.5, signal=12, by="alice"),
    ev.Exited(
        job_id=8, at_s=55.5, attempt=1, exit_code=3, signal=None, outcome=Outcome.FAILED,
        text="exit code 3", usage=USAGE,
    ),
    ev.Retried(job_id=8, at_s=56.5, attempt=1, not_before_s=62),
    ev.Submitted(
        job_id=9, at_s=57.5, spec=replace(ASKING, after=(Dependency(8, RequiredOutcome.FAIL),)),
    ),
]  # fmt: skip
#: What version 4 has beside that of version 3.
CURVE = Curve(
    attempt=1, start_ms=1_700_000_002_000, ends_ms=(0, 2001, 4000), spans_ms=(0, 2001, 4000),
    cores_milli=(None, 1500, 750), memory_kib=(1024, 2048, 2048), read_kib_s=(None, 12, 0),
)  # fmt: skip
PAYLOAD = Payload(env={"PATH": "/usr/bin"}, script="#!/bin/sh\necho ü\n")
#: With columns that came after the last golden journal.
GPU_CURVE = Curve(
    attempt=2, start_ms=1_700_000_002_000, ends_ms=(0, 2000), spans_ms=(0, 2000),
    gpu_memory_kib=(1024, 2048), gpu_percent=(None, 150),
    gpu_tally=GpuTally(2097153, 1048576, 150, 1),
)  # fmt: skip
RAISED = ev.IdsRaised(at_s=69.5, next_id=40)
NOTIFIED = ev.OwnerNotified(job_id=9, at_s=69.5, notice="told")
#: What versions 3 and 4 have beside that of version 2.
V4_EVENTS: list[ev.Event] = [
    *V2_EVENTS,
    ev.ArraySubmitted(
        array_id=10, at_s=61.5, spec=SPEC, spans=((0, 2, 2), (7, 8, 1)), at_once=2, held=True
    ),
    ev.Released(job_id=10, at_s=62.5, by="alice"),
    ev.Admitted(job_id=11, at_s=63.5, attempt=1),
    ev.Held(job_id=10, at_s=64.5, by="root"),
    ev.Cancelled(job_id=12, at_s=65.5, by="alice"),
    ev.ArraySubmitted(
        array_id=15, at_s=66.5, spec=replace(ASKING, after=(Dependency(10),)), at_once=None,
        spans=((5, 9, 1),),
    ),
    ev.ArraySubmitted(array_id=21, at_s=67.5, spec=SPEC, spans=((5, 9, 1),), at_once=None),
    ev.Admitted(job_id=22, at_s=68.5, attempt=1),
    ev.Launched(job_id=22, at_s=69.5, attempt=1, mono_s=690.5, cgroup="drfd/0123456789/job-22.1"),
    ev.Cancelled(job_id=21, at_s=70.5, by="alice"),
]  # fmt: skip


LONG = Words.of(["sh", "-c", "ü" * 200, "", "x" * 300])
#: What version 5 has beside that of version 4.
LAST_EVENTS: list[ev.Event] = [
    *V4_EVENTS,
    ev.Submitted(
        job_id=27, at_s=71.5, spec=replace(SPEC, argv=LONG, notify=Notify(("end", "fail"), LONG))
    ),
    ev.Altered(
        job_id=27, at_s=72.5, by="alice", text="all of it", name="other", pool="root.lab",
        priority=-1, time_limit_s=0, demand=ASKS, after=(Dependency(22, RequiredOutcome.ANY),),
        begin_s=90,
    ),
    ev.Altered(job_id=27, at_s=73.5, by="root", text="priority -1 → 0", priority=0),
    ev.ArraySubmitted(
        array_id=28, at_s=74.5, spec=replace(SPEC, argv=LONG), spans=((1, 3, 1),), at_once=None
    ),
    ev.Admitted(job_id=29, at_s=75.5, attempt=1),
    ev.LaunchPostponed(
        job_id=29, at_s=76.5, attempt=1,
        why=Postponed(
            whose=Whose.MACHINE, text="the machine is short of processes", resource="processes",
            at_s=76.5, until_s=80.5, tries=3, own_tries=2,
        ),
    ),
    ev.Requeued(job_id=29, at_s=77.5, attempt=1),
    ev.Submitted(job_id=32, at_s=78.5, spec=SPEC),
    ev.Admitted(job_id=32, at_s=79.5, attempt=1),
    ev.LaunchPostponed(
        job_id=32, at_s=80.5, attempt=1, not_before_s=82,
        why=Postponed(
            whose=Whose.JOB, text="its user's quota is used up (EDQUOT)", resource="quota",
            at_s=80.5, until_s=81.5, tries=1,
        ),
    ),
]  # fmt: skip


@pytest.fixture
def v2(tmp_path: Path, open_journal: Callable[..., Journal]) -> Journal:
    with closing(sqlite3.connect(tmp_path / "v2.sqlite")) as database:
        database.executescript(V2_DUMP)
    return open_journal(tmp_path / "v2.sqlite")


@pytest.fixture
def v3(tmp_path: Path, open_journal: Callable[..., Journal]) -> Journal:
    with closing(sqlite3.connect(tmp_path / "v3.sqlite")) as database:
        database.executescript(V3_DUMP)
    return open_journal(tmp_path / "v3.sqlite")


@pytest.fixture
def last(tmp_path: Path, open_journal: Callable[..., Journal]) -> Journal:
    """The journal of the present version."""
    with closing(sqlite3.connect(tmp_path / "last.sqlite")) as database:
        database.executescript(LAST.read_text())
    return open_journal(tmp_path / "last.sqlite")


@pytest.fixture
def v4(tmp_path: Path, open_journal: Callable[..., Journal]) -> Journal:
    with closing(sqlite3.connect(tmp_path / "v4.sqlite")) as database:
        database.executescript(V4_DUMP)
    return open_journal(tmp_path / "v4.sqlite")


@pytest.fixture
def old(path: Path, open_journal: Callable[[], Journal]) -> Journal:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(DUMP)
    return open_journal()


def test_the_golden_journal_has_every_kind_of_event() -> None:
    """A new kind needs a new golden journal."""
    assert {type(event) for event in [*LAST_EVENTS, RAISED, NOTIFIED]} == set(ev.KINDS.values())


def test_raised_ids_are_read_and_written_as_they_were() -> None:
    """A kind that came after the last golden journal."""
    assert records.decode_event("IdsRaised", b'{"at_s":69.5,"next_id":40}') == RAISED
    assert records.encode(RAISED) == b'{"at_s":69.5,"next_id":40}'


def test_notifications_of_jobs_that_never_start_are_read_and_written_as_they_were() -> None:
    """Another kind that came after the last golden journal."""
    data = b'{"job_id":9,"at_s":69.5,"notice":"told"}'
    assert records.decode_event("OwnerNotified", data) == NOTIFIED
    assert records.encode(NOTIFIED) == data


def test_curves_of_gpus_are_read_and_written_as_they_were() -> None:
    data = (
        b'{"attempt":2,"start_ms":1700000002000,"ends_ms":[0,2000],"spans_ms":[0,2000],'
        b'"cores_milli":[],"memory_kib":[],"read_kib_s":[],"write_kib_s":[],'
        b'"gpu_memory_kib":[1024,2048],"gpu_percent":[null,150],'
        b'"gpu_tally":{"memory_peak":2097153,"single_peak":1048576,"percent_sum":150,"percent_count":1}}'
    )
    assert records.decode_curve(data) == GPU_CURVE
    assert records.encode(GPU_CURVE) == data


def test_curves_of_loans_are_read_and_written_as_they_were() -> None:
    data = (
        b'{"attempt":2,"start_ms":1700000002000,"ends_ms":[0,2000],"spans_ms":[0,2000],'
        b'"cores_milli":[null,1500],"memory_kib":[],"read_kib_s":[],"write_kib_s":[],'
        b'"lent_milli":[null,1000],'
        b'"lent_tally":{"lent_us":2000000,"cpu_us":3000000,"mono_ms":5000}}'
    )
    curve = Curve(
        attempt=2, start_ms=1_700_000_002_000, ends_ms=(0, 2000), spans_ms=(0, 2000),
        cores_milli=(None, 1500), lent_milli=(None, 1000),
        lent_tally=LentTally(2_000_000, 3_000_000, 5000),
    )  # fmt: skip
    assert records.decode_curve(data) == curve
    assert records.encode(curve) == data


def test_ranges_are_read_and_written_as_they_were() -> None:
    """The key came after the last golden journal; a job without a range has none."""
    most = Resources(cores_milli=64_000, read_bps=300 << 20)
    told = ev.Altered(job_id=27, at_s=73.5, by="root", text="cores 2 → 2..64", most=most)
    data = (
        b'{"job_id":27,"at_s":73.5,"by":"root","text":"cores 2 \xe2\x86\x92 2..64","most":'
        b'{"cores_milli":64000,"memory_bytes":0,"read_bps":314572800,"write_bps":0,"gres":[],'
        b'"gres_memory":[],"disks":[]}}'
    )
    assert records.decode_event("Altered", data) == told
    assert records.encode(told) == data
    plain, ranged = (ev.Submitted(job_id=1, at_s=1.5, spec=replace(SPEC, most=each))
                     for each in (None, most))  # fmt: skip
    assert b"most" not in records.encode(plain)
    for each in (plain, ranged):
        assert records.decode_event("Submitted", records.encode(each)) == each


def test_its_events_are_read(old: Journal) -> None:
    assert list(old.events()) == EVENTS


def test_the_last_ones_events_and_books_are_read(last: Journal) -> None:
    assert list(last.events()) == LAST_EVENTS
    assert tables(last.load(Axes())) == tables(Ledger.of_events(Axes(), LAST_EVENTS))


def test_one_with_arrays_is_read_and_gets_todays_tables(v3: Journal, tmp_path: Path) -> None:
    assert list(v3.events()) == V4_EVENTS
    assert tables(v3.load(Axes())) == tables(Ledger.of_events(Axes(), V4_EVENTS))
    assert v3.curve(2) is None
    Journal(tmp_path / "today.sqlite").close()
    assert schema(tmp_path / "v3.sqlite") == schema(tmp_path / "today.sqlite")


def test_one_of_version_4_is_read_and_gets_todays_tables(v4: Journal, tmp_path: Path) -> None:
    assert list(v4.events()) == V4_EVENTS
    assert tables(v4.load(Axes())) == tables(Ledger.of_events(Axes(), V4_EVENTS))
    assert (v4.curve(2), v4.payload(10)) == (CURVE, PAYLOAD)
    Journal(tmp_path / "today.sqlite").close()
    assert schema(tmp_path / "v4.sqlite") == schema(tmp_path / "today.sqlite")


def test_the_last_ones_curves_are_read(last: Journal) -> None:
    assert (last.curve(2), last.curve(4711)) == (CURVE, None)


def test_todays_curves_are_written_as_they_were_then(last: Journal, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "last.sqlite")) as database:
        ((then,),) = database.execute("select data from curves")
    assert_holds(json.loads(then), json.loads(records.encode(CURVE)))


def test_one_of_version_2_is_read_and_gets_todays_tables(v2: Journal, tmp_path: Path) -> None:
    assert list(v2.events()) == V2_EVENTS
    assert tables(v2.load(Axes())) == tables(Ledger.of_events(Axes(), V2_EVENTS))
    Journal(tmp_path / "today.sqlite").close()
    assert schema(tmp_path / "v2.sqlite") == schema(tmp_path / "today.sqlite")


def test_the_last_ones_payloads_are_read(last: Journal) -> None:
    assert (last.payload(10), last.payload(4711)) == (PAYLOAD, Payload())


def test_an_old_one_that_was_opened_is_refused_by_the_drfd_that_wrote_it(
    old: Journal, path: Path
) -> None:
    """Which would start jobs that wait for others at once."""
    old.append(ev.Submitted(job_id=8, at_s=38.5, spec=ASKING), None, None)
    old.commit()
    old.close()
    assert int.from_bytes(path.read_bytes()[60:64], "big") == VERSION


def test_its_books_are_read(old: Journal) -> None:
    assert tables(old.load(Axes())) == tables(Ledger.of_events(Axes(), EVENTS))


def test_its_jobs_are_read(old: Journal) -> None:
    assert old.job(2) == Job(
        id=2,
        spec=SPEC,
        state=JobState.ENDED,
        attempt=1,
        submitted_at=5.5,
        eligible_at=5.5,
        started_at=7.5,
        started_mono_s=70.5,
        ended_at=8.5,
        signal=9,
        outcome=Outcome.OUT_OF_MEMORY,
        outcome_text="needed more than its memory limit of 8G",
        usage=USAGE,
        cgroup="drfd/0123456789/job-2.1",
    )
    assert old.load(Axes()).jobs[4].stop == Stop(
        outcome=Outcome.TIMEOUT,
        text="ran for its whole time limit of 1h00m",
        at_s=16.5,
        mono_s=160.5,
        escalated=True,
    )
    assert old.load(Axes()).jobs[5] == Job(
        id=5,
        spec=PREEMPTIBLE,
        state=JobState.SUSPENDED,
        attempt=2,
        submitted_at=18.5,
        eligible_at=23.5,
        started_at=25.5,
        started_mono_s=250.5,
        preempted_at=26.5,
        suspended_at=31.5,
        suspended_mono_s=310.5,
        suspended_s=10.0,
        suspensions=2,
    )


def test_its_payloads_are_read(old: Journal) -> None:
    assert old.payload(7) == Payload(env={"PATH": "/usr/bin"}, script="#!/bin/sh\necho ü\n")


def test_its_submissions_are_read(old: Journal) -> None:
    """A client that asks once more after an update gets its job, and no second one."""
    assert old.submission(1001, "0123") == 7


def test_one_that_was_opened_has_todays_tables(old: Journal, path: Path, tmp_path: Path) -> None:
    Journal(tmp_path / "today.sqlite").close()
    assert schema(path) == schema(tmp_path / "today.sqlite")


def schema(path: Path) -> set[tuple[str, str]]:
    """Each table and index, and its definition without regard to blanks and capitals."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("select name, sql from sqlite_master where sql is not null")
        words = {(name, " ".join(sql.lower().split())) for name, sql in rows}
        return {(name, re.sub(r" ?([(),]) ?", r"\1", sql)) for name, sql in words}


def test_todays_events_are_written_as_they_were_then(last: Journal, tmp_path: Path) -> None:
    """An older drfd must be able to read what a newer one of the same version wrote: it passes over
    fields that it does not know, and finds all that it does."""
    with closing(sqlite3.connect(tmp_path / "last.sqlite")) as database:
        written = database.execute("select kind, data from events order by seq").fetchall()
    for (kind, then), event in zip(written, LAST_EVENTS, strict=True):
        assert kind == type(event).__name__
        if isinstance(json.loads(then).get("spec", {}).get("argv"), int):
            # The number of a long command line is known to its journal alone.
            continue
        assert_holds(json.loads(then), json.loads(records.encode(event)))


def test_todays_jobs_and_arrays_are_written_as_they_were_then(
    last: Journal, tmp_path: Path
) -> None:
    write_anew(LAST_EVENTS, tmp_path / "anew.sqlite")
    for table in ("jobs", "arrays"):
        with closing(sqlite3.connect(tmp_path / "last.sqlite")) as database:
            written = dict(database.execute(f"select id, data from {table}"))
        with closing(sqlite3.connect(tmp_path / "anew.sqlite")) as database:
            today = dict(database.execute(f"select id, data from {table}"))
        assert set(today) == set(written)
        for each, then in written.items():
            assert_holds(json.loads(then), json.loads(today[each]))


def assert_holds(then: object, now: object) -> None:
    """All of `then` is in `now`, as it was; new fields are unset, as in every old record."""
    if not isinstance(then, dict):
        assert now == then
        return
    assert isinstance(now, dict)
    for name, value in then.items():
        assert_holds(value, now[name])
    added = {name: value for name, value in now.items() if name not in then}
    assert not any(added.values()), added


def write_anew(events: list[ev.Event], path: Path) -> None:
    """As the engine does it."""
    journal, ledger = Journal(path), Ledger(Axes())
    for event in events:
        apply_and_append(journal, event, ledger)
        if isinstance(event, ev.ArraySubmitted):
            journal.put_payload(event.array_id, PAYLOAD)
    journal.put_curve(2, CURVE)
    journal.commit()
    journal.close()


def write_dump() -> None:
    with TemporaryDirectory() as place:
        path = Path(place, "journal.sqlite")
        write_anew(LAST_EVENTS, path)
        with closing(sqlite3.connect(path)) as database:
            (application,) = database.execute("pragma application_id").fetchone()
            lines = [
                "-- The journal that version 5 wrote of the history in test_golden.py.",
                f"pragma application_id = {application};",
                f"pragma user_version = {VERSION};",
                *(line for line in database.iterdump() if "sqlite_sequence" not in line),
            ]
    LAST.write_text("\n".join(lines) + "\n")


def test_its_books_are_read_on_a_machine_with_other_disks(old: Journal) -> None:
    """Rates without a disk hold on each."""
    ledger = old.load(Axes(disks=("data", "scratch")))
    ledger.check()
    plain = old.load(Axes())
    assert set(ledger.jobs) == set(plain.jobs)
    cores, memory, read, write = plain.allocated
    assert ledger.allocated == (cores, memory, read, write, read, write)


def test_rates_of_named_disks_come_back(path: Path, open_journal: Callable[[], Journal]) -> None:
    asks = Resources(disks=(("data", 1, 2), ("scratch", 0, 0)))
    odd = spec(asks=asks, name=',"disks":[]')
    event = ev.Submitted(job_id=1, at_s=1.5, spec=odd)
    assert records.decode_event("Submitted", records.encode(event)) == event


if __name__ == "__main__":
    write_dump()


def test_nodes_are_read_and_written_as_they_were() -> None:
    """The keys came after the last golden journal; without nodes there are none."""
    started = ev.Admitted(job_id=7, at_s=1.5, attempt=1, node="n2")
    data = b'{"job_id":7,"at_s":1.5,"attempt":1,"instances":[],"node":"n2","why":null}'
    assert records.decode_event("Admitted", data) == started
    assert records.encode(started) == data
    bound = replace(SPEC, demand=replace(SPEC.demand, node="n2", features=("ssd",)))
    anywhere, there = (ev.Submitted(job_id=1, at_s=1.5, spec=each) for each in (SPEC, bound))
    assert b'"node"' not in records.encode(anywhere)
    assert b'"node":"n2","features":["ssd"]' in records.encode(there)
    for each in (anywhere, there):
        assert records.decode_event("Submitted", records.encode(each)) == each
