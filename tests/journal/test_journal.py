"""What was committed is read again: events, books, stories, submissions and curves."""

from typing import Any

import pytest

from drfd.common.errors import HostError
from drfd.core.model import events as ev
from drfd.core.model.job import (
    Actor,
    Dependency,
    Outcome,
    RequiredOutcome,
    Retry,
    Usage,
    Warn,
    Whose,
)
from drfd.core.model.resources import Axes, Resources
from drfd.core.usage import Curve, Point
from drfd.journal import records, submissions
from drfd.journal.history import PastFilter, read_curves, read_ended, read_story
from drfd.journal.journal import JOB_BYTES
from drfd.journal.records import FIRST, LAST
from drfd.journal.submissions import Payload
from fakes import ALICE, BOB, all_events, happened, payload, postponed, spec
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
        whose=Whose.JOB, text="its quota is used up", resource="quota", tries=3,
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
        if isinstance(event, ev.JobEvent | ev.ArraySubmitted):
            lines = records.event_line(7, event)
            assert records.decode_events(lines * 2) == [(7, event)] * 2
        else:
            journal.append(event, None, None)
    journal.commit()
    assert all_events(journal) == EVERY_KIND[-2:]


# -- the books -----------------------------------------------------------------------------------


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
    book.prune(before_s=1e12)
    left = [each for each in all_events(journal) if isinstance(each, ev.Drained)]
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
    assert ended_ids(user="alice") == [1, 3]
    assert ended_ids(user="nobody") == ended_ids(states=("COMPLETED",)) == []
    assert ended_ids(states=("x' or 1=1 --", '"', "[]")) == []


# -- the story of one job is told in a bounded part --------------------------------------------


def test_of_a_long_one_the_first_and_last_stay_and_how_many_were_between(book, path):
    told: list[ev.Event] = [happened(ev.Submitted)]
    told += [happened(ev.Altered, priority=number) for number in range(1500)]
    book.enter(*told)
    book.journal.commit()
    story = read_story(path, 1, None)
    assert story.events == told[: 1 + FIRST] + told[1 + FIRST + story.dropped :]
    assert len(story.events) > 1 + FIRST + LAST
    assert story.dropped > 1000


def test_a_task_has_its_own_story_from_the_submission_of_its_array_on(book, path):
    """Orders about the whole array are events of each task, and are told of the array, too."""
    submitted = ev.ArraySubmitted(
        array_id=1, at_s=1.0, spec=spec(), spans=((1, 9, 1),), at_once=None
    )
    whole: list[ev.Event] = [happened(ev.Altered, 1, priority=number) for number in range(100)]
    own: list[ev.Event] = [happened(ev.Held, 2), happened(ev.Released, 2)]
    book.enter(submitted, *whole, *own, happened(ev.Altered, 1, priority=7))
    book.journal.commit()
    assert read_story(path, 2, 1).events == [submitted, *own]
    assert read_story(path, 5, 1).events == [submitted]
    assert read_story(path, 1, None).events[-1] == happened(ev.Altered, 1, priority=7)
    assert list(book.journal.events(2)) == [submitted, *own]


READS = [lambda at: read_curves(at, [1]), lambda at: [*read_ended(at, PastFilter())]]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("content", [None, "not a journal at all"])
def test_a_journal_that_cannot_be_read_is_told_in_a_line(tmp_path, read, content):
    if content is not None:
        (tmp_path / "odd").write_text(content)
    with pytest.raises(HostError, match="cannot read the journal"):
        read(tmp_path / "odd")


# -- submissions: as they were signed, and what they share is stored once ----------------------


