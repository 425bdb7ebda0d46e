"""Every request that changes something leaves one line; one that only looks leaves none."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from drfd.common.errors import NotPermitted
from drfd.core.model.stimuli import Actor
from drfd.daemon.server.audit import ranges, record, verb_of
from drfd.protocol import requests as msg
from drfd.protocol.requests import Selection

ALICE = Actor(user="alice", uid=1001, is_admin=False)
SELECT = Selection(ids=[4, 5, 7])
#: Request → what its line calls it.
CHANGES = [
    (msg.SubmitRequest(v=1, argv=["true"], cwd="/"), "submit"),
    (msg.CancelRequest(v=1, select=SELECT), "cancel"),
    (msg.HoldRequest(v=1, select=SELECT), "hold"),
    (msg.ReleaseRequest(v=1, select=SELECT), "release"),
    (msg.SuspendRequest(v=1, select=SELECT), "suspend"),
    (msg.ResumeRequest(v=1, select=SELECT), "resume"),
    (msg.SignalRequest(v=1, select=SELECT, signal=10), "signal"),
    (msg.SetRequest(v=1, select=SELECT, priority=3), "set"),
    (msg.DrainRequest(v=1, on=True), "drain"),
    (msg.DrainRequest(v=1, on=False), "undrain"),
    (msg.ReloadRequest(v=1), "reload"),
    (msg.EndStrayRequest(v=1, id=7, attempt=1), "end-stray"),
    (msg.ExecRequest(v=1, id=7, attempt=1, command=b"words"), "exec"),
    (msg.ShutdownRequest(v=1), "shutdown"),
    (msg.ShutdownRequest(v=1, kill_jobs=True), "shutdown-kill-jobs"),
]
LOOKS = [
    msg.HelloRequest(v=1),
    msg.SubmitRequest(v=1, argv=["true"], cwd="/", dry_run=True),
    msg.StatusRequest(v=1),
    msg.ShowRequest(v=1, id=1),
    msg.HistoryRequest(v=1),
    msg.WhyRequest(v=1, id=1),
    msg.SubmissionRequest(v=1, id=1),
    msg.RecentRequest(v=1),
    msg.HistoryRequest(v=1),
    msg.ReportRequest(v=1),
    msg.WaitRequest(v=1, ids=[1]),
    msg.EventsRequest(v=1),
    msg.SharesRequest(v=1),
    msg.NodesRequest(v=1),
    msg.DoctorRequest(v=1),
    msg.UsageRequest(v=1, id=1),
    msg.WaitingRequest(v=1),
    msg.LedgerRequest(v=1),
    msg.LedgerCheckRequest(v=1),
    msg.SnapshotsRequest(v=1),
    msg.EventsRequest(v=1),
]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "drfd.audit")
    return caplog


def fields(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return cast(list[tuple[str, str]], vars(log.records[0])["fields"])


@pytest.mark.parametrize(("request_", "verb"), CHANGES, ids=[verb for _, verb in CHANGES])
def test_what_changes_something_has_a_verb(request_: msg.AnyRequest, verb: str) -> None:
    assert verb_of(request_) == verb


@pytest.mark.parametrize("request_", LOOKS, ids=lambda request: type(request).__name__)
def test_what_only_looks_leaves_nothing(
    request_: msg.AnyRequest, log: pytest.LogCaptureFixture
) -> None:
    record(ALICE, request_, {})
    assert log.messages == []


def test_every_request_is_one_or_the_other() -> None:
    """A verb that is new must not slip through."""
    kinds = {type(request) for request, _ in CHANGES} | {type(request) for request in LOOKS}
    assert kinds == set(msg.AnyRequest.__args__)


def test_the_line_says_who_what_which_and_how_it_went(log: pytest.LogCaptureFixture) -> None:
    error = {"kind": "NotPermitted", "code": "not-yours", "text": "", "hint": ""}
    reply = {"done": [4, 5], "failed": [{"id": 7, "error": error}]}
    record(ALICE, msg.CancelRequest(v=1, select=SELECT), reply)
    assert log.messages == [
        "event=audit verb=cancel uid=1001 user=alice jobs=4-5 refused=7:not-yours result=done"
    ]
    assert fields(log) == [("DRFD_JOB", "4"), ("DRFD_JOB", "5"), ("DRFD_USER", "alice")]


def test_tasks_that_there_are_not_are_told_as_they_were_asked_for(
    log: pytest.LogCaptureFixture,
) -> None:
    error = {"kind": "Refused", "code": "no-such-job", "text": "", "hint": ""}
    refs: list[int | str] = ["5_3", 7, "7_4", 8]
    reply = {"done": [], "failed": [{"id": ref, "error": error} for ref in refs]}
    record(ALICE, msg.CancelRequest(v=1, select=Selection(ids=refs)), reply)
    assert log.messages == [
        "event=audit verb=cancel uid=1001 user=alice refused=7-8,5_3,7_4:no-such-job result=done"
    ]


def test_a_submission_names_the_new_job(log: pytest.LogCaptureFixture) -> None:
    record(
        ALICE, msg.SubmitRequest(v=1, argv=["train", "--key=x"], cwd="/", env={"A": "b"}), {"id": 9}
    )
    assert log.messages == ["event=audit verb=submit uid=1001 user=alice jobs=9 result=done"]


def test_a_refusal_is_told_by_its_code(log: pytest.LogCaptureFixture) -> None:
    record(
        ALICE, msg.DrainRequest(v=1, on=True), NotPermitted("not-admin", "only an administrator")
    )
    assert log.messages == ["event=audit verb=drain uid=1001 user=alice result=not-admin"]


def test_who_does_not_wait_for_the_answer_is_on_record_all_the_same(
    log: pytest.LogCaptureFixture,
) -> None:
    record(ALICE, msg.CancelRequest(v=1, select=SELECT), None)
    assert log.messages == ["event=audit verb=cancel uid=1001 user=alice result=unknown"]


def test_a_name_with_blanks_cannot_forge_words(log: pytest.LogCaptureFixture) -> None:
    eve = Actor(user="eve verb=cancel", uid=1002, is_admin=False)
    record(eve, msg.DrainRequest(v=1, on=True), {"draining": True})
    assert '"eve verb=cancel" result=done' in log.messages[0]


@pytest.mark.parametrize(
    ("ids", "text"),
    [([], ""), ([3], "3"), ([3, 1, 2], "1-3"), ([1, 3, 4, 9], "1,3-4,9"), ([5, 5], "5")],
)
def test_many_ids_are_written_short(ids: list[int], text: str) -> None:
    assert ranges(ids) == text


def test_a_hundred_thousand_jobs_fit_a_line_and_an_entry(log: pytest.LogCaptureFixture) -> None:
    done = {"done": list(range(1, 100_001)), "failed": []}
    record(ALICE, msg.CancelRequest(v=1, select=Selection(everything=True)), done)
    assert "jobs=1-100000 " in log.messages[0]
    assert len(fields(log)) == 101
