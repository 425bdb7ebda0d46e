"""What was committed is read again: events, books, stories, texts, payloads and curves."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from drfd.common.errors import HostError, Refused
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.dependencies import report_ends
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import (
    Actor,
    Dependency,
    JobState,
    Notify,
    Outcome,
    RequiredOutcome,
    Retry,
    Usage,
    Warn,
    Whose,
    Words,
)
from drfd.core.model.resources import Axes, Resources
from drfd.core.scheduling.scheduler import start_events
from drfd.core.usage import Curve
from drfd.journal import texts
from drfd.journal.history import FIRST, LAST, PastFilter, read_curves, read_ended, read_story
from drfd.journal.journal import Journal
from drfd.journal.pruning import JOB_BYTES
from drfd.journal.records import Payload
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    apply_and_append,
    demand,
    ended,
    happened,
    launched,
    now,
    postponed,
    replace,
    rules,
    schedule,
    spec,
    tables,
)
from journal.book import Book

SPEC = spec(
    asks=Resources(cores_milli=1500, memory_bytes=1 << 33, read_bps=7, gres=(("gpu", 2),)),
    preemptible=True,
)
USAGE = Usage(cores_milli=1, memory_bytes=2, memory_peak_bytes=3, read_bytes=4, cpu_s=0.1)
#: At least one of every kind, with every optional field both filled and empty.
EVERY_KIND: list[ev.Event] = [
    ev.Submitted(job_id=1, at_s=1_700_000_000.123456, spec=SPEC, held=True),
    happened(ev.Submitted, spec=spec(time_limit_s=None, name="ünï\ncode\x1b")),
    happened(ev.Submitted, spec=spec(
        after=(Dependency(3), Dependency(4, RequiredOutcome.FAIL)), begin_s=17,
        retry=Retry(2, (Outcome.FAILED, Outcome.LOST)), warn=Warn(10, 60),
    )),
    *(happened(kind) for kind in ev.JobEvent.__subclasses__()),
    happened(ev.Admitted, instances=(("gpu", ("0", "GPU-5c")),)),
    happened(ev.Launched, mono_s=0.1 + 0.2, cgroup=None),
    happened(ev.Exited, exit_code=3, outcome=Outcome.FAILED, text="exit code 3", usage=USAGE),
    happened(ev.Exited, exit_code=None, signal=9, outcome=None, text=""),
    happened(ev.SuspendRequested, by=None, text="suspended for job 7"),
    happened(ev.DependencySettled, ends=tuple(
        ev.Settled(on=on, outcome=Outcome.FAILED, is_met=False) for on in (3, 4)
    )),
    happened(ev.LaunchPostponed, not_before_s=3, why=postponed(
        whose=Whose.JOB, text="its quota is used up", resource="quota", tries=3, own_tries=2,
    )),
    happened(
        ev.Altered, text="all of it", name="other", pool="root.lab", priority=-1, time_limit_s=0,
        demand=SPEC.demand, after=(Dependency(7),), begin_s=50,
    ),
    ev.ArraySubmitted(array_id=1, at_s=1.0, spec=SPEC, spans=((0, 9, 3), (11, 11, 1)), at_once=5,
                      held=True),
    ev.ArraySubmitted(array_id=1, at_s=1.0, spec=SPEC, spans=((0, 9, 1),), at_once=None),
    ev.Drained(at_s=1.0, on=True, by="root"),
    ev.IdsRaised(at_s=1.0, next_id=9),
]  # fmt: skip


def test_events_of_every_kind_come_back_as_they_were_appended(journal):
    assert {type(event) for event in EVERY_KIND} == set(ev.KINDS.values())
    for event in EVERY_KIND:
        journal.append(event, None, None)
    journal.commit()
    assert list(journal.events()) == EVERY_KIND


# -- the books -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_books_read_are_the_books_that_replaying_the_events_gives(open_journal, tmp_path):
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
                for told in report_ends(ledger, most=2):
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


def test_a_drain_of_a_node_outlives_the_daemon_and_the_removal_of_old_records(book, open_journal):
    of_n1, of_n2 = (
        ev.Drained(at_s=at_s, on=True, by="root", node=node)
        for at_s, node in ((1.0, "n1"), (2.0, "n2"))
    )
    others = [
        ev.Drained(at_s=at_s, on=at_s % 2 == 1, by="root", node=node)
        for at_s in (3.0, 4.0, 5.0, 6.0)
        for node in ("", "n3")
    ]
    book.enter(of_n1, of_n2, *others)
    journal = book.journal
    journal.commit()
    while journal.remove_ended(1e9) is not None:
        journal.commit()
    left = [each for each in journal.events() if isinstance(each, ev.Drained)]
    assert left == [of_n1, of_n2, *others[-2:]]
    loaded = open_journal().load(Axes())
    assert loaded.drains == {"n1": of_n1, "n2": of_n2}


def test_ended_jobs_are_listed_newest_end_first_and_may_be_chosen(book):
    for job_id in range(1, 5):
        book.submit(job_id, actor=BOB if job_id == 2 else ALICE)
    for job_id, at_s in ((3, 10.0), (1, 20.0), (2, 30.0)):
        book.cancel(job_id, at_s=at_s)
    book.journal.commit()

    def ended_ids(**chosen: Any) -> list[int]:
        return [job.id for job in read_ended(book.journal.path, PastFilter(**chosen))]

    assert ended_ids() == ended_ids(states=("LOST", "CANCELLED")) == [2, 1, 3]
    assert (ended_ids(limit=2), ended_ids(limit=1, user="alice")) == ([2, 1], [1])
    assert [job.id for job in book.journal.ended(limit=2)] == [2, 1]
    assert ended_ids(user="alice") == [1, 3]
    assert ended_ids(user="nobody") == ended_ids(states=("COMPLETED",)) == []
    assert ended_ids(states=("x' or 1=1 --", '"', "[]")) == []


PAYLOAD = Payload(env={"PATH": "/bin", "API_KEY": "s3cret"}, script="#!/bin/sh\n")


def take(ledger: Ledger, journal: Journal, stimulus: st.Stimulus | st.Now) -> None:
    if isinstance(stimulus, st.Now):
        for started in start_events(ledger, schedule(ledger, rules()), stimulus):
            apply_and_append(journal, started, ledger)
        return
    try:
        found = stimulus.decide(ledger, rules())
    except Refused:
        return
    for event in found:
        apply_and_append(journal, event, ledger)
        if isinstance(event, ev.Submitted | ev.ArraySubmitted):
            is_one = isinstance(event, ev.Submitted)
            journal.payloads.put(
                event.job_id if is_one else event.array_id, event.spec.uid, PAYLOAD
            )


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
    waiting = [*ledger.arrays, *(group.first_id for group in ledger.arrays.tasks())]
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
            return launched(job_id, attempt, step * 60.0)
        case 9 if chance.random() < 0.3:
            return st.LaunchFailedReport(when.at_s, job_id, attempt, text="no such file")
        case 10:
            return ended(job_id, attempt, step * 60.0, exit_code=chance.choice((0, 1)))
        case 11:
            return st.MissingReport(when.at_s, job_id, attempt)
        case 12:
            return st.RemovedReport(when.at_s, job_id, attempt)
        case 13 if chance.random() < 0.5:
            return st.Breached(
                when.at_s,
                job_id,
                attempt,
                mono_s=when.mono_s,
                outcome=Outcome.LIMIT_EXCEEDED,
                text="read 2G/s",
            )
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
            return st.FrozenReport(when.at_s, job_id, attempt, mono_s=when.mono_s)
        case _:
            return when


# -- the story of one job is told in a bounded part --------------------------------------------


def test_of_a_long_one_first_and_last_and_how_many_are_between(book, path):
    told: list[ev.Event] = [happened(ev.Submitted)]
    told += [happened(ev.Altered, priority=number) for number in range(1500)]
    book.enter(*told)
    book.journal.commit()
    story = read_story(path, 1, None)
    assert story.events == [*told[:FIRST], *told[-LAST:]]
    assert len(story.events) + story.omitted + story.dropped == len(told)
    assert min(story.dropped, story.omitted) > 0


def test_a_task_has_its_arrays_story_until_it_had_one_of_its_own(book, path):
    whole: list[ev.Event] = [
        ev.ArraySubmitted(array_id=1, at_s=1.0, spec=spec(), spans=((1, 9, 1),), at_once=None),
        *(happened(ev.Altered, 1, priority=number) for number in range(300)),
    ]
    own: list[ev.Event] = [happened(ev.Held, 2), happened(ev.Released, 2)]
    book.enter(*whole, *own, happened(ev.Altered, 1, priority=7))
    book.journal.commit()
    story = read_story(path, 2, 1)
    assert story.events == [*whole[:FIRST], *whole[2 - LAST :], *own]
    assert story.omitted == 301 + 2 - FIRST - LAST
    unmaterialized = read_story(path, 5, 1)
    assert unmaterialized.events[-1] == happened(ev.Altered, 1, priority=7)
    assert list(book.journal.events(2)) == [*whole, *own]


READS = [lambda at: read_curves(at, [1]), lambda at: [*read_ended(at, PastFilter())]]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("content", [None, "not a journal at all"])
def test_a_journal_that_cannot_be_read_is_told_in_a_line(tmp_path, read, content):
    if content is not None:
        (tmp_path / "odd").write_text(content)
    with pytest.raises(HostError, match="cannot read the journal"):
        read(tmp_path / "odd")


# -- long command lines, environments and scripts: each of a user is stored once ---------------


LONG = ["sh", "-c", "x" * 5000, "", "ü"]


def long() -> Words:
    # As from a request: no object is shared with another's.
    return Words.of(LONG)


def test_a_notification_and_an_array_share_it_too(book, path, open_journal):
    told = {"argv": long(), "notify": Notify(("end",), long())}
    book.submit(1, **told)
    book.submit_array(2, 3, **told)
    book.enter(happened(ev.Admitted, 3))
    book.journal.commit()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select uses from texts").fetchall() == [(4,)]
    loaded = open_journal().load(Axes())
    assert tables(loaded) == tables(book.ledger)
    argv, task = loaded.jobs[1].spec.argv, loaded.jobs[3].spec
    assert task.argv is argv
    assert task.notify is not None and task.notify.argv is argv


def test_ended_jobs_are_read_with_it(book, path):
    book.submit(1, argv=long())
    book.cancel(1)
    book.journal.commit()
    for commands, words in ((True, LONG), (False, [])):
        (job,) = read_ended(path, PastFilter(), commands=commands)
        assert list(job.spec.argv) == words


def test_what_users_have_is_counted_anew_after_a_rollback(book, open_journal):
    script = "#!/bin/sh\nexec true\n"
    book.submit(1, payload=Payload(env={"PATH": "/usr/bin"}, script=script))
    size = len(b'{"PATH":"/usr/bin"}') + len(script)
    book.journal.commit()
    book.submit(2, payload=Payload(script="x" * 1000))
    book.cancel(1)
    assert book.journal.texts.live_bytes == {ALICE.uid: 1000}
    book.journal.rollback()
    for journal in (book.journal, open_journal()):
        assert journal.texts.live_bytes == {ALICE.uid: size}


def test_jobs_cost_their_events_their_texts_once_and_some_for_each(book, open_journal):
    """Each of 100,000 arguments counted as much as it had letters, an empty one nothing."""
    argv = Words.of([""] * 1000)
    for job_id in (1, 2):
        book.submit(job_id, argv=argv)
    events = sum(len(data) for (data,) in book.journal._db.execute("select data from events"))
    assert book.journal.live_bytes(ALICE.uid) == 1000 + events + 2 * JOB_BYTES
    book.journal.commit()
    assert open_journal().live_bytes_in_total() == book.journal.live_bytes(ALICE.uid)
    for job_id in (1, 2):
        book.cancel(job_id)
    assert book.journal.live_bytes_in_total() == 0


# -- payloads of ended jobs: kept for their user, and not without end --------------------------


@pytest.fixture
def past_book(book) -> Iterator[Book]:
    yield book
    counted = book.journal.payloads.past_bytes
    book.journal.rollback()
    assert book.journal.payloads.past_bytes == counted, "as counted from the tables"


def had(book: Book, job_id: int, payload: Payload, *, actor: Actor = ALICE) -> None:
    book.submit(job_id, actor=actor, payload=payload)
    book.cancel(job_id)


@pytest.mark.parametrize(("bound", "most"), [("MOST_OF_USER_BYTES", 3000), ("MOST_BYTES", 4000)])
def test_the_oldest_of_a_user_go_first_and_of_who_has_most(past_book, monkeypatch, bound, most):
    monkeypatch.setattr(texts, bound, most)
    for job_id in range(1, 5):
        payload = Payload(env={"X": f"{job_id}" * 1000})
        had(past_book, job_id, payload, actor=BOB if job_id == 1 else ALICE)
    kept = [each for each in range(1, 5) if past_book.journal.payloads.get(each) is not None]
    past_book.journal.commit()
    assert kept == [1, 3, 4]


# -- curves: the last word counts, and only what is committed ----------------------------------


CURVE_BEFORE = Curve(1, 1000, (0, 2000), (0, 2000), {"cores_milli": (None, 500)})


CURVE = Curve(2, 9000, (0, 2000, 4000), (2000, 2000, 4000), {"memory_kib": (64, 128, 1)})


def test_a_turn_that_fails_leaves_the_one_before(open_journal):
    journal = open_journal()
    journal.put_curve(1, CURVE_BEFORE)
    journal.commit()
    journal.put_curve(1, CURVE)
    assert read_curves(journal.path, [1]) == {1: CURVE_BEFORE}, "others see what is committed"
    journal.rollback()
    assert journal.curve(1) == CURVE_BEFORE