def test_the_bytes_are_those_that_were_signed_and_the_last_job_with_a_key_counts(
    book, open_journal
):
    first, second = payload({"A": "b"}, "x", "ü" * 5000, proof="p"), payload({"A": "b"}, "y")
    book.submit(1, signed=first._replace(key="k"))
    book.submit(2, signed=second._replace(key="k"))
    book.journal.commit()
    kept = open_journal().submissions
    for job_id, signed in ((1, first), (2, second)):
        found = kept.get(job_id)
        assert found is not None
        assert (found.data, found.proof) == (signed.data, signed.proof)
    assert kept.get(3) is None
    assert [kept.job_of(ALICE.uid, key) for key in ("k", "other")] == [2, None]
    assert kept.job_of(BOB.uid, "k") is None


def test_what_users_have_is_as_it_was_after_a_rollback(book, open_journal):
    script = "#!/bin/sh\nexec true\n"
    first = payload({"PATH": "/usr/bin"}, script=script)
    book.submit(1, signed=first)
    book.journal.commit()
    before = book.journal.live_bytes(ALICE.uid)
    second = payload(script="x" * 1000)
    book.submit(2, signed=second)
    book.cancel(1)
    assert book.journal.live_bytes(ALICE.uid) == before + len(second.data) - len(first.data)
    book.journal.rollback()
    for journal in (book.journal, open_journal()):
        assert journal.live_bytes(ALICE.uid) == before


def test_jobs_cost_their_events_their_arguments_and_what_they_share_once(book, open_journal):
    """Each of 100,000 arguments counted as much as it had letters, an empty one nothing."""
    signed = payload({"A": "b"}, *[""] * 1000)
    assert signed.shared is not None
    for job_id in (1, 2):
        book.submit(job_id, signed=signed)
    query = "select length(event) + length(spec) from submissions"
    events = sum(size for (size,) in book.journal._db.execute(query))
    texts = 2 * len(signed.own) + len(signed.shared)
    assert len(signed.own) > 1000
    assert book.journal.live_bytes(ALICE.uid) == texts + events + 2 * JOB_BYTES
    book.journal.commit()
    assert open_journal().live_bytes_in_total() == book.journal.live_bytes(ALICE.uid)
    for job_id in (1, 2):
        book.cancel(job_id)
    assert book.journal.live_bytes_in_total() == 0


# -- blobs of ended jobs: kept for their user, and not without end -----------------------------


def had(book: Book, job_id: int, signed: Payload, *, actor: Actor = ALICE) -> None:
    book.submit(job_id, actor=actor, signed=signed)
    book.cancel(job_id)


def kept_of(book: Book, ids: range) -> list[int]:
    found = [(each, book.journal.submissions.get(each)) for each in ids]
    assert all(signed is not None and signed.own for _, signed in found), "the command stays"
    return [each for each, signed in found if signed is not None and signed.shared is not None]


@pytest.mark.parametrize(("bound", "most"), [("MOST_OF_USER_BYTES", 3000), ("MOST_BYTES", 4000)])
def test_the_oldest_of_a_user_go_first_and_of_who_has_most(book, monkeypatch, bound, most):
    monkeypatch.setattr(submissions, bound, most)
    for job_id in range(1, 5):
        signed = payload({"X": f"{job_id}" * 1000})
        had(book, job_id, signed, actor=BOB if job_id == 1 else ALICE)
    assert kept_of(book, range(1, 5)) == [1, 3, 4]


