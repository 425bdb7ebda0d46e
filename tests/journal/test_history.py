"""What was committed is read again: events, books, jobs, payloads."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.common.errors import Refused
from drfd.core.amounts.resources import Axes, Resources
from drfd.core.decisions.decide import decide
from drfd.core.decisions.dependencies import Settlement
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Dependency,
    JobState,
    Outcome,
    Postponed,
    RequiredOutcome,
    Retry,
    Usage,
    Warn,
    Whose,
)
from drfd.core.scheduling.scheduling_pass import start_events
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    apply_and_append,
    attempt_started,
    demand,
    ended,
    happened,
    now,
    rules,
    schedule,
    spec,
    tables,
)

SPEC = spec(
    asks=Resources(cores_milli=1500, memory_bytes=1 << 33, read_bps=7, gres=(("gpu", 2),)),
    preemptible=True,
)
USAGE = Usage(cores_milli=1, memory_bytes=2, memory_peak_bytes=3, read_bytes=4, cpu_s=0.1)
#: At least one of every kind, with every optional field both filled and empty.
EVERY_KIND: list[ev.Event] = [
    ev.Submitted(job_id=1, at_s=1_700_000_000.123456, spec=SPEC, held=True),
    ev.Submitted(job_id=1, at_s=1.0, spec=spec(time_limit_s=None, name="ünï\ncode\x1b")),
    ev.Held(job_id=1, at_s=1.0, by="alice"),
    ev.Released(job_id=1, at_s=1.0, by="root"),
    ev.Cancelled(job_id=1, at_s=1.0, by="alice"),
    ev.Admitted(job_id=1, at_s=1.0, attempt=3),
    ev.Admitted(job_id=1, at_s=1.0, attempt=1, instances=(("gpu", ("0", "GPU-5c")),)),
    ev.Launched(job_id=1, at_s=1.0, attempt=1, mono_s=0.1 + 0.2, cgroup="drfd/1.1"),
    ev.Launched(job_id=1, at_s=1.0, attempt=1, mono_s=0.0, cgroup=None),
    ev.LaunchFailed(
        job_id=1, at_s=1.0, attempt=1, text='no "such" file', outcome=Outcome.LAUNCH_FAILED
    ),
    ev.StopRequested(job_id=1, at_s=1.0, mono_s=2.0, outcome=Outcome.TIMEOUT, text="ran for 1h"),
    ev.PreemptRequested(job_id=1, at_s=1.0, mono_s=2.0, for_job=7, text="stopped for job 7"),
    ev.Escalated(job_id=1, at_s=1.0),
    ev.Exited(
        job_id=1, at_s=1.0, attempt=1, exit_code=3, signal=None, outcome=Outcome.FAILED,
        text="exit code 3", usage=USAGE,
    ),
    ev.Exited(
        job_id=1, at_s=1.0, attempt=1, exit_code=None, signal=9, outcome=Outcome.LOST,
        text="", usage=None,
    ),
    ev.Exited(
        job_id=1, at_s=1.0, attempt=1, exit_code=0, signal=None, outcome=None,
        text="stopped for job 7", usage=None,
    ),
    ev.Cleaned(job_id=1, at_s=1.0, attempt=1),
    ev.Requeued(job_id=1, at_s=1.0, attempt=1),
    ev.SuspendRequested(job_id=1, at_s=1.0, by="alice", text="suspended by alice"),
    ev.SuspendRequested(job_id=1, at_s=1.0, by=None, text="suspended for job 7"),
    ev.Suspended(job_id=1, at_s=1.0, attempt=1, mono_s=0.1 + 0.2),
    ev.ResumeRequested(job_id=1, at_s=1.0, by="root"),
    ev.Resumed(job_id=1, at_s=1.0, mono_s=0.1 + 0.2),
    ev.Submitted(
        job_id=1, at_s=1.0,
        spec=spec(
            after=(Dependency(3), Dependency(4, RequiredOutcome.FAIL)), begin_s=17,
            retry=Retry(2, (Outcome.FAILED, Outcome.LOST)), warn=Warn(10, 60),
        ),
    ),
    ev.DependencySettled(job_id=1, at_s=1.0, on=3, outcome=Outcome.COMPLETED, is_met=True),
    ev.DependencySettled(
        job_id=1,
        at_s=1.0,
        on=3,
        outcome=Outcome.COMPLETED,
        is_met=True,
        also=(ev.Settled(on=4, outcome=Outcome.FAILED, is_met=False),),
    ),
    ev.OwnerNotified(job_id=1, at_s=1.0, notice="failed: exit code 4"),
    ev.BeginReached(job_id=1, at_s=1.0),
    ev.Retried(job_id=1, at_s=1.0, attempt=1, not_before_s=17),
    ev.Warned(job_id=1, at_s=1.0, signal=10),
    ev.SignalRequested(job_id=1, at_s=1.0, signal=12, by="alice"),
    ev.LaunchPostponed(
        job_id=1, at_s=1.0, attempt=1, not_before_s=3,
        why=Postponed(
            whose=Whose.JOB, text="its quota is used up", resource="quota", at_s=1.0, until_s=3.0,
            tries=3, own_tries=2,
        ),
    ),
    ev.Altered(
        job_id=1, at_s=1.0, by="root", text="all of it", name="other", pool="root.lab", priority=-1,
        time_limit_s=0, demand=SPEC.demand, after=(Dependency(7),), begin_s=50,
    ),
    ev.ArraySubmitted(
        array_id=1, at_s=1.0, spec=SPEC, spans=((0, 9, 3), (11, 11, 1)), at_once=5, held=True
    ),
    ev.ArraySubmitted(array_id=1, at_s=1.0, spec=SPEC, spans=((0, 9, 1),), at_once=None),
    ev.Drained(at_s=1.0, on=True, by="root"),
    ev.IdsRaised(at_s=1.0, next_id=9),
]  # fmt: skip


def test_every_kind_of_event_is_among_them() -> None:
    assert {type(event) for event in EVERY_KIND} == set(ev.KINDS.values())


# -- the books -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_books_read_are_the_books_that_replaying_the_events_gives(
    open_journal: Callable[..., Journal], tmp_path: Path
) -> None:
    """After random histories, in which some turns fail and are rolled back."""
    kinds: set[type] = set()
    for seed in range(12):
        path = tmp_path / f"journal-{seed}.sqlite"
        ledger = live_through(random.Random(seed), open_journal(path))
        reopened = open_journal(path)
        events = list(reopened.events())
        replayed = tables(Ledger.of_events(Axes(), events))
        assert (seed, tables(reopened.load(Axes()))) == (seed, replayed)
        assert (seed, tables(ledger)) == (seed, replayed)
        kinds |= {type(event) for event in events}
    # The launcher's reports cause these.
    absent = {ev.IdsRaised, ev.LaunchPostponed, ev.OwnerNotified}
    assert kinds == set(ev.KINDS.values()) - absent, (
        "these histories are too poor to prove anything"
    )


def live_through(chance: random.Random, journal: Journal) -> Ledger:
    ledger = Ledger(Axes())
    for step in range(200):
        before = tables(ledger)
        for _ in range(chance.randrange(1, 4)):
            stimulus = random_stimulus(ledger, chance, step)
            take(ledger, journal, stimulus)
            # Others are told of an end in parts, and perhaps after a restart.
            if chance.random() < 0.7:
                for told in Settlement().take(ledger, most=2):
                    apply_and_append(journal, told, ledger)
        if chance.random() < 0.2:
            preempt_somebody(ledger, journal, chance, step)
        if chance.random() < 0.1:
            journal.rollback()
            ledger = journal.load(Axes())
            assert tables(ledger) == before
        else:
            journal.commit()
    return ledger


def test_draining_outlives_the_daemon_and_so_does_its_end(
    journal: Journal, open_journal: Callable[[], Journal]
) -> None:
    write(journal, drained(on=True))
    assert open_journal().load(Axes()).draining is True
    write(journal, drained(on=False))
    assert open_journal().load(Axes()).draining is False


def test_a_drain_of_a_node_outlives_the_daemon_and_the_removal_of_old_records(
    journal: Journal, open_journal: Callable[[], Journal]
) -> None:
    of_n1, of_n2 = (
        ev.Drained(at_s=at_s, on=True, by="root", node=node)
        for at_s, node in ((1.0, "n1"), (2.0, "n2"))
    )
    others = [
        ev.Drained(at_s=at_s, on=at_s % 2 == 1, by="root", node=node)
        for at_s in (3.0, 4.0, 5.0, 6.0)
        for node in ("", "n3")
    ]
    write(journal, of_n1, of_n2, *others)
    while journal.remove_ended(1e9) is not None:
        journal.commit()
    left = [each for each in journal.events() if isinstance(each, ev.Drained)]
    assert left == [of_n1, of_n2, *others[-2:]]
    loaded = open_journal().load(Axes())
    assert loaded.node_drains == {"n1": of_n1, "n2": of_n2}
    assert loaded.drained is None


# -- jobs that have ended ----------------------------------------------------------------------


def test_ended_jobs_are_listed_newest_end_first_and_may_be_chosen(journal: Journal) -> None:
    write(
        journal,
        submit(1), submit(2, actor=BOB), submit(3), submit(4),
        cancelled(3, at_s=10.0), cancelled(1, at_s=20.0), cancelled(2, at_s=30.0),
    )  # fmt: skip
    assert [job.id for job in journal.ended(limit=10)] == [2, 1, 3]
    assert [job.id for job in journal.ended(limit=2)] == [2, 1]
    assert [job.id for job in journal.ended(limit=10, user="alice")] == [1, 3]
    assert [job.id for job in journal.ended(limit=1, user="alice")] == [1]
    assert [job.id for job in journal.ended(limit=10, states=["LOST", "CANCELLED"])] == [2, 1, 3]
    assert journal.ended(limit=10, user="nobody") == []
    assert journal.ended(limit=10, states=["COMPLETED"]) == []
    assert journal.ended(limit=10, states=["x' or 1=1 --", '"', "[]"]) == []


# -- payloads ----------------------------------------------------------------------------------

PAYLOAD = Payload(env={"PATH": "/bin", "API_KEY": "s3cret"}, script="#!/bin/sh\n")


# -- transactions ------------------------------------------------------------------------------


# -- builders ----------------------------------------------------------------------------------


def submit(job_id: int, *, actor: st.Actor = ALICE, held: bool = False) -> ev.Submitted:
    asked = spec(f"root.{actor.user}", actor=actor)
    return ev.Submitted(job_id=job_id, at_s=1.0, spec=asked, held=held)


def cancelled(job_id: int, *, at_s: float = 2.0) -> ev.Cancelled:
    return ev.Cancelled(job_id=job_id, at_s=at_s, by="alice")


def drained(*, on: bool) -> ev.Drained:
    return ev.Drained(at_s=1.0, on=on, by="root")


def write(journal: Journal, *events: ev.Event) -> Ledger:
    """Append and commit what follows on what the journal holds; the books after it."""
    ledger = journal.load(Axes())
    for event in events:
        apply_and_append(journal, event, ledger)
    journal.commit()
    return ledger


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    """What another process would see."""
    other = sqlite3.connect(path)
    try:
        return other.execute(query).fetchall()
    finally:
        other.close()


def take(ledger: Ledger, journal: Journal, stimulus: st.Stimulus | st.Now) -> None:
    if isinstance(stimulus, st.Now):
        for started in start_events(ledger, schedule(ledger, rules()), stimulus):
            apply_and_append(journal, started, ledger)
        return
    try:
        found = decide(ledger, stimulus, rules())
    except Refused:
        return
    for event in found:
        apply_and_append(journal, event, ledger)
        if isinstance(event, ev.Submitted):
            journal.put_payload(event.job_id, PAYLOAD)
        elif isinstance(event, ev.ArraySubmitted):
            journal.put_payload(event.array_id, PAYLOAD)


def preempt_somebody(ledger: Ledger, journal: Journal, chance: random.Random, step: int) -> None:
    """A running job makes room for another, as a pass decides it."""
    running = [
        job.id for job in ledger.jobs.values() if job.state is JobState.RUNNING and not job.freezing
    ]
    if not running:
        return
    kind, changes = chance.choice(((ev.PreemptRequested, {}), (ev.SuspendRequested, {"by": None})))
    event = happened(kind, chance.choice(running), step * 60.0, **changes)
    apply_and_append(journal, event, ledger)


def random_stimulus(ledger: Ledger, chance: random.Random, step: int) -> st.Stimulus | st.Now:
    """Something that may happen now, or may have been overtaken by what did; a time: a pass."""
    when = now(step * 60.0)
    actor = chance.choice((ALICE, BOB, ADMIN))
    # Most of what happens happens to jobs that have started.
    started = sorted(job.id for job in ledger.allocated_jobs())
    waiting = [*ledger.arrays, *(group.first_id for group in ledger.arrays.groups())]
    job_id = chance.choice([*ledger.jobs, *waiting, *started * 9, ledger.next_id])
    known = sorted({*ledger.jobs, *waiting})
    job = ledger.jobs.get(job_id)
    attempt = job.attempt if job else 1
    match chance.randrange(31):
        case 0 | 1:
            user = chance.choice((ALICE, BOB))
            asks = demand(chance.randrange(1, 6), chance.randrange(1, 9))
            asked = spec(
                f"root.{user.user}", actor=user, asks=asks, priority=chance.randrange(3),
                time_limit_s=chance.choice((None, 3600)),
                begin_s=chance.choice((None, None, None, int(when.at_s) + chance.randrange(300))),
                after=tuple(
                    Dependency(on, chance.choice(list(RequiredOutcome)))
                    for on in chance.sample(known, min(len(known), 2))
                    if chance.random() < 0.3
                ),
                retry=chance.choice((None, Retry(2, (Outcome.FAILED, Outcome.LOST)))),
            )  # fmt: skip
            if asked.time_limit_s is not None:
                asked = replace(asked, warn=Warn(10, 3599))
            held = chance.random() < 0.2
            if chance.random() < 0.3:
                spans = chance.choice((((0, 4, 2),), ((1, 1, 1), (5, 8, 1))))
                at_once = chance.choice((None, 2))
                return st.SubmitAsked(when, asked, held, spans=spans, at_once=at_once)
            return st.SubmitAsked(when, asked, held)
        case 2:
            return st.CancelAsked(when, job_id, actor)
        case 3:
            return st.HoldAsked(when, job_id, actor)
        case 4:
            return st.ReleaseAsked(when, job_id, actor)
        case 5:
            return st.DrainAsked(when, chance.random() < 0.2, ADMIN)
        case 6 | 7 | 8:
            return attempt_started(job_id, attempt, step * 60.0)
        case 9 if chance.random() < 0.3:
            return st.LaunchAborted(when, job_id, attempt, "no such file")
        case 10:
            return ended(job_id, attempt, step * 60.0, exit_code=chance.choice((0, 1)))
        case 11:
            return st.AttemptMissing(when, job_id, attempt)
        case 12:
            return st.AttemptRemoved(when, job_id, attempt)
        case 13 if chance.random() < 0.5:
            return st.Breached(when, job_id, attempt, Outcome.LIMIT_EXCEEDED, "read 2G/s")
        case 14 | 28 | 29 | 30:
            return st.Tick(when)
        case 15:
            return st.SuspendAsked(when, job_id, actor)
        case 16 | 20:
            return st.ResumeAsked(when, job_id, ADMIN)
        case 26:
            return st.SignalAsked(when, job_id, actor, 10)
        case 27:
            change = st.Change(
                priority=chance.choice((None, 5)),
                after=chance.choice((None, (), (Dependency(chance.choice([*ledger.jobs, 1])),))),
                begin_s=chance.choice((None, 0, int(when.at_s) + 60)),
            )
            return st.ChangeAsked(when, job_id, ADMIN, change)
        case 17 | 18 | 19:
            return st.Frozen(when, job_id, attempt)
        case _:
            return when