def test_long_commands_of_ended_jobs_do_not_fill_the_disk(book, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_OF_USER_BYTES", 100_000)
    signed = payload({"A": "b"}, "run", "x" * 30_000)
    book.submit(1, signed=signed)
    found = book.journal.submissions.get(1)
    assert found is not None and (found.data, found.content().argv) == (
        signed.data, signed.content().argv
    )  # fmt: skip
    book.cancel(1)
    for job_id in range(2, 40):
        had(book, job_id, payload({"A": "b"}, "run", f"{job_id:030000}"))
    query = "select sum(length(own)) + (select sum(length(data)) from blob_data) from submissions"
    ((stored,),) = book.journal._db.execute(query).fetchall()
    assert stored < 100_000
    ((gone,), (last,)) = ([book.journal.submissions.get(each)] for each in (1, 39))
    assert gone is not None and gone.shared is None
    assert last is not None and last.content().argv[0] == "run"


def test_one_end_drops_few_and_else_its_own(book, monkeypatch):
    """The end of a large one dropped thousands of small ones in one turn."""
    monkeypatch.setattr(submissions, "MOST_OF_USER_BYTES", 3000)
    monkeypatch.setattr(submissions, "_MOST_DROPPED", 2)
    monkeypatch.setattr(submissions, "_LEAST_BYTES", 0)
    for job_id in range(1, 21):
        had(book, job_id, payload({"X": f"{job_id:0140}"}))
    had(book, 21, payload({"X": "x" * 2000}))
    had(book, 22, payload({"X": "x" * 400}))
    assert kept_of(book, range(1, 23)) == [*range(3, 21), 22]


def test_small_ones_count_as_a_kibibyte_each(book, monkeypatch):
    """Each takes a place in memory: of empty ones there might be without end."""
    monkeypatch.setattr(submissions, "MOST_OF_USER_BYTES", 3000)
    for job_id in range(1, 5):
        had(book, job_id, payload({"X": f"{job_id}"}))
    assert kept_of(book, range(1, 5)) == [3, 4]


def test_what_live_jobs_share_with_ended_ones_is_not_dropped(book, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_OF_USER_BYTES", 0)
    for job_id in (1, 2):
        book.submit(job_id, signed=payload({"A": "b"}))
    book.cancel(1)
    assert kept_of(book, range(1, 3)) == [1, 2]
    book.cancel(2)
    assert kept_of(book, range(1, 3)) == []


def test_what_is_submitted_again_is_not_dropped_and_counts_anew_when_it_has_ended(
    book, monkeypatch
):
    monkeypatch.setattr(submissions, "MOST_OF_USER_BYTES", 3000)
    for job_id in (1, 2):
        had(book, job_id, payload({"X": f"{job_id}" * 1000}))
    book.submit(3, signed=payload({"X": "1" * 1000}))
    for job_id in (4, 5):
        had(book, job_id, payload({"X": f"{job_id}" * 1000}))
    assert kept_of(book, range(1, 6)) == [1, 3, 4, 5]
    book.cancel(3)
    assert kept_of(book, range(1, 6)) == [1, 3, 5]


def test_blobs_are_counted_without_those_that_went_with_old_jobs(book, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_OF_USER_BYTES", 3000)
    monkeypatch.setattr(submissions, "_MOST_DROPPED", 0)
    for first in (1, 3):
        for job_id in (first, first + 1):
            had(book, job_id, payload({"X": f"{job_id}" * 1000}))
        book.journal.commit()
        if first == 1:
            assert book.prune(before_s=1e12) == [2]
    assert kept_of(book, range(3, 5)) == [3, 4]


def test_another_daemon_drops_the_oldest_first(book, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_OF_USER_BYTES", 3000)
    for job_id in (1, 2):
        had(book, job_id, payload({"X": f"{job_id}" * 1000}))
    book.journal.commit()
    # It reads what the file has.
    book.journal.rollback()
    had(book, 3, payload({"X": "3" * 1000}))
    assert kept_of(book, range(1, 4)) == [2, 3]


# -- curves: the last word counts, and only what is committed ----------------------------------


CURVE_BEFORE = Curve(1, (Point.of(1000, 0), Point.of(3000, 2000, cores_milli=(500, 1))))


CURVE = Curve(
    2, tuple(Point.of(end_ms, 2000, memory_bytes=(end_ms, 1)) for end_ms in (9000, 11_000))
)


def test_a_turn_that_fails_leaves_the_one_before(open_journal):
    journal = open_journal()
    journal.put_curve(1, CURVE_BEFORE)
    journal.commit()
    journal.put_curve(1, CURVE)
    assert read_curves(journal.path, [1]) == {1: CURVE_BEFORE}, "others see what is committed"
    journal.rollback()
    assert journal.curve(1) == CURVE_BEFORE
